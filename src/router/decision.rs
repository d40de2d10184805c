//! The decision record: everything that was decided about one request and why; and notes about targets.

use serde::{Deserialize, Serialize};

use super::classify::Class;
use super::io::{AttemptId, HandoffCause};
use crate::policy::{RouteId, TargetId};
use crate::units::{Ts, as_told, as_told_if_any};

/// Version of [`DecisionRecord`]. Fields are only added.
pub const DECISION_FORMAT: u32 = 1;

/// One dial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Target by name.
    pub target: String,
    /// Why it was chosen: `first choice`, `instead of <target>: <skip reason>`, `after <target>: <reason>`, `reused connection failed`,
    /// `same target again: nobody else is left`, `hedge: ...`.
    pub why: String,
    /// Class of its outcome.
    pub class: Class,
    /// Named reason of its outcome, from a closed list: `ok`, `refused`, `connect_timeout`, `first_token_timeout`, `status_503` ...
    pub reason: String,
    /// Personal data was masked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
    /// What remained of the deadline before the dial.
    pub remaining_ms_before: u64,
    /// Since arrival.
    #[serde(serialize_with = "as_told")]
    pub dialled_ms: f64,
    /// Since arrival.
    #[serde(serialize_with = "as_told_if_any")]
    pub connected_ms: Option<f64>,
    /// First sign of life, since arrival.
    #[serde(serialize_with = "as_told_if_any")]
    pub first_token_ms: Option<f64>,
    /// Since arrival.
    #[serde(serialize_with = "as_told_if_any")]
    pub committed_ms: Option<f64>,
    /// Since arrival.
    #[serde(serialize_with = "as_told")]
    pub ended_ms: f64,
}

/// A target that was not dialled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// Target by name.
    pub target: String,
    /// Named reason: `open`, `benched`, `cooling`, `residency`, `pii`, `intent`, `capability_tools`, `quality_tier`, `no_time` ...
    pub reason: String,
    /// More, for people: `until 12.3 s`, `needs vision`.
    pub detail: String,
}

/// What failover would have done, where it is only observed. Nobody was asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Who was asked.
    pub from: String,
    /// Who would have been asked; `None`: nobody would have been left.
    pub to: Option<String>,
    /// Named reason: of the failure, or why the one that was asked would have been passed over.
    pub reason: String,
    /// `after <target>: <reason>` or `instead of <target>: <reason>`.
    pub why: String,
    /// When it would have happened, since arrival.
    #[serde(serialize_with = "as_told")]
    pub at_ms: f64,
}

/// How the request ended for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A whole answer.
    Answered,
    /// A whole answer from another quality tier.
    Degraded,
    /// A repeated turn: the calls that were delivered for it before.
    FromLedger,
    /// Handed to a human.
    Handoff,
    /// An honest refusal (nobody may, nobody can now).
    Refused,
    /// The target's own error, returned as it is.
    ReturnedAsItIs,
    /// The stream broke after commit; the client got a controlled error.
    BrokenAfterCommit,
    /// The client left.
    ClientGone,
}

/// Where the time went (RTO parts), in milliseconds. For an answered request they add up to the time from arrival to the commit
/// point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// In the queue.
    #[serde(default, serialize_with = "as_told")]
    pub queued_ms: f64,
    /// Dial of an attempt until its failure was noticed, summed over those that failed before commit; zero without one.
    #[serde(serialize_with = "as_told")]
    pub detection_ms: f64,
    /// Failure noticed until the next dial began, summed likewise.
    #[serde(serialize_with = "as_told")]
    pub decision_ms: f64,
    /// Dial of the answering attempt until it was connected.
    #[serde(serialize_with = "as_told")]
    pub dial_ms: f64,
    /// Connected until its first committing delta.
    #[serde(serialize_with = "as_told")]
    pub first_token_ms: f64,
}

