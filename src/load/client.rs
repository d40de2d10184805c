//! One request as the customer sees it, and exactly how it ended.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};

use super::clock::monotonic_ms;
use super::http::{Base, Connection, connect, exchange_error};
use super::received::Received;
use crate::measure::End;
use crate::units::printable;
use crate::wire::SseReader;
use crate::wire::sse::MAX_EVENT_BYTES;

/// A whole answer that is not a stream may have so many bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// After `[DONE]` the body should end at once; nobody waits longer for it than this.
const AFTER_DONE: Duration = Duration::from_secs(1);

/// What to send, and for how long to wait.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Base URL of the entry.
    pub base: &'a Base,
    /// Headers beside the usual ones.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// A stream was asked for.
    pub stream: bool,
    /// Limit of the connect.
    pub connect_limit: Duration,
    /// Limit of everything.
    pub limit: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The connection stood, so the request may have arrived.
    pub sent: bool,
    /// Head of the answer.
    pub headers_ms: Option<f64>,
    /// Status.
    pub status: Option<u16>,
    /// What came.
    pub received: Received,
    /// `x-llmfo-target`.
    pub target: Option<String>,
    /// `x-llmfo-attempts`.
    pub attempts: Option<u32>,
    /// `x-llmfo-outcome`.
    pub outcome: Option<String>,
    /// `x-llmfo-request-id`.
    pub request_id: Option<String>,
}

/// Asks. Times are milliseconds of CLOCK_MONOTONIC.
pub async fn ask(ask: &Ask<'_>) -> (Outcome, End, String) {
    let mut outcome = Outcome::default();
    let deadline = Instant::now() + ask.limit;
    let (end, detail) = match timeout_at(deadline, exchange(ask, &mut outcome)).await {
        Ok(ended) => ended,
        Err(_) if !outcome.sent => (End::ConnectFailed, "connect timed out".to_string()),
        Err(_) => (End::GaveUp, "own time limit".to_string()),
    };
    (outcome, end, detail)
}

async fn exchange(ask: &Ask<'_>, outcome: &mut Outcome) -> (End, String) {
    let mut connection = match connect(ask.base, ask.connect_limit).await {
        Ok(connection) => connection,
        Err(why) => return (End::ConnectFailed, why),
    };
    outcome.sent = true;
    let answer = match send(ask, &mut connection).await {
        Ok(answer) => answer,
        Err(why) => return (End::ConnectFailed, format!("before any answer: {why}")),
    };
    outcome.headers_ms = Some(monotonic_ms());
    let status = answer.status();
    outcome.status = Some(status.as_u16());
    read_headers(answer.headers(), outcome);
    if !status.is_success() {
        let received = &mut outcome.received;
        return match Limited::new(answer.into_body(), MAX_BODY).collect().await {
            Ok(body) => {
                received.error_body(&body.to_bytes());
                (End::HttpError, format!("status {}", status.as_u16()))
            }
            Err(error) => (End::Cut, body_error(error.as_ref())),
        };
    }
    if ask.stream && is_event_stream(answer.headers()) {
        stream(answer, &mut outcome.received).await
    } else {
        whole(answer, &mut outcome.received).await
    }
}

async fn send(ask: &Ask<'_>, connection: &mut Connection) -> Result<Response<Incoming>, String> {
    let mut headers = ask.headers.clone();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    let accept = if ask.stream { "text/event-stream" } else { "application/json" };
    headers.insert(http::header::ACCEPT, HeaderValue::from_static(accept));
    connection.send(Method::POST, ask.base, "/chat/completions", headers, ask.body.clone()).await
}

fn read_headers(headers: &HeaderMap, outcome: &mut Outcome) {
    let text = |name: &str| Some(printable(headers.get(name)?.to_str().ok()?, 200));
    outcome.target = text("x-llmfo-target");
    outcome.attempts = text("x-llmfo-attempts").and_then(|t| t.parse().ok());
    outcome.outcome = text("x-llmfo-outcome");
    outcome.request_id = text("x-llmfo-request-id");
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

async fn whole(answer: Response<Incoming>, received: &mut Received) -> (End, String) {
    match Limited::new(answer.into_body(), MAX_BODY).collect().await {
        Ok(body) => {
            received.whole(&body.to_bytes(), monotonic_ms());
            if received.malformed || received.error_events > 0 {
                (End::Malformed, "not a chat completion".to_string())
            } else {
                (End::Complete, String::new())
            }
        }
        Err(error) => (End::Cut, body_error(error.as_ref())),
    }
}

async fn stream(answer: Response<Incoming>, received: &mut Received) -> (End, String) {
    let mut body = answer.into_body();
    let mut reader = SseReader::new(MAX_EVENT_BYTES);
    loop {
        let frame = if received.done_marker {
            match timeout(AFTER_DONE, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return (received.clean_end(), "the body did not end after [DONE]".to_string()),
            }
        } else {
            body.frame().await
        };
        match frame {
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                reader.push(data);
                if let Err(why) = take(&mut reader, received) {
                    return (End::Malformed, why);
                }
            }
            // Whoever has read `[DONE]` has stopped reading: for every client the answer was whole.
            Some(Err(error)) if received.done_marker => {
                return (received.clean_end(), format!("after [DONE]: {}", exchange_error(&error)));
            }
            Some(Err(error)) => return (End::Cut, exchange_error(&error)),
            None => break,
        }
    }
    match reader.finish() {
        Some(Ok(event)) => received.event(&event.data, monotonic_ms()),
        Some(Err(why)) => return (End::CleanWithoutFinish, why.to_string()),
        None => {}
    }
    (received.clean_end(), String::new())
}

fn take(reader: &mut SseReader, received: &mut Received) -> Result<(), String> {
    while let Some(next) = reader.next() {
        let event = next.map_err(|e| e.to_string())?;
        if !event.data.is_empty() {
            received.event(&event.data, monotonic_ms());
        }
    }
    Ok(())
}

/// `Limited` boxes the error of the body below it.
fn body_error(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    error.downcast_ref::<hyper::Error>().map_or_else(|| printable(&error.to_string(), 200), exchange_error)
}
