//! Putting values back into a stream, event by event, before anything else looks at it: what commits, what is a sentence and
//! whether a call is whole is judged on what the client gets.
//!
//! Each text of each choice and each call has what is held back of it of its own. When its choice ends, or another call begins
//! in its place, what is still held back is let go in an event of its own, before the one that ends it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::answer::{Fragment, Key, added, hear, not_text, restore_text};
use super::originals::Originals;
use super::text::quoted_inside;
use crate::wire::json;
use crate::wire::rewrite;
use crate::wire::sse::{MAX_EVENT_BYTES, SseEvent, SseKind, read_block};
use crate::wire::stream::StreamFault;

/// Restores the events of one stream.
#[derive(Debug)]
pub(in super::super) struct Restorer {
    originals: Arc<Originals>,
    held: BTreeMap<(u64, Key), String>,
    /// Calls by choice: what is known of each.
    slots: BTreeMap<u64, Vec<Fragment>>,
    /// The members of a chunk that come before its choices, of the last one of which something is held back.
    head: String,
}

/// An event, restored.
pub(in super::super) struct Restored {
    /// To be taken first: what had been held back and can wait no longer.
    pub(in super::super) before: Option<SseEvent>,
    /// The event.
    pub(in super::super) event: SseEvent,
    /// The provider sent text in it, even if all of that is held back.
    pub(in super::super) life: bool,
}

impl Restorer {
    pub(in super::super) fn new(originals: Arc<Originals>) -> Restorer {
        Restorer { originals, held: BTreeMap::new(), slots: BTreeMap::new(), head: String::new() }
    }

    /// Restores the next event.
    pub(in super::super) fn event(&mut self, event: SseEvent) -> Result<Restored, StreamFault> {
        if event.kind != SseKind::Data {
            return Ok(Restored { before: None, event, life: false });
        }
        let data = event.data.clone();
        // The end must not overtake what is held back.
        if event.is_done() {
            return Ok(Restored { before: self.rest(), event, life: false });
        }
        let whole = std::str::from_utf8(&data).map_err(|_| not_text())?;
        let originals = Arc::clone(&self.originals);
        let (mut due, mut splices, mut life) = (Vec::new(), Vec::new(), false);
        hear(whole, |mut heard| {
            let choice = heard.index;
            let slots: Vec<usize> = heard.fragments.iter().map(|f| self.slot(choice, f, &mut due)).collect();
            for (key, _) in &mut heard.texts {
                match key {
                    Key::Arguments(n) | Key::Input(n) => *n = slots.get(*n).copied().unwrap_or(*n),
                    _ => {}
                }
            }
            for (n, (key, text)) in heard.texts.iter().enumerate() {
                life |= !text.is_empty() && *key != Key::Loose;
                let other = match key {
                    Key::Content => Some(Key::Part),
                    Key::Part => Some(Key::Content),
                    _ => None,
                };
                due.extend(other.and_then(|other| self.take(choice, other)));
                let again = heard.texts.iter().skip(n + 1).any(|(later, _)| later == key);
                let last = *key == Key::Loose || (heard.finished && !again);
                let mut held = self.held.remove(&(choice, *key)).unwrap_or_default();
                restore_text(&originals, whole, text, key.mode(&originals), &mut held, last, &mut splices);
                if !held.is_empty() {
                    self.held.insert((choice, *key), held);
                }
            }
            if heard.finished {
                let keys: Vec<Key> = self
                    .held
                    .range((choice, Key::Content)..)
                    .map_while(|((c, k), _)| (*c == choice).then_some(*k))
                    .collect();
                due.extend(keys.into_iter().filter_map(|key| self.take(choice, key)));
            }
        });
        let before = self.synthetic(due);
        if !self.held.is_empty() {
            self.head = head(whole);
        }
        if splices.is_empty() {
            return Ok(Restored { before, event, life });
        }
        if data.len().saturating_add(added(&splices)) > MAX_EVENT_BYTES {
            return Err(StreamFault::TooLarge);
        }
        let raw = rewrite::splice_event(&event, &splices);
        let event = SseEvent { named_error: event.named_error, ..read_block(raw) };
        Ok(Restored { before, event, life })
    }

