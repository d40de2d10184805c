//! Availability: one value per target, computed in one place from signals that each have a file of their own.
//!
//! | signal | scope | ends by |
//! |---|---|---|
//! | [`breaker`] | the target | completed probes |
//! | [`capacity`] | quota domain, else credential and model | time |
//! | [`account`] | credential, account, or the target | a passed probe |
//! | [`place`] | the target through its egress | a passed probe |
//!
//! The gravest signal is the value: a bench, then an open breaker, then a cooldown.

mod account;
mod bench;
mod breaker;
mod capacity;
mod learned;
mod place;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::account::Accounts;
use self::breaker::{Breaker, Gate};
use self::capacity::{Bucket, Capacity};
use self::learned::Learned;
use self::place::Places;
use super::classify::{Class, Lack, Verdict};
use super::decision::{Availability, Counters, Note};
use super::io::{AttemptId, RequestId};
use crate::policy::{Policy, Target, TargetId};
use crate::units::{Rng, Ts};

/// Reason of a cooling target whose breaker is open.
pub(super) const OPEN: &str = "open";
/// Reason of a cooling target that is rate limited or overloaded.
pub(super) const COOLING: &str = "cooling";

/// When an attempt began, in the target's own terms. Its outcome is booked against this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    pub(super) at: Ts,
    epoch: u64,
}

#[derive(Clone, Debug)]
struct State {
    breaker: Breaker,
    bucket: Bucket,
    /// The probe under way: never more than one.
    probe: Option<AttemptId>,
    /// Some route holds it, so that it can be dialled at all.
    used: bool,
    /// What was last told to people.
    told: Availability,
    counters: Counters,
}

/// The state of all targets.
#[derive(Clone, Debug)]
pub(super) struct Board {
    policy: Arc<Policy>,
    states: Vec<State>,
    capacity: Capacity,
    accounts: Accounts,
    places: Places,
    learned: Learned,
    /// Legal targets of each route.
    legal: Vec<Vec<TargetId>>,
    /// Targets whose value may have changed since the last [`Board::settle`], with the reason.
    changed: BTreeMap<TargetId, &'static str>,
}

impl Board {
    pub(super) fn new(policy: Arc<Policy>) -> Board {
        let settings = policy.breaker;
        let state = |target: &Arc<Target>| State {
            breaker: Breaker::new(settings),
            bucket: Bucket::of(target),
            probe: None,
            used: policy.routes.iter().any(|r| r.tiers.iter().any(|tier| tier.targets.contains(&target.id))),
            told: Availability::Serving { share: 1.0 },
            counters: Counters::default(),
        };
        let legal = policy.routes.iter().map(|route| {
            let all: BTreeSet<TargetId> = route.tiers.iter().flat_map(|tier| tier.targets.iter().copied()).collect();
            all.into_iter().filter(|id| route.legal(policy.target(*id))).collect()
        });
        Board {
            states: policy.targets.iter().map(state).collect(),
            capacity: Capacity::new(settings.base_cooldown, settings.max_cooldown),
            accounts: Accounts::new(),
            places: Places::new(),
            learned: Learned::default(),
            legal: legal.collect(),
            changed: BTreeMap::new(),
            policy,
        }
    }

    fn state(&self, id: TargetId) -> &State {
        &self.states[usize::from(id.0)]
    }

    fn state_mut(&mut self, id: TargetId) -> &mut State {
        &mut self.states[usize::from(id.0)]
    }

    /// What this target can do now.
    pub(super) fn availability(&self, now: Ts, id: TargetId) -> Availability {
        let target = self.policy.target(id);
        let benches = self.accounts.of(target).into_iter().chain(self.places.of(target));
        if let Some(bench) = benches.max_by_key(|bench| bench.until) {
            return Availability::Benched { until: bench.until, why: bench.why.clone() };
        }
        let state = self.state(id);
        let cooling = self.capacity.until(now, &state.bucket);
        match (state.breaker.gate(), cooling) {
            (Gate::Open(until), cooling) => {
                Availability::Cooling { until: cooling.map_or(until, |c| c.max(until)), why: OPEN.to_owned() }
            }
            // A sibling was rate limited between two probes.
            (Gate::HalfOpen(false), Some(until)) => Availability::Cooling { until, why: OPEN.to_owned() },
            (Gate::HalfOpen(_), _) => Availability::Probing,
            (Gate::Closed, Some(until)) => Availability::Cooling { until, why: COOLING.to_owned() },
            (Gate::Closed, None) => Availability::Serving { share: 1.0 },
        }
    }

