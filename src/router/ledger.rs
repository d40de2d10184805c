//! The ledger: which tool calls were handed to a client, so that a repeated turn never makes one twice (rule R9).
//!
//! ```text
//! proposed --(delivered to the client)--> delivered --(its result came back)--> confirmed
//! ```
//!
//! A call's place is client, route, conversation, turn and ordinal: how many calls of the turn came before it. Its id and its
//! operation key are made from that place and the tool, so that the same place gives the same key whichever model writes the
//! call and however it words the arguments.
//!
//! A request is a *repeat* only if something at or after its place was already delivered. Then nobody is dialled: it gets the
//! same calls again, unless one of them must not be made twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::io::{AttemptId, CallPlace, Conversation, HandoffCause, ProposedCall, Remembered, RequestId, Withhold};
use crate::policy::{Policy, RouteId, SideEffects, sha256_hex};
use crate::units::Ts;

/// Conversations that are remembered at once; the one that was quiet longest goes first.
pub const MAX_CONVERSATIONS: usize = 100_000;
/// How long a quiet conversation is remembered.
pub const RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// Turns remembered of one conversation.
pub const MAX_TURNS: usize = 500;
/// Calls remembered of one turn.
pub const MAX_CALLS: usize = 128;

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// A model wrote it; nobody has seen it.
    Proposed,
    /// The client has it, and may have run it.
    Delivered,
    /// Its result came back.
    Confirmed,
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCall {
    /// The id it carries towards the client.
    pub call_id: String,
    /// The key of its operation, for a keyed tool's key argument.
    pub operation_key: String,
    /// The tool.
    pub tool: String,
    /// Its arguments, word for word as delivered, or what stands for them (see [`ProposedCall::arguments`]).
    pub arguments: String,
    /// What it may do to the world.
    pub side_effects: SideEffects,
    /// How far it has come.
    pub state: CallState,
}

/// What a request may do, by what is known of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Go on, without these tools.
    Go(Withhold),
    /// It repeats a turn: these calls again.
    Repeat(Vec<LedgerCall>),
    /// It repeats a turn whose calls must not be made twice.
    Handoff(HandoffCause),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    client: String,
    route: RouteId,
    conversation: String,
}

/// A call, and which attempt of this life wrote it.
#[derive(Clone, Debug)]
struct Kept {
    call: LedgerCall,
    by: Option<(RequestId, AttemptId)>,
}

#[derive(Clone, Debug)]
struct History {
    /// Per turn, the calls by ordinal. A turn that was asked and has no call is there all the same.
    turns: BTreeMap<u64, BTreeMap<u64, Kept>>,
    /// Highest history version at which something was delivered or asked.
    version: Option<u64>,
    /// Forgotten then, if nothing happens before.
    until: Ts,
}

/// All conversations within their retention.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    conversations: BTreeMap<Place, History>,
    by_age: BTreeSet<(Ts, Place)>,
}

impl Ledger {
    /// What an earlier life of the ledger knew, as it was written down.
    pub(super) fn restore(&mut self, now: Ts, route: RouteId, known: Remembered) {
        let Some(left) = RETENTION.checked_sub(known.age) else { return };
        let place = Place { client: known.client, route, conversation: known.id };
        let history = self.touch(now + left, &place);
        history.version = history.version.max(known.version);
        for (first, last) in known.turns {
            for turn in (first..=last).take(MAX_TURNS) {
                history.turns.entry(turn).or_default();
            }
        }
        for at in known.calls {
            let turn = history.turns.entry(at.turn).or_default();
            // What has reached nobody is forgotten, and never hides what has.
            if turn.len() < MAX_CALLS && at.call.state != CallState::Proposed {
                turn.insert(at.ordinal, Kept { call: at.call, by: None });
            }
        }
        while history.turns.len() > MAX_TURNS {
            history.turns.pop_first();
        }
        self.forget(now);
    }

