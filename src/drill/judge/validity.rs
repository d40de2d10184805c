//! Whether the run says anything at all: was the path well before, did the fault bite on both sides, did the traffic go
//! through the broken path, did the load come in time, was enough seen.

use super::answers::Truth;
use super::recovery::Recovery;
use super::streams::CutStreams;
use super::{Case, hit};
use crate::drill::evidence::{CutPoint, FaultSpan, Window};
use crate::drill::verdict::Weight;
use crate::measure::{End, ProviderRow, percentile};

/// Share of steady requests that must be answered whole.
const STEADY_SHARE: f64 = 0.99;
/// A load that comes later than this (95th percentile, milliseconds) measured something else than the system under test.
const LATE_MS: f64 = 250.0;
/// One request that comes later than this was held up together with everything else in the drill: then it measured something
/// else for a while, however few they are in a long run. Requests of an undisturbed run come less than 100 ms late.
const LATEST_MS: f64 = 1000.0;
/// A stream that the provider wrote whole although it should have been cut this many events earlier went around the cut:
/// what it writes before it notices that its peer has gone stays below this.
const EVENTS_BEYOND_CUT: u32 = 6;

pub(super) fn check(case: &mut Case<'_>) {
    steady(case);
    generator(case);
    if case.ev.dropped_rows > 0 {
        case.findings.add("evidence_lost", format!("{} rows", case.ev.dropped_rows));
    }
    used_through_its_path(case);
    let windows = &case.ev.windows;
    if windows.is_empty() && case.ev.aborted.is_none() && !case.findings.has("steady_state_not_met") {
        case.findings.add("fault_not_seen", "nothing was injected".into());
    }
    for w in windows {
        server_side(case, w);
        bypass(case, w);
    }
}

fn steady(case: &mut Case<'_>) {
    let ev = case.ev;
    // What stopped the run before anything was broken; answers that came later cannot mend it.
    case.findings.add_cases("steady_state_not_met", &ev.not_well, ev.not_well_cases);
    if !ev.not_well.is_empty() {
        return;
    }
    let inside = |at: f64| at >= ev.steady_from_ms && at < ev.first_injection_ms();
    // Those that were still under way at the injection are judged as such.
    let rows: Vec<_> = case.steady().collect();
    let failed: Vec<_> = rows
        .iter()
        .filter(|(i, _)| !case.is_whole(*i))
        .map(|(i, r)| {
            let why = match r.end {
                End::Complete => not_whole(case.truths[*i]).to_owned(),
                _ => format!("{}; asked for model {}", super::conduct::end_text(r), ev.declared.route),
            };
            // Its steady state had been judged by then, without those under way.
            let late = if ev.windows.is_empty() { "" } else { "; seen when the rounds had run" };
            format!("{}: {why}{}{late}", case.name_of(*i), super::conduct::limits_met(ev, r))
        })
        .collect();
    let turns = case.trace.turns.iter().filter(|t| inside(t.started_ms)).count();
    let well = rows.len() - failed.len();
    if (well as f64) < STEADY_SHARE * rows.len() as f64 {
        for text in failed {
            case.findings.add("steady_state_not_met", text);
        }
    }
    // Who stopped it before the steady state was over has said so; the path is not to blame.
    let interrupted = ev.windows.is_empty() && ev.aborted.is_some();
    if turns < ev.needs.steady_turns && !interrupted {
        case.findings.add("steady_state_not_met", format!("{turns} turns, {} wanted", ev.needs.steady_turns));
    }
}

/// What is wrong with an answer that reached its customer as a complete one.
fn not_whole(truth: Truth) -> &'static str {
    match truth {
        Truth::Whole(_) => "nothing is wrong",
        Truth::Nothing => "it ended well, with nothing in it",
        Truth::Part(_) => "it ended well, with only a part of what the provider wrote",
        Truth::Spliced => "it ended well, with pieces of two attempts in it",
        Truth::AlteredCall => "it ended well, with a tool call that no provider wrote so",
        Truth::Invented => "it ended well, with text that no provider has in its log",
    }
}

