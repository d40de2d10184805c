//! Setting the id of a tool call, and one member of its arguments, and nothing else (rule R5): in the events of a stream, where
//! a call comes in pieces, and in a whole answer.
//!
//! The new arguments of a streamed call stand in its first piece that has any; the later pieces become empty. Put together
//! they are the same text, whatever the pieces were.

use std::ops::Range;

use bytes::Bytes;
use serde_json::Value;

use super::chunk::{CallFragment, read_delta};
use super::rewrite::{Splice, splice};
use super::{ToolCall, json};

/// What a call must look like to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Its id; `None`: as it came.
    pub id: Option<String>,
    /// Its arguments; `None`: as they came.
    pub arguments: Option<String>,
}

/// Arguments with a member set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithMember {
    /// The text. What was there before is there byte for byte.
    pub text: String,
    /// The member was there with another value.
    pub overwritten: bool,
}

/// Sets a member of a call's arguments. Empty arguments are `{}`. `None` if they are no JSON object.
#[must_use]
pub fn with_member(arguments: &str, key: &str, value: &str) -> Option<WithMember> {
    let value = Value::from(value).to_string();
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let mut splices: Vec<Splice> = Vec::new();
    let (mut any, mut overwritten) = (false, false);
    let is_object = json::members(text, |m| {
        any = true;
        if m.key() == key
            && let Some(at) = json::place(text, m.value)
        {
            overwritten |= m.value != value;
            splices.push((at, value.clone()));
        }
    });
    if !is_object {
        return None;
    }
    if splices.is_empty() {
        let at = text.find('{')? + 1;
        let comma = if any { "," } else { "" };
        splices.push((at..at, format!("{}:{value}{comma}", Value::from(key))));
    }
    let text = String::from_utf8(splice(text.as_bytes(), &splices).to_vec()).ok()?;
    Some(WithMember { text, overwritten })
}

/// Where a piece of a call stands in the data of its event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which call of its choice it belongs to.
    pub(super) call: usize,
    object_at: Option<usize>,
    id_at: Option<Range<usize>>,
    id_filled: bool,
    function_at: Option<usize>,
    arguments_at: Option<Range<usize>>,
    arguments_are_object: bool,
}

impl Piece {
    pub(super) fn new(call: usize, fragment: &CallFragment) -> Piece {
        Piece {
            call,
            object_at: fragment.object_at,
            id_at: fragment.id_at.clone(),
            id_filled: fragment.id.is_some(),
            function_at: fragment.function_at,
            arguments_at: fragment.arguments_at.clone(),
            arguments_are_object: fragment.arguments_are_object,
        }
    }
}

/// Stamps the pieces of the calls of one choice, in their order.
pub(super) struct Stamper<'a> {
    stamps: &'a [Stamp],
    /// Per call: no id came with it; no arguments did; the id, the arguments are set.
    states: Vec<[bool; 4]>,
}

const NO_ID: usize = 0;
const NO_ARGUMENTS: usize = 1;
const ID_SET: usize = 2;
const ARGUMENTS_SET: usize = 3;

