//! `[P]` What a scripted provider says: a pure function of who it is, what it was asked and what was sabotaged. The text
//! depends on (provider, conversation marker, turn, kind) alone, so that a judge can tell from any three pieces who wrote
//! them, and a repeated request is told from a new one by its tool-call id.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod asked;
pub mod frames;
pub mod instance;
pub mod voice;

use serde_json::{Map, Value, json};

pub use asked::Asked;
pub use voice::Voice;

use crate::load::marker::Kind;
use crate::units::Rng;

/// What is broken on purpose: `POST /sabotage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// The JSON answer misses a required field.
    Schema,
    /// A customer who must reach a human gets a text.
    Handoff,
    /// The answer names a wrong order number.
    Context,
}

impl Sabotage {
    /// Every value with its name.
    pub const ALL: [(&'static str, Sabotage); 4] = [
        ("none", Sabotage::None),
        ("schema", Sabotage::Schema),
        ("handoff", Sabotage::Handoff),
        ("context", Sabotage::Context),
    ];

    /// By name.
    #[must_use]
    pub fn named(name: &str) -> Option<Sabotage> {
        Sabotage::ALL.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Sabotage::ALL.iter().find(|(_, s)| *s == self).map_or("none", |(n, _)| n)
    }
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// Name of the provider.
    pub name: String,
    /// Which voice it has: its place among the providers of the lab.
    pub voice: usize,
}

/// An answer, whole, before it is cut into events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it consists of.
    pub parts: Parts,
    /// OpenAI finish reason.
    pub finish: &'static str,
}

/// Text or one tool call, in the pieces in which it is streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Content chunks.
    Text(Vec<String>),
    /// One call.
    Call {
        /// Its id.
        id: String,
        /// Its function.
        name: String,
        /// Pieces of the arguments.
        fragments: Vec<String>,
    },
}

