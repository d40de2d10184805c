//! One request on its way: `trying -> committed -> done`, and what was written down about it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::availability::Began;
use super::budget::Grant;
use super::classify::{Class, Verdict};
use super::decision::{AttemptRecord, DECISION_FORMAT, DecisionRecord, Observed, Outcome, Skipped, Timings};
use super::io::{AttemptId, Facts, Failure, HandoffCause, RequestId, Sign, Withhold};
use super::select::Plan;
use super::skip::Skip;
use crate::policy::{Policy, Route, TargetId};
use crate::units::{self, Ts};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for room, since then.
    Queued(Ts),
    /// This attempt is under way, and perhaps a hedge beside it.
    Trying(AttemptId, Option<AttemptId>),
    /// Between two dials of the same target, when nobody else is left.
    Pausing,
    /// This attempt was delivered and still streams.
    Committed(AttemptId),
}

/// One dial of a request, as it is written down.
#[derive(Clone, Debug)]
pub(super) struct Dialled {
    attempt: AttemptId,
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
    degraded: bool,
    mask: bool,
}

/// How a dial comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// As the next one.
    Next,
    /// Once more, on a fresh connection, after a reused one failed.
    Fresh,
    /// Beside the one under way.
    Hedge,
}

/// Why a target was dialled.
#[derive(Clone, Debug)]
enum Why {
    First,
    InsteadOf(TargetId, &'static str),
    After,
    Again,
    Fresh,
    Hedge,
}

/// What failover would have done, where it is only observed.
#[derive(Clone, Debug)]
pub(super) struct Would {
    /// Instead of the dial that was made; else after it.
    pub(super) instead: bool,
    /// Who was asked.
    pub(super) from: TargetId,
    /// Who would have been; `None`: nobody.
    pub(super) to: Option<TargetId>,
    pub(super) reason: Cow<'static, str>,
    pub(super) at: Ts,
}

/// A request that is not over.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) facts: Facts,
    /// The policy by which it came in: its names are those of the record.
    pub(super) policy: Arc<Policy>,
    pub(super) route: Arc<Route>,
    pub(super) arrived: Ts,
    pub(super) phase: Phase,
    pub(super) dialled: Vec<Dialled>,
    pub(super) would: Vec<Would>,
    pub(super) degraded: bool,
    /// Tools that it must go without.
    pub(super) withhold: Withhold,
    /// The attempt whose answer calls tools, and the ledger knows them.
    pub(super) calls: Option<AttemptId>,
    /// What led to a handoff, if one did.
    pub(super) handoff: Option<HandoffCause>,
    /// With the moment at which it was passed over.
    passed_over: BTreeMap<TargetId, (Skip, Ts)>,
    /// Spent in the queue, and what of it lay between two dials.
    queued: Duration,
    queued_between: Duration,
}

impl Request {
    pub(super) fn new(facts: Facts, policy: Arc<Policy>, route: Arc<Route>, now: Ts) -> Request {
        Request {
            facts,
            policy,
            route,
            arrived: now,
            phase: Phase::Pausing,
            dialled: Vec::new(),
            would: Vec::new(),
            degraded: false,
            withhold: Withhold::Nothing,
            calls: None,
            handoff: None,
            passed_over: BTreeMap::new(),
            queued: Duration::ZERO,
            queued_between: Duration::ZERO,
        }
    }

    /// It is in the queue no more.
    pub(super) fn dequeue(&mut self, now: Ts) {
        if let Phase::Queued(since) = self.phase {
            self.queued += now.since(since);
            if !self.dialled.is_empty() {
                self.queued_between += now.since(since);
            }
            self.phase = Phase::Pausing;
        }
    }

    /// Dials so far.
    pub(super) fn dials(&self) -> u32 {
        u32::try_from(self.dialled.len()).unwrap_or(u32::MAX)
    }

