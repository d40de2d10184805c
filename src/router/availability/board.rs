//! The board: the state of every target, and the one place where its signals become one value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::account::Accounts;
use super::breaker::{Breaker, Gate};
use super::capacity::{Bucket, BucketId, Capacity};
use super::health::{Health, Kind};
use super::learned::Learned;
use super::place::Places;
use super::ramp::Ramps;
use super::rate::Rate;
use super::{COOLING, EJECTED, OPEN, OPERATOR};
use crate::policy::{Policy, RouteId, Target, TargetId};
use crate::router::classify::Lack;
use crate::router::decision::{Availability, Counters, Note};
use crate::router::io::{AttemptId, Evidence, Standing};
use crate::units::Ts;

/// When an attempt began, in the target's own terms. Its outcome is booked against this.
#[derive(Clone, Copy, Debug)]
pub(in crate::router) struct Began {
    pub(in crate::router) at: Ts,
    pub(super) epoch: u64,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) breaker: Breaker,
    pub(super) health: Health,
    pub(super) bucket: BucketId,
    /// The probe under way: never more than one.
    pub(super) probe: Option<AttemptId>,
    /// Some route holds it, so that it can be dialled at all.
    pub(super) used: bool,
    /// An operator took it out, until then as far as is known.
    pub(super) benched: Option<Ts>,
    /// Routes on which it is legal, in the order of the policy.
    pub(super) routes: Vec<RouteId>,
    slots: Option<u32>,
    reserve: u32,
    /// A neighbour is out: the reserve is for now.
    reserve_is_free: bool,
    /// What was last told to people.
    pub(super) told: Availability,
    pub(super) counters: Counters,
}

/// The state of all targets.
#[derive(Clone, Debug)]
pub(in crate::router) struct Board {
    pub(super) policy: Arc<Policy>,
    pub(super) states: Vec<State>,
    pub(super) capacity: Capacity,
    pub(super) rates: Vec<Rate>,
    pub(super) accounts: Accounts,
    pub(super) places: Places,
    pub(super) learned: Learned,
    pub(super) ramps: Ramps,
    /// Targets whose share time alone may change.
    pub(super) unwell: BTreeSet<TargetId>,
    /// Legal targets of each route.
    legal: Vec<Vec<TargetId>>,
    /// By target, what its records say. `None`: nobody has said anything about records.
    pub(super) evidence: Option<Vec<Vec<Admitted>>>,
    /// Targets whose adapter's text is there.
    pub(super) adapted: BTreeSet<TargetId>,
    /// Targets whose value may have changed since the last [`Board::settle`], with the reason.
    pub(super) changed: BTreeMap<TargetId, &'static str>,
}

/// What an admission record says.
#[derive(Clone, Debug)]
pub(super) struct Admitted {
    group: String,
    standing: Standing,
    /// When an eligible one becomes stale.
    stale_at: Ts,
    prompt_sha256: Option<String>,
}

impl Board {
    pub(in crate::router) fn new(policy: Arc<Policy>) -> Board {
        let settings = policy.breaker;
        let legal: Vec<Vec<TargetId>> = policy
            .routes
            .iter()
            .map(|route| {
                if policy.retired.routes.contains(&route.id) {
                    return Vec::new();
                }
                let all: BTreeSet<TargetId> = route.tiers.iter().flat_map(|t| t.targets.iter().copied()).collect();
                all.into_iter().filter(|id| route.legal(policy.target(*id))).collect()
            })
            .collect();
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut rates: Vec<Rate> = Vec::new();
        let mut states = Vec::with_capacity(policy.targets.len());
        for target in &policy.targets {
            let bucket = Bucket::of(target);
            let place = buckets.iter().position(|b| *b == bucket).unwrap_or_else(|| {
                buckets.push(bucket);
                rates.push(Rate::default());
                buckets.len() - 1
            });
            let live = !policy.retired.targets.contains(&target.id);
            if let Some(rate) = rates.get_mut(place).filter(|_| live) {
                rate.declare(target.capacity.requests_per_minute, target.capacity.tokens_per_minute);
            }
            let holds = |(route, legal): (&Arc<crate::policy::Route>, &Vec<TargetId>)| {
                legal.contains(&target.id).then_some(route.id)
            };
            states.push(State {
                breaker: Breaker::new(settings),
                health: new_health(&policy, target),
                bucket: BucketId(u16::try_from(place).unwrap_or(u16::MAX)),
                probe: None,
                used: policy.live_routes().any(|r| r.tiers.iter().any(|tier| tier.targets.contains(&target.id))),
                benched: None,
                routes: policy.routes.iter().zip(&legal).filter_map(holds).collect(),
                slots: target.capacity.slots,
                reserve: target.capacity.reserve_slots.unwrap_or(0),
                reserve_is_free: false,
                told: Availability::Serving { share: 1.0 },
                counters: Counters::default(),
            });
        }
        Board {
            states,
            capacity: Capacity::new(settings.base_cooldown, settings.max_cooldown, buckets.len()),
            rates,
            accounts: Accounts::new(),
            places: Places::new(),
            learned: Learned::default(),
            ramps: Ramps::default(),
            unwell: BTreeSet::new(),
            legal,
            evidence: None,
            adapted: BTreeSet::new(),
            changed: BTreeMap::new(),
            policy,
        }
    }