    /// A request has come: books the results that it brings, then says whether it may go on, and which calls are confirmed by
    /// it. `blocks`: tools that must not run twice are withheld when its past is not known here.
    pub(super) fn arrive(
        &mut self,
        now: Ts,
        route: RouteId,
        said: &Conversation,
        blocks: bool,
    ) -> (Arrival, Vec<String>) {
        self.forget(now);
        let place = Place { client: said.client.clone(), route, conversation: said.id.clone() };
        let known = self.conversations.contains_key(&place);
        let history = self.touch(now + RETENTION, &place);
        let mut confirmed = Vec::new();
        for Kept { call, .. } in history.turns.values_mut().flat_map(BTreeMap::values_mut) {
            if call.state == CallState::Delivered && said.results.contains(&call.call_id) {
                call.state = CallState::Confirmed;
                confirmed.push(call.call_id.clone());
            }
        }
        let knows_turn = history.turns.contains_key(&said.turn);
        let knows_before = history.turns.range(..said.turn).next().is_some();
        if let Some(repeat) = history.repeat(said, None) {
            return (repeat, confirmed);
        }
        let older = said.history_version.zip(history.version).is_some_and(|(said, known)| said < known);
        history.version = history.version.max(said.history_version);
        history.turns.entry(said.turn).or_default();
        while history.turns.len() > MAX_TURNS {
            history.turns.pop_first();
        }
        // What another gateway (or this one before a loss) has delivered is not known here.
        let lost = (said.turn > 1 && !(known && knows_before)) || (said.repeats && !knows_turn);
        let withhold = match (older, lost) {
            (true, _) => Withhold::SideEffects,
            (false, true) if blocks => Withhold::Unkeyed,
            (false, _) => Withhold::Nothing,
        };
        (Arrival::Go(withhold), confirmed)
    }

    /// Another request of the same turn was faster: its calls are this one's too. (Its client may have asked twice, not knowing
    /// that the first request was still under way.)
    pub(super) fn taken(&mut self, route: RouteId, said: &Conversation, by: (RequestId, AttemptId)) -> Option<Arrival> {
        let place = Place { client: said.client.clone(), route, conversation: said.id.clone() };
        self.conversations.get_mut(&place)?.repeat(said, Some(by))
    }

    /// A model has written these calls. Those of an earlier attempt that nobody has seen are replaced.
    pub(super) fn propose(
        &mut self,
        now: Ts,
        policy: &Policy,
        route: RouteId,
        said: &Conversation,
        by: (RequestId, AttemptId),
        calls: &[ProposedCall],
    ) -> (CallPlace, Vec<LedgerCall>) {
        let place = Place { client: said.client.clone(), route, conversation: said.id.clone() };
        let history = self.touch(now + RETENTION, &place);
        let first = history.first(said);
        let written: Vec<LedgerCall> = calls
            .iter()
            .take(MAX_CALLS)
            .zip(first..)
            .map(|(call, ordinal)| {
                let route = &policy.route(route).name;
                let effects = policy.side_effects(&call.tool);
                stamped(&said.client, route, &said.id, said.turn, ordinal, call, effects)
            })
            .collect();
        let turn = history.turns.entry(said.turn).or_default();
        drop(turn.split_off(&first));
        for (call, ordinal) in written.iter().zip(first..) {
            if turn.len() < MAX_CALLS {
                turn.insert(ordinal, Kept { call: call.clone(), by: Some(by) });
            }
        }
        let route = policy.route(route).name.clone();
        let place = CallPlace { client: place.client, route, conversation: place.conversation, turn: said.turn, first };
        (place, written)
    }

    /// The calls that this attempt has written are as good as with the client: from here on nobody may make them once more.
    pub(super) fn deliver(&mut self, route: RouteId, said: &Conversation, by: (RequestId, AttemptId)) {
        self.change(route, said, by, CallState::Proposed, CallState::Delivered);
    }

    /// They have not reached the client after all, for certain. Says which.
    pub(super) fn retract(&mut self, route: RouteId, said: &Conversation, by: (RequestId, AttemptId)) -> Vec<String> {
        self.change(route, said, by, CallState::Delivered, CallState::Proposed)
    }