impl<'a> Stamper<'a> {
    /// `pieces`: all of them.
    pub(super) fn new<'p>(stamps: &'a [Stamp], calls: &[ToolCall], pieces: impl Iterator<Item = &'p Piece>) -> Self {
        let mut states: Vec<[bool; 4]> = calls.iter().map(|c| [c.id.is_empty(), true, false, false]).collect();
        for piece in pieces.filter(|p| p.arguments_at.is_some()) {
            if let Some(state) = states.get_mut(piece.call) {
                state[NO_ARGUMENTS] = false;
            }
        }
        Stamper { stamps, states }
    }

    /// What to change of a piece. `None`: it cannot be done.
    pub(super) fn piece(&mut self, piece: &Piece) -> Option<Vec<Splice>> {
        let (stamp, state) = (self.stamps.get(piece.call)?, self.states.get_mut(piece.call)?);
        let mut out = Vec::new();
        if let Some(id) = &stamp.id {
            let value = Value::from(id.as_str()).to_string();
            match &piece.id_at {
                // A call may repeat its id in every piece.
                Some(at) if piece.id_filled || (state[NO_ID] && !state[ID_SET]) => {
                    state[ID_SET] = true;
                    out.push((at.clone(), value));
                }
                None if state[NO_ID] && !state[ID_SET] => {
                    let at = piece.object_at? + 1;
                    state[ID_SET] = true;
                    out.push((at..at, format!("\"id\":{value},")));
                }
                _ => {}
            }
        }
        if let Some(arguments) = &stamp.arguments {
            let text = Value::from(arguments.as_str()).to_string();
            match (&piece.arguments_at, piece.function_at) {
                (Some(at), _) if state[ARGUMENTS_SET] => out.push((at.clone(), "\"\"".to_owned())),
                (Some(at), _) => {
                    state[ARGUMENTS_SET] = true;
                    out.push((at.clone(), if piece.arguments_are_object { arguments.clone() } else { text }));
                }
                (None, Some(at)) if state[NO_ARGUMENTS] && !state[ARGUMENTS_SET] => {
                    state[ARGUMENTS_SET] = true;
                    out.push((at + 1..at + 1, format!("\"arguments\":{text},")));
                }
                (None, _) => {}
            }
        }
        Some(out)
    }

    /// Every call has got what its stamp says.
    pub(super) fn complete(&self) -> bool {
        self.stamps.len() == self.states.len()
            && self.stamps.iter().zip(&self.states).all(|(stamp, state)| {
                (stamp.id.is_none() || state[ID_SET]) && (stamp.arguments.is_none() || state[ARGUMENTS_SET])
            })
    }
}

