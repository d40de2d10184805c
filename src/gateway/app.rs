//! What all parts of a running gateway share, and what it does with what the driver tells.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::adapters::{Adapters, Texts};
use super::admitted::{Admissions, Admitted};
use super::bus::{Bus, unix_ms};
use super::clients::book::Client;
use super::clients::{Clients, Permit, Rejected};
use super::driver::{AttemptKey, Driver, MakeCore, Meta, Watcher};
use super::golden::{GoldenSets, Sets};
use super::ledger::Ledger;
use super::orders::Orders;
use super::relay::Calls;
use super::relay::attempt::{Ended, InFlight};
use super::sampling::Sampler;
use super::targets::Targets;
use super::{intake, probe, stranded};
use crate::error::Result;
use crate::event::{CLIENT_ROUTE_UNKNOWN, Event, Record, Stamped};
use crate::policy::{Policy, TargetId};
use crate::router::Limits;
use crate::router::classify::Class;
use crate::router::decision::{DecisionRecord, Outcome};
use crate::telemetry::metrics::{
    AttemptLabels, FailoverLabels, KindLabels, ObservedLabels, PairLabels, RouteLabels, TargetLabels,
};
use crate::telemetry::{Journal, Metrics};

/// Decision records kept for `/decisions/<id>`.
pub const DECISIONS_KEPT: usize = 2048;

/// The shared state of a running gateway.
pub struct App {
    /// Where the policy lies: files that it names are looked for beside it.
    pub folder: PathBuf,
    /// The core's driver.
    pub driver: Arc<Driver>,
    /// Clients and secrets.
    pub targets: Targets,
    /// Metrics.
    pub metrics: Metrics,
    /// Events.
    pub bus: Bus,
    /// What is written down about tool calls.
    pub ledger: Arc<Ledger>,
    /// What operators have ordered.
    pub orders: Arc<Orders>,
    /// Texts of adapters.
    pub adapters: Adapters,
    /// Golden sets of groups.
    pub golden: GoldenSets,
    /// Who judges a share of the answers.
    pub sampler: Sampler,
    /// What admission records say of those who answer.
    pub admitted: Admitted,
    /// Zero of the core's time line.
    pub anchor: Instant,
    /// Unix milliseconds of the start.
    pub started_unix_ms: u64,
    /// The process is shutting down.
    pub draining: AtomicBool,
    /// Who may ask, if not whoever reaches the listener.
    pub clients: Option<Arc<Clients>>,
    /// Failover is only observed.
    pub observe: bool,
    /// Memory for request bodies.
    pub memory: Arc<Semaphore>,
    /// Seed of the core.
    pub seed: u64,
    /// Distinguishes request ids of different processes.
    boot: String,
    requests: AtomicU64,
    decisions: Mutex<VecDeque<Arc<Stamped>>>,
    totals: Mutex<std::collections::BTreeMap<&'static str, u64>>,
    told_unledgered: Mutex<std::collections::BTreeSet<String>>,
    me: Weak<App>,
    warned: super::warned::Warned,
}

/// What a gateway is put together from, beside its policy.
pub struct Parts {
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// What operators have ordered.
    pub orders: Arc<Orders>,
    /// Texts of adapters.
    pub texts: Texts,
    /// Golden sets.
    pub sets: Sets,
    /// What admission records say.
    pub admitted: Admissions,
    /// Request bodies held at one moment, in bytes.
    pub bodies_bytes: usize,
    /// Who may ask.
    pub clients: Option<Vec<Client>>,
    /// Failover is only observed.
    pub observe: bool,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("policy", &self.policy().version).finish_non_exhaustive()
    }
}

