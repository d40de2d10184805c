//! `[P]` The one versioned event enum: what the journal holds, what `/events` streams, what the dashboard reads.
//! Own plain types; the gateway's driver turns the core's notes into these.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod story;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Version of the line format. Fields and variants are only added.
pub const EVENT_FORMAT: u32 = 1;

/// A record of another module as JSON text, written once: it goes to every reader as it is.
#[derive(Clone, Debug)]
pub struct Record(Box<RawValue>);

impl Record {
    /// This one. What cannot be written is `null`.
    #[must_use]
    pub fn of(record: &impl Serialize) -> Record {
        Record(to_raw_value(record).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is not of this shape.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.0.get())
    }
}

/// The same text.
impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Record {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

/// By way of a value: within an enum that is told by a tag, the text itself is not at hand.
impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Record, D::Error> {
        Value::deserialize(from).map(|value| Record::of(&value))
    }
}

/// Reason of an alert about a client's key for a route that the policy does not have.
pub const CLIENT_ROUTE_UNKNOWN: &str = "client_route_unknown";

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// Format version.
    pub v: u32,
    /// Sequence number in this process, without gaps.
    pub seq: u64,
    /// Unix milliseconds.
    pub at_unix_ms: u64,
    /// Monotonic nanoseconds since process start.
    pub mono_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened. At most twenty variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The gateway started.
    Started {
        /// Policy version.
        policy: String,
        /// SHA-256 of the policy file.
        policy_sha256: String,
        /// Seed of the core.
        seed: u64,
        /// Process id.
        pid: u32,
    },
    /// A request is over. `record` is a decision record as JSON.
    Decision {
        /// Request id.
        request: String,
        /// Conversation, if the client said so.
        conversation: Option<String>,
        /// Turn, if known.
        turn: Option<u64>,
        /// Whose key it came with, where clients have keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<String>,
        /// The decision record.
        record: Record,
    },
    /// A target's availability changed.
    Availability {
        /// Target by name.
        target: String,
        /// `serving`, `cooling`, `probing`, `benched`.
        state: String,
        /// Named reason.
        reason: String,
        /// For `cooling` and `benched`: how long from now.
        for_ms: Option<u64>,
    },
    /// An attempt failed.
    AttemptFailed {
        /// Target by name.
        target: String,
        /// Class.
        class: String,
        /// Named reason.
        reason: String,
        /// It was a probe.
        probe: bool,
        /// Request id; absent for probes.
        request: Option<String>,
        /// Its conversation, if the client said so.
        #[serde(default)]
        conversation: Option<String>,
    },
    /// A person must look at something.
    Alert {
        /// Target by name, if about one.
        target: Option<String>,
        /// Client by name, if about one alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<String>,
        /// Route by name, if about one alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        route: Option<String>,
        /// Named reason.
        reason: String,
        /// In one sentence.
        text: String,
    },
    /// A phase of a drill began (drill evidence only).
    Phase {
        /// `steady`, `inject`, `outage`, `restore`, `recovery`, `judge`.
        phase: String,
        /// More.
        detail: String,
    },
    /// A fault was set or removed (drill evidence only).
    Fault {
        /// Path by name.
        path: String,
        /// What the application sees.
        see: String,
        /// `injected`, `restored`, `bit`.
        state: String,
    },
    /// The core panicked and was rebuilt from the policy.
    CoreRebuilt {
        /// Requests that got a controlled error.
        requests: u64,
    },
    /// An answer that was taken as a sample is not as it must be. Nothing of the answer is in it.
    InvariantViolated {
        /// Route by name.
        route: String,
        /// Who answered.
        target: String,
        /// Which one, by name.
        invariant: String,
        /// How it was broken.
        why: String,
    },
    /// An operator gave an order, or one has ended.
    Order {
        /// `bench`, `emergency`, `fault`.
        order: String,
        /// `given`, `ended`.
        state: String,
        /// Target by name, if about one.
        target: Option<String>,
        /// What is forced, for `fault`.
        fault: Option<String>,
        /// Why, in the operator's words.
        reason: String,
        /// When given: how long it lasts.
        for_ms: Option<u64>,
    },
    /// Another policy holds.
    PolicyReplaced {
        /// Its version.
        policy: String,
        /// SHA-256 of its file.
        policy_sha256: String,
        /// SHA-256 of the file of the one that held.
        before_sha256: String,
    },
    /// The gateway drained and stopped.
    Stopped {
        /// Requests still open then.
        open: u64,
    },
}
