//! What must hold whatever happens, judged outside the core from its inputs and outputs alone.
//!
//! Nothing here asks the core what it thinks: who may answer, how many dials were made, who was told to be out of service and
//! what an answer really was is worked out again. In a sound run nothing is ever found; `tests/cli/planted.rs` shows that
//! planted bugs are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::arrivals::Class;
use super::ring::Ring;
use crate::policy::{DataClass, Pii, Policy, ProbeKind, Route, Select, TargetId, Tier};
use crate::router::decision::{Availability, DecisionRecord, Note, Outcome};
use crate::router::{Facts, Failure, Input, Output};
use crate::units::{self, Ts};

/// Violations that are kept; more say nothing new.
pub const MOST: usize = 20;
/// ... of one promise, so that one does not crowd out the others.
const MOST_OF_ONE: usize = 3;

/// A promise that was not held.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// When, since the begin of the run.
    pub at: Ts,
    /// Which promise.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

/// True if this tier is open to this request.
fn open(route: &Route, tier: &Tier, facts: &Facts) -> bool {
    let personal = facts.data == DataClass::Personal || route.data == DataClass::Personal;
    let pii = tier.pii.unwrap_or(if route.residency_required.is_some() { Pii::Allowed } else { Pii::Forbidden });
    let listed = |list: &Vec<String>| facts.intent.as_ref().is_some_and(|intent| list.contains(intent));
    let may = match pii {
        Pii::Allowed => true,
        Pii::Masked => facts.unmaskable.is_none(),
        Pii::Forbidden => false,
    };
    (!personal || may) && tier.intents.as_ref().is_none_or(listed)
}

/// True if a dial that masks, or does not, is what the policy says for this target.
fn masked_rightly(policy: &Policy, facts: &Facts, target: TargetId, mask: bool) -> bool {
    let route = policy.route(facts.route);
    let personal = facts.data == DataClass::Personal || route.data == DataClass::Personal;
    let tiers = route.tiers.iter().filter(|tier| tier.targets.contains(&target) && open(route, tier, facts));
    let wants = |tier: &Tier| personal && tier.pii == Some(Pii::Masked);
    tiers.map(wants).any(|wanted| wanted == mask)
}

/// True if law, route and declared abilities let this target answer this request: worked out from the policy alone.
#[must_use]
pub fn may(policy: &Policy, facts: &Facts, target: TargetId) -> bool {
    let route = policy.route(facts.route);
    let t = policy.target(target);
    let legal = |t: &crate::policy::Target| match &route.residency_required {
        None => true,
        Some(required) => !t.residency.is_empty() && t.residency.iter().all(|place| required.contains(place)),
    };
    let first = route.tiers.first().and_then(|tier| tier.targets.first());
    let same_class = |t: &crate::policy::Target| first.is_none_or(|first| policy.target(*first).tier == t.tier);
    let lawful = |t: &crate::policy::Target| legal(t) && (route.degrade || same_class(t));
    let open_tiers = || route.tiers.iter().filter(|tier| open(route, tier, facts));
    // Without failover only the first that law, data, intent and quality allow is ever tried.
    let mut in_order = open_tiers().flat_map(|tier| &tier.targets);
    let first_lawful = in_order.find(|id| lawful(policy.target(**id)));
    let need = facts.body_bytes / 3 + facts.max_output_tokens.unwrap_or(0);
    lawful(t)
        && open_tiers().any(|tier| tier.targets.contains(&target))
        && (!facts.tools || t.capabilities.tools)
        && (!facts.vision || t.capabilities.vision)
        && t.capabilities.context_tokens.is_none_or(|window| need <= window)
        && (route.no_failover.is_none() || first_lawful == Some(&target))
}

/// The same of every target, in the order of the policy. Only those of the route's own tiers are asked about: a policy may have
/// thousands of others.
#[must_use]
pub fn who_may(policy: &Policy, facts: &Facts) -> Vec<bool> {
    let mut all = vec![false; policy.targets.len()];
    for target in policy.route(facts.route).tiers.iter().flat_map(|tier| &tier.targets) {
        if let Some(one) = all.get_mut(usize::from(target.0)) {
            *one = may(policy, facts, *target);
        }
    }
    all
}

