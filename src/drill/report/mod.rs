//! `[P]` What a drill leaves behind: `summary.json` with fixed names, `report.md` for people, tables for the terminal.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod markdown;
pub mod summary;
mod why;

use serde::{Deserialize, Serialize};

use super::evidence::{Evidence, PolicyOf};
use super::judge::{Judgement, PhaseFacts, UNDER_WAY};
use super::verdict::{Cleanup, Kept, Row, Verdict};

pub use markdown::markdown;
pub use summary::summary;
pub use why::{forbidden, why};

/// A moment worth showing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Since the start of the drill.
    pub at_ms: f64,
    /// What happened.
    pub text: String,
}

/// How the run itself went: what is neither evidence nor judgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// What the drill is for, from its file.
    pub description: String,
    /// Where the drill came from: `built in`, or its path.
    pub source: String,
    /// Policy that was used: its path or `built in`.
    pub policy: String,
    /// What was driven: entries or the target.
    pub targets: Vec<String>,
    /// The fault server.
    pub fault_server: String,
    /// Wall-clock start, as ISO 8601.
    pub started_at: String,
    /// The whole run.
    pub duration_ms: f64,
    /// Clean-up.
    pub cleanup: Cleanup,
    /// What the clean-up did or could not do, in words.
    pub cleanup_notes: Vec<String>,
    /// Leftovers of earlier runs, found and healed before this one.
    pub healed: Vec<String>,
    /// What this run could not exercise, and why.
    pub not_exercised: Vec<String>,
    /// What happened when.
    pub timeline: Vec<Moment>,
    /// Proposed changes.
    pub proposals: Vec<String>,
    /// The command that runs the same again: everything that the verdict depends on.
    pub again: String,
}

/// A table as data: the terminal and Markdown render it in their own ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Column heads.
    pub head: Vec<&'static str>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
}

/// The four promises, row by row.
#[must_use]
pub fn promise_table(j: &Judgement) -> Table {
    let mut rows = Vec::new();
    for promise in &j.promises {
        if promise.rows.is_empty() {
            let nothing = [promise.name.as_str(), "", "", "", "", Kept::NotJudged.word()];
            rows.push(nothing.map(str::to_owned).to_vec());
        }
        for (n, r) in promise.rows.iter().enumerate() {
            let name = if n == 0 { promise.name.clone() } else { String::new() };
            rows.push(vec![
                name,
                r.what.clone(),
                r.declared.clone(),
                r.measured.clone(),
                r.n.to_string(),
                r.verdict.word().into(),
            ]);
        }
    }
    Table { head: vec!["promise", "what", "declared", "measured", "n", "verdict"], rows }
}

/// The four promises as lines, for where a table would be broken to pieces: `what: measured (limit), n: verdict`.
#[must_use]
pub fn promise_lines(j: &Judgement) -> Vec<String> {
    let mut out = Vec::new();
    for promise in &j.promises {
        let none = if promise.rows.is_empty() { ": not judged" } else { "" };
        out.push(format!("{}{none}", promise.name));
        for r in &promise.rows {
            // One figure that stands for both is said once.
            let limit = if r.declared == r.measured { String::new() } else { format!(" ({})", r.declared) };
            out.push(format!("  {}: {}{limit}, n {}: {}", r.what, r.measured, r.n, r.verdict.word()));
        }
    }
    out
}

/// Any other table as lines: the first cell, then each head with its cell.
#[must_use]
pub fn lines(t: &Table) -> Vec<String> {
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            t.head.iter().zip(row).skip(1).filter(|(_, c)| !c.is_empty()).map(|(h, c)| format!("{h} {c}")).collect();
        format!("{}: {}", row.first().map_or("", String::as_str), cells.join(", "))
    };
    t.rows.iter().map(line).collect()
}

