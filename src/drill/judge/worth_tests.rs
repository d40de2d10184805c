//! What a run must have seen, and kept, to be worth a verdict.

use super::hand::seen;
use super::tests::{codes, effect, good, text_of};
use super::*;
use crate::drill::evidence::CutPoint;
use crate::measure::End;

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
    ev.spoils.add(Spoilt::by(Reason::LabLost, "the lab ended: signal 9"));
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["lab_lost"], Verdict::Invalid));
    assert!(j.promises.iter().flat_map(|p| &p.rows).all(|r| r.verdict == Kept::NotJudged));
}

#[test]
fn what_was_not_judged_stands_beside_the_verdict_with_its_reason() {
    use crate::drill::report::{closing, not_judged};
    let mut ev = good();
    ev.foreign = true;
    ev.declared.queue_max = None;
    let j = judge(&ev);
    let (judged, skipped) = not_judged(&ev, &j);
    let rows = j.promises.iter().map(|p| p.rows.len()).sum::<usize>();
    assert_eq!(judged + skipped.len(), rows);
    let says = |what: &str| skipped.iter().any(|s| s.contains(what));
    assert!(says("waiting at one moment: nothing is declared"), "{skipped:#?}");
    assert!(says("as the gateway saw: a foreign gateway does not say"), "{skipped:#?}");
    assert_eq!(closing(&ev, &j), format!("PASS ({judged} judged, {} not judged)", skipped.len()));
    ev.spoils.add(Spoilt::by(Reason::LabLost, "gone"));
    assert_eq!(closing(&ev, &judge(&ev)), "INVALID");
}

fn row<'a>(j: &'a Judgement, name: &str) -> &'a crate::drill::verdict::Row {
    j.promises.iter().flat_map(|p| &p.rows).find(|r| r.name == name).unwrap()
}

/// Four dials of 40 requests met the broken path, and their markers reached nobody: taking all 40 would let 36 that waited
/// for nothing speak for the four.
#[test]
fn of_a_foreign_gateway_only_requests_are_judged_that_are_known_to_have_met_the_broken_provider() {
    let mut ev = good();
    ev.foreign = true;
    ev.windows[0].faults[0].own_dials = 1;
    let (before, after) = (ev.windows[0].faults[0].at_injection.clone(), ev.windows[0].faults[0].at_restore.clone());
    ev.windows[0].faults[0].at_injection = before.map(|c| crate::fault::api::Counters { blackholed: 3, ..c });
    ev.windows[0].faults[0].at_restore = after.map(|c| crate::fault::api::Counters { blackholed: 8, ..c });
    let j = judge(&ev);
    let within = row(&j, "within_bound");
    assert_eq!((within.verdict, within.measured.as_str(), within.n), (Kept::NotJudged, "not known", 0));
    assert!(within.why.starts_with("4 dials ran into the broken path"), "{}", within.why);

    // No dial but the drill's own: whoever met the broken provider had reached it before. One was under way there for
    // 240 ms, silent, and answered by the stand-in 1,000 ms after its start, of which 80 are the stand-in's own.
    ev.windows[0].faults[0].at_restore =
        ev.windows[0].faults[0].at_injection.clone().map(|c| crate::fault::api::Counters { blackholed: 4, ..c });
    let r = &mut ev.requests[19];
    assert_eq!(r.started_ms, 4760.0);
    (r.useful_text_ms, r.committed_ms, r.ended_ms) = (Some(5760.0), Some(5760.0), 6100.0);
    r.text = text_of("local-b", "c19");
    ev.providers[19] =
        ProviderRow { first_token_ms: None, ended_ms: None, completed: false, ..ev.providers[19].clone() };
    ev.providers.push(ProviderRow {
        arrived_ms: 5670.0,
        first_token_ms: Some(5750.0),
        ended_ms: Some(6090.0),
        ..seen("local-b", &ev.requests[19])
    });
    let j = judge(&ev);
    let bound = &j.recovery.bound;
    // 5,760 - 4,760 - 1,000 (first token) - 80.
    assert_eq!((bound.n, bound.within, bound.worst_excess_ms), (1, 1, Some(-80.0)));
    assert_eq!(row(&j, "within_bound").verdict, Kept::Pass);

    // The limits are another policy's: nothing can be laid beside them.
    ev.policy_of = crate::drill::evidence::PolicyOf::Lab;
    let j = judge(&ev);
    assert_eq!(row(&j, "within_bound").verdict, Kept::NotJudged);
    assert!(row(&j, "within_bound").why.contains("--policy"));
    assert_eq!(row(&j, "attempts_per_request_max").verdict, Kept::NotJudged);
    ev.declared.max_attempts = 1;
    assert!(!codes(&judge(&ev)).contains(&"attempts_exceeded"));
    ev.policy_of = crate::drill::evidence::PolicyOf::Gateway;
    assert!(codes(&judge(&ev)).contains(&"attempts_exceeded"));
}