/// A whole answer with its calls stamped, in their order. `None` if it cannot be done: the old `function_call`, calls in more
/// than one choice, another number of calls.
#[must_use]
pub fn stamp_answer(body: &[u8], stamps: &[Stamp]) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    let object = text.trim_start_matches('\u{feff}').trim();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    let (mut choices_with_calls, mut legacy) = (0, false);
    json::members(object, |m| {
        if m.key() != "choices" {
            return;
        }
        json::elements(m.value, |choice| {
            json::members(choice, |m| {
                if m.key() != "message" {
                    return;
                }
                let fragments = read_delta(m.value, text).tool_calls;
                choices_with_calls += usize::from(!fragments.is_empty());
                for fragment in &fragments {
                    legacy |= fragment.legacy;
                    pieces.push(Piece::new(calls.len(), fragment));
                    calls.push(ToolCall { id: fragment.id.clone().unwrap_or_default(), ..ToolCall::default() });
                }
            });
        });
    });
    if legacy || choices_with_calls > 1 {
        return None;
    }
    let mut stamper = Stamper::new(stamps, &calls, pieces.iter());
    let mut splices = Vec::new();
    for piece in &pieces {
        splices.extend(stamper.piece(piece)?);
    }
    stamper.complete().then(|| splice(body, &splices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_set_and_the_rest_stays_as_it_was() {
        for (before, after, overwritten) in [
            ("", r#"{"operation_id":"op_1"}"#, false),
            ("{}", r#"{"operation_id":"op_1"}"#, false),
            (" { } ", r#" {"operation_id":"op_1" } "#, false),
            (r#"{ "a" : 1.50, "b":[{}] }"#, r#"{"operation_id":"op_1", "a" : 1.50, "b":[{}] }"#, false),
            (r#"{"a":1,"operation_id": "mine" ,"b":2}"#, r#"{"a":1,"operation_id": "op_1" ,"b":2}"#, true),
            (r#"{"operation_id":null}"#, r#"{"operation_id":"op_1"}"#, true),
            (r#"{"operation_id":"op_1"}"#, r#"{"operation_id":"op_1"}"#, false),
            // Two readers may take different ones: both are set.
            (
                r#"{"operation_id":1,"operation\u005fid":2}"#,
                r#"{"operation_id":"op_1","operation\u005fid":"op_1"}"#,
                true,
            ),
            // One further inside is somebody else's.
            (r#"{"a":{"operation_id":1}}"#, r#"{"operation_id":"op_1","a":{"operation_id":1}}"#, false),
        ] {
            let got = with_member(before, "operation_id", "op_1");
            assert_eq!(got, Some(WithMember { text: after.to_owned(), overwritten }), "{before}");
        }
        for bad in ["[]", "{", "\"x\"", "null", "{\"a\":1"] {
            assert_eq!(with_member(bad, "k", "v"), None, "{bad}");
        }
        assert_eq!(with_member("{}", "k\"", "v\"\n").unwrap().text, r#"{"k\"":"v\"\n"}"#);
    }

    fn stamp(id: &str, arguments: Option<&str>) -> Stamp {
        Stamp { id: Some(id.into()), arguments: arguments.map(str::to_owned) }
    }

    #[test]
    fn a_whole_answer_is_stamped_in_place() {
        let body = r#" {"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"\u00e9","tool_calls":[
            {"id":"call_x","type":"function","function":{"name":"create_ticket","arguments":"{\"subject\": \"é\"}"}},
            {"type":"function","function":{"name":"get_order"}},
            {"id":"","function":{"name":"f","arguments":{"a":1}}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1}} "#;
        let stamps = [
            stamp("call_1", Some(r#"{"k":"v","subject": "é"}"#)),
            stamp("call_2", Some(r#"{"k":"w"}"#)),
            stamp("call_3", Some(r#"{"k":"z","a":1}"#)),
        ];
        let right = body
            .replace("call_x", "call_1")
            .replace(r#""{\"subject\": \"é\"}""#, r#""{\"k\":\"v\",\"subject\": \"é\"}""#)
            .replace(
                r#"{"type":"function","function":{"name":"get_order"}}"#,
                r#"{"id":"call_2","type":"function","function":{"arguments":"{\"k\":\"w\"}","name":"get_order"}}"#,
            )
            .replace(r#""id":"","#, r#""id":"call_3","#)
            .replace(r#"{"a":1}"#, r#"{"k":"z","a":1}"#);
        let got = stamp_answer(body.as_bytes(), &stamps).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), right);
        assert_eq!(stamp_answer(body.as_bytes(), &stamps[..2]), None, "one is missing");
        let same = [Stamp::default(), Stamp::default(), Stamp::default()];
        assert_eq!(stamp_answer(body.as_bytes(), &same).unwrap(), body.as_bytes());
    }

    #[test]
    fn what_has_no_id_or_no_one_place_is_not_stamped() {
        let legacy = r#"{"choices":[{"message":{"function_call":{"name":"f","arguments":"{}"}}}]}"#;
        assert_eq!(stamp_answer(legacy.as_bytes(), &[stamp("a", None)]), None);
        let call = r#"{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}}"#;
        let two = format!(r#"{{"choices":[{call},{call}]}}"#);
        assert_eq!(stamp_answer(two.as_bytes(), &[stamp("a", None), stamp("b", None)]), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_arguments_are_only_the_member_changes(
            members in proptest::collection::vec(("[a-c\"\\\\é]{0,3}", "[\\PC]{0,8}"), 0..6),
            nested in proptest::bool::ANY,
            key in "[a-c]",
        ) {
            let mut object = serde_json::Map::new();
            for (name, value) in &members {
                let value = Value::from(value.as_str());
                object.insert(name.clone(), if nested { serde_json::json!({ "a": value }) } else { value });
            }
            let text = Value::Object(object.clone()).to_string();
            let got = with_member(&text, &key, "op_\"1").unwrap();
            let had = object.insert(key.clone(), Value::from("op_\"1"));
            let read: Value = serde_json::from_str(&got.text).unwrap();
            proptest::prop_assert_eq!(&read, &Value::Object(object));
            proptest::prop_assert_eq!(got.overwritten, had.is_some());
            // What was there before is there byte for byte.
            if had.is_none() {
                let put = format!("{}:{}", Value::from(key.as_str()), Value::from("op_\"1"));
                let comma = if members.is_empty() { "" } else { "," };
                proptest::prop_assert_eq!(got.text.replacen(&(put + comma), "", 1), text);
            }
        }
    }
}