/// A ramp is over after this.
fn ramp(route: &Route) -> Duration {
    route.ramp.as_ref().map_or(Duration::ZERO, |r| r.hold * u32::try_from(r.steps.len()).unwrap_or(u32::MAX))
}

/// Longest bench of a credential before it is probed, and so the longest time out of service for any reason in these worlds,
/// whose `Retry-After` is at most ten minutes.
const BENCH: Duration = Duration::from_secs(900);

/// Everything healed: every target serves after at most this. The longest cooldown or bench, as many probes as the breaker asks for, each with its limits, an ejection by health, and a margin of
/// five seconds for the time that probes take on the way.
#[must_use]
pub fn recovery_bound(policy: &Policy) -> Duration {
    let probe = policy.routes.iter().map(|r| r.deadline).max().unwrap_or_default();
    let breaker = policy.breaker;
    let health = policy.health.window + policy.health.probe_every * breaker.half_open_successes.max(1);
    let probes = breaker.half_open_successes.max(1) + 1;
    // Under `probe: live` each probe may wait for a request as long as this.
    let patience = if breaker.probe == ProbeKind::Live { breaker.base_cooldown * probes } else { Duration::ZERO };
    breaker.max_cooldown.max(BENCH) + probe * probes + patience + health + Duration::from_secs(5)
}

/// Everybody serves: every route is back at its first choice after at most this.
#[must_use]
pub fn settle(policy: &Policy) -> Duration {
    policy.routes.iter().map(|r| ramp(r)).max().unwrap_or_default() + policy.health.window
}

#[derive(Debug)]
struct Seen {
    class: usize,
    arrived: Ts,
    dialled: Vec<TargetId>,
    under_way: u32,
    waiting: bool,
    delivered: Option<u64>,
    replied: bool,
    gone: bool,
}

#[derive(Debug)]
struct Dial {
    target: TargetId,
    request: Option<u64>,
    /// It holds its target's one place for a probe.
    probe: bool,
    /// The driver reported a committing delta, or a whole answer.
    shown: bool,
    whole: bool,
    began: Ts,
}

/// Counted failures of one target, as the driver saw them: an upper bound of what a breaker may have counted.
#[derive(Debug, Default)]
struct Faults {
    in_a_row: u32,
    recent: VecDeque<Ts>,
    /// When it was last taken out: what began before changes nothing after.
    out_at: Ts,
}

/// Watches one run.
#[derive(Debug)]
pub(super) struct Checker {
    policy: Arc<Policy>,
    facts: Vec<Facts>,
    /// By class and target.
    may: Vec<Vec<bool>>,
    seen: Ring<Seen>,
    dials: Ring<Dial>,
    last_attempt: u64,
    probing: Vec<u32>,
    out: Vec<bool>,
    /// `probe: live`, and told that the next request may be this target's probe.
    wants_live_probe: Vec<bool>,
    faults: Vec<Faults>,
    waiting: BTreeMap<u16, u32>,
    over: Option<(u64, Dial)>,
    pub(super) violations: Vec<Violation>,
    /// Everybody serves, so that routes must be back at their first choice once ramps are over ...
    pub(super) expect_first_choice: bool,
    /// ... and they are over.
    pub(super) first_choice_now: bool,
}

impl Checker {
    pub(super) fn new(policy: Arc<Policy>, classes: &[Class]) -> Checker {
        let targets = policy.targets.len();
        Checker {
            may: classes.iter().map(|class| who_may(&policy, &class.facts)).collect(),
            facts: classes.iter().map(|c| c.facts.clone()).collect(),
            seen: Ring::default(),
            dials: Ring::default(),
            last_attempt: 0,
            probing: vec![0; targets],
            out: vec![false; targets],
            wants_live_probe: vec![false; targets],
            faults: (0..targets).map(|_| Faults::default()).collect(),
            waiting: BTreeMap::new(),
            over: None,
            violations: Vec::new(),
            expect_first_choice: false,
            first_choice_now: false,
            policy,
        }
    }

