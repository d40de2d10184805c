//! One request on its way: `trying -> committed -> done`, and what was written down about it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::availability::Began;
use super::budget::Grant;
use super::classify::{Class, Verdict};
use super::decision::{AttemptRecord, DECISION_FORMAT, DecisionRecord, Outcome, Skipped, Timings};
use super::io::{AttemptId, Facts, Failure, RequestId, Sign};
use super::select::Plan;
use super::skip::Skip;
use crate::policy::{Policy, Route, TargetId};
use crate::units::{self, Ts};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// This attempt is under way.
    Trying(AttemptId),
    /// Between two dials of the same target, when nobody else is left.
    Pausing,
    /// This attempt was delivered and still streams.
    Committed(AttemptId),
}

/// One dial of a request, as it is written down.
#[derive(Clone, Debug)]
pub(super) struct Dialled {
    pub(super) target: TargetId,
    /// It had been dialled for this request before, because nobody else was left.
    pub(super) again: bool,
    why: Why,
    remaining: Duration,
    dialled: Ts,
    connected: Option<Ts>,
    first_token: Option<Ts>,
    committed: Option<Ts>,
    ended: Option<Ts>,
    /// `None` while it is under way.
    pub(super) class: Option<Class>,
    pub(super) reason: Cow<'static, str>,
    /// It ended by silence.
    pub(super) silent: bool,
}

/// Why a target was dialled.
#[derive(Clone, Debug)]
enum Why {
    First,
    InsteadOf(TargetId, &'static str),
    After,
    Again,
    Fresh,
}

/// A request that is not over.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) facts: Facts,
    pub(super) route: Arc<Route>,
    pub(super) arrived: Ts,
    pub(super) phase: Phase,
    pub(super) dialled: Vec<Dialled>,
    pub(super) degraded: bool,
    /// With the moment at which it was passed over.
    passed_over: BTreeMap<TargetId, (Skip, Ts)>,
    detection: Duration,
    decision: Duration,
    failed_at: Option<Ts>,
}

impl Request {
    pub(super) fn new(facts: Facts, route: Arc<Route>, now: Ts) -> Request {
        Request {
            facts,
            route,
            arrived: now,
            phase: Phase::Pausing,
            dialled: Vec::new(),
            degraded: false,
            passed_over: BTreeMap::new(),
            detection: Duration::ZERO,
            decision: Duration::ZERO,
            failed_at: None,
        }
    }

    /// Dials so far.
    pub(super) fn dials(&self) -> u32 {
        u32::try_from(self.dialled.len()).unwrap_or(u32::MAX)
    }

    /// Writes down a dial that begins now.
    pub(super) fn begin(&mut self, now: Ts, attempt: AttemptId, plan: &Plan, fresh: bool) {
        let why = match (fresh, plan.again, self.dialled.is_empty(), plan.passed_over.first()) {
            (true, ..) => Why::Fresh,
            (_, true, ..) => Why::Again,
            (_, _, true, None) => Why::First,
            (_, _, true, Some((target, skip))) => Why::InsteadOf(*target, skip.name()),
            _ => Why::After,
        };
        if let Some(failed_at) = self.failed_at.take() {
            self.decision += now.since(failed_at);
        }
        self.pass_over(now, &plan.passed_over);
        self.degraded = plan.degraded;
        self.phase = Phase::Trying(attempt);
        self.dialled.push(Dialled {
            target: plan.target,
            again: plan.again,
            why,
            remaining: self.route.deadline.saturating_sub(now.since(self.arrived)),
            dialled: now,
            connected: None,
            first_token: None,
            committed: None,
            ended: None,
            class: None,
            reason: Cow::Borrowed(""),
            silent: false,
        });
    }

    /// Writes down what the last dial has shown.
    pub(super) fn mark(&mut self, attempt: &Attempt) {
        if let Some(last) = self.dialled.last_mut() {
            last.connected = attempt.connected;
            last.first_token = attempt.first_token;
            last.committed = attempt.committed;
        }
    }

    /// Writes down how the last dial ended.
    pub(super) fn end(&mut self, now: Ts, class: Class, reason: Cow<'static, str>, silent: bool) {
        let Some(last) = self.dialled.last_mut() else { return };
        last.ended = Some(now);
        last.class = Some(class);
        last.reason = reason;
        last.silent = silent;
        if last.committed.is_none() && class != Class::Success {
            self.detection += now.since(last.dialled);
            self.failed_at = Some(now);
        }
    }

    /// Writes down who was passed over.
    pub(super) fn pass_over(&mut self, now: Ts, skips: &[(TargetId, Skip)]) {
        let passed = skips.iter().filter(|(_, skip)| *skip != Skip::Tried);
        self.passed_over.extend(passed.map(|(id, skip)| (*id, (skip.clone(), now))));
    }

