//! What a toxic is asked to do: attributes checked and typed. Used by the server for what comes in and by the client before
//! anything goes out, so that a value that would crash a real server (a negative rate, a slicer of zeros) is never sent.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::cut_after::{After, CutAfter, How};
use super::http::Tracker;
use super::{End, Stage, bandwidth, latency, limit_data, reset_peer, slicer, slow_close, timeout};
use crate::units::{Rng, Ts};

/// The types known here.
pub const KINDS: [&str; 9] = [
    "bandwidth",
    "connect_blackhole",
    "cut_after",
    "latency",
    "limit_data",
    "reset_peer",
    "slicer",
    "slow_close",
    "timeout",
];

/// A checked toxic. Times in milliseconds unless the name says otherwise, as in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the attributes of the API, documented with each toxic")]
pub enum Spec {
    /// See [`bandwidth`].
    Bandwidth { rate_kb_s: u64 },
    /// New connects time out; see the server's `blackhole`.
    ConnectBlackhole,
    /// See [`super::cut_after`].
    CutAfter { after: After, how: How },
    /// See [`latency`].
    Latency { latency_ms: u64, jitter_ms: u64 },
    /// See [`limit_data`].
    LimitData { bytes: u64 },
    /// See [`reset_peer`].
    ResetPeer { timeout_ms: u64 },
    /// See [`slicer`].
    Slicer { average_bytes: u64, variation_bytes: u64, delay_us: u64 },
    /// See [`slow_close`].
    SlowClose { delay_ms: u64 },
    /// See [`timeout`].
    Timeout { timeout_ms: u64 },
}

/// Why attributes were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such type.
    UnknownKind,
    /// The wrong JSON type: the real server refuses this too.
    BadJson(String),
    /// Well formed, and refused by us alone: the real server takes it and does nothing, or crashes.
    BadValue(String),
}

/// What a stage needs to know of its connection.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// For this toxic on this connection.
    pub rng: Rng,
    /// The connection was opened while a `reset_peer` was on the proxy.
    pub armed: bool,
    /// The position in the responses where the stage begins.
    pub tracker: Tracker,
    /// Now.
    pub now: Ts,
}

/// The attributes of a type, in the API's spelling.
#[must_use]
pub fn attribute_names(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "bandwidth" => &["rate"],
        "connect_blackhole" => &[],
        "cut_after" => &["bytes", "events", "ms", "how"],
        "latency" => &["latency", "jitter"],
        "limit_data" => &["bytes"],
        "reset_peer" | "timeout" => &["timeout"],
        "slicer" => &["average_size", "size_variation", "delay"],
        "slow_close" => &["delay"],
        _ => return None,
    })
}

/// Jitter has to stay below this: larger values crash a real server.
const JITTER_MAX_MS: u64 = 1 << 31;

impl Spec {
    /// Checks and types the attributes.
    ///
    /// # Errors
    /// An unknown type, a wrong JSON type, a value out of range, an attribute that the type does not have.
    pub fn parse(kind: &str, attributes: Option<&Value>) -> Result<Spec, Refused> {
        let names = attribute_names(kind).ok_or(Refused::UnknownKind)?;
        let empty = Map::new();
        let map = match attributes {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => {
                return Err(Refused::BadJson(format!("attributes must be an object, not {}", kind_of(other))));
            }
        };
        let read = Reader::new(kind, names, map)?;
        let n = |name: &str| read.number(name).map(Option::unwrap_or_default);
        Ok(match kind {
            "bandwidth" => Spec::Bandwidth { rate_kb_s: n("rate")? },
            "connect_blackhole" => Spec::ConnectBlackhole,
            "cut_after" => {
                let counters = (read.number("bytes")?, read.number("events")?, read.number("ms")?);
                let after = match counters {
                    (Some(b), None, None) => After::Bytes(b),
                    (None, Some(e), None) => After::Events(e),
                    (None, None, Some(ms)) => After::Ms(ms),
                    _ => return Err(Refused::BadValue("cut_after takes exactly one of bytes, events, ms".to_owned())),
                };
                let how = match read.get("how") {
                    None => How::default(),
                    Some(Value::String(text)) => match text.as_str() {
                        "rst" => How::Rst,
                        "fin" => How::Fin,
                        "silence" => How::Silence,
                        _ => return Err(Refused::BadValue("how must be rst, fin or silence".to_owned())),
                    },
                    Some(other) => {
                        return Err(Refused::BadJson(format!("how must be a text, not {}", kind_of(other))));
                    }
                };
                Spec::CutAfter { after, how }
            }
            "latency" => {
                let jitter_ms = n("jitter")?;
                if jitter_ms >= JITTER_MAX_MS {
                    return Err(Refused::BadValue(format!("jitter must be below {JITTER_MAX_MS}")));
                }
                Spec::Latency { latency_ms: n("latency")?, jitter_ms }
            }
            "limit_data" => Spec::LimitData { bytes: n("bytes")? },
            "reset_peer" => Spec::ResetPeer { timeout_ms: n("timeout")? },
            "slicer" => {
                let (average_bytes, variation_bytes) = (n("average_size")?, n("size_variation")?);
                if average_bytes == 0 || variation_bytes >= average_bytes {
                    return Err(Refused::BadValue(
                        "average_size must be above 0 and size_variation below it".to_owned(),
                    ));
                }
                Spec::Slicer { average_bytes, variation_bytes, delay_us: n("delay")? }
            }
            "slow_close" => Spec::SlowClose { delay_ms: n("delay")? },
            _ => Spec::Timeout { timeout_ms: n("timeout")? },
        })
    }

