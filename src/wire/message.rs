//! Reading one message of a request.

use super::{inner, json};

/// One message of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: String,
    /// Its text; text parts are joined by a newline.
    pub text: String,
    /// It has an image part.
    pub images: bool,
    /// Ids of the tool calls it holds (assistant).
    pub call_ids: Vec<String>,
    /// The tool call it answers (tool).
    pub tool_call_id: Option<String>,
}

/// The type of an image part, as it is written.
pub(crate) fn is_image(kind: &str) -> bool {
    matches!(kind, "\"image_url\"" | "\"input_image\"" | "\"image\"")
}

/// Reads a message leniently.
pub(crate) fn read_message(message: &str) -> Message {
    let mut out = Message::default();
    inner::members(message, |m| match m.key().as_ref() {
        "role" => out.role = json::text(m.value).unwrap_or_default(),
        "content" => {
            if let Some(text) = json::text(m.value) {
                out.text = text;
            } else {
                inner::elements(m.value, |part| {
                    inner::members(part, |p| match p.key().as_ref() {
                        "type" => out.images |= is_image(p.value),
                        "text" => {
                            if let Some(text) = json::text(p.value) {
                                if !out.text.is_empty() {
                                    out.text.push('\n');
                                }
                                out.text.push_str(&text);
                            }
                        }
                        _ => {}
                    });
                });
            }
        }
        "tool_calls" => {
            inner::elements(m.value, |call| {
                inner::members(call, |c| {
                    if c.key() == "id" {
                        out.call_ids.extend(json::text(c.value));
                    }
                });
            });
        }
        "tool_call_id" => out.tool_call_id = json::text(m.value),
        _ => {}
    });
    out
}
