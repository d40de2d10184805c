//! `[P]` What a request asks for, read leniently from its JSON.

use serde_json::Value;

use crate::load::marker::{Marker, order_in};

/// What a request asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Marker in the last user message; none is a probe.
    pub marker: Option<Marker>,
    /// Number of user messages.
    pub turn: u32,
    /// Number of tool results in the whole conversation.
    pub tool_results: u32,
    /// Number of the assistant's own messages in the whole conversation.
    pub assistant_messages: u32,
    /// Texts of the tool results after the last user message.
    pub turn_results: Vec<String>,
    /// The last user message asks for a human.
    pub wants_human: bool,
    /// Order number in the first user message.
    pub order_id: Option<String>,
    /// Offered tools with their parameter schemas.
    pub tools: Vec<(String, Value)>,
    /// The tool that must be called (`tool_choice`).
    pub forced_tool: Option<String>,
    /// A JSON answer is wanted.
    pub json_object: bool,
    /// ... by this schema.
    pub schema: Option<Value>,
    /// Streamed.
    pub stream: bool,
    /// A usage chunk is wanted.
    pub include_usage: bool,
    /// Token limit of the answer.
    pub max_tokens: Option<u64>,
    /// The model named; echoed.
    pub model: String,
    /// Bytes of all message texts.
    pub text_bytes: u64,
}

impl Asked {
    /// Reads a request. Unknown and odd parts are passed over; only `messages` must be a list.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn read(body: &Value) -> Result<Asked, &'static str> {
        let messages = body.get("messages").and_then(Value::as_array).ok_or("'messages' must be a list")?;
        let mut asked = Asked {
            stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
            include_usage: body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false),
            model: body.get("model").and_then(Value::as_str).unwrap_or("").to_string(),
            max_tokens: ["max_completion_tokens", "max_tokens"].iter().find_map(|k| body.get(*k)?.as_u64()),
            ..Asked::default()
        };
        for message in messages {
            let text = text_of(message.get("content"));
            asked.text_bytes += text.len() as u64;
            match message.get("role").and_then(Value::as_str) {
                Some("user") => {
                    asked.turn += 1;
                    asked.turn_results.clear();
                    asked.marker = Marker::find(&text);
                    asked.wants_human = text.contains("to a human");
                    if asked.turn == 1 {
                        asked.order_id = order_in(&text);
                    }
                }
                Some("tool") => {
                    asked.tool_results += 1;
                    asked.turn_results.push(text);
                }
                Some("assistant") => asked.assistant_messages += 1,
                _ => {}
            }
        }
        asked.read_tools(body);
        let format = body.get("response_format");
        let kind = format.and_then(|f| f.get("type")).and_then(Value::as_str);
        asked.json_object = matches!(kind, Some("json_object" | "json_schema"));
        asked.schema = format.and_then(|f| f.pointer("/json_schema/schema")).cloned();
        Ok(asked)
    }

    fn read_tools(&mut self, body: &Value) {
        let tools = body.get("tools").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.tools = tools
            .iter()
            .filter_map(|t| {
                let function = t.get("function")?;
                let name = function.get("name")?.as_str()?.to_string();
                Some((name, function.get("parameters").cloned().unwrap_or(Value::Null)))
            })
            .collect();
        let choice = body.get("tool_choice");
        self.forced_tool = match choice.and_then(Value::as_str) {
            Some("none") => {
                self.tools.clear();
                None
            }
            Some("required") => self.tools.first().map(|(name, _)| name.clone()),
            _ => choice.and_then(|c| c.pointer("/function/name")).and_then(Value::as_str).map(str::to_string),
        };
    }

    /// True if this tool may be called.
    #[must_use]
    pub fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|(name, _)| name == tool)
    }
}

/// The text of a message: a string, or the text parts of a list.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}
