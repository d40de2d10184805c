//! The machine: inputs move requests and targets, outputs say what the driver must do.
//!
//! Evidence first: an input about an attempt is heard before limits that ran out at the same moment are applied, so that an
//! answer which came in time is never thrown away because a tick was late. A new request is the other way round: what is
//! overdue is settled first, so that it sees the targets as they are. What time alone does to targets comes before both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::availability::Board;
use super::classify::{Class, Verdict, classify};
use super::decision::{Note, Outcome, Snapshot, TargetSnapshot};
use super::io::{AttemptId, Facts, Failure, Input, Machine, Output, Reply, RequestId};
use super::refuse;
use super::request::{Attempt, Owner, Phase, Request, timed_out};
use super::select::{Ask, Choice, Plan, choose};
use super::timers::{Alarm, Timers};
use crate::policy::{Policy, TargetId};
use crate::units::{Rng, Ts};

/// The core. See [`super::io`] for its contract.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) policy: Arc<Policy>,
    pub(super) rng: Rng,
    pub(super) board: Board,
    pub(super) attempts: BTreeMap<AttemptId, Attempt>,
    pub(super) timers: Timers,
    pub(super) out: VecDeque<Output>,
    requests: BTreeMap<RequestId, Request>,
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
            timers: Timers::default(),
            out: VecDeque::new(),
            requests: BTreeMap::new(),
            next_attempt: 1,
            policy,
        }
    }

    /// What every target can do now, and what is under way.
    #[must_use]
    pub fn snapshot(&self, now: Ts) -> Snapshot {
        let target = |id: TargetId, name: &str| TargetSnapshot {
            target: id,
            name: name.to_owned(),
            availability: self.board.availability(now, id),
            counters: self.board.counters(id),
        };
        let committed = self.requests.values().filter(|r| matches!(r.phase, Phase::Committed(_)));
        Snapshot {
            targets: self.policy.targets.iter().map(|t| target(t.id, &t.name)).collect(),
            requests_open: self.requests.len(),
            requests_committed: committed.count(),
            attempts_in_flight: self.attempts.len(),
        }
    }

    /// True if no request is open and no attempt or probe is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.attempts.is_empty()
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
        if let Owner::Request(request) = attempt.owner
            && let Some(request) = self.requests.get_mut(&request)
        {
            request.mark(&attempt);
        }
        Some(attempt)
    }

    fn arrive(&mut self, now: Ts, id: RequestId, facts: Facts) {
        if self.requests.contains_key(&id) {
            return;
        }
        let route = Arc::clone(self.policy.route(facts.route));
        self.requests.insert(id, Request::new(facts, route, now));
        self.advance(now, id, false);
    }

    /// Finds the next target for a request that has none, or the reply if there is none.
    fn advance(&mut self, now: Ts, id: RequestId, paused: bool) {
        let Some(request) = self.requests.get(&id) else { return };
        let ask = Ask {
            policy: &self.policy,
            route: &request.route,
            facts: &request.facts,
            board: &self.board,
            arrived: request.arrived,
            now,
            dialled: &request.dialled,
        };
        match choose(&ask, paused, &mut self.rng) {
            Choice::Dial(plan) => self.dial(now, id, &plan, false),
            Choice::Pause(pause) => {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.phase = Phase::Pausing;
                }
                self.timers.set(Alarm::Request(id), Some(now + pause));
            }
            Choice::Nobody(skips) => {
                let (reply, outcome) = refuse::reply(&self.policy, request, &skips, now);
                if let Some(request) = self.requests.get_mut(&id) {
                    request.pass_over(now, &skips);
                }
                self.reply(now, id, reply, outcome);
            }
        }
    }

    fn dial(&mut self, now: Ts, id: RequestId, plan: &Plan, fresh: bool) {
        let attempt_id = self.new_attempt();
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.begin(now, attempt_id, plan, fresh);
        let (stream, degraded) = (request.facts.stream, plan.degraded);
        let began = self.board.begin(now, plan.target);
        let attempt = Attempt::new(Owner::Request(id), plan.target, began, plan.grant, stream, fresh);
        self.attempts.insert(attempt_id, attempt);
        self.arm(attempt_id);
        self.out.push_back(Output::Dial {
            request: id,
            attempt: attempt_id,
            target: plan.target,
            limits: plan.grant.limits,
            fresh,
            degraded,
        });
    }

    /// The one terminal reply of a request that nobody answers, and its end.
    fn reply(&mut self, now: Ts, id: RequestId, reply: Reply, outcome: Outcome) {
        let attempts = self.requests.get(&id).map_or(0, Request::dials);
        self.out.push_back(Output::Reply { request: id, reply, attempts });
        self.done(now, id, outcome);
    }

    fn done(&mut self, now: Ts, id: RequestId, outcome: Outcome) {
        self.timers.set(Alarm::Request(id), None);
        if let Some(request) = self.requests.remove(&id) {
            let record = Box::new(request.record(&self.policy, now, outcome));
            self.out.push_back(Output::Done { request: id, record });
        }
    }

    /// The one terminal delivery of a request.
    fn deliver(&mut self, id: RequestId, attempt: AttemptId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.phase = Phase::Committed(attempt);
        let (attempts, degraded) = (request.dials(), request.degraded);
        self.out.push_back(Output::Deliver { request: id, attempt, attempts, degraded });
    }

    fn committed(&mut self, now: Ts, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let first = attempt.committed.is_none();
        let owner = attempt.owner;
        if let Owner::Request(request) = owner {
            attempt.commit(now);
            if first {
                self.deliver(request, id);
            }
        } else {
            attempt.sign(now, super::io::Sign::Life);
        }
        self.arm(id);
    }

    fn ended(&mut self, now: Ts, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let first = attempt.committed.is_none();
        attempt.commit(now);
        let Some(attempt) = self.take_attempt(id) else { return };
        let Owner::Request(request) = attempt.owner else {
            return self.probe_passed(now, id, &attempt);
        };
        self.board.answered(now, attempt.target, attempt.began);
        if first {
            self.deliver(request, id);
        }
        let Some(state) = self.requests.get_mut(&request) else { return };
        state.end(now, Class::Success, "ok".into(), false);
        let outcome = if state.degraded { Outcome::Degraded } else { Outcome::Answered };
        self.done(now, request, outcome);
    }

    fn broke(&mut self, now: Ts, id: AttemptId, failure: &Failure, reused: bool) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let stale = reused && !attempt.fresh && attempt.first_token.is_none() && attempt.committed.is_none();
        let mut verdict = classify(failure);
        let stale = stale && attempt.owner != Owner::Probe && verdict.class == Class::Provider && !verdict.silent;
        if stale {
            verdict = Verdict { counted: false, reason: "reused_connection".into(), ..verdict };
        }
        self.failed(now, id, verdict, stale);
    }

    /// An attempt has failed, by report or by a limit.
    fn failed(&mut self, now: Ts, id: AttemptId, verdict: Verdict, stale: bool) {
        let Some(attempt) = self.take_attempt(id) else { return };
        self.out.push_back(Output::Note(Note::AttemptFailed {
            target: attempt.target,
            class: verdict.class,
            reason: verdict.reason.clone().into_owned(),
            probe: attempt.owner == Owner::Probe,
        }));
        let Owner::Request(request) = attempt.owner else {
            return self.probe_failed(now, id, &attempt, &verdict);
        };
        let benched = self.board.failed(now, attempt.target, attempt.began, request, &verdict, &mut self.rng);
        self.alert(attempt.target, &verdict, benched);
        let Some(state) = self.requests.get_mut(&request) else { return };
        state.end(now, verdict.class, verdict.reason, verdict.silent);
        if attempt.committed.is_some() {
            self.out.push_back(Output::Break { request, attempt: id, class: verdict.class });
            return self.done(now, request, Outcome::BrokenAfterCommit);
        }
        if verdict.class.returned_as_it_is() {
            return self.reply(now, request, Reply::AsItIs { attempt: id }, Outcome::ReturnedAsItIs);
        }
        if stale && let Some(plan) = self.fresh_plan(now, request, &attempt) {
            return self.dial(now, request, &plan, true);
        }
        self.advance(now, request, false);
    }

    /// The same target once more on a fresh connection, if dials, time and the target allow it. It counts as a dial: the
    /// provider may have seen the request, and `max_attempts` counts every dial.
    fn fresh_plan(&self, now: Ts, id: RequestId, attempt: &Attempt) -> Option<Plan> {
        let request = self.requests.get(&id)?;
        let ask = Ask {
            policy: &self.policy,
            route: &request.route,
            facts: &request.facts,
            board: &self.board,
            arrived: request.arrived,
            now,
            dialled: &request.dialled,
        };
        ask.fresh(attempt.target, request.degraded)
    }

    /// Tells people what they must look at.
    pub(super) fn alert(&mut self, target: TargetId, verdict: &Verdict, benched: bool) {
        let text = match verdict.class {
            Class::Account if benched => {
                "the account or credential is refused or used up; benched until a probe passes"
            }
            Class::Place if benched => "it refuses the place that requests come from; benched until a probe passes",
            Class::Mismatch => "it lacks something that a request needs and its policy entry promises",
            _ => return,
        };
        let reason = verdict.reason.clone().into_owned();
        let text = format!("{}: {text} ({reason})", crate::units::printable(&self.policy.target(target).name, 60));
        self.out.push_back(Output::Note(Note::Alert { target, reason, text }));
    }

    fn client_gone(&mut self, now: Ts, id: RequestId, stalled: bool) {
        let Some(request) = self.requests.get(&id) else { return };
        if let Phase::Trying(attempt_id) | Phase::Committed(attempt_id) = request.phase {
            // Who was silent past a limit is at fault, even if the client lost patience in the same moment.
            let overdue =
                self.attempts.get(&attempt_id).and_then(Attempt::limit).filter(|(at, ..)| *at <= now && !stalled);
            let left = Verdict::new(Class::ClientGone, if stalled { "client_stalled" } else { "client_gone" });
            let verdict = overdue.map_or(left, |(_, failure, counts)| timed_out(&failure, counts));
            if let Some(attempt) = self.take_attempt(attempt_id) {
                self.out.push_back(Output::Cancel { attempt: attempt_id });
                if verdict.class != Class::ClientGone {
                    self.board.failed(now, attempt.target, attempt.began, id, &verdict, &mut self.rng);
                }
            }
            if let Some(request) = self.requests.get_mut(&id) {
                request.end(now, verdict.class, verdict.reason, verdict.silent);
            }
        }
        self.done(now, id, Outcome::ClientGone);
    }

    /// Tells what has changed at targets, and sets their alarms anew.
    fn tell(&mut self, now: Ts) {
        let (changed, notes) = self.board.settle(now);
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
            let Some(alarm) = self.timers.pop_due(now) else { return };
            match alarm {
                Alarm::Attempt(id) => {
                    let Some((_, failure, counts)) = self.attempts.get(&id).and_then(Attempt::limit) else { continue };
                    self.out.push_back(Output::Cancel { attempt: id });
                    self.failed(now, id, timed_out(&failure, counts), false);
                }
                Alarm::Request(id) => self.advance(now, id, true),
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
            Input::Ended { attempt, usage: _ } => self.ended(now, attempt),
            Input::Broke { attempt, failure, reused } => self.broke(now, attempt, &failure, reused),
            Input::ClientGone { request, stalled } => self.client_gone(now, request, stalled),
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
