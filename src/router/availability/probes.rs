//! When a target is probed, and what a probe does to the signals.

use std::sync::Arc;

use super::board::{Began, Board};
use super::breaker::Gate;
use crate::policy::{ProbeKind, TargetId};
use crate::router::classify::Verdict;
use crate::router::io::AttemptId;
use crate::units::{Rng, Ts};

/// What becomes of a suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::router) enum Suspicion {
    /// A probe looks at it.
    Now,
    /// As soon as it has a place free for one.
    Later,
    /// There is no need.
    Moot,
}

impl Board {
    /// When this target's next probe is due, by bench, breaker or ejection.
    pub(super) fn probe_at(&self, id: TargetId) -> Option<Ts> {
        let state = self.state(id);
        if state.probe.is_some() || !state.used || state.benched.is_some() {
            return None;
        }
        let target = self.policy.target(id);
        let bench = self.accounts.probe_due(id).into_iter().chain(self.places.probe_due(id)).min();
        let benched = self.accounts.of(target).is_some() || self.places.of(target).is_some();
        if benched {
            return bench;
        }
        if state.breaker.gate() == Gate::Closed {
            return state.health.ejected_until();
        }
        // Under `probe: live` a request goes first, if one comes in the time of one base cooldown. A stand-in that nobody needs, or
        // a gateway that gets no traffic because it is not ready, would stay out for ever.
        let patience = match self.policy.breaker.probe {
            ProbeKind::Live => self.policy.breaker.base_cooldown,
            ProbeKind::Golden => std::time::Duration::ZERO,
        };
        state.breaker.probe_from().map(|at| at + patience)
    }

    /// Under `probe: live`: from when on a request may be the probe.
    pub(super) fn live_from(&self, id: TargetId) -> Option<Ts> {
        let state = self.state(id);
        let live = self.policy.breaker.probe == ProbeKind::Live && state.probe.is_none() && state.benched.is_none();
        live.then(|| state.breaker.probe_from()).flatten()
    }

    /// True if a probe must begin now.
    pub(in crate::router) fn probe_due(&self, now: Ts, id: TargetId) -> bool {
        self.capacity.until(now, self.state(id).bucket).is_none() && self.probe_at(id).is_some_and(|at| at <= now)
    }

    /// True if the breaker's cooldown is over and the policy spends one customer's request on finding out (`probe: live`).
    pub(in crate::router) fn live_ready(&self, now: Ts, id: TargetId) -> bool {
        let state = self.state(id);
        let target = self.policy.target(id);
        self.policy.breaker.probe == ProbeKind::Live
            && state.probe.is_none()
            && state.benched.is_none()
            && state.breaker.wants_probe(now)
            && self.capacity.until(now, state.bucket).is_none()
            && self.accounts.of(target).is_none()
            && self.places.of(target).is_none()
    }

    /// This request is the probe, and takes the one place.
    pub(in crate::router) fn live_began(&mut self, now: Ts, id: TargetId, attempt: AttemptId) {
        let state = self.state_mut(id);
        state.counters.probes += 1;
        state.probe = Some(attempt);
        state.breaker.begin_probe(now, attempt);
        self.changed.insert(id, "probe_began");
    }

    /// The request that was the probe ended without a word about the target: the next one may be it.
    pub(in crate::router) fn live_released(&mut self, id: TargetId, attempt: AttemptId) {
        self.probe_over(id, attempt);
        self.state_mut(id).breaker.probe_released(attempt);
        self.changed.insert(id, "probe_released");
    }

    /// What becomes of a suspicion against this target.
    pub(in crate::router) fn suspicion(&self, now: Ts, id: TargetId) -> Suspicion {
        match self.states.get(usize::from(id.0)) {
            Some(state) if state.used && self.serving(now, id) => {
                let free = state.probe.is_none() && self.free_slots(id) != Some(0);
                if free { Suspicion::Now } else { Suspicion::Later }
            }
            // Nobody asks it, or it is probed before anybody does.
            _ => Suspicion::Moot,
        }
    }

    /// The probe begins and takes the one place.
    pub(in crate::router) fn probe_began(&mut self, now: Ts, id: TargetId, probe: AttemptId) -> Began {
        let began = self.begin(now, id, 0);
        let state = self.state_mut(id);
        state.counters.probes += 1;
        state.probe = Some(probe);
        state.breaker.begin_probe(now, probe);
        self.changed.insert(id, "probe_began");
        began
    }

    fn probe_over(&mut self, id: TargetId, probe: AttemptId) {
        let state = self.state_mut(id);
        if state.probe == Some(probe) {
            state.probe = None;
        }
    }

    /// The probe was answered in full.
    pub(in crate::router) fn probe_passed(&mut self, now: Ts, id: TargetId, began: Began, probe: AttemptId) {
        self.probe_over(id, probe);
        let policy = Arc::clone(&self.policy);
        let target = policy.target(id);
        let was_benched = self.accounts.of(target).is_some() || self.places.of(target).is_some();
        let state = &mut self.states[usize::from(id.0)];
        let closed = state.breaker.probe_passed(now, probe);
        let lifted = state.health.probe_passed(now);
        self.capacity.answered(began.at, state.bucket);
        self.accounts.lift(target);
        self.places.lift(target);
        let recovered = closed || lifted || was_benched;
        if recovered {
            self.unwell.remove(&id);
            let state = self.state_mut(id);
            state.health.clear(now);
            for route in state.routes.clone() {
                if policy.route(route).ramp.is_some() {
                    self.ramps.begin(now, route, id);
                }
            }
        }
        self.changed.insert(id, if recovered { "probes_passed" } else { "probe_passed" });
        if was_benched {
            self.all_changed("probe_passed");
        }
    }

    /// The probe failed. True if something was newly benched.
    pub(in crate::router) fn probe_failed(
        &mut self,
        now: Ts,
        id: TargetId,
        began: Began,
        probe: AttemptId,
        verdict: &Verdict,
        rng: &mut Rng,
    ) -> bool {
        self.probe_over(id, probe);
        let state = self.state_mut(id);
        state.counters.probes_failed += 1;
        let reason = if verdict.counted {
            state.breaker.probe_failed(now, probe, rng);
            "probe_failed"
        } else {
            state.breaker.probe_undecided(now, probe, rng);
            "probe_undecided"
        };
        state.health.probe_failed(now);
        self.accounts.re_arm(now, id);
        self.places.re_arm(now, id);
        let benched = self.signal(now, id, began, None, verdict);
        self.changed.insert(id, reason);
        benched
    }

    /// The probe was answered, but not as the group's golden case demands: out for as long as before, unless a route has nobody
    /// else. Says whether it stays out.
    pub(in crate::router) fn probe_quality(
        &mut self,
        now: Ts,
        id: TargetId,
        began: Began,
        probe: AttemptId,
        verdict: &Verdict,
        rng: &mut Rng,
    ) -> bool {
        if self.is_last(now, id) {
            self.probe_passed(now, id, began, probe);
            return false;
        }
        let served = self.serving(now, id);
        self.probe_failed(now, id, began, probe, verdict, rng);
        // It was only suspected.
        if served {
            self.state_mut(id).breaker.put_out(now, rng);
            self.ramps.end(id);
        }
        true
    }
}
