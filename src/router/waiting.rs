//! Requests that wait: for room in the queue, or for a pause before a redial; and what an emergency refuses.

use std::time::Duration;

use super::admission::{Entry, Rank, rank};
use super::decision::{Note, Outcome};
use super::engine::Engine;
use super::io::{HandoffCause, Output, Reply, RequestId};
use super::refuse;
use super::request::{How, Phase};
use super::select::{Choice, choose};
use super::skip::Skip;
use super::timers::Alarm;
use super::{budget, request::Request};
use crate::policy::{RouteId, TargetId};
use crate::units::Ts;

/// When nothing says how soon there is room: come back after this.
const COME_BACK: Duration = Duration::from_secs(5);

impl Engine {
    /// An operator's switch, or somebody waits on its route: output is capped and dispensable tasks are refused.
    pub(super) fn in_emergency(&self, id: RequestId) -> bool {
        if self.emergency {
            return true;
        }
        !self.rooms.is_empty() && self.requests.get(&id).is_some_and(|r| self.rooms.depth(r.route.id) > 0)
    }

    /// True if it is one of the tasks that an emergency gives up.
    pub(super) fn given_up(&self, id: RequestId) -> bool {
        self.in_emergency(id) && self.requests.get(&id).is_some_and(|r| rank(&r.route, &r.facts) == Rank::Dispensable)
    }

    pub(super) fn give_up(&mut self, now: Ts, id: RequestId) {
        // The operator's own words are for colleagues, not for clients.
        let why = if self.emergency {
            "An operator has ordered the emergency mode, and the policy gives this task up in it".to_owned()
        } else {
            "Customers wait for an answer, and this task is given up first".to_owned()
        };
        self.reply(now, id, Reply::Unavailable { retry_after: COME_BACK, why }, Outcome::Refused);
    }

    /// Somebody would answer, but has no room.
    pub(super) fn wait(&mut self, now: Ts, id: RequestId, skips: &[(TargetId, Skip)], room_at: Option<Ts>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.pass_over(now, skips);
        let route = request.route.id;
        let rank = rank(&request.route, &request.facts);
        let entry = match &request.route.queue {
            Some(queue) => self.rooms.enter(route, queue, rank, request.arrived, id, request.facts.open_conversation),
            None => Entry::Full,
        };
        if entry == Entry::Full {
            let why = refuse::why(&self.policy, request, skips, now);
            return self.turn_away(now, id, rank, or_collect(skips, HandoffCause::QueueFull), why);
        }
        request.phase = Phase::Queued(now);
        let latest = longest_wait(request, now);
        self.timers.set(Alarm::Request(id), Some(latest));
        if let Some(at) = room_at {
            self.timers.sooner(Alarm::Room, at);
        }
        if let Entry::Instead(other) = entry {
            let why = "a customer took its place in the queue".to_owned();
            if let Some(request) = self.requests.get_mut(&other) {
                request.dequeue(now);
            }
            self.reply(now, other, Reply::Unavailable { retry_after: COME_BACK, why }, Outcome::Refused);
        }
        self.note_depth(route);
    }

    fn note_depth(&mut self, route: RouteId) {
        self.out.push_back(Output::Note(Note::Queue { route, depth: self.rooms.depth(route) }));
    }

    /// A customer goes to a human; anything else is told to come back.
    fn turn_away(&mut self, now: Ts, id: RequestId, rank: Rank, cause: HandoffCause, why: String) {
        if rank == Rank::Customer {
            self.hand_off(now, id, cause, why);
        } else {
            self.reply(now, id, Reply::Unavailable { retry_after: COME_BACK, why }, Outcome::Refused);
        }
    }

    /// It leaves the queue if it is there.
    pub(super) fn leave_room(&mut self, now: Ts, id: RequestId) {
        if self.rooms.is_empty() {
            return;
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let Phase::Queued(_) = request.phase {
            let route = request.route.id;
            let rank = rank(&request.route, &request.facts);
            let arrived = request.arrived;
            request.dequeue(now);
            self.rooms.leave(route, rank, arrived, id);
            self.note_depth(route);
        }
    }

    /// Something became free: the most urgent of those who wait are looked at first.
    pub(super) fn fill_rooms(&mut self, now: Ts) {
        if !std::mem::take(&mut self.room_made) || self.rooms.is_empty() {
            return;
        }
        // A route whose head finds no room lets nobody pass who came later.
        let mut blocked: Vec<RouteId> = Vec::new();
        while let Some((route, ticket)) = self.rooms.first_but(&blocked) {
            let id = ticket.request;
            let Some(request) = self.requests.get(&id) else { return };
            let ask = Engine::ask(&self.policy, &self.board, request, now, false);
            match choose(&ask, false, &mut self.rng) {
                Choice::Full(_, room_at) => {
                    if let Some(at) = room_at {
                        self.timers.sooner(Alarm::Room, at);
                    }
                    blocked.push(route);
                }
                Choice::Dial(plan) => {
                    self.leave_room(now, id);
                    self.dial(now, id, &plan, How::Next);
                }
                Choice::Pause(_) | Choice::Nobody(_) => {
                    self.leave_room(now, id);
                    self.timers.set(Alarm::Request(id), None);
                    self.advance(now, id, false);
                }
            }
        }
    }

    /// A pause is over, or the longest wait.
    pub(super) fn request_woke(&mut self, now: Ts, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        if !matches!(request.phase, Phase::Queued(_)) {
            return self.advance(now, id, true);
        }
        let rank = rank(&request.route, &request.facts);
        let ask = Engine::ask(&self.policy, &self.board, request, now, false);
        let skips = match choose(&ask, false, &mut self.rng) {
            Choice::Dial(plan) => {
                self.leave_room(now, id);
                return self.dial(now, id, &plan, How::Next);
            }
            Choice::Full(skips, _) | Choice::Nobody(skips) => skips,
            Choice::Pause(_) => Vec::new(),
        };
        let why = refuse::why(&self.policy, request, &skips, now);
        self.leave_room(now, id);
        self.turn_away(now, id, rank, or_collect(&skips, HandoffCause::QueueTimeout), why);
    }
}

/// A tier that collects for a human takes what finds no room before it.
fn or_collect(skips: &[(TargetId, Skip)], otherwise: HandoffCause) -> HandoffCause {
    if skips.iter().any(|(_, skip)| *skip == Skip::Intent(true)) { HandoffCause::Intent } else { otherwise }
}

/// Until when it may wait: as long as the queue allows, and no longer than a dial would still be of use.
fn longest_wait(request: &Request, now: Ts) -> Ts {
    let wait = request.route.queue.map_or(Duration::ZERO, |queue| queue.max_wait);
    let least = request.route.tiers.iter().map(|tier| tier.first_token_timeout / 2).min().unwrap_or_default();
    let budget = budget::until(&request.route, request.arrived);
    let useful = Ts(budget.0.saturating_sub(u64::try_from(least.as_nanos()).unwrap_or(u64::MAX)));
    (now + wait).min(useful).max(now + Duration::from_millis(1))
}
