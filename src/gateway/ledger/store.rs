//! Where the ledger is written down: a file, or memory for whoever asks for that.

use std::collections::BTreeMap;

use super::row::{CallRow, Change, ConversationRow};
use crate::router::ledger::CallState;

/// What a store says when it could not: one sentence for people.
pub type Failed = String;

/// A place for rows. It is used from one thread, which may wait.
pub trait Store: Send {
    /// Writes all of these, or none. When it returns they survive a crash of the process and of the machine.
    ///
    /// # Errors
    /// Why they could not be written.
    fn apply(&mut self, changes: &[Change]) -> Result<(), Failed>;

    /// One call.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn call(&mut self, call_id: &str) -> Result<Option<CallRow>, Failed>;

    /// Every call, in the order of their ids. Without `arguments` what stands for them (`row::stand_in`): all of them together may
    /// be large.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn calls(&mut self, arguments: bool) -> Result<Vec<CallRow>, Failed>;

    /// Every conversation.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn conversations(&mut self) -> Result<Vec<ConversationRow>, Failed>;

    /// Forgets what is older than this, and the oldest of what is too much. Says how many calls it forgot.
    ///
    /// # Errors
    /// Why it could not.
    fn prune(&mut self, before_unix_ms: u64, bounds: &Bounds) -> Result<usize, Failed>;

    /// Tries to become usable again after a failure.
    ///
    /// # Errors
    /// Why it is not.
    fn reopen(&mut self) -> Result<(), Failed>;
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Calls.
    pub calls: usize,
    /// Bytes of their rows.
    pub bytes: u64,
    /// Conversations.
    pub conversations: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            calls: super::row::MAX_CALLS,
            bytes: super::row::MAX_BYTES,
            conversations: super::row::MAX_CONVERSATIONS,
        }
    }
}

/// A store that a restart empties.
#[derive(Debug, Default)]
pub struct Memory {
    calls: BTreeMap<String, CallRow>,
    conversations: BTreeMap<(String, String, String), ConversationRow>,
}

/// A changed state. A call that was given back does not count as delivered any more, whatever is heard later.
pub(super) fn set_state(row: &mut CallRow, state: CallState, at_unix_ms: u64) {
    row.state = state;
    row.changed_unix_ms = at_unix_ms;
}

pub(super) fn place(row: &ConversationRow) -> (String, String, String) {
    (row.client.clone(), row.route.clone(), row.conversation.clone())
}

impl Store for Memory {
    fn apply(&mut self, changes: &[Change]) -> Result<(), Failed> {
        for change in changes {
            match change {
                Change::Call(row) => {
                    self.calls.insert(row.call_id.clone(), row.clone());
                }
                Change::State { call_id, state, at_unix_ms } => {
                    if let Some(row) = self.calls.get_mut(call_id) {
                        set_state(row, *state, *at_unix_ms);
                    }
                }
                Change::Seen(row) => {
                    self.conversations.entry(place(row)).or_insert_with(|| row.clone()).join(row);
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, call_id: &str) -> Result<Option<CallRow>, Failed> {
        Ok(self.calls.get(call_id).cloned())
    }

    fn calls(&mut self, arguments: bool) -> Result<Vec<CallRow>, Failed> {
        Ok(self.calls.values().cloned().map(|row| if arguments { row } else { row.without_arguments() }).collect())
    }

    fn conversations(&mut self) -> Result<Vec<ConversationRow>, Failed> {
        Ok(self.conversations.values().cloned().collect())
    }

    fn prune(&mut self, before_unix_ms: u64, bounds: &Bounds) -> Result<usize, Failed> {
        let ages = self.calls.values().map(|row| (row.since_unix_ms, row.call_id.clone(), row.arguments.len() as u64));
        let gone = too_much(ages.collect(), before_unix_ms, bounds.calls, bounds.bytes);
        for call_id in &gone {
            self.calls.remove(call_id);
        }
        let ages = self.conversations.values().map(|row| (row.touched_unix_ms, place(row), 0));
        for place in too_much(ages.collect(), before_unix_ms, bounds.conversations, u64::MAX) {
            self.conversations.remove(&place);
        }
        Ok(gone.len())
    }

    fn reopen(&mut self) -> Result<(), Failed> {
        Ok(())
    }
}

/// Which of these (when, what, bytes) are too old or, beginning with the oldest, too many.
pub(super) fn too_much<K: Ord>(mut all: Vec<(u64, K, u64)>, before: u64, count: usize, bytes: u64) -> Vec<K> {
    all.sort_unstable();
    let mut left = all.len();
    let mut held: u64 = all.iter().map(|(_, _, bytes)| bytes).sum();
    let mut gone = Vec::new();
    for (at, key, size) in all {
        if at >= before && left <= count && held <= bytes {
            break;
        }
        left -= 1;
        held -= size;
        gone.push(key);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_by_age_number_and_size() {
        let all = || vec![(30, "c", 5), (10, "a", 5), (20, "b", 5)];
        assert_eq!(too_much(all(), 0, 9, 99), Vec::<&str>::new());
        assert_eq!(too_much(all(), 20, 9, 99), ["a"]);
        assert_eq!(too_much(all(), 0, 1, 99), ["a", "b"]);
        assert_eq!(too_much(all(), 0, 9, 9), ["a", "b"]);
    }
}
