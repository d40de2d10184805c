//! The JSON of a Toxiproxy-compatible server (API v2), shared by our client and our server, plus our extension under
//! `/llmfo/v1`. Measured behaviour of the real server is in the tests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Direction of a toxic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum Stream {
    /// Client to server.
    Upstream,
    /// Server to client.
    #[default]
    Downstream,
}

impl Stream {
    /// As the API spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Stream::Upstream => "upstream",
            Stream::Downstream => "downstream",
        }
    }
}

impl TryFrom<String> for Stream {
    type Error = String;

    /// In any case: the real server echoes the spelling that was sent.
    fn try_from(text: String) -> Result<Stream, String> {
        if text.eq_ignore_ascii_case("upstream") {
            Ok(Stream::Upstream)
        } else if text.eq_ignore_ascii_case("downstream") {
            Ok(Stream::Downstream)
        } else {
            Err(format!("no such stream: {}", crate::units::printable(&text, 40)))
        }
    }
}

/// A toxic as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Toxic {
    /// Unique in its proxy.
    pub name: String,
    /// `latency`, `bandwidth`, `timeout`, `limit_data`, `reset_peer`; ours: `cut_after`, `connect_blackhole`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Direction.
    pub stream: Stream,
    /// Share of connections, 0..1.
    pub toxicity: f32,
    /// Whole numbers by name; `cut_after` also has a text `how`.
    pub attributes: BTreeMap<String, Value>,
}

/// A proxy as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proxy {
    /// Unique.
    pub name: String,
    /// `host:port`.
    pub listen: String,
    /// `host:port`.
    pub upstream: String,
    /// Accepting.
    pub enabled: bool,
    /// Toxics, upstream ones first.
    #[serde(default)]
    pub toxics: Vec<Toxic>,
}

/// Live counters of one proxy (ours: `GET /llmfo/v1/counters` gives a map by proxy name).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Connections accepted since the proxy was made.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Upstream dials that failed.
    pub dial_failures: u64,
    /// Connects that were black-holed (known for certain only when they are let in or time out; best effort).
    pub blackholed: u64,
    /// Bytes from clients, received from them.
    pub up_received: u64,
    /// Bytes to the upstream, sent on.
    pub up_sent: u64,
    /// Bytes from the upstream, received from it.
    pub down_received: u64,
    /// Bytes to clients, sent on.
    pub down_sent: u64,
    /// Connections that a toxic ended (cut, reset, timeout, limit).
    pub ended_by_toxic: u64,
    /// Another number after each change of the proxy (switched, led elsewhere, toxics), never twice in a server; 0 of a
    /// server that does not count them.
    #[serde(default)]
    pub revision: u64,
}

/// A lease (ours: `POST /llmfo/v1/lease` makes or refreshes it, `GET /llmfo/v1/leases` lists them). When it is not refreshed
/// in time, everything that was done under it is undone by the server itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Chosen by whoever takes it.
    pub id: String,
    /// How long it lasts without a refresh.
    pub ttl_ms: u64,
    /// What is left now.
    #[serde(default)]
    pub left_ms: u64,
}

/// What the server undid by itself (ours: `GET /llmfo/v1/history`, the oldest first, bounded).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healed {
    /// Milliseconds of the monotonic clock of this machine.
    pub at_ms: u64,
    /// `expired`, `lease_ran_out` or `lease_deleted`.
    pub why: String,
    /// The lease, if there was one.
    pub lease: Option<String>,
    /// The proxy.
    pub proxy: String,
    /// The toxic that was removed; none: the proxy was enabled again.
    pub toxic: Option<String>,
    /// Set if it could not be done (it is tried again).
    pub failed: Option<String>,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// `2.12.0` and the like.
    pub version: String,
    /// `llmfo` for ours.
    #[serde(default)]
    pub server: Option<String>,
}
