//! Figures that several places show must agree, and each thing that is counted has one name.

use super::hand::request;
use super::tests::{good, text_of};
use super::*;
use crate::drill::evidence::*;
use crate::drill::report::{again_line, why};
use crate::drill::report::{phase_table, whole_line};
use crate::measure::End;

fn entry_breaks(ev: &mut Evidence) {
    let entry = FaultSpan {
        path: "entry.region-1".into(),
        region: "region-1".into(),
        role: "entry".into(),
        felt: Some(true),
        ..FaultSpan::default()
    };
    ev.windows[0].faults.push(entry);
}

fn row<'a>(j: &'a Judgement, name: &str) -> &'a crate::drill::verdict::Row {
    j.promises.iter().flat_map(|p| &p.rows).find(|r| r.name == name).unwrap()
}

/// The request of 4.76 s is open when the injection begins at 4.999 s: what becomes of it says nothing about the steady state.
#[test]
fn what_was_open_at_the_cut_is_no_part_of_the_steady_state() {
    let mut ev = good();
    entry_breaks(&mut ev);
    let open = ev.requests.iter().position(|r| r.started_ms < 4999.0 && r.ended_ms >= 4999.0).unwrap();
    let r = &mut ev.requests[open];
    r.text.truncate(20);
    (r.end, r.done_marker, r.finish_reason, r.ended_ms) = (End::Cut, false, None, 5005.0);
    let j = judge(&ev);
    assert_eq!((j.phases["steady"].failed, j.phases[UNDER_WAY].failed), (0, 1));
    let of = |phase: &str| j.phases.get(phase).map_or(0, |p| p.requests);
    assert_eq!(of("steady") + of(UNDER_WAY), 20);
    assert!(phase_table(&j).rows.iter().any(|r| r[0] == "under way at the cut" && r[2] == "1"));
    // Its gateway was cut off with it, so that no error event could come.
    assert_eq!(j.with_their_gateway, 1);
    let line = whole_line(&j).unwrap();
    assert!(line.starts_with("not whole 1: of these 1 ended without a word because"), "{line}");
    assert!(line.ends_with("no other request failed"), "{line}");
}

/// One request to an entry that is gone, and the same again at the other one: two rows, one answer.
#[test]
fn what_was_sent_again_is_counted_once_and_said() {
    let mut ev = good();
    entry_breaks(&mut ev);
    let (before, rows) = (judge(&ev), ev.requests.len());
    let i = ev.requests.iter().position(|r| r.started_ms > 6000.0).unwrap();
    let mut first = request(&ev.requests[i].conversation, ev.requests[i].turn, ev.requests[i].started_ms - 5.0);
    (first.end, first.last_of_turn, first.text) = (End::ConnectFailed, false, String::new());
    (first.committed_ms, first.useful_text_ms, first.finish_reason) = (None, None, None);
    first.ended_ms = first.started_ms + 2.0;
    ev.requests[i].step = 1;
    ev.requests[i].entry = "region-2".into();
    ev.requests.insert(i, first);
    let j = judge(&ev);
    let sum = |j: &Judgement| j.phases.values().map(|p| p.requests).sum::<usize>();
    assert_eq!((ev.requests.len(), sum(&j), row(&j, "queue_max").n), (rows + 1, sum(&before), rows));
    assert_eq!((j.sent_again, before.sent_again), (1, 0));
    assert!(again_line(&j).unwrap().starts_with("sent again 1: "));
    assert_eq!(again_line(&before), None);
}

