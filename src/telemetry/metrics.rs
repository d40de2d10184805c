//! Metrics. Every label value is a name from the policy or from a closed list in the code; nothing that a client sends
//! becomes a label (case B162). Names are told in `docs/metrics.md`.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Route and outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Route by name, or `none` where none was found.
    pub route: String,
    /// Outcome of the decision record, or why it never reached the core.
    pub outcome: String,
}

/// One dial.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AttemptLabels {
    /// Route by name.
    pub route: String,
    /// Target by name.
    pub target: String,
    /// Class of the outcome.
    pub outcome: String,
    /// Named reason; `none` for a success.
    pub error_type: String,
}

/// One failover.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailoverLabels {
    /// Route by name.
    pub route: String,
    /// Target that failed.
    pub from: String,
    /// Target that was dialled next.
    pub to: String,
    /// Named reason of the failure.
    pub reason: String,
    /// Always `pre_commit`: nothing fails over after it.
    pub phase: String,
}

/// What failover would have done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ObservedLabels {
    /// Route by name.
    pub route: String,
    /// Target that was asked.
    pub from: String,
    /// Target that would have been; `none`: nobody.
    pub to: String,
    /// Named reason.
    pub reason: String,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TargetLabels {
    /// Target by name.
    pub target: String,
}

/// A target in a state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabels {
    /// Target by name.
    pub target: String,
    /// `serving`, `cooling`, `probing`, `benched`.
    pub state: String,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TransitionLabels {
    /// Target by name.
    pub target: String,
    /// The new state.
    pub to: String,
    /// Named reason.
    pub reason: String,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// Route by name.
    pub route: String,
}

/// A route at a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PairLabels {
    /// Route by name.
    pub route: String,
    /// Target by name.
    pub target: String,
}

/// A target and a named thing about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    /// Target by name.
    pub target: String,
    /// From a closed list.
    pub kind: String,
}

/// A client and what became of its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClientLabels {
    /// Client by name, or `unknown`.
    pub client: String,
    /// Outcome of the decision record, or why it was not taken.
    pub outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViolationLabels {
    route: String,
    target: String,
    invariant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    version: String,
    serial: String,
    sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: String,
}

/// The states of a target, as `llmfo_breaker_state` names them.
pub const STATES: [&str; 4] = ["serving", "cooling", "probing", "benched"];

/// All metrics of a gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests by route and outcome.
    pub requests: Family<RequestLabels, Counter>,
    client_requests: Family<ClientLabels, Counter>,
    client_reloads: Family<ReloadLabels, Counter>,
    /// Dials by route, target, outcome and error.
    pub attempts: Family<AttemptLabels, Counter>,
    /// Dials that followed a failed one.
    pub failovers: Family<FailoverLabels, Counter>,
    /// Dials that would have followed, or taken the place of, the one that was made, where failover is only observed.
    pub observed_failovers: Family<ObservedLabels, Counter>,
    /// Failure noticed until the first token elsewhere.
    pub failover_duration: Family<RouteLabels, Histogram>,
    /// Dial until its failure was noticed.
    pub detection: Family<RouteLabels, Histogram>,
    /// Arrival until the client was committed, by who answered.
    pub time_to_first_token: Family<PairLabels, Histogram>,
    /// Arrival to the end of everything.
    pub request_duration: Family<RouteLabels, Histogram>,
    policy_info: Family<PolicyLabels, Gauge>,
    policy_expiry: Family<Vec<(String, String)>, Gauge>,
    policy_reloads: Family<ReloadLabels, Counter>,
    breaker_state: Family<StateLabels, Gauge>,
    breaker_transitions: Family<TransitionLabels, Counter>,
    /// Dials and probes under way, by target.
    pub inflight: Family<TargetLabels, Gauge>,
    /// Client requests under way.
    pub requests_open: Gauge,
    /// Client connections open.
    pub connections_open: Gauge,
    /// Streams that broke after commit, by target and reason.
    pub interruptions: Family<KindLabels, Counter>,
    /// Upstream connections used, by target and kind (`new`, `reused`).
    pub upstream_connects: Family<KindLabels, Counter>,
    /// Probes by target and result (`passed`, `failed`).
    pub probes: Family<KindLabels, Counter>,
    /// Unusual but complete answers, by target and kind.
    pub anomalies: Family<KindLabels, Counter>,
    /// Tool calls in completed answers.
    pub tool_calls: Family<PairLabels, Counter>,
    /// Tool calls of requests that offer a risky tool and name no conversation: no ledger can recognise a repeat of theirs.
    pub unledgered_calls: Family<RouteLabels, Counter>,
    /// Requests with a system prompt that the first choice's admission record does not speak about.
    unevaluated_prompts: Family<RouteLabels, Counter>,
    sampled_answers: Family<PairLabels, Counter>,
    dropped_samples: Family<ReasonLabels, Counter>,
    violations: Family<ViolationLabels, Counter>,
    /// Calls written into the ledger.
    pub ledger_calls: Counter,
    /// Groups of changes written into the ledger, each with one wait for the disk.
    pub ledger_writes: Counter,
    /// Time spent writing the ledger, in microseconds.
    pub ledger_busy_us: Counter,
    /// Times that the ledger could not be written.
    pub ledger_failures: Counter,
    /// Changes that the ledger has lost while it could not be written.
    pub ledger_lost: Counter,
    /// 1 while the ledger can be written.
    pub ledger_writable: Gauge,
    /// Tokens that targets reported, by target and kind (`input`, `output`).
    pub tokens: Family<KindLabels, Counter>,
    /// Journal lines lost.
    pub journal_dropped: Counter,
    /// The core panicked and was rebuilt.
    pub core_rebuilds: Counter,
}

