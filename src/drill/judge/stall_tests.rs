//! What stood still around the gateway for less than a second, and the limits that it ran out on.

use super::tests::{codes, effect, good};
use super::*;
use crate::drill::evidence::{GatewayAttempt, GatewayDecision, GatewayRecord, GatewayView};
use crate::measure::End;

/// The gateway's own account of [`good`]: the first three requests of the outage waited for the silence limit of 1,000 ms.
fn accounted() -> Evidence {
    let mut ev = good();
    let mut view = GatewayView { name: "region-1".into(), ..GatewayView::default() };
    for (i, r) in ev.requests.iter_mut().enumerate() {
        let id = format!("r{i}");
        r.gateway_request_id = Some(id.clone());
        let waited = ev.windows[0].holds(r.started_ms) && r.started_ms < 5700.0;
        let failed = GatewayAttempt {
            target: "local-a".into(),
            reason: "first_token_timeout".into(),
            class: "provider".into(),
            dialled_ms: 0.0,
            ended_ms: 1000.0,
        };
        let answered = GatewayAttempt {
            target: "local-b".into(),
            class: "success".into(),
            dialled_ms: if waited { 1000.0 } else { 0.0 },
            ..GatewayAttempt::default()
        };
        let mut record = GatewayRecord { outcome: "answered".into(), ..GatewayRecord::default() };
        record.attempts = if waited { vec![failed, answered] } else { vec![answered] };
        // 100 ms to its first text, as the client has it.
        record.timings.first_token_ms = 100.0;
        view.decisions.push(GatewayDecision { request: id, at_ms: r.ended_ms, record });
    }
    ev.gateways = Some(vec![view]);
    ev
}

/// The three requests that met the broken provider had their text so much later, all for the same reason.
fn late_by(ev: &mut Evidence, ms: f64) {
    for r in ev.requests.iter_mut().filter(|r| (5000.0..5700.0).contains(&r.started_ms)) {
        for at in [&mut r.useful_text_ms, &mut r.committed_ms] {
            *at = at.map(|v| v + ms);
        }
        r.ended_ms += ms;
    }
}

/// And the gateway says so, too.
fn gateway_late_by(ev: &mut Evidence, ms: f64) {
    for decision in ev.gateways.iter_mut().flatten().flat_map(|g| &mut g.decisions) {
        if decision.record.attempts.len() == 2 {
            decision.record.timings.first_token_ms += ms;
        }
    }
}

#[test]
fn the_account_by_hand_is_a_pass_and_a_slow_gateway_fails() {
    let mut ev = accounted();
    let j = judge(&ev);
    assert_eq!((codes(&j), j.recovery.bound.n, j.recovery.bound.within), (vec![], 3, 3));
    late_by(&mut ev, 300.0);
    gateway_late_by(&mut ev, 300.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["slow_failover"], Verdict::Fail));
}

/// 300 ms late, while somebody stood still for 350 ms under each of the three: less than any limit of the gateway.
#[test]
fn a_limit_that_was_missed_by_less_than_somebody_stood_still_is_nobodys() {
    for reason in [Reason::GeneratorLate, Reason::LabLost, Reason::FaultServerLost] {
        let mut ev = accounted();
        late_by(&mut ev, 300.0);
        gateway_late_by(&mut ev, 300.0);
        // From 5,600 to 5,950: the first is under way until 6,410, the third begins at 5,510.
        ev.stalls.seen(reason, 5600.0, 5950.0);
        let j = judge(&ev);
        assert_eq!((codes(&j), j.verdict), (vec![reason.code()], Verdict::Invalid));
        assert!(j.findings[0].examples[0].contains("up to 350 ms, until 5.95 s"), "{:?}", j.findings);
        // Missed by more than that, it is the gateway's.
        late_by(&mut ev, 300.0);
        gateway_late_by(&mut ev, 300.0);
        assert_eq!(codes(&judge(&ev)), vec!["slow_failover"]);
        // So it is where the pause was at another time.
        let mut ev = accounted();
        late_by(&mut ev, 300.0);
        gateway_late_by(&mut ev, 300.0);
        ev.stalls.seen(reason, 9000.0, 9350.0);
        assert_eq!(judge(&ev).verdict, Verdict::Fail);
    }
}

