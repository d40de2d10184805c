//! A recovery that nobody needed is no recovery: the outage must have met a customer.

use super::hand::seen;
use super::tests::{codes, good, text_of};
use super::*;
use crate::drill::evidence::Window;
use crate::drill::verdict::Row;

fn recovery(j: &Judgement) -> &Promise {
    j.promises.iter().find(|p| p.name == "recovery").unwrap()
}

fn row<'a>(j: &'a Judgement, name: &str) -> &'a Row {
    j.promises.iter().flat_map(|p| &p.rows).find(|r| r.name == name).unwrap()
}

/// Broken for one millisecond, between two customers: the next starts 10 ms later. Its gateway's breaker is open for a while,
/// so the stand-in answers and a time can be computed, but no customer ever met the fault.
#[test]
fn an_outage_that_no_turn_started_in_is_no_pass_whatever_was_answered_after_it() {
    let mut ev = good();
    ev.needs.outage_turns = 0;
    (ev.windows[0].restoring_ms, ev.windows[0].restored_ms) = (5001.0, 5009.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["promise_not_judged", "failback_missed"], Verdict::Invalid));
    let why = &j.findings[0].examples[0];
    assert_eq!(why, "outage: no turn that started in this outage met the broken provider (0 started)");
    assert_eq!((row(&j, "rto_ms").verdict, row(&j, "rto_ms").n), (Kept::NotJudged, 0));
    // The primary was back 11,001 ms after the restore, which is a fact whatever the rest is worth.
    assert_eq!(row(&j, "failback_ms").verdict, Kept::Fail);
    ev.declared.recovery_ms = Some(20_000.0);
    let j = judge(&ev);
    assert_eq!(row(&j, "failback_ms").verdict, Kept::Pass);
    // One row that was kept does not speak for the promise whose own row was not judged.
    assert_eq!(recovery(&j).verdict, Kept::NotJudged);
}

/// 40 turns started in the outage, and the primary answered each of them from what it still had open.
#[test]
fn turns_of_an_outage_that_the_primary_answered_were_not_recovered() {
    let mut ev = good();
    for i in 0..80 {
        let conversation = format!("c{i}");
        ev.requests[i].text = text_of("local-a", &conversation);
        ev.providers[i] = ProviderRow { arrived_ms: ev.providers[i].arrived_ms, ..seen("local-a", &ev.requests[i]) };
    }
    // The last one, long after the restore, by the stand-in.
    ev.requests[79].text = text_of("local-b", "c79");
    ev.providers[79] = seen("local-b", &ev.requests[79]);
    let j = judge(&ev);
    assert!(codes(&j).contains(&"promise_not_judged"), "{:?}", codes(&j));
    let why = &j.findings.iter().find(|f| f.code == "promise_not_judged").unwrap().examples[0];
    assert!(why.ends_with("(40 started)"), "{why}");
    assert_ne!(row(&j, "rto_ms").verdict, Kept::Pass);
}

/// Of two outages the second met nobody: what the first showed says nothing about it.
#[test]
fn each_outage_must_have_met_a_turn() {
    let mut ev = good();
    let first = ev.windows[0].clone();
    ev.windows[0].until_ms = 18_000.0;
    ev.windows.push(Window {
        name: "another".into(),
        faults: vec![crate::drill::evidence::FaultSpan { see: "silence".into(), ..first.faults[0].clone() }],
        injecting_ms: 18_000.0,
        injected_ms: 18_001.0,
        restoring_ms: 18_002.0,
        restored_ms: 18_003.0,
        ..first
    });
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["promise_not_judged"], Verdict::Invalid));
    assert!(j.findings[0].examples[0].starts_with("another: no turn"), "{:?}", j.findings);
    // The same once more is what `repeat` is for: one of them that met somebody is enough.
    ev.windows[1].faults[0].see = ev.windows[0].faults[0].see.clone();
    assert_eq!(judge(&ev).verdict, Verdict::Pass);
}

/// Streams were to be cut after 100,000 events, which none has: the primary was never away.
#[test]
fn a_primary_that_was_never_away_did_not_come_back() {
    let mut ev = good();
    ev.windows[0].faults[0].cuts = true;
    ev.windows[0].faults[0].cut_events = Some(100_000);
    for i in 20..80 {
        ev.requests[i] = hand::request(&format!("c{i}"), 1, i as f64 * 250.0 + 10.0);
        ev.requests[i].text = text_of("local-a", &format!("c{i}"));
        ev.providers[i] = seen("local-a", &ev.requests[i]);
    }
    let j = judge(&ev);
    assert_eq!(j.verdict, Verdict::Invalid);
    assert_eq!((row(&j, "failback_ms").verdict, row(&j, "failback_ms").n), (Kept::NotJudged, 0));
    assert_eq!(recovery(&j).verdict, Kept::NotJudged);
}

#[test]
fn a_kept_recovery_counts_the_turns_that_met_the_fault() {
    let j = judge(&good());
    // All 40 turns of the outage went to the stand-in.
    assert_eq!((j.recovery.rounds[0].turns, j.recovery.rounds[0].affected), (40, 40));
    assert_eq!((recovery(&j).verdict, row(&j, "rto_ms").verdict), (Kept::Pass, Kept::Pass));
}
