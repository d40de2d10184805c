//! The driver of the core: the only clock, and the only way in and out.
//!
//! The core sits behind one mutex. A caller reports what it saw; the core's outputs are drained and routed under the same
//! lock, so that they leave in the order in which they were decided: commands to the task of their request, probes to tasks
//! of their own, notes to the event bus. No chunk of a body and no I/O ever waits for this lock.
//!
//! The channel of a request is bounded by what the core may say about one request: each dial may be followed by its calls and
//! one cancel, then come one delivery or reply, one break, and one abort of the driver's own.
//!
//! If the core panics it is rebuilt from the policy. Requests under way get a controlled error, attempts of the old core are
//! told apart by their epoch and ignored, and the event `core_rebuilt` and a metric say so.

mod routing;
#[cfg(test)]
mod tests;
mod ticket;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

pub use ticket::Ticket;

use super::held::Held;
use super::ledger::row::stand_in;
use super::ledger::{Ledger, Written};
use super::pause::CoreTime;
use super::stranded;
use crate::event::Event;
use crate::policy::{Policy, TargetId};
use crate::router::classify::Class;
use crate::router::decision::{Availability, DecisionRecord, Note, Snapshot};
use crate::router::{
    AttemptId, Engine, Facts, Failure, Input, Limits, Machine, Output, ProposedCall, Reply, RequestId, Sign, Usage,
    Withhold,
};
use crate::units::Ts;
use crate::wire::Stamp;

/// What the driver needs of a core beside its contract. Tests bring their own.
pub trait Core: Machine + Send {
    /// What every target can do now, and what is under way.
    fn snapshot(&self, now: Ts) -> Snapshot;

    /// Another policy holds from now on. Its ids continue those of the one that held.
    fn succeed(&mut self, now: Ts, policy: &Arc<Policy>);
}

impl Core for Engine {
    fn snapshot(&self, now: Ts) -> Snapshot {
        Engine::snapshot(self, now)
    }

    fn succeed(&mut self, now: Ts, policy: &Arc<Policy>) {
        Engine::succeed(self, now, Arc::clone(policy));
    }
}

/// An attempt of one life of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptKey {
    epoch: u32,
    /// The core's own id.
    pub id: AttemptId,
}

/// What the task of a request is told.
#[derive(Debug)]
pub enum Cmd {
    /// Dial this target.
    Dial {
        /// The attempt.
        key: AttemptKey,
        /// Whom.
        target: TargetId,
        /// Limits; the core keeps the clocks of the first two.
        limits: Limits,
        /// On a new connection.
        fresh: bool,
        /// Personal data must be masked for it.
        mask: bool,
        /// Beside the one under way.
        hedge: bool,
        /// Ask for no more output tokens than this.
        max_output_tokens: Option<u64>,
        /// Tools that must not be offered.
        withhold: Withhold,
    },
    /// The calls of this attempt, as the client must see them, once they are written down.
    Calls {
        /// Which attempt.
        key: AttemptKey,
        /// In the order of the answer.
        stamps: Vec<Stamp>,
        /// How many had a key of the model's own, which was overwritten.
        overwritten: u64,
        /// When they are durable.
        written: Written,
    },
    /// Stop this attempt.
    Cancel(AttemptKey),
    /// Deliver this attempt.
    Deliver {
        /// Which.
        key: AttemptKey,
        /// Dials so far.
        attempts: u32,
        /// Mark the answer as degraded.
        degraded: bool,
    },
    /// Send this reply; nothing else will come.
    Reply {
        /// What.
        reply: Reply,
        /// Dials made.
        attempts: u32,
    },
    /// The delivered attempt has failed.
    Break(Class),
    /// The gateway itself ends the request.
    Abort(Abort),
}

/// Why the gateway itself ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The core panicked and was rebuilt.
    CoreLost,
    /// The gateway is shutting down and the time for open requests is over.
    Draining,
}

/// What is remembered about a request beside the core's own state: for events and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Request id as the client sees it.
    pub request: String,
    /// Conversation, if the client named one.
    pub conversation: Option<String>,
    /// Turn.
    pub turn: Option<u64>,
    /// Whose key it came with, where clients have keys.
    pub client: Option<String>,
}