fn doubling(first: f64, count: u16) -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(first, 2.0, count))
}

/// 10 ms doubling to 81.92 s: the buckets that the OpenTelemetry conventions for generative AI name.
fn seconds() -> Histogram {
    doubling(0.01, 14)
}

/// 1 ms doubling to about 65 s: failures can be noticed much faster than an answer comes.
fn fine_seconds() -> Histogram {
    doubling(0.001, 17)
}

impl Metrics {
    /// Metrics of a gateway that runs this policy.
    #[must_use]
    pub fn new(policy_version: &str, serial: Option<u64>, sha256: &str, expires_unix_s: Option<i64>) -> Metrics {
        let mut registry = Registry::with_prefix("llmfo");
        let m = Metrics {
            requests: Family::default(),
            client_requests: Family::default(),
            client_reloads: Family::default(),
            attempts: Family::default(),
            failovers: Family::default(),
            observed_failovers: Family::default(),
            failover_duration: Family::new_with_constructor(fine_seconds),
            detection: Family::new_with_constructor(fine_seconds),
            time_to_first_token: Family::new_with_constructor(seconds),
            request_duration: Family::new_with_constructor(seconds),
            policy_info: Family::default(),
            policy_expiry: Family::default(),
            policy_reloads: Family::default(),
            breaker_state: Family::default(),
            breaker_transitions: Family::default(),
            inflight: Family::default(),
            requests_open: Gauge::default(),
            connections_open: Gauge::default(),
            interruptions: Family::default(),
            upstream_connects: Family::default(),
            probes: Family::default(),
            anomalies: Family::default(),
            tool_calls: Family::default(),
            tokens: Family::default(),
            unledgered_calls: Family::default(),
            unevaluated_prompts: Family::default(),
            sampled_answers: Family::default(),
            dropped_samples: Family::default(),
            violations: Family::default(),
            ledger_calls: Counter::default(),
            ledger_writes: Counter::default(),
            ledger_busy_us: Counter::default(),
            ledger_failures: Counter::default(),
            ledger_lost: Counter::default(),
            ledger_writable: Gauge::default(),
            journal_dropped: Counter::default(),
            core_rebuilds: Counter::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        r.register("requests", "Client requests by route and outcome", m.requests.clone());
        r.register("client_requests", "Requests by client and outcome", m.client_requests.clone());
        r.register(
            "client_keys_reloads",
            "Files of client keys offered to a running gateway: taken or refused",
            m.client_reloads.clone(),
        );
        r.register("attempts", "Dials by route, target, outcome class and named reason", m.attempts.clone());
        r.register("failovers", "Dials that followed a failed dial", m.failovers.clone());
        r.register(
            "observed_failovers",
            "What failover would have done, where it is only observed",
            m.observed_failovers.clone(),
        );
        let unit = || Unit::Seconds;
        r.register_with_unit(
            "failover_duration",
            "Failure noticed until the first committing token of the next target",
            unit(),
            m.failover_duration.clone(),
        );
        r.register_with_unit("detection", "Dial until its failure was noticed", unit(), m.detection.clone());
        r.register_with_unit(
            "time_to_first_token",
            "Arrival until the client was committed, answered requests only",
            unit(),
            m.time_to_first_token.clone(),
        );
        r.register_with_unit(
            "request_duration",
            "Arrival until the request was over in every way",
            unit(),
            m.request_duration.clone(),
        );
        r.register("breaker_state", "1 for the state a target is in, else 0", m.breaker_state.clone());
        r.register("breaker_transitions", "Changes of a target's state", m.breaker_transitions.clone());
        r.register("inflight_requests", "Dials and probes under way", m.inflight.clone());
        r.register("requests_open", "Client requests under way", m.requests_open.clone());
        r.register("client_connections_open", "Client connections open", m.connections_open.clone());
        r.register("stream_interruptions", "Streams that broke after commit, by reason", m.interruptions.clone());
        r.register("upstream_connects", "Upstream connections used, new or reused", m.upstream_connects.clone());
        r.register("probes", "Background probes by result", m.probes.clone());
        r.register("stream_anomalies", "Complete but unusual answers", m.anomalies.clone());
        r.register("tool_calls", "Tool calls in completed answers", m.tool_calls.clone());
        r.register("tokens", "Tokens that targets reported", m.tokens.clone());
        r.register(
            "unledgered_tool_calls",
            "Tool calls of requests that offer a tool which must not run twice and name no conversation",
            m.unledgered_calls.clone(),
        );
        r.register(
            "unevaluated_prompts",
            "Requests with a system prompt that the first choice's admission record does not speak about",
            m.unevaluated_prompts.clone(),
        );
        r.register("sampled_answers", "Answers judged beside the traffic", m.sampled_answers.clone());
        r.register("dropped_samples", "Answers taken and not judged, by reason", m.dropped_samples.clone());
        r.register("invariant_violations", "Invariants that sampled answers broke", m.violations.clone());
        r.register("ledger_calls", "Tool calls written into the ledger", m.ledger_calls.clone());
        r.register("ledger_writes", "Groups of changes written into the ledger", m.ledger_writes.clone());
        r.register("ledger_busy_microseconds", "Time spent writing the ledger", m.ledger_busy_us.clone());
        r.register("ledger_failures", "Times that the ledger could not be written", m.ledger_failures.clone());
        r.register("ledger_lost", "Changes lost while the ledger could not be written", m.ledger_lost.clone());
        r.register("ledger_writable", "1 while the ledger can be written, else 0", m.ledger_writable.clone());
        r.register("journal_dropped", "Journal lines that were dropped", m.journal_dropped.clone());
        r.register("core_rebuilds", "Times the core panicked and was rebuilt", m.core_rebuilds.clone());
        r.register("policy_info", "The policy that runs", m.policy_info.clone());
        r.register(
            "policy_reloads",
            "Policies offered to a running gateway: taken, refused, or unchanged",
            m.policy_reloads.clone(),
        );
        let build: Family<BuildLabels, Gauge> = Family::default();
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION").to_owned() }).set(1);
        r.register("build_info", "This build", build);
        let expiry = m.policy_expiry.clone();
        r.register_with_unit("policy_expiry_timestamp", "When the policy expires, Unix time", unit(), expiry);
        m.policy_is(policy_version, serial, sha256, expires_unix_s);
        Metrics { registry, ..m }
    }

    /// A request came with a system prompt that the first choice's admission record does not speak about.
    pub fn unevaluated_prompt(&self, route: &str) {
        self.unevaluated_prompts.get_or_create(&RouteLabels { route: route.to_owned() }).inc();
    }

    /// An answer was judged.
    pub fn sampled(&self, route: &str, target: &str) {
        let labels = PairLabels { route: route.to_owned(), target: target.to_owned() };
        self.sampled_answers.get_or_create(&labels).inc();
    }

    /// An answer was taken and not judged. `reason`: from a closed list.
    pub fn sample_dropped(&self, reason: &str) {
        self.dropped_samples.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    /// An answer broke an invariant.
    pub fn violation(&self, route: &str, target: &str, invariant: &str) {
        let (route, target, invariant) = (route.to_owned(), target.to_owned(), invariant.to_owned());
        self.violations.get_or_create(&ViolationLabels { route, target, invariant }).inc();
    }

    fn policy_is(&self, version: &str, serial: Option<u64>, sha256: &str, expires_unix_s: Option<i64>) {
        self.policy_info.clear();
        let serial = serial.map_or_else(String::new, |s| s.to_string());
        let labels = PolicyLabels { version: version.to_owned(), serial, sha256: sha256.to_owned() };
        self.policy_info.get_or_create(&labels).set(1);
        self.policy_expiry.clear();
        if let Some(expires) = expires_unix_s {
            self.policy_expiry.get_or_create(&Vec::new()).set(expires);
        }
    }

    /// Another policy holds.
    pub fn policy(&self, version: &str, serial: Option<u64>, sha256: &str, expires_unix_s: Option<i64>) {
        self.policy_is(version, serial, sha256, expires_unix_s);
        self.policy_reloads.get_or_create(&ReloadLabels { result: "taken".to_owned() }).inc();
    }

    /// A policy was offered that is the one that holds.
    pub fn policy_unchanged(&self) {
        self.policy_reloads.get_or_create(&ReloadLabels { result: "unchanged".to_owned() }).inc();
    }

    /// A policy was offered and refused.
    pub fn policy_refused(&self) {
        self.policy_reloads.get_or_create(&ReloadLabels { result: "refused".to_owned() }).inc();
    }

    /// The policy no longer speaks of this target.
    pub fn forget_target(&self, target: &str) {
        for state in STATES {
            self.breaker_state.remove(&StateLabels { target: target.to_owned(), state: state.to_owned() });
        }
    }

    /// Sets the state of a target to one of [`STATES`].
    pub fn state(&self, target: &str, now: &str) {
        for state in STATES {
            let labels = StateLabels { target: target.to_owned(), state: state.to_owned() };
            self.breaker_state.get_or_create(&labels).set(i64::from(state == now));
        }
    }

    /// A target has changed its state.
    pub fn transition(&self, target: &str, to: &str, reason: &str) {
        self.state(target, to);
        let labels = TransitionLabels { target: target.to_owned(), to: to.to_owned(), reason: reason.to_owned() };
        self.breaker_transitions.get_or_create(&labels).inc();
    }

    /// Counts a request that ended with this outcome.
    pub fn request(&self, route: &str, outcome: &str) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), outcome: outcome.to_owned() }).inc();
    }

    /// Counts a request of a client.
    pub fn client_request(&self, client: &str, outcome: &str) {
        let labels = ClientLabels { client: client.to_owned(), outcome: outcome.to_owned() };
        self.client_requests.get_or_create(&labels).inc();
    }

    /// A file of client keys was read again.
    pub fn client_keys(&self, taken: bool) {
        let result = if taken { "taken" } else { "refused" }.to_owned();
        self.client_reloads.get_or_create(&ReloadLabels { result }).inc();
    }

    /// Counts one thing of a kind at a target.
    pub fn kind(family: &Family<KindLabels, Counter>, target: &str, kind: &str) {
        family.get_or_create(&KindLabels { target: target.to_owned(), kind: kind.to_owned() }).inc();
    }

    /// Observes a duration of a route.
    pub fn observe(family: &Family<RouteLabels, Histogram>, route: &str, took: Duration) {
        family.get_or_create(&RouteLabels { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    /// All of it as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail; if a metric could, an incomplete page is better than none.
        let _ = prometheus_client::encoding::prometheus_text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_documented_ones() {
        let m = Metrics::new("p-1", Some(7), "abc", Some(1_800_000_000));
        m.request("chat", "answered");
        m.transition("a", "cooling", "consecutive_failures");
        Metrics::observe(&m.detection, "chat", Duration::from_millis(3));
        m.inflight.get_or_create(&TargetLabels { target: "a".into() }).inc();
        let text = m.encode();
        for line in [
            "llmfo_requests_total{route=\"chat\",outcome=\"answered\"} 1",
            "llmfo_breaker_state{target=\"a\",state=\"cooling\"} 1",
            "llmfo_breaker_state{target=\"a\",state=\"serving\"} 0",
            "llmfo_breaker_transitions_total{target=\"a\",to=\"cooling\",reason=\"consecutive_failures\"} 1",
            "llmfo_inflight_requests{target=\"a\"} 1",
            "llmfo_policy_info{version=\"p-1\",serial=\"7\",sha256=\"abc\"} 1",
            "llmfo_policy_expiry_timestamp_seconds 1800000000",
            "llmfo_detection_seconds_count{route=\"chat\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("_total_total"));
    }
}
