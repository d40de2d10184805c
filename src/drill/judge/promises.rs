//! The four promises, kept apart because one availability number hides them: declared, measured, n, verdict.

use serde_json::{Value, json};

use super::compatibility::{Checked, INVARIANTS};
use super::conduct::Conduct;
use super::recovery::{BOUND_SHARE, LIMITS_UNKNOWN, OVERHEAD_MS};
use super::{Case, Compatibility, Independence, Recovery, hit};
use crate::drill::evidence::PolicyOf;
use crate::drill::verdict::{Kept, Promise, Row};
use crate::measure::Spread;

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "none".into(), |v| format!("{v:.0} ms"))
}

fn at_most(value: Option<f64>) -> String {
    value.map_or_else(|| "not declared".into(), |v| format!("≤ {v:.0} ms"))
}

fn kept(measured: Option<f64>, declared: Option<f64>) -> Kept {
    match (measured, declared) {
        (Some(m), Some(d)) => Kept::when(m <= d),
        _ => Kept::NotJudged,
    }
}

fn row(name: &str, what: &str, declared: String, measured: String, n: usize, verdict: Kept) -> Row {
    // What never came up was not kept either.
    let verdict = if n == 0 && verdict == Kept::Pass { Kept::NotJudged } else { verdict };
    Row { name: name.into(), what: what.into(), declared, measured, n, verdict, why: String::new() }
}

fn promise(name: &str, figure: &str, declared: Value, measured: Value, n: usize, rows: Vec<Row>) -> Promise {
    let verdict = rows.iter().fold(Kept::NotJudged, |v, r| v.and(r.verdict));
    let unit = match figure {
        "rto_ms" => "ms",
        "violation_rate" => "share",
        "queue_max" => "requests",
        _ => "bytes",
    };
    let (name, figure, unit) = (name.into(), figure.into(), unit.into());
    Promise { name, figure, declared, measured, unit, n, verdict, rows }
}

