//! What is not the gateway's doing: a limit that was missed by no more than the runner, the lab or the fault server stood still
//! while the request was under way, and an answer that was committed in time by its gateway's own record and read late by the
//! customers' side. A run in which nothing else failed says nothing; what is left without these is the gateway's, and stays.

use super::{Case, Judgement, laid_beside};
use crate::drill::evidence::{Evidence, GatewayRecord};
use crate::drill::spoilt::{Reason, Spoilt};
use crate::drill::verdict::{Finding, Findings, Weight};

impl Case<'_> {
    /// How much of the time that this request took was nobody's, milliseconds.
    pub(super) fn nobodys_ms(&self, request: usize) -> f64 {
        if !self.forgiving {
            return 0.0;
        }
        let r = &self.ev.requests[request];
        let until = r.useful_text_ms.or(r.committed_ms).unwrap_or(r.ended_ms);
        self.stood_still(r.started_ms, until).max(read_late_ms(self.ev, request))
    }

    /// This request did not go well, and somebody around the gateway stood still under it, or not long before.
    pub(super) fn met_a_stall(&self, request: usize) -> bool {
        let r = &self.ev.requests[request];
        self.forgiving && self.ev.stalls.met(r.due_ms.min(r.started_ms), r.ended_ms)
    }

    /// How much of this time somebody around the gateway stood still.
    pub(super) fn stood_still(&self, from_ms: f64, until_ms: f64) -> f64 {
        if self.forgiving { self.ev.stalls.within(from_ms, until_ms) } else { 0.0 }
    }
}

/// How much later than its gateway says that it was committed the customers' side had the answer.
fn read_late_ms(ev: &Evidence, request: usize) -> f64 {
    let r = &ev.requests[request];
    let told = ev.decision(r).and_then(|d| committed_ms(&d.record));
    told.zip(r.committed_ms).map_or(0.0, |(told, at)| (at - r.started_ms - told).max(0.0))
}

/// When the answer was committed, since its arrival.
fn committed_ms(record: &GatewayRecord) -> Option<f64> {
    let answered = record.attempts.iter().rfind(|a| a.class == "success")?;
    Some(answered.dialled_ms + record.timings.dial_ms + record.timings.first_token_ms)
}

/// Laid beside each other with what those around the gateway explain; `busy`: their small lags too.
fn forgiven(ev: &Evidence, busy: bool) -> Judgement {
    let d = &ev.declared;
    // Not the connect limit: the kernel takes connections for a process that stands still.
    let stalls = ev.stalls.under(&[d.first_token_limit_ms, d.idle_limit_ms]);
    let lenient = Evidence { stalls: if busy { stalls.busy() } else { stalls }, ..ev.clone() };
    laid_beside(Case { forgiving: true, ..Case::new(&lenient) })
}

/// Why nothing that failed in this run can be held against its gateway, if so.
pub(super) fn pardoned(ev: &Evidence) -> Option<Spoilt> {
    let since = ev.first_injection_ms();
    let failed = |busy: bool| forgiven(ev, busy).findings.iter().any(|f| f.weight == Weight::Failure);
    if failed(false) {
        // Only where no pause explains it all are the lags of a busy machine asked.
        return ev.stalls.said_busy(since).filter(|_| !failed(true));
    }
    ev.stalls.said(since).or_else(|| {
        let latest = (0..ev.requests.len()).map(|i| read_late_ms(ev, i)).fold(0.0, f64::max);
        let text = format!(
            "by their gateway's own record answers were committed in time that customers read late, the latest by {latest:.0} ms"
        );
        Some(Spoilt::by(Reason::GeneratorLate, text))
    })
}

/// The same, with what it excuses: people must see what the run would have failed by.
pub(super) fn of_what(why: Spoilt, judgement: &Judgement) -> Spoilt {
    let failures = judgement.findings.iter().filter(|f| f.weight == Weight::Failure);
    let told: Vec<String> = failures
        .take(3)
        .map(|f| format!("{} ({})", f.code, f.examples.first().map_or("no case", String::as_str)))
        .collect();
    Spoilt { text: format!("{}; excused by it: {}", why.text, told.join(", ")), ..why }
}

/// Findings that one request is enough for: whether it came late or in time, nobody answered it.
const OF_ONE: [&str; 3] = ["no_failover", "lost_in_flight", "failed_after_restore"];

/// A run that says nothing only because the load came late for a while, and in which requests failed that neither came late nor
/// met what made the others late: those are the gateway's. The times of such a run still say nothing.
pub(super) fn failed_in_time(ev: &Evidence, judgement: Judgement) -> Judgement {
    let late = Reason::GeneratorLate.code();
    let mut invalid = judgement.findings.iter().filter(|f| f.weight == Weight::Invalid).peekable();
    // Without a pause that is known nobody can tell what lay before and after it.
    if ev.stalls.is_empty() || ev.aborted.is_some() || invalid.peek().is_none() || invalid.any(|f| f.code != late) {
        return judgement;
    }
    let in_time = forgiven(ev, true).findings;
    let left = |code: &str| OF_ONE.contains(&code) && in_time.iter().any(|f| f.code == code);
    if !OF_ONE.iter().any(|code| left(code)) {
        return judgement;
    }
    let mut findings = Findings::default();
    let kept = judgement.findings.iter().filter(|f| f.weight != Weight::Failure || left(&f.code)).cloned();
    findings.add_all(kept.map(|f| if f.code == late { Finding { weight: Weight::Note, ..f } } else { f }).collect());
    Judgement { verdict: findings.verdict(false), findings: findings.sorted(), ..judgement }
}