/// Its client waited it out in vain and took it elsewhere: whoever was asked first has failed it all the same.
#[test]
fn what_was_waited_out_in_vain_is_no_less_lost_for_being_sent_again() {
    let mut ev = good();
    let before = judge(&ev);
    assert_eq!((before.verdict, before.sent_again), (Verdict::Pass, 0));
    let cut = ev.windows[0].injecting_ms;
    let i = ev.requests.iter().position(|r| r.started_ms > cut).unwrap();
    let mut first = request(&ev.requests[i].conversation, ev.requests[i].turn, cut - 100.0);
    (first.end, first.last_of_turn, first.text) = (End::GaveUp, false, String::new());
    (first.committed_ms, first.useful_text_ms, first.finish_reason) = (None, None, None);
    first.ended_ms = first.started_ms + ev.declared.deadline_ms + PATIENCE_MS;
    ev.requests[i].step = 1;
    ev.requests[i].entry = "region-2".into();
    (ev.requests[i].started_ms, ev.requests[i].due_ms) = (first.ended_ms, first.ended_ms);
    ev.requests[i].ended_ms = first.ended_ms + 400.0;
    ev.requests.insert(i, first);
    let j = judge(&ev);
    assert_eq!(j.sent_again, 1);
    assert!(j.findings.iter().any(|f| f.code == "lost_in_flight" && f.weight == Weight::Failure), "{:?}", j.findings);
}

/// It hangs at the broken provider until the client goes: later than the deadline, and no failover.
#[test]
fn a_gateway_that_asks_nobody_else_is_told_to_fail_over() {
    let mut ev = good();
    let late = ev.declared.deadline_ms + PATIENCE_MS;
    let hanging: Vec<usize> =
        (0..ev.requests.len()).filter(|i| ev.window_at(ev.requests[*i].started_ms).is_some()).collect();
    for i in &hanging {
        let r = &mut ev.requests[*i];
        (r.end, r.done_marker, r.finish_reason, r.text) = (End::GaveUp, false, None, String::new());
        (r.committed_ms, r.useful_text_ms, r.ended_ms) = (None, None, r.started_ms + late);
    }
    let next = |ev: &Evidence| why(ev, &judge(ev)).into_iter().find(|l| l.starts_with("next: ")).unwrap();
    assert!(!next(&ev).contains("let the gateway fail over"), "the stand-in has answered: {}", next(&ev));
    let before = ev.clone();
    ev.providers.retain(|p| before.broken.contains(&p.provider) || before.window_at(p.arrived_ms).is_none());
    let told = next(&ev);
    assert!(told.contains("let the gateway fail over") && told.contains("anybody but local-a"), "{told}");
}

#[test]
fn a_gateway_that_is_gone_is_named_with_the_next_step() {
    let mut ev = good();
    let from = ev.requests.iter().position(|r| r.started_ms > 9000.0).unwrap();
    for r in &mut ev.requests[from..] {
        (r.end, r.done_marker, r.finish_reason, r.text) = (End::ConnectFailed, false, None, String::new());
        (r.committed_ms, r.useful_text_ms, r.ended_ms) = (None, None, r.started_ms + 1.0);
    }
    let since = ev.requests[from].started_ms / 1e3;
    ev.providers.truncate(from);
    let j = judge(&ev);
    let f = j.findings.iter().find(|f| f.code == "no_failover").unwrap();
    let said = format!("the gateway itself (region-1) accepts no connections since {since:.2} s");
    assert!(f.examples.iter().all(|e| e.contains(&said)), "{f:?}");
    let lines = why(&ev, &j);
    assert!(lines.iter().any(|l| l.starts_with("next: start your gateway again")), "{lines:?}");
    // One that takes connections again was not gone.
    let last = ev.requests.len() - 1;
    ev.requests[last].end = End::HttpError;
    let j = judge(&ev);
    assert!(j.findings.iter().flat_map(|f| &f.examples).all(|e| !e.contains("accepts no connections")));
}

