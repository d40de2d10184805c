//! The ticket system: the system of record. Whatever happened to the business is written here once per effect, with the
//! key that the business would use, so that a duplicate is seen from outside.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::admin::Since;
use crate::load::monotonic_ms;
use crate::measure::EffectRow;
use crate::units::printable;

/// So many effects are kept, and as many operation ids; older ones are dropped and counted.
const MAX_EFFECTS: usize = 50_000;
/// Ticket numbers begin here.
const FIRST_TICKET: u64 = 1_001;
/// The tools it runs. `get_order` only reads.
pub const TOOLS: [&str; 4] = ["create_ticket", "issue_refund", "transfer_to_human", "get_order"];

/// A tool to be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToolRequest {
    /// Conversation.
    pub conversation: String,
    /// Turn.
    pub turn: u32,
    /// What the business would call the action.
    pub business_key: String,
    /// Id of the tool call.
    pub call_id: String,
    /// Makes a repetition harmless. Also found in `arguments.operation_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// Arguments of the call.
    #[serde(default)]
    pub arguments: Value,
}

/// What a tool answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolAnswer {
    /// For the model.
    pub result: Value,
    /// It had been done before under the same operation id; nothing was done now.
    pub repeated: bool,
}

/// What `GET /tickets` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TicketsPage {
    /// Milliseconds of CLOCK_MONOTONIC.
    pub now_ms: f64,
    /// Every effect, in order.
    pub effects: Vec<EffectRow>,
    /// Requests that were answered from an earlier effect; they are no effects.
    pub repeats: Vec<EffectRow>,
    /// Effects lost because the book was full.
    pub dropped: u64,
}

/// The ticket system.
#[derive(Clone, Debug, Default)]
pub struct Tickets {
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    effects: VecDeque<EffectRow>,
    repeats: VecDeque<EffectRow>,
    /// (tool, operation id) -> ticket.
    done: BTreeMap<(String, String), u64>,
    made: u64,
    dropped: u64,
}

impl Tickets {
    /// Its routes: `GET /tickets`, `POST /tools/{tool}`.
    pub fn router(&self) -> Router {
        Router::new().route("/tickets", get(list)).route("/tools/{tool}", post(run)).with_state(self.clone())
    }

    /// Everything recorded; with `since`, from that moment on.
    #[must_use]
    pub fn page(&self, since: Option<f64>) -> TicketsPage {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let since = since.unwrap_or(f64::NEG_INFINITY);
        let later = |rows: &VecDeque<EffectRow>| rows.iter().filter(|e| e.at_ms >= since).cloned().collect();
        TicketsPage {
            now_ms: monotonic_ms(),
            effects: later(&book.effects),
            repeats: later(&book.repeats),
            dropped: if book.effects.front().is_some_and(|e| e.at_ms < since) { 0 } else { book.dropped },
        }
    }

    /// Runs a tool that has an effect; `at_ms` is when.
    fn effect(&self, tool: &str, request: ToolRequest, at_ms: f64) -> ToolAnswer {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = request.arguments.get("operation_id").and_then(Value::as_str).map(str::to_string);
        let operation_id = request.operation_id.or(inside).filter(|id| !id.is_empty());
        let key = operation_id.clone().map(|id| (tool.to_string(), id));
        let earlier = key.as_ref().and_then(|k| book.done.get(k)).copied();
        let ticket = earlier.unwrap_or(FIRST_TICKET + book.made);
        let row = EffectRow {
            ticket,
            business_key: request.business_key,
            operation_id,
            call_id: request.call_id,
            tool: tool.to_string(),
            arguments: request.arguments,
            at_ms,
            repeated: earlier.is_some(),
        };
        if earlier.is_some() {
            push_bounded(&mut book.repeats, row);
        } else {
            book.made += 1;
            if let Some(key) = key {
                book.done.insert(key, ticket);
            }
            if let Some(old) = push_bounded(&mut book.effects, row) {
                book.dropped += 1;
                if let Some(id) = old.operation_id {
                    book.done.remove(&(old.tool, id));
                }
            }
        }
        ToolAnswer { result: result_of(tool, ticket), repeated: earlier.is_some() }
    }
}

fn push_bounded(rows: &mut VecDeque<EffectRow>, row: EffectRow) -> Option<EffectRow> {
    let old = if rows.len() == MAX_EFFECTS { rows.pop_front() } else { None };
    rows.push_back(row);
    old
}

fn result_of(tool: &str, ticket: u64) -> Value {
    match tool {
        "create_ticket" => json!({"ticket": ticket, "status": "open"}),
        "issue_refund" => json!({"refund": ticket, "status": "booked"}),
        _ => json!({"transfer": ticket, "status": "a colleague takes over"}),
    }
}

async fn list(State(tickets): State<Tickets>, Query(from): Query<Since>) -> Json<TicketsPage> {
    Json(tickets.page(from.since))
}

async fn run(State(tickets): State<Tickets>, Path(tool): Path<String>, Json(request): Json<ToolRequest>) -> Response {
    match tool.as_str() {
        "get_order" => {
            let order = request.arguments.get("order_id").cloned().unwrap_or(Value::Null);
            let result = json!({"order_id": order, "status": "shipped", "eta_days": 2});
            Json(ToolAnswer { result, repeated: false }).into_response()
        }
        known if TOOLS.contains(&known) => Json(tickets.effect(known, request, monotonic_ms())).into_response(),
        other => {
            let message = format!("no tool '{}'; there are {}", printable(other, 64), TOOLS.join(", "));
            (StatusCode::NOT_FOUND, Json(json!({"error": {"message": message}}))).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation_id: Option<&str>, arguments: Value) -> ToolRequest {
        ToolRequest {
            conversation: "c1".into(),
            turn: 2,
            business_key: "c1/2/create_ticket/ORD-1".into(),
            call_id: "call_1".into(),
            operation_id: operation_id.map(Into::into),
            arguments,
        }
    }

    #[test]
    fn an_operation_id_makes_twice_as_once_and_without_one_twice_is_twice() {
        let tickets = Tickets::default();
        let first = tickets.effect("create_ticket", request(Some("op-1"), json!({})), 1.0);
        // The gateway fills the key into the arguments: it counts as well.
        let again = tickets.effect("create_ticket", request(None, json!({"operation_id": "op-1"})), 2.0);
        assert_eq!((first.repeated, again.repeated), (false, true));
        assert_eq!(first.result, again.result);
        assert_eq!(first.result["ticket"], 1_001);
        // Another tool under the same id is another operation.
        assert!(!tickets.effect("issue_refund", request(Some("op-1"), json!({})), 3.0).repeated);
        for _ in 0..2 {
            assert!(!tickets.effect("create_ticket", request(None, json!({})), 4.0).repeated);
        }
        let page = tickets.page(None);
        assert_eq!((page.effects.len(), page.repeats.len()), (4, 1));
        let numbers: Vec<u64> = page.effects.iter().map(|e| e.ticket).collect();
        assert_eq!(numbers, [1_001, 1_002, 1_003, 1_004]);
    }
}
