//! The types of a resolved policy. Built only by `super::resolve`; read by everything else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::succeed::Retired;

/// Place of a target in [`Policy::targets`] (order of the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub u16);

/// Place of a route in [`Policy::routes`] (order of the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RouteId(pub u16);

/// A whole policy, ready to be run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Free text that says which release this is; sent as `x-llmfo-policy`.
    pub version: String,
    /// Grows with every release. Absent is a finding.
    pub serial: Option<u64>,
    /// The prompt version that evidence must speak about.
    pub prompt_version: Option<String>,
    /// Unix seconds at which the policy expires. Absent is a finding.
    pub expires_unix_s: Option<i64>,
    /// Intents still answered after expiry, tools withheld. `None`: nothing is answered after expiry.
    pub on_expired_intents: Option<Vec<String>>,
    /// Tools for which twice is twice are withheld when the ledger does not know what was done before (`on_ledger_loss: block`).
    pub blocks_on_ledger_loss: bool,
    /// Every target, in the order of the file.
    pub targets: Vec<Arc<Target>>,
    /// Every route, in the order of the file.
    pub routes: Vec<Arc<Route>>,
    /// Compatibility groups by name.
    pub groups: BTreeMap<String, Group>,
    /// Declared tools by name. One that is not here counts as unkeyed.
    pub tools: BTreeMap<String, Tool>,
    /// What the service depends on, by name.
    pub dependencies: BTreeMap<String, Dependency>,
    /// How a failing target is taken out and let back in.
    pub breaker: Breaker,
    /// How a slow or erring target loses its share.
    pub health: Health,
    /// SHA-256 of the file's bytes, in hex.
    pub sha256: String,
    /// Keys that were read but whose behaviour is not built yet: `path: what it will do`. Announced at start.
    pub not_enforced: Vec<String>,
    /// What is only kept for requests that began under an older policy (see [`super::succeed`]).
    pub retired: Retired,
}

impl Policy {
    /// The target with this id. Ids come from this policy only.
    #[must_use]
    pub fn target(&self, id: TargetId) -> &Arc<Target> {
        &self.targets[usize::from(id.0)]
    }

    /// The route with this id. Ids come from this policy only.
    #[must_use]
    pub fn route(&self, id: RouteId) -> &Arc<Route> {
        &self.routes[usize::from(id.0)]
    }

    /// The route with this name.
    #[must_use]
    pub fn route_named(&self, name: &str) -> Option<&Arc<Route>> {
        self.live_routes().find(|r| r.name == name)
    }

    /// The target with this name.
    #[must_use]
    pub fn target_named(&self, name: &str) -> Option<&Arc<Target>> {
        self.live_targets().find(|t| t.name == name)
    }

    /// The targets that new requests may go to.
    pub fn live_targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.targets.iter().filter(|t| !self.retired.targets.contains(&t.id))
    }

    /// The routes by which new requests may come in.
    pub fn live_routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().filter(|r| !self.retired.routes.contains(&r.id))
    }

    /// What this tool may do to the world. Unlisted is unkeyed (rule R9).
    #[must_use]
    pub fn side_effects(&self, tool: &str) -> SideEffects {
        self.tools.get(tool).map_or(SideEffects::Unkeyed, |t| t.side_effects)
    }
}

/// Where a secret is. The value is read at the edge, never here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretRef {
    /// `env:NAME`
    Env(String),
    /// `file:PATH`
    File(String),
}

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

/// A compatibility group: who may stand in for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path of its golden set.
    pub golden_set: Option<String>,
    /// Trusted members.
    pub members: Vec<TargetId>,
    /// Evaluated, not yet trusted.
    pub candidates: Vec<TargetId>,
    /// Evidence older than this is stale.
    pub evidence_max_age: Option<Duration>,
    /// Slots a stand-in takes at once after a failure.
    pub min_guaranteed_slots: Option<u32>,
    /// Share of the answers of its members that are judged by the checks of the group.
    pub sampling: f64,
}

/// What a tool may do to the world (rule R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideEffects {
    /// Reads only.
    None,
    /// Twice is as once.
    Idempotent,
    /// A key argument makes twice as once.
    Keyed,
    /// Twice is twice. Also every tool that is not listed.
    Unkeyed,
}

impl SideEffects {
    /// True if running it twice could harm (keyed or unkeyed): never hedged.
    #[must_use]
    pub fn risky(self) -> bool {
        matches!(self, SideEffects::Keyed | SideEffects::Unkeyed)
    }
}