    /// This toxic with some attributes changed, all or nothing.
    ///
    /// # Errors
    /// As [`Spec::parse`].
    pub fn merge(&self, changes: Option<&Value>) -> Result<Spec, Refused> {
        let Some(Value::Object(changes)) = changes else {
            return match changes {
                None | Some(Value::Null) => Ok(*self),
                Some(_) => Spec::parse(self.kind(), changes),
            };
        };
        let mut all: Map<String, Value> = self.attributes().into_iter().collect();
        if matches!(self, Spec::CutAfter { .. })
            && changes.keys().any(|k| ["bytes", "events", "ms"].contains(&k.as_str()))
        {
            // A new counter takes the place of the old one.
            all.retain(|k, _| k == "how");
        }
        for (key, value) in changes.iter().filter(|(_, v)| !v.is_null()) {
            all.retain(|k, _| !k.eq_ignore_ascii_case(key));
            all.insert(key.clone(), value.clone());
        }
        Spec::parse(self.kind(), Some(&Value::Object(all)))
    }

    /// The type, as the API names it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Spec::Bandwidth { .. } => "bandwidth",
            Spec::ConnectBlackhole => "connect_blackhole",
            Spec::CutAfter { .. } => "cut_after",
            Spec::Latency { .. } => "latency",
            Spec::LimitData { .. } => "limit_data",
            Spec::ResetPeer { .. } => "reset_peer",
            Spec::Slicer { .. } => "slicer",
            Spec::SlowClose { .. } => "slow_close",
            Spec::Timeout { .. } => "timeout",
        }
    }

    /// The attributes, as the API shows them.
    #[must_use]
    pub fn attributes(&self) -> BTreeMap<String, Value> {
        let pairs: Vec<(&str, Value)> = match *self {
            Spec::Bandwidth { rate_kb_s } => vec![("rate", rate_kb_s.into())],
            Spec::ConnectBlackhole => vec![],
            Spec::CutAfter { after, how } => {
                let counter = match after {
                    After::Bytes(n) => ("bytes", n.into()),
                    After::Events(n) => ("events", n.into()),
                    After::Ms(n) => ("ms", n.into()),
                };
                let how = match how {
                    How::Rst => "rst",
                    How::Fin => "fin",
                    How::Silence => "silence",
                };
                vec![counter, ("how", how.into())]
            }
            Spec::Latency { latency_ms, jitter_ms } => {
                vec![("latency", latency_ms.into()), ("jitter", jitter_ms.into())]
            }
            Spec::LimitData { bytes } => vec![("bytes", bytes.into())],
            Spec::ResetPeer { timeout_ms } | Spec::Timeout { timeout_ms } => vec![("timeout", timeout_ms.into())],
            Spec::Slicer { average_bytes, variation_bytes, delay_us } => vec![
                ("average_size", average_bytes.into()),
                ("size_variation", variation_bytes.into()),
                ("delay", delay_us.into()),
            ],
            Spec::SlowClose { delay_ms } => vec![("delay", delay_ms.into())],
        };
        pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    /// Only ours: a real server does not know it.
    #[must_use]
    pub fn is_extension(&self) -> bool {
        matches!(self, Spec::CutAfter { .. } | Spec::ConnectBlackhole)
    }

    /// The stage for one direction of one connection; none for what acts on the listener.
    #[must_use]
    pub fn stage(&self, meeting: Meeting) -> Option<Box<dyn Stage>> {
        let Meeting { rng, armed, tracker, now } = meeting;
        Some(match *self {
            Spec::Bandwidth { rate_kb_s } => Box::new(bandwidth::Bandwidth::new(rate_kb_s)),
            Spec::ConnectBlackhole => return None,
            Spec::CutAfter { after, how } => Box::new(CutAfter::new(after, how, tracker, now)),
            Spec::Latency { latency_ms, jitter_ms } => Box::new(latency::Latency::new(latency_ms, jitter_ms, rng)),
            Spec::LimitData { bytes } => Box::new(limit_data::LimitData::new(bytes)),
            Spec::ResetPeer { timeout_ms } => {
                Box::new(reset_peer::ResetPeer::new(timeout_ms, if armed { End::Rst } else { End::Fin }))
            }
            Spec::Slicer { average_bytes, variation_bytes, delay_us } => {
                Box::new(slicer::Slicer::new(average_bytes, variation_bytes, delay_us, rng))
            }
            Spec::SlowClose { delay_ms } => Box::new(slow_close::SlowClose::new(delay_ms)),
            Spec::Timeout { timeout_ms } => Box::new(timeout::Timeout::new(timeout_ms, now)),
        })
    }
}