/// What the driver tells the rest of the gateway. Called with the core locked, except for [`Watcher::done`]: be quick.
pub trait Watcher: Send + Sync {
    /// An event happened.
    fn event(&self, event: Event);
    /// A request is over.
    fn done(&self, meta: &Meta, record: DecisionRecord);
    /// A probe must be run; the handle stops it.
    fn probe(&self, key: AttemptKey, target: TargetId, limits: Limits) -> AbortHandle;
    /// The core was lost and rebuilt.
    fn rebuilt(&self, requests: u64);
}

/// Makes a core for a policy; called again after a panic, with another seed and the policy that holds by then.
pub type MakeCore = Box<dyn Fn(u64, &Arc<Policy>) -> Box<dyn Core> + Send + Sync>;

/// The driver.
pub struct Driver {
    seed: u64,
    make: MakeCore,
    state: Mutex<State>,
    timer: Notify,
    watcher: Weak<dyn Watcher>,
    ledger: Option<Arc<Ledger>>,
    /// The policy that holds. Changed only with the core locked, so that who holds that lock sees one policy.
    policy: Held<Policy>,
}

struct State {
    core: Box<dyn Core>,
    epoch: u32,
    next_request: u64,
    requests: BTreeMap<RequestId, Slot>,
    attempts: BTreeMap<AttemptId, Owner>,
    /// The next moment at which the core has something to do.
    armed: Option<Ts>,
    /// When the timer task looks next by itself, which may be before that: it is woken only for what is sooner.
    looks: Option<Ts>,
    time: CoreTime,
    /// Arguments of the calls that the core is being told about: it holds none.
    texts: Vec<String>,
    /// Routes, by name, of which people were told last that nobody serves them.
    stranded: BTreeSet<String>,
    /// Who may serve what has changed otherwise than by a target's availability.
    restless: bool,
}

impl State {
    /// Now, on the core's time line.
    fn now(&mut self) -> Ts {
        self.time.at(Instant::now(), self.armed)
    }
}

struct Slot {
    to: mpsc::Sender<Cmd>,
    meta: Meta,
    /// It was told that the gateway stops.
    stopped: bool,
}

enum Owner {
    Request(RequestId),
    Probe(AbortHandle),
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver of a new core. Times count from `anchor`. The watcher is held weakly: it owns the driver.
    #[must_use]
    pub fn new(anchor: Instant, policy: Arc<Policy>, seed: u64, make: MakeCore, watcher: Weak<dyn Watcher>) -> Driver {
        let core = make(seed, &policy);
        let state = State {
            core,
            epoch: 0,
            next_request: 1,
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            armed: None,
            looks: None,
            time: CoreTime::new(anchor),
            texts: Vec::new(),
            stranded: BTreeSet::new(),
            restless: false,
        };
        let policy = Held::new(policy);
        Driver { seed, make, state: Mutex::new(state), timer: Notify::new(), watcher, ledger: None, policy }
    }