impl App {
    /// Puts a gateway together. `folder` is the policy's; `make` makes its core.
    ///
    /// # Errors
    /// If a secret or a target's URL cannot be used.
    pub fn new(
        policy: Arc<Policy>,
        folder: &Path,
        seed: u64,
        journal: Option<Journal>,
        parts: Parts,
        make: MakeCore,
    ) -> Result<Arc<App>> {
        let Parts { ledger, orders, texts, sets, admitted, bodies_bytes, clients, observe } = parts;
        let targets = Targets::new(&policy, folder)?;
        let metrics = Metrics::new(&policy.version, policy.serial, &policy.sha256, policy.expires_unix_s);
        for target in &policy.targets {
            metrics.state(&target.name, "serving");
            drop(metrics.inflight.get_or_create(&TargetLabels { target: target.name.clone() }));
        }
        let anchor = Instant::now();
        let started_unix_ms = unix_ms();
        let boot = format!("{:08x}", (started_unix_ms.rotate_left(20) ^ u64::from(std::process::id())) as u32);
        Ok(Arc::new_cyclic(|me: &Weak<App>| {
            let watcher: Weak<dyn Watcher> = me.clone();
            App {
                driver: Arc::new(
                    Driver::new(anchor, Arc::clone(&policy), seed, make, watcher).with_ledger(Arc::clone(&ledger)),
                ),
                ledger,
                orders,
                adapters: Adapters::new(texts),
                golden: GoldenSets::new(sets),
                sampler: Sampler::default(),
                admitted: Admitted::new(admitted),
                targets,
                metrics,
                bus: Bus::new(anchor, journal),
                anchor,
                started_unix_ms,
                draining: AtomicBool::new(false),
                clients: clients.map(|clients| Arc::new(Clients::new(clients))),
                observe,
                memory: intake::memory(bodies_bytes),
                seed,
                boot,
                requests: AtomicU64::new(0),
                decisions: Mutex::new(VecDeque::new()),
                totals: Mutex::new(std::collections::BTreeMap::new()),
                told_unledgered: Mutex::default(),
                me: me.clone(),
                warned: Default::default(),
                folder: folder.to_owned(),
            }
        }))
    }

