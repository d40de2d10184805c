//! What a run must have seen, and kept, to be worth a verdict.

use super::hand::seen;
use super::tests::{codes, good, text_of};
use super::*;
use crate::drill::evidence::CutPoint;

/// Three kinds of cuts happened, the fourth that the drill speaks of did not: nobody knows what would have become of it.
#[test]
fn each_kind_of_cut_that_is_promised_must_have_happened() {
    let mut ev = good();
    ev.windows[0].faults[0].cuts = true;
    ev.windows[0].faults[0].cut_events = Some(1);
    ev.windows[0].faults[0].promised = Some(CutPoint::BeforeContent);
    assert_eq!(codes(&judge(&ev)), vec!["sample_too_small"]);
    let of = ev.requests[30].clone();
    ev.providers.push(ProviderRow {
        text: text_of("local-a", &of.conversation),
        arrived_ms: of.started_ms + 1.0,
        completed: false,
        cancelled: true,
        events_sent: 2,
        ..seen("local-a", &of)
    });
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec![], Verdict::Pass));
    ev.windows[0].faults[0].promised = Some(CutPoint::AfterCall);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["sample_too_small"], Verdict::Invalid));
    assert!(j.findings[0].examples[0].contains("after a call's arguments"), "{:?}", j.findings);
}

#[test]
fn without_its_lab_a_run_blames_nobody_whatever_the_rows_say() {
    let mut ev = good();
    ev.requests[30].text = "nobody wrote this".into();
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
    ev.lab_lost = Some("the lab ended: signal 9".into());
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["lab_lost"], Verdict::Invalid));
    assert!(j.promises.iter().flat_map(|p| &p.rows).all(|r| r.verdict == Kept::NotJudged));
}

#[test]
fn what_was_not_judged_stands_beside_the_verdict_with_its_reason() {
    use crate::drill::report::{closing, not_judged};
    let mut ev = good();
    ev.gateways = None;
    ev.declared.queue_max = None;
    let j = judge(&ev);
    let (judged, skipped) = not_judged(&ev, &j);
    let rows = j.promises.iter().map(|p| p.rows.len()).sum::<usize>();
    assert_eq!(judged + skipped.len(), rows);
    let says = |what: &str| skipped.iter().any(|s| s.contains(what));
    assert!(says("waiting at one moment: nothing is declared"), "{skipped:#?}");
    assert!(says("as the gateway saw: a foreign gateway does not say"), "{skipped:#?}");
    assert_eq!(closing(&ev, &j), format!("PASS ({judged} judged, {} not judged)", skipped.len()));
    ev.lab_lost = Some("gone".into());
    assert_eq!(closing(&ev, &judge(&ev)), "INVALID");
}
