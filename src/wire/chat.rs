//! Lenient, lossless reading of a request body.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::changes::Changes;
use super::inner::Seen;
use super::mask::Masked;
use super::message::{Message, is_image, read_message};
use super::rewrite::{Span, Splice, cuts};
use super::{adapt, inner, json, kinds, rewrite};

/// Deepest nesting of a body. Real ones (tool schemas) stay below a quarter of it; JSON readers give up at about this depth.
pub const MAX_DEPTH: usize = 128;
/// Members that a body, or its `metadata`, may have. The API knows about forty.
pub const MAX_MEMBERS: usize = 1000;
/// Tools that a body may offer; the API allows 128.
pub const MAX_TOOLS: usize = 4096;
/// Messages that a body may have.
pub const MAX_MESSAGES: usize = 100_000;
/// Longest value of a `metadata.llmfo_*` member that is read, in bytes.
const MAX_LABEL_BYTES: usize = 512;
/// Longest list of declared names, in bytes.
const MAX_NAMES_BYTES: usize = 8192;
/// The label that declares names. It is no label like the others: they may be shown, a name may not.
const NAMES_LABEL: &str = "names";
/// Prefix of what a request says about itself in `metadata`.
const LABEL_PREFIX: &str = "llmfo_";

/// A chat request: what llmfo needs to know, beside the bytes as they came.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatRequest {
    body: Bytes,
    model_at: Range<usize>,
    /// Keys and values of all members.
    spans: Vec<Span>,
    metadata: Option<Metadata>,
    /// Which members offer tools or speak about them.
    tool_members: Vec<usize>,
    messages_at: Option<Range<usize>>,
    schema_at: Option<Range<usize>>,
    /// `response_format` among the members.
    format_member: Option<usize>,
    strict_tools: bool,
    names_at: Option<Range<usize>>,
    /// `model`: a route's name.
    pub model: String,
    /// `stream`.
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// `max_completion_tokens`, else `max_tokens`.
    pub max_output_tokens: Option<u64>,
    /// `n`, at least 1.
    pub choices: u32,
    /// Names of the tools it offers, old `functions` included, in order.
    pub tools: Vec<String>,
    /// It has image parts.
    pub images: bool,
    /// It wants a JSON schema kept (`response_format.type` is `json_schema`).
    pub json_schema: bool,
    /// It wants it kept strictly (`strict: true` there or at a tool).
    pub strict_schema: bool,
    /// It wants JSON (`response_format.type` is `json_schema` or `json_object`).
    json_text: bool,
    /// Messages of the user: the turn, where no header says it.
    pub user_messages: u32,
    /// Results of tool calls among the messages.
    pub tool_results: u32,
    /// Calls in the assistant's messages since the user's last one.
    pub calls_of_turn: u32,
    /// It offers tools in the old way (`functions`), whose calls have no id.
    pub old_functions: bool,
    /// `metadata.llmfo_*`, without the prefix: `intent`, `conversation`, `history_version` ...
    pub labels: BTreeMap<String, String>,
}

/// Says how large it is, and nothing of what it says: it is about a customer.
impl fmt::Debug for ChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatRequest").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// Why a body is refused, with status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// What is wrong. Holds no text of the request.
    pub message: String,
    /// Which parameter, if one.
    pub param: Option<&'static str>,
}

