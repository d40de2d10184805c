//! A vendor that fails in all its targets at once: a shared cause on top of what each does by itself. The source that holds
//! this lists all of them; here is only how often, how long, and that it looks the same everywhere.

use std::time::Duration;

use super::{Channel, Effect, Look, Outage, SHORTEST, exponential};
use crate::units::{Rng, Ts};

/// Rare, long, and all at once.
#[derive(Clone, Debug)]
pub struct Correlated {
    /// Mean pause.
    pub every: Duration,
    /// Mean length.
    pub lasts: Duration,
}

impl Correlated {
    /// A domain that is up for this share of time, or `None` for one that never fails.
    #[must_use]
    pub fn with_availability(availability: f64, mean_outage: Duration) -> Option<Correlated> {
        let _never = Channel::new(availability, mean_outage, None)?;
        let availability = availability.max(0.001);
        Some(Correlated { every: mean_outage.mul_f64(availability / (1.0 - availability)), lasts: mean_outage })
    }

    pub(super) fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        let from = after + exponential(self.every, rng).max(SHORTEST);
        let to = from + exponential(self.lasts, rng).max(SHORTEST);
        Some(Outage { from, to, effect: Effect::Down(Look::draw(rng)) })
    }
}
