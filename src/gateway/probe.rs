//! The built-in probe: one small streamed chat request, judged on structure alone. It carries no customer's data, and its
//! cost is bounded by its output limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::task::AbortHandle;

use super::app::App;
use super::driver::AttemptKey;
use super::relay::attempt::{Attempt, Broke, Plan, Step};
use super::targets::Dialable;
use crate::policy::TargetId;
use crate::router::{Failure, Limits, Withhold};
use crate::telemetry::Metrics;
use crate::wire::{ErrorObject, StreamSettings};

/// Output tokens that a probe may cost.
const PROBE_TOKENS: u32 = 16;

/// The body of a probe. Models differ in what they call the limit.
#[must_use]
pub fn body(model: &str, limit: &str) -> Bytes {
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": "Reply with the single word: ready" }],
        "stream": true,
        limit: PROBE_TOKENS,
    });
    Bytes::from(body.to_string())
}

/// The limit's two names; a target that refuses one is asked with the other.
pub(super) const LIMITS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// The error says that this name is not known there.
fn refuses(error: &ErrorObject, name: &str) -> bool {
    let says = |text: &str| text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name);
    (400..500).contains(&error.status) && (error.param == name || says(&error.message))
}

/// If the probe's task ends without a report (a bug), the core hears of it; else this report is about an attempt that is over,
/// and ignored.
struct Guard(Arc<App>, AttemptKey);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.driver.broke(self.1, Failure::Internal("the probe's task ended early".into()), false);
    }
}

/// Runs a probe in a task of its own and reports it.
pub fn run(app: Arc<App>, key: AttemptKey, target: TargetId, limits: Limits) -> AbortHandle {
    tokio::spawn(async move {
        let _guard = Guard(Arc::clone(&app), key);
        let failed = |failure| app.driver.broke(key, failure, false);
        let Some(dialable) = app.targets.get(target) else {
            return failed(Failure::Internal("no such target".into()));
        };
        let known = dialable.probe_limit.load(Ordering::Relaxed);
        let broke = match ask(&app, &dialable, key, limits, known).await {
            Ok(()) => return,
            Err(broke) => broke,
        };
        let other = 1 - known;
        if broke.error.as_ref().is_some_and(|e| LIMITS.get(known).is_some_and(|name| refuses(e, name))) {
            match ask(&app, &dialable, key, limits, other).await {
                Ok(()) => dialable.probe_limit.store(other, Ordering::Relaxed),
                Err(broke) => failed(broke.failure),
            }
        } else {
            failed(broke.failure);
        }
    })
    .abort_handle()
}

/// One exchange. A good end is reported here, a bad one by the caller.
async fn ask(
    app: &Arc<App>,
    dialable: &Dialable,
    key: AttemptKey,
    limits: Limits,
    limit_name: usize,
) -> Result<(), Box<Broke>> {
    let target = dialable.target.id;
    let secrets = app.targets.secrets();
    let plan = Plan {
        key,
        target,
        body: vec![body(&dialable.target.model, LIMITS.get(limit_name).copied().unwrap_or("max_tokens"))],
        masked: None,
        headers: HeaderMap::new(),
        limits,
        // A probe must not fail over a connection that is merely old.
        fresh: true,
        kept: None,
        stamp_calls: false,
        withhold: Withhold::Nothing,
        stream: Some(StreamSettings { secrets: secrets.clone(), ..StreamSettings::default() }),
        secrets,
        forced: app.orders.forced(target),
    };
    let mut attempt = Attempt::start(dialable.client.clone(), plan, app.in_flight(target));
    loop {
        match attempt.next(app.anchor).await {
            Step::Connected { reused } => {
                app.connected(target, reused);
                app.driver.connected(key);
            }
            Step::Sign(sign) => app.driver.sign(key, sign),
            // A probe offers no tools and asks for no stamps.
            Step::Calls(_) => {}
            Step::Commit => app.driver.committed(key),
            Step::Out(_) => {}
            Step::Ended(ended) => {
                dialable.evidence.good("probe");
                Metrics::kind(&app.metrics.probes, &dialable.target.name, "passed");
                app.driver.ended(key, ended.usage);
                return Ok(());
            }
            Step::Broke(broke) => return Err(broke),
        }
    }
}
