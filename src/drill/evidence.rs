//! `[P]` Everything a judgement rests on, gathered from outside the system under test: what was declared, what was broken
//! and when, what the client received, what the providers saw, what the ticket system recorded. A gateway's own journal
//! is here too, kept apart, and shown only as "as the gateway saw".
//!
//! All times are milliseconds since the start of the drill.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::spoilt::Spoils;
use super::stalls::Stalls;
use crate::fault::api::Counters;
use crate::measure::{EffectRow, ProviderRow, RequestRow};

/// What the route promises, and the limits it works with. Inherited from the policy; a drill file may only be stricter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Declared {
    /// Route by name.
    pub route: String,
    /// Useful text, or the whole answer if not streamed, must be there within this.
    pub deadline_ms: f64,
    /// Limit of a connect.
    pub connect_limit_ms: f64,
    /// Limit to the first sign of life of a stream, in the tier of the broken provider.
    pub first_token_limit_ms: f64,
    /// Silence allowed after a stream's first sign of life.
    pub idle_limit_ms: f64,
    /// Limit of a whole answer that is not streamed, where the policy names one.
    pub answer_limit_ms: Option<f64>,
    /// Useful answers must be back within this, and the primary after the restore.
    pub recovery_ms: Option<f64>,
    /// 95th percentile of the time to useful text.
    pub useful_text_p95_ms: Option<f64>,
    /// Share of requests that may miss the deadline; none may where nothing is declared, as the deadline itself is.
    pub deadline_miss_rate: f64,
    /// Share of answers that may break an invariant; none may where nothing is declared.
    pub invariant_violation_rate: f64,
    /// Share of turns that may be handed off without the customer asking for it; not judged where nothing is declared.
    pub capacity_handoff_rate: Option<f64>,
    /// Turns that may be lost from a conversation; not judged where nothing is declared.
    pub context_loss_turns: Option<u64>,
    /// Requests that may wait at one moment.
    pub queue_max: Option<u64>,
    /// Dials a request may make.
    pub max_attempts: u32,
    /// Counted failures in a row that open the breaker.
    pub breaker_failures: u32,
    /// Slots of the stand-in, where the policy says so.
    pub stand_in_slots: Option<u32>,
    /// Arguments that the gateway itself may add to a tool call.
    pub key_arguments: Vec<String>,
    /// Why the policy itself lets nobody stand in for the broken provider, and what to change.
    #[serde(default)]
    pub nobody_stands_in: Option<String>,
    /// How lab times differ from production defaults, one sentence each.
    pub scaling: Vec<String>,
}

/// Whose limits and objectives a judgement holds a gateway to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyOf {
    /// The policy that the gateway under test works with: the drill started it with that, or was told so by `--policy`.
    #[default]
    Gateway,
    /// The lab's, for want of another: its objectives are used, but it says nothing about the limits of this gateway.
    Lab,
}

/// How much must have been seen for a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Turns in steady state.
    pub steady_turns: usize,
    /// Turns that started during the outage, over all rounds.
    pub outage_turns: usize,
    /// Streams cut before their first content.
    pub cut_before_content: usize,
    /// Streams cut after some content.
    pub cut_after_content: usize,
    /// Streams cut inside a tool call, or after its arguments but before the finish.
    pub cut_inside_call: usize,
}

/// Where in a stream it was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutPoint {
    /// After the headers and the role chunk: no content yet.
    BeforeContent,
    /// After some content.
    AfterContent,
    /// Between the fragments of a tool call.
    InsideCall,
    /// After all of a call's arguments, before the finish reason.
    AfterCall,
}