impl BadRequest {
    fn new(message: impl Into<String>, param: Option<&'static str>) -> BadRequest {
        BadRequest { message: message.into(), param }
    }
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// If it is not UTF-8, not JSON, not an object, nested deeper than [`MAX_DEPTH`], has no usable `model`, has more of something
    /// than any honest request, or has a member
    /// twice that llmfo reads: two readers may take different ones, and a filter must not be talked around. Also if a member
    /// has a type under which the target's answer would be misjudged.
    pub fn parse(body: Bytes) -> Result<ChatRequest, BadRequest> {
        let text = std::str::from_utf8(&body).map_err(|_| BadRequest::new("The request body is not UTF-8.", None))?;
        if json::deeper_than(&body, MAX_DEPTH) {
            return Err(BadRequest::new(format!("The request body is nested deeper than {MAX_DEPTH} levels."), None));
        }
        let mut read = Reading::default();
        let mut all = Vec::new();
        let is_object = json::members(text, |m| {
            if all.len() == MAX_MEMBERS {
                read.too_many = Some("members");
                return;
            }
            all.push((json::place(text, m.raw_key), json::place(text, m.value)));
            read.member(text, &m);
        });
        if !is_object {
            let what = if json::is_whole(&body) { "a JSON object" } else { "valid JSON" };
            return Err(BadRequest::new(format!("The request body is not {what}."), None));
        }
        if let Some(what) = read.too_many {
            return Err(BadRequest::new(format!("The request body has too many {what}."), None));
        }
        if let Some(twice) = read.twice {
            return Err(BadRequest::new(format!("The request body has `{twice}` twice."), Some(twice)));
        }
        if let Some((name, wanted)) = read.wrong {
            return Err(BadRequest::new(format!("`{name}` must be {wanted}."), Some(name)));
        }
        let Some((model, model_at)) = read.model else {
            return Err(BadRequest::new("You must provide `model`, a string that is not empty.", Some("model")));
        };
        Ok(ChatRequest {
            model_at,
            spans: all.into_iter().filter_map(|(k, v)| Some((k?, v?))).collect(),
            metadata: read.metadata,
            tool_members: read.tool_members,
            messages_at: read.messages_at,
            schema_at: read.schema_at,
            format_member: read.format_member,
            strict_tools: read.strict_tools,
            names_at: read.names_at,
            model,
            stream: read.stream,
            include_usage: read.include_usage,
            max_output_tokens: read.max_completion_tokens.or(read.max_tokens),
            choices: read.choices.unwrap_or(1),
            tools: read.tools,
            images: read.images,
            json_schema: read.json_schema,
            strict_schema: read.strict_schema,
            json_text: read.json_text,
            user_messages: read.user_messages,
            tool_results: read.tool_results,
            calls_of_turn: read.calls_of_turn,
            old_functions: read.old_functions,
            labels: read.labels,
            body,
        })
    }

