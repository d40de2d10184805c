//! The customer application: it carries conversations, runs tool calls against the ticket system, sends their results
//! back, and never repeats a turn whose call it has run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use super::client::{Ask, Outcome, ask};
use super::clock::monotonic_ms;
use super::http::{Base, json_call};
use super::marker::{Kind, order_in};
use super::plan::{Conversation, Turn};
use crate::error::{Expected, Result};
use crate::measure::{End, RequestRow, ToolCallRow};

/// Requests in one turn: the first, entry changes, and rounds of tool calls. More is a loop.
const MAX_STEPS: u32 = 8;
/// An entry that failed is tried last for so long.
const AVOID_MS: f64 = 3_000.0;
/// Limit of one tool.
const TOOL_LIMIT: Duration = Duration::from_secs(5);

/// A way into the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in rows.
    pub name: String,
    /// Base URL.
    pub url: String,
}

/// How the application is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Entries, the preferred one first.
    pub entries: Vec<Entry>,
    /// `model`: the name of the route.
    pub model: String,
    /// Base URL of the ticket system.
    pub tickets_url: String,
    /// Sent as bearer token, if given.
    pub key: Option<Key>,
    /// Limit of a connect to an entry.
    pub connect_limit: Duration,
    /// Limit of one request: the route's deadline plus grace.
    pub request_limit: Duration,
    /// Conversations at once; further ones wait, which shows as lateness.
    pub max_conversations: usize,
    /// Name of the phase at the start.
    pub phase: String,
}

/// The application's credential. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The application, ready to hold conversations.
#[derive(Debug)]
pub(super) struct App {
    settings: Settings,
    bases: Vec<Base>,
    tickets: Base,
    /// Per entry, when it failed last.
    failed_ms: Mutex<Vec<Option<f64>>>,
    phase: Mutex<Arc<str>>,
}

/// A conversation in progress.
struct Talk<'a> {
    app: &'a App,
    conversation: &'a Conversation,
    messages: Vec<Value>,
}

/// How a turn goes on after a request.
enum Next {
    Over,
    /// Run these and send the results.
    Tools,
    /// Ask again at this entry.
    OtherEntry(usize),
}

impl App {
    pub(super) fn new(settings: Settings) -> Result<App> {
        if settings.entries.is_empty() {
            return Err(Expected::usage("the load has no entry to dial", ""));
        }
        let bases = settings.entries.iter().map(|e| Base::new(&e.url)).collect::<Result<Vec<_>>>()?;
        let tickets = Base::new(&settings.tickets_url)?;
        let failed_ms = Mutex::new(vec![None; bases.len()]);
        let phase = Mutex::new(Arc::from(settings.phase.as_str()));
        Ok(App { settings, bases, tickets, failed_ms, phase })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn set_phase(&self, phase: &str) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from(phase);
    }

