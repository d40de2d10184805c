//! The policy file as it is written. Every key may be absent here, also those that the schema demands: what is broken in a
//! file is left out, so that the checks behind can go on with the rest. The doc comments are what editors show.

use schemars::JsonSchema;
use serde::Deserialize;

mod route;

pub use route::*;

use super::document::{self, Limits, SpannedDoc};
use super::named::Named;
use super::numbers::{Count, Ms, Pause, Seconds, Share};
use super::text::{Name, Names, NamesOrNone};
use crate::diag::Diagnostic;

/// A policy file that was read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What could be read of it. Absent only if the file as a whole could not be.
    pub raw: Option<PolicyFile>,
    /// The text with its places.
    pub doc: SpannedDoc,
    /// What is wrong with its shape.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a policy file: text, syntax and shape. References are the business of [`crate::policy::load`].
#[must_use]
pub fn load(name: &str, bytes: &[u8]) -> Loaded {
    let (raw, diagnostics, doc) = document::load::<PolicyFile>(name, bytes, &Limits::DEFAULT);
    Loaded { raw, doc, diagnostics }
}

/// A route policy of llmfo: who answers, who stands in, and what happens when nobody can.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "llmfo policy")]
pub struct PolicyFile {
    /// Free text that says which release this is; sent as `x-llmfo-policy`.
    #[schemars(required, regex(pattern = "^[ -~]{1,128}$"), example = "support-2026-11-30")]
    pub version: Option<String>,
    /// Grows with every release; a lower one is refused.
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_u64))]
    pub serial: Option<u64>,
    /// The prompt version that the evidence must speak about.
    pub prompt_version: Option<Name>,
    /// When the policy expires, as RFC 3339 with a zone.
    #[schemars(example = "2027-01-31T00:00:00Z")]
    pub expires: Option<String>,
    /// What is still answered after expiry.
    pub on_expired: Option<OnExpired>,
    /// What happens to tools for which twice is twice when the ledger does not know what was done in a conversation before.
    pub on_ledger_loss: Option<OnLedgerLoss>,
    /// Who can answer: one model at one provider under one credential, by name.
    #[schemars(required)]
    pub targets: Option<Named<Target>>,
    /// Tested templates that stand in for a parameter a target does not support.
    pub adapters: Option<Named<Adapter>>,
    /// Targets that are tried together, by name.
    #[schemars(required)]
    pub pools: Option<Named<Pool>>,
    /// Who may stand in for whom, by name.
    pub compatibility_groups: Option<Named<Group>>,
    /// What a tool may do to the world. A tool that is not listed counts as unkeyed.
    pub tools: Option<Named<Tool>>,
    /// What the service depends on besides models, and what happens without it.
    pub dependencies: Option<Named<Dependency>>,
    /// Kinds of requests, each with its contract.
    #[schemars(required, length(min = 1))]
    pub routes: Option<Vec<Route>>,
    /// How the health score of a target is made.
    pub health: Option<Health>,
    /// How a failing target is taken out and let back in.
    pub breaker: Option<Breaker>,
}

/// What is still answered after expiry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnExpired {
    /// Intents still answered, with tools withheld; everything else is handed to a human.
    #[schemars(required)]
    pub intents: Option<NamesOrNone>,
}

/// One model at one provider under one credential.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The OpenAI-compatible base address, with http:// or https://.
    #[schemars(
        required,
        regex(pattern = r"^https?://[^\s/?#]+(/[^\s?#]*)?$"),
        example = "https://api.vendor.example/v1"
    )]
    pub base_url: Option<String>,
    /// Dial here instead (host:port), keeping Host, SNI and certificate checks.
    #[schemars(regex(pattern = r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):[0-9]{1,5}$"), example = "127.0.0.1:18101")]
    pub connect_to: Option<String>,
    /// How connections to it are made and kept.
    pub connection: Option<Connection>,
    /// The model name that is sent to it.
    #[schemars(required, length(min = 1, max = 256))]
    pub model: Option<String>,
    /// Where its key is: `env:NAME` or `file:PATH`; never the key itself.
    #[schemars(length(min = 1), example = "env:LOCAL_A_KEY")]
    pub credentials: Option<String>,
    /// Free name of its quality class; a route crosses classes only with `degrade: allowed`.
    pub tier: Option<Name>,
    /// The adapter it is used with.
    pub adapter: Option<Name>,
    /// What it fails together with: region, egress, account, quota, vendor ... A target with a vendor is external.
    pub domains: Option<Named<Name>>,
    /// What it can do.
    pub capabilities: Option<Capabilities>,
    /// What it can carry.
    pub capacity: Option<Capacity>,
    /// What it costs.
    pub price: Option<Price>,
    /// Where the data may end up. All of it must lie within a route's `residency_required`.
    pub residency: Option<Names>,
}

