//! What is counted in a run. Shares are shares of time: each request weighs the time it stands for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::arrivals::Class;
use super::recovery::Recovery;
use super::verify::who_may;
use super::world::World;
use crate::policy::{Policy, TargetId};
use crate::router::decision::Outcome;
use crate::units::{self, Ts};

/// Weighted values in buckets that grow by one percent, from a tenth of a millisecond: percentiles in bounded memory, each a
/// bucket's upper end, at most one percent above the value itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hist {
    buckets: Vec<f64>,
    total: f64,
    sum: f64,
    n: u64,
}

const GROWTH: f64 = 1.01;
const LEAST_MS: f64 = 0.1;

impl Hist {
    /// Adds a value in milliseconds.
    pub fn add(&mut self, ms: f64, weight: f64) {
        let bucket = ((ms / LEAST_MS).max(1.0).ln() / GROWTH.ln()).ceil() as usize;
        let bucket = bucket.min(4_000);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0.0);
        }
        self.buckets[bucket] += weight;
        self.total += weight;
        self.sum += ms * weight;
        self.n += 1;
    }

    /// The percentile (0..=1) in milliseconds; `None` without values.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let mut left = self.total * share.clamp(0.0, 1.0);
        let last = self.buckets.iter().rposition(|w| *w > 0.0)?;
        for (n, weight) in self.buckets.iter().enumerate() {
            left -= weight;
            if (*weight > 0.0 && left <= 1e-9 * self.total) || n == last {
                return Some(LEAST_MS * GROWTH.powi(i32::try_from(n).unwrap_or(i32::MAX)));
            }
        }
        None
    }

    /// Mean in milliseconds.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.total > 0.0).then(|| self.sum / self.total)
    }

    /// How many values.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Their weight.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }
}

/// How one request ended, as the client and the providers saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) started: Ts,
    pub(super) weight_s: f64,
    pub(super) class: usize,
    pub(super) dials: u32,
    pub(super) met_failure: bool,
    pub(super) first: Option<usize>,
    pub(super) answered_by: Option<usize>,
    pub(super) useful: bool,
    pub(super) useful_text: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) handoff: bool,
    pub(super) gone: bool,
    pub(super) degraded: bool,
    pub(super) outcome: Outcome,
}

/// What one target did in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfTarget {
    /// Its name.
    pub name: String,
    /// Time it was up, by the world.
    pub up_s: f64,
    /// Weight of the requests that it alone was imagined to get.
    pub alone_of_s: f64,
    /// ... and would have answered.
    pub alone_useful_s: f64,
    /// Dials, weighted.
    pub dials_s: f64,
    /// Outages.
    pub outages: u64,
}

impl OfTarget {
    /// Availability of a client that has this channel alone and no router.
    #[must_use]
    pub fn alone(&self) -> Option<f64> {
        (self.alone_of_s > 0.0).then(|| self.alone_useful_s / self.alone_of_s)
    }
}

/// What was counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Per target, in the order of the policy.
    pub targets: Vec<OfTarget>,
    /// Place of the first legal target of the first route: the single channel that the policy is compared with.
    pub single: usize,
    /// Time simulated.
    pub span_s: f64,
    /// Requests simulated.
    pub requests: u64,
    /// Their weight.
    pub weight_s: f64,
    /// ... of those that got a whole useful answer in time.
    pub useful_s: f64,
    /// ... of these, from another quality tier.
    pub degraded_s: f64,
    /// ... of those handed to people.
    pub handoff_s: f64,
    /// ... of those refused (nobody may, nobody can now).
    pub refused_s: f64,
    /// ... of those whose stream broke after commit.
    pub broken_s: f64,
    /// ... of those whose client left; they are left out of shares.
    pub gone_s: f64,
    /// Dials, weighted.
    pub dials_s: f64,
    /// Dials to targets that were down, as simulated.
    pub wasted: u64,
    /// Dials, as simulated.
    pub dials: u64,
    /// Probes.
    pub probes: u64,
    /// ... of targets that were down.
    pub probes_wasted: u64,
    /// Times a target left or entered service.
    pub service_changes: u64,
    /// Most times that targets left or entered service within one minute.
    pub switches_per_minute_max: usize,
    /// Wait of requests that met a failure, to their useful text or their refusal.
    pub failure_wait: Hist,
    /// ... of those that nobody answered.
    pub lost_wait: Hist,
    /// Dials that were refused with a 429.
    pub rate_limited: u64,
    /// Time to useful text of all answered requests.
    pub useful_text: Hist,
    /// Recovery time of outages.
    pub recovery: Recovery,
    /// Weighted time with at least one legal target up.
    pub ceiling_s: f64,
    per_second: f64,
    legal: Vec<Arc<[usize]>>,
    /// Per target the classes that it may answer.
    classes_of: Vec<Vec<usize>>,
    shares: Vec<f64>,
    switches: VecDeque<Ts>,
    up: Vec<bool>,
    since: Ts,
}

