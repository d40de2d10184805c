//! What is promised on a route, and who may keep it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{RouteId, Target, TargetId};

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