/// One fault on one path, and what was seen of it at the fault server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultSpan {
    /// Path (the proxy) by name.
    pub path: String,
    /// Region by name.
    pub region: String,
    /// `provider`, `entry`, or the role of a dependency.
    pub role: String,
    /// Provider by name, if it is one.
    pub provider: Option<String>,
    /// What the application sees, in words: `connect_timeout, existing connections silent`.
    pub see: String,
    /// Answers are cut inside; the path stays up. Otherwise nothing passes.
    pub cuts: bool,
    /// Events after which a stream is cut, where the server counts events.
    pub cut_events: Option<u32>,
    /// Where the drill says that streams are cut, where that can be told (the server counts events).
    pub promised: Option<CutPoint>,
    /// Counters when the injection was acknowledged.
    pub at_injection: Option<Counters>,
    /// Counters just before the restore.
    pub at_restore: Option<Counters>,
    /// Connections the drill itself opened through this path between the two.
    pub own_dials: u64,
    /// The drill's own call through this path met the fault (`Some(false)`: it went through).
    pub felt: Option<bool>,
}

/// What was in the fault server's buffers when the injection was acknowledged may be read this much later, milliseconds.
const PIPE_MS: f64 = 60.0;

/// A customer waits so much longer than the route's deadline before giving up.
pub const PATIENCE_MS: f64 = 1500.0;

/// One injection with its outage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the round.
    pub name: String,
    /// The first fault was about to be set.
    pub injecting_ms: f64,
    /// The fault server had acknowledged the last of the faults.
    pub injected_ms: f64,
    /// The restore began.
    pub restoring_ms: f64,
    /// The restore was read back.
    pub restored_ms: f64,
    /// End of the recovery that follows: the next injection, or the end of the load.
    pub until_ms: f64,
    /// The faults.
    pub faults: Vec<FaultSpan>,
}

impl Window {
    /// True if this moment lies between the acknowledged injection and the begin of the restore.
    #[must_use]
    pub fn holds(&self, at_ms: f64) -> bool {
        at_ms >= self.injected_ms && at_ms < self.restoring_ms
    }

    /// True if nothing that arrives now can have come through a broken path: what was in the fault server's buffers at the
    /// injection has been read by then, and what it held back is not released before the restore begins.
    #[must_use]
    pub fn closed_at(&self, at_ms: f64) -> bool {
        at_ms >= self.injected_ms + PIPE_MS && at_ms < self.restoring_ms
    }

    /// True if nothing passes to any of the broken providers (no cuts inside streams).
    #[must_use]
    pub fn dead(&self) -> bool {
        self.faults.iter().any(|f| f.provider.is_some() && !f.cuts)
    }

    /// True if the path in front of this entry is broken.
    #[must_use]
    pub fn breaks_entry(&self, entry: &str) -> bool {
        self.faults.iter().any(|f| f.role == "entry" && f.region == entry)
    }
}

/// What the customer application knows about one dependency of one region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DependencyFacts {
    /// Region by name.
    pub region: String,
    /// Role.
    pub role: String,
    /// Refreshes that worked.
    pub refreshed: u64,
    /// Refreshes that failed.
    pub failed: u64,
    /// Greatest age of the last good copy.
    pub oldest_copy_ms: Option<f64>,
}

/// One dial in a gateway's decision record. Only what is used; more may be there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayAttempt {
    /// Target by name.
    pub target: String,
    /// Named reason of its outcome.
    pub reason: String,
    /// Class of its outcome.
    pub class: String,
    /// Since arrival.
    pub dialled_ms: f64,
    /// Since arrival.
    pub ended_ms: f64,
}

/// Parts of the recovery time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayTimings {
    /// Dial of the first attempt until its failure was noticed.
    pub detection_ms: f64,
    /// Failure noticed until the next dial began.
    pub decision_ms: f64,
    /// Dial of the answering attempt until it was connected.
    pub dial_ms: f64,
    /// Connected until its first committing delta.
    pub first_token_ms: f64,
}

/// A decision record as this drill reads it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayRecord {
    /// How it ended.
    pub outcome: String,
    /// Who answered.
    pub target: Option<String>,
    /// Dials in order.
    pub attempts: Vec<GatewayAttempt>,
    /// Parts.
    pub timings: GatewayTimings,
    /// Arrival to the end of everything.
    pub total_ms: f64,
}

/// One request as a gateway saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayDecision {
    /// Request id.
    pub request: String,
    /// When it was over.
    pub at_ms: f64,
    /// The record.
    pub record: GatewayRecord,
}

