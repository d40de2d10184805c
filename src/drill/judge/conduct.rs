//! How each request was treated: failed before commit, past the deadline, cut and dressed up as whole, joined from two,
//! run twice.

use std::collections::BTreeMap;

use super::answers::{self, Truth};
use super::compatibility::{Checked, Compatibility};
use super::{AFTER_STEADY, Case, PhaseFacts};
use crate::drill::evidence::{Evidence, PolicyOf};
use crate::drill::verdict::{Finding, Weight};
use crate::measure::{End, RequestRow, Spread};
use crate::units::printable;

/// True if the client took this for a whole answer: a completing end, or a clean end of a stream.
fn taken_for_whole(r: &RequestRow) -> bool {
    matches!(r.end, End::Complete | End::CleanWithoutFinish)
}

/// What a failed request looked like, for people.
pub(super) fn end_text(r: &RequestRow) -> String {
    let end = match r.end {
        End::Complete => "complete",
        End::CleanWithoutFinish => "clean end without a finish",
        End::ErrorEvent => "error event",
        End::HttpError => "HTTP error",
        End::Cut => "connection cut",
        End::ConnectFailed => "no connection",
        End::GaveUp => "gave up waiting",
        End::Malformed => "unreadable",
    };
    let status = r.status.map(|s| format!(" {s}")).unwrap_or_default();
    let code = r.error_code.as_deref().map(|c| format!(" ({})", printable(c, 40))).unwrap_or_default();
    let own = match r.end {
        End::HttpError | End::ErrorEvent if r.error_code.is_some() && !r.end_detail.is_empty() => {
            format!(": \"{}\"", printable(&r.end_detail, 250))
        }
        _ => String::new(),
    };
    format!("{end}{status}{code}{own}")
}

/// What rows of the promises say of how requests were treated: of how many, and of these how many badly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conduct {
    /// Later than the deadline, of those that ended after the first injection began.
    pub(super) deadline: Checked,
    /// Of the late ones, begun in an outage and without any answer, where the share that was declared excuses them.
    pub(super) excused: usize,
    /// Not answered by anybody, of those that were under way at a cut with nothing delivered.
    pub(super) in_flight: Checked,
    /// Failed although the path was restored, of those that began then.
    pub(super) after_restore: Checked,
    /// Pieces of two attempts, or text or calls that no provider wrote, of all that received anything.
    one_answer: Checked,
    /// An end that is not that of the answer, of all that received anything.
    honest_end: Checked,
}

impl Conduct {
    /// Lays what no share excuses beside the invariants, so that the rate of violations counts it too.
    pub(super) fn lay_beside(&self, c: &mut Compatibility, duplicates: usize, effects: usize) {
        let twice = Checked { n: effects, broken: duplicates };
        for (name, checked) in
            [("one_answer", self.one_answer), ("honest_end", self.honest_end), ("duplicate_effects", twice)]
        {
            c.checked.insert(name.into(), checked);
        }
    }
}

/// Which of these an answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seemed {
    /// Nothing is wrong with what it says of itself.
    Itself,
    /// Not one provider's own words and calls.
    Another,
    /// Its end is not its own.
    Ended,
}