    /// The same, with a ledger that is written down.
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<Ledger>) -> Driver {
        Driver { ledger: Some(ledger), ..self }
    }

    /// Now, on the core's time line: without the pauses of this process.
    #[must_use]
    pub fn now(&self) -> Ts {
        self.lock().now()
    }

    /// The policy that holds now. Who needs it more than once takes it once.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come. Its commands arrive at the ticket.
    pub fn arrive(self: &Arc<Self>, facts: Facts, meta: Meta) -> Ticket {
        let mut state = self.lock();
        let policy = self.policy();
        let route = policy.route(facts.route);
        let dials = usize::try_from(route.max_attempts).unwrap_or(usize::MAX);
        let (to, commands) = mpsc::channel(dials.saturating_mul(3).saturating_add(8).min(1024));
        if let (Some(ledger), Some(said)) = (&self.ledger, &facts.conversation) {
            ledger.seen(&said.client, &route.name, &said.id, said.turn, said.history_version);
        }
        let id = RequestId(state.next_request);
        state.next_request += 1;
        state.requests.insert(id, Slot { to, meta, stopped: false });
        let over = self.step(state, Input::Arrive { request: id, facts }, None);
        self.after(over);
        Ticket { id, policy, commands, driver: Arc::clone(self), stalled: None, over: false }
    }

    /// The connection of this attempt stands.
    pub fn connected(&self, key: AttemptKey) {
        self.report(key, Input::Connected { attempt: key.id });
    }

    /// A sign of life before the commit point.
    pub fn sign(&self, key: AttemptKey, sign: Sign) {
        self.report(key, Input::FirstToken { attempt: key.id, sign });
    }

    /// The committing delta is here.
    pub fn committed(&self, key: AttemptKey) {
        self.report(key, Input::Committed { attempt: key.id });
    }

    /// The answer is complete.
    pub fn ended(&self, key: AttemptKey, usage: Option<Usage>) {
        self.report(key, Input::Ended { attempt: key.id, usage });
    }

    /// The attempt failed.
    pub fn broke(&self, key: AttemptKey, failure: Failure, reused: bool) {
        self.report(key, Input::Broke { attempt: key.id, failure, reused });
    }

    /// The answer of this attempt calls tools: tool and arguments of each. [`Cmd::Calls`] follows, or the attempt's end.
    pub fn calls(&self, key: AttemptKey, calls: Vec<(String, String)>) {
        let (calls, texts): (Vec<ProposedCall>, Vec<String>) =
            calls.into_iter().map(|(tool, text)| (ProposedCall { tool, arguments: stand_in(&text) }, text)).unzip();
        self.report_with(key, Input::Calls { attempt: key.id, calls }, texts);
    }

    /// An operator wants something of the core.
    pub fn ordered(&self, input: Input) {
        let over = self.step(self.lock(), input, None);
        self.after(over);
    }

    /// The ledger can be written to again, or cannot any more.
    pub fn ledger_writable(&self, writable: bool) {
        let over = self.step(self.lock(), Input::LedgerWritable { writable }, None);
        self.after(over);
    }

    fn report(&self, key: AttemptKey, input: Input) {
        self.report_with(key, input, Vec::new());
    }

    fn report_with(&self, key: AttemptKey, input: Input, texts: Vec<String>) {
        let mut state = self.lock();
        if state.epoch != key.epoch {
            return;
        }
        state.texts = texts;
        let about = match state.attempts.get(&key.id) {
            Some(Owner::Request(id)) => Some(*id),
            _ => None,
        };
        let over = self.step(state, input, about);
        self.after(over);
    }

    fn client_gone(&self, request: RequestId, stalled: bool) {
        let state = self.lock();
        let Some(slot) = state.requests.get(&request) else { return };
        let input = if slot.stopped { Input::Stopped { request } } else { Input::ClientGone { request, stalled } };
        let over = self.step(state, input, Some(request));
        self.after(over);
    }

    /// What every target can do now, and what is under way.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut state = self.lock();
        let now = state.now();
        state.core.snapshot(now)
    }

    /// Client requests that are not over.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().requests.len()
    }

    /// Ends every open request with a controlled error.
    pub fn abort_all(&self) {
        for slot in self.lock().requests.values_mut() {
            slot.stopped = true;
            let _ = slot.to.try_send(Cmd::Abort(Abort::Draining));
        }
    }

    /// Runs the core's clock. Never returns.
    pub async fn run_clock(self: Arc<Self>) {
        loop {
            let armed = {
                let mut state = self.lock();
                state.looks = state.armed;
                state.armed.map(|at| state.time.instant(at))
            };
            match armed {
                None => self.timer.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {
                            let over = self.step(self.lock(), Input::Tick, None);
                            self.after(over);
                        }
                        () = self.timer.notified() => {}
                    }
                }
            }
        }
    }

    /// Another policy holds from now on: its ids continue those of the one that held. `told` is what the core must know of its
    /// targets: what files say of them, and what operators have ordered. All in one step, so that no request is decided in
    /// between.
    pub fn succeed(&self, policy: &Arc<Policy>, told: Vec<Input>) {
        let mut state = self.lock();
        self.policy.hold(Arc::clone(policy));
        state.restless = true;
        let over = self.moved(state, None, None, |core, now| {
            core.succeed(now, policy);
            for input in told {
                core.handle(now, input);
            }
        });
        self.after(over);
    }

    /// Moves the core and routes what it says. `about` is the request that the input speaks of.
    fn step(
        &self,
        state: MutexGuard<'_, State>,
        input: Input,
        about: Option<RequestId>,
    ) -> Vec<(Meta, DecisionRecord)> {
        let ended = match &input {
            Input::Ended { attempt, .. } | Input::Broke { attempt, .. } => Some(*attempt),
            _ => None,
        };
        self.moved(state, about, ended, |core, now| core.handle(now, input))
    }

    fn moved(
        &self,
        mut state: MutexGuard<'_, State>,
        mut about: Option<RequestId>,
        ended: Option<AttemptId>,
        by: impl FnOnce(&mut Box<dyn Core>, Ts),
    ) -> Vec<(Meta, DecisionRecord)> {
        let now = state.now();
        let restless = std::mem::take(&mut state.restless);
        let core = &mut state.core;
        let moved = catch_unwind(AssertUnwindSafe(|| {
            by(core, now);
            let outputs: Vec<Output> = std::iter::from_fn(|| core.poll_output()).collect();
            let changed = |o: &Output| matches!(o, Output::Note(Note::Availability { .. }));
            let snapshot = (restless || outputs.iter().any(changed)).then(|| core.snapshot(now));
            (outputs, core.poll_timeout(), snapshot)
        }));
        let Ok((outputs, next, snapshot)) = moved else {
            self.rebuild(&mut state);
            return Vec::new();
        };
        let mut over = Vec::new();
        for output in outputs {
            self.route(&mut state, output, now, &mut about, &mut over);
        }
        if let Some(id) = ended {
            state.attempts.remove(&id);
        }
        if let Some(snapshot) = snapshot {
            self.tell_of_routes(&mut state, &snapshot);
        }
        let sooner = next.is_some_and(|next| state.looks.is_none_or(|looks| next < looks));
        if sooner {
            state.looks = next;
        }
        state.armed = next;
        drop(state);
        if sooner {
            self.timer.notify_one();
        }
        over
    }

    /// Tells of routes that nobody serves since this moment, and of those that somebody serves again.
    fn tell_of_routes(&self, state: &mut State, snapshot: &Snapshot) {
        for event in stranded::told(&self.policy(), snapshot, &mut state.stranded) {
            self.tell_people(event);
        }
    }

    fn tell_people(&self, event: Event) {
        if let Some(watcher) = self.watcher.upgrade() {
            watcher.event(event);
        }
    }

    /// After the lock: records are turned into events and metrics.
    fn after(&self, over: Vec<(Meta, DecisionRecord)>) {
        if over.is_empty() {
            return;
        }
        if let Some(watcher) = self.watcher.upgrade() {
            for (meta, record) in over {
                watcher.done(&meta, record);
            }
        }
    }

    fn rebuild(&self, state: &mut State) {
        state.epoch += 1;
        let seed = self.seed ^ u64::from(state.epoch).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        state.core = (self.make)(seed, &self.policy());
        for (_, owner) in std::mem::take(&mut state.attempts) {
            if let Owner::Probe(handle) = owner {
                handle.abort();
            }
        }
        let lost = std::mem::take(&mut state.requests);
        for slot in lost.values() {
            let _ = slot.to.try_send(Cmd::Abort(Abort::CoreLost));
        }
        state.armed = state.core.poll_timeout();
        self.timer.notify_one();
        if let Some(watcher) = self.watcher.upgrade() {
            watcher.rebuilt(lost.len() as u64);
        }
        // A new core knows of no outage: whom it calls is what people must know of.
        let now = state.now();
        let snapshot = state.core.snapshot(now);
        self.tell_of_routes(state, &snapshot);
    }
}

/// The name of a state in events, metrics and snapshots.
#[must_use]
pub fn state_name(state: &Availability) -> &'static str {
    match state {
        Availability::Serving { .. } => "serving",
        Availability::Cooling { .. } => "cooling",
        Availability::Probing => "probing",
        Availability::Benched { .. } => "benched",
    }
}