/// The case of a busy machine: by the gateway's own record committed in time, read 750 ms later.
#[test]
fn an_answer_that_was_committed_in_time_and_read_late_is_nobodys() {
    let mut ev = accounted();
    late_by(&mut ev, 750.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["generator_late"], Verdict::Invalid));
    // Whose fault it may be, and what the run would have failed by.
    let told = &j.findings[0].examples[0];
    assert!(told.contains("the latest by 750 ms; excused by it: slow_failover (0 of 3 within the bound"), "{told}");
}

fn refuse(r: &mut RequestRow) {
    (r.end, r.done_marker, r.finish_reason, r.text) = (End::HttpError, false, None, String::new());
    (r.committed_ms, r.useful_text_ms, r.status) = (None, None, Some(503));
}

/// The lab stood still for 900 ms, longer than the first-token limit of 600 ms: stand-ins ran out on it too, and breakers opened.
#[test]
fn a_pause_in_which_a_limit_runs_out_excuses_what_failed_and_no_harm() {
    let mut ev = accounted();
    ev.declared.first_token_limit_ms = 600.0;
    refuse(&mut ev.requests[22]);
    refuse(&mut ev.requests[40]);
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
    ev.stalls.seen(Reason::LabLost, 5200.0, 6100.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["lab_lost"], Verdict::Invalid));
    ev.effects = vec![effect(1, "k"), effect(2, "k")];
    assert_eq!(judge(&ev).verdict, Verdict::Fail, "harm is harm");
    let mut well = accounted();
    well.stalls.seen(Reason::LabLost, 5200.0, 6100.0);
    assert_eq!(judge(&well).verdict, Verdict::Pass, "what went well went well");
}

/// A short pause excuses whom it met: one of two. The other one failed long after it.
#[test]
fn a_short_pause_excuses_nobody_whom_it_did_not_meet() {
    let mut ev = accounted();
    refuse(&mut ev.requests[22]);
    ev.stalls.seen(Reason::LabLost, 5550.0, 5800.0);
    assert_eq!(codes(&judge(&ev)), vec!["lab_lost"]);
    refuse(&mut ev.requests[40]);
    let j = judge(&ev);
    assert!(codes(&j).contains(&"no_failover") && j.verdict == Verdict::Fail, "{:?}", codes(&j));
}

/// 900 ms, in which limits of 600 ms run out. What was over before it, what came long after it, and words that nobody wrote are no
/// doing of it.
#[test]
fn a_long_pause_excuses_nothing_that_it_cannot_explain() {
    let failed = |i: usize| {
        let mut ev = accounted();
        ev.declared.first_token_limit_ms = 600.0;
        refuse(&mut ev.requests[i]);
        ev
    };
    let with_pause = |mut ev: Evidence, from_ms: f64| {
        ev.stalls.seen(Reason::LabLost, from_ms, from_ms + 900.0);
        judge(&ev)
    };
    let at = failed(22).requests[22].clone();
    assert_eq!(judge(&failed(22)).verdict, Verdict::Fail);
    assert_eq!(with_pause(failed(22), at.started_ms - 100.0).verdict, Verdict::Invalid, "under way in it");
    assert_eq!(with_pause(failed(22), at.ended_ms + 50.0).verdict, Verdict::Fail, "over before it");
    let mut ev = accounted();
    ev.declared.first_token_limit_ms = 600.0;
    let answered =
        ev.requests.iter_mut().rfind(|r| (5_000.0..6_500.0).contains(&r.started_ms) && !r.text.is_empty()).unwrap();
    let from_ms = answered.started_ms;
    answered.text += " and words that no provider wrote";
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
    let j = with_pause(ev, from_ms);
    assert!(j.verdict == Verdict::Fail && codes(&j).contains(&"invented_text"), "{:?}", codes(&j));
}

