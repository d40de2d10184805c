//! What one run is made of. The same setup gives the same run, to the last bit of its hash.

use std::sync::Arc;
use std::time::Duration;

use super::arrivals::Load;
use super::outages::Source;
use super::world::Provider;
use crate::policy::Policy;
use crate::units::Rng;

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What is tried.
    pub policy: Arc<Policy>,
    /// One model per target of the policy, in its order.
    pub providers: Vec<Provider>,
    /// What fails, and when.
    pub sources: Vec<Source>,
    /// What customers send.
    pub load: Load,
    /// How long it runs, before the liveness phase.
    pub span: Duration,
    /// Seed of everything drawn.
    pub seed: u64,
    /// The checkers watch.
    pub checks: bool,
    /// An answer is useful within this; `None`: within the deadline of its route.
    pub useful_within: Option<Duration>,
}

impl Setup {
    /// A generator of its own for one use, so that a change in one place moves no other: the outages of a seed are the same
    /// under every policy.
    #[must_use]
    pub fn rng(&self, for_what: Draws) -> Rng {
        let salt = match for_what {
            Draws::Core => 1,
            Draws::World => 2,
            Draws::Arrivals => 3,
            Draws::Alone => 4,
            Draws::Source(n) => 1_000 + u64::try_from(n).unwrap_or(0),
        };
        let mut seed = Rng::new(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt);
        Rng::new(seed.next_u64())
    }
}

/// What a generator is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// Inside the core.
    Core,
    /// Answers of providers.
    World,
    /// Arrivals.
    Arrivals,
    /// What a client of one channel alone would have got.
    Alone,
    /// One source of outages.
    Source(usize),
}
