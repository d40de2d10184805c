//! The admin listener: health, readiness, metrics, a snapshot, live events, decisions. It answers from memory and never
//! touches traffic.

mod events;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::app::App;
use super::http::{Answer, Refusal, answer, json, not_found, wrong_method};
use crate::telemetry::metrics::CONTENT_TYPE;

/// What the admin listener serves, for whoever asked for something else.
const THERE: &str =
    "The admin listener serves /healthz, /readyz, /metrics, /snapshot, /events and /decisions/<request id>.";

/// Answers the request `id` of an operator.
pub fn handle(app: &Arc<App>, request: &Request<Incoming>, id: &str) -> Answer {
    route(app, request).unwrap_or_else(|refusal| refusal.answer(id))
}

fn route(app: &Arc<App>, request: &Request<Incoming>) -> Result<Answer, Refusal> {
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(wrong_method("GET, HEAD"));
    }
    Ok(match path {
        "/healthz" => healthz(),
        "/readyz" => snapshot::readyz(app),
        "/metrics" => {
            let dropped = app.bus.journal_dropped();
            app.metrics.journal_dropped.inner().store(dropped, Ordering::Relaxed);
            answer(StatusCode::OK, CONTENT_TYPE, app.metrics.encode())
        }
        "/snapshot" => json(StatusCode::OK, snapshot::snapshot(app).to_string()),
        "/events" => events::stream(app, request),
        _ => {
            let Some(asked) = path.strip_prefix("/decisions/") else { return Err(not_found(path, THERE)) };
            let Some(record) = app.decision(asked) else {
                return Err(Refusal::invalid(
                    StatusCode::NOT_FOUND,
                    "unknown_request",
                    "No decision of this request id is kept; the last ones are, and the journal has all.",
                ));
            };
            json(StatusCode::OK, record.to_string())
        }
    })
}

/// The process runs: nothing more is said here.
pub fn healthz() -> Answer {
    json(StatusCode::OK, r#"{"status":"ok"}"#)
}