/// A refused connection is not even counted.
#[test]
fn who_met_a_refusal_is_not_known_from_outside() {
    let mut ev = good();
    ev.windows[0].faults[0].see = "refused, open connections closed".into();
    let j = judge(&ev);
    assert_eq!((row(&j, "within_bound").verdict, j.verdict), (Kept::NotJudged, Verdict::Pass));
}

#[test]
fn stores_that_a_foreign_gateway_never_uses_are_not_held_for_it() {
    use crate::drill::evidence::{DependencyFacts, FaultSpan};
    let mut ev = good();
    ev.windows[0].faults.push(FaultSpan {
        path: "region-1.policy_store".into(),
        region: "region-1".into(),
        role: "policy_store".into(),
        felt: Some(true),
        ..FaultSpan::default()
    });
    ev.dependencies.push(DependencyFacts {
        region: "region-1".into(),
        role: "policy_store".into(),
        refreshed: 10,
        failed: 10,
        oldest_copy_ms: Some(11_000.0),
    });
    assert_eq!(row(&judge(&ev), "dependencies_cut").verdict, Kept::Pass);
    ev.foreign = true;
    let j = judge(&ev);
    assert_eq!(row(&j, "dependencies_cut").verdict, Kept::NotJudged);
    let (_, skipped) = crate::drill::report::not_judged(&ev, &j);
    assert!(skipped.iter().any(|s| s.contains("last good copies: these are the lab's stores")), "{skipped:#?}");
}

/// The drill is there for recovery. Nothing was promised about it, so that nothing can have been kept.
#[test]
fn an_outage_whose_recovery_was_not_declared_is_no_pass() {
    let mut ev = good();
    ev.declared.recovery_ms = None;
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Invalid, vec!["promise_not_judged"]));
    assert!(j.findings[0].examples[0].starts_with("objectives.recovery_ms is not declared"), "{:?}", j.findings);
    // A promise that was broken is still broken.
    ev.requests[30].text.truncate(20);
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
}

/// The steady state was judged at 4 s, by the 16 requests that had ended then (one each 250 ms, from 10 ms on, for 200 ms);
/// what the drill itself cut off when it ended is in no count.
#[test]
fn the_table_of_the_steady_state_and_its_finding_count_the_same() {
    let mut ev = good();
    ev.windows.clear();
    ev.requests.retain(|r| r.started_ms < 5000.0);
    for r in &mut ev.requests[3..20] {
        (r.end, r.done_marker, r.finish_reason) = (End::Cut, false, None);
    }
    let ended = ev.requests.iter().filter(|r| r.ended_ms < 4000.0).count();
    ev.steady_judged_ms = Some(4000.0);
    let steady = |j: &Judgement| (j.phases["steady"].requests, j.phases["steady"].failed, j.phases.len());
    let j = judge(&ev);
    assert_eq!((j.findings[0].code.as_str(), j.findings[0].n), ("steady_state_not_met", ended - 3));
    assert_eq!(steady(&j), (ended, ended - 3, 1));
    (ev.not_well, ev.not_well_cases) = (j.findings[0].examples.clone(), j.findings[0].n);
    let j = judge(&ev);
    assert_eq!((j.findings[0].n, steady(&j)), (ended - 3, (ended, ended - 3, 1)));
}

/// A gateway that refuses whatever demands a schema: there were such requests, and that is said.
#[test]
fn cases_that_were_refused_have_come_up() {
    let mut ev = good();
    for i in 0..4 {
        let r = &mut ev.requests[i];
        (r.kind, r.end, r.done_marker, r.finish_reason) = ("json".into(), End::HttpError, false, None);
        (r.status, r.error_code, r.text) = (Some(400), Some("unsupported_response_format".into()), String::new());
        (r.useful_text_ms, r.committed_ms) = (None, None);
    }
    let j = judge(&ev);
    assert_eq!((j.verdict, j.findings[0].code.as_str()), (Verdict::Invalid, "steady_state_not_met"));
    let said = crate::drill::report::not_judged_by_reason(&ev, &j).join("\n");
    let why = "4 such requests came up, and none had an answer to be judged (4 times: HTTP error 400 (unsupported_response_format))";
    assert!(said.contains(&format!("{why}: answers valid against their JSON schema")), "{said}");
}