    /// Writes down a dial that begins now.
    pub(super) fn begin(&mut self, now: Ts, attempt: AttemptId, plan: &Plan, how: How) {
        let why = match (how, plan.again, self.dialled.is_empty(), plan.passed_over.first()) {
            (How::Fresh, ..) => Why::Fresh,
            (How::Hedge, ..) => Why::Hedge,
            (_, true, ..) => Why::Again,
            (_, _, true, None) => Why::First,
            (_, _, true, Some((target, skip))) => Why::InsteadOf(*target, skip.name()),
            _ => Why::After,
        };
        self.dequeue(now);
        self.pass_over(now, &plan.passed_over);
        self.phase = match (how, self.phase) {
            (How::Hedge, Phase::Trying(first, None)) => Phase::Trying(first, Some(attempt)),
            _ => Phase::Trying(attempt, None),
        };
        self.dialled.push(Dialled {
            attempt,
            degraded: plan.degraded,
            mask: plan.mask,
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

    fn dial_of(&mut self, attempt: AttemptId) -> Option<&mut Dialled> {
        self.dialled.iter_mut().rev().find(|d| d.attempt == attempt)
    }

    /// Writes down what a dial has shown.
    pub(super) fn mark(&mut self, id: AttemptId, attempt: &Attempt) {
        if let Some(dial) = self.dial_of(id) {
            dial.connected = attempt.connected;
            dial.first_token = attempt.first_token;
            dial.committed = attempt.committed;
        }
    }

    /// Writes down how a dial ended.
    pub(super) fn end(&mut self, id: AttemptId, now: Ts, class: Class, reason: Cow<'static, str>, silent: bool) {
        let Some(dial) = self.dial_of(id) else { return };
        dial.ended = Some(now);
        dial.class = Some(class);
        dial.reason = reason;
        dial.silent = silent;
    }

    /// This attempt is the answer.
    pub(super) fn commit(&mut self, id: AttemptId) {
        self.phase = Phase::Committed(id);
        self.degraded = self.dial_of(id).is_some_and(|d| d.degraded);
    }

    /// The attempt under way beside this one.
    pub(super) fn other(&self, id: AttemptId) -> Option<AttemptId> {
        match self.phase {
            Phase::Trying(first, second) if first == id => second,
            Phase::Trying(first, Some(second)) if second == id => Some(first),
            _ => None,
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
                Why::Hedge => "hedge: nothing came from the one before".to_owned(),
            };
            attempts.push(AttemptRecord {
                target: name(d.target),
                why,
                class: d.class.unwrap_or(Class::ClientGone),
                reason: d.reason.clone().into_owned(),
                masked: d.mask,
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
        let answer = match self.phase {
            Phase::Committed(id) if answered => self.dialled.iter().find(|d| d.attempt == id),
            _ => None,
        };
        DecisionRecord {
            format: DECISION_FORMAT,
            route: self.route.name.clone(),
            stream: self.facts.stream,
            intent: self.facts.intent.as_deref().map(|intent| units::printable(intent, 100)),
            outcome,
            handoff: self.handoff,
            target: answer.map(|d| name(d.target)),
            attempts,
            skipped: skipped.collect(),
            observed: self
                .would
                .iter()
                .map(|would| Observed {
                    from: name(would.from),
                    to: would.to.map(name),
                    reason: would.reason.clone().into_owned(),
                    why: if would.instead {
                        format!("instead of {}: {}", name(would.from), would.reason)
                    } else {
                        format!("after {}: {}", name(would.from), would.reason)
                    },
                    at_ms: since(would.at),
                })
                .collect(),
            timings: self.timings(answer, now),
            total_ms: since(now),
        }
    }
}

impl Request {
    /// The parts of the way to the answer, or to the end without one. Dials overlap only where one is a hedge.
    fn timings(&self, answer: Option<&Dialled>, now: Ts) -> Timings {
        let end = answer.map_or(now, |d| d.dialled);
        let (mut detection, mut decision) = (Duration::ZERO, Duration::ZERO);
        let mut at: Option<Ts> = None;
        for d in self.dialled.iter().filter(|d| answer.is_none_or(|a| a.attempt != d.attempt && d.dialled <= end)) {
            decision += at.map_or(Duration::ZERO, |at| d.dialled.since(at));
            let until = d.ended.unwrap_or(now).min(end);
            let from = at.map_or(d.dialled, |at| at.max(d.dialled));
            detection += until.since(from);
            at = Some(at.map_or(until, |at| at.max(until)));
        }
        if let (Some(at), Some(answer)) = (at, answer) {
            decision += answer.dialled.since(at);
        }
        let dial = answer.and_then(|d| Some(d.connected?.since(d.dialled)));
        let first_token = answer.and_then(|d| Some(d.committed?.since(d.connected?)));
        // A wait between two dials is the queue's, not a decision's.
        let waited_between = if self.dialled.is_empty() { Duration::ZERO } else { self.queued_between };
        Timings {
            queued_ms: units::ms(self.queued),
            detection_ms: units::ms(detection),
            decision_ms: units::ms(decision.saturating_sub(waited_between)),
            dial_ms: dial.map_or(0.0, units::ms),
            first_token_ms: first_token.map_or(0.0, units::ms),
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
    /// It finds out whether its target is back (`probe: live`).
    pub(super) live: bool,
    /// Where failover is observed: it would have been left by now, and has counted.
    pub(super) overdue: bool,
    /// It has failed with a status of its own.
    pub(super) refused: bool,
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
            live: false,
            overdue: false,
            refused: false,
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
