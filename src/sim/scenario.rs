//! What ships: a policy, a world and a load that are run together.

use std::sync::Arc;
use std::time::Duration;

use super::arrivals::Load;
use super::outages::{Channel, Correlated, Kind, Source};
use super::setup::Setup;
use super::world::Provider;
use crate::policy::Policy;

/// A scenario by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// As it is asked for.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// Path of its compiled-in policy.
    pub policy: &'static str,
}

/// Every scenario.
pub const ALL: &[Named] = &[Named {
    name: "dual-channel",
    about: "two independent channels per model over months of outages, beside one channel alone",
    policy: "policies/dual-channel.yaml",
}];

/// The scenario of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Named> {
    ALL.iter().find(|s| s.name == name)
}

/// A month, as a twelfth of 365.25 days.
pub const MONTH: Duration = Duration::from_secs(2_629_800);

/// What can be asked of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Seed of everything drawn.
    pub seed: u64,
    /// Time simulated.
    pub span: Duration,
    /// Availability of each channel, 0..1.
    pub channel_availability: f64,
    /// Mean length of an outage.
    pub mean_outage: Duration,
    /// Share of time in which a domain shared by all channels is down, 0..1; zero: there is none.
    pub shared_down: f64,
    /// The checkers watch.
    pub checks: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            span: MONTH * 18,
            channel_availability: 0.97,
            mean_outage: Duration::from_secs(1_800),
            shared_down: 0.0,
            checks: true,
        }
    }
}

/// Requests per second of all routes together, and whether that is declared and not assumed.
#[must_use]
pub fn requests_per_s(policy: &Policy) -> (f64, bool) {
    let declared: f64 = policy.routes.iter().filter_map(|r| r.peak).map(|p| p.requests_per_s).sum();
    if declared > 0.0 { (declared, true) } else { (Load::default().per_second, false) }
}

/// The load of a policy: the peaks its routes declare, else five requests a second.
#[must_use]
pub fn load_of(policy: &Policy) -> Load {
    let (per_second, _) = requests_per_s(policy);
    Load { per_second, ..Load::default() }
}

/// One model per target: the default chat model. Slots are those declared.
#[must_use]
pub fn providers_of(policy: &Policy) -> Vec<Provider> {
    policy.targets.iter().map(|t| Provider { slots: t.capacity.slots, ..Provider::default() }).collect()
}

/// Independent channels, and a shared domain if one is asked for.
#[must_use]
pub fn channels(policy: &Arc<Policy>, options: &Options) -> Setup {
    let targets = 0..policy.targets.len();
    let own = targets.clone().filter_map(|target| {
        let channel = Channel::new(options.channel_availability, options.mean_outage, None)?;
        Some(Source { targets: vec![target], kind: Kind::Channel(channel) })
    });
    let mut sources: Vec<Source> = own.collect();
    if options.shared_down > 0.0
        && let Some(shared) = Correlated::with_availability(1.0 - options.shared_down, options.mean_outage)
    {
        sources.push(Source { targets: targets.collect(), kind: Kind::Correlated(shared) });
    }
    with_sources(policy, sources, options)
}

/// A run of this policy under these outages.
#[must_use]
pub fn with_sources(policy: &Arc<Policy>, sources: Vec<Source>, options: &Options) -> Setup {
    Setup {
        policy: Arc::clone(policy),
        providers: providers_of(policy),
        sources,
        load: load_of(policy),
        span: options.span,
        seed: options.seed,
        checks: options.checks,
        useful_within: None,
    }
}

/// The ceiling by hand: at least one of `n` independent channels up, and the shared domain too.
#[must_use]
pub fn ceiling_by_hand(n: usize, channel_availability: f64, shared_down: f64) -> f64 {
    let all_down = (1.0 - channel_availability).powi(i32::try_from(n).unwrap_or(i32::MAX));
    (1.0 - all_down) * (1.0 - shared_down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_by_hand() {
        // Two at 97 %: 1 - 0.03 x 0.03 = 0.9991; with 0.1 % shared: 0.9991 x 0.999 = 0.9981009.
        assert!((ceiling_by_hand(2, 0.97, 0.0) - 0.9991).abs() < 1e-12);
        assert!((ceiling_by_hand(2, 0.97, 0.001) - 0.998_100_9).abs() < 1e-12);
    }
}
