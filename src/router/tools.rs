//! Tool calls on their way to the client.

use super::engine::Engine;
use super::io::{AttemptId, Output, ProposedCall};
use super::ledger::{LedgerCall, unremembered};
use super::request::{Owner, Phase};
use crate::units::Ts;

impl Engine {
    /// An attempt's answer calls tools: each gets its id and key.
    pub(super) fn calls(&mut self, now: Ts, id: AttemptId, calls: &[ProposedCall]) {
        let Some(Owner::Request(request)) = self.attempts.get(&id).map(|a| a.owner) else { return };
        let Some(state) = self.requests.get_mut(&request) else { return };
        let route = state.facts.route;
        let written: Vec<LedgerCall> = match &state.facts.conversation {
            Some(said) => {
                state.calls = true;
                let written = self.ledger.propose(now, &self.policy, route, said, calls);
                // Text came first and was delivered: the calls follow it.
                if state.phase == Phase::Committed(id) {
                    self.ledger.deliver(now, route, said);
                }
                written
            }
            None => calls.iter().enumerate().map(|(n, call)| unremembered(&self.policy, request, n, call)).collect(),
        };
        self.out.push_back(Output::Calls { request, attempt: id, calls: written });
    }
}
