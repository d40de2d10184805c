//! A scripted provider: an OpenAI-compatible server with a log of everything that it received and wrote.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Duration, Instant};

use super::http::{self, Conn, Gone, NoRequest, Request};
use super::listen::{Server, serve_connections};
use super::script::{self, Answer, Asked, Parts, Sabotage, Speaker, frames::Frame};
use crate::load::monotonic_ms;
use crate::measure::{ProviderRow, ToolCallRow};

/// The log keeps so many rows; older ones are dropped and counted.
const LOG_ROWS: usize = 20_000;

/// A running provider.
#[derive(Clone, Debug)]
pub struct Provider {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    speaker: Speaker,
    seed: u64,
    sabotage: Mutex<Sabotage>,
    log: Mutex<Log>,
    arrivals: AtomicU64,
}

#[derive(Debug, Default)]
struct Log {
    rows: VecDeque<ProviderRow>,
    /// Number of the first row in `rows`.
    first: u64,
    /// Rows that fell out because the log was full.
    dropped: u64,
}

/// What `GET /providers/<name>/log` answers.
#[derive(Debug, Serialize)]
pub struct LogPage {
    /// Milliseconds of CLOCK_MONOTONIC.
    pub now_ms: f64,
    /// Rows in order of arrival.
    pub rows: Vec<ProviderRow>,
    /// Rows lost because the log was full.
    pub dropped: u64,
}

impl Provider {
    /// A provider that is not listening yet. `voice` is its place among the providers of the lab.
    #[must_use]
    pub fn new(name: &str, voice: usize, seed: u64) -> Provider {
        Provider {
            inner: Arc::new(Inner {
                speaker: Speaker { name: name.to_string(), voice },
                seed,
                sabotage: Mutex::default(),
                log: Mutex::default(),
                arrivals: AtomicU64::new(0),
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.speaker.name
    }

    /// What its answers say in `system_fingerprint`, and its admission record repeats.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(self.name())
    }

    /// Starts answering on `listener`; stops when the returned value is dropped.
    #[must_use]
    pub fn serve(&self, listener: TcpListener) -> Server {
        let provider = self.clone();
        serve_connections(listener, move |stream, peer| {
            let provider = provider.clone();
            async move { provider.connection(Conn::new(stream, peer)).await }
        })
    }

    /// Breaks or mends it.
    pub fn set_sabotage(&self, sabotage: Sabotage) {
        *self.inner.sabotage.lock().unwrap_or_else(PoisonError::into_inner) = sabotage;
    }

    /// What is broken.
    #[must_use]
    pub fn sabotage(&self) -> Sabotage {
        *self.inner.sabotage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log as it stands; with `since`, what arrived from that moment on, and no loss of what was before.
    #[must_use]
    pub fn log(&self, since: Option<f64>) -> LogPage {
        let log = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner);
        let since = since.unwrap_or(f64::NEG_INFINITY);
        let dropped = if log.rows.front().is_some_and(|r| r.arrived_ms < since) { 0 } else { log.dropped };
        let rows = log.rows.iter().filter(|r| r.arrived_ms >= since).cloned().collect();
        LogPage { now_ms: monotonic_ms(), rows, dropped }
    }

    /// Empties the log. Answers under way are no longer logged.
    pub fn clear_log(&self) {
        let mut log = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.first += log.rows.len() as u64;
        log.rows.clear();
        log.dropped = 0;
    }

    fn add_row(&self, row: ProviderRow) -> u64 {
        let mut log = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.rows.len() == LOG_ROWS {
            log.rows.pop_front();
            log.first += 1;
            log.dropped += 1;
        }
        log.rows.push_back(row);
        log.first + log.rows.len() as u64 - 1
    }

    fn with_row(&self, number: u64, change: impl FnOnce(&mut ProviderRow)) {
        let mut log = self.inner.log.lock().unwrap_or_else(PoisonError::into_inner);
        let place = number.checked_sub(log.first).and_then(|n| usize::try_from(n).ok());
        if let Some(row) = place.and_then(|n| log.rows.get_mut(n)) {
            change(row);
        }
    }

    async fn connection(&self, mut conn: Conn) {
        loop {
            let done = match conn.next_request().await {
                Ok(request) => self.respond(&mut conn, &request).await.map(|()| request.keep_alive),
                Err(NoRequest::Gone) => return,
                Err(NoRequest::Bad(status, what)) => refuse(&mut conn, status, what, false).await.map(|()| false),
            };
            if !matches!(done, Ok(true)) {
                return;
            }
        }
    }

    async fn respond(&self, conn: &mut Conn, request: &Request) -> Result<(), Gone> {
        let keep = request.keep_alive;
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/v1/chat/completions") => {
                let body: Result<Value, _> = serde_json::from_slice(&request.body);
                match body.map_err(|_| "the body is not JSON").and_then(|b| Asked::read(&b)) {
                    Ok(asked) => self.chat(conn, &asked, keep).await,
                    Err(what) => refuse(conn, 400, what, keep).await,
                }
            }
            ("GET", "/v1/models") => {
                let models = json!({"object": "list", "data": [
                    {"id": self.name(), "object": "model", "created": 0, "owned_by": "llmfo-lab"}]});
                send(conn, 200, &models.to_string(), keep).await.map(drop)
            }
            (_, "/v1/chat/completions" | "/v1/models") => refuse(conn, 405, "method not allowed", keep).await,
            _ => refuse(conn, 404, "no such path", keep).await,
        }
    }