    /// Everything that is held back: the stream is over.
    pub(in super::super) fn rest(&mut self) -> Option<SseEvent> {
        let keys: Vec<(u64, Key)> = self.held.keys().copied().collect();
        let due = keys.into_iter().filter_map(|(choice, key)| self.take(choice, key)).collect();
        self.synthetic(due)
    }

    fn take(&mut self, choice: u64, key: Key) -> Option<(u64, Key, String)> {
        self.held.remove(&(choice, key)).map(|text| (choice, key, text))
    }

    /// Which call a fragment belongs to: as `toolcall.rs` has it, as far as a placeholder can be torn by it. One that takes
    /// the place of another ends that one's arguments.
    fn slot(&mut self, choice: u64, fragment: &Fragment, due: &mut Vec<(u64, Key, String)>) -> usize {
        let slots = self.slots.entry(choice).or_default();
        let known = match (fragment.index, &fragment.id) {
            (Some(index), _) => slots.iter().rposition(|s| s.index == Some(index)),
            (None, Some(id)) => slots.iter().rposition(|s| s.id.as_ref() == Some(id)).or(slots.len().checked_sub(1)),
            (None, None) => slots.len().checked_sub(1),
        };
        let opens = |slot: &Fragment| match (&fragment.id, &slot.id) {
            (Some(new), Some(old)) => fragment.named && new != old,
            (None, None) => fragment.named && fragment.index.is_none(),
            _ => false,
        };
        if let Some(known) = known.filter(|n| slots.get(*n).is_some_and(|slot| !opens(slot))) {
            if let Some(slot) = slots.get_mut(known)
                && slot.id.is_none()
            {
                slot.id.clone_from(&fragment.id);
            }
            return known;
        }
        let new = slots.len();
        slots.push(fragment.clone());
        if let Some(old) = known {
            due.extend(self.take(choice, Key::Arguments(old)));
            due.extend(self.take(choice, Key::Input(old)));
        }
        new
    }

    /// A chunk with nothing but these texts.
    fn synthetic(&self, due: Vec<(u64, Key, String)>) -> Option<SseEvent> {
        if due.is_empty() {
            return None;
        }
        let mut raw = format!("data: {{{}\"choices\":[", self.head);
        for (n, (choice, key, text)) in due.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let text = quoted_inside(text);
            let delta = match key {
                Key::Content | Key::Loose => format!("\"content\":\"{text}\""),
                Key::Part => format!("\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]"),
                Key::Refusal => format!("\"refusal\":\"{text}\""),
                Key::Thought(member) => format!("\"{member}\":\"{text}\""),
                Key::Legacy => format!("\"function_call\":{{\"arguments\":\"{text}\"}}"),
                Key::Arguments(slot) => {
                    self.call(*choice, *slot, &format!("\"function\":{{\"arguments\":\"{text}\"}}"))
                }
                Key::Input(slot) => self.call(*choice, *slot, &format!("\"custom\":{{\"input\":\"{text}\"}}")),
            };
            let _ = write!(raw, "{comma}{{\"index\":{choice},\"delta\":{{{delta}}},\"finish_reason\":null}}");
        }
        raw.push_str("]}\n\n");
        Some(read_block(Bytes::from(raw)))
    }

    fn call(&self, choice: u64, slot: usize, what: &str) -> String {
        let known = self.slots.get(&choice).and_then(|slots| slots.get(slot));
        let which = match known {
            Some(Fragment { index: Some(index), .. }) => format!("\"index\":{index},"),
            Some(Fragment { id: Some(id), .. }) => format!("\"id\":\"{}\",", quoted_inside(id)),
            _ => String::new(),
        };
        format!("\"tool_calls\":[{{{which}{what}}}]")
    }
}

/// What a chunk says about itself, as it is written, each member with a comma behind it.
fn head(chunk: &str) -> String {
    let mut out = String::new();
    json::members(chunk, |m| {
        if matches!(m.key().as_ref(), "id" | "object" | "created" | "model" | "system_fingerprint") {
            let _ = write!(out, "{}:{},", m.raw_key, m.value);
        }
    });
    out
}