impl Parts {
    /// Number of pieces that carry tokens.
    #[must_use]
    pub fn pieces(&self) -> usize {
        match self {
            Parts::Text(chunks) => chunks.len(),
            Parts::Call { fragments, .. } => fragments.len(),
        }
    }
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): turns names into seeds.
#[must_use]
pub fn seed_of(parts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // 0xff never occurs in UTF-8, so that ("ab", "c") and ("a", "bc") differ.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// The answer of `speaker` to `asked`. `call_id` is the id that a tool call gets.
#[must_use]
pub fn answer(speaker: &Speaker, asked: &Asked, sabotage: Sabotage, call_id: &str) -> Answer {
    let voice = Voice::of(speaker.voice);
    let turn = asked.turn.to_string();
    let (conversation, kind) =
        asked.marker.as_ref().map_or(("", "probe"), |m| (m.conversation.as_str(), m.kind.name()));
    let mut rng = Rng::new(seed_of(&[&speaker.name, conversation, &turn, kind]));
    let parts = match asked.marker.as_ref().map(|m| m.kind) {
        None => probe(voice, asked, call_id, &mut rng),
        Some(kind) => scripted(voice, kind, asked, sabotage, call_id, &mut rng),
    };
    finish(parts, asked.max_tokens)
}

/// Holds the answer to the token limit that the request named (one piece counts as one token).
fn finish(parts: Parts, max_tokens: Option<u64>) -> Answer {
    let limit = max_tokens.map_or(usize::MAX, |m| usize::try_from(m).unwrap_or(usize::MAX));
    match parts {
        Parts::Text(mut chunks) => {
            let cut = chunks.len() > limit;
            chunks.truncate(limit);
            Answer { parts: Parts::Text(chunks), finish: if cut { "length" } else { "stop" } }
        }
        call @ Parts::Call { .. } => Answer { parts: call, finish: "tool_calls" },
    }
}

fn scripted(voice: &Voice, kind: Kind, asked: &Asked, sabotage: Sabotage, call_id: &str, rng: &mut Rng) -> Parts {
    let named = asked.order_id.as_deref().map(|order| match sabotage {
        Sabotage::Context => wrong_order(order),
        _ => order.to_string(),
    });
    match kind {
        Kind::Order | Kind::Recall => {
            let order = named.unwrap_or_else(|| "unknown".to_string());
            Parts::Text(voice.prose(rng, 18, 30, &["order", &order]))
        }
        Kind::Long => Parts::Text(voice.prose(rng, 60, 80, &[])),
        Kind::Json => {
            let order = asked.order_id.clone().unwrap_or_default();
            Parts::Text(json_answer(voice, asked, &order, sabotage, rng))
        }
        Kind::Ticket if asked.turn_results.is_empty() && asked.offers("create_ticket") => {
            let order = asked.order_id.clone().unwrap_or_default();
            call("create_ticket", call_id, &json!({"subject": voice.subject(rng), "order_id": order}))
        }
        Kind::Ticket => match asked.turn_results.last().map(|r| ticket_in(r)) {
            Some(Some(ticket)) => Parts::Text(voice.prose(rng, 18, 30, &["ticket", &ticket])),
            Some(None) => Parts::Text(voice.prose(rng, 18, 30, &["ticket", "not", "opened"])),
            None => Parts::Text(voice.prose(rng, 18, 30, &["ticket", "not", "possible"])),
        },
        Kind::Human if sabotage == Sabotage::Handoff => Parts::Text(voice.prose(rng, 18, 30, &[])),
        Kind::Human if asked.turn_results.is_empty() && asked.offers("transfer_to_human") => {
            call("transfer_to_human", call_id, &json!({"reason": voice.reason(rng)}))
        }
        Kind::Human => Parts::Text(voice.prose(rng, 6, 10, &["human"])),
    }
}

/// A request without a marker: answered briefly, and validly by whatever it asked for.
fn probe(voice: &Voice, asked: &Asked, call_id: &str, rng: &mut Rng) -> Parts {
    if let Some(tool) = asked.forced_tool.as_ref().filter(|_| asked.turn_results.is_empty()) {
        let schema = asked.tools.iter().find(|(name, _)| name == tool).map(|(_, schema)| schema);
        return call(tool, call_id, &schema.map_or_else(|| json!({}), instance::minimal));
    }
    // As the cases of the golden set that ships demand.
    if asked.wants_human && asked.turn_results.is_empty() && asked.offers("transfer_to_human") {
        return call("transfer_to_human", call_id, &json!({"reason": voice.reason(rng)}));
    }
    if asked.json_object {
        let value = asked.schema.as_ref().map_or_else(|| json!({"ok": true}), instance::minimal);
        return Parts::Text(pieces(&value.to_string(), 6));
    }
    Parts::Text(voice.prose(rng, 3, 3, &[]))
}

/// The status word stands first, so that the first three pieces already tell who wrote them.
fn json_answer(voice: &Voice, asked: &Asked, order: &str, sabotage: Sabotage, rng: &mut Rng) -> Vec<String> {
    let mut value = Map::new();
    value.insert("status".into(), Value::from(voice.status(rng)));
    value.insert("order_id".into(), Value::from(order));
    value.insert("eta_days".into(), Value::from(1 + rng.below(9)));
    let wanted = asked.schema.as_ref().and_then(|s| s.get("required")).and_then(Value::as_array);
    let foreign = wanted.is_some_and(|w| w.iter().filter_map(Value::as_str).any(|k| !value.contains_key(k)));
    if let Some(schema) = asked.schema.as_ref().filter(|_| foreign) {
        // Somebody else's schema: the script's own fields would not satisfy it.
        value = match instance::minimal(schema) {
            Value::Object(map) => map,
            other => return pieces(&other.to_string(), 6),
        };
    }
    if sabotage == Sabotage::Schema {
        let victim = wanted.and_then(|w| w.iter().rev().find_map(Value::as_str)).unwrap_or("eta_days");
        value.shift_remove(victim);
    }
    pieces(&Value::Object(value).to_string(), 6)
}

fn call(name: &str, id: &str, arguments: &Value) -> Parts {
    let text = arguments.to_string();
    // At least eight fragments, so that a stream can be cut inside a call.
    let size = (text.chars().count() / 10).max(1);
    Parts::Call { id: id.to_string(), name: name.to_string(), fragments: pieces(&text, size) }
}

/// Cuts a text into pieces of `size` characters.
fn pieces(text: &str, size: usize) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size.max(1)).map(|c| c.iter().collect()).collect()
}

/// Every digit moved on by one: as long as the right number, and never equal to it.
fn wrong_order(order: &str) -> String {
    order
        .chars()
        .map(|c| match c.to_digit(10) {
            Some(d) => char::from_digit((d + 1) % 10, 10).unwrap_or(c),
            None => c,
        })
        .collect()
}

/// The ticket number in a tool result, if it is one of the ticket system's.
fn ticket_in(result: &str) -> Option<String> {
    let value: Value = serde_json::from_str(result).ok()?;
    let ticket = value.get("ticket").or_else(|| value.get("result")?.get("ticket"))?;
    ticket.as_u64().map(|n| n.to_string())
}

/// When each event of a stream is written, in milliseconds after arrival: the role chunk, then every further one.
/// First token 60..140 ms, then 15..25 ms apart (the figures of the lab; see docs/lab.md).
#[must_use]
pub fn pace(seed: u64, tokens: usize) -> Pace {
    let mut rng = Rng::new(seed);
    let mut at = 60.0 + 80.0 * rng.unit();
    let mut tokens_ms = Vec::with_capacity(tokens);
    for _ in 0..tokens {
        tokens_ms.push(at);
        at += 15.0 + 10.0 * rng.unit();
    }
    Pace { role_ms: 20.0, tokens_ms }
}

/// See [`pace`].
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// Response head and role chunk.
    pub role_ms: f64,
    /// Each piece that carries a token.
    pub tokens_ms: Vec<f64>,
}

#[cfg(test)]
mod tests;
