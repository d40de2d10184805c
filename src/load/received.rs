//! `[P]` What the customer received, folded from the body of an answer. Written apart from the gateway's own reading of
//! streams on purpose: it is the witness, not the accused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use serde_json::Value;

use crate::measure::{End, ToolCallRow};
use crate::units::printable;
use crate::wire::Secrets;

/// What has come so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// Content.
    pub text: String,
    /// Refusal text.
    pub refusal: String,
    /// Tool calls, complete or not.
    pub tool_calls: Vec<ToolCallRow>,
    /// Last finish reason.
    pub finish_reason: Option<String>,
    /// `[DONE]`.
    pub done_marker: bool,
    /// Error events, or error bodies.
    pub error_events: u32,
    /// `code`, else `type`, of the last of them.
    pub error_code: Option<String>,
    /// `message` of the last of them, bounded, without anything that looks like a key; empty if there was none.
    pub error_message: String,
    /// When the first non-blank content came.
    pub useful_text_ms: Option<f64>,
    /// When the first committing delta came.
    pub committed_ms: Option<f64>,
    /// Something came that is not what it claims to be.
    pub malformed: bool,
    /// For each call, the index it was sent under.
    indexes: Vec<u64>,
}

/// Text beyond this is not kept; an answer that long is malformed.
const MAX_TEXT: usize = 8 * 1024 * 1024;

/// Characters of an error's message that are kept.
const MAX_MESSAGE: usize = 240;

/// Finish reasons that complete an answer.
const COMPLETING: [&str; 5] = ["stop", "length", "tool_calls", "function_call", "content_filter"];

