//! A deliberately bad gateway: a drill must fail it. It stands between customers and the two providers of a lab that is
//! already up (`llmfo lab up`) and does one thing wrong, chosen by `--mode`; in everything else it behaves as a simple
//! failover gateway may be expected to (fails over before it has sent anything, breaks off with an error after).
//!
//! ```text
//! llmfo lab up &                                             # prints {"admin": "http://127.0.0.1:A", ...}
//! cargo run --example bad-gateway -- --mode splice --lab http://127.0.0.1:A
//! llmfo drill run midstream-break --target http://127.0.0.1:L/v1 --lab http://127.0.0.1:A
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Answers 502 when the primary fails.
    NoFailover,
    /// Closes a cut stream as if the answer were whole.
    Truncate,
    /// After a cut, goes on with the standby's text in the same stream.
    Splice,
    /// After a cut in or behind a tool call, lets the standby make the call once more.
    Replay,
    /// Waits for the primary for ever.
    Hang,
    /// Dials the primary around the fault proxy, so that no fault reaches it.
    Bypass,
}

const MODES: [(&str, Mode); 6] = [
    ("no-failover", Mode::NoFailover),
    ("truncate", Mode::Truncate),
    ("splice", Mode::Splice),
    ("replay", Mode::Replay),
    ("hang", Mode::Hang),
    ("bypass", Mode::Bypass),
];

/// An attempt that has shown no token after this is given up.
const FIRST_TOKEN: Duration = Duration::from_millis(1_500);
/// So is one that has been silent for so long afterwards.
const IDLE: Duration = Duration::from_secs(2);
/// A whole answer may take so long.
const WHOLE: Duration = Duration::from_secs(4);
/// After three failures in a row the primary is left alone for so long.
const COOLDOWN: Duration = Duration::from_secs(2);

struct Gateway {
    mode: Mode,
    http: reqwest::Client,
    /// Base URLs, the primary first.
    upstreams: [String; 2],
    /// Failures of the primary in a row, and until when it is left alone.
    breaker: Mutex<(u32, Option<Instant>)>,
}

/// What goes to the client, event by event.
type Out = mpsc::Sender<Bytes>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mode, lab, listen) = arguments()?;
    // No proxy variables: everything here is on loopback. No pool: a fault must not be blurred by stale connections.
    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).tcp_nodelay(true).build()?;
    let topology: Value = http.get(format!("{lab}/topology")).send().await?.error_for_status()?.json().await?;
    let url = |n: usize, key: &str| {
        topology["providers"][n][key].as_str().map(str::to_string).ok_or("the lab's topology has no two providers")
    };
    let primary = url(0, if mode == Mode::Bypass { "direct_url" } else { "proxied_url" })?;
    let gateway =
        Arc::new(Gateway { mode, http, upstreams: [primary, url(1, "proxied_url")?], breaker: Mutex::default() });
    let listener = tokio::net::TcpListener::bind(listen).await?;
    say(&json!({"listen": listener.local_addr()?.to_string()}));
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(async || axum::Json(json!({"object": "list", "data": []}))))
        .with_state(gateway);
    axum::serve(listener, routes).await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example may print: whoever started it reads where it listens")]
fn say(line: &Value) {
    println!("{line}");
}

fn arguments() -> Result<(Mode, String, String), String> {
    let (mut mode, mut lab, mut listen) = (None, None, "127.0.0.1:0".to_string());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--mode" => mode = MODES.iter().find(|(name, _)| *name == value).map(|(_, mode)| *mode),
            "--lab" => lab = Some(value.trim_end_matches('/').to_string()),
            "--listen" => listen = value,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let known: Vec<&str> = MODES.iter().map(|(name, _)| *name).collect();
    let mode = mode.ok_or_else(|| format!("--mode must be one of {}", known.join(", ")))?;
    Ok((mode, lab.ok_or("--lab ADMIN_URL is missing")?, listen))
}

