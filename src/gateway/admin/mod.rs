//! The admin listener: health, readiness, metrics, a snapshot, live events, decisions. It answers from memory and never
//! touches traffic; only the ledger's list is read from its file, by the ledger's own thread.

mod events;
pub mod orders;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::app::App;
use super::http::{Answer, Refusal, answer, json, not_found, wrong_method};
use super::ledger::listing::{Filter, Which, list};
use crate::telemetry::metrics::CONTENT_TYPE;

/// What the admin listener serves, for whoever asked for something else.
const THERE: &str = "The admin listener serves /healthz, /readyz, /metrics, /snapshot, /ledger, /orders, /events and /decisions/<request id>.";

/// Answers the request `id` of an operator.
pub async fn handle(app: &Arc<App>, request: &Request<Incoming>, id: &str) -> Answer {
    if request.uri().path() == "/ledger" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return ledger(app, request.uri().query().unwrap_or_default())
            .await
            .unwrap_or_else(|refusal| refusal.answer(id));
    }
    let path = request.uri().path();
    if path == orders::PATH || path.starts_with("/orders/") {
        return orders::handle(app, request).unwrap_or_else(|refusal| refusal.answer(id));
    }
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
            app.count_ledger();
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

/// What `llmfo ledger list` shows of a ledger in use.
async fn ledger(app: &App, query: &str) -> Result<Answer, Refusal> {
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let bad = |what: &str| Refusal::invalid(StatusCode::BAD_REQUEST, "invalid_query", what.to_owned());
    let which = Which::named(value("state").unwrap_or("unconfirmed"))
        .ok_or_else(|| bad("`state` is unconfirmed, proposed, delivered, confirmed or all."))?;
    let since = value("since_unix_ms").unwrap_or("0").parse().map_err(|_| bad("`since_unix_ms` is no number."))?;
    let filter = Filter { which, since_unix_ms: since, arguments: value("arguments") == Some("1") };
    let failed = |why: String| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway_error",
            "ledger_unreadable",
            format!("The ledger cannot be read: {why}."),
        )
    };
    let rows = app.ledger.list(filter.arguments).await.map_err(failed)?;
    let listing = tokio::task::spawn_blocking(move || serde_json::to_string(&list(rows, &filter)));
    let text = listing.await.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
    Ok(json(StatusCode::OK, text))
}

/// The process runs: nothing more is said here.
pub fn healthz() -> Answer {
    json(StatusCode::OK, r#"{"status":"ok"}"#)
}