impl Figures {
    pub(super) fn new(policy: &Policy, classes: &[Class], per_second: f64) -> Figures {
        let targets = policy.targets.len();
        let legal_of = |class: &Class| -> Arc<[usize]> {
            let may = who_may(policy, &class.facts);
            may.iter().enumerate().filter_map(|(target, may)| may.then_some(target)).collect()
        };
        let legal: Vec<Arc<[usize]>> = classes.iter().map(legal_of).collect();
        let first = policy.routes.first().and_then(|r| r.tiers.first()).and_then(|t| {
            let may_some = |id: &&TargetId| legal.iter().any(|l| l.contains(&usize::from(id.0)));
            t.targets.iter().find(may_some).or(t.targets.first())
        });
        let mut classes_of = vec![Vec::new(); targets];
        for (class, legal) in legal.iter().enumerate() {
            legal.iter().for_each(|target| classes_of[*target].push(class));
        }
        Figures {
            targets: policy.targets.iter().map(|t| OfTarget { name: t.name.clone(), ..OfTarget::default() }).collect(),
            single: first.map_or(0, |id| usize::from(id.0)),
            span_s: 0.0,
            requests: 0,
            weight_s: 0.0,
            useful_s: 0.0,
            degraded_s: 0.0,
            handoff_s: 0.0,
            refused_s: 0.0,
            broken_s: 0.0,
            gone_s: 0.0,
            dials_s: 0.0,
            wasted: 0,
            dials: 0,
            probes: 0,
            probes_wasted: 0,
            service_changes: 0,
            switches_per_minute_max: 0,
            failure_wait: Hist::default(),
            lost_wait: Hist::default(),
            rate_limited: 0,
            useful_text: Hist::default(),
            recovery: Recovery::default(),
            ceiling_s: 0.0,
            per_second,
            shares: classes.iter().map(|c| c.share).collect(),
            switches: VecDeque::new(),
            up: vec![true; targets],
            since: Ts::ZERO,
            legal,
            classes_of,
        }
    }

    /// Targets that may answer this class.
    pub(super) fn legal(&self, class: usize) -> Arc<[usize]> {
        Arc::clone(&self.legal[class])
    }

    /// Another target that may answer what this one answers is up.
    pub(super) fn has_stand_in(&self, target: usize, world: &World) -> bool {
        let other = |t: &usize| *t != target && !world.is_down(*t);
        self.classes_of[target].iter().any(|class| self.legal[*class].iter().any(other))
    }

    /// Outages whose last stand-in has just gone.
    pub(super) fn lost_stand_ins(&mut self, world: &World) {
        let mut recovery = std::mem::take(&mut self.recovery);
        recovery.lost(|target| self.has_stand_in(target, world));
        self.recovery = recovery;
    }

    /// Books the time since the last begin or end of an outage.
    fn book(&mut self, now: Ts) {
        let passed = now.since(self.since).as_secs_f64();
        self.since = now;
        for (target, up) in self.targets.iter_mut().zip(&self.up) {
            target.up_s += if *up { passed } else { 0.0 };
        }
        for (legal, share) in self.legal.iter().zip(&self.shares) {
            if legal.iter().any(|t| self.up[*t]) {
                self.ceiling_s += passed * share;
            }
        }
    }

    pub(super) fn flip(&mut self, now: Ts, world: &World) {
        if self.span_s > 0.0 {
            return;
        }
        self.book(now);
        for (n, up) in self.up.iter_mut().enumerate() {
            let was = std::mem::replace(up, !world.is_down(n));
            self.targets[n].outages += u64::from(was && !*up);
        }
    }

    /// The time that counts is over.
    pub(super) fn close(&mut self, end: Ts) {
        self.book(end);
        self.span_s = end.since(Ts::ZERO).as_secs_f64();
    }

    fn closed(&self) -> bool {
        self.span_s > 0.0
    }