    fn change(
        &mut self,
        route: RouteId,
        said: &Conversation,
        by: (RequestId, AttemptId),
        from: CallState,
        to: CallState,
    ) -> Vec<String> {
        let place = Place { client: said.client.clone(), route, conversation: said.id.clone() };
        let turn = self.conversations.get_mut(&place).and_then(|history| history.turns.get_mut(&said.turn));
        let mine = turn.into_iter().flat_map(BTreeMap::values_mut).filter(|kept| kept.by == Some(by));
        mine.filter(|kept| kept.call.state == from)
            .map(|kept| {
                kept.call.state = to;
                kept.call.call_id.clone()
            })
            .collect()
    }

    /// Delivered, and no result has come back: what people must check after an incident.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = &LedgerCall> {
        let turns = self.conversations.values().flat_map(|h| h.turns.values());
        let calls = turns.flat_map(|turn| turn.values().map(|kept| &kept.call));
        calls.filter(|call| call.state == CallState::Delivered && call.side_effects.risky())
    }

    fn touch(&mut self, until: Ts, place: &Place) -> &mut History {
        if let Some(history) = self.conversations.get(place) {
            self.by_age.remove(&(history.until, place.clone()));
        }
        self.by_age.insert((until, place.clone()));
        let history = self.conversations.entry(place.clone()).or_insert_with(|| History {
            turns: BTreeMap::new(),
            version: None,
            until,
        });
        history.until = until;
        history
    }

    fn forget(&mut self, now: Ts) {
        while let Some((until, _)) = self.by_age.first() {
            if self.conversations.len() < MAX_CONVERSATIONS && now <= *until {
                return;
            }
            if let Some((_, place)) = self.by_age.pop_first() {
                self.conversations.remove(&place);
            }
        }
    }
}

impl History {
    /// How many calls of its turn a request has behind it: those in its messages, and all up to one whose result it brings (a
    /// client may send results as another message of the user).
    fn first(&self, said: &Conversation) -> u64 {
        let turn = self.turns.get(&said.turn).into_iter().flatten();
        let answered =
            turn.filter(|(_, kept)| said.results.contains(&kept.call.call_id)).map(|(ordinal, _)| ordinal + 1);
        answered.max().unwrap_or(0).max(u64::from(said.calls_so_far))
    }

    /// What was delivered at or after the place that a request has come to. `by`: not what this attempt has written itself.
    fn repeat(&mut self, said: &Conversation, by: Option<(RequestId, AttemptId)>) -> Option<Arrival> {
        let first = self.first(said);
        let turn = self.turns.get_mut(&said.turn)?;
        let others = |kept: &Kept| kept.call.state != CallState::Proposed && (by.is_none() || kept.by != by);
        let delivered: Vec<&mut Kept> =
            turn.range_mut(first..).map(|(_, kept)| kept).filter(|kept| others(kept)).collect();
        if delivered.is_empty() {
            return None;
        }
        if delivered.iter().any(|kept| kept.call.side_effects == SideEffects::Unkeyed) {
            return Some(Arrival::Handoff(HandoffCause::Repeated));
        }
        let again = delivered.into_iter().map(|kept| {
            // Somebody else has it now too: whoever wrote it cannot take it back any more.
            kept.by = None;
            kept.call.clone()
        });
        Some(Arrival::Repeat(again.collect()))
    }
}

/// A call of a request that names no conversation: it gets an id of its own, and is not remembered.
pub(super) fn unremembered(policy: &Policy, request: RequestId, n: usize, call: &ProposedCall) -> LedgerCall {
    let effects = policy.side_effects(&call.tool);
    stamped("", "", &format!("request {}", request.0), 0, n as u64, call, effects)
}