impl Received {
    /// Takes the data of one event of a stream.
    pub fn event(&mut self, data: &[u8], now_ms: f64) {
        if data.trim_ascii() == b"[DONE]" {
            self.done_marker = true;
            return;
        }
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
            self.malformed = true;
            return;
        };
        if self.error_object(&chunk) {
            return;
        }
        // Only the first choice: the application asks for one.
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        if let Some(delta) = choice.get("delta") {
            self.part(delta, now_ms);
        }
        self.finish(choice, now_ms);
    }

    /// Takes a whole JSON answer.
    pub fn whole(&mut self, body: &[u8], now_ms: f64) {
        let answer: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if self.error_object(&answer) {
            return;
        }
        match answer.pointer("/choices/0") {
            Some(choice) if choice.get("message").is_some_and(Value::is_object) => {
                self.part(&choice["message"], now_ms);
                self.finish(choice, now_ms);
            }
            _ => self.malformed = true,
        }
    }

    /// Takes the body of an HTTP error.
    pub fn error_body(&mut self, body: &[u8]) {
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            self.error_object(&value);
        }
    }

    fn error_object(&mut self, value: &Value) -> bool {
        let Some(error) = value.get("error").filter(|e| !e.is_null()) else { return false };
        self.error_events += 1;
        let code = ["code", "type"].iter().find_map(|k| match error.get(*k) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(n)) => Some(n.to_string()),
            _ => None,
        });
        let message = error.get("message").and_then(Value::as_str).or_else(|| error.as_str()).unwrap_or_default();
        // Bounded before it is searched, too: it comes from outside.
        let message: String = message.chars().take(4 * MAX_MESSAGE).collect();
        self.error_message = printable(&Secrets::default().scrub(&message), MAX_MESSAGE);
        self.error_code = code.map(|c| printable(&c, 100)).or(Some("unnamed".to_string()));
        true
    }

    fn part(&mut self, delta: &Value, now_ms: f64) {
        let text = |key: &str| delta.get(key).and_then(Value::as_str).unwrap_or("");
        let (content, refusal) = (text("content"), text("refusal"));
        if !content.trim().is_empty() {
            self.useful_text_ms.get_or_insert(now_ms);
        }
        if !content.trim().is_empty() || !refusal.trim().is_empty() {
            self.committed_ms.get_or_insert(now_ms);
        }
        let room = |have: &String, more: &str| have.len() + more.len() <= MAX_TEXT;
        if !room(&self.text, content) || !room(&self.refusal, refusal) {
            self.malformed = true;
            return;
        }
        self.text.push_str(content);
        self.refusal.push_str(refusal);
        for call in delta.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
            self.call(call);
        }
    }

    /// A fragment with an id begins a call, unless that call is the last one under its index; without one it goes on with
    /// the last call under its index.
    fn call(&mut self, part: &Value) {
        let index = part.get("index").and_then(Value::as_u64).unwrap_or(self.tool_calls.len() as u64);
        let id = part.get("id").and_then(Value::as_str).unwrap_or("");
        let text = |key: &str| part.pointer(key).and_then(Value::as_str).unwrap_or("");
        let (name, arguments) = (text("/function/name"), text("/function/arguments"));
        let last = self.indexes.iter().rposition(|i| *i == index);
        let place = match last.filter(|at| id.is_empty() || self.tool_calls.get(*at).is_some_and(|c| c.id == id)) {
            Some(at) => at,
            None => {
                self.indexes.push(index);
                self.tool_calls.push(ToolCallRow { id: id.to_string(), name: String::new(), arguments: String::new() });
                self.tool_calls.len() - 1
            }
        };
        if let Some(call) = self.tool_calls.get_mut(place) {
            if call.name.is_empty() {
                call.name.push_str(name);
            }
            if call.arguments.len() + arguments.len() <= MAX_TEXT {
                call.arguments.push_str(arguments);
            } else {
                self.malformed = true;
            }
        }
    }

    fn finish(&mut self, choice: &Value, now_ms: f64) {
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(printable(reason, 100));
            if !self.tool_calls.is_empty() {
                self.committed_ms.get_or_insert(now_ms);
            }
        }
    }

    /// A finish reason that completes an answer has come.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finish_reason.as_deref().is_some_and(|r| COMPLETING.contains(&r))
    }

    /// How a stream ended, if its body ended cleanly.
    #[must_use]
    pub fn clean_end(&self) -> End {
        if self.malformed {
            End::Malformed
        } else if self.error_events > 0 {
            End::ErrorEvent
        } else if self.done_marker || self.finished() {
            End::Complete
        } else {
            End::CleanWithoutFinish
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chunk(delta: &Value, finish: Option<&str>) -> Vec<u8> {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).to_string().into_bytes()
    }

    #[test]
    fn blank_and_role_only_are_not_useful() {
        let mut r = Received::default();
        r.event(&chunk(&json!({"role": "assistant", "content": ""}), None), 1.0);
        r.event(&chunk(&json!({"content": "\n "}), None), 2.0);
        r.event(&chunk(&json!({"reasoning_content": "hm"}), None), 3.0);
        assert_eq!((r.useful_text_ms, r.committed_ms), (None, None));
        r.event(&chunk(&json!({"content": " Hi"}), None), 4.0);
        r.event(&chunk(&json!({"content": "!"}), None), 5.0);
        assert_eq!((r.useful_text_ms, r.committed_ms, r.text.as_str()), (Some(4.0), Some(4.0), "\n  Hi!"));
        assert_eq!(r.clean_end(), End::CleanWithoutFinish);
        r.event(&chunk(&json!({}), Some("stop")), 6.0);
        assert_eq!(r.clean_end(), End::Complete);
    }

    #[test]
    fn calls_are_put_together_and_a_second_id_is_a_second_call() {
        let mut r = Received::default();
        let part = |index: u64, id: Option<&str>, name: Option<&str>, arguments: &str| json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]});
        r.event(&chunk(&part(0, Some("a"), Some("create_ticket"), ""), None), 1.0);
        r.event(&chunk(&part(0, None, None, "{\"x\""), None), 1.0);
        r.event(&chunk(&part(0, None, None, ":1}"), None), 1.0);
        r.event(&chunk(&part(0, Some("b"), Some("create_ticket"), "{}"), None), 1.0);
        assert_eq!(r.committed_ms, None);
        r.event(&chunk(&json!({}), Some("tool_calls")), 2.0);
        assert_eq!(r.committed_ms, Some(2.0));
        let got: Vec<_> = r.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(got, [("a", "create_ticket", "{\"x\":1}"), ("b", "create_ticket", "{}")]);
    }

    #[test]
    fn errors_and_nonsense_are_told_apart() {
        let mut r = Received::default();
        r.event(br#"{"error":{"code":"upstream_broke","type":"x"}}"#, 1.0);
        assert_eq!((r.clean_end(), r.error_code.as_deref()), (End::ErrorEvent, Some("upstream_broke")));
        let mut r = Received::default();
        r.event(b"<html>", 1.0);
        assert_eq!(r.clean_end(), End::Malformed);
        let mut r = Received::default();
        r.event(b"[DONE]", 1.0);
        assert_eq!(r.clean_end(), End::Complete);
    }

    #[test]
    fn the_gateways_own_words_are_kept_without_its_keys_and_bounded() {
        let mut r = Received::default();
        r.error_body(br#"{"error":{"message":"no model support-chat\u001b[2J","type":"invalid_request_error"}}"#);
        assert!(r.error_message.starts_with("no model support-chat") && !r.error_message.contains('\u{1b}'));
        let body =
            json!({"error": {"message": format!("bad key sk-proj-abcdefghijklmnop0123456789 {}", "x".repeat(9000))}});
        let mut r = Received::default();
        r.error_body(body.to_string().as_bytes());
        assert!(!r.error_message.contains("abcdefghijklmnop"), "{}", r.error_message);
        assert!(r.error_message.starts_with("bad key") && r.error_message.chars().count() <= MAX_MESSAGE + 3);
    }

    #[test]
    fn a_whole_answer_is_read() {
        let mut r = Received::default();
        let body = json!({"choices": [{"message": {"content": "Hi", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]});
        r.whole(body.to_string().as_bytes(), 3.0);
        assert_eq!((r.text.as_str(), r.tool_calls.len(), r.useful_text_ms), ("Hi", 2, Some(3.0)));
        assert!(r.finished());
        let mut r = Received::default();
        r.whole(b"{}", 1.0);
        assert!(r.malformed);
    }
}
