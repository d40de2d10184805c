//! What is not the gateway's doing: a limit that was missed by no more than the runner, the lab or the fault server stood still
//! while the request was under way, and an answer that was committed in time by its gateway's own record and read late by the
//! customers' side. A run in which nothing else failed says nothing; what is left without these is the gateway's, and stays.

use super::{Case, laid_beside};
use crate::drill::evidence::{Evidence, GatewayRecord};
use crate::drill::spoilt::{Reason, Spoilt};
use crate::drill::verdict::Weight;

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
        self.forgiving && self.ev.stalls.met(r.started_ms, r.ended_ms)
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

/// Why nothing that failed in this run can be held against its gateway, if so.
pub(super) fn pardoned(ev: &Evidence) -> Option<Spoilt> {
    let d = &ev.declared;
    let since = ev.first_injection_ms();
    // Not the connect limit: the kernel takes connections for a process that stands still.
    let lenient = Evidence { stalls: ev.stalls.under(&[d.first_token_limit_ms, d.idle_limit_ms]), ..ev.clone() };
    let left = laid_beside(Case { forgiving: true, ..Case::new(&lenient) });
    if left.findings.iter().any(|f| f.weight == Weight::Failure) {
        return None;
    }
    ev.stalls.said(since).or_else(|| {
        let latest = (0..ev.requests.len()).map(|i| read_late_ms(ev, i)).fold(0.0, f64::max);
        let text = format!(
            "by their gateway's own record answers were committed in time that customers read late, the latest by {latest:.0} ms"
        );
        Some(Spoilt::by(Reason::GeneratorLate, text))
    })
}