/// Findings for limits that are laid on the run as a whole.
pub(super) fn limits(case: &mut Case<'_>, useful_text: &Spread, queue_max: usize) {
    if let Some(declared) = case.ev.declared.queue_max.filter(|q| queue_max as u64 > *q) {
        case.findings.add("queue_exceeded", format!("{queue_max} waited at once, declared {declared}"));
    }
    if let (Some(p95), Some(declared)) = (useful_text.p95, case.ev.declared.useful_text_p95_ms)
        && p95 > declared
    {
        let text = format!("95th percentile {p95:.0} ms over {}, declared {declared:.0} ms", useful_text.n);
        case.findings.add("useful_text_slow", text);
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a judgement, each computed once")]
pub(super) fn all(
    case: &Case<'_>,
    recovery: &Recovery,
    compatibility: &Compatibility,
    independence: &Independence,
    conduct: &Conduct,
    useful_text: &Spread,
    queue_max: usize,
    attempts: u32,
) -> Vec<Promise> {
    let mut all = vec![
        of_recovery(case, recovery, conduct),
        of_compatibility(case, compatibility),
        of_capacity(case, compatibility, useful_text, queue_max, attempts),
        of_independence(case, independence),
    ];
    if case.ev.windows.is_empty() {
        // What was kept while nothing was broken is kept by any gateway.
        for promise in &mut all {
            for row in promise.rows.iter_mut().filter(|r| r.verdict == Kept::Pass) {
                row.verdict = Kept::NotJudged;
                row.why = "nothing was broken".into();
            }
            promise.verdict = promise.rows.iter().fold(Kept::NotJudged, |v, r| v.and(r.verdict));
        }
    }
    all
}

fn of_recovery(case: &Case<'_>, r: &Recovery, conduct: &Conduct) -> Promise {
    let declared = case.ev.declared.recovery_ms;
    let worst = r.worst();
    let total = worst.and_then(|w| w.rto.total_ms());
    let was_hit = worst.is_some_and(|w| hit(&w.rto));
    let rto_verdict = if was_hit && total.is_none() { Kept::Fail } else { kept(total, declared) };
    let rto_text =
        if was_hit { total.map_or_else(|| "not recovered".into(), |v| format!("{v:.0} ms")) } else { "none".into() };
    // Of a time that can be computed although no turn of the outage met the fault, nothing was kept.
    let met = r.affected() > 0;
    let after_restore = worst.is_some_and(|w| w.after_restore == Some(true));
    let only_cut = worst.is_some_and(|w| w.only_cut);
    let rto_verdict = if rto_verdict == Kept::Pass && (!met || after_restore) { Kept::NotJudged } else { rto_verdict };
    let rto_why = match (was_hit, met) {
        (true, false) => "no turn that started in the outage met the broken provider",
        (true, true) if after_restore && only_cut => super::ONLY_CUT,
        (true, true) if after_restore => super::AFTER_RESTORE,
        _ => "",
    };
    let rto_text = if after_restore { format!("{rto_text}, only after the restore") } else { rto_text };
    // A primary that was never away cannot come back.
    let away = || r.rounds.iter().filter(|w| hit(&w.rto));
    let back = away().filter(|w| w.failback_ms.is_some()).count();
    let sought = away().filter(|w| w.failback_sought).count();
    let failback = r.failback_ms();
    let failback_verdict = if sought > back { Kept::Fail } else { kept(failback, declared) };
    let failback_text = if sought > back { format!("{back} of {sought} rounds") } else { ms(failback) };
    let what = match only_cut {
        false => "useful answers back in the outage, after the cut (slowest round)",
        true => "useful answers again while answers were only cut off, whoever gave them (slowest round)",
    };
    let rto_row = row("rto_ms", what, at_most(declared), rto_text, r.turns(), rto_verdict);
    let mut rows = vec![
        Row { why: rto_why.into(), ..rto_row },
        row(
            "failback_ms",
            "primary useful again after the restore (slowest round)",
            at_most(declared),
            failback_text,
            sought,
            failback_verdict,
        ),
        row(
            "failed_before_commit",
            "requests after the cut that failed before any useful byte",
            "0".into(),
            r.failed_before_commit.to_string(),
            r.after_cut,
            // Later than the deadline, and within the share of those that was declared, is no failure here either.
            if r.after_cut == 0 { Kept::NotJudged } else { Kept::when(r.failed_before_commit <= conduct.excused) },
        ),
    ];
    rows.extend(of_requests(case, conduct));
    let b = &r.bound;
    if case.ev.windows.iter().any(|w| w.dead()) {
        let share = b.within as f64 / b.n.max(1) as f64;
        let what = format!(
            "requests that met the broken provider first: answered within their limit + the stand-in's first token + {OVERHEAD_MS:.0} ms"
        );
        let measured = match (&b.unknown, b.n) {
            (Some(_), _) => "not known".into(),
            (None, 0) => "none".into(),
            (None, _) => format!(
                "{:.0} % (worst {:+.0} ms; {} met it first, {} of them judged)",
                share * 100.0,
                b.worst_excess_ms.unwrap_or(0.0),
                b.met_first,
                b.n
            ),
        };
        let least = format!("≥ {:.0} %", BOUND_SHARE * 100.0);
        let verdict = b.kept().map_or(Kept::NotJudged, Kept::when);
        let why = b.unknown.clone().unwrap_or_else(|| match (b.n, b.met_first) {
            (0, met) if met > 0 => format!("{met} met the broken provider first, and a stand-in answered none of them"),
            _ => String::new(),
        });
        rows.push(Row { why, ..row("within_bound", &what, least, measured, b.n, verdict) });
    }
    let mut all = promise("recovery", "rto_ms", json!(declared), json!(total.map(f64::round)), r.turns(), rows);
    // The other rows do not speak for the one that the promise is about.
    if all.verdict == Kept::Pass && all.rows[0].verdict != Kept::Pass {
        all.verdict = Kept::NotJudged;
    }
    all
}

/// What became of requests one by one, beside the times.
fn of_requests(case: &Case<'_>, conduct: &Conduct) -> [Row; 3] {
    let most = case.ev.declared.deadline_miss_rate;
    let late = conduct.deadline;
    let none = |k: Checked| Kept::when(k.broken == 0);
    let of = |name: &str, what: &str, declared: String, k: Checked, verdict: Kept| {
        row(name, what, declared, k.broken.to_string(), k.n, verdict)
    };
    [
        of(
            "deadline_missed",
            "requests later than the deadline, or given up",
            if most == 0.0 { "0".into() } else { format!("≤ {:.1} %", most * 100.0) },
            late,
            Kept::when(late.within(most)),
        ),
        of(
            "lost_in_flight",
            "requests under way at the cut, nothing of them delivered, that nobody answered",
            "0".into(),
            conduct.in_flight,
            none(conduct.in_flight),
        ),
        of(
            "failed_after_restore",
            "requests that failed although the path was restored",
            "0".into(),
            conduct.after_restore,
            none(conduct.after_restore),
        ),
    ]
}

/// Rows of what no declared share excuses.
const NEVER: [(&str, &str); 2] = [
    ("one_answer", "answers in one provider's own words and calls (none spliced, invented or altered)"),
    ("honest_end", "answers that end as what they are (a broken one by one error event, none dressed up as whole)"),
];

fn of_compatibility(case: &Case<'_>, c: &Compatibility) -> Promise {
    let allowed = case.ev.declared.invariant_violation_rate;
    let mut rows = Vec::new();
    for (name, _, what) in INVARIANTS {
        let k = c.checked.get(*name).copied().unwrap_or_default();
        let verdict = if k.n == 0 { Kept::NotJudged } else { Kept::when(k.within(allowed)) };
        let declared = if allowed == 0.0 { "all".into() } else { format!("≥ {:.1} %", (1.0 - allowed) * 100.0) };
        let why = c.unjudged.get(*name).cloned().unwrap_or_default();
        rows.push(Row { why, ..row(name, what, declared, format!("{} of {}", k.n - k.broken, k.n), k.n, verdict) });
    }
    for (name, what) in NEVER {
        let k = c.checked.get(name).copied().unwrap_or_default();
        let kept = format!("{} of {}", k.n - k.broken, k.n);
        rows.push(row(name, what, "all".into(), kept, k.n, Kept::when(k.broken == 0)));
    }
    let looked_at: usize = c.context_loss_by_intent.values().map(|(_, n)| n).sum();
    let lost = case.ev.declared.context_loss_turns;
    let context = match lost {
        Some(most) if looked_at > 0 => Kept::when(c.context_loss_turns <= most),
        _ => Kept::NotJudged,
    };
    rows.push(row(
        "context_loss_turns",
        "turns or tool results that did not reach the next provider (RPO)",
        lost.map_or_else(|| "not declared".into(), |most| format!("≤ {most}")),
        c.context_loss_turns.to_string(),
        looked_at,
        context,
    ));
    let duplicates = c.checked.get("duplicate_effects").map_or(0, |k| k.broken);
    rows.push(row(
        "duplicate_effects",
        "business actions done twice",
        "0".into(),
        duplicates.to_string(),
        case.ev.effects.len(),
        Kept::when(duplicates == 0),
    ));
    let sum = c.sum();
    let rate = (sum.n > 0).then(|| sum.broken as f64 / sum.n as f64);
    promise("compatibility", "violation_rate", json!(allowed), json!(rate), sum.n, rows)
}

fn of_capacity(case: &Case<'_>, c: &Compatibility, useful: &Spread, queue_max: usize, attempts: u32) -> Promise {
    let d = &case.ev.declared;
    let n = case.counted().count();
    let queue = d.queue_max.map_or(Kept::NotJudged, |q| Kept::when(queue_max as u64 <= q));
    let queue_declared = d.queue_max.map_or_else(|| "not declared".into(), |q| format!("≤ {q}"));
    let forced = c.forced_rate();
    let rows = vec![
        row("queue_max", "requests waiting at one moment", queue_declared, queue_max.to_string(), n, queue),
        row(
            "useful_text_p95_ms",
            "time to useful text in the outage, 95th percentile",
            at_most(d.useful_text_p95_ms),
            ms(useful.p95),
            useful.n,
            kept(useful.p95, d.useful_text_p95_ms),
        ),
        of_attempts(case, attempts),
        row(
            "forced_handoff_rate",
            "turns handed off without being asked for",
            d.capacity_handoff_rate.map_or_else(|| "not declared".into(), |most| format!("≤ {:.1} %", most * 100.0)),
            forced.map_or_else(|| "none".into(), |f| format!("{:.1} %", f * 100.0)),
            c.turns,
            kept(forced, d.capacity_handoff_rate),
        ),
    ];
    promise("capacity", "queue_max", json!(d.queue_max), json!(queue_max), n, rows)
}

fn of_attempts(case: &Case<'_>, attempts: u32) -> Row {
    let (most, n) = (case.ev.declared.max_attempts, case.counted().count());
    let what = "requests that providers received for one of the client";
    let of = |declared: String, verdict: Kept| {
        row("attempts_per_request_max", what, declared, attempts.to_string(), n, verdict)
    };
    match case.ev.policy_of {
        PolicyOf::Gateway => of(format!("≤ {most}"), Kept::when(attempts <= most)),
        PolicyOf::Lab => Row { why: LIMITS_UNKNOWN.into(), ..of("not known".into(), Kept::NotJudged) },
    }
}

fn of_independence(case: &Case<'_>, i: &Independence) -> Promise {
    let outages = case.ev.windows.iter().filter(|w| w.dead()).count();
    let bytes = i.bytes_received.filter(|_| i.asked);
    let requests = if i.asked { Kept::when(i.requests_received == 0) } else { Kept::NotJudged };
    let explained = i.dials_breaker + i.dials_under_way + i.dials_probes;
    let dials = i.dials.filter(|_| i.asked);
    let mut rows = vec![
        row(
            "bytes_from_broken_region",
            "bytes received from the broken region after the cut",
            "0".into(),
            bytes.map_or_else(|| "not counted".into(), |b| b.to_string()),
            outages,
            bytes.map_or(Kept::NotJudged, |b| Kept::when(b == 0)),
        ),
        row(
            "requests_to_broken_region",
            "requests that the broken provider received after the cut",
            "0".into(),
            // Nothing was cut off whole: what the provider received is no sign of anything.
            if i.asked { i.requests_received.to_string() } else { "not counted".into() },
            outages,
            requests,
        ),
        row(
            "dials_into_broken_region",
            "dials into the broken region, as the gateway saw",
            dials.map_or_else(
                || "not known".into(),
                |_| {
                    let (breaker, under_way, probes) = (i.dials_breaker, i.dials_under_way, i.dials_probes);
                    format!("≤ {breaker} breaker + {under_way} under way + {probes} probes")
                },
            ),
            dials.map_or_else(|| "not known".into(), |d| d.to_string()),
            outages,
            dials.map_or(Kept::NotJudged, |d| Kept::when(d <= explained)),
        ),
    ];
    if i.dependencies_cut > 0 {
        let measured = match case.ev.foreign {
            // What the lab's stores went through is nothing that this gateway did.
            true => "not known".into(),
            false => format!("{} refreshes failed, oldest copy {}", i.refreshes_failed, ms(i.oldest_copy_ms)),
        };
        // Where the model itself was not replaced, failures say nothing about the dependencies.
        let why = if case.ev.foreign {
            "these are the lab's stores; a gateway that the drill did not start has its own, or none"
        } else if case.findings.has("no_failover") {
            "requests failed for another reason"
        } else {
            ""
        };
        let told = if why.is_empty() { Kept::when(i.refreshes_failed > 0) } else { Kept::NotJudged };
        let what = "policy, secrets, history, telemetry gone: answers went on from the last good copies";
        let row = row("dependencies_cut", what, "no request fails".into(), measured, i.dependencies_cut, told);
        rows.push(Row { why: why.into(), ..row });
    }
    promise("independence", "bytes_from_broken_region", json!(i.asked.then_some(0)), json!(bytes), outages, rows)
}