    pub(super) fn state(&self, id: TargetId) -> &State {
        &self.states[usize::from(id.0)]
    }

    pub(super) fn state_mut(&mut self, id: TargetId) -> &mut State {
        &mut self.states[usize::from(id.0)]
    }

    /// What this target can do now.
    pub(in crate::router) fn availability(&self, now: Ts, id: TargetId) -> Availability {
        let target = self.policy.target(id);
        let state = self.state(id);
        if let Some(until) = state.benched {
            return Availability::Benched { until, why: OPERATOR.to_owned() };
        }
        let benches = self.accounts.of(target).into_iter().chain(self.places.of(target));
        if let Some(bench) = benches.max_by_key(|bench| bench.until) {
            return Availability::Benched { until: bench.until, why: bench.why.clone() };
        }
        let cooling = self.capacity.until(now, state.bucket);
        if self.live_ready(now, id) {
            return Availability::Probing;
        }
        match (state.breaker.gate(), state.health.ejected_until(), cooling) {
            (Gate::Open(until), _, cooling) => {
                Availability::Cooling { until: cooling.map_or(until, |c| c.max(until)), why: OPEN.to_owned() }
            }
            // A sibling was rate limited between two probes.
            (Gate::HalfOpen(false), _, Some(until)) => Availability::Cooling { until, why: OPEN.to_owned() },
            (Gate::HalfOpen(_), ..) => Availability::Probing,
            (Gate::Closed, Some(_), _) if state.probe.is_some() => Availability::Probing,
            (Gate::Closed, Some(until), cooling) => {
                Availability::Cooling { until: cooling.map_or(until, |c| c.max(until)), why: EJECTED.to_owned() }
            }
            (Gate::Closed, None, Some(until)) => Availability::Cooling { until, why: COOLING.to_owned() },
            (Gate::Closed, None, None) => Availability::Serving { share: self.least_share(id) },
        }
    }

    /// The smallest of its shares over its routes.
    fn least_share(&self, id: TargetId) -> f64 {
        self.state(id).routes.iter().map(|route| self.share(*route, id)).fold(1.0, f64::min)
    }

    /// The share of a route's traffic that it may have: the smaller of what its health earns and what its ramp allows.
    pub(in crate::router) fn share(&self, route: RouteId, id: TargetId) -> f64 {
        let health = if self.unwell.contains(&id) { self.state(id).health.share() } else { 1.0 };
        health.min(self.ramps.share(self.policy.route(route).ramp.as_ref(), route, id))
    }

    /// True if customers' requests may go there now.
    pub(in crate::router) fn serving(&self, now: Ts, id: TargetId) -> bool {
        let state = self.state(id);
        state.breaker.gate() == Gate::Closed
            && state.benched.is_none()
            && state.health.ejected_until().is_none()
            && self.capacity.until(now, state.bucket).is_none()
            && {
                let target = self.policy.target(id);
                self.accounts.of(target).is_none() && self.places.of(target).is_none()
            }
    }

    /// True while a rate limit or an overload of it is not forgiven.
    pub(in crate::router) fn capacity_signalled(&self, id: TargetId) -> bool {
        self.capacity.signalled(self.state(id).bucket)
    }

    /// True if the target was found to lack this.
    pub(in crate::router) fn lacks(&self, now: Ts, id: TargetId, lack: Lack) -> bool {
        self.learned.lacks(now, id, lack)
    }

    /// Tokens that a request of so many bytes is expected to have there.
    pub(in crate::router) fn tokens(&self, id: TargetId, body_bytes: u64) -> u64 {
        self.learned.tokens(id, body_bytes)
    }

    /// Slots that are free; `None`: it declares none.
    pub(in crate::router) fn free_slots(&self, id: TargetId) -> Option<u32> {
        let state = self.state(id);
        let reserve = if state.reserve_is_free { 0 } else { state.reserve };
        state.slots.map(|slots| slots.saturating_sub(reserve).max(1).saturating_sub(state.counters.in_flight))
    }

