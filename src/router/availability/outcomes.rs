//! What an outcome does to the signals.

use std::sync::Arc;
use std::time::Duration;

use super::board::{Began, Board};
use super::health::Kind;
use crate::policy::{RouteId, TargetId};
use crate::router::classify::{Class, Verdict};
use crate::router::io::RequestId;
use crate::units::{Rng, Ts};

/// Whose attempt it was.
#[derive(Clone, Copy, Debug)]
pub(in crate::router) struct Whose {
    /// The target.
    pub(in crate::router) target: TargetId,
    /// The route of the request.
    pub(in crate::router) route: RouteId,
    /// The request.
    pub(in crate::router) request: RequestId,
}

impl Board {
    /// An attempt or a probe begins; `tokens` are counted on.
    pub(in crate::router) fn begin(&mut self, now: Ts, id: TargetId, tokens: u64) -> Began {
        let state = self.state_mut(id);
        state.counters.dials += 1;
        state.counters.in_flight += 1;
        let (epoch, bucket) = (state.breaker.epoch(), state.bucket);
        if let Some(rate) = self.rates.get_mut(usize::from(bucket.0)) {
            rate.spend(now, tokens);
        }
        Began { at: now, epoch }
    }

    /// An attempt or a probe is over, however it ended.
    pub(in crate::router) fn release(&mut self, id: TargetId) {
        let counters = &mut self.state_mut(id).counters;
        counters.in_flight = counters.in_flight.saturating_sub(1);
    }

    /// The answer says how many tokens its request had.
    pub(in crate::router) fn counted_tokens(&mut self, id: TargetId, body_bytes: u64, input_tokens: u64) {
        self.learned.counted(id, body_bytes, input_tokens);
    }

    /// The answer took more tokens than were counted on.
    pub(in crate::router) fn spent_more(&mut self, now: Ts, id: TargetId, tokens: u64) {
        let bucket = self.state(id).bucket;
        if let Some(rate) = self.rates.get_mut(usize::from(bucket.0)) {
            rate.spend_more(now, tokens);
        }
    }

    /// A customer's request was answered in full.
    pub(in crate::router) fn answered(&mut self, now: Ts, whose: Whose, began: Began, kind: Kind, latency: Duration) {
        let policy = Arc::clone(&self.policy);
        let id = whose.target;
        let state = &mut self.states[usize::from(id.0)];
        state.counters.answered += 1;
        state.breaker.success(now, began.epoch);
        self.capacity.answered(began.at, state.bucket);
        if began.epoch == state.breaker.epoch() {
            state.health.answered(now, kind, latency);
            if state.health.unwell() || self.unwell.contains(&id) {
                self.health_moved(now, id);
            }
            let settings = policy.route(whose.route).ramp.as_ref();
            self.ramps.outcome(now, settings, whose.route, id, true);
        }
        self.accounts.answered(policy.target(id));
    }

    /// A customer's request failed there. True if something was benched that was not before.
    pub(in crate::router) fn failed(
        &mut self,
        now: Ts,
        whose: Whose,
        began: Began,
        verdict: &Verdict,
        rng: &mut Rng,
    ) -> bool {
        let id = whose.target;
        if verdict.counted {
            self.counted(now, whose, began, rng);
        } else {
            self.state_mut(id).counters.failed_other += 1;
        }
        self.signal(now, id, began, Some(whose.request), verdict)
    }

    fn counted(&mut self, now: Ts, whose: Whose, began: Began, rng: &mut Rng) {
        let policy = Arc::clone(&self.policy);
        let id = whose.target;
        let state = self.state_mut(id);
        state.counters.failed_counted += 1;
        let current = began.epoch == state.breaker.epoch();
        if let Some(trip) = state.breaker.failure(now, began.epoch, rng) {
            state.counters.trips += 1;
            // The breaker has dealt with what was seen.
            state.health.clear(now);
            self.unwell.remove(&id);
            self.ramps.end(id);
            self.changed.insert(id, trip.name());
        } else if current {
            state.health.failed(now);
            self.health_moved(now, id);
            let settings = policy.route(whose.route).ramp.as_ref();
            if self.ramps.outcome(now, settings, whose.route, id, false) {
                self.changed.entry(id).or_insert("ramp_back");
            }
        }
    }

    /// Signals other than breaker and health. True if something was newly benched.
    pub(super) fn signal(
        &mut self,
        now: Ts,
        id: TargetId,
        began: Began,
        request: Option<RequestId>,
        verdict: &Verdict,
    ) -> bool {
        let policy = Arc::clone(&self.policy);
        let target = policy.target(id);
        match verdict.class {
            Class::Capacity => {
                let bucket = self.state(id).bucket;
                self.capacity.refused(now, began.at, bucket, verdict.retry_after);
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
}
