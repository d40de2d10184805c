//! A recovery that nobody needed is no recovery: the outage must have met a customer.

use super::hand::seen;
use super::tests::{codes, good, text_of};
use super::*;
use crate::drill::evidence::{Evidence, Window};
use crate::drill::verdict::Row;
use crate::measure::End;

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
    // The primary was back after the restore, from 5,009 to 16,010 and the 100 ms to its useful text: that is said, and in a run that says nothing it is no verdict.
    assert_eq!(
        (row(&j, "failback_ms").measured.as_str(), row(&j, "failback_ms").verdict),
        ("11101 ms", Kept::NotJudged)
    );
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

/// In a run that says nothing no row reads as a verdict, of none of the four promises; what was seen is printed as that.
#[test]
fn a_run_that_says_nothing_judges_no_row() {
    let spoil: [fn(&mut Evidence); 4] = [
        |ev| ev.stand_ins_healthy = false,
        |ev| ev.dropped_rows = 3,
        |ev| ev.needs.outage_turns = 1000,
        |ev| ev.windows[0].faults[0].felt = Some(false),
    ];
    for change in spoil {
        let mut ev = good();
        change(&mut ev);
        // Nobody was answered in a part of the outage.
        for r in ev.requests.iter_mut().filter(|r| (6000.0..8000.0).contains(&r.started_ms)) {
            (r.end, r.done_marker, r.finish_reason, r.text) = (End::HttpError, false, None, String::new());
            (r.committed_ms, r.useful_text_ms) = (None, None);
        }
        let j = judge(&ev);
        let code = j.findings[0].code.clone();
        assert_eq!(j.verdict, Verdict::Invalid, "{:?}", codes(&j));
        let rows: Vec<&Row> = j.promises.iter().flat_map(|p| &p.rows).collect();
        assert!(rows.iter().all(|r| r.verdict == Kept::NotJudged), "{rows:?}");
        let said = format!("the run says nothing ({code})");
        assert!(rows.iter().filter(|r| r.why == said).count() > 8, "{rows:?}");
        assert!(j.promises.iter().all(|p| p.verdict == Kept::NotJudged));
        let weights: Vec<&str> = j.findings.iter().map(|f| f.weight.word(j.verdict)).collect();
        assert!(!weights.contains(&"failure"), "{weights:?}");
    }
}

/// Nobody stood in for the whole of the outage, and the restore brought the primary back: that is no recovery of the gateway,
/// however short the outage was beside what is declared.
#[test]
fn a_recovery_that_the_restore_brought_is_not_the_outage_s() {
    let mut ev = good();
    // The outage is from 5 s to 6 s; its four turns (5.01 to 5.76 s) are not answered, the first useful one is at 6.01 s.
    (ev.windows[0].restoring_ms, ev.windows[0].restored_ms) = (6000.0, 6005.0);
    ev.needs.outage_turns = 4;
    for i in 20..80 {
        let started = ev.requests[i].started_ms;
        let by = if started < 6000.0 { "local-b" } else { "local-a" };
        let mut r = crate::drill::judge::hand::request(&format!("c{i}"), 1, started);
        r.text = text_of(by, &format!("c{i}"));
        ev.providers[i] = seen(by, &r);
        if started < 6000.0 {
            (r.end, r.done_marker, r.finish_reason, r.text) = (End::HttpError, false, None, String::new());
            (r.committed_ms, r.useful_text_ms) = (None, None);
        }
        ev.requests[i] = r;
    }
    let j = judge(&ev);
    assert!(codes(&j).contains(&"no_failover") && j.verdict == Verdict::Fail, "{:?}", codes(&j));
    assert_eq!(j.recovery.rounds[0].after_restore, Some(true));
    let (total, _) = j.rto_ms();
    // From 5,010 to 6,010 and the time to its useful text.
    let useful = ev.requests[24].useful_text_ms.unwrap();
    assert_eq!((ev.requests[24].started_ms, total), (6010.0, Some(useful - 5010.0)));
    let rto = row(&j, "rto_ms");
    assert!(rto.measured.ends_with("only after the restore") && rto.verdict == Kept::NotJudged, "{rto:?}");
    let line = crate::drill::report::rto_line(&j);
    assert!(line.starts_with("recovery after the cut: none in the outage (useful answers came back only"), "{line}");
    assert!(line.contains("; after the restore: the primary useful again after "), "{line}");
    let good = crate::drill::report::rto_line(&judge(&good()));
    assert!(good.starts_with("recovery after the cut: ") && !good.contains("only after"), "{good}");
}