    /// The decision record, at the end of everything.
    pub(super) fn record(&self, policy: &Policy, now: Ts, outcome: Outcome) -> DecisionRecord {
        let name = |id: TargetId| policy.target(id).name.clone();
        let since = |at: Ts| units::ms(at.since(self.arrived));
        let answered = matches!(outcome, Outcome::Answered | Outcome::Degraded | Outcome::BrokenAfterCommit);
        let mut attempts = Vec::with_capacity(self.dialled.len());
        for (n, d) in self.dialled.iter().enumerate() {
            let why = match &d.why {
                Why::First => "first choice".to_owned(),
                Why::InsteadOf(target, reason) => format!("instead of {}: {reason}", name(*target)),
                Why::After => match n.checked_sub(1).and_then(|n| self.dialled.get(n)) {
                    Some(before) => format!("after {}: {}", name(before.target), before.reason),
                    None => "first choice".to_owned(),
                },
                Why::Again => "same target again: nobody else is left".to_owned(),
                Why::Fresh => "reused connection failed".to_owned(),
            };
            attempts.push(AttemptRecord {
                target: name(d.target),
                why,
                class: d.class.unwrap_or(Class::ClientGone),
                reason: d.reason.clone().into_owned(),
                remaining_ms_before: u64::try_from(d.remaining.as_millis()).unwrap_or(u64::MAX),
                dialled_ms: since(d.dialled),
                connected_ms: d.connected.map(since),
                first_token_ms: d.first_token.map(since),
                committed_ms: d.committed.map(since),
                ended_ms: since(d.ended.unwrap_or(now)),
            });
        }
        let untried = |id: &TargetId| !self.dialled.iter().any(|d| d.target == *id);
        let skipped = self.passed_over.iter().filter(|(id, _)| untried(id)).map(|(id, (skip, at))| Skipped {
            target: name(*id),
            reason: skip.name().to_owned(),
            detail: skip.detail(*at),
        });
        let last = self.dialled.last().filter(|_| answered);
        let dial = last.and_then(|d| Some(d.connected?.since(d.dialled)));
        let first_token = last.and_then(|d| Some(d.committed?.since(d.connected?)));
        DecisionRecord {
            format: DECISION_FORMAT,
            route: self.route.name.clone(),
            stream: self.facts.stream,
            intent: self.facts.intent.as_deref().map(|intent| units::printable(intent, 100)),
            outcome,
            target: last.map(|d| name(d.target)),
            attempts,
            skipped: skipped.collect(),
            timings: Timings {
                detection_ms: units::ms(self.detection),
                decision_ms: units::ms(self.decision),
                dial_ms: dial.map_or(0.0, units::ms),
                first_token_ms: first_token.map_or(0.0, units::ms),
            },
            total_ms: since(now),
        }
    }
}

/// Whose attempt it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Request(RequestId),
    Probe,
}

/// One dial under way.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) owner: Owner,
    pub(super) target: TargetId,
    pub(super) began: Began,
    pub(super) grant: Grant,
    pub(super) stream: bool,
    pub(super) fresh: bool,
    pub(super) connected: Option<Ts>,
    pub(super) first_token: Option<Ts>,
    pub(super) committed: Option<Ts>,
    /// A tool call has begun: the relay's idle limit and bound replace the deadline.
    pub(super) calling: bool,
}

impl Attempt {
    pub(super) fn new(
        owner: Owner,
        target: TargetId,
        began: Began,
        grant: Grant,
        stream: bool,
        fresh: bool,
    ) -> Attempt {
        Attempt {
            owner,
            target,
            began,
            grant,
            stream,
            fresh,
            connected: None,
            first_token: None,
            committed: None,
            calling: false,
        }
    }

    /// The connection stands.
    pub(super) fn connect(&mut self, now: Ts) {
        self.connected.get_or_insert(now);
    }

    /// A sign of life.
    pub(super) fn sign(&mut self, now: Ts, sign: Sign) {
        self.connect(now);
        self.first_token.get_or_insert(now);
        self.calling |= sign == Sign::ToolCall;
    }

    /// Delivered, or answered in full.
    pub(super) fn commit(&mut self, now: Ts) {
        self.sign(now, Sign::Life);
        self.committed.get_or_insert(now);
    }

    /// Which of its limits runs out next, when, and whether that counts against the target.
    pub(super) fn limit(&self) -> Option<(Ts, Failure, bool)> {
        let Grant { limits, until, connect_counts, answer_counts, deadline_counts } = self.grant;
        if self.committed.is_some() || (self.calling && self.owner != Owner::Probe) {
            return None;
        }
        let answer = self.began.at + limits.answer;
        if !self.stream {
            let connect = self.began.at + limits.connect;
            return Some(match self.connected {
                None if connect < answer => (connect, Failure::ConnectTimeout, connect_counts),
                _ => (answer, Failure::AnswerTimeout, answer_counts),
            });
        }
        Some(match (self.connected, self.first_token) {
            (_, Some(_)) => (until.max(self.began.at), Failure::Deadline, deadline_counts),
            (None, None) if limits.connect < limits.answer => {
                (self.began.at + limits.connect, Failure::ConnectTimeout, connect_counts)
            }
            (_, None) => (answer, Failure::FirstTokenTimeout, answer_counts),
        })
    }
}

/// The verdict on a limit that ran out.
pub(super) fn timed_out(failure: &Failure, counts: bool) -> Verdict {
    let verdict = super::classify::classify(failure);
    Verdict { counted: verdict.counted && counts, ..verdict }
}