/// Everything that was decided about one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// [`DECISION_FORMAT`].
    pub format: u32,
    /// Route by name.
    pub route: String,
    /// Streamed or not.
    pub stream: bool,
    /// Intent as the client said it (bounded, printable).
    pub intent: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// What led to a handoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<HandoffCause>,
    /// Target that answered, by name.
    pub target: Option<String>,
    /// Dials in order.
    pub attempts: Vec<AttemptRecord>,
    /// Targets passed over.
    pub skipped: Vec<Skipped>,
    /// What failover would have done, where it is only observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<Observed>,
    /// Parts.
    pub timings: Timings,
    /// Arrival to the end of everything.
    #[serde(serialize_with = "as_told")]
    pub total_ms: f64,
}

/// What a target can do right now: computed in one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// Takes traffic (the share is 1 until health and ramp are built).
    Serving {
        /// 0..1.
        share: f64,
    },
    /// Takes none until then.
    Cooling {
        /// End of the cooldown.
        until: Ts,
        /// Named reason.
        why: String,
    },
    /// Its probe is under way or due.
    Probing,
    /// Taken out until something changes.
    Benched {
        /// Next probe.
        until: Ts,
        /// Named reason.
        why: String,
    },
}

/// What has happened at one target since the core began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Attempts and probes under way.
    pub in_flight: u32,
    /// Attempts and probes begun.
    pub dials: u64,
    /// Requests answered in full.
    pub answered: u64,
    /// Failures that count in the breaker.
    pub failed_counted: u64,
    /// Failures that do not.
    pub failed_other: u64,
    /// How often the breaker tripped.
    pub trips: u64,
    /// Probes begun.
    pub probes: u64,
    /// Probes failed.
    pub probes_failed: u64,
    /// Counted failures in a row, now.
    pub consecutive_failures: u32,
}

/// One target, now.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetSnapshot {
    /// Which.
    pub target: TargetId,
    /// Its name.
    pub name: String,
    /// What it can do.
    pub availability: Availability,
    /// What has happened there.
    pub counters: Counters,
    /// Health score, 0 to 100; `None`: too little was seen.
    pub score: Option<f64>,
    /// Share of counted outcomes that failed, of the worse window.
    pub error_rate: Option<f64>,
    /// 1 at the latency's baseline, 0 at three times it.
    pub latency_part: Option<f64>,
    /// Step of its ramp, from zero; `None`: not ramping.
    pub ramp_step: Option<usize>,
    /// Slots that are free; `None`: it declares none.
    pub free_slots: Option<u32>,
}

/// The core, now.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Every target, in the order of the policy.
    pub targets: Vec<TargetSnapshot>,
    /// Requests that are not over.
    pub requests_open: usize,
    /// Of these, delivered in part and still streaming.
    pub requests_committed: usize,
    /// Attempts under way, probes included.
    pub attempts_in_flight: usize,
    /// Requests that wait for room, by route in the order of the policy.
    pub queued: Vec<usize>,
    /// Tool calls delivered whose result has not come back.
    pub unconfirmed_calls: usize,
    /// An operator has switched the emergency mode on.
    pub emergency: bool,
}

/// Something worth telling people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// A target's availability changed.
    Availability {
        /// Which.
        target: TargetId,
        /// What it is now.
        now: Availability,
        /// Named reason of the change: `consecutive_failures`, `failure_ratio`, `rate_limited`, `probe_failed`, `probes_passed`,
        /// `account_fault`, `place_fault` ...
        reason: String,
    },
    /// A request waits for room, or no longer.
    Queue {
        /// On which route.
        route: RouteId,
        /// Requests that wait there now.
        depth: usize,
    },
    /// A hedge has ended: the attempt that was not needed any more.
    HedgeLost {
        /// Which.
        attempt: AttemptId,
        /// Whom.
        target: TargetId,
    },
    /// An attempt failed before commit and another follows or not.
    AttemptFailed {
        /// Whom.
        target: TargetId,
        /// Class.
        class: Class,
        /// Named reason.
        reason: String,
        /// It was a probe.
        probe: bool,
    },
    /// Something a person must look at: an account fault, a mismatch.
    Alert {
        /// About whom.
        target: TargetId,
        /// Named reason.
        reason: String,
        /// In one sentence, safe to print.
        text: String,
    },
}