pub(super) fn check(case: &mut Case<'_>) -> Conduct {
    let ev = case.ev;
    let mut out = Conduct::default();
    let first = ev.first_injection_ms();
    // One that its client waited out and then took elsewhere was failed all the same, unless its entry is what was broken.
    let waited_out = |i: usize, r: &RequestRow| {
        let broken = ev.windows.iter().any(|w| w.breaks_entry(&r.entry) && w.injecting_ms <= r.ended_ms);
        case.trace.superseded[i] && r.end == End::GaveUp && !broken
    };
    let all = ev.requests.iter().enumerate();
    let rows: Vec<(usize, &RequestRow)> =
        all.filter(|(i, r)| !case.trace.superseded[*i] || waited_out(*i, r)).collect();
    let mut missed = Vec::new();
    for (i, r) in rows {
        let seemed = truth_of(case, i, r);
        let broken = broken_off(case, i, r);
        for text in &broken {
            case.findings.add("uncontrolled_break", text.clone());
        }
        if case.truths[i] != Truth::Nothing || seemed != Seemed::Itself || !broken.is_empty() {
            out.one_answer.count(seemed == Seemed::Another);
            out.honest_end.count(seemed == Seemed::Ended || !broken.is_empty());
        }
        if r.ended_ms < first {
            continue;
        }
        let window = ev.windows.iter().rev().find(|w| w.injecting_ms <= r.ended_ms);
        let entry_broken = window.is_some_and(|w| w.breaks_entry(&r.entry));
        // The limit is promised for each request: one that the client repeats elsewhere begins anew.
        let waited = r.committed_ms.unwrap_or(r.ended_ms) - r.started_ms;
        let own = waited - case.nobodys_ms(i);
        let late = match r.committed_ms {
            Some(_) => own > ev.declared.deadline_ms,
            None => own >= ev.declared.deadline_ms,
        };
        if !late && case.met_a_stall(i) {
            continue;
        }
        let name = case.name_of(i);
        let nothing = r.committed_ms.is_none() && !taken_for_whole(r);
        let cut = case.cut_of(i);
        if cut.is_some_and(|w| r.committed_ms.is_none_or(|at| at >= w.injecting_ms)) && !(entry_broken && nothing) {
            out.in_flight.count(nothing);
        }
        if cut.is_none() && ev.window_at(case.from_ms[i]).is_none() {
            out.after_restore.n += 1;
        }
        out.deadline.n += 1;
        // Nothing delivered at the cut and nothing after it is what `lost_in_flight` says, however long it took to say so.
        let lost = nothing && cut.is_some();
        if (late && !lost) || (r.end == End::GaveUp && !entry_broken && !lost) {
            let what = if r.committed_ms.is_some() && !late {
                format!(
                    "{name}: text had begun, then silence without an end until the client gave up after {:.0} ms{}",
                    r.ended_ms - r.started_ms,
                    limits_met(ev, r)
                )
            } else {
                let told = limits_met(ev, r);
                format!(
                    "{name}: {} after {:.0} ms, deadline {:.0} ms{told}",
                    end_text(r),
                    waited,
                    ev.declared.deadline_ms
                )
            };
            missed.push(what);
            out.excused += usize::from(nothing && ev.window_at(case.from_ms[i]).is_some());
        } else if nothing {
            let code = match (ev.window_at(case.from_ms[i]), cut) {
                (Some(_), _) if ev.stand_ins_healthy => "no_failover",
                (Some(_), _) => "stand_in_down",
                (None, Some(_)) if entry_broken => continue,
                (None, Some(_)) => "lost_in_flight",
                (None, None) => "failed_after_restore",
            };
            out.after_restore.broken += usize::from(code == "failed_after_restore");
            let gone = gone_since(ev, &r.entry).filter(|since| r.end == End::ConnectFailed && r.started_ms >= *since);
            let text = match gone {
                Some(since) => format!(
                    "{name}: the gateway itself ({}) accepts no connections since {:.2} s",
                    r.entry,
                    since / 1e3
                ),
                None => {
                    let limit = ev.declared.deadline_ms;
                    let late = if late { format!(", deadline {limit:.0} ms") } else { String::new() };
                    format!("{name}: {} after {:.0} ms{late}{}{}", end_text(r), waited, limits_met(ev, r), unheld(r))
                }
            };
            case.findings.add(code, text);
        }
    }
    out.deadline.broken = missed.len();
    // The route may declare a share that misses it; everything up to that is as declared.
    if !out.deadline.within(ev.declared.deadline_miss_rate) {
        out.excused = 0;
        for what in missed {
            case.findings.add("deadline_missed", what);
        }
    }
    out
}

/// How a stream that broke after its first text ended otherwise than by one error event.
fn broken_off(case: &Case<'_>, i: usize, r: &RequestRow) -> Vec<String> {
    let ev = case.ev;
    let mut out = Vec::new();
    if r.ended_ms < ev.first_injection_ms() {
        return out;
    }
    let window = ev.windows.iter().rev().find(|w| w.injecting_ms <= r.ended_ms);
    if r.committed_ms.is_some() && r.end == End::Cut && !window.is_some_and(|w| w.breaks_entry(&r.entry)) {
        out.push(format!("{}: the connection was cut after the text had begun", case.name_of(i)));
    }
    if r.error_events > 1 {
        out.push(format!("{}: {} error events", case.name_of(i), r.error_events));
    }
    out
}

/// Which limits its attempts ran into, where the gateway left an account of them.
pub(super) fn limits_met(ev: &Evidence, r: &RequestRow) -> String {
    let tried = ev.decision(r).map(|d| d.record.attempts.as_slice()).unwrap_or_default();
    let ran_out = tried.iter().filter(|a| a.reason.ends_with("_timeout"));
    ran_out
        .take(3)
        .map(|a| {
            let (target, reason) = (printable(&a.target, 60), printable(&a.reason, 40));
            format!("; {target} ended by {reason} after {:.0} ms", a.ended_ms - a.dialled_ms)
        })
        .collect()
}

