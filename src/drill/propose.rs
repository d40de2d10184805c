//! `[P]` After the verdict: changes to the policy that follow from what was measured, in this order: thresholds, intents to
//! take off a route, priorities and load model, slots. Nothing is proposed that was not measured.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::evidence::{Evidence, PolicyOf};
use super::judge::Judgement;
use super::verdict::Verdict;
use crate::measure::{End, Spread};

/// A limit is called loose when it is more than this many times the 95th percentile of what it limits.
const LOOSE: f64 = 4.0;
/// A proposed limit is this many times the 95th percentile: room for a bad day, far from a wait that customers notice.
const ROOM: f64 = 3.0;
/// Samples from which a 95th percentile is worth a proposal.
const ENOUGH: usize = 20;
/// Cases from which an intent is worth a proposal.
const ENOUGH_CASES: usize = 3;

/// Every drill runs on the lab's scripted providers: their times are not those of a real model.
const MEASURED_ON: &str = " (measured on the lab's scripted providers: not for a real model)";

/// Rounds up to whole 50 ms.
fn round_up(ms: f64) -> f64 {
    (ms / 50.0).ceil() * 50.0
}

/// The proposals, in their fixed order; empty if there is nothing to propose.
#[must_use]
pub fn propose(ev: &Evidence, j: &Judgement) -> Vec<String> {
    let mut out = Vec::new();
    // Changes to a policy that is not the gateway's would change nothing; a part of a run, or one that says nothing, measures
    // nothing.
    if ev.policy_of == PolicyOf::Lab || ev.ended_by_hand() || j.verdict == Verdict::Invalid {
        return out;
    }
    // Where the policy itself lets nobody stand in, no threshold mends it.
    if let Some(why) = super::report::forbidden(ev, j) {
        return vec![format!("failover: {why}")];
    }
    thresholds(ev, j, &mut out);
    intents(j, &mut out);
    load(ev, j, &mut out);
    slots(ev, &mut out);
    for line in &mut out {
        line.push_str(MEASURED_ON);
    }
    out
}

/// What stands where nothing is proposed.
#[must_use]
pub fn nothing(ev: &Evidence) -> &'static str {
    match ev.policy_of {
        _ if ev.ended_by_hand() => "none, because the run was ended before it had measured anything whole",
        _ if ev.windows.is_empty() => "none, because nothing was broken",
        PolicyOf::Gateway => "nothing to propose from what was measured",
        PolicyOf::Lab => "none, because the policy of this gateway is not known: give it with --policy",
    }
}

fn thresholds(ev: &Evidence, j: &Judgement, out: &mut Vec<String>) {
    let route = &ev.declared.route;
    let first_token: Vec<f64> = ev
        .providers
        .iter()
        .filter(|p| p.stream && p.completed && !p.probe)
        .filter_map(|p| p.first_token_ms.map(|at| at - p.arrived_ms))
        .collect();
    let spread = Spread::of(&first_token);
    if let Some(p95) = spread.p95.filter(|_| spread.n >= ENOUGH)
        && ev.declared.first_token_limit_ms > LOOSE * p95
    {
        out.push(format!(
            "thresholds: {route}: first_token_timeout_ms {:.0} could be {:.0}: first tokens took {p95:.0} ms (95th percentile, n {}), and every request that meets a silent provider waits the whole limit",
            ev.declared.first_token_limit_ms,
            round_up(ROOM * p95),
            spread.n
        ));
    }
    if let (Some(ms), Some(declared)) = (j.rto_ms().0, ev.declared.recovery_ms)
        && ms > declared
    {
        let part = j.rto_ms().1.map(|p| {
            let parts = [
                (p.detection_ms, "detection", "connect_timeout_ms and first_token_timeout_ms"),
                (p.decision_ms, "decision", "the breaker"),
                (p.dial_ms, "dial", "connect_timeout_ms"),
                (p.first_token_ms, "generation", "the stand-in itself"),
            ];
            let longest = parts.into_iter().fold(parts[0], |a, b| if b.0 > a.0 { b } else { a });
            format!("; the longest part was {} ({:.0} ms): look at {}", longest.1, longest.0, longest.2)
        });
        out.push(format!(
            "thresholds: {route}: recovery took {ms:.0} ms of {declared:.0} ms declared{}",
            part.unwrap_or_else(|| {
                "; its parts are not known: look at connect_timeout_ms, first_token_timeout_ms, and whether the stand-in is tried at all".into()
            })
        ));
    }
}

