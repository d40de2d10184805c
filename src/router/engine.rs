//! The machine: inputs move requests and targets, outputs say what the driver must do.
//!
//! Evidence first: an input about an attempt is heard before limits that ran out at the same moment are applied, so that an
//! answer which came in time is never thrown away because a tick was late. A new request is the other way round: what is
//! overdue is settled first, so that it sees the targets as they are. What time alone does to targets comes before both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::admission::Rooms;
use super::availability::Board;
use super::decision::{Outcome, Snapshot, TargetSnapshot};
use super::io::{AttemptId, Facts, HandoffCause, Input, Machine, Output, Reply, RequestId, Withhold};
use super::ledger::{Arrival, CallState, Ledger};
use super::outcome::Left;
use super::refuse;
use super::request::{Attempt, How, Owner, Phase, Request, timed_out};
use super::select::{Ask, Choice, Plan, choose, expected_tokens};
use super::timers::{Alarm, Timers};
use crate::policy::{Policy, TargetId};
use crate::units::{Rng, Ts};

/// Why a repeated turn goes to a human.
pub(super) const REPEATED: &str = "this turn was answered before, with a call that must not be made twice";

/// The core. See [`super::io`] for its contract.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) policy: Arc<Policy>,
    pub(super) rng: Rng,
    pub(super) board: Board,
    pub(super) attempts: BTreeMap<AttemptId, Attempt>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) rooms: Rooms,
    pub(super) ledger: Ledger,
    pub(super) timers: Timers,
    pub(super) out: VecDeque<Output>,
    /// Something may have become free since the rooms were last looked at.
    pub(super) room_made: bool,
    pub(super) emergency: bool,
    ledger_writable: bool,
    /// Targets that a probe must look at as soon as one may.
    pub(super) suspects: BTreeSet<TargetId>,
    hedges: bool,
    pub(super) observes: bool,
    next_attempt: u64,
}

impl Engine {
    /// A core for this policy. The same seed and inputs give the same outputs.
    #[must_use]
    pub fn new(policy: Arc<Policy>, seed: u64) -> Engine {
        Engine {
            rng: Rng::new(seed),
            board: Board::new(Arc::clone(&policy)),
            attempts: BTreeMap::new(),
            requests: BTreeMap::new(),
            rooms: Rooms::new(policy.routes.len()),
            ledger: Ledger::default(),
            timers: Timers::default(),
            out: VecDeque::new(),
            room_made: false,
            emergency: false,
            ledger_writable: true,
            suspects: BTreeSet::new(),
            hedges: true,
            observes: false,
            next_attempt: 1,
            policy,
        }
    }

    /// The same core for a driver that runs one attempt per request at a time.
    #[must_use]
    pub fn without_hedges(mut self) -> Engine {
        self.hedges = false;
        self
    }

    /// Another policy holds from now on: new requests go by it, those under way end by the one they began with, and what is
    /// known of the targets that both have stays known. Its ids must continue this one's (see [`crate::policy::succeed`]).
    pub fn succeed(&mut self, now: Ts, policy: Arc<Policy>) {
        self.wake_targets(now);
        self.board.succeed(now, Arc::clone(&policy));
        self.rooms.make(policy.routes.len());
        self.policy = policy;
        self.room_made = true;
        self.settle(now);
    }

    /// What every target can do now, and what is under way.
    #[must_use]
    pub fn snapshot(&self, now: Ts) -> Snapshot {
        let target = |id: TargetId, name: &str| {
            let (score, ramp_step) = self.board.health(id);
            TargetSnapshot {
                target: id,
                name: name.to_owned(),
                availability: self.board.availability(now, id),
                counters: self.board.counters(id),
                score: score.map(|s| s.total),
                error_rate: score.map(|s| s.error_rate),
                latency_part: score.map(|s| s.latency_part),
                ramp_step,
                free_slots: self.board.free_slots(id),
            }
        };
        // What is retired is told of as long as anything is under way there.
        let told = |id: &TargetId| !self.policy.retired.targets.contains(id) || self.board.in_flight(*id) > 0;
        let committed = self.requests.values().filter(|r| matches!(r.phase, Phase::Committed(_)));
        Snapshot {
            targets: self.policy.targets.iter().filter(|t| told(&t.id)).map(|t| target(t.id, &t.name)).collect(),
            requests_open: self.requests.len(),
            requests_committed: committed.count(),
            attempts_in_flight: self.attempts.len(),
            queued: self.policy.routes.iter().map(|route| self.rooms.depth(route.id)).collect(),
            unconfirmed_calls: self.ledger.unconfirmed().count(),
            emergency: self.emergency,
        }
    }

