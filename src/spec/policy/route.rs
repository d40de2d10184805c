//! The routes of a policy file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::numbers::{Count, Ms, Ms0, Seconds, Share};
use super::super::text::{Name, Names};

/// The contract for one kind of request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name; clients send it as `model` or `x-llmfo-route`.
    #[schemars(required)]
    pub route: Option<Name>,
    /// Where the customer reads or hears the answer.
    pub channel: Option<Channel>,
    /// What is promised; drills inherit it.
    pub objectives: Option<Objectives>,
    /// The load it must carry.
    pub peak: Option<Peak>,
    /// Whether its requests carry personal data; personal if absent. A request may be stricter, never laxer.
    pub data: Option<DataClass>,
    /// Where the data may end up; no constraint if absent.
    pub residency_required: Option<Names>,
    /// Tools that requests of this route may offer.
    pub tools: Option<Names>,
    /// Limits of a conversation.
    pub context: Option<Context>,
    /// Whole chain: to the commit point for streams, else to the whole answer.
    #[schemars(required)]
    pub deadline_ms: Option<Ms>,
    /// Kept for delivery and controlled degradation; 500 if absent.
    pub reserve_ms: Option<Ms0>,
    /// Dials per request; every one counts.
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: Option<u32>,
    /// To the open connection, inside the first-token limit; 1000 if absent.
    pub connect_timeout_ms: Option<Ms>,
    /// Silence allowed inside a stream; 5000 if absent.
    pub idle_timeout_ms: Option<Ms>,
    /// Redials of the same target, only when no other legal one is left; 0 if absent.
    #[schemars(range(min = 0, max = 10))]
    pub same_target_retries: Option<u32>,
    /// When the client is committed to an attempt; first_token if absent.
    pub commit_at: Option<CommitAt>,
    /// Tiers in order: the legal targets of each, best first, each at most once, while time allows.
    #[schemars(required, length(min = 1))]
    pub attempts: Option<Vec<Attempt>>,
    /// `none`: only the first legal target is tried; needs `failover_reason`.
    pub failover: Option<Failover>,
    /// Why this route must not fail over.
    #[schemars(length(min = 1, max = 500))]
    pub failover_reason: Option<String>,
    /// `allowed`: targets of another quality class may answer, marked as degraded.
    pub degrade: Option<Degrade>,
    /// What happens when a stream breaks after the commit point.
    pub after_stream_started: Option<AfterStreamStarted>,
    /// What `collect_and_handoff` asks for before a human takes over.
    pub collect: Option<Names>,
    /// What is given up first when capacity is gone.
    pub on_capacity_exhausted: Option<OnCapacityExhausted>,
    /// A bounded waiting room.
    pub queue: Option<Queue>,
    /// How traffic returns after recovery.
    pub ramp: Option<Ramp>,
    /// A second attempt beside a slow first one; never with tools that have side effects.
    pub hedge: Option<Hedge>,
    /// Keep-alive comments before the first token, so often; off if absent. Ten a second hold any connection open.
    #[schemars(range(min = 100, max = 86_400_000))]
    pub keep_alive_ms: Option<Ms>,
    /// What happens when nobody could answer.
    pub on_all_failed: Option<OnAllFailed>,
}

/// Where the customer reads or hears the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Spoken.
    Voice,
    /// Typed.
    Chat,
    /// Sent whole.
    Email,
}

/// What is promised, kept apart on purpose.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objectives {
    /// How soon useful answers must be back after a failure.
    pub recovery_ms: Option<Ms>,
    /// 95th percentile of the time to useful text.
    pub useful_text_p95_ms: Option<Ms>,
    /// Share of requests that may fail in transport.
    pub transport_failure_rate: Option<Share>,
    /// Share of requests that may miss the deadline.
    pub deadline_miss_rate: Option<Share>,
    /// Share of answers that may break an invariant.
    pub invariant_violation_rate: Option<Share>,
    /// Share of conversations that may be handed off for lack of capacity.
    pub capacity_handoff_rate: Option<Share>,
    /// Turns that may be lost from a conversation.
    #[schemars(range(min = 0, max = 1000))]
    pub context_loss_turns: Option<u64>,
}

