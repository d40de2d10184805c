//! Lessons of the published system, switched on and off on the same outages.
//!
//! Each pair of runs differs in one thing only. What the core does not enforce yet makes no difference, and the measured
//! figures then say so: two equal columns.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::figures::Figures;
use super::outages::{BrownOuts, Kind, Listed, Outage, Source};
use super::outages::{Effect, Look};
use super::run::{Progress, run};
use super::setup::Setup;
use crate::policy::{Policy, Route, Target};
use crate::units::Ts;

/// One thing measured without and with a lesson.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lesson {
    /// What is switched.
    pub name: String,
    /// What is measured, with its unit.
    pub measure: String,
    /// Without the lesson.
    pub without: Option<f64>,
    /// With it.
    pub with: Option<f64>,
    /// What was published about it.
    pub published: String,
}

impl Lesson {
    /// The change from without to with, as a share of without.
    #[must_use]
    pub fn change(&self) -> Option<f64> {
        let (without, with) = (self.without?, self.with?);
        (without != 0.0).then(|| (with - without) / without)
    }
}

/// A pair of runs.
struct Pair {
    without: Setup,
    with: Setup,
    tell: Vec<Told>,
}

/// What is told of a pair.
struct Told {
    name: &'static str,
    measure: &'static str,
    value: fn(&Figures) -> Option<f64>,
    published: &'static str,
}

/// Runs every lesson on this setup's policy. `None`: asked to stop.
pub fn all(base: &Setup, tell: &mut dyn FnMut(Progress) -> bool) -> Option<Vec<Lesson>> {
    let mut lessons = Vec::new();
    for pair in [time_outs(base), fast_signal(base), storm(base)] {
        let (without, with) = (run(&pair.without, tell), run(&pair.with, tell));
        if without.stopped || with.stopped {
            return None;
        }
        lessons.extend(pair.tell.iter().map(|told| Lesson {
            name: told.name.to_owned(),
            measure: told.measure.to_owned(),
            without: (told.value)(&without.figures),
            with: (told.value)(&with.figures),
            published: told.published.to_owned(),
        }));
    }
    Some(lessons)
}

/// The policy with every route changed.
fn routes(policy: &Policy, change: impl Fn(&mut Route)) -> Policy {
    let mut policy = policy.clone();
    for route in &mut policy.routes {
        let mut changed = Route::clone(route);
        change(&mut changed);
        *route = Arc::new(changed);
    }
    policy
}

/// The policy with every target changed.
fn targets(policy: &Policy, change: impl Fn(&mut Target)) -> Policy {
    let mut policy = policy.clone();
    for target in &mut policy.targets {
        let mut changed = Target::clone(target);
        change(&mut changed);
        *target = Arc::new(changed);
    }
    policy
}

/// The text's router: the first channel with a limit of 30 s, then the second with the limit given, nothing else: no breaker.
fn router_of_the_text(base: &Setup, second: Duration) -> Setup {
    let first = Duration::from_secs(30);
    let mut policy = routes(&base.policy, |route| {
        let all: Vec<_> = route.tiers.iter().flat_map(|t| t.targets.iter().copied()).collect();
        let Some(model) = route.tiers.first().cloned() else { return };
        route.tiers = all
            .iter()
            .enumerate()
            .map(|(n, id)| {
                let limit = if n == 0 { first } else { second };
                let mut tier = model.clone();
                (tier.targets, tier.first_token_timeout, tier.answer_timeout) = (vec![*id], limit, Some(limit));
                tier
            })
            .collect();
        route.connect_timeout = first;
        route.deadline = first + second + route.reserve;
        route.max_attempts = 2;
    });
    policy.breaker.consecutive_failures = u32::MAX;
    policy.breaker.failures_in_window = u32::MAX;
    let mut setup = Setup { policy: Arc::new(policy), checks: false, ..base.clone() };
    // Without a breaker requests do not act upon each other: thin ones tell the same, and edges need no closer look.
    setup.load.lead = Duration::ZERO;
    setup.load.tail = Duration::ZERO;
    setup.load.thin = Duration::from_secs(120);
    setup.useful_within = base.policy.routes.iter().map(|r| r.deadline).max();
    setup
}