fn generator(case: &mut Case<'_>) {
    let late: Vec<f64> = case.ev.requests.iter().map(|r| r.started_ms - r.due_ms).collect();
    if let Some(p95) = percentile(&late, 0.95).filter(|p| *p > LATE_MS) {
        case.findings.add("generator_late", format!("95th percentile {p95:.0} ms, {} requests", late.len()));
    }
    let burst: Vec<f64> = late.into_iter().filter(|ms| *ms > LATEST_MS).collect();
    if let Some(latest) = burst.iter().copied().reduce(f64::max) {
        let text = format!("{} requests came more than {LATEST_MS:.0} ms late, the latest {latest:.0} ms", burst.len());
        case.findings.add("generator_late", text);
    }
}

/// The broken provider must have answered before, and through the path that is broken.
fn used_through_its_path(case: &mut Case<'_>) {
    let ev = case.ev;
    if ev.windows.is_empty() {
        return;
    }
    let first = ev.first_injection_ms();
    let in_steady = |r: &&ProviderRow| r.arrived_ms >= ev.steady_from_ms && r.arrived_ms < first;
    for name in &ev.broken {
        let received = ev.providers.iter().filter(in_steady).filter(|r| r.provider == *name).count();
        if received == 0 {
            case.findings.add("fault_not_seen", format!("{name} had no traffic before it was broken"));
            continue;
        }
        let path = ev.windows.iter().flat_map(|w| &w.faults).find(|f| f.provider.as_deref() == Some(name));
        let Some(path) = path.map(|f| f.path.as_str()) else { continue };
        let (Some(a), Some(b)) = (ev.counters_at_steady.get(path), ev.counters_after_steady.get(path)) else {
            continue;
        };
        if b.up_received == a.up_received {
            let text =
                format!("{name} received {received} requests before the cut, and not a byte went through {path}");
            case.findings.add("fault_bypassed", text);
        }
    }
}

fn server_side(case: &mut Case<'_>, w: &Window) {
    for fault in &w.faults {
        if !bit(case, w, fault) {
            let text = format!("{}: {} on {} was set, and nothing ran into it", w.name, fault.see, fault.path);
            case.findings.add("fault_not_seen", text);
        }
    }
}

/// True if the fault was felt at the fault server: by the drill's own call, by its counters, or by the provider whose
/// peers left in mid-answer.
fn bit(case: &Case<'_>, w: &Window, fault: &FaultSpan) -> bool {
    if fault.felt == Some(true) {
        return true;
    }
    let counted = match (&fault.at_injection, &fault.at_restore) {
        (Some(a), Some(b)) => {
            b.ended_by_toxic > a.ended_by_toxic || b.blackholed > a.blackholed || b.dial_failures > a.dial_failures
        }
        _ => false,
    };
    let left = fault.provider.as_deref().is_some_and(|name| {
        case.ev.providers.iter().any(|r| r.provider == name && r.cancelled && w.holds(r.ended_ms.unwrap_or(f64::NAN)))
    });
    counted || left
}

/// The broken provider was reached although its path was broken.
fn bypass(case: &mut Case<'_>, w: &Window) {
    let ev = case.ev;
    let own = |name: &str| w.faults.iter().find(|f| f.provider.as_deref() == Some(name));
    for row in ev.providers.iter().filter(|r| w.closed_at(r.arrived_ms)) {
        let Some(fault) = own(&row.provider) else { continue };
        let reached = if fault.cuts {
            let cut = fault.cut_events.unwrap_or(0) + EVENTS_BEYOND_CUT;
            // Through a cut path a long stream cannot be written whole, where events are counted.
            fault.cut_events.is_some()
                && row.stream
                && row.completed
                && row.events_sent > cut
                && row.ended_ms.is_some_and(|e| w.holds(e))
        } else {
            true
        };
        if reached {
            let who = row.conversation.as_deref().map_or("a probe".into(), |c| crate::units::printable(c, 40));
            let text =
                format!("{} received {who} at {:.2} s, around {}", row.provider, row.arrived_ms / 1e3, fault.path);
            case.findings.add("fault_bypassed", text);
        }
    }
}

