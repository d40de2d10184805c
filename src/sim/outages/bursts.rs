//! Troubles that are no outage: a brown-out (slow, and a share of errors) and a storm of 429s.

use std::time::Duration;

use super::{Effect, Outage, SHORTEST, exponential};
use crate::units::{Rng, Ts};

/// Times in which a target is slow, or errs for a share of requests, in turn.
#[derive(Clone, Debug)]
pub struct BrownOuts {
    /// Mean pause.
    pub every: Duration,
    /// Mean length.
    pub lasts: Duration,
    /// Answers take so many times as long.
    pub slower: f64,
    /// Share of errors of every other one.
    pub errors: f64,
}

impl BrownOuts {
    pub(super) fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        let from = after + exponential(self.every, rng).max(SHORTEST);
        let to = from + exponential(self.lasts, rng).max(SHORTEST);
        let effect = if rng.below(2) == 0 { Effect::Slow(self.slower) } else { Effect::Errors(self.errors) };
        Some(Outage { from, to, effect })
    }
}

/// Times in which a target refuses a share of requests with a 429.
#[derive(Clone, Debug)]
pub struct RateStorms {
    /// Mean pause.
    pub every: Duration,
    /// Mean length.
    pub lasts: Duration,
    /// Share of requests that are refused.
    pub share: f64,
    /// What `Retry-After` says, in seconds; zero: there is none.
    pub retry_after_s: u64,
}

impl RateStorms {
    pub(super) fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        let from = after + exponential(self.every, rng).max(SHORTEST);
        let to = from + exponential(self.lasts, rng).max(SHORTEST);
        let effect = Effect::RateLimit { share: self.share, retry_after_s: self.retry_after_s };
        Some(Outage { from, to, effect })
    }
}
