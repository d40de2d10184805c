//! Assembly of tool calls from fragments, per choice and call.
//!
//! Which call a fragment belongs to is not always said. In this order:
//! 1. a fragment with an index belongs to the newest call that was sent under that index, unless it opens another one;
//! 2. a fragment without an index belongs to the call with its id, else to the newest call of the choice;
//! 3. it *opens* a call if there is none yet; if it has a name and an id that differs from the call's (two calls both sent
//!    as index 0 are two calls); or, from servers that send no ids, if it has a name and the call is whole already (its
//!    arguments are JSON) or has another name. A new id without a name continues a call: a call cannot begin without a name.

use std::collections::BTreeMap;

use super::chunk::CallFragment;
use super::json;

/// One call as assembled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id as received; empty if none came.
    pub id: String,
    /// The function; empty if none came.
    pub name: String,
    /// The arguments text as received. May be empty: valid, and to be read as `{}`.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments are JSON, or empty (case B028).
    #[must_use]
    pub fn arguments_whole(&self) -> bool {
        self.arguments.trim().is_empty() || json::is_whole(self.arguments.as_bytes())
    }
}

/// Where a fragment went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The index under which the call must be known to the client.
    pub index: u64,
    /// Which call of the choice, in the order in which they were opened.
    pub call: usize,
    /// It opened the call.
    pub opened: bool,
}

/// The calls of one choice.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    calls: Vec<ToolCall>,
    /// The index of each call as the client must see it.
    indices: Vec<u64>,
    /// The newest call under each index as sent.
    newest: BTreeMap<u64, usize>,
    /// The newest call of all.
    last: Option<usize>,
    bytes: usize,
}

impl Calls {
    /// The calls so far, in the order in which they were opened.
    #[must_use]
    pub fn calls(&self) -> &[ToolCall] {
        &self.calls
    }

    /// Bytes held by names, ids and arguments.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// At least one call, each with a name, and all arguments are JSON or empty.
    #[must_use]
    pub fn whole(&self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(|c| !c.name.is_empty() && c.arguments_whole())
    }

    /// At least one call with a name.
    #[must_use]
    pub fn named(&self) -> bool {
        self.calls.iter().any(|c| !c.name.is_empty())
    }

    /// Adds a fragment.
    pub fn add(&mut self, fragment: &CallFragment) -> Placed {
        let known = match fragment.index {
            Some(index) => self.newest.get(&index).copied(),
            None => fragment.id.as_ref().and_then(|id| self.calls.iter().rposition(|c| c.id == *id)).or(self.last),
        };
        let known = known.filter(|&n| !opens(&self.calls[n], fragment));
        let (n, opened) = match known {
            Some(n) => (n, false),
            None => (self.open(fragment.index), true),
        };
        self.last = Some(n);
        let call = &mut self.calls[n];
        if call.id.is_empty()
            && let Some(id) = &fragment.id
        {
            call.id.clone_from(id);
            self.bytes += id.len();
        }
        if call.name.is_empty()
            && let Some(name) = &fragment.name
        {
            call.name.clone_from(name);
            self.bytes += name.len();
        }
        if let Some(arguments) = &fragment.arguments {
            call.arguments.push_str(arguments);
            self.bytes += arguments.len();
        }
        Placed { index: self.indices[n], call: n, opened }
    }

    fn open(&mut self, sent: Option<u64>) -> usize {
        let free = self.indices.iter().max().map_or(0, |max| max.saturating_add(1));
        let index = sent.filter(|i| !self.indices.contains(i)).unwrap_or(free);
        let n = self.calls.len();
        self.calls.push(ToolCall::default());
        self.indices.push(index);
        if let Some(sent) = sent {
            self.newest.insert(sent, n);
        }
        n
    }
}

