//! What the end of an attempt, or of the client's patience, does to its request.

use super::availability::{Kind, Whose};
use super::classify::{Class, UNWRITABLE, Verdict, classify};
use super::decision::{Note, Outcome};
use super::engine::Engine;
use super::io::{AttemptId, Failure, HandoffCause, Output, Reply, RequestId, Sign, Usage};
use super::request::{Attempt, How, Owner, Phase, timed_out};
use super::select::{Plan, expected_tokens};
use crate::policy::TargetId;
use crate::units::Ts;

impl Engine {
    pub(super) fn whose(&self, target: TargetId, request: RequestId) -> Option<Whose> {
        let route = self.requests.get(&request)?.route.id;
        Some(Whose { target, route, request })
    }

    /// The one terminal delivery of a request. An attempt beside it has lost.
    fn deliver(&mut self, now: Ts, id: RequestId, attempt: AttemptId) {
        if let Some(other) = self.requests.get(&id).and_then(|r| r.other(attempt)) {
            self.cancel_neutrally(now, id, other, "hedge_lost");
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.commit(attempt);
        let (attempts, degraded) = (request.dials(), request.degraded);
        self.out.push_back(Output::Deliver { request: id, attempt, attempts, degraded });
    }

    /// Stops an attempt that nobody needs any more. It says nothing about its target.
    pub(super) fn cancel_neutrally(&mut self, now: Ts, request: RequestId, id: AttemptId, why: &'static str) {
        let Some(attempt) = self.take_attempt(id) else { return };
        self.out.push_back(Output::Cancel { attempt: id });
        if attempt.live {
            self.board.live_released(attempt.target, id);
        }
        if why == "hedge_lost" {
            self.out.push_back(Output::Note(Note::HedgeLost { attempt: id, target: attempt.target }));
        }
        if let Some(state) = self.requests.get_mut(&request) {
            state.end(id, now, Class::ClientGone, why.into(), false);
        }
    }

    pub(super) fn committed(&mut self, now: Ts, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let first = attempt.committed.is_none();
        let owner = attempt.owner;
        if let Owner::Request(request) = owner {
            attempt.commit(now);
            if first {
                self.deliver(now, request, id);
            }
        } else {
            attempt.sign(now, Sign::Life);
        }
        self.arm(id);
    }

    pub(super) fn ended(&mut self, now: Ts, id: AttemptId, usage: Option<Usage>) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let first = attempt.committed.is_none();
        attempt.commit(now);
        let Some(attempt) = self.take_attempt(id) else { return };
        let Owner::Request(request) = attempt.owner else {
            return self.probe_passed(now, id, &attempt);
        };
        if let Some(whose) = self.whose(attempt.target, request).filter(|_| !attempt.overdue) {
            let kind = if attempt.stream { Kind::Stream } else { Kind::Whole };
            let until = if attempt.stream { attempt.first_token.unwrap_or(now) } else { now };
            self.board.answered(now, whose, attempt.began, kind, until.since(attempt.began.at));
        }
        if attempt.live {
            self.board.probe_passed(now, attempt.target, attempt.began, id);
        }
        self.spent(now, request, attempt.target, usage);
        if first {
            self.deliver(now, request, id);
        }
        let Some(state) = self.requests.get_mut(&request) else { return };
        state.end(id, now, Class::Success, "ok".into(), false);
        let outcome = if state.degraded { Outcome::Degraded } else { Outcome::Answered };
        self.done(now, request, outcome);
    }

    /// The target has counted more tokens than were expected: they count in its limit.
    fn spent(&mut self, now: Ts, request: RequestId, target: TargetId, usage: Option<Usage>) {
        let (Some(usage), Some(request)) = (usage, self.requests.get(&request)) else { return };
        let counted = usage.input_tokens.saturating_add(usage.output_tokens);
        let more = counted.saturating_sub(expected_tokens(&self.board, &request.facts, target));
        self.board.counted_tokens(target, request.facts.body_bytes, usage.input_tokens);
        if more > 0 {
            self.board.spent_more(now, target, more);
        }
    }

