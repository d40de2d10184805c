//! What the machine is told and what it says.

use std::fmt;

use bytes::Bytes;

use super::HOLD_LIMIT_BYTES;
use crate::wire::{ErrorObject, Secrets, ToolCall, Usage};

/// When the client is committed to an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitAt {
    /// At the first committing delta.
    #[default]
    FirstToken,
    /// At the end of the first sentence.
    FirstSentence,
    /// At the whole answer.
    Complete,
}

/// How one stream is to be read.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// The commit point.
    pub commit_at: CommitAt,
    /// Bound of what is held, usually [`HOLD_LIMIT_BYTES`].
    pub hold_limit_bytes: usize,
    /// The client asked for `stream_options.include_usage`; else a usage-only chunk is kept from it.
    pub client_wants_usage: bool,
    /// Choices asked for (`n`). Only a broken connection is judged by it: were they all there?
    pub choices: u32,
    /// Give tool-call fragments that were sent without an `index` the one they belong to. Off: relayed as they came.
    pub add_missing_index: bool,
    /// Hand the calls out before they leave ([`Pushed::calls`]) and wait for [`super::StreamState::stamp`]. Then all calls are of
    /// one choice, and none follows once they were handed out.
    pub stamp_calls: bool,
    /// Credential values that must not stand in an error message.
    pub secrets: Secrets,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings {
            commit_at: CommitAt::FirstToken,
            hold_limit_bytes: HOLD_LIMIT_BYTES,
            client_wants_usage: false,
            choices: 1,
            add_missing_index: false,
            stamp_calls: false,
            secrets: Secrets::default(),
        }
    }
}

/// A sign of life before the commit point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Reasoning, or text that is held.
    Life,
    /// The first fragment of a tool call: from here the idle limit and the bound replace the deadline.
    ToolCall,
}

/// Why a stream is a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamFault {
    /// Nothing, only `[DONE]`, or a `stop` or `tool_calls` with nothing before it.
    Empty,
    /// A clean end with neither finish reason nor `[DONE]`, or `[DONE]` inside the arguments of a call.
    Truncated,
    /// The connection broke before the answer was complete.
    Cut,
    /// What came is not a chat stream; says what it is.
    Malformed(String),
    /// A finish reason that completes nothing (`error`, `abort`); says which.
    BadFinish(String),
    /// One event, or what had to be held, is above its bound.
    TooLarge,
    /// An error object inside the stream.
    Error(Box<ErrorObject>),
}

impl StreamFault {
    /// The name under which it is counted.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            StreamFault::Empty => "empty",
            StreamFault::Truncated => "truncated",
            StreamFault::Cut => "cut",
            StreamFault::Malformed(_) => "malformed",
            StreamFault::BadFinish(_) => "bad_finish",
            StreamFault::TooLarge => "too_large",
            StreamFault::Error(_) => "error",
        }
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamFault::Empty => f.write_str("the answer is empty"),
            StreamFault::Truncated => f.write_str("the answer ended before it was complete"),
            StreamFault::Cut => f.write_str("the connection broke before the answer was complete"),
            StreamFault::Malformed(what) => write!(f, "the answer cannot be read: {what}"),
            StreamFault::BadFinish(reason) => write!(f, "the answer ended with finish reason `{reason}`"),
            StreamFault::TooLarge => f.write_str("the answer is larger than what may be held"),
            StreamFault::Error(error) if error.message.is_empty() => f.write_str("the answer is an error"),
            StreamFault::Error(error) => write!(f, "the answer is an error: {}", error.message),
        }
    }
}

/// Something unusual in an answer that is complete all the same. Counted, never a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// `[DONE]`, but some choice has no finish reason. None is invented.
    DoneWithoutFinish,
    /// Finished, but no `[DONE]`. The gateway may add it.
    FinishWithoutDone,
    /// The connection broke after the last choice had finished.
    CutAfterFinish,
    /// One of several choices is empty.
    EmptyChoice,
    /// Two calls came under one index and were told apart.
    Renumbered,
    /// The arguments of a call are not JSON. They are relayed as they came.
    InvalidArguments,
    /// A choice went on after its finish reason.
    AfterFinish,
    /// The finish reason says tool calls and there are none, or the other way round.
    FinishMismatch,
    /// Lines that no event stream has stood between the events.
    StrayLines,
}

impl Anomaly {
    /// The name under which it is counted.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Anomaly::DoneWithoutFinish => "done_without_finish",
            Anomaly::FinishWithoutDone => "finish_without_done",
            Anomaly::CutAfterFinish => "cut_after_finish",
            Anomaly::EmptyChoice => "empty_choice",
            Anomaly::Renumbered => "renumbered",
            Anomaly::InvalidArguments => "invalid_arguments",
            Anomaly::AfterFinish => "after_finish",
            Anomaly::FinishMismatch => "finish_mismatch",
            Anomaly::StrayLines => "stray_lines",
        }
    }
}

/// What came of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pushed {
    /// To be sent to the client now, in this order.
    pub out: Vec<Bytes>,
    /// A sign of life, before the commit point; each kind once.
    pub sign: Option<Sign>,
    /// This is the commit point: ask the core before sending `out`. True once per attempt.
    pub commit: bool,
    /// The idle clock starts anew.
    pub progress: bool,
    /// The attempt has failed; nothing more will come. If the client was not committed before this step, `out` is empty and
    /// nothing has been sent; if it was, `out` may hold what came before the failure.
    pub fault: Option<StreamFault>,
    /// The calls are whole and would leave now: what follows waits until they are stamped. Once per attempt, and the commit point
    /// may wait with it.
    pub calls: Option<Vec<ToolCall>>,
    /// `[DONE]` is among `out` (or waits behind the calls): there is no need to wait for the end of the body. Call [`super::StreamState::finish`] now.
    pub ended: bool,
}

/// How the attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEnd {
    /// To be sent to the client, in this order.
    pub out: Vec<Bytes>,
    /// This is the commit point: ask the core before sending `out`.
    pub commit: bool,
    /// As [`Pushed::calls`].
    pub calls: Option<Vec<ToolCall>>,
    /// The outcome.
    pub done: Done,
}

/// The outcome of an attempt (rule R4).
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// A completed answer.
    Complete(Completion),
    /// A failed attempt.
    Fault(StreamFault),
}

/// What is known about a completed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Choice index and finish reason; `None` where none came.
    pub finish_reasons: Vec<(u64, Option<String>)>,
    /// Tool calls of all choices, as assembled.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens, if the answer said so.
    pub usage: Option<Usage>,
    /// The model that answered, as it named itself.
    pub model: Option<String>,
    /// `system_fingerprint`.
    pub fingerprint: Option<String>,
    /// What was unusual. Sorted, each once.
    pub anomalies: Vec<Anomaly>,
    /// No `[DONE]` came: the gateway may send its own after `out`.
    pub append_done: bool,
}
