//! A target that comes and goes every few seconds: the case that turns a failover into a storm of switches.

use std::time::Duration;

use super::{Effect, Look, Outage, SHORTEST, exponential};
use crate::units::{Rng, Ts};

/// Episodes of short outages.
#[derive(Clone, Debug)]
pub struct Flapping {
    /// Mean pause between episodes.
    pub every: Duration,
    /// Length of an episode.
    pub lasts: Duration,
    /// Mean time down, in an episode.
    pub down: Duration,
    /// Mean time up, in an episode.
    pub up: Duration,
    /// End of the present episode.
    ends: Ts,
}

impl Flapping {
    /// Episodes of this length, with this mean pause, and these mean times down and up inside.
    #[must_use]
    pub fn new(every: Duration, lasts: Duration, down: Duration, up: Duration) -> Flapping {
        Flapping { every, lasts, down, up, ends: Ts::ZERO }
    }

    pub(super) fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        let mut from = after + exponential(self.up, rng).max(SHORTEST);
        if from >= self.ends {
            from = after + exponential(self.every, rng).max(SHORTEST);
            self.ends = from + self.lasts;
        }
        let to = from + exponential(self.down, rng).max(SHORTEST);
        Some(Outage { from, to, effect: Effect::Down(Look::draw(rng)) })
    }
}