fn time_outs(base: &Setup) -> Pair {
    let published = "35 % less perceived latency";
    Pair {
        without: router_of_the_text(base, Duration::from_secs(30)),
        with: router_of_the_text(base, Duration::from_secs(20)),
        tell: vec![
            Told {
                name: "time-outs 30/30 s -> 30/20 s",
                measure: "mean wait of requests that met a failure, s",
                value: |f| f.failure_wait.mean().map(|ms| ms / 1e3),
                published,
            },
            Told {
                name: "time-outs 30/30 s -> 30/20 s",
                measure: "mean wait of requests that nobody answered, s",
                value: |f| f.lost_wait.mean().map(|ms| ms / 1e3),
                published,
            },
            Told {
                name: "time-outs 30/30 s -> 30/20 s",
                measure: "availability, an answer within the policy's own deadline, %",
                value: |f| f.availability().map(|a| a * 100.0),
                published: "",
            },
        ],
    }
}

/// Dense all the time: windows of the core need real traffic.
fn dense(base: &Setup, span: Duration) -> Setup {
    let mut setup = Setup { span, checks: false, ..base.clone() };
    setup.load.thin = Duration::ZERO;
    setup
}

fn fast_signal(base: &Setup) -> Pair {
    let mut with = dense(base, Duration::from_secs(6 * 3_600));
    // Slower, but inside every limit, and errors below the breaker's share: only health can see it.
    let trouble =
        BrownOuts { every: Duration::from_secs(1_200), lasts: Duration::from_secs(240), slower: 2.6, errors: 0.15 };
    with.sources = vec![Source { targets: vec![0], kind: Kind::BrownOuts(trouble) }];
    let mut slow = (*with.policy).clone();
    slow.health.fast_window = slow.health.window;
    let without = Setup { policy: Arc::new(slow), ..with.clone() };
    let name = "fast signal of 30 s beside the window of 5 min";
    Pair {
        without,
        with,
        tell: vec![
            Told {
                name,
                measure: "p95 of time to useful text under brown-outs of 4 min, s",
                value: |f| f.useful_text.percentile(0.95).map(|ms| ms / 1e3),
                published: "sudden failures are seen sooner",
            },
            Told {
                name,
                measure: "dials per request under the same brown-outs",
                value: Figures::dials_per_request,
                published: "",
            },
        ],
    }
}

/// Length of a blip of the first channel, in seconds: long enough for a quota of a minute to bite.
const BLIP_S: u64 = 180;

fn storm(base: &Setup) -> Pair {
    let mut without = dense(base, Duration::from_secs(6 * 3_600));
    let blip = |n: u64| Outage {
        from: Ts::from_s(600 + n * 900),
        to: Ts::from_s(600 + n * 900 + BLIP_S),
        effect: Effect::Down(Look::Status(503)),
    };
    without.sources = vec![Source { targets: vec![0], kind: Kind::Listed(Listed::new((0..23).map(blip).collect())) }];
    // The stand-in carries four fifths of the load, slows down when it is crowded, and refuses above its quota.
    let per_minute = (base.load.per_second * 60.0 * 0.8) as u64;
    for provider in without.providers.iter_mut().skip(1) {
        provider.requests_per_minute = Some(per_minute.max(1));
        provider.slots = Some(((base.load.per_second * 2.0) as u32).max(1));
    }
    let unlimited = targets(&base.policy, |t| t.capacity.requests_per_minute = None);
    let limited = targets(&base.policy, |t| t.capacity.requests_per_minute = Some(per_minute.max(1)));
    without.policy = Arc::new(unlimited);
    let with = Setup { policy: Arc::new(limited), ..without.clone() };
    let name = "failover storm: client-side rate limit on the stand-in";
    Pair {
        without,
        with,
        tell: vec![
            Told {
                name,
                measure: "requests that the stand-in refused with a 429, per blip of 3 min",
                value: |f| Some(f.rate_limited as f64 / 23.0),
                published: "eased it",
            },
            Told {
                name,
                measure: "availability, blips of 3 min every 15 min, %",
                value: |f| f.availability().map(|a| a * 100.0),
                published: "",
            },
        ],
    }
}
