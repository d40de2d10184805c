//! A scripted provider on a raw socket: every byte, pause and end is the script's own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which request of this provider, from 0.
    pub nth: usize,
    /// Request line and headers, lower case.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
}

impl Seen {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// A header's value, lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// What the script does with its connection.
pub struct Wire {
    stream: TcpStream,
    log: Arc<Shared>,
}

/// What follows on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next request.
    KeepAlive,
    /// An orderly close.
    Fin,
    /// A reset.
    Rst,
}

type Script = Arc<dyn Fn(&Seen, &mut Wire) -> Then + Send + Sync>;

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    connections: usize,
    /// Connections whose peer went away while a script was waiting for it.
    cancelled: Vec<Instant>,
    open_now: usize,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    script: Mutex<Script>,
}

/// A provider. Its threads end with the test process.
pub struct Mock {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Mock {
    pub fn start(script: impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static) -> Mock {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), script: Mutex::new(Arc::new(script)) });
        let for_accept = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&for_accept);
                shared.state.lock().unwrap().connections += 1;
                std::thread::spawn(move || serve(stream.unwrap(), &shared));
            }
        });
        Mock { address, shared }
    }

    /// Another script from the next request on.
    pub fn play(&self, script: impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state.lock().unwrap().seen.clone()
    }

    /// Requests that are no probes.
    pub fn asked(&self) -> usize {
        self.seen().iter().filter(|s| !is_probe(s)).count()
    }

    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().connections
    }

    /// Waits until a request is there.
    pub fn wait_seen(&self, n: usize) {
        self.wait(|s| s.seen.len() >= n);
    }

    /// Waits until so many scripts have seen their client leave, and says when the last one did.
    pub fn wait_cancelled(&self, n: usize) -> Instant {
        self.wait(|s| s.cancelled.len() >= n);
        *self.shared.state.lock().unwrap().cancelled.last().unwrap()
    }

    /// Waits until no script runs.
    pub fn wait_quiet(&self) {
        self.wait(|s| s.open_now == 0);
    }

    fn wait(&self, done: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let (_state, timeout) =
            self.shared.changed.wait_timeout_while(state, Duration::from_secs(20), |s| !done(s)).unwrap();
        assert!(!timeout.timed_out(), "the provider waited in vain");
    }
}

pub fn is_probe(seen: &Seen) -> bool {
    String::from_utf8_lossy(&seen.body).contains("Reply with the single word")
}

fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    stream.set_nodelay(true).unwrap();
    let mut wire = Wire { stream, log: Arc::clone(shared) };
    while let Some((head, body)) = read_request(&mut wire.stream) {
        let seen = {
            let mut state = shared.state.lock().unwrap();
            let seen = Seen { nth: state.seen.len(), head, body };
            state.seen.push(seen.clone());
            state.open_now += 1;
            shared.changed.notify_all();
            seen
        };
        let script = Arc::clone(&*shared.script.lock().unwrap());
        let then = script(&seen, &mut wire);
        shared.state.lock().unwrap().open_now -= 1;
        shared.changed.notify_all();
        match then {
            Then::KeepAlive => {}
            Then::Fin => return,
            Then::Rst => {
                let socket = socket2::Socket::from(wire.stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                return;
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut got = Vec::new();
    let mut buf = [0; 16 * 1024];
    loop {
        if let Some(at) = got.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&got[..at]).to_lowercase();
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
            let mut body = got.split_off(at + 4);
            while body.len() < length {
                match stream.read(&mut buf) {
                    Ok(0) | Err(_) => return None,
                    Ok(n) => body.extend_from_slice(&buf[..n]),
                }
            }
            return Some((head, body));
        }
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return None,
            Ok(n) => got.extend_from_slice(&buf[..n]),
        }
    }
}

impl Wire {
    /// Which connection this is.
    pub fn peer(&self) -> std::net::SocketAddr {
        self.stream.peer_addr().unwrap()
    }

    /// Sends bytes as they are. A client that has left is not the script's business.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a whole answer with a length.
    pub fn answer(&mut self, status: &str, content_type: &str, body: impl AsRef<[u8]>) {
        self.answer_with(status, content_type, "", body);
    }

    /// The same with more headers (`name: value\r\n` each).
    pub fn answer_with(&mut self, status: &str, content_type: &str, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.raw(head);
        self.raw(body);
    }

    /// The head of a chunked event stream.
    pub fn stream_head(&mut self) {
        self.raw("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    }

    /// One chunk of a chunked body.
    pub fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        self.raw(framed);
    }

    /// One event in a chunk of its own.
    pub fn event(&mut self, json: impl std::fmt::Display) {
        self.chunk(format!("data: {json}\n\n"));
    }

    /// The proper end of a chunked body.
    pub fn end(&mut self) {
        self.raw("0\r\n\r\n");
    }

    /// Closes this side: nothing more will be said.
    pub fn say_no_more(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Waits until the client closes (a cancel); at most 20 s.
    pub fn wait_gone(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let gone = !matches!(self.stream.read(&mut [0; 1]), Ok(n) if n > 0);
        self.stream.set_read_timeout(None).unwrap();
        if gone {
            self.log.state.lock().unwrap().cancelled.push(Instant::now());
            self.log.changed.notify_all();
        }
    }

    pub fn sleep(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

/// A chunk with text.
pub fn text_chunk(text: &str) -> String {
    serde_json::json!({
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }]
    })
    .to_string()
}

pub fn role_chunk() -> String {
    r#"{"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#
        .to_owned()
}

pub fn finish_chunk(reason: &str) -> String {
    format!(
        r#"{{"id":"c1","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#
    )
}

/// A fragment of a tool call; the first one has the name.
pub fn call_chunk(name: Option<&str>, arguments: &str) -> String {
    let mut call = serde_json::json!({ "index": 0, "function": { "arguments": arguments } });
    if let Some(name) = name {
        call["id"] = "call_1".into();
        call["type"] = "function".into();
        call["function"]["name"] = name.into();
    }
    serde_json::json!({
        "id": "c1", "object": "chat.completion.chunk",
        "choices": [{ "index": 0, "delta": { "tool_calls": [call] }, "finish_reason": null }]
    })
    .to_string()
}

/// A whole answer that is not streamed.
pub fn whole(text: &str) -> String {
    serde_json::json!({
        "id": "w1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8 }
    })
    .to_string()
}

/// Answers well, streamed or not, as `name`: the text is `name one two`.
pub fn good(name: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, wire| {
        if seen.json()["stream"] == true {
            wire.stream_head();
            wire.event(role_chunk());
            for word in [name, " one", " two"] {
                wire.event(text_chunk(word));
            }
            wire.event(finish_chunk("stop"));
            wire.chunk("data: [DONE]\n\n");
            wire.end();
        } else {
            wire.answer("200 OK", "application/json", whole(&format!("{name} one two")));
        }
        Then::KeepAlive
    }
}

/// Answers with this error status and body.
pub fn status(line: &'static str, body: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |_, wire| {
        wire.answer(line, "application/json", body);
        Then::KeepAlive
    }
}

/// Accepts the request and says nothing until the client leaves.
pub fn silence(_: &Seen, wire: &mut Wire) -> Then {
    wire.wait_gone();
    Then::Fin
}