/// The fragment cannot be a part of this call.
fn opens(call: &ToolCall, fragment: &CallFragment) -> bool {
    let Some(name) = &fragment.name else {
        return false;
    };
    match &fragment.id {
        Some(id) if !call.id.is_empty() => *id != call.id,
        None if !call.id.is_empty() => false,
        _ if call.name.is_empty() => false,
        _ => *name != call.name || (!call.arguments.trim().is_empty() && call.arguments_whole()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `index`, id, name, arguments; an empty text is none.
    fn assemble(fragments: &[(Option<u64>, &str, &str, &str)]) -> (Calls, Vec<u64>) {
        let mut calls = Calls::default();
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let places = fragments
            .iter()
            .map(|(index, id, name, arguments)| {
                let (id, name) = (some(id), some(name));
                let arguments = Some((*arguments).to_owned());
                calls.add(&CallFragment { index: *index, id, name, arguments, ..CallFragment::default() }).index
            })
            .collect();
        (calls, places)
    }

    fn texts(calls: &Calls) -> Vec<(&str, &str, &str)> {
        calls.calls().iter().map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str())).collect()
    }

    #[test]
    fn b025_parallel_calls_alternate_by_index() {
        let (calls, places) = assemble(&[
            (Some(0), "a", "f", ""),
            (Some(1), "b", "g", ""),
            (Some(0), "", "", "{\"x\":"),
            (Some(1), "", "", "{\"y\""),
            (Some(0), "", "", "1}"),
            (Some(1), "", "", ":2}"),
        ]);
        assert_eq!(texts(&calls), [("a", "f", "{\"x\":1}"), ("b", "g", "{\"y\":2}")]);
        assert_eq!(places, [0, 1, 0, 1, 0, 1]);
        assert!(calls.whole());
    }

    #[test]
    fn b026_calls_without_an_index_are_kept_apart() {
        let (calls, places) = assemble(&[(None, "a", "f", "{}"), (None, "b", "f", "{}"), (None, "c", "g", "{}")]);
        assert_eq!(texts(&calls), [("a", "f", "{}"), ("b", "f", "{}"), ("c", "g", "{}")]);
        assert_eq!(places, [0, 1, 2]);
        let (calls, _) = assemble(&[
            (None, "a", "f", ""),
            (None, "", "", "{\"x\":"),
            (None, "", "", "1}"),
            (None, "b", "g", ""),
            (None, "", "", "{}"),
            (None, "a", "", " "),
        ]);
        assert_eq!(texts(&calls), [("a", "f", "{\"x\":1} "), ("b", "g", "{}")]);
        // Not even an id: a name opens a call once the one before is whole.
        let (calls, _) = assemble(&[(None, "", "f", "{}"), (None, "", "f", "{\"a\":1}"), (None, "", "g", "")]);
        assert_eq!(calls.calls().len(), 3);
    }

    #[test]
    fn two_calls_under_one_index_are_two_and_renumbered() {
        let (calls, places) = assemble(&[
            (Some(0), "a", "f", "{}"),
            (Some(0), "b", "f", "{\"x\""),
            (Some(0), "", "", ":1}"),
            (Some(1), "c", "g", "{}"),
        ]);
        assert_eq!(texts(&calls), [("a", "f", "{}"), ("b", "f", "{\"x\":1}"), ("c", "g", "{}")]);
        assert_eq!(places, [0, 1, 1, 2]);
        let (calls, places) = assemble(&[(Some(0), "", "f", "{}"), (Some(0), "", "g", "{}")]);
        assert_eq!((calls.calls().len(), places), (2, vec![0, 1]));
    }

    #[test]
    fn a_call_that_repeats_itself_is_one() {
        // Id and name in every fragment; a name in every fragment; another id in every fragment; neither.
        for fragments in [
            [(Some(0), "a", "f", "{"), (Some(0), "a", "f", "}"), (Some(0), "a", "f", " ")],
            [(Some(0), "a", "f", "{"), (Some(0), "", "f", "}"), (Some(0), "", "f", " ")],
            [(Some(0), "a", "f", "{"), (Some(0), "b", "", "}"), (Some(0), "c", "", " ")],
            [(None, "", "f", ""), (None, "", "f", "{}"), (None, "", "", " ")],
        ] {
            let (calls, places) = assemble(&fragments);
            assert_eq!(calls.calls().len(), 1, "{fragments:?}");
            assert_eq!(calls.calls()[0].arguments, "{} ");
            assert_eq!(places, [0, 0, 0]);
        }
    }

    #[test]
    fn b028_empty_arguments_are_whole_and_cut_ones_are_not() {
        assert!(assemble(&[(Some(0), "a", "f", "")]).0.whole());
        assert!(!assemble(&[(Some(0), "a", "f", "{\"order_id\":\"A1\",\"amo")]).0.whole());
        assert!(!assemble(&[(Some(0), "a", "", "{}")]).0.whole());
        assert!(!Calls::default().whole());
    }
}
