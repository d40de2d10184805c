//! `[P]` From evidence to a judgement. Nothing here asks the system under test how it did; a gateway's own account is used
//! only where a row says "as the gateway saw".
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod answers;
mod compatibility;
mod conduct;
pub mod held;
mod independence;
mod pardon;
mod promises;
mod recovery;
mod streams;
mod validity;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::evidence::{Evidence, GatewayTimings, Window};
use super::spoilt::{Reason, Spoilt};
use super::verdict::{Finding, Findings, Kept, Promise, Verdict, Weight};
use crate::measure::{End, ProviderRow, RequestRow, Rto, Spread, Trace};

pub use answers::Truth;
pub use compatibility::Compatibility;
pub use independence::Independence;
pub use recovery::{Bound, Recovery, RoundRecovery};
pub use streams::CutStreams;

#[cfg(test)]
pub(crate) use crate::measure::trace::tests as hand;

/// The requests that were under way at a cut, as a phase of their own: begun before the injection was acknowledged, and not
/// over when it began. What became of them is the fault's doing, and says nothing about the state before it. Those that begin
/// between the first change and the acknowledgement of the last belong here: the outage has not begun, and they meet it.
pub const UNDER_WAY: &str = "under_way_at_cut";

/// Requests that were open, or began, when the steady state had been judged and was not met: the drill ended them, and no table
/// counts them.
const AFTER_STEADY: &str = "after_steady";

/// Requests of one phase, by who answered them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseFacts {
    /// Requests that started in it.
    pub requests: usize,
    /// Of these, not answered whole.
    pub failed: usize,
    /// Whole answers by provider.
    pub answered_by: BTreeMap<String, usize>,
    /// Of these, begun in the outage and answered by a provider that was broken then, once it was restored.
    #[serde(default)]
    pub answered_after_restore: BTreeMap<String, usize>,
    /// Time to useful text.
    pub useful_text_ms: Spread,
    /// Requests that providers received for each client request, mean.
    pub provider_requests_per_request: Option<f64>,
}

/// Everything a report says.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Findings, gravest first.
    pub findings: Vec<Finding>,
    /// The four promises.
    pub promises: Vec<Promise>,
    /// Recovery, round by round.
    pub recovery: Recovery,
    /// Compatibility.
    pub compatibility: Compatibility,
    /// Independence.
    pub independence: Independence,
    /// Streams that were cut.
    pub cut_streams: CutStreams,
    /// Time to useful text of requests that started in an outage.
    pub useful_text_ms: Spread,
    /// Most requests that providers received for one client request.
    pub attempts_per_request_max: u32,
    /// Most dials that a gateway says it made for one request.
    pub attempts_as_gateway_saw_max: Option<u32>,
    /// Effects beyond the first with the same business key.
    pub duplicate_effects: usize,
    /// Most requests that waited at once.
    pub queue_max: usize,
    /// Phases: `steady`, `under_way_at_cut` (see [`UNDER_WAY`]), `outage`, `recovery`.
    pub phases: BTreeMap<String, PhaseFacts>,
    /// Requests that ended without a word because the path in front of their own gateway broke under them.
    pub with_their_gateway: usize,
    /// Requests that the customer's own application sent again at another entry. Of them only those that were waited
    /// out in vain are in another figure: `lost_in_flight` and `deadline_missed`.
    pub sent_again: usize,
    /// By intent, over whole answers of the stand-ins: how many broke an invariant, and how many there were.
    pub intents: BTreeMap<String, (usize, usize)>,
}

impl Judgement {
    /// Recovery time of the slowest round and its parts.
    #[must_use]
    pub fn rto_ms(&self) -> (Option<f64>, Option<GatewayTimings>) {
        let worst = self.recovery.worst();
        (worst.and_then(|r| r.rto.total_ms()), worst.and_then(|r| r.parts))
    }
}

/// The rows laid beside each other once, for all parts of the judgement.
pub(crate) struct Case<'a> {
    pub(crate) ev: &'a Evidence,
    pub(crate) trace: Trace,
    pub(crate) truths: Vec<Truth>,
    /// What the customer waited from.
    pub(crate) from_ms: Vec<f64>,
    pub(crate) findings: Findings,
    /// What may be the doing of those around the gateway is not held against it.
    pub(crate) forgiving: bool,
}

