//! The paths of the public listener.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json as value;

use super::app::App;
use super::http::{Answer, json, not_found, wrong_method};
use super::relay;

/// Answers a request of a client.
pub async fn handle(app: Arc<App>, request: Request<Incoming>, stalled: Arc<AtomicBool>) -> Answer {
    let path = request.uri().path();
    let get = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "/v1/chat/completions" if request.method() == Method::POST => relay::chat(app, request, stalled).await,
        "/v1/chat/completions" => wrong_method("POST"),
        "/v1/models" if get => models(&app),
        "/v1/models" => wrong_method("GET, HEAD"),
        "/healthz" if get => super::admin::healthz(),
        _ => match path.strip_prefix("/v1/models/") {
            Some(name) if get => model(&app, name),
            _ => not_found(path),
        },
    }
}

fn entry(app: &App, name: &str) -> serde_json::Value {
    value!({ "id": name, "object": "model", "created": app.started_unix_ms / 1000, "owned_by": "llmfo" })
}

/// Routes, as the models that a client may ask for.
fn models(app: &App) -> Answer {
    let data: Vec<_> = app.policy.routes.iter().map(|r| entry(app, &r.name)).collect();
    json(StatusCode::OK, value!({ "object": "list", "data": data }).to_string())
}

fn model(app: &App, name: &str) -> Answer {
    match app.policy.route_named(name) {
        Some(route) => json(StatusCode::OK, entry(app, &route.name).to_string()),
        None => super::intake::unknown_route(&app.policy, name),
    }
}
