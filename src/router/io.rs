//! The whole contract of the core: what goes in, what comes out.
//!
//! A driver calls `engine.handle(now, input)`, then drains `engine.poll_output()` until `None`, and calls
//! `engine.handle(now, Input::Tick)` when `engine.poll_timeout()` has come. Nothing else moves the core. Late inputs about
//! attempts or requests that are over are ignored.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{CallState, LedgerCall};
use crate::policy::{DataClass, RouteId, SideEffects, TargetId};
use crate::units::Ts;

/// One client request. Chosen by the driver, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// One dial of one target, for a request or for a probe. Chosen by the core, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub u64);

/// What the core knows about a request. Never a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Its route.
    pub route: RouteId,
    /// Streamed or not.
    pub stream: bool,
    /// Its intent; `None`: on no list.
    pub intent: Option<String>,
    /// Personal unless the client said otherwise; never laxer than the route (the core takes the stricter of both).
    pub data: DataClass,
    /// It offers tools.
    pub tools: bool,
    /// It offers a keyed or unkeyed tool (rule R9).
    pub risky_tools: bool,
    /// It has image parts.
    pub vision: bool,
    /// It demands a strict JSON schema.
    pub strict_schema: bool,
    /// ... which only a target that enforces it while decoding can give: for a tool, or one that cannot be checked here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_decoding: bool,
    /// Bytes of the body; the context need is estimated from it (bytes / 3).
    pub body_bytes: u64,
    /// Output tokens it asks for, if it says so.
    pub max_output_tokens: Option<u64>,
    /// `customer_reply`, `human_handoff`, or a background task.
    pub task: String,
    /// Wall clock says that the policy has expired.
    pub expired: bool,
    /// It continues a conversation (its turn is not the first): a part of what is scarce is kept for these.
    pub open_conversation: bool,
    /// Why it cannot be masked, if it cannot: then no tier that wants personal data masked may have it (rule R10). Only looked
    /// at where it is personal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmaskable: Option<Unmaskable>,
    /// SHA-256 of its system prompt in hex, where some record speaks about prompts by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_sha256: Option<String>,
    /// Which turn of which conversation, if the client says so: without it the ledger only observes.
    pub conversation: Option<Conversation>,
}

impl Facts {
    /// A plain question of a customer: streamed, no tools, nothing special about it, and of no size worth a thought. Whoever needs
    /// more says so: `Facts { tools: true, ..Facts::plain(route, data) }`.
    #[must_use]
    pub fn plain(route: RouteId, data: DataClass) -> Facts {
        Facts {
            route,
            stream: true,
            intent: None,
            data,
            tools: false,
            risky_tools: false,
            vision: false,
            strict_schema: false,
            strict_decoding: false,
            body_bytes: 300,
            max_output_tokens: None,
            task: "customer_reply".into(),
            expired: false,
            open_conversation: false,
            unmaskable: None,
            prompt_sha256: None,
            conversation: None,
        }
    }
}

/// Why a request cannot be masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmaskable {
    /// A content part that is no text: an image, sound, a file, or of an unknown type.
    Part,
    /// A message or its content has a shape that is not known.
    Shape,
    /// It asks for spoken output, in which nothing can be put back.
    Sound,
    /// It holds more values than are kept.
    TooMany,
}

/// Where a request stands in a conversation, for the ledger (rule R9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// Who asks: a name of the client's key, never the key.
    pub client: String,
    /// Its name for the conversation (bounded by the driver).
    pub id: String,
    /// The turn, from one.
    pub turn: u64,
    /// The version of the history that the client has, if it says so.
    pub history_version: Option<u64>,
    /// The client says that it repeats this turn.
    pub repeats: bool,
    /// Calls of this turn that are already in the messages.
    pub calls_so_far: u32,
    /// Ids of calls whose results are in the messages.
    pub results: Vec<String>,
}

/// A sign of life of a stream before the commit point: it satisfies the first-token clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// Reasoning, or content that is still held (`first_sentence`, `complete`).
    Life,
    /// The first fragment of a tool call: from here the idle limit and the bound replace the deadline.
    ToolCall,
}

