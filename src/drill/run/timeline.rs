//! What happened when, in words: from the rounds, the judgement and, marked as such, the gateways' own accounts.

use crate::drill::evidence::{Evidence, FaultSpan};
use crate::drill::judge::Judgement;
use crate::drill::report::Moment;
use crate::measure::Rto;

/// Changes of availability shown; a flapping target must not fill the report.
const CHANGES: usize = 40;

/// The timeline.
#[must_use]
pub fn timeline(ev: &Evidence, j: &Judgement) -> Vec<Moment> {
    let mut out = vec![Moment { at_ms: ev.steady_from_ms, text: "customers begin: steady state".into() }];
    let mut note = |at_ms: f64, text: String| {
        if at_ms.is_finite() {
            out.push(Moment { at_ms, text });
        }
    };
    for (w, r) in ev.windows.iter().zip(&j.recovery.rounds) {
        note(w.injected_ms, format!("{}: injected and acknowledged: {}", w.name, faults(&w.faults)));
        match r.rto {
            Rto::NotHit => {}
            Rto::NotRecovered { from_ms } => {
                note(from_ms, format!("{}: first turn that the primary did not answer", w.name))
            }
            Rto::Recovered { from_ms, to_ms, .. } => {
                note(from_ms, format!("{}: first turn that the primary did not answer", w.name));
                let text =
                    format!("{}: first of three useful answers in a row, after {:.0} ms", w.name, to_ms - from_ms);
                note(to_ms, text);
            }
        }
        note(w.restoring_ms, format!("{}: the restore begins", w.name));
        note(w.restored_ms, format!("{}: restored and read back", w.name));
        if let Some(ms) = r.failback_ms {
            note(w.restored_ms + ms, format!("{}: first useful answer of the primary, after {ms:.0} ms", w.name));
        }
    }
    for gateway in ev.gateways.iter().flatten() {
        // Probes that go on failing say nothing new: of equal states of a target in a row the first is shown.
        let mut last: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
        let mut shown = 0;
        for c in gateway.changes.iter().filter(|c| !matches!(c.state.as_str(), "probe_failed" | "probing")) {
            if last.insert(&c.target, &c.state) == Some(c.state.as_str()) || shown == CHANGES {
                continue;
            }
            shown += 1;
            let text = format!("as the gateway of {} saw: {} is {} ({})", gateway.name, c.target, c.state, c.reason);
            note(c.at_ms, crate::units::printable(&text, 200));
        }
    }
    note(ev.load_until_ms, "customers end".into());
    if let Some(a) = &ev.aborted {
        note(ev.load_until_ms, format!("ended before its time: {}", a.text));
    }
    out.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    out
}

fn faults(spans: &[FaultSpan]) -> String {
    spans.iter().map(|s| format!("{} {}", s.path, s.see)).collect::<Vec<_>>().join("; ")
}