/// A drill that cuts a provider off is about recovery, one that cuts answers inside about the streams that were cut. Where
/// that was not judged, whatever else was kept is no pass.
pub(super) fn purpose(case: &mut Case<'_>, cut: &CutStreams, recovery: &Recovery) {
    let ev = case.ev;
    if ev.windows.is_empty() || ev.aborted.is_some() {
        return;
    }
    if ev.windows.iter().any(Window::dead) && ev.declared.recovery_ms.is_none() {
        let text = format!(
            "objectives.recovery_ms is not declared: declare it on route {} of the policy, or as declare.recovery_ms in the drill",
            ev.declared.route
        );
        case.findings.add("promise_not_judged", text);
    }
    outages_that_met_nobody(case, recovery);
    // Where something has failed, that is said; where nothing has, a recovery that came with the restore is no pass.
    let brought = recovery.rounds.iter().filter(|r| r.after_restore == Some(true) && r.affected > 0 && !r.only_cut);
    if !case.findings.any(Weight::Failure) {
        for round in brought {
            case.findings.add("promise_not_judged", format!("{}: {}", round.name, super::AFTER_RESTORE));
        }
    }
    if !ev.windows.iter().any(Window::dead) && cut.n == 0 && !case.findings.has("sample_too_small") {
        case.findings.add("promise_not_judged", "no stream was cut, and the drill is about that".into());
    }
}

/// Each outage must have met a turn that started in it, or one of those that broke the same again: what was answered after it,
/// or in another one, says nothing about it.
fn outages_that_met_nobody(case: &mut Case<'_>, recovery: &Recovery) {
    let kind = |w: &Window| w.faults.iter().map(|f| (f.path.clone(), f.see.clone())).collect::<Vec<_>>();
    let rounds = || case.ev.windows.iter().zip(&recovery.rounds).filter(|(w, _)| w.dead());
    let mut looked_at = Vec::new();
    let mut missed = Vec::new();
    for (window, round) in rounds() {
        let this = kind(window);
        if looked_at.contains(&this) {
            continue;
        }
        if !rounds().any(|(w, r)| r.affected > 0 && kind(w) == this) {
            missed.push(format!(
                "{}: no turn that started in this outage met the broken provider ({} started)",
                round.name, round.turns
            ));
        }
        looked_at.push(this);
    }
    for text in missed {
        case.findings.add("promise_not_judged", text);
    }
}

/// Whether enough was seen, and whether the client side felt the fault.
pub(super) fn samples(case: &mut Case<'_>, cut: &CutStreams, recovery: &Recovery) {
    if case.ev.windows.is_empty() || case.ev.aborted.is_some() {
        return;
    }
    let needs = case.ev.needs;
    if recovery.turns() < needs.outage_turns {
        let text = format!("{} turns started in an outage, {} wanted", recovery.turns(), needs.outage_turns);
        case.findings.add("sample_too_small", text);
    }
    let inside = cut.at(CutPoint::InsideCall).n + cut.at(CutPoint::AfterCall).n;
    for (what, seen, wanted) in [
        ("cut before content", cut.at(CutPoint::BeforeContent).n, needs.cut_before_content),
        ("cut after content", cut.at(CutPoint::AfterContent).n, needs.cut_after_content),
        ("cut inside a tool call", inside, needs.cut_inside_call),
    ] {
        if seen < wanted {
            case.findings.add("sample_too_small", format!("{seen} streams {what}, {wanted} wanted"));
        }
    }
    // Each kind of cut on its own: what never happened was not survived either, whatever the sums above say.
    for (what, point) in [
        ("before content", CutPoint::BeforeContent),
        ("after content", CutPoint::AfterContent),
        ("inside a tool call", CutPoint::InsideCall),
        ("after a call's arguments", CutPoint::AfterCall),
    ] {
        let promised = case.ev.windows.iter().flat_map(|w| &w.faults).any(|f| f.promised == Some(point));
        if promised && cut.at(point).n == 0 {
            case.findings.add("sample_too_small", format!("no stream was cut {what}, and the drill is about that"));
        }
    }
    let felt = recovery.rounds.iter().any(|r| hit(&r.rto)) || cut.n > 0;
    if !felt {
        case.findings.add("fault_not_seen", "the primary answered every turn that started after the injection".into());
    }
}
