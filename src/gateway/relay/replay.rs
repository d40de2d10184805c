//! A repeated turn, answered from the ledger: the calls as they were delivered, in the shape that was asked for.

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use serde_json::{Value, json};

use super::super::bus::unix_ms;
use super::super::http::{Answer, set, whole};
use super::super::ledger::row::CallRow;

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Shape {
    /// `model`, as the client named it.
    pub model: String,
    /// Streamed.
    pub stream: bool,
    /// With a chunk for usage.
    pub include_usage: bool,
}

/// The answer. No model was asked, so it has used nothing.
#[must_use]
pub fn answer(rows: &[CallRow], shape: &Shape, request: &str) -> Answer {
    let (body, kind) = if shape.stream {
        (events(rows, shape, request), "text/event-stream")
    } else {
        (document(rows, shape, request).to_string(), "application/json")
    };
    let mut answer = Response::new(whole(body));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    set(headers, "x-llmfo-outcome", "from_ledger");
    set(headers, "x-llmfo-attempts", "0");
    answer
}

fn calls(rows: &[CallRow], with_index: bool) -> Value {
    let call = |(n, row): (usize, &CallRow)| {
        let mut call = json!({
            "id": row.call_id,
            "type": "function",
            "function": { "name": row.tool, "arguments": row.arguments },
        });
        if with_index {
            call["index"] = n.into();
        }
        call
    };
    Value::Array(rows.iter().enumerate().map(call).collect())
}

fn usage() -> Value {
    json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 })
}

fn document(rows: &[CallRow], shape: &Shape, request: &str) -> Value {
    json!({
        "id": format!("chatcmpl-{request}"),
        "object": "chat.completion",
        "created": unix_ms() / 1000,
        "model": shape.model,
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": null, "tool_calls": calls(rows, false) },
            "finish_reason": "tool_calls",
        }],
        "usage": usage(),
    })
}

fn events(rows: &[CallRow], shape: &Shape, request: &str) -> String {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{request}"),
            "object": "chat.completion.chunk",
            "created": unix_ms() / 1000,
            "model": shape.model,
            "choices": choices,
        })
    };
    let delta = json!({ "role": "assistant", "content": null, "tool_calls": calls(rows, true) });
    let mut chunks = vec![
        chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }])),
        chunk(json!([{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }])),
    ];
    if shape.include_usage {
        let mut last = chunk(json!([]));
        last["usage"] = usage();
        chunks.push(last);
    }
    let mut text: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    text.push_str("data: [DONE]\n\n");
    text
}