impl<'a> Case<'a> {
    pub(crate) fn new(ev: &'a Evidence) -> Case<'a> {
        let trace = Trace::new(&ev.requests, &ev.providers);
        let truths = ev
            .requests
            .iter()
            .zip(&trace.seen_by)
            .map(|(r, seen)| answers::truth(r, seen, &ev.providers, &ev.declared.key_arguments))
            .collect();
        let from_ms = trace.waited_from_ms.clone();
        Case { ev, trace, truths, from_ms, findings: Findings::default(), forgiving: false }
    }

    /// Requests that count: all but those that the client itself repeated at another entry.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (usize, &'a RequestRow)> + '_ {
        self.ev.requests.iter().enumerate().filter(|(i, _)| !self.trace.superseded[*i])
    }

    /// The provider row that a request's answer came from.
    pub(crate) fn author(&self, request: usize) -> Option<&'a ProviderRow> {
        self.truths[request].author().map(|p| &self.ev.providers[p])
    }

    pub(crate) fn is_broken(&self, provider: &str) -> bool {
        self.ev.broken.iter().any(|b| b == provider)
    }

    /// `c12 turn 2, region-1 at 4.12 s`
    pub(crate) fn name_of(&self, request: usize) -> String {
        let r = &self.ev.requests[request];
        let step = if r.step == 0 { String::new() } else { format!(" step {}", r.step + 1) };
        format!("{} turn {}{step} at {:.2} s", r.conversation, r.turn, r.started_ms / 1e3)
    }

    /// The phase that a request is counted in.
    pub(crate) fn phase_of_request(&self, request: usize) -> &'static str {
        let from = self.from_ms[request];
        if self.ev.window_at(from).is_some() {
            "outage"
        } else if self.cut_of(request).is_some() {
            UNDER_WAY
        } else if from < self.ev.first_injection_ms() {
            match self.ev.steady_judged_ms {
                Some(at) if self.ev.requests[request].ended_ms >= at => AFTER_STEADY,
                _ => "steady",
            }
        } else {
            "recovery"
        }
    }

    /// Requests of the steady state: those that table and finding count, in the one meaning that both share.
    pub(crate) fn steady(&self) -> impl Iterator<Item = (usize, &'a RequestRow)> + '_ {
        self.counted().filter(|(i, r)| r.started_ms >= self.ev.steady_from_ms && self.phase_of_request(*i) == "steady")
    }

    /// The request was answered whole, by one provider.
    pub(crate) fn is_whole(&self, request: usize) -> bool {
        self.ev.requests[request].end == End::Complete && matches!(self.truths[request], Truth::Whole(_))
    }

    /// The cut at which a request was under way, in the one meaning that table, finding and row share.
    pub(crate) fn cut_of(&self, request: usize) -> Option<&'a Window> {
        let (from, until) = (self.from_ms[request], self.ev.requests[request].ended_ms);
        if self.ev.window_at(from).is_some() {
            return None;
        }
        self.ev.windows.iter().find(|w| from < w.injected_ms && until >= w.injecting_ms)
    }
}

/// Judges a run.
#[must_use]
pub fn judge(ev: &Evidence) -> Judgement {
    let judgement = valid_alone(laid_beside(Case::new(ev)));
    held::shown(match ev.spoils.for_good() {
        Some(spoilt) if spoilt.reason == Reason::LabLost => without_lab(ev, &spoilt.text, judgement),
        Some(spoilt) => unjudged(spoilt, harm(&judgement.findings), judgement),
        None if ev.ended_by_hand() => half(judgement),
        // A gateway that did well all the same did well.
        None if judgement.verdict == Verdict::Fail && harm(&judgement.findings).is_empty() => {
            match pardon::pardoned(ev) {
                Some(slow) => unjudged(&pardon::of_what(slow, &judgement), Vec::new(), judgement),
                None => judgement,
            }
        }
        None => pardon::failed_in_time(ev, judgement),
    })
}