async fn chat(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Response {
    let streamed = serde_json::from_slice::<Value>(&body).is_ok_and(|b| b["stream"] == true);
    if streamed { gateway.streamed(body).await } else { gateway.whole(body).await }
}

impl Gateway {
    /// Whom to try, in order.
    fn order(&self) -> Vec<usize> {
        let resting = self.breaker.lock().unwrap_or_else(PoisonError::into_inner).1.is_some_and(|t| t > Instant::now());
        match self.mode {
            Mode::NoFailover | Mode::Hang => vec![0],
            _ if resting => vec![1],
            _ => vec![0, 1],
        }
    }

    fn note(&self, upstream: usize, good: bool) {
        if upstream == 0 {
            let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
            breaker.0 = if good { 0 } else { breaker.0 + 1 };
            breaker.1 = (breaker.0 >= 3).then(|| Instant::now() + COOLDOWN);
        }
    }

    async fn dial(&self, upstream: usize, body: &Bytes) -> Option<reqwest::Response> {
        let url = format!("{}/chat/completions", self.upstreams[upstream]);
        let call = self.http.post(url).header(header::CONTENT_TYPE, "application/json").body(body.clone());
        call.send().await.ok()?.error_for_status().ok()
    }

    /// Never answers, if that is what this gateway does wrong.
    async fn give_up(&self) -> Response {
        if self.mode == Mode::Hang {
            std::future::pending::<()>().await;
        }
        let error =
            json!({"error": {"message": "no provider answered", "type": "upstream_error", "code": "bad_gateway"}});
        (StatusCode::BAD_GATEWAY, axum::Json(error)).into_response()
    }

    async fn whole(&self, body: Bytes) -> Response {
        for upstream in self.order() {
            let attempt = async { self.dial(upstream, &body).await?.bytes().await.ok() };
            let answer =
                if self.mode == Mode::Hang { attempt.await } else { timeout(WHOLE, attempt).await.ok().flatten() };
            self.note(upstream, answer.is_some());
            if let Some(answer) = answer {
                return ([(header::CONTENT_TYPE, "application/json")], answer).into_response();
            }
        }
        self.give_up().await
    }

    async fn streamed(self: Arc<Self>, body: Bytes) -> Response {
        for upstream in self.order() {
            let attempt = self.first_events(upstream, &body);
            let begun = if self.mode == Mode::Hang {
                attempt.await
            } else {
                timeout(FIRST_TOKEN, attempt).await.ok().flatten()
            };
            self.note(upstream, begun.is_some());
            if let Some((held, source)) = begun {
                let (out, events) = mpsc::channel(16);
                tokio::spawn(self.relay(held, source, upstream, body, out));
                let stream = futures_util::stream::unfold(events, async |mut events| {
                    let event = events.recv().await?;
                    Some((Ok::<_, Infallible>(event), events))
                });
                return ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response();
            }
        }
        self.give_up().await
    }

    /// Reads until the answer has shown something: content or, for one that replays, the first piece of a tool call; for
    /// the others a tool call counts when it is whole.
    async fn first_events(&self, upstream: usize, body: &Bytes) -> Option<(Vec<Value>, Source)> {
        let mut source = Source { answer: self.dial(upstream, body).await?, buffer: Vec::new() };
        let mut held = Vec::new();
        loop {
            let event = source.next().await.ok()??;
            let choice = &event["choices"][0];
            let content = choice["delta"]["content"].as_str().is_some_and(|c| !c.trim().is_empty());
            let call = self.mode == Mode::Replay && choice["delta"]["tool_calls"].is_array();
            let finished = choice["finish_reason"].is_string();
            held.push(event);
            if content || call || finished {
                return Some((held, source));
            }
        }
    }

    /// Sends what was held, then everything that follows; and then does what it does.
    async fn relay(self: Arc<Self>, held: Vec<Value>, mut source: Source, upstream: usize, body: Bytes, out: Out) {
        let mut calls = Calls::default();
        let mut finished = false;
        for event in held {
            calls.note(&event);
            finished |= event["choices"][0]["finish_reason"].is_string();
            if send(&out, &event).await.is_err() {
                return;
            }
        }
        let whole = loop {
            let next = tokio::select! {
                // The client has left; dropping `source` cancels the provider.
                () = out.closed() => return,
                next = timeout(IDLE, source.next()) => next,
            };
            match next {
                Ok(Ok(Some(event))) => {
                    calls.note(&event);
                    finished |= event["choices"][0]["finish_reason"].is_string();
                    if send(&out, &event).await.is_err() {
                        return;
                    }
                }
                Ok(Ok(None)) => break finished,
                Ok(Err(())) | Err(_) => break false,
            }
        };
        if whole {
            let _ = send_text(&out, "[DONE]").await;
            return;
        }
        self.note(upstream, false);
        let _ = self.broken(&calls, finished, &body, &out).await;
    }

    /// The primary broke after something had been sent.
    async fn broken(&self, calls: &Calls, finished: bool, body: &Bytes, out: &Out) -> Result<(), Closed> {
        match self.mode {
            Mode::Truncate => {
                if !finished {
                    send(out, &finish_chunk("stop")).await?;
                }
                send_text(out, "[DONE]").await
            }
            Mode::Splice if calls.open.is_none() => self.go_on(body, out, |_| {}).await,
            Mode::Replay if calls.open.is_some() => {
                let end = calls.missing_end();
                let delta = json!({"tool_calls": [{"index": calls.open, "function": {"arguments": end}}]});
                send(out, &json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})).await?;
                // The standby's call comes as one more call of the same answer.
                self.go_on(body, out, |call| call["index"] = json!(call["index"].as_u64().unwrap_or(0) + 1)).await
            }
            Mode::Hang => {
                out.closed().await;
                Ok(())
            }
            _ => {
                let error = json!({"error": {"message": "the provider broke off", "type": "upstream_error",
                                             "code": "upstream_broke"}});
                send(out, &error).await
            }
        }
    }

    /// Relays the standby's whole answer into the same stream.
    async fn go_on(&self, body: &Bytes, out: &Out, change_call: impl Fn(&mut Value)) -> Result<(), Closed> {
        if let Some(answer) = self.dial(1, body).await {
            let mut source = Source { answer, buffer: Vec::new() };
            while let Ok(Ok(Some(mut event))) = timeout(IDLE, source.next()).await {
                let calls = event.pointer_mut("/choices/0/delta/tool_calls").and_then(Value::as_array_mut);
                calls.into_iter().flatten().for_each(&change_call);
                send(out, &event).await?;
            }
        }
        send_text(out, "[DONE]").await
    }
}