    /// The names in `metadata.llmfo_names`: a list, or a text with commas.
    ///
    /// # Errors
    /// What it is instead.
    pub fn declared_names(&self) -> Result<Vec<String>, &'static str> {
        let Some(value) = self.names_at.as_ref().map(|at| self.text_at(Some(at))) else { return Ok(Vec::new()) };
        if value.len() > MAX_NAMES_BYTES {
            return Err("is longer than 8 KiB");
        }
        if let Some(text) = json::text(value) {
            return Ok(text.split(',').map(|name| name.trim().to_owned()).collect());
        }
        let mut names = Vec::new();
        let list = json::elements(value, |name| names.push(json::text(name)));
        match names.into_iter().collect() {
            Some(names) if list || value == "null" => Ok(names),
            _ => Err("is neither a text nor a list of texts"),
        }
    }

    /// The body as it came.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body for a target: its model name, and `metadata.llmfo_*` gone (with `metadata`, if nothing else is in it). Every
    /// other byte is as it came.
    #[must_use]
    pub fn rewrite(&self, model: &str) -> Bytes {
        self.rewrite_with(model, &Changes::default())
    }

    /// As [`ChatRequest::rewrite`], with more changes.
    #[must_use]
    pub fn rewrite_with(&self, model: &str, changes: &Changes<'_>) -> Bytes {
        let splices = self.splices(model, changes, None);
        if splices.is_empty() { self.body.clone() } else { rewrite::splice(&self.body, &splices) }
    }

    /// As [`ChatRequest::rewrite_with`], and masked, in pieces: what stays is shared with this body, not copied, so that one more
    /// attempt costs next to no memory.
    #[must_use]
    pub fn send(&self, model: &str, changes: &Changes<'_>, masked: Option<&Masked>) -> Vec<Bytes> {
        rewrite::rope(&self.body, &self.splices(model, changes, masked))
    }

    fn splices(&self, model: &str, changes: &Changes<'_>, masked: Option<&Masked>) -> Vec<Splice> {
        let mut splices: Vec<Splice> = Vec::new();
        if model != self.model {
            splices.push((self.model_at.clone(), serde_json::Value::from(model).to_string()));
        }
        let mut drop = Vec::new();
        if let Some(withheld) = changes.withhold {
            let members =
                self.tool_members.iter().filter_map(|&n| self.spans.get(n).map(|(key, value)| (n, key, value)));
            let members: Vec<_> =
                members.map(|(n, k, v)| (n, self.text_at(Some(k)), v.start, self.text_at(Some(v)))).collect();
            drop = super::changes::withhold(&members, withheld, &mut splices);
        }
        if let Some(text) = changes.schema_by {
            splices.extend(adapt::ask(self.text(), self.messages_text(), text, self.text_at(self.schema_at.as_ref())));
            drop.extend(self.format_member);
        }
        if let Some(cap) = changes.max_output_tokens {
            let members = self
                .spans
                .iter()
                .map(|(key, value)| (self.text_at(Some(key)), value.clone(), self.text_at(Some(value))));
            splices.extend(super::changes::cap(members, cap, changes.limit_name, self.model_at.end));
        }
        let mut gone = Vec::new();
        match &self.metadata {
            // Only ours are in it: the target never asked for `metadata`, so it goes altogether.
            Some(metadata) if metadata.only_ours => drop.push(metadata.member),
            Some(metadata) => gone.clone_from(&metadata.cuts),
            None => {}
        }
        gone.extend(cuts(&self.spans, |n| drop.contains(&n)));
        splices.extend(gone.into_iter().map(|at| (at, String::new())));
        // What lies inside a cut is left out by the splicing: the cut begins before it.
        splices.extend(masked.into_iter().flat_map(|masked| masked.splices.iter().cloned()));
        splices
    }

    /// The messages, read anew on each call. Empty if there are none that can be read.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let mut out = Vec::new();
        inner::elements(self.text_at(self.messages_at.as_ref()), |m| out.push(read_message(m)));
        out
    }

    /// The text of the first system (or developer) message.
    #[must_use]
    pub fn system_text(&self) -> Option<String> {
        let mut found: Option<String> = None;
        inner::elements(self.text_at(self.messages_at.as_ref()), |message| {
            // Of a long conversation the rest is not read again.
            if found.is_none() {
                let message = read_message(message);
                found = matches!(message.role.as_str(), "system" | "developer").then_some(message.text);
            }
        });
        found
    }

    /// The JSON schema it wants kept.
    #[must_use]
    pub fn schema(&self) -> Option<serde_json::Value> {
        self.schema_at.as_ref()?;
        serde_json::from_str(self.text_at(self.schema_at.as_ref())).ok()
    }

    /// A prompt can ask for what it demands of its answer's form: the schema is the only demand, and there is a place for the
    /// prompt.
    #[must_use]
    pub fn adaptable(&self) -> bool {
        self.schema_at.is_some()
            && !self.strict_tools
            && adapt::ask(self.text(), self.messages_text(), "", "").is_some()
    }

    /// The body as a text.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// The value of `messages`.
    pub(super) fn messages_text(&self) -> &str {
        self.text_at(self.messages_at.as_ref())
    }

    /// The text of the answer must be JSON.
    #[must_use]
    pub fn wants_json(&self) -> bool {
        self.json_text
    }

    /// The JSON schema it wants kept, as it stands.
    #[must_use]
    pub fn schema_text(&self) -> Option<&[u8]> {
        self.body.get(self.schema_at.clone()?)
    }

    fn text_at(&self, at: Option<&Range<usize>>) -> &str {
        at.and_then(|at| std::str::from_utf8(self.body.get(at.clone())?).ok()).unwrap_or_default()
    }
}

#[derive(Default)]
struct Reading {
    seen: Vec<&'static str>,
    members: usize,
    twice: Option<&'static str>,
    wrong: Option<(&'static str, &'static str)>,
    too_many: Option<&'static str>,
    messages: usize,
    model: Option<(String, Range<usize>)>,
    stream: bool,
    include_usage: bool,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    choices: Option<u32>,
    tools: Vec<String>,
    tool_members: Vec<usize>,
    images: bool,
    json_schema: bool,
    strict_schema: bool,
    strict_tools: bool,
    format_member: Option<usize>,
    json_text: bool,
    user_messages: u32,
    tool_results: u32,
    calls_of_turn: u32,
    old_functions: bool,
    labels: BTreeMap<String, String>,
    metadata: Option<Metadata>,
    messages_at: Option<Range<usize>>,
    schema_at: Option<Range<usize>>,
    names_at: Option<Range<usize>>,
}

/// Where `metadata` is, and what to cut so that `llmfo_*` is gone from it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Metadata {
    /// Which member of the body it is.
    member: usize,
    /// Nothing but `llmfo_*` is in it.
    only_ours: bool,
    cuts: Vec<Range<usize>>,
}

/// The members of a body that llmfo reads.
const READ: [&str; 14] = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "metadata",
    "messages",
];