/// Two things, two names: turns that the primary did not answer, and requests that met the broken provider first.
#[test]
fn a_request_that_met_the_broken_provider_first_counts_although_nobody_answered_it() {
    let mut ev = good();
    let attempt = |target: &str, class: &str| GatewayAttempt {
        target: target.into(),
        class: class.into(),
        reason: "connect_timeout".into(),
        ..GatewayAttempt::default()
    };
    let mut view = GatewayView { name: "region-1".into(), ..GatewayView::default() };
    for (i, r) in ev.requests.iter_mut().enumerate().filter(|(_, r)| (6000.0..8000.0).contains(&r.started_ms)) {
        r.gateway_request_id = Some(format!("r{i}"));
        (r.end, r.done_marker, r.finish_reason, r.text) = (End::HttpError, false, None, String::new());
        (r.committed_ms, r.useful_text_ms) = (None, None);
        let record = GatewayRecord { attempts: vec![attempt("local-a", "provider")], ..GatewayRecord::default() };
        view.decisions.push(GatewayDecision { request: format!("r{i}"), at_ms: r.ended_ms, record });
    }
    let met = view.decisions.len();
    ev.gateways = Some(vec![view]);
    let j = judge(&ev);
    let within = row(&j, "within_bound");
    assert_eq!((j.recovery.bound.met_first, within.n), (met, 0));
    assert!(met > 3 && within.why.starts_with(&format!("{met} met the broken provider first")), "{within:?}");
    let round = &j.recovery.rounds[0];
    assert_eq!((round.turns_not_by_primary, round.affected), (40, 40));
}

/// What is judged is a part of what met the broken provider first, and both are counted by one rule: a request whose second
/// dial went there is in neither, and where nothing is judged nothing is counted as if it were.
#[test]
fn n_of_the_bound_is_a_part_of_those_that_met_the_broken_provider_first() {
    let mut ev = good();
    let attempt = |target: &str, class: &str| GatewayAttempt {
        target: target.into(),
        class: class.into(),
        reason: "first_token_timeout".into(),
        ..GatewayAttempt::default()
    };
    let mut view = GatewayView { name: "region-1".into(), ..GatewayView::default() };
    for (n, i) in (20..24).enumerate() {
        ev.requests[i].gateway_request_id = Some(format!("r{i}"));
        let dials = match n {
            // One of them by another way: the stand-in failed first.
            3 => vec![attempt("local-b", "provider"), attempt("local-a", "provider"), attempt("local-b", "success")],
            _ => vec![attempt("local-a", "provider"), attempt("local-b", "success")],
        };
        let record = GatewayRecord { attempts: dials, ..GatewayRecord::default() };
        view.decisions.push(GatewayDecision { request: format!("r{i}"), at_ms: ev.requests[i].ended_ms, record });
    }
    ev.gateways = Some(vec![view]);
    let j = judge(&ev);
    let bound = &j.recovery.bound;
    assert_eq!((bound.met_first, bound.n, row(&j, "within_bound").n), (3, 3, 3));
    assert!(row(&j, "within_bound").measured.contains("3 met it first, 3 of them judged"), "{bound:?}");
    // A foreign gateway's: not judged, so nothing was counted for a verdict.
    ev.gateways = None;
    ev.policy_of = PolicyOf::Lab;
    let j = judge(&ev);
    let bound = &j.recovery.bound;
    assert!(bound.unknown.is_some());
    assert_eq!((bound.n, bound.within, bound.worst_excess_ms, row(&j, "within_bound").n), (0, 0, None, 0));
}

/// A drill that cuts answers inside keeps the path up: that the provider went on being asked is no figure of independence.
#[test]
fn where_nothing_was_cut_off_whole_nothing_is_counted_as_independent() {
    let mut ev = good();
    ev.windows[0].faults[0].cuts = true;
    let p = &mut ev.providers[30];
    (p.provider, p.text) = ("local-a".into(), text_of("local-a", "c30"));
    let j = judge(&ev);
    let (requests, bytes) = (row(&j, "requests_to_broken_region"), row(&j, "bytes_from_broken_region"));
    assert_eq!((requests.measured.as_str(), bytes.measured.as_str()), ("not counted", "not counted"));
}
