//! When requests come, and how many real ones each stands for.
//!
//! Time is cut into slices; each slice has one request, at a place drawn evenly inside it, and that request *weighs* as much
//! time as its slice is long. Near the begin or end of an outage, after a dial that failed, after a target left or
//! entered service, and while nobody serves although somebody is up, slices are as short as real traffic makes them; elsewhere they are long. No slice straddles the begin or end of an
//! outage. How the next slice is cut hangs only on what has happened already, so that weighted shares are unbiased shares
//! of time.
//!
//! What this assumes: nothing that matters happens in the core *because* real traffic is dense far away from every edge.
//! State that needs a longer history than the dense lead-in (windows of minutes) sees fewer samples than in production.

use std::time::Duration;

use super::setup::{Draws, Setup};
use crate::policy::{DataClass, Policy, RouteId};
use crate::router::Facts;
use crate::units::{Rng, Ts};

/// What customers send.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Real requests per second, as near an edge.
    pub per_second: f64,
    /// Length of a slice far from every edge.
    pub thin: Duration,
    /// Dense so long before an edge ...
    pub lead: Duration,
    /// ... and so long after it, or after the last trouble.
    pub tail: Duration,
    /// Share of requests that are not streamed.
    pub whole: f64,
    /// Share of requests that offer tools.
    pub tools: f64,
    /// Share of clients that leave before they have their answer.
    pub leave: f64,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            per_second: 5.0,
            thin: Duration::from_secs(240),
            lead: Duration::from_secs(4),
            tail: Duration::from_secs(12),
            whole: 0.1,
            tools: 0.1,
            leave: 0.0,
        }
    }
}

/// One kind of request of a route: what a class number means.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) facts: Facts,
    pub(super) share: f64,
}

/// Every kind of request: each route, each of its intents and none, with and without tools, streamed and not.
pub(super) fn classes(policy: &Policy, load: &Load) -> Vec<Class> {
    let weight = |route: &crate::policy::Route| route.peak.map_or(1.0, |p| p.requests_per_s.max(0.001));
    let all: f64 = policy.routes.iter().map(|r| weight(r)).sum();
    let mut classes = Vec::new();
    for route in &policy.routes {
        let listed = route.tiers.iter().filter_map(|t| t.intents.as_ref()).find_map(|list| list.first().cloned());
        let mut intents = vec![None];
        intents.extend(listed.map(Some));
        for intent in &intents {
            for (tools, tools_share) in [(false, 1.0 - load.tools), (true, load.tools)] {
                for (stream, stream_share) in [(true, 1.0 - load.whole), (false, load.whole)] {
                    let share = weight(route) / all / intents.len() as f64 * tools_share * stream_share;
                    if share > 0.0 {
                        classes
                            .push(Class { facts: facts(route.id, route.data, intent.clone(), tools, stream), share });
                    }
                }
            }
        }
    }
    classes
}

/// The one place where facts are made.
fn facts(route: RouteId, data: DataClass, intent: Option<String>, tools: bool, stream: bool) -> Facts {
    Facts { intent, tools, risky_tools: tools, stream, body_bytes: 6_000, ..Facts::plain(route, data) }
}

/// A request that is to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Coming {
    pub(super) at: Ts,
    /// The time it stands for, in seconds.
    pub(super) weight_s: f64,
    pub(super) class: usize,
    /// The client leaves so long after it came.
    pub(super) leaves_after: Option<Duration>,
}

/// Between two requests once everything is healed.
const CALM: Duration = Duration::from_secs(3);

/// Cuts time into slices.
pub(super) struct Arrivals {
    load: Load,
    dense: Duration,
    rng: Rng,
    shares: Vec<f64>,
    /// End of the last slice.
    cut: Ts,
    dense_until: Ts,
}

impl Arrivals {
    pub(super) fn new(setup: &Setup, classes: &[Class]) -> Arrivals {
        let load = setup.load.clone();
        Arrivals {
            dense: Duration::from_secs_f64(1.0 / load.per_second.clamp(0.001, 10_000.0)),
            load,
            rng: setup.rng(Draws::Arrivals),
            shares: classes.iter().map(|c| c.share).collect(),
            cut: Ts::ZERO,
            dense_until: Ts::ZERO,
        }
    }

    /// Something has happened that makes the next while worth a closer look.
    pub(super) fn look_closer(&mut self, now: Ts) {
        self.dense_until = self.dense_until.max(now + self.load.tail);
    }

    /// From now on one request every few seconds: enough to see who answers, too few for any limit of the policy.
    pub(super) fn calm(&mut self) {
        (self.dense, self.load.thin, self.load.leave) = (CALM, CALM, 0.0);
    }

    /// The next request, in the slice that begins where the last one ended. `edge`: the next begin or end of an outage.
    pub(super) fn next(&mut self, edge: Ts, restless: bool) -> Coming {
        let from = self.cut;
        let near = edge.since(from);
        let dense = restless || from < self.dense_until || near <= self.load.lead;
        // A thin slice ends where the dense lead-in begins.
        let (length, stop) = if dense {
            (self.dense, near)
        } else {
            (self.load.thin.max(self.dense), near.saturating_sub(self.load.lead))
        };
        // An edge cuts a slice short; a rest too short to be a slice of its own joins it.
        let length = if stop.is_zero() || stop > length + length / 4 { length } else { stop };
        self.cut = from + length;
        let at = from + length.mul_f64(self.rng.unit());
        let leaves = self.load.leave > 0.0 && self.rng.unit() < self.load.leave;
        let leaves_after = leaves.then(|| Duration::from_secs(6).mul_f64(self.rng.unit()));
        Coming { at, weight_s: length.as_secs_f64(), class: self.class(), leaves_after }
    }

    fn class(&mut self) -> usize {
        let mut place = self.rng.unit();
        for (n, share) in self.shares.iter().enumerate() {
            if place < *share {
                return n;
            }
            place -= share;
        }
        self.shares.len().saturating_sub(1)
    }
}