/// How connections to a target are made and kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// `file:PATH` of the certificates (PEM) that its own must come from, in place of those that the system trusts.
    #[schemars(regex(pattern = "^file:.+$"), example = "file:certs/inference-ca.pem")]
    pub ca_file: Option<String>,
    /// Speak HTTP/2: many requests on one connection. Over TLS only if the target offers it.
    pub http2: Option<bool>,
    /// So many connections are kept open before anybody needs them.
    #[schemars(range(min = 0, max = 64))]
    pub ready: Option<u32>,
    /// An unused connection is closed after this. Less than the target's own limit, so that no request runs into a closed one.
    pub idle_s: Option<Seconds>,
}

/// A tested template, part of the evidence.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Its version.
    #[schemars(required, range(min = 1, max = 1_000_000))]
    pub version: Option<u32>,
    /// Which parameters it stands in for.
    pub replaces: Option<Names>,
    /// `file:PATH` of a text that is appended to the system prompt.
    #[schemars(regex(pattern = "^file:.+$"), example = "file:adapters/x-json-prompt.md")]
    pub system_suffix: Option<String>,
}

/// Targets that are tried together.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its targets, best first.
    #[schemars(required)]
    pub targets: Option<Names>,
    /// How they are ordered at run time; as written if absent.
    pub select: Option<Select>,
}

/// Order inside a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// As written.
    Priority,
    /// Healthiest first.
    Health,
    /// Fastest first.
    Latency,
    /// Cheapest first.
    Cost,
}

/// What a target can do.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Tool calls.
    pub tools: Option<bool>,
    /// How far it follows a JSON schema.
    pub json_schema: Option<JsonSchemaSupport>,
    /// Image parts.
    pub vision: Option<bool>,
    /// Window in tokens.
    #[schemars(range(min = 256, max = 100_000_000))]
    pub context_tokens: Option<u64>,
}

/// How far a target follows a JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JsonSchemaSupport {
    /// Enforced while decoding.
    Strict,
    /// Only a prompt asks for it.
    PromptOnly,
    /// Not at all.
    None,
}

/// What a target can carry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Requests at once.
    pub slots: Option<Count>,
    /// Slots lost when the largest unit (a node, a replica) dies.
    pub failure_unit_slots: Option<Count>,
    /// Slots held back for that loss.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub reserve_slots: Option<u32>,
    /// The provider's limit of requests per minute.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub requests_per_minute: Option<u64>,
    /// The provider's limit of tokens per minute.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub tokens_per_minute: Option<u64>,
    /// Mean time that one answer holds a slot.
    pub mean_service_ms: Option<Ms>,
    /// Its 95th percentile.
    pub p95_service_ms: Option<Ms>,
    /// How these figures are known.
    pub basis: Option<Basis>,
    /// Date of the measurement, YYYY-MM-DD.
    #[schemars(example = "2026-11-02")]
    pub verified_on: Option<String>,
    /// Time until a cold replica answers.
    pub cold_start_s: Option<Seconds>,
}

/// How a capacity figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Written in a contract.
    Contract,
    /// Measured on a date.
    Verified,
    /// Believed; never satisfies a guarantee.
    Assumed,
}

/// Price per million tokens, in US dollars.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens sent.
    #[schemars(required, range(min = 0, max = 100_000))]
    pub input_per_mtok_usd: Option<f64>,
    /// Tokens received.
    #[schemars(required, range(min = 0, max = 100_000))]
    pub output_per_mtok_usd: Option<f64>,
}