    pub(super) fn violated(&mut self, at: Ts, rule: &'static str, what: String) {
        let same = self.violations.iter().filter(|v| v.rule == rule).count();
        if self.violations.len() < MOST && same < MOST_OF_ONE {
            self.violations.push(Violation { at, rule, what });
        }
    }

    fn name(&self, target: TargetId) -> String {
        units::printable(&self.policy.target(target).name, 60)
    }

    pub(super) fn arrive(&mut self, now: Ts, id: u64, class: usize) {
        let seen = Seen {
            class,
            arrived: now,
            dialled: Vec::new(),
            under_way: 0,
            waiting: true,
            delivered: None,
            replied: false,
            gone: false,
        };
        self.seen.insert(id, seen);
        *self.waiting.entry(self.facts[class].route.0).or_default() += 1;
    }

    /// A request no longer waits for its first dial.
    fn served(&mut self, now: Ts, id: u64) {
        let Some(seen) = self.seen.get_mut(id).filter(|s| s.waiting) else { return };
        seen.waiting = false;
        let (route, waited) = (self.facts[seen.class].route, now.since(seen.arrived));
        if let Some(waiting) = self.waiting.get_mut(&route.0) {
            *waiting = waiting.saturating_sub(1);
        }
        let most = self.policy.route(route).queue.map_or(Duration::ZERO, |q| q.max_wait);
        if waited > most + Duration::from_millis(1) {
            self.violated(now, "queue bounds", format!("request {id} waited {}", units::human(waited)));
        }
    }

    /// What the driver says.
    pub(super) fn input(&mut self, now: Ts, input: &Input) {
        match input {
            Input::Committed { attempt } => {
                if let Some(dial) = self.dials.get_mut(attempt.0) {
                    dial.shown = true;
                }
            }
            Input::Ended { attempt, .. } => {
                if let Some(mut dial) = self.end(attempt.0) {
                    (dial.shown, dial.whole) = (true, true);
                    let faults = &mut self.faults[usize::from(dial.target.0)];
                    if dial.request.is_some() && dial.began >= faults.out_at {
                        faults.in_a_row = 0;
                    }
                    self.over = Some((attempt.0, dial));
                }
            }
            Input::Broke { attempt, failure, .. } => {
                if let Some(dial) = self.end(attempt.0) {
                    if counts(failure) {
                        self.fault(now, dial.target);
                    }
                    self.over = Some((attempt.0, dial));
                }
            }
            Input::ClientGone { request, .. } | Input::Stopped { request } => {
                if let Some(seen) = self.seen.get_mut(request.0) {
                    seen.gone = true;
                }
            }
            _ => {}
        }
    }

    fn fault(&mut self, now: Ts, target: TargetId) {
        let window = self.policy.breaker.window;
        let faults = &mut self.faults[usize::from(target.0)];
        faults.in_a_row += 1;
        faults.recent.push_back(now);
        while faults.recent.front().is_some_and(|at| now.since(*at) > window) {
            faults.recent.pop_front();
        }
    }

    /// A dial is over.
    fn end(&mut self, attempt: u64) -> Option<Dial> {
        let dial = self.dials.remove(attempt)?;
        if dial.probe {
            let probing = &mut self.probing[usize::from(dial.target.0)];
            *probing = probing.saturating_sub(1);
        }
        if let Some(seen) = dial.request.and_then(|id| self.seen.get_mut(id)) {
            seen.under_way = seen.under_way.saturating_sub(1);
        }
        Some(dial)
    }