/// How an attempt failed. The driver fills in what it saw; [`super::classify`] says whose fault it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// An HTTP answer that is not usable as a success: a status outside 2xx (or 204), or an error object inside a 200.
    Status(StatusFailure),
    /// Name resolution failed.
    Dns,
    /// TCP connect refused.
    Refused,
    /// Connect did not finish in its limit (also found by the core's own clock).
    ConnectTimeout,
    /// Other connect error: unreachable, no route.
    Connect(String),
    /// TLS handshake or certificate.
    Tls(String),
    /// The connection was reset or closed before or inside the answer.
    Reset,
    /// First sign of life did not come in its limit (found by the core's own clock).
    FirstTokenTimeout,
    /// The whole answer did not come in its limit (found by the core's own clock; not streamed).
    AnswerTimeout,
    /// Silence inside a stream, seen by the relay.
    IdleTimeout,
    /// Signs of life, but nothing to commit before the deadline less the reserve (found by the core's own clock).
    Deadline,
    /// A clean end with neither finish reason nor `[DONE]`.
    Truncated,
    /// An empty answer: nothing, or `stop`/`tool_calls` with nothing before it, or only `[DONE]`.
    Empty,
    /// A body that cannot be read: HTML, broken JSON, wrong framing, an event above the limit.
    Malformed(String),
    /// A finish reason that completes nothing (`error`, `abort`).
    BadFinish(String),
    /// The held part grew above its bound.
    TooLarge,
    /// A probe was answered, but not as the group's golden case demands; or a tool was called that was not offered.
    Quality(String),
    /// The ledger could not be written, so the answer's calls were not handed out.
    LedgerUnwritable,
    /// The bug-catcher: the driver's own code failed.
    Internal(String),
}

/// An HTTP-like failure, from a status line or from an error object inside a 200.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusFailure {
    /// The status; for an error object inside a 200, 200.
    pub status: u16,
    /// True if the body is an OpenAI error object.
    pub openai_shape: bool,
    /// `error.type`, lower case, bounded.
    pub kind: String,
    /// `error.code`, lower case, bounded.
    pub code: String,
    /// `error.param`, bounded.
    pub param: String,
    /// `error.message`, scrubbed and bounded.
    pub message: String,
    /// From `retry-after-ms`, `retry-after` (seconds or date, made a duration by the driver), `x-ratelimit-reset-*`.
    pub retry_after: Option<Duration>,
}

/// What the driver reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A request has come.
    Arrive {
        /// Its id.
        request: RequestId,
        /// What is known about it.
        facts: Facts,
    },
    /// The TCP (and TLS) connection of this attempt stands.
    Connected {
        /// Which.
        attempt: AttemptId,
    },
    /// A sign of life before the commit point. May come twice (reasoning, then a tool call).
    FirstToken {
        /// Which.
        attempt: AttemptId,
        /// What kind.
        sign: Sign,
    },
    /// The committing delta is here: the driver asks whether it may deliver.
    Committed {
        /// Which.
        attempt: AttemptId,
    },
    /// The answer is complete (finish reason or `[DONE]` seen, or a whole JSON answer). Not streamed: implies commit.
    Ended {
        /// Which.
        attempt: AttemptId,
        /// Tokens, if the answer said so.
        usage: Option<Usage>,
    },
    /// The attempt failed.
    Broke {
        /// Which.
        attempt: AttemptId,
        /// How.
        failure: Failure,
        /// It failed on a reused pooled connection before any response byte: retried once on a fresh one, not counted.
        reused: bool,
    },
    /// The client has left.
    ClientGone {
        /// Which request.
        request: RequestId,
        /// The client's own idle limit or write stall ended it, not the provider.
        stalled: bool,
    },
    /// The gateway itself gives the request up, because it stops.
    Stopped {
        /// Which request.
        request: RequestId,
    },
    /// The attempt's answer calls tools. Before any of the calls is delivered; answered by [`Output::Calls`], or, where another
    /// request of the same turn was faster, by the end of this attempt. From here on the calls count as delivered: the driver
    /// writes them down, then goes on with `Committed` or `Ended` (or with the rest of a committed stream), or says `Broke`.
    Calls {
        /// Which.
        attempt: AttemptId,
        /// In the order of the answer.
        calls: Vec<ProposedCall>,
    },
    /// What admission records say, at start and whenever that changes. Until the first one every member of a group counts as
    /// admitted, so a driver that knows of records says so before the first request.
    Evidence {
        /// All of it: what is not listed has no record.
        records: Vec<Evidence>,
    },
    /// The adapters whose text was read, by the targets that they are for: at start and whenever that changes. Until the first
    /// one no adapter stands in for anything.
    Adapters {
        /// All of them: what is not listed has none.
        targets: Vec<TargetId>,
    },
    /// What the ledger knew when it was written down last: at the start, before the first request.
    Ledger {
        /// Conversation by conversation.
        conversations: Vec<Remembered>,
    },
    /// The ledger can be written to, or cannot any more: then no tool that changes something is offered in a conversation.
    LedgerWritable {
        /// It can.
        writable: bool,
    },
    /// An operator takes a target out or lets it back in.
    Bench {
        /// Which.
        target: TargetId,
        /// Out, or back in.
        out: bool,
        /// When out: until then as far as is known. It is let in by another of these, not by time.
        #[serde(default)]
        until: Option<Ts>,
    },
    /// What this target answers is not what its admission record speaks about (another model name or fingerprint): a probe finds out
    /// at once whether its answers are still good.
    Suspect {
        /// Which.
        target: TargetId,
    },
    /// The same policy was read again: what a person could mend outside, such as a credential, may be mended.
    Reread,
    /// An operator switches the emergency mode: background tasks are refused and answers are capped.
    Emergency {
        /// On or off.
        on: bool,
    },
    /// Time has come (see `poll_timeout`).
    Tick,
}