/// Who may stand in for whom. The unit is (target, prompt version, adapter).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Path of its golden set.
    #[schemars(length(min = 1), example = "goldensets/support-v3.yaml")]
    pub golden_set: Option<String>,
    /// Trusted targets.
    #[schemars(required)]
    pub members: Option<Names>,
    /// Targets that are evaluated and not yet trusted.
    pub candidates: Option<NamesOrNone>,
    /// Evidence older than this is stale.
    pub evidence_max_age_s: Option<Seconds>,
    /// Slots that a stand-in takes at once after a failure.
    pub min_guaranteed_slots: Option<Count>,
    /// Share of its members' answers that are judged beside the traffic; absent: 0.05, and 0 judges none.
    pub sampling: Option<Share>,
}

/// What a tool may do to the world.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// What running it does.
    #[schemars(required)]
    pub side_effects: Option<SideEffects>,
    /// The argument that the gateway fills with the operation's key.
    pub key_argument: Option<Name>,
    /// Calling it hands the customer to a human.
    pub handoff: Option<bool>,
}

/// What running a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SideEffects {
    /// It reads only.
    None,
    /// Twice is as once.
    Idempotent,
    /// With the same key, twice is as once.
    Keyed,
    /// Twice is twice.
    Unkeyed,
}

/// What the service needs besides models.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// What it fails together with.
    pub domains: Option<Named<Name>>,
    /// What happens without it.
    #[schemars(required)]
    pub without: Option<Without>,
}

/// What happens without a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Without {
    /// The last answer is used.
    Cached,
    /// A copy on disk is used.
    LocalCopy,
    /// The last snapshot is used.
    Snapshot,
    /// The customer is handed to a human.
    Handoff,
    /// Nothing is lost by going on.
    Continue,
}

/// How the health score of a target is made and used.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Window of the score.
    pub window_s: Option<Seconds>,
    /// Window of the fast signal.
    pub fast_window_s: Option<Seconds>,
    /// Weights of its parts; together 1.
    pub weights: Option<Weights>,
    /// Below this score (0 to 100) the share shrinks.
    #[schemars(range(min = 0, max = 100))]
    pub deweight_below: Option<f64>,
    /// Below this score (0 to 100) it is ejected.
    #[schemars(range(min = 0, max = 100))]
    pub eject_below: Option<f64>,
    /// Once it has lasted so long.
    pub eject_after_s: Option<Seconds>,
    /// Background probes, so often.
    pub probe_every_s: Option<Seconds>,
}

/// Weights of the health score; together 1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Of errors.
    #[schemars(required)]
    pub errors: Option<Share>,
    /// Of latency.
    #[schemars(required)]
    pub latency: Option<Share>,
}

/// How a failing target is taken out and let back in.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Counted failures in a row that trip it.
    #[schemars(range(min = 1, max = 1000))]
    pub consecutive_failures: Option<u32>,
    /// Counted failures in the window that may trip it.
    #[schemars(range(min = 1, max = 100_000))]
    pub failures_in_window: Option<u32>,
    /// Share of attempts in the window that must have failed as well.
    #[schemars(range(min = 0.001, max = 1.0))]
    pub failure_ratio: Option<f64>,
    /// The window.
    pub window_s: Option<Seconds>,
    /// First cooldown, at least 0.05: below that, probes would follow each other without a pause.
    pub base_cooldown_s: Option<Pause>,
    /// Longest cooldown.
    pub max_cooldown_s: Option<Seconds>,
    /// Completed probes that close it.
    #[schemars(range(min = 1, max = 100))]
    pub half_open_successes: Option<u32>,
    /// How recovery is tested.
    pub probe: Option<Probe>,
}

/// Tools that must not run twice, when the ledger lacks a conversation's earlier turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLedgerLoss {
    /// They are withheld.
    Block,
    /// They are offered all the same.
    Allow,
}

/// How recovery is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A golden case in the background; no customer pays.
    Golden,
    /// One customer request.
    Live,
}