#[test]
fn where_nothing_was_broken_the_cases_are_counted_and_no_row_passes() {
    let mut ev = good();
    ev.windows.clear();
    ev.requests.retain(|r| r.started_ms < 5000.0);
    ev.not_well = vec!["one".into(), "two".into(), "three".into()];
    ev.not_well_cases = 34;
    let j = judge(&ev);
    let f = &j.findings[0];
    assert_eq!((f.code.as_str(), f.n, f.examples.len()), ("steady_state_not_met", 34, 3));
    assert!(j.promises.iter().flat_map(|p| &p.rows).all(|r| r.verdict == Kept::NotJudged), "{:#?}", j.promises);
    // Not one action in the ticket system: none was done twice, and none was kept from being done twice.
    assert_eq!(
        (row(&j, "duplicate_effects").n, row(&judge(&good()), "duplicate_effects").verdict),
        (0, Kept::NotJudged)
    );
}

#[test]
fn in_a_narrow_terminal_each_row_is_one_line_and_cut_streams_are_joined_with_what_is_not_whole() {
    use crate::drill::report::{cut_table, lines, promise_lines, whole_line};
    let mut ev = good();
    ev.windows[0].faults[0].cuts = true;
    ev.windows[0].faults[0].cut_events = Some(4);
    let r = &mut ev.requests[30];
    r.text = "amber birch cedar".into();
    (r.end, r.error_events, r.done_marker, r.finish_reason) = (End::ErrorEvent, 1, false, None);
    let p = &mut ev.providers[30];
    (p.provider, p.text) = ("local-a".into(), text_of("local-a", "c30"));
    (p.completed, p.cancelled, p.events_sent) = (false, true, 6);
    let j = judge(&ev);
    let rows = promise_lines(&j);
    assert_eq!(rows.len(), 4 + j.promises.iter().map(|p| p.rows.len()).sum::<usize>());
    assert!(rows.contains(&"  requests waiting at one moment: 4 (≤ 16), n 80: pass".into()), "{rows:#?}");
    assert!(rows.contains(&"  dials into the broken region, as the gateway saw: not known, n 0: not judged".into()));
    let cuts = lines(&cut_table(&j).unwrap());
    let after = "after content: streams 1, answered whole by another 0, ended by one error event 1, otherwise 0";
    assert_eq!(cuts[1], after);
    let line = whole_line(&j).unwrap();
    assert!(line.starts_with("not whole 1: of these 1 by a cut (after content 1), ended by one error event"), "{line}");
    assert!(line.ends_with("no other request failed"), "{line}");
    assert_eq!(whole_line(&judge(&good())), None);
}

#[test]
fn harm_stays_harm_in_a_run_whose_faults_were_lifted() {
    let mut ev = good();
    ev.spoils.add(Spoilt::by(Reason::FaultLifted, "seen at 7.31 s"));
    (ev.requests[30].end, ev.requests[30].done_marker) = (End::Cut, false);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["fault_lifted"], Verdict::Invalid));
    assert!(j.promises.iter().flat_map(|p| &p.rows).all(|r| r.verdict == Kept::NotJudged));
    (ev.requests[30].end, ev.requests[30].done_marker) = (End::Complete, true);
    ev.requests[30].text.truncate(20);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["truncated_as_success", "fault_lifted"], Verdict::Fail));
}

/// Observed harm is FAIL even where the run is otherwise INVALID; but only what the lab's records prove, or the client alone.
#[test]
fn harm_that_was_proven_before_the_lab_was_lost_stays_harm() {
    let mut ev = good();
    ev.spoils.add(Spoilt::by(Reason::LabLost, "the lab ended: signal 9"));
    // Request 30 starts at 7,510 ms and ends at 7,910: half an answer that says it is whole.
    ev.requests[30].text.truncate(20);
    assert_eq!(judge(&ev).verdict, Verdict::Invalid);
    ev.lab_seen_ms = Some(7_900.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["lab_lost"], Verdict::Invalid));
    assert!(j.findings[0].examples[0].contains("up to 7.90 s"), "{:?}", j.findings);
    ev.lab_seen_ms = Some(7_920.0);
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["truncated_as_success", "lab_lost"], Verdict::Fail));
    // What came after its end is not the gateway's doing, unless the client saw both ends itself.
    let mut ev = good();
    ev.spoils.add(Spoilt::by(Reason::LabLost, "gone"));
    ev.requests[30].done_marker = true;
    ev.requests[30].end = End::Cut;
    assert_eq!(judge(&ev).verdict, Verdict::Invalid);
    ev.requests[30].end = End::ErrorEvent;
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["forged_end", "lab_lost"], Verdict::Fail));
    // The row of what was proven is red, with the one case that was; no other row is judged.
    let (red, others): (Vec<_>, Vec<_>) = j.promises.iter().flat_map(|p| &p.rows).partition(|r| r.name == "honest_end");
    assert_eq!((red[0].verdict, red[0].measured.as_str()), (Kept::Fail, "1 case of forged_end proven"));
    assert!(others.iter().all(|r| r.verdict == Kept::NotJudged));
}