    async fn chat(&self, conn: &mut Conn, asked: &Asked, keep: bool) -> Result<(), Gone> {
        let arrival = self.inner.arrivals.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        // Real providers draw a fresh id for each call, so a repeated request is told from a new one by it.
        let unique = script::seed_of(&[self.name(), &self.inner.seed.to_string(), &arrival.to_string()]);
        let answer = script::answer(&self.inner.speaker, asked, self.sabotage(), &format!("call_{unique:016x}"));
        let row = self.add_row(self.row(conn.peer, asked, &answer));
        let tokens = answer.parts.pieces() + usize::from(matches!(answer.parts, Parts::Call { .. }));
        let pace = script::pace(self.inner.seed ^ unique, tokens);
        let fingerprint = self.fingerprint();
        let frame = Frame {
            id: &format!("chatcmpl-{unique:016x}"),
            created: unix_s(),
            model: if asked.model.is_empty() { self.name() } else { &asked.model },
            fingerprint: &fingerprint,
        };
        let sent = if asked.stream {
            self.stream(conn, &frame.events(&answer, asked), &pace, start, row, keep).await
        } else {
            self.whole(conn, &frame.whole(&answer, asked), &pace, start, row, keep).await
        };
        self.with_row(row, |r| {
            r.ended_ms = Some(monotonic_ms());
            r.completed = sent.is_ok();
            r.cancelled = sent.is_err();
        });
        sent
    }

    fn row(&self, peer: SocketAddr, asked: &Asked, answer: &Answer) -> ProviderRow {
        let (text, tool_calls) = match &answer.parts {
            Parts::Text(chunks) => (chunks.concat(), Vec::new()),
            Parts::Call { id, name, fragments } => {
                let call = ToolCallRow { id: id.clone(), name: name.clone(), arguments: fragments.concat() };
                (String::new(), vec![call])
            }
        };
        ProviderRow {
            provider: self.name().to_string(),
            conversation: asked.marker.as_ref().map(|m| m.conversation.clone()),
            turn: asked.turn,
            tool_results: asked.tool_results,
            assistant_messages: Some(asked.assistant_messages),
            probe: asked.marker.is_none(),
            arrived_ms: monotonic_ms(),
            first_byte_ms: None,
            first_token_ms: None,
            ended_ms: None,
            stream: asked.stream,
            head_bytes: 0,
            events_sent: 0,
            events_to_last_token: 0,
            event_ends: Vec::new(),
            completed: false,
            cancelled: false,
            text,
            tool_calls,
            peer: peer.to_string(),
        }
    }

    async fn stream(
        &self,
        conn: &mut Conn,
        events: &[script::frames::Event],
        pace: &script::Pace,
        start: Instant,
        row: u64,
        keep: bool,
    ) -> Result<(), Gone> {
        let head = http::stream_head(keep);
        let last_token = events.iter().rposition(|e| e.token).map_or(0, |place| place + 1);
        self.with_row(row, |r| r.events_to_last_token = u32::try_from(last_token).unwrap_or(u32::MAX));
        let mut tokens = pace.tokens_ms.iter();
        let mut body_bytes = 0u64;
        for (n, event) in events.iter().enumerate() {
            if n == 0 {
                conn.wait_until(start + ms(pace.role_ms)).await?;
                conn.write(head.as_bytes()).await?;
                self.with_row(row, |r| {
                    r.first_byte_ms = Some(monotonic_ms());
                    r.head_bytes = head.len() as u64;
                });
            } else if event.token
                && let Some(at) = tokens.next()
            {
                conn.wait_until(start + ms(*at)).await?;
            }
            conn.write(http::chunk(&event.bytes).as_bytes()).await?;
            body_bytes += event.bytes.len() as u64;
            self.with_row(row, |r| {
                r.events_sent += 1;
                r.event_ends.push(body_bytes);
                if event.token && r.first_token_ms.is_none() {
                    r.first_token_ms = Some(monotonic_ms());
                }
            });
        }
        conn.write(http::LAST_CHUNK).await
    }

    async fn whole(
        &self,
        conn: &mut Conn,
        body: &str,
        pace: &script::Pace,
        start: Instant,
        row: u64,
        keep: bool,
    ) -> Result<(), Gone> {
        // As long as the stream would have taken: a model is not faster because nobody watches.
        conn.wait_until(start + ms(pace.tokens_ms.last().copied().unwrap_or(pace.role_ms))).await?;
        let first = monotonic_ms();
        let head_bytes = send(conn, 200, body, keep).await?;
        self.with_row(row, |r| {
            r.first_byte_ms = Some(first);
            r.first_token_ms = Some(first);
            r.head_bytes = head_bytes;
        });
        Ok(())
    }
}

/// What a provider of this name says in `system_fingerprint`.
#[must_use]
pub fn fingerprint(provider: &str) -> String {
    format!("fp_lab_{provider}")
}

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Sends a whole answer; returns the bytes of its head.
async fn send(conn: &mut Conn, status: u16, body: &str, keep: bool) -> Result<u64, Gone> {
    let head = http::whole_head(status, body.len(), keep);
    conn.write(format!("{head}{body}").as_bytes()).await?;
    Ok(head.len() as u64)
}

async fn refuse(conn: &mut Conn, status: u16, what: &str, keep: bool) -> Result<(), Gone> {
    let body = json!({"error": {"message": what, "type": "invalid_request_error", "param": null, "code": null}});
    send(conn, status, &body.to_string(), keep).await.map(drop)
}
