//! A golden set: conversations whose right answers are known in part, and what is demanded of each answer. Probes and live
//! sampling judge by it; `llmfo eval` will.

mod contradictions;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::{Limits, SpannedDoc, load};
use super::named::Named;
use super::text::{Name, Names};
use crate::diag::Diagnostic;

pub use contradictions::{Contradiction, contradictions};

/// Version of golden sets. Keys are only added.
pub const GOLDEN_FORMAT: u32 = 1;

/// Output tokens that an answer to a case may have where the set says nothing.
pub const DEFAULT_MAX_TOKENS: u32 = 256;

/// Cases that are used as probes where none is marked: so many from the first on.
pub const PROBES_UNMARKED: usize = 3;

// Keys that must be there are demanded by the schema; the type does without them, so that a file that lacks one is still looked
// at as a whole.

/// Conversations whose right answers are known in part, and what is demanded of each answer.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "llmfo golden set")]
pub struct GoldenFile {
    /// Version of this format.
    #[serde(default)]
    #[schemars(!default, range(min = 1, max = 1))]
    pub version: u32,
    /// Its name.
    #[serde(default = "no_name")]
    #[schemars(!default)]
    pub set: Name,
    /// How every case is asked.
    #[serde(default)]
    pub request: Request,
    /// The system prompt of every case that has no system message of its own, as text.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub system: Option<String>,
    /// Tools that every case offers, as the API takes them.
    #[serde(default)]
    #[schemars(length(min = 1, max = 128))]
    pub tools: Option<Vec<ToolOffer>>,
    /// JSON Schemas by name, for `expect.schema`.
    #[serde(default)]
    pub schemas: Option<Named<Value>>,
    /// By tool: when it may be called. Checked in every case, whatever the case expects.
    #[serde(default)]
    pub tool_rules: Option<Named<ToolRule>>,
    /// How a customer is handed to a human.
    #[serde(default)]
    pub handoff: Option<HandoffBy>,
    /// The cases.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 10_000))]
    pub cases: Vec<Case>,
}

fn no_name() -> Name {
    Name(String::new())
}

/// How every case is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Sampling temperature; absent: the target's own.
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Output tokens that an answer may have; absent: 256. An answer that is cut there has failed.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_tokens: Option<u32>,
}

/// A tool as the API takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolOffer {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: Function,
}

/// Type of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A function.
    Function,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Its name.
    pub name: Name,
    /// What it does, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Its arguments must keep that schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// When a tool may be called.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRule {
    /// Facts that the case must state (`consent.refund`), all of them.
    pub requires: Option<Names>,
    /// Calls in one answer.
    #[schemars(range(min = 1, max = 1000))]
    pub max_calls: Option<u32>,
    /// It may be called in every case, also where `expect.tools.may` does not list it.
    pub always_allowed: Option<bool>,
}

/// How a customer is handed to a human.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandoffBy {
    /// By a call of this tool.
    pub tool: Name,
}

/// One conversation, up to the answer that is judged.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name; none twice.
    #[serde(default = "no_name")]
    #[schemars(!default)]
    pub id: Name,
    /// Probes ask it. Where no case says so, the first three are asked.
    #[serde(default)]
    pub probe: bool,
    /// What it is an example of: `intent: refund`, `lang: de`.
    #[serde(default)]
    pub slices: Option<Named<Name>>,
    /// What is true in it (`consent.refund`, `order.verified`): a label of whoever wrote the case, never guessed from its text.
    #[serde(default)]
    pub facts: Option<Names>,
    /// The conversation. Its last message is the user's, or a tool's result.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 1000))]
    pub messages: Vec<Message>,
    /// What is demanded of the answer; at least one thing.
    #[serde(default)]
    #[schemars(!default)]
    pub expect: Expect,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    #[serde(default)]
    pub content: Option<String>,
    /// Calls of the assistant, as the API has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub tool_calls: Option<Vec<Value>>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The application.
    System,
    /// The application, as newer models call it.
    Developer,
    /// The customer.
    User,
    /// The model.
    Assistant,
    /// The result of a call.
    Tool,
}

/// What is demanded of an answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The answer is JSON by this schema, as it stands; the request demands it (`response_format`).
    pub schema: Option<Name>,
    /// Finish reasons that are right; absent: any that completes an answer without cutting or blocking it.
    #[schemars(length(min = 1))]
    pub finish: Option<Vec<Finish>>,
    /// Which tools.
    pub tools: Option<ExpectTools>,
    /// Whether the customer must be handed to a human.
    pub handoff: Option<ExpectHandoff>,
    /// Texts that must stand in the answer, each as a whole word; case and white space do not matter.
    #[schemars(length(min = 1, max = 100))]
    pub contains: Option<Vec<String>>,
}

/// A finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It came to its end.
    Stop,
    /// It calls tools.
    ToolCalls,
    /// It was cut at its limit.
    Length,
    /// It was blocked.
    ContentFilter,
}

impl Finish {
    /// As the API writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
            Finish::ContentFilter => "content_filter",
        }
    }
}

/// Which tools an answer must, may and must not call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpectTools {
    /// Each of these.
    pub must: Option<Names>,
    /// Besides `must` only these; an empty list: no other at all. Absent: any other.
    pub may: Option<super::text::NamesOrNone>,
    /// None of these.
    pub must_not: Option<Names>,
    /// By tool: arguments that each call of it must have, compared as JSON values; others may be there.
    pub args: Option<Named<Named<Value>>>,
}

/// Whether the customer must be handed to a human.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpectHandoff {
    /// Must be.
    Required,
    /// Must not be.
    Forbidden,
}

impl Expect {
    /// Something can fail by it.
    #[must_use]
    pub fn is_effective(&self) -> bool {
        let tools = self
            .tools
            .as_ref()
            .is_some_and(|t| t.must.is_some() || t.may.is_some() || t.must_not.is_some() || t.args.is_some());
        tools || self.schema.is_some() || self.finish.is_some() || self.handoff.is_some() || self.contains.is_some()
    }
}

/// Reads a golden set. `Some` only without error findings.
#[must_use]
pub fn read(name: &str, bytes: &[u8]) -> (Option<GoldenFile>, Vec<Diagnostic>, SpannedDoc) {
    let (file, found, doc) = load::<GoldenFile>(name, bytes, &Limits::DEFAULT);
    let broken = found.iter().any(Diagnostic::is_error);
    (file.filter(|_| !broken), found, doc)
}

#[cfg(test)]
mod tests;
