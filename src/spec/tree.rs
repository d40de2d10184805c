//! A YAML document as a tree in which every key and every value knows its bytes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// Bytes in the text, first and one past the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    fn of(location: &Location) -> Span {
        let span = location.span();
        let start = narrow(span.byte_offset().unwrap_or(0));
        Span { start, end: start.saturating_add(narrow(span.byte_len().unwrap_or(0))) }
    }
}

/// Offsets fit: a text is at most 16 MiB.
fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A value and where it is.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it is written.
    pub span: Span,
    /// Where an alias or a merge brings it in, if that is somewhere else.
    pub used: Option<Span>,
    /// The value.
    pub value: Value,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number below zero.
    Int(i64),
    /// A whole number.
    UInt(u64),
    /// Another number; may be infinite or not a number.
    Float(f64),
    /// A text.
    Str(String),
    /// A list.
    Seq(Vec<Node>),
    /// A map in the order of the file; keys may repeat.
    Map(Vec<Entry>),
}

/// One key with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key is written.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let (span, referenced) = (Span::of(&spanned.defined), Span::of(&spanned.referenced));
        Ok(Node { span, used: (referenced != span).then_some(referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(u64::try_from(v).map_or(Value::Int(v), Value::UInt))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::UInt(v))
    }

    fn visit_i128<E>(self, v: i128) -> Result<Value, E> {
        // Out of the range of 64 bits: no key has a use for it, and the schema refuses it as too large or too small.
        Ok(Value::Float(v as f64))
    }

    fn visit_u128<E>(self, v: u128) -> Result<Value, E> {
        Ok(Value::Float(v as f64))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Str(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::Str(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Node>()? {
            items.push(item);
        }
        Ok(Value::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value::<Node>()?;
            entries.push(Entry { key_span: Span::of(&key.defined), key: key.value, node });
        }
        Ok(Value::Map(entries))
    }
}

impl Node {
    /// As JSON. Of repeated keys the first counts; numbers that JSON cannot hold become null (both are findings).
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as J;
        match &self.value {
            Value::Null => J::Null,
            Value::Bool(v) => J::Bool(*v),
            Value::Int(v) => J::from(*v),
            Value::UInt(v) => J::from(*v),
            Value::Float(v) => whole(*v).map_or_else(|| J::from(*v), J::from),
            Value::Str(v) => J::from(v.as_str()),
            Value::Seq(items) => J::Array(items.iter().map(Node::to_json).collect()),
            Value::Map(entries) => {
                let mut map = serde_json::Map::new();
                for entry in entries {
                    if !map.contains_key(&entry.key) {
                        map.insert(entry.key.clone(), entry.node.to_json());
                    }
                }
                J::Object(map)
            }
        }
    }

    /// The first entry of a map under this key, or the element of a list at this index.
    pub fn child(&self, step: &str) -> Option<(Option<&Entry>, &Node)> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == step).map(|e| (Some(e), &e.node)),
            Value::Seq(items) => step.parse::<usize>().ok().and_then(|n| items.get(n)).map(|n| (None, n)),
            _ => None,
        }
    }
}

/// `2e3` is the whole number 2000; below 2^53 nothing is lost.
fn whole(v: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "in range by the condition")]
    (v.fract() == 0.0 && v.abs() < 9_007_199_254_740_992.0).then_some(v as i64)
}
