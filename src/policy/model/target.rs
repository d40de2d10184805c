//! Where a dial may go, and what is declared about it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{SecretRef, TargetId};

/// One model at one provider under one credential.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its place in the policy.
    pub id: TargetId,
    /// Its name in the file.
    pub name: String,
    /// The OpenAI-compatible base, for example `http://10.20.0.11:8000/v1`; no trailing slash.
    pub base_url: String,
    /// Dial here instead (`host:port`), keeping Host, SNI and certificate checks.
    pub connect_to: Option<String>,
    /// How connections to it are made and kept.
    pub connection: Connection,
    /// The model name sent to it.
    pub model: String,
    /// Its credential, if it wants one.
    pub credentials: Option<SecretRef>,
    /// Free name of its quality class.
    pub tier: String,
    /// What it fails together with: `region`, `egress`, `account`, `quota`, `vendor` ...
    pub domains: BTreeMap<String, String>,
    /// What it can do, as declared.
    pub capabilities: Capabilities,
    /// What it can carry, as declared.
    pub capacity: Capacity,
    /// Price per million tokens.
    pub price: Option<Price>,
    /// Where the data may end up. Legal on a route only if all of it lies within `residency_required`.
    pub residency: Vec<String>,
    /// The adapter by name, version and what it replaces.
    pub adapter: Option<Adapter>,
}

/// How connections to a target are made and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Path of the certificates that its own must come from. `None`: those that the system trusts.
    pub ca_file: Option<String>,
    /// HTTP/2 is spoken; over TLS if the target offers it.
    pub http2: bool,
    /// Connections kept open before anybody needs them.
    pub ready: u32,
    /// An unused connection is closed after this. Common servers close theirs after 60 s.
    pub idle: Duration,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection { ca_file: None, http2: false, ready: 0, idle: Duration::from_secs(30) }
    }
}

impl Target {
    /// It takes a JSON schema by a prompt alone, and has an adapter whose text stands in for the parameter.
    #[must_use]
    pub fn replaces_schema(&self) -> bool {
        let stands_in = |a: &Adapter| a.system_suffix.is_some() && a.replaces.iter().any(|r| r == JSON_SCHEMA_STRICT);
        self.capabilities.json_schema == JsonSchema::PromptOnly && self.adapter.as_ref().is_some_and(stands_in)
    }

    /// True if a vendor outside runs it (`domains.vendor` is set).
    #[must_use]
    pub fn external(&self) -> bool {
        self.domains.contains_key("vendor")
    }
}

/// What an adapter names under `replaces` when its text stands in for `response_format` with a schema.
pub const JSON_SCHEMA_STRICT: &str = "json_schema_strict";

/// A tested template that stands in for a parameter the target lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Its version, part of the evidence.
    pub version: u32,
    /// Which parameters it replaces, for example `json_schema_strict`.
    pub replaces: Vec<String>,
    /// `file:PATH` of the text appended to the system prompt.
    pub system_suffix: Option<String>,
}

/// How far a target follows a JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonSchema {
    /// It is enforced while decoding.
    Strict,
    /// Only a prompt asks for it (an adapter may stand in).
    PromptOnly,
    /// Not at all.
    None,
}

/// Declared capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Tool calls.
    pub tools: bool,
    /// JSON schema.
    pub json_schema: JsonSchema,
    /// Image parts.
    pub vision: bool,
    /// Window in tokens. `None`: not declared, never filters.
    pub context_tokens: Option<u64>,
}

/// How a capacity figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Written in a contract.
    Contract,
    /// Measured on a date.
    Verified,
    /// Believed. Never satisfies a guarantee.
    Assumed,
}

/// Declared capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// Requests at once.
    pub slots: Option<u32>,
    /// Slots lost when the largest unit dies.
    pub failure_unit_slots: Option<u32>,
    /// Slots kept for that loss.
    pub reserve_slots: Option<u32>,
    /// Provider-side limit.
    pub requests_per_minute: Option<u64>,
    /// Provider-side limit.
    pub tokens_per_minute: Option<u64>,
    /// Mean time one answer holds a slot.
    pub mean_service_ms: Option<u64>,
    /// Its 95th percentile.
    pub p95_service_ms: Option<u64>,
    /// How all this is known.
    pub basis: Option<Basis>,
    /// ISO date of the measurement.
    pub verified_on: Option<String>,
    /// Time until a cold replica answers.
    pub cold_start_s: Option<f64>,
}

/// Price per million tokens, in US dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Tokens sent.
    pub input_per_mtok_usd: f64,
    /// Tokens received.
    pub output_per_mtok_usd: f64,
}