/// Why nobody could stand in any more for a request that had nothing of use, if its gateway gave that away.
fn unheld(r: &RequestRow) -> &'static str {
    match r.tool_calls.is_empty() {
        true => "",
        false => {
            "; parts of a tool call had been relayed before the call was whole, so that no other provider could answer: a call is held until its end"
        }
    }
}

/// What the end and the text say together.
fn truth_of(case: &mut Case<'_>, i: usize, r: &RequestRow) -> Seemed {
    let name = case.name_of(i);
    let truth = case.truths[i];
    match truth {
        Truth::Spliced => {
            let text = printable(&answers::shown(r), 60);
            case.findings.add("spliced_answer", format!("{name}: \"{text}\" holds pieces of two attempts"));
            return Seemed::Another;
        }
        Truth::Invented => {
            let text = printable(&answers::shown(r), 60);
            case.findings.add("invented_text", format!("{name}: \"{text}\" was written by no provider"));
            return Seemed::Another;
        }
        Truth::AlteredCall => {
            case.findings.add("altered_call", name);
            return Seemed::Another;
        }
        Truth::Nothing | Truth::Part(_) | Truth::Whole(_) => {}
    }
    if r.end == End::CleanWithoutFinish {
        case.findings.add("truncated_as_success", format!("{name}: a clean end, without [DONE] and without a finish"));
        return Seemed::Ended;
    } else if r.end == End::Complete && !matches!(truth, Truth::Whole(_)) {
        let (got, whole) = (r.text.chars().count(), longest(case, i));
        let finish = r.finish_reason.as_deref().map_or_else(|| "[DONE]".into(), |f| printable(f, 20));
        case.findings.add(
            "truncated_as_success",
            format!("{name}: ended as whole ({finish}) after {got} of {whole} characters"),
        );
        return Seemed::Ended;
    } else if matches!(r.end, End::ErrorEvent | End::Cut) {
        let finish = r.finish_reason.is_some() && matches!(truth, Truth::Part(_));
        if r.done_marker {
            case.findings.add("forged_end", format!("{name}: [DONE] beside a broken answer"));
        }
        if finish {
            case.findings.add("forged_end", format!("{name}: a finish reason although the answer is not whole"));
        }
        if r.done_marker || finish {
            return Seemed::Ended;
        }
    }
    Seemed::Itself
}

/// Harm that is proven although the lab was lost: by what it had recorded up to a known moment, or by the client's own rows.
pub(super) fn harm_proven(ev: &Evidence) -> Vec<Finding> {
    let mut case = Case::new(ev);
    let seen_until = ev.lab_seen_ms.unwrap_or(f64::NEG_INFINITY);
    let rows: Vec<(usize, &RequestRow)> = case.counted().collect();
    for (i, r) in rows {
        if r.ended_ms < seen_until {
            truth_of(&mut case, i, r);
        } else if r.end == End::ErrorEvent && r.done_marker {
            // The client has seen both: no record of a provider could excuse it. A cut could be the lab's own end.
            let name = case.name_of(i);
            case.findings.add("forged_end", format!("{name}: [DONE] beside a broken answer"));
        }
    }
    duplicates(&mut case);
    case.findings.sorted().into_iter().filter(|f| f.weight == Weight::Harm).collect()
}

fn longest(case: &Case<'_>, i: usize) -> usize {
    case.trace.seen_by[i].iter().map(|p| case.ev.providers[*p].text.chars().count()).max().unwrap_or(0)
}

/// Effects beyond the first with one business key, that the ticket system did not recognise as repeated.
pub(super) fn duplicates(case: &mut Case<'_>) -> usize {
    let mut tickets: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for e in case.ev.effects.iter().filter(|e| !e.repeated) {
        tickets.entry(&e.business_key).or_default().push(e.ticket);
    }
    let mut extra = 0;
    for (key, numbers) in tickets.into_iter().filter(|(_, t)| t.len() > 1) {
        extra += numbers.len() - 1;
        let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        case.findings.add("duplicate_effect", format!("{}: tickets {list}", printable(key, 80)));
    }
    extra
}

