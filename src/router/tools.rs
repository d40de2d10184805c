//! Tool calls on their way to the client.

use super::decision::Outcome;
use super::engine::Engine;
use super::io::{AttemptId, HandoffCause, Output, ProposedCall, Remembered, Reply, RequestId};
use super::ledger::{Arrival, CallState, LedgerCall, unremembered};
use super::request::{Owner, Phase};
use crate::policy::RouteId;
use crate::units::Ts;

impl Engine {
    /// An attempt's answer calls tools: each gets its id and key, and counts as delivered from now on.
    pub(super) fn calls(&mut self, now: Ts, id: AttemptId, calls: &[ProposedCall]) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Owner::Request(request) = attempt.owner else { return };
        // Nothing more is awaited from the target: the rest is this gateway's own work.
        attempt.calling = true;
        self.arm(id);
        let Some(state) = self.requests.get_mut(&request) else { return };
        let route = state.facts.route;
        let Some(said) = &state.facts.conversation else {
            let calls =
                calls.iter().enumerate().map(|(n, call)| unremembered(&self.policy, request, n, call)).collect();
            self.out.push_back(Output::Calls { request, attempt: id, place: None, calls });
            return;
        };
        let by = (request, id);
        match self.ledger.taken(route, said, by) {
            Some(Arrival::Repeat(delivered)) => return self.overtaken(now, by, Some(delivered)),
            Some(_) => return self.overtaken(now, by, None),
            None => {}
        }
        let (place, written) = self.ledger.propose(now, &self.policy, route, said, by, calls);
        self.ledger.deliver(route, said, by);
        state.calls = Some(id);
        self.out.push_back(Output::Calls { request, attempt: id, place: Some(place), calls: written });
    }

    /// The calls of this turn went out by another way in the meantime. `None`: one of them must not be made twice.
    fn overtaken(&mut self, now: Ts, (request, id): (RequestId, AttemptId), calls: Option<Vec<LedgerCall>>) {
        let Some(state) = self.requests.get(&request) else { return };
        let (committed, other) = (state.phase == Phase::Committed(id), state.other(id));
        if other.is_some() && state.calls == other {
            // Its own hedge: that one goes on.
            self.cancel_neutrally(now, request, id, "hedge_lost");
            if let (Some(state), Some(other)) = (self.requests.get_mut(&request), other) {
                state.phase = Phase::Trying(other, None);
            }
            return;
        }
        self.cancel_neutrally(now, request, id, "answered_meanwhile");
        if committed {
            // Text of this answer is out; its calls are not, and another answer has the turn.
            self.out.push_back(Output::Break { request, attempt: id, class: super::classify::Class::ClientGone });
            return self.done(now, request, Outcome::BrokenAfterCommit);
        }
        if let Some(other) = other {
            self.cancel_neutrally(now, request, other, "not_needed");
        }
        match calls {
            Some(calls) => self.reply(now, request, Reply::FromLedger { calls }, Outcome::FromLedger),
            None => self.hand_off(now, request, HandoffCause::Repeated, super::engine::REPEATED.to_owned()),
        }
    }

    /// A request ends before its answer reached the client: the calls in it were not delivered after all.
    pub(super) fn retract(&mut self, id: RequestId) {
        let Some(state) = self.requests.get_mut(&id) else { return };
        let (Some(attempt), Some(said)) = (state.calls.take(), &state.facts.conversation) else { return };
        let calls = self.ledger.retract(state.facts.route, said, (id, attempt));
        self.calls_are(calls, CallState::Proposed);
    }

    pub(super) fn calls_are(&mut self, calls: Vec<String>, state: CallState) {
        if !calls.is_empty() {
            self.out.push_back(Output::CallsAre { calls, state });
        }
    }

    /// What the ledger knew when it was written down last.
    pub(super) fn remember(&mut self, now: Ts, conversations: Vec<Remembered>) {
        for known in conversations {
            let route = self.policy.routes.iter().position(|r| r.name == known.route);
            if let Some(route) = route.and_then(|n| u16::try_from(n).ok()) {
                self.ledger.restore(now, RouteId(route), known);
            }
        }
    }
}