/// Requests that did not reach their customer whole, beside the streams that could not: two tables count them apart.
#[must_use]
pub fn whole_line(j: &Judgement) -> Option<String> {
    use super::evidence::CutPoint;
    let failed: usize = j.phases.values().map(|p| p.failed).sum();
    let points = [
        ("before content", CutPoint::BeforeContent),
        ("after content", CutPoint::AfterContent),
        ("inside a tool call", CutPoint::InsideCall),
        ("after a call's arguments", CutPoint::AfterCall),
    ];
    let ended = points.map(|(name, point)| (name, j.cut_streams.at(point).one_error_event));
    let controlled: usize = ended.iter().map(|(_, n)| n).sum();
    let gone = j.with_their_gateway;
    if failed == 0 || controlled + gone > failed {
        return None;
    }
    let by: Vec<String> = ended.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    let mut parts = Vec::new();
    if controlled > 0 {
        parts.push(format!(
            "{controlled} by a cut ({}), ended by one error event as it must be, because what a customer has read cannot be taken back",
            by.join(", ")
        ));
    }
    if gone > 0 {
        parts.push(format!(
            "{gone} ended without a word because the way to their own gateway broke under them: a gateway that dies or is cut off can send no error event"
        ));
    }
    parts.push(match failed - controlled - gone {
        0 => "no other request failed".into(),
        n => format!("{n} failed otherwise"),
    });
    Some(format!("not whole {failed}: of these {}", parts.join("; ")))
}

/// Requests that a customer's own application sent again at another entry: one answer for two requests.
#[must_use]
pub fn again_line(j: &Judgement) -> Option<String> {
    let n = j.sent_again;
    (n > 0).then(|| {
        format!(
            "sent again {n}: requests that their entry left without an answer, and that the customer's own application sent to the other one; requests.jsonl holds both, the tables count the second alone"
        )
    })
}

/// How many rows were judged, and each that was not with the reason in short.
#[must_use]
pub fn not_judged(ev: &Evidence, j: &Judgement) -> (usize, Vec<String>) {
    let (judged, skipped) = skipped(ev, j);
    (judged, skipped.into_iter().map(|(what, why)| format!("{what}: {why}")).collect())
}

fn skipped(ev: &Evidence, j: &Judgement) -> (usize, Vec<(String, String)>) {
    let rows = || j.promises.iter().flat_map(|p| &p.rows);
    let judged = rows().filter(|r| r.verdict != Kept::NotJudged).count();
    let why = |r: &Row| match r.name.as_str() {
        _ if ev.spoils.lab().is_some() => "the lab was lost".to_owned(),
        _ if !r.why.is_empty() => r.why.clone(),
        "bytes_from_broken_region" if j.independence.asked => "the fault server has no live counters".to_owned(),
        "dials_into_broken_region" if ev.foreign => "a foreign gateway does not say".to_owned(),
        "dials_into_broken_region" if ev.gateways.is_none() => "the gateway left no account".to_owned(),
        _ if r.declared == "not declared" => "nothing is declared".to_owned(),
        _ if r.name.ends_with("_broken_region") && !j.independence.asked => "nothing was cut off whole".to_owned(),
        _ if r.n == 0 => "no such case came up".to_owned(),
        _ => format!("measured: {}", r.measured),
    };
    let skipped = rows().filter(|r| r.verdict == Kept::NotJudged).map(|r| (r.what.clone(), why(r))).collect();
    (judged, skipped)
}

/// What was not judged, once per reason: `reason: row; row`.
#[must_use]
pub fn not_judged_by_reason(ev: &Evidence, j: &Judgement) -> Vec<String> {
    let mut by: Vec<(String, Vec<String>)> = Vec::new();
    for (what, why) in skipped(ev, j).1 {
        match by.iter_mut().find(|(known, _)| *known == why) {
            Some((_, rows)) => rows.push(what),
            None => by.push((why, vec![what])),
        }
    }
    by.into_iter().map(|(why, rows)| format!("{why}: {}", rows.join("; "))).collect()
}

/// The promises without their rows that were not judged, for where those are named once with their reason.
#[must_use]
pub fn judged_alone(j: &Judgement) -> Judgement {
    let mut judged = j.clone();
    for promise in &mut judged.promises {
        promise.rows.retain(|r| r.verdict != Kept::NotJudged);
    }
    judged
}

/// What stands above the times of the policy that was used.
#[must_use]
pub fn times_head(ev: &Evidence) -> &'static str {
    match (ev.policy_of, ev.foreign) {
        (PolicyOf::Lab, _) => "times of the lab's policy, not of this gateway",
        (PolicyOf::Gateway, true) => "times of the given policy that are shorter than the defaults",
        (PolicyOf::Gateway, false) => "lab times",
    }
}