/// Everything that was declared, laid beside everything that was seen.
fn laid_beside(mut case: Case<'_>) -> Judgement {
    let ev = case.ev;
    validity::check(&mut case);
    let conduct = conduct::check(&mut case);
    let cut_streams = streams::check(&mut case);
    let recovery = recovery::check(&mut case);
    let mut compatibility = compatibility::check(&mut case);
    let independence = independence::check(&mut case);
    let (duplicate_effects, attempts) = (conduct::duplicates(&mut case), conduct::attempts(&mut case));
    conduct.lay_beside(&mut compatibility, duplicate_effects, ev.effects.len());
    let queue_max = crate::measure::queue_max(&ev.requests, &ev.providers, &case.trace);
    let useful_text_ms = conduct::useful_text(&case, "outage");
    validity::samples(&mut case, &cut_streams, &recovery);
    validity::purpose(&mut case, &cut_streams, &recovery);
    promises::limits(&mut case, &useful_text_ms, queue_max);
    let promises =
        promises::all(&case, &recovery, &compatibility, &independence, &conduct, &useful_text_ms, queue_max, attempts);
    let gateway_attempts = ev.requests.iter().filter_map(|r| r.gateway_attempts).max();
    Judgement {
        verdict: case.findings.verdict(ev.aborted.is_some()),
        promises,
        recovery,
        compatibility,
        independence,
        cut_streams,
        useful_text_ms,
        attempts_per_request_max: attempts,
        attempts_as_gateway_saw_max: gateway_attempts,
        duplicate_effects,
        queue_max,
        phases: conduct::phases(&case),
        with_their_gateway: conduct::with_their_gateway(&case),
        sent_again: case.trace.superseded.iter().filter(|s| **s).count(),
        intents: conduct::intents(&case),
        findings: case.findings.sorted(),
    }
}

/// A run that says nothing about the gateway has no row that reads as if it did, whatever else was found.
fn valid_alone(judgement: Judgement) -> Judgement {
    let Some(first) = judgement.findings.iter().find(|f| f.weight == Weight::Invalid) else { return judgement };
    let why = format!("the run says nothing ({})", first.code);
    let mut promises = judgement.promises;
    for promise in &mut promises {
        promise.verdict = Kept::NotJudged;
        // One that could not be judged anyway keeps its own reason.
        for row in promise.rows.iter_mut().filter(|r| r.verdict != Kept::NotJudged) {
            row.verdict = Kept::NotJudged;
            row.why.clone_from(&why);
        }
    }
    Judgement { promises, ..judgement }
}

/// Somebody ended the run: half of it is no ground for anything but proven harm.
fn half(judgement: Judgement) -> Judgement {
    let mut findings = Findings::default();
    findings.add_all(harm(&judgement.findings));
    let promises = not_judged(judgement.promises, "the run was ended before its time");
    let verdict = findings.verdict(true);
    Judgement { verdict, findings: findings.sorted(), promises, ..judgement }
}

fn not_judged(mut promises: Vec<Promise>, why: &str) -> Vec<Promise> {
    for promise in &mut promises {
        promise.verdict = Kept::NotJudged;
        for row in &mut promise.rows {
            row.verdict = Kept::NotJudged;
            row.why = why.to_owned();
        }
    }
    promises
}

fn harm(findings: &[Finding]) -> Vec<Finding> {
    findings.iter().filter(|f| f.weight == Weight::Harm).cloned().collect()
}

/// Without the lab nobody knows what providers wrote: whatever the rows seem to say, it is not the gateway's doing. But harm
/// that its records had proven before it was lost stays harm.
fn without_lab(ev: &Evidence, why: &str, judgement: Judgement) -> Judgement {
    let until = ev.lab_seen_ms.map_or_else(
        || "it was not asked before, so harm that its records would prove is not judged".to_owned(),
        |at| {
            format!("harm is judged up to {:.2} s, when it was last asked; what came later needs its records", at / 1e3)
        },
    );
    let spoilt = Spoilt::by(Reason::LabLost, format!("{why}; {until}"));
    unjudged(&spoilt, conduct::harm_proven(ev), judgement)
}

/// The run was not what it should have been, so that nothing can be held against the gateway but proven harm: no fault that is
/// lifted too early turns half an answer into one that says it is whole.
fn unjudged(spoilt: &Spoilt, harm: Vec<Finding>, judgement: Judgement) -> Judgement {
    let mut findings = Findings::default();
    findings.add_all(harm);
    findings.add(spoilt.reason.code(), spoilt.text.clone());
    let promises = not_judged(judgement.promises, &format!("the run says nothing ({})", spoilt.reason.code()));
    let verdict = findings.verdict(false);
    Judgement { verdict, findings: findings.sorted(), promises, ..judgement }
}

/// Why a recovery that the restore brought is not the gateway's.
pub(crate) const AFTER_RESTORE: &str =
    "useful answers came back only after the restore: the outage itself was not recovered from";

/// Why the next useful answers after a round of cuts are no recovery: nobody was away.
pub(crate) const ONLY_CUT: &str =
    "answers were only cut off, no provider was away, and the next useful answers came after the restore";

/// True if recovery can be spoken of at all.
pub(crate) fn hit(rto: &Rto) -> bool {
    !matches!(rto, Rto::NotHit)
}

#[cfg(test)]
mod blink_tests;
#[cfg(test)]
mod count_tests;
#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod stall_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod worth_tests;
