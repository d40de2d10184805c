//! `[P]` What is on the wire: OpenAI chat types (lenient, lossless), the SSE reader, the end states of a stream, tool-call
//! assembly, error shapes. How a stream is relayed is told in `docs/streams.md`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod adapt;
pub mod alike;
mod answer;
pub mod changes;
pub mod chat;
pub mod chunk;
pub mod error;
mod inner;
mod json;
mod kinds;
pub mod mask;
pub mod message;
pub mod retry_after;
mod rewrite;
pub mod scrub;
pub mod sse;
pub mod stamp;
pub mod stream;
pub mod toolcall;

pub use adapt::SCHEMA_PLACE;
pub use answer::{AnswerChoice, AnswerFacts, Overheard, Transcript, read_answer};
pub use chat::{BadRequest, ChatRequest};
pub use error::ErrorObject;
pub use message::Message;
pub use scrub::Secrets;
pub use sse::{SseError, SseEvent, SseReader};
pub use stamp::{Stamp, stamp_answer, with_member};
pub use stream::{
    Anomaly, CommitAt, Completion, Done, Pushed, Sign, StreamEnd, StreamFault, StreamInlet, StreamSettings, StreamState,
};
pub use toolcall::ToolCall;

/// Tokens as the target counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sent (`prompt_tokens`).
    pub input_tokens: u64,
    /// Received (`completion_tokens`).
    pub output_tokens: u64,
}