fn intents(j: &Judgement, out: &mut Vec<String>) {
    for (intent, (bad, all)) in &j.intents {
        if *all >= ENOUGH_CASES && *bad * 2 >= *all {
            out.push(format!("intents: take {intent} off the stand-in's tier, or mend it there: {bad} of its {all} answers there broke an invariant"));
        }
    }
}

fn load(ev: &Evidence, j: &Judgement, out: &mut Vec<String>) {
    if let (Some(p95), Some(declared)) = (j.useful_text_ms.p95, ev.declared.useful_text_p95_ms)
        && p95 > declared
    {
        out.push(format!(
            "priorities and load: useful text took {p95:.0} ms (95th percentile, n {}) in the outage, {declared:.0} ms declared: lower the load that the stand-in must take, or declare what it can keep",
            j.useful_text_ms.n
        ));
    }
}

fn slots(ev: &Evidence, out: &mut Vec<String>) {
    let Some(slots) = ev.declared.stand_in_slots else { return };
    let mut edges: Vec<(f64, i32)> = Vec::new();
    for p in ev.providers.iter().filter(|p| ev.stand_ins.contains(&p.provider)) {
        if let Some(ended) = p.ended_ms.filter(|e| *e > p.arrived_ms) {
            edges.extend([(p.arrived_ms, 1), (ended, -1)]);
        }
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut open, mut most) = (0_i32, 0_i32);
    for (_, change) in edges {
        open += change;
        most = most.max(open);
    }
    let failed = ev.requests.iter().filter(|r| r.end != End::Complete).count();
    if i64::from(most) > i64::from(slots) {
        out.push(format!(
            "slots: the stand-in held {most} requests at once and is declared with {slots} slots ({failed} requests failed in this run): raise its slots or lower the share that fails over"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::judge::judge;

    #[test]
    fn nothing_measured_is_nothing_proposed() {
        let ev = Evidence::default();
        assert_eq!(propose(&ev, &judge(&ev)), Vec::<String>::new());
    }

    /// 25 first tokens after 80 ms under a limit of 1,000 ms: 3 x 80 is 240, so 250 in whole fifties.
    #[test]
    fn a_proposal_says_what_it_was_measured_on_and_needs_the_gateways_own_policy() {
        use crate::measure::trace::tests::{request, seen};
        let mut ev = Evidence::default();
        ev.declared.first_token_limit_ms = 1000.0;
        for n in 0..25 {
            ev.requests.push(request(&format!("c{n}"), 1, f64::from(n) * 100.0));
            ev.providers.push(seen("local-b", &ev.requests[n as usize]));
        }
        // A run that broke something and is no INVALID one.
        ev.windows.push(crate::drill::evidence::Window::default());
        let judged = |ev: &Evidence| Judgement { verdict: Verdict::Pass, ..judge(ev) };
        let got = propose(&ev, &judged(&ev));
        assert_eq!(got.len(), 1);
        assert!(got[0].contains("first_token_timeout_ms 1000 could be 250"), "{got:?}");
        assert!(got[0].ends_with("(measured on the lab's scripted providers: not for a real model)"), "{got:?}");
        ev.policy_of = PolicyOf::Lab;
        assert_eq!(propose(&ev, &judged(&ev)), Vec::<String>::new());
        assert!(nothing(&ev).contains("--policy"));
    }
}