/// Most requests that providers received for one client request.
pub(super) fn attempts(case: &mut Case<'_>) -> u32 {
    let mut most = 0;
    for i in 0..case.ev.requests.len() {
        let n = u32::try_from(case.trace.seen_by[i].len()).unwrap_or(u32::MAX);
        most = most.max(n);
        // Another policy's limit is not this gateway's.
        if n > case.ev.declared.max_attempts && case.ev.policy_of == PolicyOf::Gateway {
            let text = format!("{}: {n} attempts, {} allowed", case.name_of(i), case.ev.declared.max_attempts);
            case.findings.add("attempts_exceeded", text);
        }
    }
    most
}

/// Time to useful text of the requests that started in a phase, from when the customer began to wait.
pub(super) fn useful_text(case: &Case<'_>, phase: &str) -> Spread {
    let samples: Vec<f64> = case
        .counted()
        .filter(|(i, _)| case.phase_of_request(*i) == phase && case.from_ms[*i] >= case.ev.steady_from_ms)
        .filter_map(|(i, r)| r.useful_text_ms.map(|at| at - case.from_ms[i] - case.nobodys_ms(i)))
        .collect();
    Spread::of(&samples)
}

pub(super) fn phases(case: &Case<'_>) -> BTreeMap<String, PhaseFacts> {
    let mut out: BTreeMap<String, PhaseFacts> = BTreeMap::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, _) in case.counted().filter(|(_, r)| r.started_ms >= case.ev.steady_from_ms) {
        let phase = case.phase_of_request(i);
        if phase == AFTER_STEADY {
            continue;
        }
        let facts = out.entry(phase.into()).or_default();
        facts.requests += 1;
        *seen.entry(phase).or_default() += case.trace.seen_by[i].len();
        match case.author(i).filter(|_| case.is_whole(i)) {
            Some(p) => {
                *facts.answered_by.entry(p.provider.clone()).or_default() += 1;
                // Begun while it was broken, and answered by it all the same: it was asked once it was there again.
                let restored = case.ev.window_at(case.from_ms[i]).map(|w| w.restoring_ms);
                if case.is_broken(&p.provider) && restored.is_some_and(|at| p.arrived_ms >= at) {
                    *facts.answered_after_restore.entry(p.provider.clone()).or_default() += 1;
                }
            }
            None => facts.failed += 1,
        }
    }
    for (phase, facts) in &mut out {
        facts.useful_text_ms = useful_text(case, phase);
        let received = seen.get(phase.as_str()).copied().unwrap_or(0);
        facts.provider_requests_per_request = (facts.requests > 0).then(|| received as f64 / facts.requests as f64);
    }
    out
}

/// Requests that ended with no word from their gateway, because the path in front of it broke under them.
pub(super) fn with_their_gateway(case: &Case<'_>) -> usize {
    let broke_under = |r: &RequestRow| {
        case.ev
            .windows
            .iter()
            .any(|w| w.breaks_entry(&r.entry) && r.started_ms < w.injected_ms && r.ended_ms >= w.injecting_ms)
    };
    let silent = |r: &RequestRow| matches!(r.end, End::Cut | End::GaveUp | End::ConnectFailed) && r.error_events == 0;
    case.counted().filter(|(_, r)| r.started_ms >= case.ev.steady_from_ms && silent(r) && broke_under(r)).count()
}

/// Since when a gateway accepts no connections although nothing in front of it was broken, if it does not to the end.
pub(super) fn gone_since(ev: &Evidence, entry: &str) -> Option<f64> {
    let mut rows: Vec<&RequestRow> = ev.requests.iter().filter(|r| r.entry == entry).collect();
    if ev.windows.iter().any(|w| w.breaks_entry(entry)) {
        return None;
    }
    rows.sort_by(|a, b| a.started_ms.total_cmp(&b.started_ms));
    let last = rows.iter().rev().take_while(|r| r.end == End::ConnectFailed);
    // One that is refused may be an accident; a gateway that is gone refuses all of them.
    let refused: Vec<f64> = last.map(|r| r.started_ms).collect();
    refused.last().copied().filter(|_| refused.len() >= GONE_REQUESTS)
}

/// So many requests in a row, to the end of the run, that find nobody at an entry.
const GONE_REQUESTS: usize = 3;

/// By intent, over whole answers of the stand-ins: how many broke an invariant, and how many there were.
pub(super) fn intents(case: &Case<'_>) -> BTreeMap<String, (usize, usize)> {
    let mut out: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (i, r) in case.counted().filter(|(_, r)| r.end == End::Complete) {
        if case.author(i).is_none_or(|p| case.is_broken(&p.provider)) {
            continue;
        }
        let (bad, all) = out.entry(r.intent.clone()).or_default();
        *all += 1;
        *bad += usize::from(!r.violations.is_empty());
    }
    out
}
