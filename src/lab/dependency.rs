//! What a gateway depends on besides models, one small server per region and role.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::load::monotonic_ms;

/// The roles, by the names that a policy uses under `dependencies:`.
pub const ROLES: [&str; 4] = ["policy_store", "secrets_store", "history_store", "telemetry"];

/// A new version of what a store holds appears so often.
const VERSION_EVERY_MS: f64 = 2_000.0;

/// What `GET /v1/state` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateAnswer {
    /// Role.
    pub role: String,
    /// Region.
    pub region: String,
    /// Grows by one every two seconds.
    pub version: u64,
    /// Milliseconds of CLOCK_MONOTONIC.
    pub now_ms: f64,
}

struct Dependency {
    role: String,
    region: String,
    since_ms: f64,
    appended: AtomicU64,
}

/// The routes of one dependency.
pub fn router(region: &str, role: &str) -> Router {
    let state = Arc::new(Dependency {
        role: role.to_string(),
        region: region.to_string(),
        since_ms: monotonic_ms(),
        appended: AtomicU64::new(0),
    });
    Router::new().route("/v1/state", get(read)).route("/v1/append", post(append)).with_state(state)
}

async fn read(State(d): State<Arc<Dependency>>) -> Json<StateAnswer> {
    let now_ms = monotonic_ms();
    let version = 1 + ((now_ms - d.since_ms) / VERSION_EVERY_MS) as u64;
    Json(StateAnswer { role: d.role.clone(), region: d.region.clone(), version, now_ms })
}

/// Takes one entry of any JSON; axum bounds the body at 2 MiB.
async fn append(State(d): State<Arc<Dependency>>, Json(_entry): Json<Value>) -> Json<Value> {
    let appended = d.appended.fetch_add(1, Ordering::Relaxed) + 1;
    Json(json!({"role": d.role, "region": d.region, "appended": appended}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_file_can_name_every_role() {
        let known: Vec<&str> = crate::spec::drill::ROLES.into_iter().skip(3).collect();
        assert_eq!(known, ROLES);
    }
}