    /// True if customers' requests may go there now.
    pub(super) fn serving(&self, now: Ts, id: TargetId) -> bool {
        let target = self.policy.target(id);
        let state = self.state(id);
        state.breaker.gate() == Gate::Closed
            && self.capacity.until(now, &state.bucket).is_none()
            && self.accounts.of(target).is_none()
            && self.places.of(target).is_none()
    }

    /// True if the target was found to lack this.
    pub(super) fn lacks(&self, now: Ts, id: TargetId, lack: Lack) -> bool {
        self.learned.lacks(now, id, lack)
    }

    /// What has happened at this target so far.
    pub(super) fn counters(&self, id: TargetId) -> Counters {
        let state = self.state(id);
        Counters { consecutive_failures: state.breaker.consecutive(), ..state.counters }
    }

    /// An attempt or a probe begins.
    pub(super) fn begin(&mut self, now: Ts, id: TargetId) -> Began {
        let state = self.state_mut(id);
        state.counters.dials += 1;
        state.counters.in_flight += 1;
        Began { at: now, epoch: state.breaker.epoch() }
    }

    /// An attempt or a probe is over, however it ended.
    pub(super) fn release(&mut self, id: TargetId) {
        let counters = &mut self.state_mut(id).counters;
        counters.in_flight = counters.in_flight.saturating_sub(1);
    }

    /// A customer's request was answered in full.
    pub(super) fn answered(&mut self, now: Ts, id: TargetId, began: Began) {
        let policy = Arc::clone(&self.policy);
        let state = &mut self.states[usize::from(id.0)];
        state.counters.answered += 1;
        state.breaker.success(now, began.epoch);
        self.capacity.answered(began.at, &state.bucket);
        self.accounts.answered(policy.target(id));
    }

    /// A customer's request failed there. True if something was benched that was not before.
    pub(super) fn failed(
        &mut self,
        now: Ts,
        id: TargetId,
        began: Began,
        request: RequestId,
        verdict: &Verdict,
        rng: &mut Rng,
    ) -> bool {
        let counters = &mut self.state_mut(id).counters;
        if verdict.counted {
            counters.failed_counted += 1;
            let tripped = self.state_mut(id).breaker.failure(now, began.epoch, rng);
            if let Some(trip) = tripped {
                self.state_mut(id).counters.trips += 1;
                self.changed.insert(id, trip.name());
            }
        } else {
            counters.failed_other += 1;
        }
        self.signal(now, id, began, Some(request), verdict)
    }

    /// Signals other than the breaker. True if something was newly benched.
    fn signal(&mut self, now: Ts, id: TargetId, began: Began, request: Option<RequestId>, verdict: &Verdict) -> bool {
        let policy = Arc::clone(&self.policy);
        let target = policy.target(id);
        match verdict.class {
            Class::Capacity => {
                let bucket = self.state(id).bucket.clone();
                self.capacity.refused(now, began.at, &bucket, verdict.retry_after);
                let siblings = policy.targets.iter().filter(|t| self.state(t.id).bucket == bucket);
                let siblings: Vec<TargetId> = siblings.map(|t| t.id).collect();
                self.changed.extend(siblings.into_iter().map(|id| (id, "rate_limited")));
                false
            }
            Class::Account => {
                let Some(bench) = verdict.bench else { return false };
                let benched = self.accounts.fault(now, target, bench, &verdict.reason, request);
                if benched {
                    self.all_changed("account_fault");
                }
                benched
            }
            Class::Place => {
                let benched = self.places.fault(now, target, &verdict.reason);
                self.changed.insert(id, "place_fault");
                benched
            }
            Class::Mismatch => {
                if let Some(lack) = verdict.lacks {
                    self.learned.met(now, id, lack);
                }
                false
            }
            Class::Success
            | Class::Caller
            | Class::PolicyBlock
            | Class::TooLong
            | Class::Provider
            | Class::ClientGone => false,
        }
    }

    fn all_changed(&mut self, reason: &'static str) {
        for target in &self.policy.targets {
            self.changed.entry(target.id).or_insert(reason);
        }
    }

