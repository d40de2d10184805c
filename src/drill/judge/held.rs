//! Which row of which promise each finding belongs to. A promise that reads well beside a finding of its kind would be a
//! silent green: whatever the row's own figure says, it is not kept then.

use super::Judgement;
use crate::drill::verdict::{Finding, Kept, Promise, Weight};

/// Promise and row of each finding that is held against a gateway.
const ROWS: &[(&str, &str, &str)] = &[
    ("no_failover", "recovery", "failed_before_commit"),
    ("deadline_missed", "recovery", "deadline_missed"),
    ("lost_in_flight", "recovery", "lost_in_flight"),
    ("failed_after_restore", "recovery", "failed_after_restore"),
    ("recovery_exceeded", "recovery", "rto_ms"),
    ("failback_missed", "recovery", "failback_ms"),
    ("slow_failover", "recovery", "within_bound"),
    ("truncated_as_success", "compatibility", "honest_end"),
    ("forged_end", "compatibility", "honest_end"),
    ("uncontrolled_break", "compatibility", "honest_end"),
    ("spliced_answer", "compatibility", "one_answer"),
    ("invented_text", "compatibility", "one_answer"),
    ("altered_call", "compatibility", "one_answer"),
    ("duplicate_effect", "compatibility", "duplicate_effects"),
    ("schema_broken", "compatibility", "schema"),
    ("handoff_missed", "compatibility", "handoff"),
    ("context_broken", "compatibility", "context"),
    ("finish_broken", "compatibility", "finish"),
    ("context_lost", "compatibility", "context_loss_turns"),
    ("useful_text_slow", "capacity", "useful_text_p95_ms"),
    ("handoff_rate", "capacity", "forced_handoff_rate"),
    ("queue_exceeded", "capacity", "queue_max"),
    ("attempts_exceeded", "capacity", "attempts_per_request_max"),
    ("not_independent", "independence", "bytes_from_broken_region"),
    ("excess_dials", "independence", "dials_into_broken_region"),
];

/// `(promise, row)` in which this finding shows.
#[must_use]
pub fn row_of(code: &str) -> Option<(&'static str, &'static str)> {
    ROWS.iter().find(|(of, ..)| *of == code).map(|(_, promise, row)| (*promise, *row))
}

/// Findings that have one.
#[cfg(test)]
pub(super) fn row_count() -> usize {
    ROWS.len()
}

/// Marks the rows of what was found. In a run that says nothing, or was ended, only proven harm is held against anybody, and
/// only so many cases of it as were proven.
pub(super) fn shown(mut judgement: Judgement) -> Judgement {
    let judged =
        |f: &Finding| judgement.findings.iter().all(|g| g.weight != Weight::Invalid) || f.weight == Weight::Harm;
    let held: Vec<Finding> = judgement
        .findings
        .iter()
        .filter(|f| matches!(f.weight, Weight::Harm | Weight::Failure) && judged(f))
        .cloned()
        .collect();
    for finding in held {
        if let Some((promise, row)) = row_of(&finding.code) {
            fail(&mut judgement.promises, promise, row, &finding);
        }
    }
    judgement
}

fn fail(promises: &mut [Promise], promise: &str, row: &str, finding: &Finding) {
    let Some(promise) = promises.iter_mut().find(|p| p.name == promise) else { return };
    promise.verdict = Kept::Fail;
    let Some(row) = promise.rows.iter_mut().find(|r| r.name == row) else { return };
    if row.verdict == Kept::NotJudged && finding.weight == Weight::Harm {
        let cases = if finding.n == 1 { "case" } else { "cases" };
        row.measured = format!("{} {cases} of {} proven", finding.n, finding.code);
        row.n = row.n.max(finding.n);
    }
    row.verdict = Kept::Fail;
    row.why.clear();
}
