//! `[P]` An answer as it goes over the wire: the events of a stream, or one JSON object.

use serde_json::{Value, json};

use super::{Answer, Asked, Parts};

/// What every chunk of an answer repeats.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// `chatcmpl-...`
    pub id: &'a str,
    /// Unix seconds.
    pub created: u64,
    /// Echo of the model asked for.
    pub model: &'a str,
    /// What evidence is tied to.
    pub fingerprint: &'a str,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The bytes, blank line included.
    pub bytes: String,
    /// It carries a token (content, or a piece of a call).
    pub token: bool,
}

impl Frame<'_> {
    fn event(&self, delta: &Value, finish: Option<&str>, token: bool, with_usage: bool) -> Event {
        let mut chunk = self.head("chat.completion.chunk");
        chunk["choices"] = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
        if with_usage {
            chunk["usage"] = Value::Null;
        }
        Event { bytes: format!("data: {chunk}\n\n"), token }
    }

    fn head(&self, object: &str) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model,
               "system_fingerprint": self.fingerprint})
    }

    /// Role chunk, content chunks (or call head and argument fragments), finish chunk, usage chunk if wanted, `[DONE]`.
    #[must_use]
    pub fn events(&self, answer: &Answer, asked: &Asked) -> Vec<Event> {
        let usage = asked.include_usage;
        let mut events = Vec::with_capacity(answer.parts.pieces() + 5);
        match &answer.parts {
            Parts::Text(chunks) => {
                events.push(self.event(&json!({"role": "assistant", "content": ""}), None, false, usage));
                events.extend(chunks.iter().map(|c| self.event(&json!({"content": c}), None, true, usage)));
            }
            Parts::Call { id, name, fragments } => {
                events.push(self.event(&json!({"role": "assistant", "content": null}), None, false, usage));
                let head = json!({"tool_calls": [{"index": 0, "id": id, "type": "function",
                                   "function": {"name": name, "arguments": ""}}]});
                events.push(self.event(&head, None, true, usage));
                events.extend(fragments.iter().map(|f| {
                    let delta = json!({"tool_calls": [{"index": 0, "function": {"arguments": f}}]});
                    self.event(&delta, None, true, usage)
                }));
            }
        }
        events.push(self.event(&json!({}), Some(answer.finish), false, usage));
        if usage {
            let mut chunk = self.head("chat.completion.chunk");
            chunk["choices"] = json!([]);
            chunk["usage"] = usage_of(answer, asked);
            events.push(Event { bytes: format!("data: {chunk}\n\n"), token: false });
        }
        events.push(Event { bytes: "data: [DONE]\n\n".to_string(), token: false });
        events
    }

    /// The answer as one JSON object.
    #[must_use]
    pub fn whole(&self, answer: &Answer, asked: &Asked) -> String {
        let message = match &answer.parts {
            Parts::Text(chunks) => json!({"role": "assistant", "content": chunks.concat(), "refusal": null}),
            Parts::Call { id, name, fragments } => json!({"role": "assistant", "content": null, "refusal": null,
                "tool_calls": [{"id": id, "type": "function",
                                "function": {"name": name, "arguments": fragments.concat()}}]}),
        };
        let mut body = self.head("chat.completion");
        body["choices"] = json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": answer.finish}]);
        body["usage"] = usage_of(answer, asked);
        body.to_string()
    }
}

/// Four bytes to a token is the usual rule of thumb for English; one piece of an answer counts as one.
fn usage_of(answer: &Answer, asked: &Asked) -> Value {
    let (sent, made) = (asked.text_bytes / 4 + 1, answer.parts.pieces() as u64);
    json!({"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made})
}