    /// True if no request is open and no attempt or probe is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.attempts.is_empty()
    }

    /// Requests open, and attempts and probes under way: cheap enough to be asked after every input.
    #[must_use]
    pub fn open(&self) -> (usize, usize) {
        (self.requests.len(), self.attempts.len())
    }

    pub(super) fn new_attempt(&mut self) -> AttemptId {
        let id = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        id
    }

    /// Sets the alarm of an attempt to its next limit.
    pub(super) fn arm(&mut self, id: AttemptId) {
        let at = self.attempts.get(&id).and_then(Attempt::limit).map(|(at, ..)| at);
        self.timers.set(Alarm::Attempt(id), at);
    }

    /// Takes an attempt out: whatever happens next, its place is free.
    pub(super) fn take_attempt(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id)?;
        self.timers.set(Alarm::Attempt(id), None);
        self.board.release(attempt.target);
        self.room_made = true;
        if let Owner::Request(request) = attempt.owner
            && let Some(request) = self.requests.get_mut(&request)
        {
            request.mark(id, &attempt);
        }
        Some(attempt)
    }

    fn arrive(&mut self, now: Ts, id: RequestId, facts: Facts) {
        if self.requests.contains_key(&id) || usize::from(facts.route.0) >= self.policy.routes.len() {
            return;
        }
        let route = Arc::clone(self.policy.route(facts.route));
        let above = route.context.handoff_above_tokens;
        let too_long = above.is_some_and(|above| facts.body_bytes / 3 > above);
        let (mut arrival, confirmed) = match &facts.conversation {
            Some(said) => self.ledger.arrive(now, facts.route, said, self.policy.blocks_on_ledger_loss),
            None => (Arrival::Go(Withhold::Nothing), Vec::new()),
        };
        self.calls_are(confirmed, CallState::Confirmed);
        if let (Arrival::Go(withhold), Some(_), false) = (&mut arrival, &facts.conversation, self.ledger_writable) {
            *withhold = (*withhold).max(Withhold::Risky);
        }
        let expired = facts.expired;
        let mut request = Request::new(facts, Arc::clone(&self.policy), route, now);
        if let Arrival::Go(withhold) = &arrival {
            request.withhold = if expired { Withhold::Everything } else { *withhold };
        }
        self.requests.insert(id, request);
        match arrival {
            Arrival::Repeat(calls) => self.reply(now, id, Reply::FromLedger { calls }, Outcome::FromLedger),
            Arrival::Handoff(cause) => {
                self.hand_off(now, id, cause, REPEATED.to_owned());
            }
            Arrival::Go(_) if too_long => {
                let why = "the conversation is longer than the route lets a model answer".to_owned();
                self.hand_off(now, id, HandoffCause::LongConversation, why);
            }
            Arrival::Go(_) if self.given_up(id) => self.give_up(now, id),
            Arrival::Go(_) => self.advance(now, id, false),
        }
    }

    pub(super) fn hand_off(&mut self, now: Ts, id: RequestId, cause: HandoffCause, why: String) {
        let collect = match (cause, self.requests.get(&id)) {
            (HandoffCause::Intent, Some(request)) => request.route.collect.clone(),
            _ => Vec::new(),
        };
        self.reply(now, id, Reply::Handoff { cause, why, collect }, Outcome::Handoff);
    }

    /// What is asked for a request now. Borrows all of the core but its random numbers.
    pub(super) fn ask<'a>(policy: &'a Policy, board: &'a Board, request: &'a Request, now: Ts, hedge: bool) -> Ask<'a> {
        Ask {
            policy,
            route: &request.route,
            facts: &request.facts,
            board,
            arrived: request.arrived,
            now,
            dialled: &request.dialled,
            hedge,
        }
    }

    /// Finds the next target for a request that has none, or the reply if there is none.
    pub(super) fn advance(&mut self, now: Ts, id: RequestId, paused: bool) {
        if self.observes {
            return self.observe(now, id);
        }
        let Some(request) = self.requests.get(&id) else { return };
        let ask = Engine::ask(&self.policy, &self.board, request, now, false);
        match choose(&ask, paused, &mut self.rng) {
            Choice::Dial(plan) => self.dial(now, id, &plan, How::Next),
            Choice::Pause(pause) => {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.phase = Phase::Pausing;
                }
                self.timers.set(Alarm::Request(id), Some(now + pause));
            }
            Choice::Full(skips, room_at) => self.wait(now, id, &skips, room_at),
            Choice::Nobody(skips) => self.nobody(now, id, &skips),
        }
    }

    /// Nobody can answer it: the honest reply.
    pub(super) fn nobody(&mut self, now: Ts, id: RequestId, skips: &[(TargetId, super::skip::Skip)]) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let (reply, outcome) = refuse::reply(&request.policy, request, skips, now);
        request.pass_over(now, skips);
        self.reply(now, id, reply, outcome);
    }

    pub(super) fn dial(&mut self, now: Ts, id: RequestId, plan: &Plan, how: How) {
        let attempt_id = self.new_attempt();
        let emergency = self.in_emergency(id);
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.begin(now, attempt_id, plan, how);
        let route = request.route.id;
        for (target, share, went) in &plan.deals {
            self.board.deal(route, *target, *share, *went);
        }
        let fresh = how == How::Fresh;
        let tokens = expected_tokens(&self.board, &request.facts, plan.target);
        let live = self.board.live_ready(now, plan.target);
        let began = self.board.begin(now, plan.target, tokens);
        if live {
            self.board.live_began(now, plan.target, attempt_id);
        }
        let (stream, withhold) = (request.facts.stream, request.withhold);
        let cap = request.route.on_capacity_exhausted.as_ref().and_then(|lists| lists.max_output_tokens);
        let max_output_tokens = cap.filter(|_| emergency);
        let hedge_at = request.route.hedge_after.filter(|_| self.hedges && how != How::Hedge);
        let hedge_at = hedge_at.filter(|_| !request.facts.risky_tools).map(|after| now + after);
        let mut attempt = Attempt::new(Owner::Request(id), plan.target, began, plan.grant, stream, fresh);
        attempt.live = live;
        self.attempts.insert(attempt_id, attempt);
        self.arm(attempt_id);
        self.timers.set(Alarm::Request(id), None);
        if how != How::Hedge {
            self.timers.set(Alarm::Hedge(id), hedge_at);
        }
        self.out.push_back(Output::Dial {
            request: id,
            attempt: attempt_id,
            target: plan.target,
            limits: plan.grant.limits,
            fresh,
            degraded: plan.degraded,
            hedge: how == How::Hedge,
            max_output_tokens,
            mask: plan.mask,
            withhold,
        });
    }

    /// The one terminal reply of a request that nobody answers, and its end.
    pub(super) fn reply(&mut self, now: Ts, id: RequestId, reply: Reply, outcome: Outcome) {
        let attempts = self.requests.get(&id).map_or(0, Request::dials);
        if let (Reply::Handoff { cause, .. }, Some(request)) = (&reply, self.requests.get_mut(&id)) {
            request.handoff = Some(*cause);
        }
        self.out.push_back(Output::Reply { request: id, reply, attempts });
        self.done(now, id, outcome);
    }

    pub(super) fn done(&mut self, now: Ts, id: RequestId, outcome: Outcome) {
        self.timers.set(Alarm::Request(id), None);
        self.timers.set(Alarm::Hedge(id), None);
        self.leave_room(now, id);
        if let Some(request) = self.requests.remove(&id) {
            let record = Box::new(request.record(&request.policy, now, outcome));
            self.out.push_back(Output::Done { request: id, record });
        }
    }

    /// Tells what has changed at targets, and sets their alarms anew.
    fn tell(&mut self, now: Ts) {
        let (changed, notes) = self.board.settle(now);
        self.room_made |= !changed.is_empty();
        self.out.extend(notes.into_iter().map(Output::Note));
        for id in changed {
            self.timers.set(Alarm::Target(id), self.board.wake(now, id));
        }
    }

    /// Targets whose time has come: a cooldown is over, or a probe is due. Before anything else, so that nobody is sent to a
    /// target that was last told to be out.
    fn wake_targets(&mut self, now: Ts) {
        while let Some(id) = self.timers.pop_due_target(now) {
            self.target_woke(now, id);
        }
        self.tell(now);
    }

    /// Applies everything that is due, until nothing is.
    fn settle(&mut self, now: Ts) {
        loop {
            self.tell(now);
            self.fill_rooms(now);
            let Some(alarm) = self.timers.pop_due(now) else {
                if self.look_at_suspects(now) {
                    continue;
                }
                return;
            };
            match alarm {
                Alarm::Attempt(id) => {
                    let Some((_, failure, counts)) = self.attempts.get(&id).and_then(Attempt::limit) else { continue };
                    self.out.push_back(Output::Cancel { attempt: id });
                    self.failed(now, id, timed_out(&failure, counts), false);
                }
                Alarm::Request(id) => self.request_woke(now, id),
                Alarm::Hedge(id) if self.observes => self.overdue(now, id),
                Alarm::Hedge(id) => self.hedge(now, id),
                Alarm::Room => self.room_made = true,
                Alarm::Target(id) => self.target_woke(now, id),
            }
        }
    }
}

