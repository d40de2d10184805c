//! A probe: one small streamed chat request of the gateway's own. It is a case of the golden set of the target's group, judged by
//! the checks of the set; without one, a built-in question, judged on structure alone. It carries no customer's data, and its cost
//! is bounded by its output limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::task::AbortHandle;

use super::app::App;
use super::driver::AttemptKey;
use super::golden::{self, Question};
use super::relay::attempt::{Attempt, Broke, Plan, Step};
use super::targets::Dialable;
use crate::policy::TargetId;
use crate::router::{Failure, Limits, Withhold};
use crate::telemetry::Metrics;
use crate::wire::{ErrorObject, Overheard, StreamSettings, Transcript};

/// Output tokens that a probe may cost.
const PROBE_TOKENS: u32 = 16;

/// Most of an answer to a case that is kept to be judged: far above what its limit of tokens allows.
const JUDGED_BYTES_MAX: usize = 1 << 20;

/// The body of the built-in question. Models differ in what they call the limit.
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
        let question = golden::question(&app, &dialable);
        let question = question.as_ref();
        let broke = match ask(&app, &dialable, key, limits, known, question).await {
            Ok(()) => return,
            Err(broke) => broke,
        };
        let other = 1 - known;
        if broke.error.as_ref().is_some_and(|e| LIMITS.get(known).is_some_and(|name| refuses(e, name))) {
            match ask(&app, &dialable, key, limits, other, question).await {
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
    question: Option<&Question>,
) -> Result<(), Box<Broke>> {
    let target = dialable.target.id;
    let secrets = app.targets.secrets();
    let limit_name = LIMITS.get(limit_name).copied().unwrap_or("max_tokens");
    let (sent, masked) = match question {
        None => (vec![body(&dialable.target.model, limit_name)], None),
        Some(question) => {
            question.request(app, &dialable.target, limit_name).map_err(|why| broken(Failure::Internal(why)))?
        }
    };
    let plan = Plan {
        key,
        target,
        body: sent,
        masked: masked.map(|masked| Arc::clone(&masked.originals)),
        headers: HeaderMap::new(),
        limits,
        // A probe must not fail over a connection that is merely old.
        fresh: true,
        kept: None,
        sample: None,
        stamp_calls: false,
        withhold: Withhold::Nothing,
        stream: Some(StreamSettings { secrets: secrets.clone(), ..StreamSettings::default() }),
        secrets,
        forced: app.orders.forced(target),
    };
    let mut attempt = Attempt::start(dialable.client.clone(), plan, app.in_flight(target));
    let mut heard = question.map(|_| Overheard::new(JUDGED_BYTES_MAX));
    loop {
        match attempt.next(app.anchor).await {
            Step::Connected { reused } => {
                app.connected(target, reused);
                app.driver.connected(key);
            }
            Step::Sign(sign) => app.driver.sign(key, sign),
            // A probe asks for no stamps: nobody runs what its answer calls.
            Step::Calls(_) => {}
            Step::Commit => app.driver.committed(key),
            Step::Out(out) => {
                if let Some(heard) = &mut heard {
                    out.into_iter().for_each(|bytes| heard.add(bytes));
                }
            }
            Step::Ended(ended) => {
                if let (Some(question), Some(heard)) = (question, heard.take())
                    && let Some(why) = not_good(&heard.end(), question)
                {
                    Metrics::kind(&app.metrics.probes, &dialable.target.name, "not_good");
                    dialable.evidence.bad("quality");
                    return Err(broken(Failure::Quality(why)));
                }
                dialable.evidence.good("probe");
                Metrics::kind(&app.metrics.probes, &dialable.target.name, "passed");
                app.driver.ended(key, ended.usage);
                return Ok(());
            }
            Step::Broke(broke) => return Err(broke),
        }
    }
}

fn broken(failure: Failure) -> Box<Broke> {
    Box::new(Broke { failure, stale: false, error: None, tool_calls_delivered: false })
}

/// What of the answer is not as the case demands.
fn not_good(said: &Transcript, question: &Question) -> Option<String> {
    if said.cut_short() {
        return Some("its answer is far longer than its limit of tokens".to_owned());
    }
    let golden = &question.set.golden;
    let verdicts = golden.judge(question.case, &said.facts());
    let broken: Vec<String> = verdicts
        .iter()
        .filter(|(_, verdict)| verdict.failed())
        .map(|(invariant, verdict)| format!("{}: {}", invariant.name(), verdict.why().unwrap_or_default()))
        .collect();
    (!broken.is_empty()).then(|| format!("case {}: {}", golden.id(question.case), broken.join("; ")))
}
