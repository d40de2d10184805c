//! The paths of the public listener.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json as value;

use super::app::App;
use super::clients::book::Client;
use super::http::{Answer, Refusal, json, not_found, set, wrong_method};
use super::relay;

/// What the public listener serves, for whoever asked for something else.
const THERE: &str =
    "This gateway serves POST /v1/chat/completions and GET /v1/models: the base URL of a client ends in /v1.";

/// Answers the request `id` of a client. `stalled` is set by the connection when its client has stopped reading.
pub async fn handle(app: Arc<App>, request: Request<Incoming>, stalled: Arc<AtomicBool>, id: String) -> Answer {
    let mut answer = route(&app, request, stalled, &id).await.unwrap_or_else(|refusal| refusal.answer(&id));
    // A request under way says itself by which policy it came in.
    if !answer.headers().contains_key("x-llmfo-policy") {
        set(answer.headers_mut(), "x-llmfo-policy", &app.policy().version);
    }
    answer
}

async fn route(
    app: &Arc<App>,
    request: Request<Incoming>,
    stalled: Arc<AtomicBool>,
    id: &str,
) -> Result<Answer, Refusal> {
    let path = request.uri().path();
    // Whoever asks for anything but life itself must have a key, where clients have keys.
    let client = match &app.clients {
        Some(clients) if path != "/healthz" => {
            let client = clients.identify(request.headers());
            Some(client.map_err(|rejected| app.rejected(id, rejected))?)
        }
        _ => None,
    };
    let client = client.as_ref();
    let get = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "/v1/chat/completions" if request.method() == Method::POST => {
            relay::chat(app, id, request, client, stalled).await
        }
        "/v1/chat/completions" => Err(wrong_method("POST")),
        "/v1/models" if get => Ok(models(app, client)),
        "/v1/models" => Err(wrong_method("GET, HEAD")),
        "/healthz" if get => Ok(super::admin::healthz()),
        _ => match path.strip_prefix("/v1/models/") {
            Some(name) if get => model(app, client, name),
            Some(_) => Err(wrong_method("GET, HEAD")),
            None => Err(not_found(path, THERE)),
        },
    }
}

fn entry(app: &App, name: &str) -> serde_json::Value {
    value!({ "id": name, "object": "model", "created": app.started_unix_ms / 1000, "owned_by": "llmfo" })
}

/// Routes, as the models that a client may ask for.
fn models(app: &App, client: Option<&Arc<Client>>) -> Answer {
    let policy = app.policy();
    let may = policy.live_routes().filter(|r| client.is_none_or(|c| c.may(&r.name)));
    let data: Vec<_> = may.map(|r| entry(app, &r.name)).collect();
    json(StatusCode::OK, value!({ "object": "list", "data": data }).to_string())
}

fn model(app: &App, client: Option<&Arc<Client>>, name: &str) -> Result<Answer, Refusal> {
    let policy = app.policy();
    match policy.route_named(name).filter(|route| client.is_none_or(|c| c.may(&route.name))) {
        Some(route) => Ok(json(StatusCode::OK, entry(app, &route.name).to_string())),
        None => Err(super::intake::unknown_route(&policy, client.map(|c| &**c), name)),
    }
}