/// The client has left.
struct Closed;

async fn send(out: &Out, event: &Value) -> Result<(), Closed> {
    send_text(out, &event.to_string()).await
}

async fn send_text(out: &Out, data: &str) -> Result<(), Closed> {
    out.send(Bytes::from(format!("data: {data}\n\n"))).await.map_err(|_| Closed)
}

fn finish_chunk(reason: &str) -> Value {
    json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Events of an upstream's stream.
struct Source {
    answer: reqwest::Response,
    buffer: Vec<u8>,
}

impl Source {
    /// The next event; `None` at a clean end or `[DONE]`; an error where the connection broke.
    async fn next(&mut self) -> Result<Option<Value>, ()> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let data = block.strip_prefix(b"data: ").unwrap_or_default().trim_ascii();
                if data == b"[DONE]" {
                    return Ok(None);
                }
                return serde_json::from_slice(data).map(Some).map_err(|_| ());
            }
            match self.answer.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => return Ok(None),
                Err(_) => return Err(()),
            }
        }
    }
}

/// What was relayed of tool calls.
#[derive(Default)]
struct Calls {
    /// Index of the last call.
    open: Option<u64>,
    /// Its arguments so far.
    arguments: String,
}

impl Calls {
    fn note(&mut self, event: &Value) {
        for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64();
            if index != self.open {
                self.open = index;
                self.arguments.clear();
            }
            self.arguments.push_str(call["function"]["arguments"].as_str().unwrap_or(""));
        }
    }

    /// What makes the arguments of the last call whole. They are a flat object of texts, so one of these fits wherever they
    /// were cut.
    fn missing_end(&self) -> &'static str {
        let fits = |end: &&str| serde_json::from_str::<Value>(&format!("{}{end}", self.arguments)).is_ok();
        let ends = ["", "}", "\"}", "\":\"\"}", ":\"\"}", "\"\"}", "\"x\":\"\"}", "{}"];
        ends.into_iter().find(fits).unwrap_or("")
    }
}
