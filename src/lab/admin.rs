//! The lab's admin interface: what is where, what the providers saw, what the ticket system recorded, what is broken on
//! purpose.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::provider::Provider;
use super::script::Sabotage;
use super::tickets::Tickets;
use super::topology::Topology;
use crate::units::printable;

/// What the admin interface shows.
#[derive(Clone, Debug)]
pub struct Admin {
    /// What is where.
    pub topology: Arc<Topology>,
    /// The providers.
    pub providers: Vec<Provider>,
    /// The ticket system.
    pub tickets: Tickets,
}

/// `?since=MS`: only rows from this moment on, in milliseconds of CLOCK_MONOTONIC.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Since {
    pub(super) since: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SabotageRequest {
    provider: String,
    #[serde(rename = "break")]
    what: String,
}

impl Admin {
    /// Its routes.
    pub fn router(self) -> Router {
        let tickets = self.tickets.router();
        Router::new()
            .route("/healthz", get(async || Json(json!({"status": "ok"}))))
            .route("/topology", get(topology))
            .route("/providers/{name}/log", get(log).delete(clear_log))
            .route("/sabotage", post(sabotage).get(sabotaged))
            .with_state(self)
            .merge(tickets)
    }

    fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|p| p.name() == name)
    }

    fn unknown(&self, status: StatusCode, name: &str) -> Response {
        let known: Vec<&str> = self.providers.iter().map(Provider::name).collect();
        problem(status, &format!("no provider '{}'; there are {}", printable(name, 64), known.join(", ")))
    }
}

fn problem(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": {"message": message}}))).into_response()
}

async fn topology(State(admin): State<Admin>) -> Json<Topology> {
    Json(Topology::clone(&admin.topology))
}

async fn log(State(admin): State<Admin>, Path(name): Path<String>, Query(from): Query<Since>) -> Response {
    match admin.provider(&name) {
        Some(provider) => Json(provider.log(from.since)).into_response(),
        None => admin.unknown(StatusCode::NOT_FOUND, &name),
    }
}

async fn clear_log(State(admin): State<Admin>, Path(name): Path<String>) -> Response {
    match admin.provider(&name) {
        Some(provider) => {
            provider.clear_log();
            StatusCode::NO_CONTENT.into_response()
        }
        None => admin.unknown(StatusCode::NOT_FOUND, &name),
    }
}

async fn sabotaged(State(admin): State<Admin>) -> Response {
    let now: serde_json::Map<String, serde_json::Value> =
        admin.providers.iter().map(|p| (p.name().to_string(), p.sabotage().name().into())).collect();
    Json(now).into_response()
}

/// The body is read whatever its content type says: people call this with `curl -d`.
async fn sabotage(State(admin): State<Admin>, body: Bytes) -> Response {
    let request: SabotageRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &printable(&error.to_string(), 300)),
    };
    let Some(provider) = admin.provider(&request.provider) else {
        return admin.unknown(StatusCode::BAD_REQUEST, &request.provider);
    };
    let Some(what) = Sabotage::named(&request.what) else {
        let known: Vec<&str> = Sabotage::ALL.iter().map(|(n, _)| *n).collect();
        let message =
            format!("cannot break '{}'; what can be broken: {}", printable(&request.what, 64), known.join(", "));
        return problem(StatusCode::BAD_REQUEST, &message);
    };
    provider.set_sabotage(what);
    Json(json!({"provider": provider.name(), "break": what.name()})).into_response()
}
