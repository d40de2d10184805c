//! Who waits when no place is free: one bounded room per route, the most urgent first, then who came first.
//!
//! Customers' replies and handoffs come before everything else; tasks that the policy lists as dispensable are refused while
//! anybody waits. A part of the room is kept for conversations that are under way.

use std::collections::BTreeSet;

use super::io::{Facts, RequestId};
use crate::policy::{Queue, Route, RouteId};
use crate::units::Ts;

/// How urgent a request is; the smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A customer waits for it.
    Customer,
    /// Anything else.
    Background,
    /// The policy gives it up first.
    Dispensable,
}

/// By the policy's lists; what is on none is urgent if it is a customer's reply or a handoff.
pub(super) fn rank(route: &Route, facts: &Facts) -> Rank {
    let lists = route.on_capacity_exhausted.as_ref();
    if lists.is_some_and(|lists| lists.preserve_tasks.contains(&facts.task)) {
        Rank::Customer
    } else if lists.is_some_and(|lists| lists.disable_tasks.contains(&facts.task)) {
        Rank::Dispensable
    } else if facts.task == "customer_reply" || facts.task == "human_handoff" {
        Rank::Customer
    } else {
        Rank::Background
    }
}

/// One place in a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) rank: Rank,
    arrived: Ts,
    pub(super) request: RequestId,
}

#[derive(Clone, Debug, Default)]
struct Room {
    waiting: BTreeSet<Ticket>,
    /// Of these, requests that begin a conversation.
    new: BTreeSet<RequestId>,
}

/// All rooms, by route.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    rooms: Vec<Room>,
    /// Over all rooms: the common case is that nobody waits.
    len: usize,
}

/// Whether a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It waits.
    In,
    /// It waits, and this one, less urgent, must leave for it.
    Instead(RequestId),
    /// The room is full.
    Full,
}

impl Rooms {
    pub(super) fn new(routes: usize) -> Rooms {
        Rooms { rooms: vec![Room::default(); routes], len: 0 }
    }

