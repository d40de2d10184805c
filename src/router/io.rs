//! The whole contract of the core: what goes in, what comes out.
//!
//! A driver calls `engine.handle(now, input)`, then drains `engine.poll_output()` until `None`, and calls
//! `engine.handle(now, Input::Tick)` when `engine.poll_timeout()` has come. Nothing else moves the core. Late inputs about
//! attempts or requests that are over are ignored.

use std::time::Duration;

use crate::policy::{DataClass, RouteId, TargetId};
use crate::units::Ts;

/// One client request. Chosen by the driver, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One dial of one target, for a request or for a probe. Chosen by the core, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// What the core knows about a request. Never a body.
#[derive(Clone, Debug, PartialEq)]
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
    /// Bytes of the body; the context need is estimated from it (bytes / 3).
    pub body_bytes: u64,
    /// Output tokens it asks for, if it says so.
    pub max_output_tokens: Option<u64>,
    /// `customer_reply`, `human_handoff`, or a background task.
    pub task: String,
    /// Wall clock says that the policy has expired.
    pub expired: bool,
}

/// A sign of life of a stream before the commit point: it satisfies the first-token clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Reasoning, or content that is still held (`first_sentence`, `complete`).
    Life,
    /// The first fragment of a tool call: from here the idle limit and the bound replace the deadline.
    ToolCall,
}

/// How an attempt failed. The driver fills in what it saw; [`super::classify`] says whose fault it is.
#[derive(Clone, Debug, PartialEq)]
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
    /// The bug-catcher: the driver's own code failed.
    Internal(String),
}

/// An HTTP-like failure, from a status line or from an error object inside a 200.
#[derive(Clone, Debug, Default, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
    /// Time has come (see `poll_timeout`).
    Tick,
}

/// Tokens as the target counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sent.
    pub input_tokens: u64,
    /// Received.
    pub output_tokens: u64,
}

/// Limits of one dial. The core keeps the first three clocks itself; the driver keeps `idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// To a standing connection; inside `first_token`.
    pub connect: Duration,
    /// To the first sign of life (stream) or to the whole answer (not streamed).
    pub answer: Duration,
    /// Silence allowed after the first sign of life.
    pub idle: Duration,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
        /// Why, in one sentence, with each target's state; safe to print.
        why: String,
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

/// What the driver asks between inputs.
pub trait Machine {
    /// Moves the machine.
    fn handle(&mut self, now: Ts, input: Input);
    /// The next thing to do.
    fn poll_output(&mut self) -> Option<Output>;
    /// When something happens by itself.
    fn poll_timeout(&self) -> Option<Ts>;
}
