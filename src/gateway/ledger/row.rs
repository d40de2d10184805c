//! What the ledger writes down, as plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::SideEffects;
use crate::router::ledger::{CallState, LedgerCall};
use crate::router::{Remembered, RememberedCall};

/// Calls kept at most, the newest ones.
pub const MAX_CALLS: usize = 200_000;
/// Bytes of all their rows together.
pub const MAX_BYTES: u64 = 512 << 20;
/// Conversations kept at most, those that were heard of last.
pub const MAX_CONVERSATIONS: usize = crate::router::ledger::MAX_CONVERSATIONS;
/// Stretches of turns kept of one conversation.
const MAX_STRETCHES: usize = 64;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRow {
    /// The id it carries.
    pub call_id: String,
    /// The key of its operation.
    pub operation_key: String,
    /// Who asked: a name of the client, never its key.
    pub client: String,
    /// Route by name.
    pub route: String,
    /// The client's name for the conversation.
    pub conversation: String,
    /// The turn.
    pub turn: u64,
    /// How many calls of the turn came before it.
    pub ordinal: u64,
    /// The tool.
    pub tool: String,
    /// What it may do to the world.
    pub side_effects: SideEffects,
    /// Its arguments, as delivered. May speak of people.
    pub arguments: String,
    /// How far it has come.
    pub state: CallState,
    /// When it was written down, Unix milliseconds.
    pub since_unix_ms: u64,
    /// When its state changed last.
    pub changed_unix_ms: u64,
}

impl CallRow {
    /// With what stands for its arguments.
    #[must_use]
    pub fn without_arguments(self) -> CallRow {
        CallRow { arguments: stand_in(&self.arguments), ..self }
    }
}

/// A conversation that was heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRow {
    /// Who asked.
    pub client: String,
    /// Route by name.
    pub route: String,
    /// The client's name for it.
    pub conversation: String,
    /// Turns that were asked: first and last of each stretch, in order.
    pub turns: Vec<(u64, u64)>,
    /// Highest history version.
    pub version: Option<u64>,
    /// When it was heard of last, Unix milliseconds.
    pub touched_unix_ms: u64,
}

impl ConversationRow {
    /// A turn was asked.
    pub fn see(&mut self, turn: u64, version: Option<u64>, at_unix_ms: u64) {
        self.version = self.version.max(version);
        self.touched_unix_ms = self.touched_unix_ms.max(at_unix_ms);
        self.cover(turn, turn);
    }

    /// Takes over what another row of the same conversation knows.
    pub fn join(&mut self, other: &ConversationRow) {
        self.version = self.version.max(other.version);
        self.touched_unix_ms = self.touched_unix_ms.max(other.touched_unix_ms);
        for (first, last) in &other.turns {
            self.cover(*first, *last);
        }
    }

    fn cover(&mut self, first: u64, last: u64) {
        self.turns.push((first, last));
        self.turns.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(self.turns.len());
        for (first, last) in self.turns.drain(..) {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        joined.drain(..joined.len().saturating_sub(MAX_STRETCHES));
        self.turns = joined;
    }
}

/// One thing to write down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A call, new or anew.
    Call(CallRow),
    /// A call has come further, or back. One that is not known is passed over.
    State {
        /// Which.
        call_id: String,
        /// What it is now.
        state: CallState,
        /// When.
        at_unix_ms: u64,
    },
    /// Something was heard of a conversation: to be joined with what is known.
    Seen(ConversationRow),
}

/// Everything for the core: conversations with their calls, without arguments.
#[must_use]
pub fn remembered(conversations: Vec<ConversationRow>, calls: Vec<CallRow>, now_unix_ms: u64) -> Vec<Remembered> {
    let mut all = All { now_unix_ms, known: BTreeMap::new() };
    for row in conversations {
        let known = all.of(row.client, row.route, row.conversation, row.touched_unix_ms);
        known.version = row.version;
        known.turns = row.turns;
    }
    for row in calls {
        let known = all.of(row.client, row.route, row.conversation, row.since_unix_ms);
        let call = LedgerCall {
            call_id: row.call_id,
            operation_key: row.operation_key,
            tool: row.tool,
            arguments: row.arguments,
            side_effects: row.side_effects,
            state: row.state,
        };
        known.calls.push(RememberedCall { turn: row.turn, ordinal: row.ordinal, call });
    }
    all.known.into_values().collect()
}

struct All {
    now_unix_ms: u64,
    known: BTreeMap<(String, String, String), Remembered>,
}

impl All {
    fn of(&mut self, client: String, route: String, id: String, touched_unix_ms: u64) -> &mut Remembered {
        let age = Duration::from_millis(self.now_unix_ms.saturating_sub(touched_unix_ms));
        let known = self.known.entry((client.clone(), route.clone(), id.clone())).or_insert_with(|| Remembered {
            client,
            route,
            id,
            age,
            version: None,
            turns: Vec::new(),
            calls: Vec::new(),
        });
        known.age = known.age.min(age);
        known
    }
}

/// What the core holds in the place of a call's arguments: they may speak of people, and the input journal must not.
#[must_use]
pub fn stand_in(arguments: &str) -> String {
    format!("{} bytes", arguments.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_kept_as_stretches() {
        let mut row = ConversationRow::default();
        for turn in [1, 2, 3, 7, 5, 6, 3] {
            row.see(turn, Some(turn), turn * 10);
        }
        assert_eq!((row.turns.as_slice(), row.version, row.touched_unix_ms), (&[(1, 3), (5, 7)][..], Some(7), 70));
        row.see(4, None, 0);
        assert_eq!(row.turns, [(1, 7)]);
        row.see(u64::MAX, None, 0);
        row.see(0, None, 0);
        assert_eq!(row.turns, [(0, 7), (u64::MAX, u64::MAX)]);
        for n in 0..1_000u64 {
            row.see(100 + 2 * n, None, 0);
        }
        assert_eq!(row.turns.len(), MAX_STRETCHES, "bounded, the newest stay");
        assert_eq!(row.turns.last(), Some(&(u64::MAX, u64::MAX)));
    }
}
