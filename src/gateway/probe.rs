//! The built-in probe: one small streamed chat request, judged on structure alone. It carries no customer's data, and its
//! cost is bounded by its output limit.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::task::AbortHandle;

use super::app::App;
use super::driver::AttemptKey;
use super::relay::attempt::{Attempt, Broke, Plan, Step};
use crate::policy::TargetId;
use crate::router::{Failure, Limits};
use crate::telemetry::Metrics;
use crate::wire::StreamSettings;

/// Output tokens that a probe may cost.
const PROBE_TOKENS: u32 = 16;

/// The body of a probe.
#[must_use]
pub fn body(model: &str) -> Bytes {
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": "Reply with the single word: ready" }],
        "max_tokens": PROBE_TOKENS,
        "stream": true,
    });
    Bytes::from(body.to_string())
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
        let name = &dialable.target.name;
        let secrets = app.targets.secrets.clone();
        let plan = Plan {
            key,
            target,
            body: body(&dialable.target.model),
            headers: HeaderMap::new(),
            limits,
            // A probe must not fail over a connection that is merely old.
            fresh: true,
            stream: Some(StreamSettings { secrets: secrets.clone(), ..StreamSettings::default() }),
            secrets,
        };
        let mut attempt = Attempt::start(dialable.client.clone(), plan, app.in_flight(target));
        loop {
            match attempt.next(app.anchor).await {
                Step::Connected { reused } => {
                    app.connected(target, reused);
                    app.driver.connected(key);
                }
                Step::Sign(sign) => app.driver.sign(key, sign),
                Step::Commit => app.driver.committed(key),
                Step::Out(_) => {}
                Step::Ended(ended) => {
                    dialable.evidence.good("probe");
                    Metrics::kind(&app.metrics.probes, name, "passed");
                    return app.driver.ended(key, ended.usage);
                }
                Step::Broke(broke) => {
                    let Broke { failure, .. } = *broke;
                    return failed(failure);
                }
            }
        }
    })
    .abort_handle()
}