/// A target's availability as a gateway saw it, or a failed attempt or probe.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayChange {
    /// When.
    pub at_ms: f64,
    /// Target by name.
    pub target: String,
    /// `serving`, `cooling`, `probing`, `benched`; `probe_failed` for a failed probe.
    pub state: String,
    /// Named reason.
    pub reason: String,
}

/// One gateway's own account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayView {
    /// Its region.
    pub name: String,
    /// Requests.
    pub decisions: Vec<GatewayDecision>,
    /// Changes, in order of time.
    pub changes: Vec<GatewayChange>,
}

/// Why a run ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    /// `interrupted`, `terminated`, or the stop condition by name.
    pub by: String,
    /// In one sentence.
    pub text: String,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Drill by name.
    pub drill: String,
    /// Seed of the load.
    pub seed: u64,
    /// What was declared.
    pub declared: Declared,
    /// How much must have been seen.
    pub needs: Needs,
    /// Providers that the drill breaks.
    pub broken: Vec<String>,
    /// Providers that it does not break.
    pub stand_ins: Vec<String>,
    /// The stand-ins answered the drill's own direct calls during the outage.
    pub stand_ins_healthy: bool,
    /// Why the run went no further than the steady state, the first few cases; empty if it did.
    pub not_well: Vec<String>,
    /// All such cases.
    pub not_well_cases: usize,
    /// Up to here requests must have ended to be seen: then the steady state was judged, and the run went no further. What was
    /// open still was ended by the drill itself.
    pub steady_judged_ms: Option<f64>,
    /// Whose policy `declared` is from.
    pub policy_of: PolicyOf,
    /// The gateway was not started by the drill.
    pub foreign: bool,
    /// Steady state began here (after the gateways were ready).
    pub steady_from_ms: f64,
    /// The load ended here.
    pub load_until_ms: f64,
    /// Counters at the begin of the steady state, by path.
    pub counters_at_steady: BTreeMap<String, Counters>,
    /// Counters at the end of the steady state, by path; empty if the server has none.
    pub counters_after_steady: BTreeMap<String, Counters>,
    /// The rounds.
    pub windows: Vec<Window>,
    /// What the client received.
    pub requests: Vec<RequestRow>,
    /// What the providers saw.
    pub providers: Vec<ProviderRow>,
    /// What the ticket system recorded.
    pub effects: Vec<EffectRow>,
    /// What the application knows of the dependencies.
    pub dependencies: Vec<DependencyFacts>,
    /// What the gateways say themselves; `None` for a foreign one.
    pub gateways: Option<Vec<GatewayView>>,
    /// What was lost, or stood still, around the gateway: none of that is held against it.
    pub spoils: Spoils,
    /// Who stood still around the gateway, and when.
    pub stalls: Stalls,
    /// A lost lab was asked for the last time at this moment: up to here its rows are complete.
    pub lab_seen_ms: Option<f64>,
    /// It ended before its time.
    pub aborted: Option<Aborted>,
    /// Rows that a bounded log had to drop.
    pub dropped_rows: u64,
}

impl Evidence {
    /// Somebody ended the run: a signal, and not a limit of its own.
    #[must_use]
    pub fn ended_by_hand(&self) -> bool {
        self.aborted.as_ref().is_some_and(|a| a.by == "interrupted" || a.by == "terminated")
    }

    /// The window in whose outage this moment lies.
    #[must_use]
    pub fn window_at(&self, at_ms: f64) -> Option<&Window> {
        self.windows.iter().find(|w| w.holds(at_ms))
    }

    /// The first change of the first injection, or never: until then the paths are as they should be.
    #[must_use]
    pub fn first_injection_ms(&self) -> f64 {
        self.windows.first().map_or(f64::INFINITY, |w| w.injecting_ms)
    }

    /// The decision record of a request, found by the id that the gateway sent with its answer.
    #[must_use]
    pub fn decision(&self, request: &RequestRow) -> Option<&GatewayDecision> {
        let id = request.gateway_request_id.as_deref()?;
        self.gateways.as_ref()?.iter().flat_map(|g| &g.decisions).find(|d| d.request == id)
    }
}
