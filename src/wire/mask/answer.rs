//! Which texts of an answer values come back into; and a whole answer, restored.

use crate::wire::StreamFault;
use bytes::Bytes;

use super::hold::{Mode, restore};
use super::originals::Originals;
use super::text::{Escapes, Token, decoded, places, quoted_inside, tokens};
use crate::wire::json;
use crate::wire::rewrite::{self, Splice};

/// Which text of a choice it is: pieces of the same text follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Content,
    /// The text of a content part.
    Part,
    Refusal,
    /// Thoughts, by the member that holds them.
    Thought(&'static str),
    /// Arguments of the call in this slot.
    Arguments(usize),
    /// The free text of a custom tool's call.
    Input(usize),
    /// Arguments of the old `function_call`.
    Legacy,
    /// A text whose pieces are not followed: what is whole in it comes back.
    Loose,
}

impl Key {
    pub(super) fn mode(self, originals: &Originals) -> Mode {
        match self {
            Key::Arguments(_) | Key::Legacy => Mode::Json,
            Key::Content | Key::Part if originals.json() => Mode::Json,
            _ => Mode::Text,
        }
    }
}

/// A fragment of a tool call, as far as it says which one it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) named: bool,
}

/// What a choice of an answer or a chunk holds.
#[derive(Debug, Default)]
pub(super) struct Heard<'a> {
    pub(super) index: u64,
    pub(super) finished: bool,
    /// Texts with the inside of their JSON string.
    pub(super) texts: Vec<(Key, &'a str)>,
    pub(super) fragments: Vec<Fragment>,
}

const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Takes the choices of a chunk or an answer apart. In [`Key::Arguments`] and [`Key::Input`] stands the place of the fragment
/// in this list. False: it is no object.
pub(super) fn hear(data: &str, mut each: impl FnMut(Heard<'_>)) -> bool {
    json::members(data, |m| {
        if m.key() == "choices" {
            let mut place = 0;
            json::elements(m.value, |choice| {
                let mut heard = Heard { index: place, ..Heard::default() };
                place += 1;
                json::members(choice, |c| match c.key().as_ref() {
                    "index" => heard.index = json::unsigned(c.value).unwrap_or(heard.index),
                    "finish_reason" => heard.finished = json::filled_text(c.value).is_some(),
                    "delta" | "message" => said(c.value, &mut heard),
                    _ => {}
                });
                each(heard);
            });
        }
    })
}

fn said<'a>(value: &'a str, heard: &mut Heard<'a>) {
    json::members(value, |m| match m.key().as_ref() {
        "role" | "id" | "type" | "name" => {}
        "content" => match inside(m.value) {
            Some(text) => heard.texts.push((Key::Content, text)),
            None => {
                json::elements(m.value, |part| part_of(part, heard));
            }
        },
        "tool_calls" => {
            let list = json::elements(m.value, |call| call_of(call, heard));
            if !list && m.value.starts_with('{') {
                call_of(m.value, heard);
            }
        }
        "function_call" => {
            json::members(m.value, |f| match (f.key().as_ref(), inside(f.value)) {
                ("arguments", Some(text)) => heard.texts.push((Key::Legacy, text)),
                ("name", _) => {}
                _ => loose(f.value, heard),
            });
        }
        key => match (key, THOUGHTS.iter().find(|t| **t == key), inside(m.value)) {
            ("refusal", _, Some(text)) => heard.texts.push((Key::Refusal, text)),
            (_, Some(thought), Some(text)) => heard.texts.push((Key::Thought(thought), text)),
            _ => loose(m.value, heard),
        },
    });
}

fn part_of<'a>(part: &'a str, heard: &mut Heard<'a>) {
    let mut plain = true;
    json::members(part, |p| {
        if p.key() == "type" {
            plain = matches!(p.value, "\"text\"" | "\"output_text\"");
        }
    });
    json::members(part, |p| match (p.key().as_ref(), inside(p.value)) {
        ("type" | "id", _) => {}
        ("text", Some(text)) if plain => heard.texts.push((Key::Part, text)),
        _ => loose(p.value, heard),
    });
}

fn call_of<'a>(call: &'a str, heard: &mut Heard<'a>) {
    let slot = heard.fragments.len();
    let mut fragment = Fragment::default();
    json::members(call, |c| match c.key().as_ref() {
        "index" => fragment.index = json::unsigned(c.value),
        "id" => fragment.id = json::loose_text(c.value).filter(|id| !id.is_empty()),
        "type" => {}
        "function" | "custom" => {
            json::members(c.value, |f| match (f.key().as_ref(), inside(f.value)) {
                ("name", _) => fragment.named |= json::filled_text(f.value).is_some(),
                ("arguments", Some(text)) => heard.texts.push((Key::Arguments(slot), text)),
                ("input", Some(text)) => heard.texts.push((Key::Input(slot), text)),
                _ => loose(f.value, heard),
            });
        }
        _ => loose(c.value, heard),
    });
    heard.fragments.push(fragment);
}

fn loose<'a>(value: &'a str, heard: &mut Heard<'a>) {
    tokens(value, |token| {
        if let Token::Text(at) = token {
            heard.texts.extend(value.get(at).map(|text| (Key::Loose, text)));
        }
    });
}

/// The inside of a JSON string.
fn inside(value: &str) -> Option<&str> {
    value.starts_with('"').then(|| value.get(1..value.len().saturating_sub(1))).flatten()
}

/// The splices that restore one text of `data`, and whether it holds anything at all.
pub(super) fn restore_text(
    originals: &Originals,
    data: &str,
    text: &str,
    mode: Mode,
    held: &mut String,
    last: bool,
    splices: &mut Vec<Splice>,
) {
    let Some(at) = json::place(data, text) else { return };
    let says = decoded(text, Escapes::Json);
    let changes = restore(originals, held, &says, mode, last);
    let mut ends: Vec<usize> = changes.iter().flat_map(|(r, _)| [r.start, r.end]).collect();
    places(text, Escapes::Json, &mut ends);
    for (pair, (_, put)) in ends.chunks_exact(2).zip(changes) {
        if let [from, to] = pair {
            splices.push((from + at.start..to + at.start, quoted_inside(&put)));
        }
    }
}

/// The bytes that splices add at most.
pub(super) fn added(splices: &[Splice]) -> usize {
    splices.iter().map(|(_, text)| text.len()).sum()
}

/// A whole answer with the values put back. What is no answer stays as it is.
///
/// # Errors
/// It would be larger than `max_bytes`; or it is not UTF-8, so that a placeholder in it would reach the client as it is.
pub fn restore_answer(originals: &Originals, body: Bytes, max_bytes: usize) -> Result<Bytes, StreamFault> {
    let text = std::str::from_utf8(&body).map_err(|_| not_text())?;
    let data = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut splices = Vec::new();
    let object = hear(data, |heard| {
        for (key, text) in heard.texts {
            let mode = key.mode(originals);
            restore_text(originals, data, text, mode, &mut String::new(), true, &mut splices);
        }
    });
    if !object || splices.is_empty() {
        return Ok(body);
    }
    if data.len().saturating_add(added(&splices)) > max_bytes {
        return Err(StreamFault::TooLarge);
    }
    Ok(rewrite::splice(data.as_bytes(), &splices))
}

/// An answer to a masked request that cannot be read as text.
pub(super) fn not_text() -> StreamFault {
    StreamFault::Malformed("bytes that are no UTF-8, in which what was masked cannot be put back".to_owned())
}
