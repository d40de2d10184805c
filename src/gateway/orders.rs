//! What operators have ordered: a target out of service, the emergency mode, a fault forced for a test. Each has a reason, is
//! written down as an event, and ends by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json as value};
use tokio::task::AbortHandle;

use super::app::App;
use super::driver::Watcher;
use crate::event::Event;
use crate::policy::{Policy, TargetId};
use crate::router::Input;
use crate::units::printable;

/// No order lasts longer: what is forgotten ends.
pub const LONGEST: Duration = Duration::from_secs(86_400);
/// Longest reason, in characters.
const REASON_CHARS: usize = 300;

/// How a target is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// It takes the connection and says nothing.
    Timeout,
    /// 503.
    Unavailable,
    /// 429, without a word on when to come back.
    RateLimited,
    /// The connection is reset before an answer.
    Reset,
    /// The answer breaks off after its first piece.
    Cut,
}

impl Forced {
    /// All, by their names.
    pub const ALL: [(&'static str, Forced); 5] = [
        ("timeout", Forced::Timeout),
        ("503", Forced::Unavailable),
        ("429", Forced::RateLimited),
        ("reset", Forced::Reset),
        ("cut", Forced::Cut),
    ];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Forced> {
        Forced::ALL.iter().find(|(n, _)| *n == name).map(|(_, forced)| *forced)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Forced::ALL.iter().find(|(_, f)| *f == self).map_or("", |(name, _)| *name)
    }
}

/// What is ordered. Beside one target there is one order of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// No customer's request goes there, and no probe.
    Bench(TargetId),
    /// Background tasks are refused, answers are capped.
    Emergency,
    /// It fails.
    Fault(TargetId),
}

#[derive(Debug)]
struct Order {
    forced: Option<Forced>,
    reason: String,
    /// `None`: as long as the process (a fault from its environment).
    until: Option<Instant>,
    number: u64,
    /// Ends it when its time is over.
    timer: Option<AbortHandle>,
}