impl Reading {
    fn member(&mut self, body: &str, m: &json::Member<'_>) {
        let place = self.members;
        self.members += 1;
        let key = m.key();
        let Some(&name) = READ.iter().find(|name| **name == key) else {
            return;
        };
        if self.seen.contains(&name) {
            self.twice.get_or_insert(name);
            return;
        }
        self.seen.push(name);
        if let Some(wanted) = kinds::must_be(name, m.value) {
            self.wrong.get_or_insert((name, wanted));
        }
        match name {
            "model" => {
                self.model =
                    json::filled_text(m.value).filter(|model| !model.trim().is_empty()).zip(json::place(body, m.value));
            }
            "stream" => self.stream = m.value == "true",
            "stream_options" => {
                inner::members(m.value, |o| {
                    if o.key() == "include_usage" {
                        self.include_usage = o.value == "true";
                    }
                });
            }
            "max_tokens" => self.max_tokens = json::unsigned(m.value),
            "max_completion_tokens" => self.max_completion_tokens = json::unsigned(m.value),
            "n" => self.choices = json::unsigned(m.value).and_then(|n| u32::try_from(n.max(1)).ok()),
            "tools" => {
                self.tool_members.push(place);
                inner::elements(m.value, |tool| self.tool(tool));
            }
            "functions" => {
                self.tool_members.push(place);
                inner::elements(m.value, |function| {
                    self.old_functions = true;
                    self.function(function);
                });
            }
            "tool_choice" | "parallel_tool_calls" | "function_call" => self.tool_members.push(place),
            "response_format" => {
                self.format_member = Some(place);
                self.response_format(body, m.value);
            }
            "metadata" => self.metadata(body, place, m.value),
            _ => {
                self.messages_at = json::place(body, m.value);
                self.messages(m.value);
            }
        }
    }

    fn tool(&mut self, tool: &str) {
        inner::members(tool, |m| {
            if m.key() == "function" {
                self.function(m.value);
            }
        });
    }

    fn function(&mut self, function: &str) {
        inner::members(function, |m| match m.key().as_ref() {
            "name" if self.tools.len() == MAX_TOOLS => self.too_many = Some("tools"),
            "name" => self.tools.extend(json::filled_text(m.value)),
            "strict" if m.value == "true" => (self.strict_schema, self.strict_tools) = (true, true),
            _ => {}
        });
    }

    fn response_format(&mut self, body: &str, format: &str) {
        inner::members(format, |m| match m.key().as_ref() {
            "type" => {
                self.json_schema = m.value == "\"json_schema\"";
                self.json_text = self.json_schema || m.value == "\"json_object\"";
            }
            "json_schema" => {
                inner::members(m.value, |s| match s.key().as_ref() {
                    "strict" => self.strict_schema |= s.value == "true",
                    "schema" => self.schema_at = json::place(body, s.value),
                    _ => {}
                });
            }
            _ => {}
        });
    }

    fn metadata(&mut self, body: &str, member: usize, metadata: &str) {
        let mut spans = Vec::new();
        let mut ours = Vec::new();
        inner::members(metadata, |m| {
            let n = spans.len();
            if n == MAX_MEMBERS {
                self.too_many = Some("members of `metadata`");
                return;
            }
            spans.push((json::place(body, m.raw_key), json::place(body, m.value)));
            if let Some(label) = m.key().strip_prefix(LABEL_PREFIX) {
                ours.push(n);
                if label == NAMES_LABEL {
                    let first = self.names_at.replace(json::place(body, m.value).unwrap_or_default()).is_none();
                    self.twice = self.twice.or((!first).then_some("metadata"));
                } else if self.labels.contains_key(label) {
                    self.twice.get_or_insert("metadata");
                } else if let Some(mut value) = json::loose_text(m.value) {
                    // Whoever reads it must see that it was longer than it may be.
                    let end = (0..=MAX_LABEL_BYTES).rev().find(|n| value.is_char_boundary(*n)).unwrap_or(0);
                    value.truncate(end);
                    self.labels.insert(label.to_owned(), value);
                }
            }
        });
        let spans: Vec<Span> = spans.into_iter().filter_map(|(k, v)| Some((k?, v?))).collect();
        let only_ours = !ours.is_empty() && ours.len() == spans.len();
        self.metadata = Some(Metadata { member, only_ours, cuts: cuts(&spans, |n| ours.contains(&n)) });
    }

