//! What is asked in each cell of the comparison.

use serde_json::{Value, json};

use super::asked::Asked;

/// Bytes of the long history.
const HISTORY_BYTES: usize = 32 * 1024;
/// Tools that the long request offers.
const TOOLS: usize = 10;
/// The one tool that must not run twice.
pub const KEYED_TOOL: &str = "create_ticket";

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name in the output.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// Streamed.
    pub stream: bool,
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// Milliseconds between two chunks.
    pub gap_ms: u64,
    /// A long history and tools.
    pub history: bool,
}

/// JSON requests, 32 at once.
pub const JSON_C32: Cell =
    Cell { name: "json_c32", what: "JSON, 32 connections", stream: false, connections: 32, gap_ms: 0, history: false };
/// JSON requests, one after the other.
pub const JSON_C1: Cell = Cell { name: "json_c1", what: "JSON, one connection", connections: 1, ..JSON_C32 };
/// Streams as a model writes them.
pub const STREAM_C32: Cell = Cell {
    name: "stream_c32",
    what: "streams of 50 chunks, 5 ms apart, 32 connections",
    stream: true,
    gap_ms: 5,
    ..JSON_C32
};
/// Streams without a pause.
pub const BURST_C32: Cell =
    Cell { name: "burst_c32", what: "streams of 50 chunks, no pause, 32 connections", gap_ms: 0, ..STREAM_C32 };
/// A long conversation with tools.
pub const HISTORY_C32: Cell = Cell {
    name: "history_c32",
    what: "JSON, 32 KiB of history and 10 tools, 32 connections",
    history: true,
    ..JSON_C32
};
/// All of them, in the order in which they are run.
pub const CELLS: [Cell; 5] = [JSON_C32, JSON_C1, STREAM_C32, BURST_C32, HISTORY_C32];

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where it listens.
    pub to: std::net::SocketAddr,
    /// Path of its base URL.
    pub path: String,
    /// The model to name.
    pub model: String,
    /// The key to show.
    pub key: String,
}

/// A request as bytes, in which conversation and turn are exchanged in place.
#[derive(Clone, Debug)]
pub struct Request {
    /// Head and body.
    pub bytes: Vec<u8>,
    conversation: usize,
    turn: usize,
}

/// Digits of a conversation's number.
const DIGITS: usize = 12;
/// Turns of a conversation.
const TURNS: u64 = 4;

impl Request {
    /// The request of a cell.
    #[must_use]
    pub fn new(way: &Way, stream: bool, history: bool, asked: &Asked) -> Request {
        let body = body(&way.model, stream, history, asked).to_string();
        let named = "x-llmfo-conversation: bench-";
        let head = format!(
            "POST {}/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nauthorization: Bearer {}\r\n\
             accept: */*\r\n{named}{:0DIGITS$}\r\nx-llmfo-turn: 1\r\ncontent-length: {}\r\n\r\n",
            way.path,
            way.to,
            way.key,
            0,
            body.len()
        );
        let conversation = head.find(named).map_or(0, |at| at + named.len());
        let turn = head.find("x-llmfo-turn: ").map_or(0, |at| at + "x-llmfo-turn: ".len());
        Request { bytes: (head + &body).into_bytes(), conversation, turn }
    }

    /// Makes it the `n`th request of all: four turns to a conversation.
    pub fn number(&mut self, n: u64) {
        let name = format!("{:0DIGITS$}", n / TURNS);
        let to = self.bytes.get_mut(self.conversation..self.conversation + DIGITS);
        if let Some(to) = to.filter(|to| to.len() == name.len()) {
            to.copy_from_slice(name.as_bytes());
        }
        if let Some(turn) = self.bytes.get_mut(self.turn) {
            // One digit: there are fewer than ten turns.
            *turn = b'1' + u8::try_from(n % TURNS).unwrap_or(0);
        }
    }
}

fn body(model: &str, stream: bool, history: bool, asked: &Asked) -> Value {
    let question = format!("What is the state of my order? {}", asked.mark());
    let mut messages = Vec::new();
    if history {
        messages.push(json!({"role": "system", "content": "You help the customers of a shop. Be brief and polite."}));
        let mut bytes = 0;
        while bytes < HISTORY_BYTES {
            let said = format!(
                "Message {} of this talk. {}",
                messages.len(),
                "It is about an order and its \"state\".\n".repeat(12)
            );
            bytes += said.len();
            messages.push(json!({"role": if messages.len() % 2 == 1 { "user" } else { "assistant" }, "content": said}));
        }
    }
    messages.push(json!({"role": "user", "content": question}));
    let mut body = json!({"model": model, "messages": messages, "stream": stream});
    if history {
        let tools: Vec<Value> = (0..TOOLS).map(tool).collect();
        body["tools"] = Value::Array(tools);
    }
    body
}

/// Names of the tools of the long request.
#[must_use]
pub fn tool_name(n: usize) -> String {
    if n == 0 { KEYED_TOOL.to_owned() } else { format!("look_up_{n}") }
}

/// All names.
#[must_use]
pub fn tool_names() -> Vec<String> {
    (0..TOOLS).map(tool_name).collect()
}

fn tool(n: usize) -> Value {
    json!({"type": "function", "function": {
        "name": tool_name(n),
        "description": "Looks something up that the customer has asked for, or writes it down.",
        "parameters": {"type": "object", "required": ["order_id"], "properties": {
            "order_id": {"type": "string", "description": "Number of the order"},
            "operation_id": {"type": "string", "description": "Set by the gateway"}
        }}
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> Way {
        Way { to: "127.0.0.1:80".parse().unwrap(), path: "/v1".into(), model: "m".into(), key: "k".into() }
    }

    #[test]
    fn a_request_keeps_its_length_and_its_body_whatever_its_number() {
        for history in [false, true] {
            let mut request = Request::new(&way(), true, history, &Asked { gap_ms: 5, ..Asked::default() });
            let before = request.bytes.len();
            request.number(4 * 123_456 + 2);
            assert_eq!(request.bytes.len(), before);
            let text = String::from_utf8(request.bytes).unwrap();
            assert!(text.contains("x-llmfo-conversation: bench-000000123456\r\nx-llmfo-turn: 3\r\n"), "{text}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())));
            let json: Value = serde_json::from_str(body).unwrap();
            assert_eq!(Asked::read(body.as_bytes()).gap_ms, 5);
            if history {
                assert_eq!(json["tools"].as_array().unwrap().len(), 10);
                assert!(body.len() > HISTORY_BYTES && body.len() < HISTORY_BYTES + 10_000, "{}", body.len());
            }
        }
    }
}