    /// The policy that holds now. Who needs it more than once takes it once.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.driver.policy()
    }

    /// An id for a request, unique across restarts as far as it matters.
    pub fn next_request_id(&self) -> String {
        format!("req-{}-{:06}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The wall clock says that the policy has expired.
    #[must_use]
    pub fn expired(&self) -> bool {
        let now = i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX);
        self.policy().expires_unix_s.is_some_and(|at| now >= at)
    }

    /// A target's name.
    #[must_use]
    pub fn target_name(&self, id: TargetId) -> String {
        self.targets.get(id).map(|d| d.target.name.clone()).unwrap_or_default()
    }

    /// Counts an attempt as under way.
    #[must_use]
    pub fn in_flight(&self, target: TargetId) -> InFlight {
        let labels = TargetLabels { target: self.target_name(target) };
        InFlight::new(self.metrics.inflight.get_or_create_owned(&labels))
    }

    /// A connection stands.
    pub fn connected(&self, target: TargetId, reused: bool) {
        let kind = if reused { "reused" } else { "new" };
        Metrics::kind(&self.metrics.upstream_connects, &self.target_name(target), kind);
    }

    /// Calls came with a key of the model's own, which was overwritten.
    pub fn keys_overwritten(&self, target: TargetId, n: u64) {
        if n > 0 {
            let labels = KindLabels { target: self.target_name(target), kind: "key_overwritten".to_owned() };
            self.metrics.anomalies.get_or_create_owned(&labels).inc_by(n);
        }
    }

    /// Takes the ledger's numbers over into the metrics.
    pub fn count_ledger(&self) {
        let (shown, m) = (self.ledger.shown(), &self.metrics);
        let pairs = [
            (&shown.calls, &m.ledger_calls),
            (&shown.groups, &m.ledger_writes),
            (&shown.busy_us, &m.ledger_busy_us),
            (&shown.failures, &m.ledger_failures),
            (&shown.lost, &m.ledger_lost),
        ];
        for (from, to) in pairs {
            to.inner().store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        m.ledger_writable.set(i64::from(!self.ledger.failing()));
    }

    /// Calls went out that no ledger can recognise again. People hear of it once per route.
    pub fn unledgered(&self, route: &str, calls: usize) {
        let labels = RouteLabels { route: route.to_owned() };
        self.metrics.unledgered_calls.get_or_create(&labels).inc_by(calls as u64);
        let new = self.told_unledgered.lock().unwrap_or_else(PoisonError::into_inner).insert(route.to_owned());
        if new {
            let name = crate::units::printable(route, 60);
            Watcher::event(
                self,
                Event::Alert {
                    target: None,
                    client: None,
                    route: Some(route.to_owned()),
                    reason: "no_conversation".to_owned(),
                    text: format!(
                        "route {name}: tools that change something are called without x-llmfo-conversation; a repeated request \
                         would run them once more"
                    ),
                },
            );
        }
    }

    /// An answer is complete. `client`: whose request it was.
    pub fn ended(&self, route: &str, target: TargetId, calls: Calls, client: Option<&Permit>, ended: &Ended) {
        let name = self.target_name(target);
        self.look_who_answered(target, &name, ended);
        if let Some(sample) = &ended.sample {
            self.sampled(route, &name, sample);
        }
        for anomaly in &ended.anomalies {
            Metrics::kind(&self.metrics.anomalies, &name, anomaly.name());
        }
        if ended.tool_calls > 0 {
            let labels = PairLabels { route: route.to_owned(), target: name.clone() };
            self.metrics.tool_calls.get_or_create(&labels).inc_by(ended.tool_calls as u64);
            if calls == Calls::Unledgered {
                self.unledgered(route, ended.tool_calls);
            }
        }
        if let (Some(usage), Some(client)) = (ended.usage, client) {
            client.took(usage.input_tokens.saturating_add(usage.output_tokens), self.driver.now());
        }
        if let Some(usage) = ended.usage {
            for (kind, n) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
                let labels = crate::telemetry::metrics::KindLabels { target: name.clone(), kind: kind.to_owned() };
                let counter: Counter = self.metrics.tokens.get_or_create_owned(&labels);
                counter.inc_by(n);
            }
        }
    }

    /// `Some` if a log line about this broken invariant is to be written now, with how many were left out since the last one.
    pub(super) fn told_violation(&self, target: &str, invariant: &str) -> Option<u64> {
        self.warned.now(target, invariant)
    }

    /// A request was not taken, for its key or quota.
    pub fn rejected(&self, request: &str, rejected: Rejected) -> super::http::Refusal {
        let Rejected { client, why, refusal } = rejected;
        let refusal = *refusal;
        self.metrics.request("none", "not_taken");
        self.metrics.client_request(&client, why);
        // Anybody may cause these lines.
        if let Some(left_out) = self.warned.now(&client, why) {
            tracing::warn!(request, client = %client, reason = why, left_out, "request not taken");
        }
        refusal
    }

    /// A key for a route that nobody has declared opens nothing: most likely it is misspelt.
    pub(super) fn unknown_routes(&self) {
        let policy = self.policy();
        for client in self.clients.iter().flat_map(|c| c.listed().to_vec()) {
            for route in client.routes().into_iter().flatten().filter(|r| policy.route_named(r).is_none()) {
                let text = format!(
                    "the key of client {} is for the route {route}, which the policy does not have",
                    client.name
                );
                let (client, reason) = (Some(client.name.clone()), CLIENT_ROUTE_UNKNOWN.to_owned());
                self.event(Event::Alert { target: None, client, route: None, reason, text });
            }
        }
    }

    /// A decision record by request id, as it was published.
    #[must_use]
    pub fn decision(&self, asked: &str) -> Option<serde_json::Value> {
        let kept = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().find_map(|published| match &published.event {
            Event::Decision { request, conversation, turn, client, record } if request == asked => {
                let mut told = serde_json::json!({
                    "request": request,
                    "conversation": conversation,
                    "turn": turn,
                    "record": record,
                });
                if let Some(client) = client {
                    told["client"] = client.as_str().into();
                }
                Some(told)
            }
            _ => None,
        })
    }

    /// Requests by outcome since the start.
    #[must_use]
    pub fn totals(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, record: &DecisionRecord) {
        let m = &self.metrics;
        let route = &record.route;
        let outcome = outcome_name(record.outcome);
        m.request(route, outcome);
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome).or_default() += 1;
        let span = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
        Metrics::observe(&m.request_duration, route, span(record.total_ms));
        for (n, attempt) in record.attempts.iter().enumerate() {
            let failed = attempt.class != Class::Success;
            m.attempts
                .get_or_create(&AttemptLabels {
                    route: route.clone(),
                    target: attempt.target.clone(),
                    outcome: attempt.class.name().to_owned(),
                    error_type: if failed { attempt.reason.clone() } else { "none".to_owned() },
                })
                .inc();
            if let Some(dialable) = self.targets.named(&attempt.target) {
                match attempt.class {
                    Class::Success => dialable.evidence.good("answered"),
                    Class::ClientGone | Class::Caller | Class::PolicyBlock | Class::TooLong => {}
                    Class::Mismatch | Class::Account | Class::Place | Class::Capacity | Class::Provider => {
                        dialable.evidence.bad(&attempt.reason);
                    }
                }
            }
            if let Some(next) = record.attempts.get(n + 1) {
                m.failovers
                    .get_or_create(&FailoverLabels {
                        route: route.clone(),
                        from: attempt.target.clone(),
                        to: next.target.clone(),
                        reason: attempt.reason.clone(),
                        phase: "pre_commit".to_owned(),
                    })
                    .inc();
                Metrics::observe(&m.detection, route, span(attempt.ended_ms - attempt.dialled_ms));
                if let Some(committed) = next.committed_ms {
                    Metrics::observe(&m.failover_duration, route, span(committed - attempt.ended_ms));
                }
            }
        }
        for would in &record.observed {
            let labels = ObservedLabels {
                route: route.clone(),
                from: would.from.clone(),
                to: would.to.clone().unwrap_or_else(|| "none".to_owned()),
                reason: would.reason.clone(),
            };
            m.observed_failovers.get_or_create(&labels).inc();
        }
        if let Some(last) = record.attempts.last() {
            if record.outcome == Outcome::BrokenAfterCommit {
                Metrics::kind(&m.interruptions, &last.target, &last.reason);
            }
            if let (Outcome::Answered | Outcome::Degraded, Some(committed)) = (record.outcome, last.committed_ms) {
                let labels = PairLabels { route: route.clone(), target: last.target.clone() };
                m.time_to_first_token.get_or_create(&labels).observe(span(committed).as_secs_f64());
            }
        }
    }
}