    /// When something is to be done about this target: its probe is due, or a cooldown ends. `None` while its probe is under
    /// way and when it just serves.
    pub(super) fn wake(&self, now: Ts, id: TargetId) -> Option<Ts> {
        let state = self.state(id);
        let cooling = self.capacity.until(now, &state.bucket);
        let after_cooling = |at: Ts| cooling.map_or(at, |until| until.max(at));
        let probe = self.probe_at(id).map(after_cooling);
        [probe, cooling].into_iter().flatten().min()
    }

    /// When this target's next probe is due, by bench or breaker.
    fn probe_at(&self, id: TargetId) -> Option<Ts> {
        let state = self.state(id);
        if state.probe.is_some() || !state.used {
            return None;
        }
        let target = self.policy.target(id);
        let bench = self.accounts.probe_due(id).into_iter().chain(self.places.probe_due(id)).min();
        let benched = self.accounts.of(target).is_some() || self.places.of(target).is_some();
        if benched {
            return bench;
        }
        match state.breaker.gate() {
            Gate::Closed | Gate::HalfOpen(true) => None,
            Gate::Open(until) => Some(until),
            Gate::HalfOpen(false) => Some(Ts::ZERO),
        }
    }

    /// True if a probe must begin now.
    pub(super) fn probe_due(&self, now: Ts, id: TargetId) -> bool {
        self.capacity.until(now, &self.state(id).bucket).is_none() && self.probe_at(id).is_some_and(|at| at <= now)
    }

    /// The probe begins and takes the one place.
    pub(super) fn probe_began(&mut self, now: Ts, id: TargetId, probe: AttemptId) -> Began {
        let began = self.begin(now, id);
        let state = self.state_mut(id);
        state.counters.probes += 1;
        state.probe = Some(probe);
        state.breaker.begin_probe(now, probe);
        self.changed.insert(id, "probe_began");
        began
    }

    /// The probe was answered in full.
    pub(super) fn probe_passed(&mut self, now: Ts, id: TargetId, began: Began, probe: AttemptId) {
        let policy = Arc::clone(&self.policy);
        let target = policy.target(id);
        let state = &mut self.states[usize::from(id.0)];
        if state.probe == Some(probe) {
            state.probe = None;
        }
        let closed = state.breaker.probe_passed(now, probe);
        self.capacity.answered(began.at, &state.bucket);
        self.accounts.lift(target);
        self.places.lift(target);
        self.changed.insert(id, if closed { "probes_passed" } else { "probe_passed" });
        self.all_changed("probe_passed");
    }

    /// The probe failed. True if something was newly benched.
    pub(super) fn probe_failed(
        &mut self,
        now: Ts,
        id: TargetId,
        began: Began,
        probe: AttemptId,
        verdict: &Verdict,
        rng: &mut Rng,
    ) -> bool {
        let state = self.state_mut(id);
        if state.probe == Some(probe) {
            state.probe = None;
        }
        state.counters.probes_failed += 1;
        let reason = if verdict.counted {
            state.breaker.probe_failed(now, probe, rng);
            "probe_failed"
        } else {
            state.breaker.probe_undecided(now, probe, rng);
            "probe_undecided"
        };
        self.accounts.re_arm(now, id);
        self.places.re_arm(now, id);
        let benched = self.signal(now, id, began, None, verdict);
        self.changed.insert(id, reason);
        benched
    }

    /// A cooldown has ended by itself.
    pub(super) fn woke(&mut self, id: TargetId) {
        self.changed.entry(id).or_insert("cooldown_over");
    }

    /// Caps cooldowns of stranded routes, then says what changed: the targets whose alarm must be set anew, and notes.
    pub(super) fn settle(&mut self, now: Ts) -> (Vec<TargetId>, Vec<Note>) {
        if self.changed.is_empty() {
            return (Vec::new(), Vec::new());
        }
        for route in 0..self.legal.len() {
            let touched = self.legal[route].iter().any(|id| self.changed.contains_key(id));
            if touched && !self.legal[route].iter().any(|id| self.serving(now, *id)) {
                for id in self.legal[route].clone() {
                    self.state_mut(id).breaker.cap_at_base();
                    self.changed.entry(id).or_insert("nobody_else_serves");
                }
            }
        }
        let changed = std::mem::take(&mut self.changed);
        let mut notes = Vec::new();
        for (id, reason) in &changed {
            let value = self.availability(now, *id);
            let state = self.state_mut(*id);
            if state.told != value {
                state.told = value.clone();
                notes.push(Note::Availability { target: *id, now: value, reason: (*reason).to_owned() });
            }
        }
        (changed.into_keys().collect(), notes)
    }
}