/// Each field stands behind its length, so that no two places give the same text.
fn stamped(
    client: &str,
    route: &str,
    conversation: &str,
    turn: u64,
    ordinal: u64,
    call: &ProposedCall,
    side_effects: SideEffects,
) -> LedgerCall {
    let mut text = String::new();
    for part in [client, route, conversation, &call.tool] {
        text.push_str(&part.len().to_string());
        text.push(':');
        text.push_str(part);
    }
    text.push_str(&format!("{turn}:{ordinal}"));
    let hash = sha256_hex(text.as_bytes());
    LedgerCall {
        // 24 characters after the prefix, as the field's own ids have: some servers refuse longer ones.
        call_id: format!("call_{}", hash.get(..24).unwrap_or(&hash)),
        operation_key: format!("op_{}", hash.get(24..56).unwrap_or(&hash)),
        tool: call.tool.clone(),
        arguments: call.arguments.clone(),
        side_effects,
        state: CallState::Proposed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Tool;
    use crate::router::testkit::Kit;

    const ROUTE: RouteId = RouteId(0);
    const BY: (RequestId, AttemptId) = (RequestId(1), AttemptId(1));

    fn policy() -> Policy {
        let tool = |side_effects| Tool { side_effects, key_argument: None, handoff: false };
        Kit::new()
            .target("a", |_| {})
            .route("chat", &[&["a"]], |_| {})
            .change(|p| {
                p.tools.insert("get_order".into(), tool(SideEffects::None));
                p.tools.insert("create_ticket".into(), tool(SideEffects::Keyed));
                p.tools.insert("issue_refund".into(), tool(SideEffects::Unkeyed));
            })
            .policy()
    }

    fn turn(turn: u64) -> Conversation {
        Conversation {
            client: "shop".into(),
            id: "c1".into(),
            turn,
            history_version: None,
            repeats: false,
            calls_so_far: 0,
            results: Vec::new(),
        }
    }

    fn call(tool: &str) -> ProposedCall {
        ProposedCall { tool: tool.into(), arguments: "{\"n\":1}".into() }
    }

    /// One turn that calls these tools, delivered.
    fn turn_with(ledger: &mut Ledger, said: &Conversation, tools: &[&str]) -> Vec<LedgerCall> {
        assert!(matches!(ledger.arrive(Ts::ZERO, ROUTE, said, true).0, Arrival::Go(_)));
        let calls: Vec<ProposedCall> = tools.iter().map(|t| call(t)).collect();
        let written = ledger.propose(Ts::ZERO, &policy(), ROUTE, said, BY, &calls).1;
        ledger.deliver(ROUTE, said, BY);
        written
    }

    #[test]
    fn a_repeated_turn_gets_the_same_calls_and_nobody_is_asked() {
        let mut ledger = Ledger::default();
        let written = turn_with(&mut ledger, &turn(1), &["get_order", "create_ticket"]);
        match ledger.arrive(Ts::from_s(1), ROUTE, &turn(1), true).0 {
            Arrival::Repeat(calls) => {
                let ids: Vec<&str> = calls.iter().map(|c| c.call_id.as_str()).collect();
                assert_eq!(ids, written.iter().map(|c| c.call_id.as_str()).collect::<Vec<_>>());
                assert_eq!(calls[1].arguments, "{\"n\":1}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_repeated_unkeyed_call_goes_to_a_human() {
        let mut ledger = Ledger::default();
        turn_with(&mut ledger, &turn(1), &["issue_refund"]);
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &turn(1), true).0, Arrival::Handoff(HandoffCause::Repeated));
        turn_with(&mut ledger, &turn(2), &["a_tool_that_nobody_declared"]);
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &turn(2), true).0, Arrival::Handoff(HandoffCause::Repeated));
    }

    #[test]
    fn going_on_after_the_result_is_no_repeat() {
        let mut ledger = Ledger::default();
        let written = turn_with(&mut ledger, &turn(1), &["create_ticket"]);
        assert_eq!(ledger.unconfirmed().count(), 1);
        let next = Conversation { calls_so_far: 1, results: vec![written[0].call_id.clone()], ..turn(1) };
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &next, true).0, Arrival::Go(Withhold::Nothing));
        assert_eq!(ledger.unconfirmed().count(), 0, "its result came back");
        // The second call of the same turn has another key.
        let second = ledger.propose(Ts::ZERO, &policy(), ROUTE, &next, BY, &[call("create_ticket")]).1;
        assert_ne!(second[0].operation_key, written[0].operation_key);
    }

    #[test]
    fn the_key_is_the_place_not_the_wording() {
        let mut ledger = Ledger::default();
        ledger.arrive(Ts::ZERO, ROUTE, &turn(1), true);
        let first = ledger.propose(Ts::ZERO, &policy(), ROUTE, &turn(1), BY, &[call("create_ticket")]).1;
        let reworded =
            ProposedCall { tool: "create_ticket".into(), arguments: "{\"n\": 1, \"note\":\"again\"}".into() };
        let second = ledger.propose(Ts::ZERO, &policy(), ROUTE, &turn(1), BY, &[reworded]).1;
        assert_eq!(first[0].operation_key, second[0].operation_key);
        assert_eq!(first[0].call_id, second[0].call_id);
        for other in
            [turn(2), Conversation { id: "c2".into(), ..turn(1) }, Conversation { client: "bank".into(), ..turn(1) }]
        {
            ledger.arrive(Ts::ZERO, ROUTE, &other, true);
            let calls = ledger.propose(Ts::ZERO, &policy(), ROUTE, &other, BY, &[call("create_ticket")]).1;
            assert_ne!(calls[0].operation_key, first[0].operation_key, "{other:?}");
        }
    }

    /// What people compare their own list with.
    #[test]
    fn the_page_shows_the_key_and_the_id_of_its_own_example() {
        let page = include_str!("../../docs/ledger.md");
        let of = stamped("anonymous", "support-chat", "c1", 1, 0, &call("create_ticket"), SideEffects::Keyed);
        let line = format!("key {}  call {}  client anonymous  route support-chat", of.operation_key, of.call_id);
        assert!(page.contains(&line) && page.contains("c1 turn 1  create_ticket (keyed)"), "{line}");
    }

    #[test]
    fn what_nobody_has_seen_is_no_reason_to_stop() {
        let mut ledger = Ledger::default();
        ledger.arrive(Ts::ZERO, ROUTE, &turn(1), true);
        ledger.propose(Ts::ZERO, &policy(), ROUTE, &turn(1), BY, &[call("issue_refund")]);
        // The attempt broke before delivery; the client asks again.
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &turn(1), true).0, Arrival::Go(Withhold::Nothing));
    }

    #[test]
    fn an_older_history_gets_no_side_effects() {
        let mut ledger = Ledger::default();
        let at = |turn_n, version| Conversation { history_version: Some(version), ..turn(turn_n) };
        ledger.arrive(Ts::ZERO, ROUTE, &at(1, 4), true);
        ledger.arrive(Ts::ZERO, ROUTE, &at(2, 6), true);
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &at(3, 5), true).0, Arrival::Go(Withhold::SideEffects));
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &at(3, 6), true).0, Arrival::Go(Withhold::Nothing));
        assert_eq!(
            ledger.arrive(Ts::ZERO, ROUTE, &turn(4), true).0,
            Arrival::Go(Withhold::Nothing),
            "not said: not compared"
        );
    }

    #[test]
    fn an_unknown_past_withholds_what_must_not_run_twice() {
        let mut ledger = Ledger::default();
        assert_eq!(
            ledger.arrive(Ts::ZERO, ROUTE, &turn(3), true).0,
            Arrival::Go(Withhold::Unkeyed),
            "turns 1 and 2 are unknown"
        );
        let repeats = Conversation { repeats: true, id: "new".into(), ..turn(1) };
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &repeats, true).0, Arrival::Go(Withhold::Unkeyed));
        assert_eq!(ledger.arrive(Ts::ZERO, ROUTE, &turn(4), true).0, Arrival::Go(Withhold::Nothing), "turn 3 is known");
        let elsewhere = Conversation { id: "c9".into(), ..turn(3) };
        assert_eq!(
            ledger.arrive(Ts::ZERO, ROUTE, &elsewhere, false).0,
            Arrival::Go(Withhold::Nothing),
            "policy: allow"
        );
    }

    #[test]
    fn it_forgets_after_the_retention_and_never_grows_without_bound() {
        let mut ledger = Ledger::default();
        for n in 0..1_000u64 {
            let said = Conversation { id: n.to_string(), ..turn(1) };
            ledger.arrive(Ts::from_s(n), ROUTE, &said, true);
        }
        assert_eq!(ledger.conversations.len(), 1_000);
        ledger.arrive(Ts::from_s(500) + RETENTION, ROUTE, &turn(1), true);
        assert_eq!(ledger.conversations.len(), 501, "500 to 999, and the new one");
        assert_eq!(ledger.by_age.len(), 501);
    }
}