    /// Attempts and probes under way there.
    pub(in crate::router) fn in_flight(&self, id: TargetId) -> u32 {
        self.state(id).counters.in_flight
    }

    /// When its quota bucket has room for so many tokens; `None`: now.
    pub(in crate::router) fn rate_until(&self, now: Ts, id: TargetId, tokens: u64) -> Option<Ts> {
        self.rates.get(usize::from(self.state(id).bucket.0)).and_then(|rate| rate.until(now, tokens))
    }

    /// Health score, 0 to 100, for ordering; a target that nothing is known of is as good as the best.
    pub(in crate::router) fn score(&self, id: TargetId) -> f64 {
        self.state(id).health.score().map_or(100.0, |score| score.total)
    }

    /// Smoothed latency, if enough was seen.
    pub(in crate::router) fn latency(&self, id: TargetId) -> Option<Duration> {
        self.state(id).health.smoothed()
    }

    /// True if the next request may go there at this share.
    pub(in crate::router) fn would_deal(&self, route: RouteId, id: TargetId, share: f64) -> bool {
        self.ramps.would_deal(route, id, share)
    }

    /// Books whether it went there.
    pub(in crate::router) fn deal(&mut self, route: RouteId, id: TargetId, share: f64, went: bool) {
        self.ramps.deal(route, id, share, went);
    }

    /// The text of its adapter is there.
    pub(in crate::router) fn adapts(&self, id: TargetId) -> bool {
        self.adapted.contains(&id)
    }

    /// Takes in for which targets the text of an adapter is there.
    pub(in crate::router) fn set_adapters(&mut self, targets: Vec<TargetId>) {
        self.adapted = targets.into_iter().collect();
    }

    /// What its admission record in a group is worth now.
    /// `prompt`: of the request, as far as it is known.
    pub(in crate::router) fn standing(&self, now: Ts, group: &str, id: TargetId, prompt: Option<&str>) -> Standing {
        let Some(evidence) = &self.evidence else { return Standing::Eligible };
        let mut records = evidence.get(usize::from(id.0)).into_iter().flatten();
        match records.find(|record| record.group == group) {
            Some(record) if record.standing != Standing::Eligible => record.standing,
            Some(record) if record.stale_at <= now => Standing::Stale,
            Some(record) if record.prompt_sha256.as_deref().is_some_and(|p| Some(p) != prompt) => Standing::OtherPrompt,
            Some(_) => Standing::Eligible,
            None => Standing::Missing,
        }
    }

    /// Takes in what admission records say.
    pub(in crate::router) fn set_evidence(&mut self, records: Vec<Evidence>) {
        let mut evidence = vec![Vec::new(); self.states.len()];
        for record in records {
            let Some(of_target) = evidence.get_mut(usize::from(record.target.0)) else { continue };
            of_target.push(Admitted {
                group: record.group,
                standing: record.standing,
                stale_at: record.stale_at.unwrap_or(Ts::FAR),
                prompt_sha256: record.prompt_sha256,
            });
            if let Some(ms) = record.baseline_p95_ms {
                self.state_mut(record.target).health.set_baseline(Kind::Stream, Duration::from_millis(ms));
            }
        }
        self.evidence = Some(evidence);
    }

    /// An operator takes a target out, or (`None`) lets it back in.
    pub(in crate::router) fn bench(&mut self, id: TargetId, out: Option<Ts>) {
        if usize::from(id.0) < self.states.len() {
            self.state_mut(id).benched = out;
            self.changed.insert(id, if out.is_some() { "operator_benched" } else { "operator_unbenched" });
        }
    }

    /// What has happened at this target so far.
    pub(in crate::router) fn counters(&self, id: TargetId) -> Counters {
        let state = self.state(id);
        Counters { consecutive_failures: state.breaker.consecutive(), ..state.counters }
    }

    /// Its health for people: total, error rate, latency part, and which step of its ramp it is at.
    pub(in crate::router) fn health(&self, id: TargetId) -> (Option<super::health::Score>, Option<usize>) {
        let state = self.state(id);
        let step = state.routes.iter().filter_map(|route| self.ramps.step(*route, id)).min();
        (state.health.score(), step)
    }

