//! A second attempt beside a slow one (rule R9): only for requests without risky tools, only after the route's threshold, only
//! where there is room to spare and no sign of overload. Who commits first is delivered; the other is cancelled and says nothing
//! about its target.

use super::engine::Engine;
use super::io::RequestId;
use super::request::{How, Phase};
use super::select::{Choice, choose};
use crate::units::Ts;

impl Engine {
    /// The threshold has passed.
    pub(super) fn hedge(&mut self, now: Ts, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let Phase::Trying(first, None) = request.phase else { return };
        let silent = self.attempts.get(&first).is_some_and(|a| a.first_token.is_none() && a.committed.is_none());
        // Whoever waits for a place has a better claim to it.
        if !silent || self.in_emergency(id) {
            return;
        }
        let ask = Engine::ask(&self.policy, &self.board, request, now, true);
        if let Choice::Dial(plan) = choose(&ask, false, &mut self.rng) {
            self.dial(now, id, &plan, How::Hedge);
        }
    }
}
