//! `summary.json`. Its names are fixed: others read them. They are only added to.

use serde_json::{Map, Value, json};

use super::{RunFacts, why};
use crate::drill::evidence::Evidence;
use crate::drill::judge::Judgement;
use crate::drill::verdict::Promise;

/// Version of the file. Names are only added.
pub const SUMMARY_FORMAT: u32 = 1;

fn rounded(v: Option<f64>) -> Value {
    v.map_or(Value::Null, |v| json!((v * 10.0).round() / 10.0))
}

fn promise(p: &Promise) -> Value {
    json!({
        "figure": p.figure, "declared": p.declared, "measured": p.measured, "unit": p.unit, "n": p.n, "verdict": p.verdict,
        "rows": p.rows,
    })
}

/// The summary as JSON.
#[must_use]
pub fn summary(ev: &Evidence, j: &Judgement, run: &RunFacts) -> Value {
    let (total, parts) = j.rto_ms();
    let part = |f: fn(&crate::drill::evidence::GatewayTimings) -> f64| rounded(parts.as_ref().map(f));
    let promises: Map<String, Value> = j.promises.iter().map(|p| (p.name.clone(), promise(p))).collect();
    let mut out = json!({
        "format": SUMMARY_FORMAT,
        "drill": ev.drill,
        "seed": ev.seed,
        "verdict": j.verdict,
        "cleanup": run.cleanup.word(),
        "findings": j.findings,
        "promises": promises,
        "rto_ms": {
            "total": rounded(total),
            "detection": part(|p| p.detection_ms),
            "decision": part(|p| p.decision_ms),
            "dial": part(|p| p.dial_ms),
            "generation": part(|p| p.first_token_ms),
            "after_restore": j.recovery.worst().and_then(|w| w.after_restore),
        },
        "useful_text_ms": {
            "p50": rounded(j.useful_text_ms.p50), "p95": rounded(j.useful_text_ms.p95), "n": j.useful_text_ms.n,
        },
        "attempts_per_request_max": j.attempts_per_request_max,
        "attempts_as_gateway_saw_max": j.attempts_as_gateway_saw_max,
        "duplicate_effects": j.duplicate_effects,
        "schema_compliance": j.compatibility.schema_compliance(),
        "handoff_rate": j.compatibility.handoff_rate(),
        "forced_handoff_rate": j.compatibility.forced_rate(),
        "handoffs": {"forced": j.compatibility.handoffs_forced, "by_tool": j.compatibility.handoffs_by_tool,
                     "turns": j.compatibility.turns},
        "context_loss_turns": j.compatibility.context_loss_turns,
        "context_loss_by_intent": j.compatibility.context_loss_by_intent,
        "queue_max": j.queue_max,
        "cut_streams": j.cut_streams.n,
        "cut_streams_by_point": j.cut_streams,
    });
    // In two pieces: one literal of this size exceeds the macro's own recursion limit.
    let more = json!({
        "why": why(ev, j),
        "failback_ms": j.recovery.rounds.iter().map(|r| rounded(r.failback_ms)).collect::<Vec<_>>(),
        "rounds": j.recovery.rounds,
        "within_bound": j.recovery.bound,
        "independence": j.independence,
        "phases": j.phases,
        "cut_with_their_gateway": j.with_their_gateway,
        "sent_again": j.sent_again,
        "windows": ev.windows,
        "dependencies": ev.dependencies,
        "aborted": ev.aborted,
        "lab_lost": ev.spoils.lab().map(|s| s.text.as_str()),
        "policy_of": ev.policy_of,
        "timeline": run.timeline,
        "proposals": run.proposals,
        "scaling": ev.declared.scaling,
        "declared": ev.declared,
        "run": {
            "source": run.source, "policy": run.policy, "targets": run.targets, "fault_server": run.fault_server,
            "started_at": run.started_at, "duration_ms": run.duration_ms.round(), "healed": run.healed,
            "cleanup_notes": run.cleanup_notes, "not_exercised": run.not_exercised, "llmfo": env!("CARGO_PKG_VERSION"),
        },
    });
    if let (Value::Object(out), Value::Object(more)) = (&mut out, more) {
        out.extend(more);
    }
    crate::units::told_durations(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::judge::judge;

    #[test]
    fn the_fixed_names_are_there_even_when_nothing_was_measured() {
        let ev = Evidence { drill: "d".into(), seed: 7, ..Evidence::default() };
        let s = summary(&ev, &judge(&ev), &RunFacts::default());
        for name in [
            "drill",
            "seed",
            "verdict",
            "cleanup",
            "findings",
            "promises",
            "rto_ms",
            "useful_text_ms",
            "attempts_per_request_max",
            "duplicate_effects",
            "schema_compliance",
            "handoff_rate",
            "context_loss_turns",
            "queue_max",
            "cut_streams",
        ] {
            assert!(s.get(name).is_some(), "{name}");
        }
        for promise in ["recovery", "compatibility", "capacity", "independence"] {
            for key in ["declared", "measured", "n", "verdict"] {
                assert!(s["promises"][promise].get(key).is_some(), "{promise}.{key}");
            }
        }
        for key in ["total", "detection", "decision", "dial", "generation"] {
            assert!(s["rto_ms"].get(key).is_some(), "{key}");
        }
        for key in ["p50", "p95", "n"] {
            assert!(s["useful_text_ms"].get(key).is_some(), "{key}");
        }
        // Nothing injected is never a pass.
        assert_eq!(s["verdict"], "INVALID");
        assert_eq!(s["findings"][0]["code"], "fault_not_seen");
    }
}
