//! When providers fail, and how: one file per kind. A kind draws one outage after the other, lazily, so that memory does not
//! grow with the time simulated; what a source does hangs on the seed alone, never on the policy.

mod bursts;
mod channel;
mod correlated;
mod flapping;
mod listed;

pub use bursts::{BrownOuts, RateStorms};
pub use channel::Channel;
pub use correlated::Correlated;
pub use flapping::Flapping;
pub use listed::Listed;

use std::time::Duration;

use crate::units::{Rng, Ts};

/// How a provider that is down looks to who dials it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Connections are refused.
    Refused,
    /// Connections never stand.
    NoConnect,
    /// Connections stand, and nothing comes.
    Silence,
    /// An error status, soon.
    Status(u16),
    /// The connection is reset.
    Reset,
}

impl Look {
    /// What an outage looks like, drawn. Shares: silence 40 %, a 5xx status 30 %, refused 15 %, no connection 10 %, reset 5 %.
    /// They are an assumption: public incident lists do not say. Silence is the dearest, since it costs a whole limit.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Look {
        match rng.below(100) {
            0..40 => Look::Silence,
            40..60 => Look::Status(503),
            60..70 => Look::Status(500),
            70..85 => Look::Refused,
            85..95 => Look::NoConnect,
            _ => Look::Reset,
        }
    }
}

/// What an outage does to its targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Nothing is answered. Only this counts as down in the ceiling.
    Down(Look),
    /// Answers take so many times as long.
    Slow(f64),
    /// This share of requests fails with a 500.
    Errors(f64),
    /// This share is refused with a 429, with a `Retry-After` of so many seconds (zero: without one).
    RateLimit {
        /// 0..1.
        share: f64,
        /// Seconds.
        retry_after_s: u64,
    },
}

impl Effect {
    /// Nothing is answered.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(self, Effect::Down(_))
    }
}

/// One outage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outage {
    /// Its begin.
    pub from: Ts,
    /// Its end, after its begin.
    pub to: Ts,
    /// What it does.
    pub effect: Effect,
}

/// A process that makes outages.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Up and down in turn.
    Channel(Channel),
    /// Given begins and ends.
    Listed(Listed),
    /// Up and down every few seconds, for a while.
    Flapping(Flapping),
    /// Slow and failing for a while.
    BrownOuts(BrownOuts),
    /// Refusing for a while.
    RateStorms(RateStorms),
    /// One vendor, several targets, one after the other.
    Correlated(Correlated),
}

impl Kind {
    /// The next outage that begins at `after` or later. Never one that began before.
    pub fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        match self {
            Kind::Channel(k) => k.next(after, rng),
            Kind::Listed(k) => k.next(after),
            Kind::Flapping(k) => k.next(after, rng),
            Kind::BrownOuts(k) => k.next(after, rng),
            Kind::RateStorms(k) => k.next(after, rng),
            Kind::Correlated(k) => k.next(after, rng),
        }
    }
}

/// A process and whom it hits: several targets are a shared domain, which fails as a unit.
#[derive(Clone, Debug)]
pub struct Source {
    /// Places in the policy's list of targets.
    pub targets: Vec<usize>,
    /// What it does.
    pub kind: Kind,
}

/// Exponential with this mean.
fn exponential(mean: Duration, rng: &mut Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.unit()).ln())
}

/// No outage and no pause is shorter: begins and ends stay apart.
const SHORTEST: Duration = Duration::from_millis(1);
