//! Another policy takes the place of the one that holds: what is known of targets and limits that both have is kept.

use std::sync::Arc;

use super::board::{Board, new_health};
use super::capacity::Bucket;
use crate::policy::{Policy, Target};
use crate::units::Ts;

impl Board {
    /// The board of a policy whose ids continue this one's (see [`crate::policy::succeed`]).
    pub(in crate::router) fn succeed(&mut self, now: Ts, policy: Arc<Policy>) {
        let mut next = Board::new(Arc::clone(&policy));
        let same_health = policy.health == self.policy.health
            && policy.breaker.half_open_successes == self.policy.breaker.half_open_successes;
        for (id, old) in self.states.drain(..).enumerate() {
            let (Some(state), Some(target)) = (next.states.get_mut(id), policy.targets.get(id)) else { continue };
            let before = self.policy.target(target.id);
            if Bucket::of(before) == Bucket::of(target) {
                next.capacity.inherit(state.bucket, &self.capacity, old.bucket);
                let rates =
                    next.rates.get_mut(usize::from(state.bucket.0)).zip(self.rates.get(usize::from(old.bucket.0)));
                if let Some((rate, before)) = rates {
                    rate.inherit(before);
                }
            }
            let declared_as_before = before.capacity.p95_service_ms == target.capacity.p95_service_ms;
            let health = if same_health && declared_as_before { old.health } else { new_health(&policy, target) };
            let mut breaker = old.breaker;
            breaker.succeed(policy.breaker);
            (state.breaker, state.health) = (breaker, health);
            (state.probe, state.benched) = (old.probe, old.benched);
            (state.told, state.counters) = (old.told, old.counters);
        }
        next.places = std::mem::replace(&mut self.places, super::place::Places::new());
        let in_use: Vec<&Target> =
            policy.live_targets().filter(|t| next.state(t.id).used).map(std::convert::AsRef::as_ref).collect();
        // Benches of accounts end here: whoever reads a policy again may have mended a key or paid a bill (rule R3).
        next.places.succeed(&in_use);
        next.learned = std::mem::take(&mut self.learned);
        next.ramps = std::mem::take(&mut self.ramps);
        next.unwell = std::mem::take(&mut self.unwell);
        next.evidence = self.evidence.take();
        next.changed = std::mem::take(&mut self.changed);
        *self = next;
        if let Some(evidence) = &mut self.evidence {
            evidence.resize(self.states.len(), Vec::new());
        }
        for target in &policy.targets {
            self.changed.entry(target.id).or_insert("policy_replaced");
            if policy.retired.targets.contains(&target.id) {
                self.ramps.end(target.id);
                self.unwell.remove(&target.id);
            } else {
                self.look(now, target.id);
            }
        }
    }
}
