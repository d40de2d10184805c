//! The loop: the earliest event moves the clock, the core and the world.
//!
//! A run has two phases. In the first the sources make outages and the checkers watch (safety). Then everything is healed,
//! requests go on, and every target must serve and every route be back at its first choice within the policy's bound; then
//! requests stop, and nothing may stay open (liveness).

mod hear;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use crate::router::{AttemptId, Engine, Failure, Input, Machine, RequestId, Sign};
use crate::sim::arrivals::{Arrivals, Class, Coming, classes};
use crate::sim::figures::Figures;
use crate::sim::outages::Look;
use crate::sim::ring::Ring;
use crate::sim::setup::{Draws, Setup};
use crate::sim::verify::{Checker, Violation};
use crate::sim::world::{End, Fate, Flip, World};
use crate::units::Ts;

/// What the loop needs of a core besides its inputs and outputs.
pub trait Core: Machine {
    /// No request is open and no attempt is under way.
    fn idle(&self) -> bool;
    /// Attempts and probes under way, by its own count.
    fn in_flight(&self, now: Ts) -> usize;
}

impl Core for Engine {
    fn idle(&self) -> bool {
        self.is_idle()
    }

    fn in_flight(&self, now: Ts) -> usize {
        let targets = self.snapshot(now).targets;
        targets.iter().map(|t| t.counters.in_flight as usize).sum()
    }
}

/// How far a run is, for whoever waits for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Share of the time simulated, 0..1.
    pub share: f64,
    /// Requests so far.
    pub requests: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What was counted.
    pub figures: Figures,
    /// What was promised and not held, at most [`crate::sim::verify::MOST`]. Empty without checkers.
    pub violations: Vec<Violation>,
    /// Hash of everything the core said, and when.
    pub trace_hash: u64,
    /// Inputs and alarms the core has handled.
    pub steps: u64,
    /// It was asked to stop before its end.
    pub stopped: bool,
}

/// Between two calls of `tell`, in steps of a world of up to [`SMALL`] targets. A step of a larger one takes longer, about in
/// proportion, so it tells more often: whoever asked to stop is not kept waiting.
const TELL_EVERY: u64 = 1 << 13;
/// See above.
const SMALL: u64 = 16;

/// Steps between two calls of `tell` in a world of so many targets.
fn tell_every(targets: usize) -> u64 {
    (TELL_EVERY * SMALL / u64::try_from(targets).unwrap_or(u64::MAX).max(SMALL)).max(1)
}
/// Steps without time going on that are a spin.
const SPIN: u32 = 10_000;

/// Runs a setup on the shipped core. `tell` hears how far it is, and says whether to go on.
pub fn run(setup: &Setup, tell: &mut dyn FnMut(Progress) -> bool) -> Ran {
    let mut rng = setup.rng(Draws::Core);
    run_on(setup, Engine::new(Arc::clone(&setup.policy), rng.next_u64()), tell)
}

/// Runs a setup on a core of the caller's: the checkers' own tests plant bugs this way.
pub fn run_on<C: Core>(setup: &Setup, core: C, tell: &mut dyn FnMut(Progress) -> bool) -> Ran {
    Run::new(setup, core).all(tell)
}

/// One dial under way.
#[derive(Debug)]
struct Flight {
    request: Option<u64>,
    target: usize,
    stream: bool,
    fate: Fate,
    connected: bool,
    committed: bool,
    idle: Duration,
    /// Events of an older plan are void.
    plan: u32,
}

/// One request under way.
#[derive(Debug)]
struct Asked {
    coming: Coming,
    dials: u32,
    failed_dials: u32,
    first: Option<usize>,
    delivered: Option<(Ts, usize)>,
    replied: Option<(Ts, bool)>,
    whole: Option<usize>,
    gone: bool,
    degraded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Attempt(u64, u32),
    Leaves(u64),
}

