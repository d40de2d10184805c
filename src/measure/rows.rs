//! Rows of evidence that several modules share: what the client received, what the providers saw, what the ticket system
//! recorded. All times are milliseconds since the anchor of the run (the drill's start), so that rows can be laid beside
//! each other.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How one request ended, as the client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Streamed: `[DONE]` or a completing finish reason, then a clean end. Not streamed: a whole JSON answer.
    Complete,
    /// Streamed: the body ended cleanly with neither `[DONE]` nor a finish reason.
    CleanWithoutFinish,
    /// Streamed: ended by an SSE error event (rule R2).
    ErrorEvent,
    /// An HTTP error status.
    HttpError,
    /// The connection broke in mid-body.
    Cut,
    /// The connection could not be made, or broke before any response byte.
    ConnectFailed,
    /// The client gave up (its own limit, deadline plus grace).
    GaveUp,
    /// The body could not be read as what it claims to be.
    Malformed,
}

/// A tool call as the client assembled it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallRow {
    /// Its id as received.
    pub id: String,
    /// The function.
    pub name: String,
    /// The arguments text as received.
    pub arguments: String,
}

/// One HTTP request of the customer application. A turn is one or more of them (tool results go back in the next one).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Conversation id; also the marker inside the message text.
    pub conversation: String,
    /// 1-based turn: the number of user messages.
    pub turn: u32,
    /// 0-based request inside the turn.
    pub step: u32,
    /// What the customer wants.
    pub intent: String,
    /// Kind of turn in the lab's script: `order`, `json`, `ticket`, `human`, `recall`, `long`. Says which invariants apply.
    #[serde(default)]
    pub kind: String,
    /// Order number that the customer named in the first message of the conversation.
    #[serde(default)]
    pub order_id: String,
    /// The assistant's own messages that the customer's side sent along.
    #[serde(default)]
    pub assistant_messages: u32,
    /// Entry by name (`region-1`), or `target` for a foreign gateway.
    pub entry: String,
    /// Streamed or not.
    pub stream: bool,
    /// Drill phase in which it started: `steady`, `outage`, `recovery`, or a sub-phase.
    pub phase: String,
    /// When the load plan wanted it to start (open loop), and when it did.
    pub due_ms: f64,
    /// Start.
    pub started_ms: f64,
    /// First response byte.
    pub headers_ms: Option<f64>,
    /// First useful text: non-blank content, not role, ping, comment or reasoning.
    pub useful_text_ms: Option<f64>,
    /// First committing delta of any kind (content, refusal, complete tool call).
    pub committed_ms: Option<f64>,
    /// End.
    pub ended_ms: f64,
    /// How it ended.
    pub end: End,
    /// More about the end, in words: refused, reset, timed out, closed in mid-body; empty where there is nothing to add.
    #[serde(default)]
    pub end_detail: String,
    /// HTTP status, if any came.
    pub status: Option<u16>,
    /// Finish reason, if any came.
    pub finish_reason: Option<String>,
    /// `[DONE]` was seen.
    pub done_marker: bool,
    /// Error `code` or `type` of an error event or an error body.
    pub error_code: Option<String>,
    /// Number of SSE error events.
    pub error_events: u32,
    /// The text received.
    pub text: String,
    /// The text of a refusal received: the customer reads it as content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refusal: String,
    /// Tool calls received, complete or not.
    pub tool_calls: Vec<ToolCallRow>,
    /// `x-llmfo-target`, as the gateway says.
    pub gateway_target: Option<String>,
    /// `x-llmfo-attempts`, as the gateway says.
    pub gateway_attempts: Option<u32>,
    /// `x-llmfo-outcome`, as the gateway says.
    pub gateway_outcome: Option<String>,
    /// `x-llmfo-request-id`, as the gateway says.
    pub gateway_request_id: Option<String>,
    /// The turn is over with this request (answered, failed or given up).
    pub last_of_turn: bool,
    /// Names of the invariants that this answer broke (`schema`, `handoff`, `context`, `finish`); filled by the checks.
    pub violations: Vec<String>,
    /// Invariants that applied to this answer.
    pub checked: Vec<String>,
}

/// One request as a scripted provider saw it: `GET /providers/<name>/log`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProviderRow {
    /// Provider by name.
    pub provider: String,
    /// Conversation marker found in the message text.
    pub conversation: Option<String>,
    /// Number of user messages received.
    pub turn: u32,
    /// Tool results received.
    pub tool_results: u32,
    /// The assistant's own messages received; not known of a lab that does not count them.
    #[serde(default)]
    pub assistant_messages: Option<u32>,
    /// True if it was a probe (no marker).
    pub probe: bool,
    /// Arrival.
    pub arrived_ms: f64,
    /// First event or byte of the answer written.
    pub first_byte_ms: Option<f64>,
    /// First content or call fragment written.
    pub first_token_ms: Option<f64>,
    /// End: all written, or the peer was seen to leave.
    pub ended_ms: Option<f64>,
    /// Streamed or not.
    pub stream: bool,
    /// Bytes of the response head on the wire, before the body (`event_ends` counts body bytes without chunk framing).
    #[serde(default)]
    pub head_bytes: u64,
    /// Events written so far (streams).
    pub events_sent: u32,
    /// Events of the whole stream up to and including its last piece of content or of a call: what a client needs to have
    /// everything but the finish (streams; zero: not known).
    #[serde(default)]
    pub events_to_last_token: u32,
    /// Body bytes written after each event, cumulative: event n ends at `event_ends[n]` (streams).
    pub event_ends: Vec<u64>,
    /// The whole answer was written.
    pub completed: bool,
    /// The peer left before the end.
    pub cancelled: bool,
    /// The text it meant to send (whole).
    pub text: String,
    /// The tool calls it meant to send (whole).
    pub tool_calls: Vec<ToolCallRow>,
    /// A customer address, `ip:port` of the connection (to tell proxied from direct).
    pub peer: String,
}

/// One effect in the system of record: `GET /tickets`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectRow {
    /// Ticket number.
    pub ticket: u64,
    /// What the business would call the same action: conversation, turn and subject.
    pub business_key: String,
    /// `operation_id` argument, if any.
    pub operation_id: Option<String>,
    /// Tool-call id that led to it.
    pub call_id: String,
    /// Tool.
    pub tool: String,
    /// Arguments.
    pub arguments: Value,
    /// When.
    pub at_ms: f64,
    /// It was answered from an earlier effect with the same `operation_id`: no second effect.
    pub repeated: bool,
}