    fn messages(&mut self, all: &str) {
        let (mut calls, mut by_user) = (0u32, false);
        inner::objects(all, |seen| match seen {
            Seen::Member(m) if self.messages < MAX_MESSAGES => self.of_message(&m, &mut calls, &mut by_user),
            Seen::Member(_) => {}
            Seen::Over => {
                self.messages += 1;
                if self.messages > MAX_MESSAGES {
                    self.too_many = Some("messages");
                }
                self.calls_of_turn = if by_user { 0 } else { self.calls_of_turn.saturating_add(calls) };
                (calls, by_user) = (0, false);
            }
            Seen::Other => {
                self.wrong.get_or_insert(("messages", kinds::OBJECTS));
            }
        });
    }

    fn of_message(&mut self, m: &json::Member<'_>, calls: &mut u32, by_user: &mut bool) {
        match m.key().as_ref() {
            "role" => match m.value {
                "\"user\"" => {
                    self.user_messages = self.user_messages.saturating_add(1);
                    *by_user = true;
                }
                "\"tool\"" | "\"function\"" => self.tool_results = self.tool_results.saturating_add(1),
                _ => {}
            },
            "tool_calls" => {
                inner::elements(m.value, |_| *calls = calls.saturating_add(1));
            }
            "content" => {
                inner::elements(m.value, |part| {
                    inner::members(part, |p| self.images |= p.key() == "type" && is_image(p.value));
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> ChatRequest {
        ChatRequest::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap()
    }

    fn refused(body: &[u8]) -> BadRequest {
        ChatRequest::parse(Bytes::copy_from_slice(body)).unwrap_err()
    }

    fn all() -> Changes<'static> {
        Changes { withhold: Some(&|_| true), ..Changes::default() }
    }

    #[test]
    fn messages_that_are_no_objects_are_refused() {
        for messages in ["[1]", "[{},null]", r#"[{"role":"user"},"hi"]"#] {
            let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
            let refused = ChatRequest::parse(Bytes::from(body)).unwrap_err();
            assert_eq!(refused.message, "`messages` must be a list of objects.", "{messages}");
        }
    }

    #[test]
    fn facts_are_read() {
        let request = parse(
            r#"{"model":"support-chat","stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":9,
            "max_completion_tokens":400,
            "tools":[{"type":"function","function":{"name":"get_order","parameters":{}}},{"type":"function","function":{"name":"create_ticket","strict":true}}],
            "response_format":{"type":"json_schema","json_schema":{"name":"o","schema":{"type":"object"}}},
            "metadata":{"llmfo_intent":"order_status","llmfo_turn":3,"own":"x"},
            "messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},
              {"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"get_order","arguments":"{}"}}]},
              {"role":"tool","tool_call_id":"call_1","content":"{}"},
              {"role":"user","content":[{"type":"text","text":"what"},{"type":"image_url","image_url":{"url":"data:,"}},{"type":"text","text":"is it"}]}]}"#,
        );
        assert_eq!(request.model, "support-chat");
        assert!(request.stream && request.include_usage && request.images);
        assert!(request.json_schema && request.strict_schema);
        assert_eq!((request.choices, request.max_output_tokens), (2, Some(400)));
        assert_eq!(request.tools, ["get_order", "create_ticket"]);
        assert_eq!(
            (request.user_messages, request.tool_results, request.calls_of_turn),
            (2, 1, 0),
            "the call is of the turn before"
        );
        assert_eq!(request.labels["intent"], "order_status");
        assert_eq!(request.labels["turn"], "3");
        assert_eq!(request.labels.len(), 2);
        assert_eq!(request.system_text().unwrap(), "Be brief.");
        assert_eq!(request.schema().unwrap()["type"], "object");
        let messages = request.messages();
        assert_eq!(messages[2].call_ids, ["call_1"]);
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("call_1"));
        assert_eq!((messages[4].text.as_str(), messages[4].images), ("what\nis it", true));
    }

    #[test]
    fn only_the_model_changes() {
        let body = "{ \"seed\": 1e2, \"model\" :\"a\", \"temperature\":0.10,\n \"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9 model\"}], \"unknown\":{\"model\":\"a\"} }";
        let out = parse(body).rewrite("b\"c");
        assert_eq!(out, body.replacen("\"a\"", "\"b\\\"c\"", 1).as_bytes());
        assert_eq!(parse(body).rewrite("a"), body.as_bytes());
    }

    #[test]
    fn labels_and_withheld_tools_are_cut_with_their_commas() {
        let with = |middle: &str| format!("{{\"model\":\"m\",{middle}\"n\":1}}");
        let out = |body: &str| String::from_utf8(parse(body).rewrite("m").to_vec()).unwrap();
        assert_eq!(out(&with(r#""metadata":{"llmfo_intent":"x","a":"1"},"#)), with(r#""metadata":{"a":"1"},"#));
        assert_eq!(
            out(&with(r#""metadata":{"a":"1","llmfo_intent":"x", "llmfo_turn":"2"},"#)),
            with(r#""metadata":{"a":"1"},"#)
        );
        assert_eq!(
            out(&with(r#""metadata":{"llmfo_a":"1","b":"2","llmfo_c":"3","d":"4","llmfo_e":"5"},"#)),
            with(r#""metadata":{"b":"2","d":"4"},"#)
        );
        assert_eq!(out(&with(r#""metadata": {"llmfo_\u0069ntent":"x"},"#)), with(""));
        assert_eq!(out(&with(r#""metadata": {},"#)), with(r#""metadata": {},"#));
        assert_eq!(out(r#"{"model":"m","metadata":{"llmfo_a":"b"}}"#), r#"{"model":"m"}"#);

        let both = r#"{"model":"m","tools":[1],"metadata":{"llmfo_a":"b"},"tool_choice":"auto"}"#;
        let cut = parse(both).rewrite_with("x", &all());
        assert_eq!(cut, r#"{"model":"x"}"#.as_bytes());
        let first = r#"{"tools":[1],"metadata":{"llmfo_a":"b"},"model":"m"}"#;
        assert_eq!(parse(first).rewrite_with("m", &all()), r#"{"model":"m"}"#.as_bytes());
    }

    #[test]
    fn bad_bodies_are_refused_in_plain_words() {
        for (body, says) in [
            (&b"{"[..], "not valid JSON"),
            (b"[]", "not a JSON object"),
            (b"\"x\"", "not a JSON object"),
            (b"", "not valid JSON"),
            (b"{\"model\":\"a\"} {}", "not valid JSON"),
            (b"{\"model\":\"\xff\"}", "not UTF-8"),
            (b"{\"messages\":[]}", "`model`"),
            (b"{\"model\":7}", "`model`"),
            (b"{\"model\":\" \"}", "`model`"),
            (b"{\"model\":\"a\",\"model\":\"b\"}", "twice"),
            (b"{\"model\":\"a\",\"mode\\u006c\":\"b\"}", "twice"),
            (b"{\"model\":\"a\",\"metadata\":{\"llmfo_data\":\"personal\",\"llmfo_data\":\"none\"}}", "twice"),
        ] {
            let error = refused(body);
            assert!(error.message.contains(says), "{}: {}", String::from_utf8_lossy(body), error.message);
        }
    }

    #[test]
    fn what_a_body_may_have_is_bounded() {
        let members: String = (0..MAX_MEMBERS).map(|n| format!("\"a{n}\":1,")).collect();
        assert!(refused(format!("{{{members}\"model\":\"m\"}}").as_bytes()).message.contains("too many members"));
        let labels: String = (0..=MAX_MEMBERS).map(|n| format!(",\"llmfo_{n}\":1")).collect();
        let body = format!("{{\"model\":\"m\",\"metadata\":{{{}}}}}", &labels[1..]);
        assert!(refused(body.as_bytes()).message.contains("members of `metadata`"));
        let tools = "{\"function\":{\"name\":\"f\"}},".repeat(MAX_TOOLS + 1);
        let body = format!("{{\"model\":\"m\",\"tools\":[{}]}}", tools.trim_end_matches(','));
        assert!(refused(body.as_bytes()).message.contains("too many tools"));
        let messages = "{},".repeat(MAX_MESSAGES);
        let body = |more: &str| format!("{{\"model\":\"m\",\"messages\":[{messages}{more}]}}");
        assert!(refused(body("{}").as_bytes()).message.contains("too many messages"));
        parse(&format!("{{\"model\":\"m\",\"messages\":[{}]}}", messages.trim_end_matches(',')));
    }

    #[test]
    fn depth_is_bounded_and_strings_do_not_count() {
        let nested = |n: usize| format!("{{\"model\":\"a\",\"x\":{}1{}}}", "[".repeat(n), "]".repeat(n));
        parse(&nested(MAX_DEPTH - 1));
        assert!(refused(nested(MAX_DEPTH).as_bytes()).message.contains("nested deeper"));
        assert!(refused("[".repeat(100_000).as_bytes()).message.contains("nested deeper"));
        parse(&format!("{{\"model\":\"a\",\"x\":\"\\\"{}\"}}", "[".repeat(5000)));
    }
}
