//! The admin listener: health, readiness, metrics, a snapshot, live events, decisions. It answers from memory and never
//! touches traffic; only the ledger's list is read from its file, by the ledger's own thread.

mod events;
pub mod orders;
mod snapshot;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::HOST;
use http::uri::Authority;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::app::App;
use super::clients::AdminKey;
use super::http::{Answer, Refusal, answer, json, not_found, wrong_method};
use super::ledger::listing::{Filter, Which, list};
use crate::telemetry::metrics::CONTENT_TYPE;

/// What the admin listener serves, for whoever asked for something else.
const THERE: &str = "The admin listener serves /healthz, /readyz, /metrics, /snapshot, /ledger, /orders, /events and /decisions/<request id>.";

/// Whoever asks for anything but life itself shows the key, if there is one. Without one the listener is on loopback, and so
/// must be the name that it was asked by: a page in a browser on this machine can have a name of its own resolve to loopback,
/// and would then read what is here (DNS rebinding). It cannot have itself called `localhost` or by an address.
fn allowed(key: Option<&AdminKey>, request: &Request<Incoming>) -> Result<(), Refusal> {
    if request.uri().path() == "/healthz" {
        return Ok(());
    }
    if let Some(key) = key {
        let message = "The admin listener wants its key: `Authorization: Bearer KEY`; `llmfo ctl` and `llmfo ledger` take it from \
                       --admin-key-file or LLMFO_ADMIN_KEY.";
        let refusal = || Refusal::invalid(StatusCode::UNAUTHORIZED, "invalid_api_key", message).bearer();
        return if key.fits(request.headers()) { Ok(()) } else { Err(refusal()) };
    }
    let host = request.headers().get(HOST).map(|v| v.to_str().unwrap_or("?"));
    if host.is_none_or(local) {
        return Ok(());
    }
    let message = "Without a key the admin listener answers to an address or `localhost` only, never to another name; ask by \
                   its address, or start it with --admin-key-file.";
    Err(Refusal::invalid(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message))
}

/// An address or `localhost`, with or without a port.
fn local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let localhost = name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    !host.contains('@') && (localhost || name.parse::<IpAddr>().is_ok())
}

/// Answers the request `id` of an operator.
pub async fn handle(app: &Arc<App>, key: Option<&AdminKey>, request: &Request<Incoming>, id: &str) -> Answer {
    if let Err(refusal) = allowed(key, request) {
        return refusal.answer(id);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_page_could_have_is_not_local() {
        for good in ["localhost", "LOCALHOST:9090", "x.localhost", "127.0.0.1:9090", "[::1]:9090", "[::1]", "10.0.0.7"]
        {
            assert!(local(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "x@localhost",
        ] {
            assert!(!local(bad), "{bad}");
        }
    }
}
