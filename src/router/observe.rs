//! Observing: of every request one target is asked, the first of its route that may and can answer it, whatever the core thinks
//! of that target now; and what failover would have done is written down. Nobody else is dialled or probed.
//!
//! The observer must change nothing for customers: an open breaker, a used-up slot or rate and a share refuse nobody, and an
//! answer that is slower than its tier allows is waited for until the route's deadline. It counts against its target at the
//! moment at which failover would have left it, and only then, so that the breaker is where it would be. What a stand-in would
//! have done is not known: nothing is assumed beyond the first step.

use std::borrow::Cow;

use super::decision::Outcome;
use super::engine::Engine;
use super::io::{AttemptId, Failure, Reply, RequestId};
use super::request::{How, Phase, Would, timed_out};
use super::select::{self, Choice, choose};
use super::skip::Skip;
use super::timers::Alarm;
use crate::policy::{Policy, RouteId, TargetId};
use crate::units::Ts;

/// Some route asks this target first.
#[must_use]
pub fn asked_first(policy: &Policy, target: TargetId) -> bool {
    let first = |route: &crate::policy::Route| route.tiers.iter().find_map(|tier| tier.targets.first()).copied();
    policy.live_routes().any(|route| first(route) == Some(target))
}

/// A route of this policy has somebody to fail over to.
#[must_use]
pub fn something_to_observe(policy: &Policy) -> bool {
    policy.live_routes().any(|route| {
        let mut all: Vec<TargetId> = route.tiers.iter().flat_map(|tier| tier.targets.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.len() > 1 && route.no_failover.is_none()
    })
}

impl Engine {
    /// The same core, observing.
    #[must_use]
    pub fn observing(self) -> Engine {
        let mut engine = self.without_hedges();
        engine.observes = true;
        engine
    }

    /// The one decision about a new request.
    pub(super) fn observe(&mut self, now: Ts, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let route = request.route.id;
        let ask = Engine::ask(&self.policy, &self.board, request, now, false);
        let asked = select::first(&ask).map(|plan| plan.target);
        let choice = choose(&ask, false, &mut self.rng);
        let Some(asked) = asked else {
            // Nobody may or can answer it: there is nothing to observe.
            let skips = match choice {
                Choice::Nobody(skips) | Choice::Full(skips, _) => skips,
                Choice::Dial(_) | Choice::Pause(_) => Vec::new(),
            };
            return self.nobody(now, id, &skips);
        };
        let reason_in = |skips: &[(TargetId, Skip)], otherwise| {
            skips.iter().find(|(target, _)| *target == asked).map_or(otherwise, |(_, skip)| skip.name())
        };
        let would = match choice {
            Choice::Dial(plan) => {
                self.deal(route, &plan.deals);
                (plan.target != asked).then(|| (Some(plan.target), reason_in(&plan.passed_over, "select")))
            }
            Choice::Full(skips, _) | Choice::Nobody(skips) => Some((None, reason_in(&skips, "nobody"))),
            Choice::Pause(_) => None,
        };
        if let (Some((to, reason)), Some(request)) = (would, self.requests.get_mut(&id)) {
            request.would.push(Would { instead: true, from: asked, to, reason: Cow::Borrowed(reason), at: now });
        }
        self.ask_first(now, id, How::Next);
    }

    /// Shares are dealt as they would be: else what would have happened next is not known.
    fn deal(&mut self, route: RouteId, deals: &[(TargetId, f64, bool)]) {
        for (target, share, went) in deals {
            self.board.deal(route, *target, *share, *went);
        }
    }

    /// Dials the one, with all the time that is left. False: none is.
    fn ask_first(&mut self, now: Ts, id: RequestId, how: How) -> bool {
        let Some(request) = self.requests.get(&id) else { return false };
        let ask = Engine::ask(&self.policy, &self.board, request, now, false);
        let Some(mut plan) = select::first(&ask) else { return false };
        let own = plan.grant.limits.answer;
        plan.grant.limits.answer = plan.grant.until.since(now).max(own);
        self.dial(now, id, &plan, how);
        self.timers.set(Alarm::Hedge(id), Some(now + own));
        true
    }

    /// The moment at which failover would have left a silent target.
    pub(super) fn overdue(&mut self, now: Ts, id: RequestId) {
        let Some(Phase::Trying(first, _)) = self.requests.get(&id).map(|r| r.phase) else { return };
        let Some(attempt) = self.attempts.get_mut(&first) else { return };
        if attempt.committed.is_some() || (attempt.stream && attempt.first_token.is_some()) {
            return;
        }
        attempt.overdue = true;
        let failure = if attempt.stream { Failure::FirstTokenTimeout } else { Failure::AnswerTimeout };
        let verdict = timed_out(&failure, attempt.grant.answer_counts);
        let (target, began) = (attempt.target, attempt.began);
        if let Some(whose) = self.whose(target, id) {
            self.board.failed(now, whose, began, &verdict, &mut self.rng);
        }
        self.would_follow(now, id, target, verdict.reason);
    }

    /// Writes down whom failover would have asked after this failure.
    fn would_follow(&mut self, now: Ts, id: RequestId, from: TargetId, reason: Cow<'static, str>) {
        let Some(request) = self.requests.get(&id) else { return };
        if request.would.iter().any(|w| !w.instead) {
            return;
        }
        let route = request.route.id;
        let ask = Engine::ask(&self.policy, &self.board, request, now, false);
        let to = match choose(&ask, false, &mut self.rng) {
            Choice::Dial(plan) => {
                self.deal(route, &plan.deals);
                Some(plan.target)
            }
            // Nobody else is left, and it may be dialled again.
            Choice::Pause(_) => Some(from),
            Choice::Full(..) | Choice::Nobody(_) => None,
        };
        if let Some(request) = self.requests.get_mut(&id) {
            request.would.push(Would { instead: false, from, to, reason, at: now });
        }
    }

    /// A reused connection failed before any byte came back: the same target once more, as ever.
    pub(super) fn ask_first_again(&mut self, now: Ts, id: RequestId) -> bool {
        self.ask_first(now, id, How::Fresh)
    }

    /// The one target has failed: its own words, or an honest error. `refused`: it has said a status.
    pub(super) fn failed_observed(
        &mut self,
        now: Ts,
        id: RequestId,
        (attempt, target): (AttemptId, TargetId),
        reason: Cow<'static, str>,
        refused: bool,
    ) {
        self.would_follow(now, id, target, reason);
        if refused {
            return self.reply(now, id, Reply::AsItIs { attempt }, Outcome::ReturnedAsItIs);
        }
        let Some(request) = self.requests.get(&id) else { return };
        let all = request.route.tiers.iter().flat_map(|tier| tier.targets.iter().copied());
        let mut skips: Vec<(TargetId, Skip)> = Vec::new();
        for other in all {
            if !skips.iter().any(|(known, _)| *known == other) {
                skips.push((other, if other == target { Skip::Tried } else { Skip::Observed }));
            }
        }
        self.nobody(now, id, &skips);
    }
}
