//! The admin listener: health, readiness, metrics, a snapshot, live events, decisions. It answers from memory and never
//! touches traffic.

mod events;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::app::App;
use super::http::{Answer, answer, json, not_found, refuse, wrong_method};
use crate::telemetry::metrics::CONTENT_TYPE;

/// Answers a request of an operator.
pub fn handle(app: &Arc<App>, request: &Request<Incoming>) -> Answer {
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return wrong_method("GET, HEAD");
    }
    match path {
        "/healthz" => healthz(),
        "/readyz" => snapshot::readyz(app),
        "/metrics" => {
            let dropped = app.bus.journal_dropped();
            app.metrics.journal_dropped.inner().store(dropped, Ordering::Relaxed);
            answer(StatusCode::OK, CONTENT_TYPE, app.metrics.encode())
        }
        "/snapshot" => json(StatusCode::OK, snapshot::snapshot(app).to_string()),
        "/events" => events::stream(app, request),
        _ => match path.strip_prefix("/decisions/") {
            Some(id) => match app.decision(id) {
                Some(record) => json(StatusCode::OK, record.to_string()),
                None => refuse(
                    StatusCode::NOT_FOUND,
                    "invalid_request_error",
                    "unknown_request",
                    "No decision of this request id is kept; the last ones are, and the journal has all.",
                ),
            },
            None => not_found(path),
        },
    }
}

/// The process runs: nothing more is said here.
pub fn healthz() -> Answer {
    json(StatusCode::OK, r#"{"status":"ok"}"#)
}