    /// When something is to be done about this target: its probe is due, a cooldown ends, its health is looked at again, or a
    /// step of its ramp is over. `None` while its probe is under way and when it just serves.
    pub(in crate::router) fn wake(&self, now: Ts, id: TargetId) -> Option<Ts> {
        let state = self.state(id);
        let cooling = self.capacity.until(now, state.bucket);
        let after_cooling = |at: Ts| cooling.map_or(at, |until| until.max(at));
        let probe = self.probe_at(id).map(after_cooling);
        // Before it is probed in the background it is told that a request may be its probe.
        let ready = self.live_from(id).filter(|at| *at > now);
        let look = if self.unwell.contains(&id) { state.health.next_look(now) } else { None };
        let ramp = state.routes.iter().filter_map(|route| {
            let settings = self.policy.route(*route).ramp.as_ref()?;
            self.ramps.next(settings, *route, id)
        });
        [probe, ready, cooling, look].into_iter().flatten().chain(ramp.min()).min()
    }

    /// Time has come for this target: what changes by itself changes.
    pub(in crate::router) fn woke(&mut self, now: Ts, id: TargetId) {
        self.look(now, id);
        let policy = Arc::clone(&self.policy);
        let well = self.state(id).health.share() >= 1.0;
        for route in self.state(id).routes.clone() {
            if let Some(settings) = &policy.route(route).ramp
                && self.ramps.advance(now, settings, route, id, well)
            {
                self.changed.entry(id).or_insert("ramp_step");
            }
        }
        self.changed.entry(id).or_insert("cooldown_over");
    }

    /// Judges its health again; takes it out if that has been bad for long and somebody else can answer.
    pub(super) fn look(&mut self, now: Ts, id: TargetId) {
        let state = self.state_mut(id);
        state.health.refresh(now);
        self.health_moved(now, id);
    }

    pub(super) fn health_moved(&mut self, now: Ts, id: TargetId) {
        let state = self.state(id);
        if !state.health.unwell() {
            if self.unwell.remove(&id) {
                self.changed.entry(id).or_insert("health_restored");
            }
            return;
        }
        let ripe = state.health.ripe(now) && state.breaker.gate() == Gate::Closed;
        if self.unwell.insert(id) {
            self.changed.entry(id).or_insert("health_low");
        }
        if ripe && !self.is_last(now, id) {
            self.state_mut(id).health.eject(now);
            self.ramps.end(id);
            self.changed.insert(id, "health_ejected");
        }
    }

    /// True if some route has nobody else that serves.
    pub(super) fn is_last(&self, now: Ts, id: TargetId) -> bool {
        let routes = &self.state(id).routes;
        routes.iter().any(|route| {
            let legal = self.legal.get(usize::from(route.0)).into_iter().flatten();
            !legal.into_iter().any(|other| *other != id && self.serving(now, *other))
        })
    }

    pub(super) fn all_changed(&mut self, reason: &'static str) {
        for target in &self.policy.targets {
            self.changed.entry(target.id).or_insert(reason);
        }
    }

    /// Puts right what follows from a change (stranded routes, reserves), then says what changed: the targets whose alarm must
    /// be set anew, and notes.
    pub(in crate::router) fn settle(&mut self, now: Ts) -> (Vec<TargetId>, Vec<Note>) {
        if self.changed.is_empty() {
            return (Vec::new(), Vec::new());
        }
        for route in 0..self.legal.len() {
            let touched = self.legal[route].iter().any(|id| self.changed.contains_key(id));
            if !touched {
                continue;
            }
            let legal = self.legal[route].clone();
            if !legal.iter().any(|id| self.serving(now, *id)) {
                for id in &legal {
                    // Health, unlike the breaker, never takes a route's last target.
                    if self.state(*id).health.ejected_until().is_some() {
                        self.state_mut(*id).health.lift(now);
                        self.unwell.remove(id);
                        self.changed.entry(*id).or_insert("last_target");
                    }
                    self.state_mut(*id).breaker.cap_at_base();
                    self.changed.entry(*id).or_insert("nobody_else_serves");
                }
            }
            let out = legal.iter().any(|id| !self.serving(now, *id));
            for id in legal {
                self.state_mut(id).reserve_is_free = out;
            }
        }
        let changed = std::mem::take(&mut self.changed);
        let mut notes = Vec::new();
        for (id, reason) in &changed {
            let value = self.availability(now, *id);
            let state = self.state_mut(*id);
            if state.told != value {
                state.told = value.clone();
                notes.push(Note::Availability { target: *id, now: value, reason: (*reason).to_owned() });
            }
        }
        (changed.into_keys().collect(), notes)
    }
}

pub(super) fn new_health(policy: &Policy, target: &Target) -> Health {
    let mut health = Health::new(policy.health, policy.breaker.half_open_successes);
    if let Some(p95) = target.capacity.p95_service_ms {
        health.set_baseline(Kind::Whole, Duration::from_millis(p95));
    }
    health
}