/// A declared tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What it may do.
    pub side_effects: SideEffects,
    /// The argument the gateway fills with the operation's key.
    pub key_argument: Option<String>,
    /// Calling it hands the customer to a human.
    pub handoff: bool,
}

/// What happens without a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Last answer is used.
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

/// Something the service needs besides models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// What it fails together with.
    pub domains: BTreeMap<String, String>,
    /// What happens without it.
    pub without: Without,
}

/// Where the customer reads or hears the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Spoken.
    Voice,
    /// Typed.
    Chat,
    /// Sent whole.
    Email,
}

/// Whether a request carries personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataClass {
    /// It does, or nobody said.
    Personal,
    /// It does not.
    None,
}

/// What may be sent to the targets of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pii {
    /// As it is.
    Allowed,
    /// Masked before sending, and put back in the answer.
    Masked,
    /// Requests with personal data do not go there.
    Forbidden,
}

/// When the client is committed to an attempt (rule R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitAt {
    /// At the first committing delta.
    FirstToken,
    /// At the end of the first sentence.
    FirstSentence,
    /// At the whole answer.
    Complete,
}

/// Order inside a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// As written.
    Priority,
    /// Best health first; equals share by free slots.
    Health,
    /// Fastest first.
    Latency,
    /// Cheapest first.
    Cost,
}

/// Objectives, kept apart on purpose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objectives {
    /// How soon useful answers must be back.
    pub recovery_ms: Option<u64>,
    /// 95th percentile of the time to useful text.
    pub useful_text_p95_ms: Option<u64>,
    /// Share of requests that may fail in transport.
    pub transport_failure_rate: Option<f64>,
    /// Share of requests that may miss the deadline.
    pub deadline_miss_rate: Option<f64>,
    /// Share of answers that may break an invariant.
    pub invariant_violation_rate: Option<f64>,
    /// Share of conversations that may be handed off for lack of capacity.
    pub capacity_handoff_rate: Option<f64>,
    /// Turns that may be lost from a conversation.
    pub context_loss_turns: Option<u64>,
}

/// Load the route must carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Requests per second.
    pub requests_per_s: f64,
    /// 95th percentile of input tokens.
    pub tokens_in_p95: Option<u64>,
    /// 95th percentile of output tokens.
    pub tokens_out_p95: Option<u64>,
}

/// What happens to intents that a tier does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// A handoff with the declared fields and a correlation id; no model is asked.
    CollectAndHandoff,
    /// The tier is skipped.
    Skip,
}

/// One tier of a route: its legal targets, best first, each at most once.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Name of the pool it was made from.
    pub pool: String,
    /// Its targets in order of preference as written.
    pub targets: Vec<TargetId>,
    /// How they are ordered at run time.
    pub select: Select,
    /// Limit to the first sign of life of a stream.
    pub first_token_timeout: Duration,
    /// Limit of a whole answer that is not streamed; `None`: computed from what remains.
    pub answer_timeout: Option<Duration>,
    /// Evidence group.
    pub group: Option<String>,
    /// As written; `None`: allowed for legal targets where `residency_required` is given, else forbidden.
    pub pii: Option<Pii>,
    /// Only these intents. `None`: all.
    pub intents: Option<Vec<String>>,
    /// What happens to other intents.
    pub otherwise: Otherwise,
}

/// Bounded waiting room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Requests that may wait.
    pub max_depth: u32,
    /// How long each may wait.
    pub max_wait: Duration,
    /// Share kept for open conversations.
    pub reserved_for_open_conversations: f64,
}

/// Return of traffic after recovery.
#[derive(Clone, Debug, PartialEq)]
pub struct Ramp {
    /// Shares, growing, the last one 1.
    pub steps: Vec<f64>,
    /// How long each is held.
    pub hold: Duration,
    /// Error rate at which it steps back.
    pub step_back_error_rate: f64,
}

/// What happens when capacity is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnCapacityExhausted {
    /// Tasks refused first.
    pub disable_tasks: Vec<String>,
    /// Tasks that keep their quota.
    pub preserve_tasks: Vec<String>,
    /// Output cap.
    pub max_output_tokens: Option<u64>,
}

/// Conversation limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Parts relayed word for word.
    pub verbatim: Vec<String>,
    /// Parts never shortened.
    pub never_shorten: Vec<String>,
    /// Above this the conversation is handed to a human.
    pub handoff_above_tokens: Option<u64>,
}