/// A conversation as a log line tells it: the client has named it, so it is made harmless first.
fn shown(conversation: Option<&str>) -> String {
    conversation.map_or_else(|| "-".to_owned(), |c| crate::units::printable(c, 100))
}

/// The outcome's name in metrics and snapshots.
#[must_use]
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered => "answered",
        Outcome::Degraded => "degraded",
        Outcome::FromLedger => "from_ledger",
        Outcome::Handoff => "handoff",
        Outcome::Refused => "refused",
        Outcome::ReturnedAsItIs => "returned_as_it_is",
        Outcome::BrokenAfterCommit => "broken_after_commit",
        Outcome::ClientGone => "client_gone",
    }
}

impl Watcher for App {
    fn event(&self, event: Event) {
        match &event {
            Event::Availability { target, state, reason, .. } => {
                self.metrics.transition(target, state, reason);
                if state == "serving" {
                    tracing::info!(target = %target, state = %state, reason = %reason, "target is back in service");
                } else {
                    let what = if self.observe { "target would take no traffic" } else { "target takes no traffic" };
                    tracing::warn!(target = %target, state = %state, reason = %reason, "{what}");
                }
            }
            Event::AttemptFailed { target, class, reason, probe: false, request, conversation } => {
                if let Some(left_out) = self.warned.now(target, reason) {
                    tracing::warn!(
                        request = request.as_deref().unwrap_or("-"),
                        conversation = shown(conversation.as_deref()),
                        target = %target,
                        class = %class,
                        reason = %reason,
                        left_out,
                        "attempt failed"
                    );
                }
            }
            Event::AttemptFailed { target, reason, probe: true, .. } => {
                Metrics::kind(&self.metrics.probes, target, "failed");
                if let Some(dialable) = self.targets.named(target) {
                    dialable.evidence.bad(reason);
                }
            }
            Event::Alert { reason, text, .. } if reason == stranded::NOBODY => tracing::error!("{text}"),
            Event::Alert { reason, text, .. } if reason == stranded::SOMEBODY => tracing::info!("{text}"),
            Event::Alert { target, reason, text, .. } => {
                tracing::warn!(target = target.as_deref().unwrap_or("-"), reason = %reason, "{text}");
            }
            _ => {}
        }
        self.bus.publish(event);
    }

    fn done(&self, meta: &Meta, record: DecisionRecord) {
        self.count(&record);
        if record.outcome == Outcome::Handoff
            && let Some(left_out) = self.warned.now("-", &record.route)
        {
            tracing::warn!(
                request = %meta.request,
                conversation = shown(meta.conversation.as_deref()),
                route = %record.route,
                left_out,
                "customer handed to a human"
            );
        }
        if let Some(client) = &meta.client {
            self.metrics.client_request(client, outcome_name(record.outcome));
        }
        tracing::info!(
            request = %meta.request,
            client = meta.client.as_deref().unwrap_or("-"),
            route = %record.route,
            outcome = outcome_name(record.outcome),
            target = record.target.as_deref().unwrap_or("-"),
            dials = record.attempts.len(),
            total_ms = crate::units::told_ms(record.total_ms),
            "request over"
        );
        let published = self.bus.publish(Event::Decision {
            request: meta.request.clone(),
            conversation: meta.conversation.clone(),
            turn: meta.turn,
            client: meta.client.clone(),
            record: Record::of(&record),
        });
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if decisions.len() == DECISIONS_KEPT { decisions.pop_front() } else { None };
        decisions.push_back(published);
        drop(decisions);
        // Some hundred small pieces: not while others wait.
        drop(oldest);
    }

    fn probe(&self, key: AttemptKey, target: TargetId, limits: Limits) -> AbortHandle {
        match self.me.upgrade() {
            Some(app) => probe::run(app, key, target, limits),
            // The gateway is being dropped; nobody waits for this probe.
            None => tokio::spawn(async {}).abort_handle(),
        }
    }

    fn rebuilt(&self, requests: u64) {
        tracing::error!(requests, "the core panicked; it was rebuilt from the policy");
        self.metrics.core_rebuilds.inc();
        for target in self.policy().live_targets() {
            self.metrics.state(&target.name, "serving");
        }
        self.bus.publish(Event::CoreRebuilt { requests });
    }
}
