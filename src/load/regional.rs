//! What a region's service does in the background: it keeps copies of policy, secrets and history fresh and posts
//! telemetry, through the same paths that a fault cuts. None of it is ever in the way of a request: without the region the
//! last good copy is used, and its age is what a report shows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::clock::monotonic_ms;
use super::http::{Base, json_call};
use crate::error::Result;

/// Each copy is refreshed so often.
const EVERY: Duration = Duration::from_secs(1);
/// A refresh that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(1);

/// A dependency, as dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Region.
    pub region: String,
    /// Role; `telemetry` is posted to, the others are read.
    pub role: String,
    /// Base URL without `/v1`.
    pub url: String,
}

/// How a copy stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyRow {
    /// Region.
    pub region: String,
    /// Role.
    pub role: String,
    /// Version of the last good copy.
    pub version: Option<u64>,
    /// When the last good copy was made (or telemetry was taken), in milliseconds of CLOCK_MONOTONIC.
    pub good_ms: Option<f64>,
    /// Its greatest age so far, just before a refresh or now.
    pub max_age_ms: f64,
    /// Refreshes that worked.
    pub refreshed: u64,
    /// Refreshes that failed.
    pub failed: u64,
    /// Why the last failed one did.
    pub last_failure: Option<String>,
}

/// The background work; it ends when this is dropped.
#[derive(Debug)]
pub struct Regional {
    copies: Arc<Mutex<Vec<CopyRow>>>,
    _tasks: JoinSet<()>,
}

/// Starts the background work, one task per source.
///
/// # Errors
/// A URL cannot be read.
pub fn start(sources: &[Source]) -> Result<Regional> {
    let bases = sources.iter().map(|s| Base::new(&s.url)).collect::<Result<Vec<_>>>()?;
    let blank = |s: &Source| CopyRow {
        region: s.region.clone(),
        role: s.role.clone(),
        version: None,
        good_ms: None,
        max_age_ms: 0.0,
        refreshed: 0,
        failed: 0,
        last_failure: None,
    };
    let copies: Arc<Mutex<Vec<CopyRow>>> = Arc::new(Mutex::new(sources.iter().map(blank).collect()));
    let mut tasks = JoinSet::new();
    for (place, base) in bases.into_iter().enumerate() {
        let telemetry = sources.get(place).is_some_and(|s| s.role == "telemetry");
        tasks.spawn(keep_fresh(place, base, telemetry, Arc::clone(&copies)));
    }
    Ok(Regional { copies, _tasks: tasks })
}

impl Regional {
    /// How every copy stands now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<CopyRow> {
        let mut rows = self.copies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for row in &mut rows {
            row.aged(monotonic_ms());
        }
        rows
    }
}

impl CopyRow {
    fn aged(&mut self, now_ms: f64) {
        if let Some(good) = self.good_ms {
            self.max_age_ms = self.max_age_ms.max(now_ms - good);
        }
    }

    fn note(&mut self, now_ms: f64, answer: std::result::Result<Value, String>) {
        self.aged(now_ms);
        match answer {
            Ok(value) => {
                self.version = value.get("version").and_then(Value::as_u64).or(self.version);
                self.good_ms = Some(now_ms);
                self.refreshed += 1;
            }
            Err(why) => {
                self.failed += 1;
                self.last_failure = Some(why);
            }
        }
    }
}

async fn keep_fresh(place: usize, base: Base, telemetry: bool, copies: Arc<Mutex<Vec<CopyRow>>>) {
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let answer = if telemetry {
            let entry = json!({"at_ms": monotonic_ms()});
            json_call(Method::POST, &base, "/v1/append", Some(&entry), LIMIT).await
        } else {
            json_call(Method::GET, &base, "/v1/state", None, LIMIT).await
        };
        let mut rows = copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = rows.get_mut(place) {
            row.note(monotonic_ms(), answer);
        }
    }
}