/// Attributes by name, case-insensitively as Go reads them.
struct Reader<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    fn new(kind: &str, names: &[&str], map: &'a Map<String, Value>) -> Result<Reader<'a>, Refused> {
        for key in map.keys() {
            if !names.iter().any(|n| n.eq_ignore_ascii_case(key)) {
                let shown = crate::units::printable(key, 40);
                let near = names
                    .iter()
                    .map(|n| (strsim::jaro(n, &shown), n))
                    .filter(|(score, _)| *score > 0.7)
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .map(|(_, n)| format!(", did you mean {n}"))
                    .unwrap_or_default();
                return Err(Refused::BadValue(format!("{kind} has no attribute {shown}{near}")));
            }
        }
        Ok(Reader { map })
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map
            .get(name)
            .or_else(|| self.map.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v))
            .filter(|v| !v.is_null())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refused> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) if i64::try_from(n).is_ok() => Ok(Some(n)),
                (None, Some(_)) => Err(Refused::BadValue(format!("{name} must not be negative"))),
                _ => Err(Refused::BadJson(format!("{name} must be a whole number"))),
            },
            Some(other) => Err(Refused::BadJson(format!("{name} must be a whole number, not {}", kind_of(other)))),
        }
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(kind: &str, attributes: Value) -> Result<Spec, Refused> {
        Spec::parse(kind, Some(&attributes))
    }

    #[test]
    fn what_crashes_a_real_server_is_refused() {
        assert!(matches!(parse("bandwidth", json!({"rate": -1})), Err(Refused::BadValue(_))));
        assert!(matches!(parse("slicer", json!({})), Err(Refused::BadValue(_))));
        assert!(matches!(parse("slicer", json!({"average_size": 5, "size_variation": 9})), Err(Refused::BadValue(_))));
        assert!(matches!(parse("latency", json!({"jitter": i64::MAX})), Err(Refused::BadValue(_))));
    }

    #[test]
    fn wrong_types_defaults_and_case() {
        assert!(matches!(parse("latency", json!({"latency": "5"})), Err(Refused::BadJson(_))));
        assert!(matches!(parse("latency", json!({"latency": 100.0})), Err(Refused::BadJson(_))));
        assert!(matches!(parse("latency", json!([])), Err(Refused::BadJson(_))));
        assert_eq!(parse("latency", json!({"latency": null})), Ok(Spec::Latency { latency_ms: 0, jitter_ms: 0 }));
        assert_eq!(parse("latency", json!({"LATENCY": 7})), Ok(Spec::Latency { latency_ms: 7, jitter_ms: 0 }));
        assert_eq!(parse("Latency", json!({})), Err(Refused::UnknownKind));
        assert_eq!(
            parse("bandwidth", json!({"rat": 5})),
            Err(Refused::BadValue("bandwidth has no attribute rat, did you mean rate".to_owned()))
        );
    }

    #[test]
    fn cut_after_takes_one_counter_and_a_new_one_replaces_the_old() {
        assert!(parse("cut_after", json!({})).is_err());
        assert!(parse("cut_after", json!({"bytes": 1, "ms": 1})).is_err());
        let spec = parse("cut_after", json!({"events": 3, "how": "silence"})).unwrap();
        assert_eq!(spec.merge(Some(&json!({"ms": 5}))), Ok(Spec::CutAfter { after: After::Ms(5), how: How::Silence }));
    }

    proptest! {
        #[test]
        fn shown_attributes_read_back_as_the_same(a in 0..i64::MAX as u64, j in 0..JITTER_MAX_MS) {
            for spec in [
                Spec::Latency { latency_ms: a, jitter_ms: j },
                Spec::Bandwidth { rate_kb_s: a },
                Spec::CutAfter { after: After::Events(a), how: How::Fin },
            ] {
                let shown = Value::Object(spec.attributes().into_iter().collect());
                prop_assert_eq!(Spec::parse(spec.kind(), Some(&shown)), Ok(spec));
                prop_assert_eq!(spec.merge(None), Ok(spec));
            }
        }
    }
}