/// One route: the contract for one kind of request.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its place in the policy.
    pub id: RouteId,
    /// Its name; clients send it as `model` or `x-llmfo-route`.
    pub name: String,
    /// Channel, for lints.
    pub channel: Option<Channel>,
    /// Objectives.
    pub objectives: Objectives,
    /// Peak load.
    pub peak: Option<Peak>,
    /// Data class; a request may be stricter, never laxer.
    pub data: DataClass,
    /// Allowed residencies. `None`: no constraint.
    pub residency_required: Option<Vec<String>>,
    /// Tools the route may offer. Empty: offered tools count as unlisted.
    pub tools: Vec<String>,
    /// Conversation limits.
    pub context: Context,
    /// Whole chain: to the commit point for streams, else to the whole answer.
    pub deadline: Duration,
    /// Kept for delivery and controlled degradation.
    pub reserve: Duration,
    /// Dials per request. `None` is a finding; three are used then.
    pub max_attempts: u32,
    /// Inside the first-token limit.
    pub connect_timeout: Duration,
    /// Silence allowed inside a stream.
    pub idle_timeout: Duration,
    /// Redials of the same target, only when no other legal one is left.
    pub same_target_retries: u32,
    /// Commit point.
    pub commit_at: CommitAt,
    /// Tiers in order. Never empty.
    pub tiers: Vec<Tier>,
    /// `failover: none`, with the reason given: only the first legal target is tried.
    pub no_failover: Option<String>,
    /// `degrade: allowed`: tiers of another quality class may answer.
    pub degrade: bool,
    /// Fields asked for before a handoff.
    pub collect: Vec<String>,
    /// Capacity rules.
    pub on_capacity_exhausted: Option<OnCapacityExhausted>,
    /// Waiting room.
    pub queue: Option<Queue>,
    /// Return after recovery.
    pub ramp: Option<Ramp>,
    /// Hedge threshold.
    pub hedge_after: Option<Duration>,
    /// Keep-alive comments before the first token, opt-in: they send status 200 but commit no attempt.
    pub keep_alive: Option<Duration>,
}

impl Route {
    /// True if the target's whole residency lies within what the route requires (rule R10).
    #[must_use]
    pub fn legal(&self, target: &Target) -> bool {
        self.residency_required
            .as_ref()
            .is_none_or(|allowed| !target.residency.is_empty() && target.residency.iter().all(|r| allowed.contains(r)))
    }

    /// What may be sent to a tier: as written, else allowed inside `residency_required`, else forbidden.
    #[must_use]
    pub fn pii(&self, tier: &Tier) -> Pii {
        tier.pii.unwrap_or(if self.residency_required.is_some() { Pii::Allowed } else { Pii::Forbidden })
    }
}

/// Breaker settings. Seconds may be fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Breaker {
    /// Counted failures in a row that trip it.
    pub consecutive_failures: u32,
    /// Counted failures in the window that may trip it.
    pub failures_in_window: u32,
    /// Share of attempts in the window that must have failed as well.
    pub failure_ratio: f64,
    /// The window.
    pub window: Duration,
    /// First cooldown.
    pub base_cooldown: Duration,
    /// Longest cooldown.
    pub max_cooldown: Duration,
    /// Completed probes that close it.
    pub half_open_successes: u32,
    /// `golden` probes in the background, `live` spends one request.
    pub probe: ProbeKind,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            consecutive_failures: 3,
            failures_in_window: 5,
            failure_ratio: 0.2,
            window: Duration::from_secs(60),
            base_cooldown: Duration::from_secs(5),
            max_cooldown: Duration::from_secs(120),
            half_open_successes: 2,
            probe: ProbeKind::Golden,
        }
    }
}

/// How recovery is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// In the background; no customer pays.
    Golden,
    /// One customer request.
    Live,
}

/// Health score settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Health {
    /// Window of the score.
    pub window: Duration,
    /// Window of the fast signal.
    pub fast_window: Duration,
    /// Weight of errors, 0..1.
    pub weight_errors: f64,
    /// Weight of latency, 0..1.
    pub weight_latency: f64,
    /// Below this the share shrinks.
    pub deweight_below: f64,
    /// Below this it is ejected.
    pub eject_below: f64,
    /// ... when it lasts so long.
    pub eject_after: Duration,
    /// Background probes.
    pub probe_every: Duration,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            window: Duration::from_secs(300),
            fast_window: Duration::from_secs(30),
            weight_errors: 0.7,
            weight_latency: 0.3,
            deweight_below: 50.0,
            eject_below: 30.0,
            eject_after: Duration::from_secs(180),
            probe_every: Duration::from_secs(60),
        }
    }
}