/// A tool call as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedCall {
    /// The tool.
    pub tool: String,
    /// Its arguments, word for word, or what stands for them: the core hands them out again and never looks into them. A driver
    /// that keeps texts out of the core (they may speak of people) gives their hash.
    pub arguments: String,
}

/// Where the calls of an answer stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPlace {
    /// Who asks.
    pub client: String,
    /// The route, by name.
    pub route: String,
    /// The conversation.
    pub conversation: String,
    /// The turn.
    pub turn: u64,
    /// Ordinal of the first call; the others follow.
    pub first: u64,
}

/// What an earlier life of the ledger knew of one conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Who asked.
    pub client: String,
    /// The route, by name. One that the policy does not have any more is passed over.
    pub route: String,
    /// The conversation.
    pub id: String,
    /// How long it has been quiet.
    pub age: Duration,
    /// Highest history version seen.
    pub version: Option<u64>,
    /// Turns that were asked, as first and last of each stretch.
    pub turns: Vec<(u64, u64)>,
    /// Its calls.
    pub calls: Vec<RememberedCall>,
}

/// One call of such a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedCall {
    /// In which turn.
    pub turn: u64,
    /// How many calls of the turn came before it.
    pub ordinal: u64,
    /// The call.
    pub call: LedgerCall,
}

/// What the admission record of one target in one group is worth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The group.
    pub group: String,
    /// The target.
    pub target: TargetId,
    /// What its record says.
    pub standing: Standing,
    /// When an eligible record becomes stale.
    pub stale_at: Option<Ts>,
    /// The 95th percentile that it was measured with, in milliseconds.
    pub baseline_p95_ms: Option<u64>,
    /// SHA-256 in hex of the system prompt that it was tested with; `None`: the record does not say, and any counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_sha256: Option<String>,
}

/// What a record says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It may stand in.
    Eligible,
    /// It may not.
    Excluded,
    /// It was tested too long ago.
    Stale,
    /// It speaks about another prompt, adapter, model or golden set.
    Mismatch,
    /// There is none.
    Missing,
    /// It speaks about another system prompt than that of the request.
    OtherPrompt,
}

/// Tokens as the target counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Sent.
    pub input_tokens: u64,
    /// Received.
    pub output_tokens: u64,
}

/// Limits of one dial. The core keeps the first three clocks itself; the driver keeps `idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// To a standing connection; inside `first_token`.
    pub connect: Duration,
    /// To the first sign of life (stream) or to the whole answer (not streamed).
    pub answer: Duration,
    /// Silence allowed after the first sign of life.
    pub idle: Duration,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Dial this target for this request.
    Dial {
        /// For whom.
        request: RequestId,
        /// The new attempt.
        attempt: AttemptId,
        /// Whom.
        target: TargetId,
        /// Limits.
        limits: Limits,
        /// Use a fresh connection (a reused one just failed).
        fresh: bool,
        /// The answer must be marked `degraded`.
        degraded: bool,
        /// It runs beside another attempt of the same request: who commits first is delivered, the other cancelled.
        hedge: bool,
        /// Ask for no more output tokens than this (emergency).
        max_output_tokens: Option<u64>,
        /// Personal data must be masked before it is sent, and put back in the answer.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        mask: bool,
        /// Tools that must not be offered: the ledger cannot tell whether their operation was already done.
        withhold: Withhold,
    },
    /// Run the structural probe against this target.
    Probe {
        /// The new attempt; report Connected, FirstToken, Ended, Broke for it.
        attempt: AttemptId,
        /// Whom.
        target: TargetId,
        /// Limits.
        limits: Limits,
    },
    /// Stop this attempt at once and close its connection.
    Cancel {
        /// Which.
        attempt: AttemptId,
    },
    /// The commit is granted: deliver this attempt to the client. (Answer to `Committed`, or to `Ended` without one.)
    Deliver {
        /// For whom.
        request: RequestId,
        /// Which attempt.
        attempt: AttemptId,
        /// Dials so far, for `x-llmfo-attempts`.
        attempts: u32,
        /// The answer must be marked `degraded`.
        degraded: bool,
    },
    /// The calls of an attempt, with the id and the operation key that each must carry. The driver writes them down and tells
    /// the storage before the first byte of a call leaves.
    Calls {
        /// For whom.
        request: RequestId,
        /// Which attempt.
        attempt: AttemptId,
        /// Where they stand; `None`: in no conversation that the ledger knows of, so nothing is to be written down.
        place: Option<CallPlace>,
        /// In the order of the answer.
        calls: Vec<LedgerCall>,
    },
    /// The ledger has changed its mind about calls that were handed out by [`Output::Calls`]: write it down when it is convenient.
    /// `Confirmed`: their results came back. `Proposed`: they have not reached the client, for certain.
    CallsAre {
        /// Their ids.
        calls: Vec<String>,
        /// What they are now.
        state: CallState,
    },
    /// Nothing was delivered and nothing will be: send this reply. Exactly one of Deliver and Reply per request, unless the
    /// client left first.
    Reply {
        /// For whom.
        request: RequestId,
        /// What.
        reply: Reply,
        /// Dials made, for `x-llmfo-attempts`.
        attempts: u32,
    },
    /// After Deliver the attempt failed: end the stream with the controlled error (rule R2).
    Break {
        /// For whom.
        request: RequestId,
        /// Which attempt.
        attempt: AttemptId,
        /// Class of the fault.
        class: super::classify::Class,
    },
    /// The request is over in every way; its decision record.
    Done {
        /// Which.
        request: RequestId,
        /// Everything that was decided and why.
        record: Box<super::decision::DecisionRecord>,
    },
    /// Something worth telling people: the driver turns it into events and metrics.
    Note(super::decision::Note),
}