/// The lab was late by 45 ms at each of its looks in this time, the runner by 20 ms at looks in between.
fn busy(ev: &mut Evidence, from_ms: u32, until_ms: u32) {
    for at in (from_ms..until_ms).step_by(150).map(f64::from) {
        ev.stalls.late(Reason::LabLost, at, at + 45.0);
        ev.stalls.late(Reason::GeneratorLate, at + 60.0, at + 80.0);
    }
}

/// 300 ms late, on a machine where 65 of each 150 ms were somebody's lag: 480 ms in the 1,100 of a request that waits for its limit.
#[test]
fn on_a_busy_machine_lags_add_up_to_a_limit_that_nobody_missed() {
    let late = || {
        let mut ev = accounted();
        late_by(&mut ev, 300.0);
        gateway_late_by(&mut ev, 300.0);
        ev
    };
    let mut ev = late();
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
    busy(&mut ev, 5000, 8000);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["machine_busy"], Verdict::Invalid));
    ev.effects = vec![effect(1, "k"), effect(2, "k")];
    assert_eq!(judge(&ev).verdict, Verdict::Fail, "harm is harm");
    let mut well = accounted();
    busy(&mut well, 5000, 8000);
    assert_eq!(judge(&well).verdict, Verdict::Pass, "what went well went well");
    // Busy for two seconds before, which nothing of the outage met: over more than 6 s ago.
    let mut ev = late();
    for r in 0..3 {
        ev.stalls.late(Reason::LabLost, 5400.0 + 100.0 * f64::from(r), 5430.0 + 100.0 * f64::from(r));
    }
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["slow_failover"], Verdict::Fail), "90 ms explain no 300");
}

/// Starved for a second and a half: what failed then, or for 6 s after it, may come of it. What failed earlier does not.
#[test]
fn a_gateway_that_fails_without_a_busy_machine_too_is_not_excused_by_it() {
    let mut ev = accounted();
    refuse(&mut ev.requests[40]);
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
    let at = ev.requests[40].started_ms as u32;
    busy(&mut ev, at - 500, at + 1000);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["machine_busy"], Verdict::Invalid));
    refuse(&mut ev.requests[22]);
    let j = judge(&ev);
    assert!(codes(&j).contains(&"no_failover") && j.verdict == Verdict::Fail, "{:?}", codes(&j));
}

/// In a short drill one pause makes 5 % of the load late. Requests that failed before it are the gateway's all the same, and only
/// these: the times of such a run say nothing.
#[test]
fn a_load_that_came_late_for_a_while_excuses_no_failure_before_that() {
    let mut ev = accounted();
    late_by(&mut ev, 300.0);
    gateway_late_by(&mut ev, 300.0);
    let n = ev.requests.len();
    for r in &mut ev.requests[n - 5..] {
        r.due_ms -= 600.0;
    }
    let at = ev.requests[n - 5].started_ms;
    ev.stalls.seen(Reason::GeneratorLate, at - 700.0, at - 10.0);
    let j = judge(&ev);
    assert_eq!((codes(&j)[0], j.verdict), ("generator_late", Verdict::Invalid), "slow alone says nothing here");
    let mut met = ev.clone();
    refuse(&mut met.requests[n - 5]);
    assert_eq!(judge(&met).verdict, Verdict::Invalid, "failed in it");
    refuse(&mut ev.requests[22]);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["no_failover", "generator_late"], Verdict::Fail));
    assert!(j.promises.iter().flat_map(|p| &p.rows).all(|r| r.verdict != Kept::Pass));
    // Where it came late by nobody's known pause nobody can tell what lay before it.
    ev.stalls = crate::drill::stalls::Stalls::default();
    assert_eq!(judge(&ev).verdict, Verdict::Invalid);
}