    pub(super) fn broke(&mut self, now: Ts, id: AttemptId, failure: &Failure, reused: bool) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.refused = matches!(failure, Failure::Status(told) if (400..600).contains(&told.status));
        let stale = reused && !attempt.fresh && attempt.first_token.is_none() && attempt.committed.is_none();
        let mut verdict = classify(failure);
        let stale = stale && attempt.owner != Owner::Probe && verdict.class == Class::Provider && !verdict.silent;
        if stale {
            verdict = Verdict { counted: false, reason: "reused_connection".into(), ..verdict };
        }
        if attempt.owner == Owner::Probe
            && let Failure::Quality(why) = failure
        {
            return self.probe_not_good(now, id, &verdict, why);
        }
        self.failed(now, id, verdict, stale);
    }

    /// An attempt has failed, by report or by a limit.
    pub(super) fn failed(&mut self, now: Ts, id: AttemptId, verdict: Verdict, stale: bool) {
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
        let Some(whose) = self.whose(attempt.target, request) else { return };
        // What says nothing about the provider gives the place of the probe back; the rest of it is heard as ever.
        let neutral = stale
            || matches!(
                verdict.class,
                Class::Caller | Class::PolicyBlock | Class::TooLong | Class::Mismatch | Class::ClientGone
            );
        if attempt.live && neutral {
            self.board.live_released(attempt.target, id);
        }
        // Where failover is observed it has counted when it was overdue.
        let benched = if attempt.overdue {
            false
        } else if attempt.live && !neutral {
            self.board.probe_failed(now, attempt.target, attempt.began, id, &verdict, &mut self.rng)
        } else {
            self.board.failed(now, whose, attempt.began, &verdict, &mut self.rng)
        };
        self.alert(attempt.target, &verdict, benched);
        let Some(state) = self.requests.get_mut(&request) else { return };
        let other = state.other(id);
        let mine = state.calls == Some(id);
        let unwritable = mine && verdict.reason == UNWRITABLE;
        let reason = verdict.reason.clone();
        state.end(id, now, verdict.class, verdict.reason, verdict.silent);
        // Nothing of the calls has reached the client.
        if mine && (unwritable || attempt.committed.is_none()) {
            self.retract(request);
        }
        if attempt.committed.is_some() {
            self.out.push_back(Output::Break { request, attempt: id, class: verdict.class });
            return self.done(now, request, Outcome::BrokenAfterCommit);
        }
        if unwritable {
            if let Some(other) = other {
                self.cancel_neutrally(now, request, other, "not_needed");
            }
            let why = "its answer calls a tool that changes something, and the ledger cannot be written to".to_owned();
            return self.hand_off(now, request, HandoffCause::LedgerUnwritable, why);
        }
        if verdict.class.returned_as_it_is() {
            if let Some(other) = other {
                self.cancel_neutrally(now, request, other, "not_needed");
            }
            return self.reply(now, request, Reply::AsItIs { attempt: id }, Outcome::ReturnedAsItIs);
        }
        if let Some(other) = other {
            // The one beside it goes on.
            if let Some(state) = self.requests.get_mut(&request) {
                state.phase = Phase::Trying(other, None);
            }
            return;
        }
        if self.observes {
            if !(stale && self.ask_first_again(now, request)) {
                self.failed_observed(now, request, (id, attempt.target), reason, attempt.refused);
            }
            return;
        }
        if stale && let Some(plan) = self.fresh_plan(now, request, &attempt) {
            return self.dial(now, request, &plan, How::Fresh);
        }
        self.advance(now, request, false);
    }

    /// The same target once more on a fresh connection, if dials, time and the target allow it. It counts as a dial: the
    /// provider may have seen the request, and `max_attempts` counts every dial.
    fn fresh_plan(&self, now: Ts, id: RequestId, attempt: &Attempt) -> Option<Plan> {
        let request = self.requests.get(&id)?;
        Engine::ask(&self.policy, &self.board, request, now, false).fresh(attempt.target)
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

    pub(super) fn left(&mut self, now: Ts, id: RequestId, why: Left) {
        let Some(request) = self.requests.get(&id) else { return };
        let committed = matches!(request.phase, Phase::Committed(_));
        let under_way = match request.phase {
            Phase::Trying(first, second) => [Some(first), second],
            Phase::Committed(attempt) => [Some(attempt), None],
            Phase::Queued(_) | Phase::Pausing => [None, None],
        };
        for attempt_id in under_way.into_iter().flatten() {
            // Who was silent past a limit is at fault, even if the client lost patience in the same moment.
            let overdue =
                self.attempts.get(&attempt_id).and_then(Attempt::limit).filter(|(at, ..)| *at <= now && why != Left::Stalled);
            let left = Verdict::new(Class::ClientGone, why.name());
            let verdict = overdue.map_or(left, |(_, failure, counts)| timed_out(&failure, counts));
            if let Some(attempt) = self.take_attempt(attempt_id) {
                self.out.push_back(Output::Cancel { attempt: attempt_id });
                let gone = verdict.class == Class::ClientGone;
                if attempt.live && gone {
                    self.board.live_released(attempt.target, attempt_id);
                } else if attempt.live {
                    self.board.probe_failed(now, attempt.target, attempt.began, attempt_id, &verdict, &mut self.rng);
                } else if !gone
                    && !attempt.overdue
                    && let Some(whose) = self.whose(attempt.target, id)
                {
                    self.board.failed(now, whose, attempt.began, &verdict, &mut self.rng);
                }
            }
            if let Some(request) = self.requests.get_mut(&id) {
                request.end(attempt_id, now, verdict.class, verdict.reason, verdict.silent);
            }
        }
        if !committed {
            self.retract(id);
        }
        self.done(
            now,
            id,
            match why {
                Left::Client | Left::Stalled => Outcome::ClientGone,
                Left::Stopped if committed => Outcome::BrokenAfterCommit,
                Left::Stopped => Outcome::Refused,
            },
        );
    }
}

/// Why nobody waits for a request any more. None of it is a provider's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Its client has gone.
    Client,
    /// Its client takes nothing.
    Stalled,
    /// The gateway stops.
    Stopped,
}

impl Left {
    fn name(self) -> &'static str {
        match self {
            Left::Client => "client_gone",
            Left::Stalled => "client_stalled",
            Left::Stopped => "shutting_down",
        }
    }
}