/// docs/policy.md: an objective that is absent is not judged. It is not held to zero.
#[test]
fn what_nobody_promised_about_handoffs_and_context_is_not_judged() {
    let mut ev = good();
    ev.requests[30].turn = 4;
    ev.providers[30].turn = 2;
    ev.requests[31].gateway_outcome = Some("handoff".into());
    let found = |ev: &Evidence| {
        let j = judge(ev);
        let has = |code: &str| j.findings.iter().any(|f| f.code == code);
        (
            has("context_lost"),
            has("handoff_rate"),
            row(&j, "context_loss_turns").clone(),
            row(&j, "forced_handoff_rate").clone(),
        )
    };
    let (context, handoff, lost, forced) = found(&ev);
    assert!(context && handoff && lost.verdict == Kept::Fail && forced.verdict == Kept::Fail);
    (ev.declared.capacity_handoff_rate, ev.declared.context_loss_turns) = (None, None);
    let (context, handoff, lost, forced) = found(&ev);
    assert!(!context && !handoff);
    // One of 80 turns: it is measured all the same.
    assert_eq!((lost.verdict, lost.declared.as_str(), lost.measured.as_str()), (Kept::NotJudged, "not declared", "2"));
    assert_eq!(
        (forced.verdict, forced.declared.as_str(), forced.measured.as_str()),
        (Kept::NotJudged, "not declared", "1.2 %")
    );
}

/// Each row that was not judged is named once, under its reason, and in no table beside it.
#[test]
fn a_row_that_was_not_judged_is_named_once() {
    use crate::drill::report::{judged_alone, not_judged, not_judged_by_reason, promise_lines};
    let mut ev = good();
    ev.windows.clear();
    let j = judge(&ev);
    let (_, skipped) = not_judged(&ev, &j);
    let grouped = not_judged_by_reason(&ev, &j);
    assert!(grouped.len() < skipped.len() && skipped.len() > 8, "{grouped:#?}");
    let whole = format!("{}\n{}", promise_lines(&judged_alone(&j)).join("\n"), grouped.join("\n"));
    for row in j.promises.iter().flat_map(|p| &p.rows) {
        assert_eq!(whole.matches(&row.what).count(), 1, "{}: {whole}", row.what);
    }
}

/// The gateway of this run did well what it was asked while the faults were there; the rest it did on paths that were well.
#[test]
fn a_drill_whose_lease_ran_out_accuses_nobody() {
    use crate::drill::evidence::Aborted;
    let mut ev = good();
    // The broken provider was reached at 9 s, the lease having lifted the fault: as if around the path.
    ev.providers.push(ProviderRow { arrived_ms: 9000.0, ..seen("local-a", &ev.requests[36]) });
    assert!(codes(&judge(&ev)).contains(&"fault_bypassed"));
    ev.spoils.add(Spoilt::by(Reason::LeaseLost, "the lease ran out"));
    ev.aborted = Some(Aborted { by: "lease_lost".into(), text: "the lease ran out".into() });
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["lease_lost"], Verdict::Invalid));
    assert!(j.promises.iter().all(|p| p.verdict == Kept::NotJudged));
    // What reached a customer as a whole answer and is none stays harm.
    ev.requests[30].text.truncate(20);
    assert_eq!(judge(&ev).verdict, Verdict::Fail);
}

#[test]
fn a_failure_while_the_surroundings_stood_still_is_nobodys_and_what_went_well_went_well() {
    let mut ev = good();
    // The lab was not seen from 9 s to 9.9 s; 20 ms into that a customer lost an answer.
    ev.stalls.seen(Reason::LabLost, 9_000.0, 9_900.0);
    assert_eq!(judge(&ev).verdict, Verdict::Pass);
    let r = &mut ev.requests[36];
    (r.end, r.done_marker, r.finish_reason, r.text) = (End::HttpError, false, None, String::new());
    (r.useful_text_ms, r.committed_ms, r.ended_ms) = (None, None, 9_030.0);
    let calm = Evidence { stalls: crate::drill::stalls::Stalls::default(), ..ev.clone() };
    assert_eq!(judge(&calm).verdict, Verdict::Fail);
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Invalid, vec!["lab_lost"]));
    ev.effects = vec![effect(1, "k"), effect(2, "k")];
    assert_eq!(judge(&ev).verdict, Verdict::Fail, "harm is harm");
}