/// The load a route must carry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// Requests per second.
    #[schemars(required, range(min = 0.000_001, max = 1_000_000.0))]
    pub requests_per_s: Option<f64>,
    /// 95th percentile of input tokens.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub tokens_in_p95: Option<u64>,
    /// 95th percentile of output tokens.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub tokens_out_p95: Option<u64>,
}

/// Whether requests carry personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataClass {
    /// They do.
    Personal,
    /// They do not.
    None,
}

/// Limits of a conversation.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Parts relayed word for word.
    pub verbatim: Option<Names>,
    /// Parts never shortened.
    pub never_shorten: Option<Names>,
    /// Above this the conversation is handed to a human.
    #[schemars(range(min = 256, max = 100_000_000))]
    pub handoff_above_tokens: Option<u64>,
}

/// When the client is committed to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitAt {
    /// At the first content.
    FirstToken,
    /// At the end of the first sentence.
    FirstSentence,
    /// At the whole answer.
    Complete,
}

/// One tier of a route.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The pool whose targets are tried.
    #[schemars(required)]
    pub pool: Option<Name>,
    /// Limit to the first sign of life of a stream.
    #[schemars(required)]
    pub first_token_timeout_ms: Option<Ms>,
    /// Limit of a whole answer that is not streamed; worked out from what remains if absent.
    pub answer_timeout_ms: Option<Ms>,
    /// The group whose evidence allows these targets.
    pub compatibility_group: Option<Name>,
    /// What may be sent there; absent: allowed inside `residency_required`, else forbidden.
    pub pii: Option<Pii>,
    /// Only these intents; all if absent.
    pub intents: Option<Names>,
    /// What happens to other intents; skip if absent.
    pub otherwise: Option<Otherwise>,
}

/// What may be sent to the targets of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pii {
    /// Personal data as it is.
    Allowed,
    /// Personal data masked.
    Masked,
    /// No request with personal data.
    Forbidden,
}

/// What happens to intents that a tier does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// No tools with side effects, declared fields, a correlation id.
    CollectAndHandoff,
    /// The tier is skipped.
    Skip,
}

/// Whether a route may fail over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Failover {
    /// It must not.
    None,
}

/// Whether another quality class may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Degrade {
    /// It may.
    Allowed,
}

/// What happens when a stream breaks after the commit point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AfterStreamStarted {
    /// The stream ends with one error event; what was sent stays.
    ReturnControlledError,
}

/// What is given up first when capacity is gone.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnCapacityExhausted {
    /// Tasks refused first.
    pub disable_tasks: Option<Names>,
    /// Tasks that keep their quota.
    pub preserve_tasks: Option<Names>,
    /// Cap of the output, in tokens.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_output_tokens: Option<u64>,
}

/// A bounded waiting room.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Requests that may wait.
    #[schemars(required)]
    pub max_depth: Option<Count>,
    /// How long each may wait.
    #[schemars(required)]
    pub max_wait_ms: Option<Ms>,
    /// Share of the places kept for open conversations.
    pub reserved_for_open_conversations: Option<Share>,
}

/// How traffic returns after recovery.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// Shares of traffic, growing, the last one 1.
    #[schemars(required, length(min = 1, max = 100))]
    pub steps: Option<Vec<Share>>,
    /// How long each step is held.
    #[schemars(required)]
    pub hold_s: Option<Seconds>,
    /// Error rate at which it steps back; 0.1 if absent.
    pub step_back_error_rate: Option<Share>,
}

/// A second attempt beside a slow first one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hedge {
    /// After so much silence.
    #[schemars(required)]
    pub after_ms: Option<Ms>,
}

/// What happens when nobody could answer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnAllFailed {
    /// Who takes over.
    pub handoff: Option<HandoffTo>,
    /// One id per conversation and turn, in every error.
    pub correlation_id: Option<bool>,
}

/// Who takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandoffTo {
    /// A human.
    Human,
}
