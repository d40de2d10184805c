//! What people are shown of the ledger: by the admin listener and by `llmfo ledger list`, the same.

use serde::{Deserialize, Serialize};

use super::row::CallRow;
use crate::policy::SideEffects;
use crate::router::ledger::CallState;

/// Version of the list. Members are only added.
pub const FORMAT: u32 = 1;
/// Calls in one list; the newest ones.
pub const MAX_LISTED: usize = 10_000;

/// Which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Delivered, no result has come back, and twice would harm: what must be checked after an incident.
    Unconfirmed,
    /// In this state.
    In(CallState),
    /// All.
    All,
}

impl Which {
    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Which> {
        Some(match name {
            "unconfirmed" => Which::Unconfirmed,
            "proposed" => Which::In(CallState::Proposed),
            "delivered" => Which::In(CallState::Delivered),
            "confirmed" => Which::In(CallState::Confirmed),
            "all" => Which::All,
            _ => return None,
        })
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// Which calls.
    pub which: Which,
    /// Written down at or after this, Unix milliseconds.
    pub since_unix_ms: u64,
    /// With their arguments, which may speak of people.
    pub arguments: bool,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// How far it has come.
    pub state: CallState,
    /// When it was handed out, RFC 3339.
    pub since: String,
    /// The same in Unix milliseconds.
    pub since_unix_ms: u64,
    /// When its state changed last.
    pub changed_unix_ms: u64,
    /// Who asked.
    pub client: String,
    /// Route.
    pub route: String,
    /// The client's name for the conversation.
    pub conversation: String,
    /// The turn.
    pub turn: u64,
    /// How many calls of the turn came before it.
    pub ordinal: u64,
    /// The tool.
    pub tool: String,
    /// What it may do.
    pub side_effects: SideEffects,
    /// The value of its key argument, if the tool has one: look for it in the system of record.
    pub key: Option<String>,
    /// Its id.
    pub call_id: String,
    /// Only where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// [`FORMAT`].
    pub format: u32,
    /// Older ones that would have matched too.
    pub left_out: usize,
    /// The oldest first.
    pub calls: Vec<Listed>,
}

/// Lists what is asked for.
#[must_use]
pub fn list(rows: Vec<CallRow>, filter: &Filter) -> Listing {
    let mut rows: Vec<CallRow> = rows.into_iter().filter(|row| matches(row, filter)).collect();
    rows.sort_unstable_by(|a, b| {
        let key = |r: &CallRow| (r.since_unix_ms, r.turn, r.ordinal);
        key(a).cmp(&key(b)).then_with(|| a.call_id.cmp(&b.call_id))
    });
    let left_out = rows.len().saturating_sub(MAX_LISTED);
    let calls = rows.into_iter().skip(left_out).map(|row| Listed {
        state: row.state,
        since: time(row.since_unix_ms),
        since_unix_ms: row.since_unix_ms,
        changed_unix_ms: row.changed_unix_ms,
        client: row.client,
        route: row.route,
        conversation: row.conversation,
        turn: row.turn,
        ordinal: row.ordinal,
        tool: row.tool,
        side_effects: row.side_effects,
        key: (row.side_effects == SideEffects::Keyed).then_some(row.operation_key),
        call_id: row.call_id,
        arguments: filter.arguments.then_some(row.arguments),
    });
    Listing { format: FORMAT, left_out, calls: calls.collect() }
}

fn matches(row: &CallRow, filter: &Filter) -> bool {
    row.since_unix_ms >= filter.since_unix_ms
        && match filter.which {
            Which::Unconfirmed => row.state == CallState::Delivered && row.side_effects.risky(),
            Which::In(state) => row.state == state,
            Which::All => true,
        }
}

fn time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| unix_ms.to_string(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u64, side_effects: SideEffects, state: CallState) -> CallRow {
        CallRow {
            call_id: format!("call_{n}"),
            operation_key: format!("op_{n}"),
            client: "anonymous".into(),
            route: "chat".into(),
            conversation: "c".into(),
            turn: n,
            ordinal: 0,
            tool: "t".into(),
            side_effects,
            arguments: "{\"email\":\"a@b.c\"}".into(),
            state,
            since_unix_ms: 1_000 * n,
            changed_unix_ms: 1_000 * n,
        }
    }

    #[test]
    fn unconfirmed_is_what_is_out_and_would_harm_twice() {
        let rows = || {
            vec![
                row(4, SideEffects::Keyed, CallState::Delivered),
                row(3, SideEffects::Unkeyed, CallState::Delivered),
                row(2, SideEffects::Idempotent, CallState::Delivered),
                row(1, SideEffects::Keyed, CallState::Confirmed),
                row(0, SideEffects::Keyed, CallState::Proposed),
            ]
        };
        let turns = |name, since_unix_ms| -> Vec<u64> {
            let filter = Filter { which: Which::named(name).unwrap(), since_unix_ms, arguments: false };
            list(rows(), &filter).calls.iter().map(|c| c.turn).collect()
        };
        assert_eq!(turns("unconfirmed", 0), [3, 4], "the oldest first");
        assert_eq!(turns("unconfirmed", 3_001), [4]);
        assert_eq!(turns("delivered", 0), [2, 3, 4]);
        assert_eq!(turns("confirmed", 0), [1]);
        assert_eq!(turns("proposed", 0), [0]);
        assert_eq!(turns("all", 0), [0, 1, 2, 3, 4]);
        assert_eq!(Which::named("lost"), None);
    }

    #[test]
    fn arguments_are_shown_only_where_they_are_asked_for() {
        let rows = || vec![row(1, SideEffects::Keyed, CallState::Delivered)];
        let filter = |arguments| Filter { which: Which::All, since_unix_ms: 0, arguments };
        let shown = serde_json::to_string(&list(rows(), &filter(false))).unwrap();
        assert!(!shown.contains("email") && !shown.contains("arguments"), "{shown}");
        assert!(shown.contains("1970-01-01T00:00:01Z"), "{shown}");
        assert!(serde_json::to_string(&list(rows(), &filter(true))).unwrap().contains("a@b.c"));
    }
}