    fn phase(&self) -> Arc<str> {
        Arc::clone(&self.phase.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Entries in the order in which a turn tries them: as given, but those that failed lately last.
    fn entry_order(&self) -> Vec<usize> {
        let failed = self.failed_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let now = monotonic_ms();
        let mut order: Vec<usize> = (0..self.bases.len()).collect();
        order.sort_by_key(|n| failed.get(*n).copied().flatten().is_some_and(|at| now - at < AVOID_MS));
        order
    }

    fn entry_result(&self, entry: usize, failed: bool) {
        let mut all = self.failed_ms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.get_mut(entry) {
            *at = failed.then(monotonic_ms);
        }
    }

    /// Holds one conversation. `rows` takes every request as it ends; `go_on` says before each turn whether to begin it.
    pub(super) async fn converse<F, Fut>(
        &self,
        conversation: &Conversation,
        due_ms: f64,
        rows: F,
        go_on: impl Fn() -> bool,
    ) where
        F: Fn(RequestRow) -> Fut,
        Fut: Future<Output = ()>,
    {
        let system =
            "You are the support assistant of a mail-order shop. Be brief, and use the tools that you are given.";
        let messages = vec![json!({"role": "system", "content": system})];
        let mut talk = Talk { app: self, conversation, messages };
        let mut due_ms = due_ms;
        for (n, turn) in conversation.turns.iter().enumerate() {
            if n > 0 {
                due_ms = monotonic_ms() + turn.think_ms;
                tokio::time::sleep(Duration::from_secs_f64(turn.think_ms.max(0.0) / 1e3)).await;
            }
            if !go_on() {
                return;
            }
            talk.turn(n as u32 + 1, turn, due_ms, &rows).await;
        }
    }
}

impl Talk<'_> {
    async fn turn<F, Fut>(&mut self, number: u32, turn: &Turn, due_ms: f64, rows: &F)
    where
        F: Fn(RequestRow) -> Fut,
        Fut: Future<Output = ()>,
    {
        self.messages.push(json!({"role": "user", "content": turn.text}));
        let order = self.app.entry_order();
        let mut tries = order.iter().copied();
        let Some(mut entry) = tries.next() else { return };
        // The request may have reached a gateway before: the client says that it repeats the turn.
        let mut repeats = false;
        let mut ran_a_call = false;
        let mut due_ms = due_ms;
        for step in 0..MAX_STEPS {
            let started_ms = monotonic_ms();
            let phase = self.app.phase();
            let (outcome, end, detail) = self.ask(number, turn, entry, repeats).await;
            let sent = outcome.sent;
            let mut row = self.row(number, step, turn, entry, outcome, end, detail);
            row.due_ms = due_ms;
            row.started_ms = started_ms;
            row.phase = phase.to_string();
            let next = self.next(&row, sent, ran_a_call, &mut tries);
            row.last_of_turn = matches!(next, Next::Over) || step + 1 == MAX_STEPS;
            self.remember(&row);
            let calls = row.tool_calls.clone();
            due_ms = row.ended_ms;
            rows(row).await;
            match next {
                Next::Over => return,
                Next::OtherEntry(other) => {
                    entry = other;
                    repeats |= sent;
                }
                Next::Tools => {
                    ran_a_call = true;
                    repeats = false;
                    self.run_tools(number, &calls).await;
                    due_ms = monotonic_ms();
                }
            }
        }
    }

    fn next(&self, row: &RequestRow, sent: bool, ran_a_call: bool, tries: &mut impl Iterator<Item = usize>) -> Next {
        match row.end {
            End::Complete if !row.tool_calls.is_empty() => Next::Tools,
            // The request never left, so going elsewhere repeats nothing, whatever was run before.
            End::ConnectFailed if !sent => tries.next().map_or(Next::Over, Next::OtherEntry),
            End::ConnectFailed | End::GaveUp if row.headers_ms.is_none() && !ran_a_call => {
                tries.next().map_or(Next::Over, Next::OtherEntry)
            }
            _ => Next::Over,
        }
    }

    /// Keeps what the customer has seen, as the assistant's part of the history. Calls count only where they are whole.
    fn remember(&mut self, row: &RequestRow) {
        let calls: Vec<Value> = if row.end == End::Complete { row.tool_calls.as_slice() } else { &[] }
            .iter()
            .map(|c| json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}))
            .collect();
        if calls.is_empty() && row.text.is_empty() {
            return;
        }
        let content = if row.text.is_empty() { Value::Null } else { Value::from(row.text.as_str()) };
        let mut message = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        self.messages.push(message);
    }

    async fn run_tools(&mut self, number: u32, calls: &[ToolCallRow]) {
        for call in calls {
            let content = self.run_tool(number, call).await;
            self.messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": content.to_string()}));
        }
    }

    async fn run_tool(&self, number: u32, call: &ToolCallRow) -> Value {
        let text = if call.arguments.trim().is_empty() { "{}" } else { call.arguments.as_str() };
        let Ok(arguments) = serde_json::from_str::<Value>(text) else {
            return json!({"error": "the arguments are not JSON"});
        };
        let known = |key: &str| arguments.get(key).and_then(Value::as_str);
        // By order, never by subject: two models word the subject of one and the same ticket differently. Where the call
        // names no whole order number, the conversation is about the customer's own.
        let what = known("order_id").and_then(order_in).unwrap_or_else(|| self.conversation.order_id.clone());
        let request = json!({
            "conversation": self.conversation.id,
            "turn": number,
            "business_key": format!("{}/{number}/{}/{what}", self.conversation.id, call.name),
            "call_id": call.id,
            "operation_id": known("operation_id"),
            "arguments": arguments,
        });
        let name: String = call.name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        match json_call(Method::POST, &self.app.tickets, &format!("/tools/{name}"), Some(&request), TOOL_LIMIT).await {
            Ok(answer) => answer.get("result").cloned().unwrap_or(Value::Null),
            Err(why) => json!({"error": why}),
        }
    }

    async fn ask(&self, number: u32, turn: &Turn, entry: usize, repeats: bool) -> (Outcome, End, String) {
        let settings = &self.app.settings;
        let Some(base) = self.app.bases.get(entry) else {
            return (Outcome::default(), End::ConnectFailed, "no such entry".to_string());
        };
        let request = Ask {
            base,
            headers: self.headers(number, turn, repeats),
            body: Bytes::from(self.body(turn).to_string()),
            stream: turn.stream,
            connect_limit: settings.connect_limit,
            limit: settings.request_limit,
        };
        let done = ask(&request).await;
        self.app.entry_result(
            entry,
            done.1 == End::ConnectFailed || (done.1 == End::GaveUp && done.0.headers_ms.is_none()),
        );
        done
    }

    fn headers(&self, number: u32, turn: &Turn, repeats: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        put("x-llmfo-intent", turn.kind.intent());
        put("x-llmfo-conversation", &self.conversation.id);
        put("x-llmfo-turn", &number.to_string());
        put("x-llmfo-data", "personal");
        if repeats {
            put("x-llmfo-retry", "1");
        }
        if let Some(Key(key)) = &self.app.settings.key {
            put("authorization", &format!("Bearer {key}"));
        }
        headers
    }

    fn assistant_messages(&self) -> u32 {
        let own = self.messages.iter().filter(|m| m["role"] == "assistant").count();
        u32::try_from(own).unwrap_or(u32::MAX)
    }

    fn body(&self, turn: &Turn) -> Value {
        let mut body = json!({"model": self.app.settings.model, "messages": self.messages, "tools": tools()});
        if turn.stream {
            body["stream"] = Value::Bool(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        if turn.kind == Kind::Json {
            body["response_format"] = json!({"type": "json_schema",
                "json_schema": {"name": "order_status", "strict": true, "schema": json_schema()}});
        }
        body
    }

    #[expect(clippy::too_many_arguments, reason = "one row is made in one place")]
    fn row(
        &self,
        number: u32,
        step: u32,
        turn: &Turn,
        entry: usize,
        outcome: Outcome,
        end: End,
        detail: String,
    ) -> RequestRow {
        let received = outcome.received;
        // The gateway's own words say more than what became of the exchange.
        let own = received.error_message.clone();
        let detail = if own.is_empty() { detail } else { own };
        RequestRow {
            conversation: self.conversation.id.clone(),
            turn: number,
            step,
            intent: turn.kind.intent().to_string(),
            kind: turn.kind.name().to_string(),
            order_id: self.conversation.order_id.clone(),
            assistant_messages: self.assistant_messages(),
            entry: self.app.settings.entries.get(entry).map_or_else(String::new, |e| e.name.clone()),
            stream: turn.stream,
            phase: String::new(),
            due_ms: 0.0,
            started_ms: 0.0,
            headers_ms: outcome.headers_ms,
            useful_text_ms: received.useful_text_ms,
            committed_ms: received.committed_ms,
            ended_ms: monotonic_ms(),
            end,
            end_detail: detail,
            status: outcome.status,
            finish_reason: received.finish_reason,
            done_marker: received.done_marker,
            error_code: received.error_code,
            error_events: received.error_events,
            text: received.text,
            refusal: received.refusal,
            tool_calls: received.tool_calls,
            gateway_target: outcome.target,
            gateway_attempts: outcome.attempts,
            gateway_outcome: outcome.outcome,
            gateway_request_id: outcome.request_id,
            last_of_turn: false,
            violations: Vec::new(),
            checked: Vec::new(),
        }
    }
}

/// The tools that every request offers.
#[must_use]
pub fn tools() -> Value {
    let tool = |name: &str, what: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "description": what,
               "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    let text = json!({"type": "string"});
    json!([
        tool("get_order", "Look up an order.", json!({"order_id": text}), json!(["order_id"])),
        tool(
            "create_ticket",
            "Open a ticket about an order.",
            json!({"subject": text, "order_id": text, "operation_id": text}),
            json!(["subject", "order_id"])
        ),
        tool("transfer_to_human", "Hand the customer to a colleague.", json!({"reason": text}), json!(["reason"])),
    ])
}

/// The schema that an answer of kind `json` must satisfy.
#[must_use]
pub fn json_schema() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["order_id", "status", "eta_days"],
           "properties": {"order_id": {"type": "string"}, "status": {"type": "string"},
                          "eta_days": {"type": "integer", "minimum": 0}}})
}