    /// Room for so many routes.
    pub(super) fn make(&mut self, routes: usize) {
        if routes > self.rooms.len() {
            self.rooms.resize_with(routes, Room::default);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Requests that wait on this route.
    pub(super) fn depth(&self, route: RouteId) -> usize {
        self.rooms.get(usize::from(route.0)).map_or(0, |room| room.waiting.len())
    }

    /// A request wants to wait.
    pub(super) fn enter(
        &mut self,
        route: RouteId,
        settings: &Queue,
        rank: Rank,
        arrived: Ts,
        request: RequestId,
        open_conversation: bool,
    ) -> Entry {
        let Some(room) = self.rooms.get_mut(usize::from(route.0)) else { return Entry::Full };
        let depth = settings.max_depth as usize;
        if !open_conversation {
            let reserved = (f64::from(settings.max_depth) * settings.reserved_for_open_conversations).floor() as usize;
            if room.new.len() >= depth.saturating_sub(reserved) {
                return Entry::Full;
            }
        }
        let mut entry = Entry::In;
        if room.waiting.len() >= depth {
            match room.waiting.last().copied().filter(|last| last.rank > rank) {
                None => return Entry::Full,
                Some(last) => {
                    room.waiting.remove(&last);
                    room.new.remove(&last.request);
                    self.len -= 1;
                    entry = Entry::Instead(last.request);
                }
            }
        }
        room.waiting.insert(Ticket { rank, arrived, request });
        if !open_conversation {
            room.new.insert(request);
        }
        self.len += 1;
        entry
    }

    /// It waits no more, for whatever reason.
    pub(super) fn leave(&mut self, route: RouteId, rank: Rank, arrived: Ts, request: RequestId) {
        let Some(room) = self.rooms.get_mut(usize::from(route.0)) else { return };
        if room.waiting.remove(&Ticket { rank, arrived, request }) {
            room.new.remove(&request);
            self.len -= 1;
        }
    }

    /// The most urgent head of all rooms but these.
    pub(super) fn first_but(&self, blocked: &[RouteId]) -> Option<(RouteId, Ticket)> {
        let heads = self.rooms.iter().enumerate().filter_map(|(n, room)| {
            let route = RouteId(u16::try_from(n).ok()?);
            if blocked.contains(&route) { None } else { room.waiting.first().map(|ticket| (route, *ticket)) }
        });
        heads.min_by_key(|(_, ticket)| *ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OnCapacityExhausted;
    use crate::router::testkit::{Kit, facts};
    use std::time::Duration;

    const R: RouteId = RouteId(0);

    fn settings(max_depth: u32, reserved: f64) -> Queue {
        Queue { max_depth, max_wait: Duration::from_secs(1), reserved_for_open_conversations: reserved }
    }

    fn enter(rooms: &mut Rooms, settings: &Queue, rank: Rank, n: u64, open: bool) -> Entry {
        rooms.enter(R, settings, rank, Ts::from_s(n), RequestId(n), open)
    }

    #[test]
    fn urgent_first_then_who_came_first() {
        let mut rooms = Rooms::new(1);
        let s = settings(10, 0.0);
        for (n, rank) in [(1, Rank::Background), (2, Rank::Customer), (3, Rank::Customer), (4, Rank::Dispensable)] {
            assert_eq!(enter(&mut rooms, &s, rank, n, true), Entry::In);
        }
        let mut order = Vec::new();
        while let Some((route, ticket)) = rooms.first_but(&[]) {
            order.push(ticket.request.0);
            rooms.leave(route, ticket.rank, ticket.arrived, ticket.request);
        }
        assert_eq!(order, [2, 3, 1, 4]);
        assert!(rooms.is_empty());
    }

    #[test]
    fn a_full_room_gives_up_the_least_urgent_for_a_customer_and_nobody_else() {
        let mut rooms = Rooms::new(1);
        let s = settings(2, 0.0);
        enter(&mut rooms, &s, Rank::Customer, 1, true);
        enter(&mut rooms, &s, Rank::Background, 2, true);
        assert_eq!(enter(&mut rooms, &s, Rank::Background, 3, true), Entry::Full);
        assert_eq!(enter(&mut rooms, &s, Rank::Customer, 4, true), Entry::Instead(RequestId(2)));
        assert_eq!(enter(&mut rooms, &s, Rank::Customer, 5, true), Entry::Full);
        assert_eq!(rooms.depth(R), 2);
    }

    #[test]
    fn a_part_is_kept_for_open_conversations() {
        let mut rooms = Rooms::new(1);
        let s = settings(4, 0.25);
        for n in 1..=3 {
            assert_eq!(enter(&mut rooms, &s, Rank::Customer, n, false), Entry::In);
        }
        assert_eq!(enter(&mut rooms, &s, Rank::Customer, 4, false), Entry::Full, "a quarter of four is kept");
        assert_eq!(enter(&mut rooms, &s, Rank::Customer, 5, true), Entry::In);
        rooms.leave(R, Rank::Customer, Ts::from_s(1), RequestId(1));
        assert_eq!(enter(&mut rooms, &s, Rank::Customer, 6, false), Entry::In, "its place was given back");
        rooms.leave(R, Rank::Customer, Ts::from_s(99), RequestId(99));
        assert_eq!(rooms.depth(R), 4, "who does not wait cannot leave");
    }

    #[test]
    fn ranks_follow_the_policys_lists() {
        let lists = OnCapacityExhausted {
            disable_tasks: vec!["summary".into()],
            preserve_tasks: vec!["billing".into()],
            max_output_tokens: None,
        };
        let policy =
            Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.on_capacity_exhausted = Some(lists)).policy();
        let of = |task: &str| {
            let mut f = facts();
            f.task = task.into();
            rank(&policy.routes[0], &f)
        };
        assert_eq!(of("customer_reply"), Rank::Customer);
        assert_eq!(of("billing"), Rank::Customer);
        assert_eq!(of("draft"), Rank::Background);
        assert_eq!(of("summary"), Rank::Dispensable);
    }
}