struct Run<'a, C> {
    setup: &'a Setup,
    core: C,
    now: Ts,
    world: World,
    classes: Vec<Class>,
    arrivals: Arrivals,
    coming: Option<Coming>,
    heap: BinaryHeap<Reverse<(Ts, u64, What)>>,
    seq: u64,
    flights: Ring<Flight>,
    open_at: Vec<u32>,
    asked: Ring<Asked>,
    next_request: u64,
    serving: Vec<bool>,
    used: Vec<bool>,
    figures: Figures,
    checker: Option<Checker>,
    hash: u64,
    steps: u64,
    still: u32,
}

impl<'a, C: Core> Run<'a, C> {
    fn new(setup: &'a Setup, core: C) -> Run<'a, C> {
        let classes = classes(&setup.policy, &setup.load);
        let targets = setup.policy.targets.len();
        let mut used = vec![false; targets];
        for target in setup.policy.routes.iter().flat_map(|r| &r.tiers).flat_map(|tier| &tier.targets) {
            used[usize::from(target.0)] = true;
        }
        Run {
            setup,
            core,
            now: Ts::ZERO,
            world: World::new(setup),
            arrivals: Arrivals::new(setup, &classes),
            coming: None,
            heap: BinaryHeap::new(),
            seq: 0,
            flights: Ring::default(),
            open_at: vec![0; targets],
            asked: Ring::default(),
            next_request: 1,
            serving: vec![true; targets],
            used,
            figures: Figures::new(&setup.policy, &classes, setup.load.per_second),
            checker: setup.checks.then(|| Checker::new(Arc::clone(&setup.policy), &classes)),
            classes,
            hash: 0xcbf2_9ce4_8422_2325,
            steps: 0,
            still: 0,
        }
    }

    fn all(mut self, tell: &mut dyn FnMut(Progress) -> bool) -> Ran {
        let end = Ts::ZERO + self.setup.span;
        self.plan_arrival();
        let mut stopped = !self.until(end, tell, |_| false);
        self.figures.close(end);
        if !stopped {
            stopped = !self.liveness(end, tell);
        }
        if let Some(checker) = &mut self.checker
            && !stopped
        {
            checker.ended(self.now, self.core.idle(), self.core.in_flight(self.now), self.flights.len());
        }
        Ran {
            violations: self.checker.map(|c| c.violations).unwrap_or_default(),
            figures: self.figures,
            trace_hash: self.hash,
            steps: self.steps,
            stopped,
        }
    }

    /// Heals everything; then everybody must serve, every route must be at its first choice, and nothing may stay open.
    fn liveness(&mut self, end: Ts, tell: &mut dyn FnMut(Progress) -> bool) -> bool {
        self.now = self.now.max(end);
        let flip = self.world.heal(self.now);
        self.flipped(&flip);
        self.figures.recovery.stop();
        self.arrivals.calm();
        let bound = self.now + crate::sim::verify::recovery_bound(&self.setup.policy);
        let healed = self.now;
        if !self.until(bound, tell, |run| run.still_out().next().is_none()) {
            return false;
        }
        let took = self.now.since(healed);
        let out: Vec<usize> = self.still_out().collect();
        let all_serve = out.is_empty();
        if let Some(checker) = &mut self.checker {
            checker.all_serve(self.now, all_serve, &out, took);
            checker.expect_first_choice = all_serve;
        }
        // Every route is asked a few times; ramps are over by then.
        let settle = self.now + crate::sim::verify::settle(&self.setup.policy);
        if !self.until(settle, tell, |_| false) {
            return false;
        }
        if let Some(checker) = &mut self.checker {
            checker.first_choice_now = checker.expect_first_choice;
        }
        let asked = self.next_request;
        if !self.until(settle + Duration::from_secs(600), tell, |run| run.next_request >= asked + 40) {
            return false;
        }
        self.coming = None;
        let longest = self.setup.policy.routes.iter().map(|r| r.deadline).max().unwrap_or_default();
        let drained = self.now + longest + Duration::from_secs(600);
        self.until(drained, tell, |run| run.asked.len() == 0 && run.flights.len() == 0)
    }

    /// Targets of routes that do not serve.
    fn still_out(&self) -> impl Iterator<Item = usize> {
        (0..self.serving.len()).filter(|t| self.used[*t] && !self.serving[*t])
    }

    /// Goes on until this time, or until `enough`. False: asked to stop.
    fn until(&mut self, end: Ts, tell: &mut dyn FnMut(Progress) -> bool, enough: impl Fn(&Run<'a, C>) -> bool) -> bool {
        // Turns of this loop, not steps: edges of outages are none, and many targets have many.
        let (every, mut turns) = (tell_every(self.setup.policy.targets.len()), 0u64);
        while !enough(self) {
            let edge = self.world.next_edge();
            let event = self.heap.peek().map_or(Ts::FAR, |Reverse((at, ..))| *at);
            let tick = self.core.poll_timeout().unwrap_or(Ts::FAR);
            let arrival = self.coming.map_or(Ts::FAR, |c| c.at);
            let next = edge.min(event).min(tick).min(arrival);
            if next > end {
                self.now = end;
                return true;
            }
            if next > self.now {
                (self.now, self.still) = (next, 0);
            } else {
                self.still += 1;
                if self.still > SPIN {
                    if let Some(checker) = &mut self.checker {
                        checker.violated(self.now, "time goes on", "the core spins at one moment".to_owned());
                    }
                    return true;
                }
            }
            if edge == next {
                let flip = self.world.flip();
                self.flipped(&flip);
            } else if event == next {
                self.event();
            } else if tick == next {
                self.input(Input::Tick);
            } else {
                self.arrive();
            }
            turns += 1;
            if (turns - 1).is_multiple_of(every) {
                let share = self.now.since(Ts::ZERO).as_secs_f64() / self.setup.span.as_secs_f64().max(1e-9);
                if !tell(Progress { share: share.min(1.0), requests: self.next_request - 1 }) {
                    return false;
                }
            }
        }
        true
    }

    fn push(&mut self, at: Ts, what: What) {
        self.seq += 1;
        self.heap.push(Reverse((at.max(self.now), self.seq, what)));
    }

    fn plan_arrival(&mut self) {
        let used = || (0..self.serving.len()).filter(|t| self.used[*t]);
        let nobody_serves = !used().any(|t| self.serving[t]);
        let somebody_is_up = used().any(|t| !self.world.is_down(t));
        let restless = nobody_serves && somebody_is_up;
        // The end of the time that counts is an edge too: weights add up to it.
        let end = Ts::ZERO + self.setup.span;
        let edge = self.world.next_edge();
        let edge = if self.now < end { edge.min(end) } else { edge };
        self.coming = Some(self.arrivals.next(edge, restless));
    }

    fn arrive(&mut self) {
        let Some(coming) = self.coming.take() else { return };
        let id = self.next_request;
        self.next_request += 1;
        let facts = self.classes[coming.class].facts.clone();
        let (route, stream) = (self.setup.policy.route(facts.route), facts.stream);
        let luck = self.world.alone();
        for target in self.figures.legal(coming.class).iter().copied() {
            let within = self.setup.useful_within.unwrap_or(route.deadline);
            let alone = self.world.would_answer(&luck, target, self.now, stream, within);
            self.figures.alone(target, coming.weight_s, alone);
        }
        self.figures.recovery.started(id, self.now);
        let asked = Asked {
            coming,
            dials: 0,
            failed_dials: 0,
            first: None,
            delivered: None,
            replied: None,
            whole: None,
            gone: false,
            degraded: false,
        };
        self.asked.insert(id, asked);
        if let Some(after) = coming.leaves_after {
            self.push(self.now + after, What::Leaves(id));
        }
        if let Some(checker) = &mut self.checker {
            checker.arrive(self.now, id, coming.class);
        }
        self.input(Input::Arrive { request: RequestId(id), facts });
        self.plan_arrival();
    }

    /// An outage has begun or ended.
    fn flipped(&mut self, flip: &Flip) {
        self.arrivals.look_closer(self.now);
        self.figures.flip(self.now, &self.world);
        for (target, look) in &flip.down {
            let stand_in = self.figures.has_stand_in(*target, &self.world);
            self.figures.recovery.down(self.now, *target, stand_in, self.serving[*target]);
            self.cut(*target, *look);
        }
        for target in &flip.up {
            self.figures.recovery.up(self.now, *target);
        }
        let mut used = (0..self.serving.len()).filter(|t| self.used[*t]).peekable();
        let dark = used.peek().is_some() && used.all(|t| self.world.is_down(t));
        self.figures.recovery.dark(dark);
        if !flip.down.is_empty() {
            self.figures.lost_stand_ins(&self.world);
        }
    }

    /// What an outage does to dials under way.
    fn cut(&mut self, target: usize, look: Look) {
        let now = self.now;
        let silent = matches!(look, Look::Silence | Look::NoConnect);
        let mut again = Vec::new();
        for (id, flight) in self.flights.iter_mut().filter(|(_, f)| f.target == target) {
            flight.plan += 1;
            if !flight.connected {
                flight.fate.connected = None;
            }
            if !flight.committed {
                flight.fate.first_token = None;
            }
            flight.fate.end = match (silent, flight.committed) {
                (false, _) => End::Fails(now, Failure::Reset),
                (true, true) => End::Fails(now + flight.idle, Failure::IdleTimeout),
                (true, false) => End::Never,
            };
            again.push(id);
        }
        for id in again {
            self.schedule(id);
        }
    }

    /// Puts the next event of a dial on the heap.
    fn schedule(&mut self, id: u64) {
        let Some(flight) = self.flights.get(id) else { return };
        let fate = &flight.fate;
        let at = match (flight.connected, fate.connected, flight.committed, fate.first_token) {
            (false, Some(at), ..) | (_, _, false, Some(at)) => at,
            _ => match &fate.end {
                End::Answer(at) | End::Fails(at, _) => *at,
                End::Never => return,
            },
        };
        let plan = flight.plan;
        self.push(at, What::Attempt(id, plan));
    }

    fn event(&mut self) {
        let Some(Reverse((_, _, what))) = self.heap.pop() else { return };
        match what {
            What::Leaves(id) => {
                if let Some(asked) = self.asked.get_mut(id).filter(|a| a.whole.is_none()) {
                    asked.gone = true;
                    self.input(Input::ClientGone { request: RequestId(id), stalled: false });
                }
            }
            What::Attempt(id, plan) => {
                let Some(flight) = self.flights.get_mut(id).filter(|f| f.plan == plan) else { return };
                let attempt = AttemptId(id);
                if !flight.connected && flight.fate.connected.is_some() {
                    flight.connected = true;
                    self.schedule(id);
                    return self.input(Input::Connected { attempt });
                }
                if !flight.committed && flight.fate.first_token.is_some() {
                    flight.committed = true;
                    let (probe, stream) = (flight.request.is_none(), flight.stream);
                    self.schedule(id);
                    if probe {
                        return self.input(Input::FirstToken { attempt, sign: Sign::Life });
                    }
                    if stream {
                        return self.input(Input::Committed { attempt });
                    }
                    return;
                }
                let Some(flight) = self.over(id) else { return };
                let asked = flight.request.and_then(|id| self.asked.get_mut(id));
                match flight.fate.end {
                    End::Answer(_) => {
                        if let Some(asked) = asked {
                            asked.whole = Some(flight.target);
                        }
                        self.input(Input::Ended { attempt, usage: None });
                    }
                    End::Fails(_, failure) => {
                        if matches!(&failure, Failure::Status(s) if s.status == 429) {
                            self.figures.rate_limited += 1;
                        }
                        if let Some(asked) = asked {
                            asked.failed_dials += 1;
                            self.arrivals.look_closer(self.now);
                        }
                        self.input(Input::Broke { attempt, failure, reused: false });
                    }
                    End::Never => {}
                }
            }
        }
    }

    /// A dial is over.
    fn over(&mut self, id: u64) -> Option<Flight> {
        let flight = self.flights.remove(id)?;
        self.open_at[flight.target] -= 1;
        Some(flight)
    }
}