impl Drop for Order {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

#[derive(Debug, Default)]
struct State {
    by_what: BTreeMap<What, Order>,
    given: u64,
}

/// The orders of this process.
#[derive(Debug, Default)]
pub struct Orders {
    /// Faults may be forced.
    pub faults_allowed: bool,
    state: Mutex<State>,
    /// Held while an order is written down and told to the core, so that both hear them in the same order. The core's own
    /// lock may be taken under it, never the other way round.
    changing: Mutex<()>,
}

impl Orders {
    /// With these faults from the start; `None`: none may be forced.
    #[must_use]
    pub fn new(faults: Option<Vec<(TargetId, Forced)>>) -> Orders {
        let orders = Orders { faults_allowed: faults.is_some(), ..Orders::default() };
        {
            let mut state = orders.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (target, forced) in faults.into_iter().flatten() {
                let reason = "the environment".into();
                let order = Order { forced: Some(forced), reason, until: None, number: 0, timer: None };
                state.by_what.insert(What::Fault(target), order);
            }
        }
        orders
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this target is made to fail, if it is.
    #[must_use]
    pub fn forced(&self, target: TargetId) -> Option<Forced> {
        if !self.faults_allowed {
            return None;
        }
        self.lock().by_what.get(&What::Fault(target)).and_then(|order| order.forced)
    }

    /// What a core that is made anew must be told.
    #[must_use]
    pub fn inputs(&self) -> Vec<Input> {
        let input = |what: &What| match what {
            What::Bench(target) => Some(Input::Bench { target: *target, out: true, until: None }),
            What::Emergency => Some(Input::Emergency { on: true }),
            What::Fault(_) => None,
        };
        self.lock().by_what.keys().filter_map(input).collect()
    }

    fn change(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order; it ends after `lasts`. One of the same kind is replaced.
    pub fn give(app: &Arc<App>, what: What, forced: Option<Forced>, reason: &str, lasts: Duration) {
        let lasts = lasts.min(LONGEST);
        let _turn = app.orders.change();
        app.orders.write(app, what, forced, reason, Some(Instant::now() + lasts));
        if let Some(input) = input(app, what, Some(lasts)) {
            app.driver.ordered(input);
        }
        told(app, what, forced, "given", reason, Some(lasts));
    }

    /// Ends an order. False if there is none.
    pub fn end(app: &Arc<App>, what: What, reason: &str) -> bool {
        let _turn = app.orders.change();
        Orders::ended(app, what, reason)
    }

    fn ended(app: &Arc<App>, what: What, reason: &str) -> bool {
        let ended = app.orders.lock().by_what.remove(&what);
        let Some(order) = ended else { return false };
        if let Some(input) = input(app, what, None) {
            app.driver.ordered(input);
        }
        told(app, what, order.forced, "ended", reason, None);
        true
    }

    /// Writes an order down and sets its clock. What it replaces ends with its clock.
    fn write(&self, app: &Arc<App>, what: What, forced: Option<Forced>, reason: &str, until: Option<Instant>) {
        let mut state = self.lock();
        state.given += 1;
        let number = state.given;
        let timer = until.map(|until| {
            let app = Arc::downgrade(app);
            let ends = async move {
                tokio::time::sleep_until(until.into()).await;
                if let Some(app) = app.upgrade() {
                    let _turn = app.orders.change();
                    // Another may have taken its place while this waited for its turn.
                    let ours = app.orders.lock().by_what.get(&what).is_some_and(|order| order.number == number);
                    if ours {
                        Orders::ended(&app, what, "it has run out");
                    }
                }
            };
            tokio::spawn(ends).abort_handle()
        });
        let reason = printable(reason, REASON_CHARS);
        state.by_what.insert(what, Order { forced, reason, until, number, timer });
    }

    /// Another policy takes the place of the one that holds: `swap` does it, and is given what the core must be told in the
    /// same step. An order about a target goes with its name where that stands for another address, model or credential from
    /// now on; where nothing is called so any more, it ends.
    pub fn follow(app: &Arc<App>, before: &Policy, now: &Policy, swap: impl FnOnce(Vec<Input>)) {
        let _turn = app.orders.change();
        let retired = |id: &TargetId| now.retired.targets.contains(id);
        let moves: Vec<(What, Option<What>)> = {
            let state = app.orders.lock();
            let of_retired = state.by_what.keys().filter(|what| parts(**what).1.as_ref().is_some_and(retired));
            of_retired.map(|what| (*what, heir(*what, before, now))).collect()
        };
        // Whoever inherits a fault has it before it is dialled for the first time, and whoever is benched is never dialled.
        let mut inputs = Vec::new();
        for (from, to) in moves.iter().filter_map(|(from, to)| Some((*from, (*to)?))) {
            let said = app.orders.lock().by_what.get(&from).map(|o| (o.forced, o.reason.clone(), o.until));
            let Some((forced, reason, until)) = said else { continue };
            // The place that it leaves may come back, under this name or another.
            inputs.extend(input(app, from, None));
            app.orders.write(app, to, forced, &reason, until);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inputs.extend(input(app, to, Some(left.unwrap_or(LONGEST))));
        }
        swap(inputs);
        for (from, to) in moves {
            match to {
                Some(_) => drop(app.orders.lock().by_what.remove(&from)),
                None => drop(Orders::ended(app, from, "its target is no longer in the policy")),
            }
        }
    }

    /// All, for people.
    #[must_use]
    pub fn shown(&self, name: impl Fn(TargetId) -> String) -> Vec<Value> {
        let now = Instant::now();
        let row = |(what, order): (&What, &Order)| {
            let (kind, target) = parts(*what);
            value!({
                "order": kind,
                "target": target.map(&name),
                "fault": order.forced.map(Forced::name),
                "reason": order.reason,
                "ends_in_ms": order.until.map(|at| u64::try_from(at.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX)),
            })
        };
        self.lock().by_what.iter().map(row).collect()
    }
}

fn parts(what: What) -> (&'static str, Option<TargetId>) {
    match what {
        What::Bench(target) => ("bench", Some(target)),
        What::Emergency => ("emergency", None),
        What::Fault(target) => ("fault", Some(target)),
    }
}

/// The same order about whoever has this target's name now.
fn heir(what: What, before: &Policy, now: &Policy) -> Option<What> {
    let named = |id: TargetId| now.target_named(&before.target(id).name).map(|t| t.id);
    match what {
        What::Bench(target) => named(target).map(What::Bench),
        What::Fault(target) => named(target).map(What::Fault),
        What::Emergency => None,
    }
}

/// What the core must be told: the order holds for so long, or has ended.
fn input(app: &App, what: What, lasts: Option<Duration>) -> Option<Input> {
    match what {
        What::Bench(target) => {
            let until = lasts.map(|lasts| app.driver.now() + lasts);
            Some(Input::Bench { target, out: lasts.is_some(), until })
        }
        What::Emergency => Some(Input::Emergency { on: lasts.is_some() }),
        What::Fault(_) => None,
    }
}

fn told(app: &App, what: What, forced: Option<Forced>, state: &str, reason: &str, lasts: Option<Duration>) {
    let (kind, target) = parts(what);
    let target = target.map(|id| app.target_name(id));
    let reason = printable(reason, REASON_CHARS);
    tracing::warn!(order = kind, target = target.as_deref().unwrap_or("-"), state, reason = %reason, "operator");
    Watcher::event(
        app,
        Event::Order {
            order: kind.to_owned(),
            state: state.to_owned(),
            target,
            fault: forced.map(|f| f.name().to_owned()),
            reason,
            for_ms: lasts.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        },
    );
}