    /// What the core says.
    pub(super) fn output(&mut self, now: Ts, output: &Output) {
        match output {
            Output::Dial { request, attempt, target, limits, mask, .. } => {
                self.dial(now, request.0, attempt.0, *target);
                let Some(seen) = self.seen.get(request.0) else { return };
                if !masked_rightly(&self.policy, &self.facts[seen.class], *target, *mask) {
                    let how = if *mask { "masked" } else { "unmasked" };
                    self.violated(
                        now,
                        "masked as written",
                        format!("request {}: {how} to {}", request.0, self.name(*target)),
                    );
                }
                let Some(seen) = self.seen.get(request.0) else { return };
                let route = self.policy.route(self.facts[seen.class].route);
                let budget = route.deadline.saturating_sub(route.reserve).max(Duration::from_millis(1));
                if limits.connect > limits.answer || limits.answer > budget {
                    self.violated(now, "limits", format!("request {}: {limits:?}", request.0));
                }
            }
            Output::Probe { attempt, target, .. } => {
                self.new_attempt(now, attempt.0);
                self.probe(now, *target);
                let dial = Dial { target: *target, request: None, probe: true, shown: false, whole: false, began: now };
                self.dials.insert(attempt.0, dial);
            }
            Output::Cancel { attempt } => match self.end(attempt.0) {
                // Of a limit that ran out; the loser of a hedge counts here too, which only makes the bound looser.
                Some(dial) => self.fault(now, dial.target),
                None => self.violated(now, "cancel what runs", format!("attempt {} was over", attempt.0)),
            },
            Output::Deliver { request, attempt, attempts, .. } => {
                self.terminal(now, request.0, "delivered", Some(*attempts));
                let ended = self.over.as_ref().filter(|(id, _)| *id == attempt.0).map(|(_, dial)| dial);
                let shown = self.dials.get(attempt.0).or(ended).is_some_and(|dial| dial.shown);
                if !shown {
                    let what = format!("request {}: attempt {} has shown nothing to commit", request.0, attempt.0);
                    self.violated(now, "commit point", what);
                }
                if let Some(seen) = self.seen.get_mut(request.0) {
                    seen.delivered = Some(attempt.0);
                }
            }
            Output::Reply { request, attempts, .. } => {
                self.terminal(now, request.0, "replied to", Some(*attempts));
                if let Some(seen) = self.seen.get_mut(request.0) {
                    seen.replied = true;
                }
            }
            Output::Break { request, attempt, .. }
                if self.seen.get(request.0).and_then(|s| s.delivered) != Some(attempt.0) =>
            {
                self.violated(now, "break what was delivered", format!("request {}", request.0));
            }
            Output::Done { request, record } => self.done(now, request.0, record),
            Output::Note(Note::Availability { target, now: value, reason }) => {
                self.told(now, *target, value, reason);
            }
            _ => {}
        }
    }

    fn probe(&mut self, now: Ts, target: TargetId) {
        let at = usize::from(target.0);
        if self.probing[at] > 0 {
            self.violated(now, "one probe at a time", format!("a second probe of {}", self.name(target)));
        }
        self.probing[at] += 1;
    }

    fn new_attempt(&mut self, now: Ts, attempt: u64) {
        if attempt <= self.last_attempt {
            self.violated(now, "attempt ids", format!("attempt {attempt} is used twice"));
        }
        self.last_attempt = self.last_attempt.max(attempt);
    }