/// The verdict, and beside a PASS how much it rests on.
#[must_use]
pub fn closing(ev: &Evidence, j: &Judgement) -> String {
    match not_judged(ev, j) {
        (judged, skipped) if j.verdict == Verdict::Pass && !skipped.is_empty() => {
            format!("PASS ({judged} judged, {} not judged)", skipped.len())
        }
        _ => j.verdict.word().into(),
    }
}

/// Who answered in which phase, how fast, and at what cost to the providers.
#[must_use]
pub fn phase_table(j: &Judgement) -> Table {
    let ms = |v: Option<f64>| v.map_or_else(|| "-".into(), |v| format!("{v:.0} ms"));
    let mut rows = Vec::new();
    for (phase, name) in
        [("steady", "steady"), (UNDER_WAY, "under way at the cut"), ("outage", "outage"), ("recovery", "recovery")]
    {
        let Some(f) = j.phases.get(phase) else { continue };
        let by: Vec<String> = f.answered_by.iter().map(|(p, n)| answered(f, p, *n)).collect();
        rows.push(vec![
            name.into(),
            f.requests.to_string(),
            f.failed.to_string(),
            by.join(", "),
            ms(f.useful_text_ms.p50),
            ms(f.useful_text_ms.p95),
            f.provider_requests_per_request.map_or_else(|| "-".into(), |v| format!("{v:.2}")),
        ]);
    }
    let head = vec![
        "phase",
        "requests",
        "not whole",
        "answered by",
        "useful text p50",
        "p95",
        "provider requests per request",
    ];
    Table { head, rows }
}

/// `local-a 12 (after the restore)`: a request that waits through the outage is counted where it began.
fn answered(f: &PhaseFacts, provider: &str, n: usize) -> String {
    match f.answered_after_restore.get(provider).copied().unwrap_or(0) {
        0 => format!("{provider} {n}"),
        late if late == n => format!("{provider} {n} (after the restore)"),
        late => format!("{provider} {n} ({late} of them after the restore)"),
    }
}

/// Where streams were cut and what became of them.
#[must_use]
pub fn cut_table(j: &Judgement) -> Option<Table> {
    if j.cut_streams.n == 0 {
        return None;
    }
    use super::evidence::CutPoint;
    let rows = [
        ("before content", CutPoint::BeforeContent),
        ("after content", CutPoint::AfterContent),
        ("inside a tool call", CutPoint::InsideCall),
        ("after a call's arguments", CutPoint::AfterCall),
    ]
    .into_iter()
    .map(|(name, point)| {
        let k = j.cut_streams.at(point);
        let cells = [k.n, k.answered_whole, k.one_error_event, k.other].map(|n| n.to_string());
        std::iter::once(name.to_string()).chain(cells).collect()
    })
    .collect();
    let head = vec!["cut", "streams", "answered whole by another", "ended by one error event", "otherwise"];
    Some(Table { head, rows })
}

/// How soon customers had useful answers again in the outage, with the parts of that time, and how soon the primary was back
/// after the restore: two things, each by its own name.
#[must_use]
pub fn rto_line(j: &Judgement) -> String {
    let (total, parts) = j.rto_ms();
    let worst = j.recovery.worst();
    let after_restore = worst.is_some_and(|w| w.after_restore == Some(true));
    let after_cut = match (total, parts) {
        (None, _) => "none measured".into(),
        (Some(total), _) if worst.is_some_and(|w| w.only_cut) => format!(
            "no provider was away, answers were only cut off; useful answers again {}{total:.0} ms after the first turn that the primary did not answer whole",
            if after_restore { "only after the restore, " } else { "" }
        ),
        (Some(total), _) if after_restore => format!(
            "none in the outage (useful answers came back only after the restore, {total:.0} ms after the first turn that the primary did not answer)"
        ),
        (Some(total), Some(p)) => format!(
            "{total:.0} ms; as the gateway saw: decision {:.0}, dial {:.0}, generation {:.0} ms; the remaining {:.0} ms are called detection (not measured by themselves)",
            p.decision_ms, p.dial_ms, p.first_token_ms, p.detection_ms
        ),
        (Some(total), None) => format!("{total:.0} ms; its parts are not known for a foreign gateway"),
    };
    let after_restore = match j.recovery.failback_ms() {
        Some(ms) => format!("; after the restore: the primary useful again after {ms:.0} ms"),
        None => String::new(),
    };
    format!("recovery after the cut: {after_cut}{after_restore}")
}