    pub(super) fn alone(&mut self, target: usize, weight_s: f64, useful: bool) {
        if self.closed() {
            return;
        }
        let of = &mut self.targets[target];
        of.alone_of_s += weight_s;
        of.alone_useful_s += if useful { weight_s } else { 0.0 };
    }

    pub(super) fn dial(&mut self, target: usize, weight_s: f64, dead: bool) {
        if self.closed() {
            return;
        }
        self.dials += 1;
        self.wasted += u64::from(dead);
        self.dials_s += weight_s;
        self.targets[target].dials_s += weight_s;
    }

    pub(super) fn probe(&mut self, dead: bool) {
        self.probes += 1;
        self.probes_wasted += u64::from(dead);
    }

    /// A target left service, or came back.
    pub(super) fn service(&mut self, now: Ts, _serves: bool) {
        self.service_changes += 1;
        self.switches.push_back(now);
        while self.switches.front().is_some_and(|at| now.since(*at) > Duration::from_secs(60)) {
            self.switches.pop_front();
        }
        self.switches_per_minute_max = self.switches_per_minute_max.max(self.switches.len());
    }

    pub(super) fn request(&mut self, ended: &Ended) {
        // Those that arrived in the time that counts, however late they ended, are booked; the liveness phase is not.
        if self.closed() && ended.started.since(Ts::ZERO).as_secs_f64() >= self.span_s {
            return;
        }
        let weight = ended.weight_s;
        self.requests += 1;
        if ended.gone {
            self.gone_s += weight;
            return;
        }
        self.weight_s += weight;
        if ended.useful {
            self.useful_s += weight;
            self.degraded_s += if ended.degraded { weight } else { 0.0 };
        } else if ended.handoff {
            self.handoff_s += weight;
        } else if ended.outcome == Outcome::BrokenAfterCommit {
            self.broken_s += weight;
        } else {
            self.refused_s += weight;
        }
        if let Some(text) = ended.useful_text.filter(|_| ended.useful) {
            self.useful_text.add(units::ms(text), weight);
        }
        if let Some(wait) = ended.wait.filter(|_| ended.met_failure) {
            self.failure_wait.add(units::ms(wait), weight);
            if !ended.useful && ended.useful_text.is_none() {
                self.lost_wait.add(units::ms(wait), weight);
            }
        }
    }

    /// Share of time in which a client got a whole useful answer; `None` without requests.
    #[must_use]
    pub fn availability(&self) -> Option<f64> {
        (self.weight_s > 0.0).then(|| self.useful_s / self.weight_s)
    }

    /// Share of time with at least one legal target up: nobody can do better.
    #[must_use]
    pub fn ceiling(&self) -> Option<f64> {
        (self.span_s > 0.0).then(|| self.ceiling_s / self.span_s)
    }

    /// Availability of the single channel, in the same run and by the same definition.
    #[must_use]
    pub fn single(&self) -> Option<f64> {
        self.targets.get(self.single).and_then(OfTarget::alone)
    }

    /// Share of time the single channel was up, by the world.
    #[must_use]
    pub fn single_up(&self) -> Option<f64> {
        let up = self.targets.get(self.single)?.up_s;
        (self.span_s > 0.0).then(|| up / self.span_s)
    }

    /// Dials per real request.
    #[must_use]
    pub fn dials_per_request(&self) -> Option<f64> {
        (self.weight_s > 0.0).then(|| self.dials_s / (self.weight_s + self.gone_s))
    }

    /// Real requests that the run stands for.
    #[must_use]
    pub fn real_requests(&self) -> f64 {
        (self.weight_s + self.gone_s) * self.per_second
    }

    /// Outages of all targets.
    #[must_use]
    pub fn outages(&self) -> u64 {
        self.targets.iter().map(|t| t.outages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent_of_the_values() {
        let mut hist = Hist::default();
        assert_eq!((hist.percentile(0.5), hist.mean()), (None, None));
        for ms in 1..=100 {
            hist.add(f64::from(ms), 1.0);
        }
        for (share, right) in [(0.5, 50.0), (0.95, 95.0), (1.0, 100.0)] {
            let got = hist.percentile(share).unwrap();
            assert!((right..right * 1.0101).contains(&got), "{share}: {got}");
        }
        assert_eq!(hist.mean(), Some(50.5));
        // One request that stands for as much time as all others together moves the median.
        hist.add(1_000.0, 100.1);
        assert!(hist.percentile(0.51).unwrap() >= 1_000.0);
    }
}