impl Machine for Engine {
    fn handle(&mut self, now: Ts, input: Input) {
        self.wake_targets(now);
        match input {
            Input::Arrive { request, facts } => {
                self.settle(now);
                self.arrive(now, request, facts);
            }
            Input::Connected { attempt } => {
                if let Some(state) = self.attempts.get_mut(&attempt) {
                    state.connect(now);
                    self.arm(attempt);
                }
            }
            Input::FirstToken { attempt, sign } => {
                if let Some(state) = self.attempts.get_mut(&attempt) {
                    state.sign(now, sign);
                    self.arm(attempt);
                }
            }
            Input::Committed { attempt } => self.committed(now, attempt),
            Input::Ended { attempt, usage } => self.ended(now, attempt, usage),
            Input::Broke { attempt, failure, reused } => self.broke(now, attempt, &failure, reused),
            Input::ClientGone { request, stalled: false } => self.left(now, request, Left::Client),
            Input::ClientGone { request, stalled: true } => self.left(now, request, Left::Stalled),
            Input::Stopped { request } => self.left(now, request, Left::Stopped),
            Input::Calls { attempt, calls } => self.calls(now, attempt, &calls),
            Input::Evidence { records } => {
                self.board.set_evidence(records);
                self.room_made = true;
            }
            Input::Adapters { targets } => {
                self.board.set_adapters(targets);
                self.room_made = true;
            }
            Input::Ledger { conversations } => self.remember(now, conversations),
            Input::LedgerWritable { writable } => self.ledger_writable = writable,
            Input::Bench { target, out, until } => self.board.bench(target, out.then(|| until.unwrap_or(Ts::FAR))),
            Input::Suspect { target } => drop(self.suspects.insert(target)),
            Input::Reread => self.succeed(now, Arc::clone(&self.policy)),
            Input::Emergency { on } => self.emergency = on,
            Input::Tick => {}
        }
        self.settle(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Ts> {
        self.timers.next()
    }
}