/// A reply without an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Hand this attempt's error answer through, in OpenAI shape (caller fault, policy block).
    AsItIs {
        /// Whose answer.
        attempt: AttemptId,
    },
    /// Context is too long for every target that may answer: 400 `context_length_exceeded`.
    TooLong,
    /// Everything that may answer was tried or is unavailable: 503 `handoff`, `x-should-retry: false`.
    Handoff {
        /// What led to it.
        cause: HandoffCause,
        /// Why, in one sentence, with each target's state; safe to print.
        why: String,
        /// Fields to ask the customer for before a human takes over (`collect_and_handoff`).
        collect: Vec<String>,
    },
    /// A repeated turn: the calls that were already delivered for it, word for word. No model was asked.
    FromLedger {
        /// The calls.
        calls: Vec<LedgerCall>,
    },
    /// Nobody is available right now: 503 at once with `Retry-After`.
    Unavailable {
        /// Soonest probe.
        retry_after: Duration,
        /// Why, in one sentence, with each target's state.
        why: String,
    },
    /// Nobody may legally answer (rule R10): an honest refusal.
    NobodyMay {
        /// Why, in one sentence.
        why: String,
    },
}

/// Tools that a request must go without (rule R9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withhold {
    /// None.
    #[default]
    Nothing,
    /// Those for which twice is twice.
    Unkeyed,
    /// Those of which it must be written down that they were called: keyed and unkeyed.
    Risky,
    /// All that change something.
    SideEffects,
    /// All.
    Everything,
}

impl Withhold {
    /// This tool, with these effects, is among them.
    #[must_use]
    pub fn includes(self, effects: SideEffects) -> bool {
        match self {
            Withhold::Nothing => false,
            Withhold::Unkeyed => effects == SideEffects::Unkeyed,
            Withhold::Risky => effects.risky(),
            Withhold::SideEffects => effects != SideEffects::None,
            Withhold::Everything => true,
        }
    }
}

/// What leads to a handoff: a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffCause {
    /// Every target that may answer was tried, or time or dials are used up.
    Tried,
    /// No place is free, and the queue is full or the route has none.
    QueueFull,
    /// It waited in the queue for as long as it may.
    QueueTimeout,
    /// The only targets left do not answer this intent (`otherwise: collect_and_handoff`).
    Intent,
    /// The policy has expired and does not answer this intent any more.
    Expired,
    /// The conversation is longer than the route lets a model answer.
    LongConversation,
    /// A repeated turn has a call that must not be made twice.
    Repeated,
    /// The ledger does not know what was done in this conversation before.
    LedgerLost,
    /// The ledger cannot be written to, so a call that changes something was not handed out.
    LedgerUnwritable,
}

impl HandoffCause {
    /// Its name in records and errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HandoffCause::Tried => "tried",
            HandoffCause::QueueFull => "queue_full",
            HandoffCause::QueueTimeout => "queue_timeout",
            HandoffCause::Intent => "intent",
            HandoffCause::Expired => "expired",
            HandoffCause::LongConversation => "long_conversation",
            HandoffCause::Repeated => "repeated",
            HandoffCause::LedgerLost => "ledger_lost",
            HandoffCause::LedgerUnwritable => "ledger_unwritable",
        }
    }
}

/// What the driver asks between inputs.
pub trait Machine {
    /// Moves the machine.
    fn handle(&mut self, now: Ts, input: Input);
    /// The next thing to do.
    fn poll_output(&mut self) -> Option<Output>;
    /// When something happens by itself.
    fn poll_timeout(&self) -> Option<Ts>;
}