    fn dial(&mut self, now: Ts, id: u64, attempt: u64, target: TargetId) {
        self.new_attempt(now, attempt);
        self.served(now, id);
        let Some(seen) = self.seen.get_mut(id) else {
            return self.violated(now, "no dial for nobody", format!("request {id} is over"));
        };
        seen.dialled.push(target);
        seen.under_way += 1;
        let (class, dials, first) = (seen.class, seen.dialled.len(), seen.dialled.len() == 1);
        let (over, delivered) = (seen.gone || seen.replied, seen.delivered.is_some());
        let under_way = seen.under_way;
        let probe = self.out[usize::from(target.0)];
        self.dials.insert(attempt, Dial { target, request: Some(id), probe, shown: false, whole: false, began: now });
        let route = Arc::clone(self.policy.route(self.facts[class].route));
        if over {
            self.violated(now, "no dial for nobody", format!("request {id} has its reply"));
        }
        if delivered {
            self.violated(now, "no attempt after commit", format!("request {id} is dialled again after delivery"));
        }
        let hedged = route.hedge_after.is_some() && !self.facts[class].risky_tools;
        if under_way > if hedged { 2 } else { 1 } {
            self.violated(now, "one dial at a time", format!("request {id} has {under_way} dials at once"));
        }
        if dials > usize::try_from(route.max_attempts).unwrap_or(usize::MAX) {
            self.violated(now, "max_attempts", format!("request {id} is dialled {dials} times"));
        }
        if !self.may[class][usize::from(target.0)] {
            let what = format!("request {id} goes to {}, which may not answer it", self.name(target));
            self.violated(now, "no filter is relaxed", what);
        }
        if probe {
            // Where the policy spends requests on probes, this one must be wanted, and takes the one place for a probe.
            if !self.wants_live_probe[usize::from(target.0)] {
                let what = format!("request {id} goes to {}, which is out of service", self.name(target));
                self.violated(now, "only probes of the dead", what);
            }
            self.probe(now, target);
        }
        if first && self.first_choice_now {
            self.first_choice(now, id, class, &route, target);
        }
    }

    fn first_choice(&mut self, now: Ts, id: u64, class: usize, route: &Route, target: TargetId) {
        let may = |t: &&TargetId| self.may[class][usize::from(t.0)];
        let facts = &self.facts[class];
        // A dial begins only if half of its own limit is left: a tier whose limit the deadline has no room for is passed over.
        let budget = route.deadline.saturating_sub(route.reserve);
        let limit = |tier: &Tier| match tier.answer_timeout {
            Some(answer) if !facts.stream => answer,
            _ => tier.first_token_timeout,
        };
        let fits = |tier: &Tier| limit(tier) / 2 <= budget;
        let open = |tier: &&Tier| open(route, tier, facts) && fits(tier) && tier.targets.iter().any(|t| may(&t));
        let Some(tier) = route.tiers.iter().find(open) else { return };
        let right = match tier.select {
            Select::Priority => tier.targets.iter().find(may) == Some(&target),
            _ => tier.targets.contains(&target),
        };
        if !right {
            let what = format!("request {id} goes to {}, although all is well", self.name(target));
            self.violated(now, "back at the first choice", what);
        }
    }

    /// The one terminal of a request.
    fn terminal(&mut self, now: Ts, id: u64, what: &str, attempts: Option<u32>) {
        self.served(now, id);
        let Some(seen) = self.seen.get(id) else {
            return self.violated(now, "one terminal reply", format!("request {id} is {what} after its end"));
        };
        let again = seen.delivered.is_some() || seen.replied || seen.gone;
        let dials = seen.dialled.len();
        if again {
            self.violated(now, "one terminal reply", format!("request {id} is {what} a second time"));
        }
        if attempts.is_some_and(|n| usize::try_from(n).ok() != Some(dials)) {
            self.violated(now, "told attempts", format!("request {id}: {attempts:?} told, {dials} made"));
        }
    }

    fn done(&mut self, now: Ts, id: u64, record: &DecisionRecord) {
        self.served(now, id);
        let Some(seen) = self.seen.remove(id) else {
            return self.violated(now, "one end", format!("request {id} is done twice"));
        };
        if seen.delivered.is_none() && !seen.replied && !seen.gone {
            self.violated(now, "one terminal reply", format!("request {id} is done without any"));
        }
        if seen.under_way > 0 {
            self.violated(now, "places are released", format!("request {id} is done with a dial under way"));
        }
        let told = record.attempts.iter().map(|a| a.target.as_str());
        let made = seen.dialled.iter().map(|t| self.policy.target(*t).name.as_str());
        if !told.eq(made) {
            self.violated(now, "the record tells what happened", format!("request {id}: other dials than made"));
        }
        let passed = |t: &str| seen.dialled.iter().any(|d| self.policy.target(*d).name == t);
        if record.skipped.iter().any(|s| s.reason.is_empty() || passed(&s.target)) {
            self.violated(now, "the record tells what happened", format!("request {id}: a skip without a reason"));
        }
        let answered = matches!(record.outcome, Outcome::Answered | Outcome::Degraded);
        let whole = self.over.as_ref().is_some_and(|(a, dial)| Some(*a) == seen.delivered && dial.whole);
        if answered && !whole {
            let what = format!("request {id} is booked as answered, but no whole answer has come");
            self.violated(now, "success is a whole answer", what);
        }
    }

    /// The core tells what a target can do.
    fn told(&mut self, now: Ts, target: TargetId, value: &Availability, reason: &str) {
        let at = usize::from(target.0);
        let serves = matches!(value, Availability::Serving { .. });
        let tripped = matches!(reason, "consecutive_failures" | "failure_ratio");
        if tripped && !serves {
            let breaker = self.policy.breaker;
            let faults = &self.faults[at];
            let recent = faults.recent.iter().filter(|t| now.since(**t) <= breaker.window).count();
            let enough = faults.in_a_row >= breaker.consecutive_failures.max(1)
                || u32::try_from(recent).unwrap_or(u32::MAX) >= breaker.failures_in_window.max(1);
            if !enough {
                let row = faults.in_a_row;
                let what = format!(
                    "{} is taken out for {reason} after {row} counted failures in a row, {recent} in the window",
                    self.name(target)
                );
                self.violated(now, "only faults of the provider count", what);
            }
        }
        if tripped && !serves {
            // It counts from zero again; a cooldown for other reasons leaves the count as it is.
            let faults = &mut self.faults[at];
            faults.in_a_row = 0;
            faults.recent.clear();
        }
        if !serves {
            self.faults[at].out_at = now;
        }
        self.out[at] = !serves;
        let live = self.policy.breaker.probe == ProbeKind::Live;
        self.wants_live_probe[at] = live && matches!(value, Availability::Probing);
    }

    /// One input was handled and its outputs drained.
    pub(super) fn handled(&mut self, now: Ts, timeout: Option<Ts>) {
        self.over = None;
        if timeout.is_some_and(|at| at <= now) {
            self.violated(now, "alarms lie ahead", "an alarm in the past is left".to_owned());
        }
        let routes = &self.policy.routes;
        let above = self
            .waiting
            .iter()
            .find(|(route, waiting)| **waiting > routes[usize::from(**route)].queue.map_or(0, |q| q.max_depth));
        if let Some((route, waiting)) = above {
            let what = format!("{waiting} requests wait on route {}", routes[usize::from(*route)].name);
            self.violated(now, "queue bounds", what);
        }
    }

    /// After healing: does everybody serve?
    pub(super) fn all_serve(&mut self, now: Ts, all: bool, out: &[usize], took: Duration) {
        if !all {
            let names: Vec<&str> = out.iter().map(|t| self.policy.targets[*t].name.as_str()).collect();
            let what = format!("{} still out {} after everything healed", names.join(", "), units::human(took));
            self.violated(now, "everybody comes back", units::printable(&what, 300));
        }
    }

    /// After the last request: is anything left?
    pub(super) fn ended(&mut self, now: Ts, idle: bool, in_flight: usize, flights: usize) {
        let open = self.seen.iter().next().map(|(id, seen)| (id, seen.arrived));
        if let Some((id, arrived)) = open {
            let what = format!("request {id} of {} never ended", units::human(arrived.since(Ts::ZERO)));
            self.violated(now, "nothing stays open", what);
        }
        if !idle || in_flight > 0 || flights > 0 {
            let what = format!("{in_flight} places taken by the core's count, {flights} by the driver's");
            self.violated(now, "places are released", what);
        }
    }
}

/// True if a failure may count in the breaker: a fault of the provider by the table of outcomes.
fn counts(failure: &Failure) -> bool {
    match failure {
        Failure::Status(status) => !matches!(status.status, 400..=406 | 409 | 413 | 415 | 422 | 429 | 451 | 529),
        Failure::Internal(_) => false,
        _ => true,
    }
}
