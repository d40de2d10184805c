//! One good run, made by hand, and what each kind of misconduct makes of it.

use super::hand::{request, seen};
use super::*;
use crate::drill::evidence::*;
use crate::drill::verdict::Kept;
use crate::fault::api::Counters;
use crate::measure::{EffectRow, End};

pub(super) fn effect(ticket: u64, key: &str) -> EffectRow {
    EffectRow {
        ticket,
        business_key: key.into(),
        operation_id: None,
        call_id: format!("call-{ticket}"),
        tool: "create_ticket".into(),
        arguments: serde_json::json!({}),
        at_ms: 7000.0,
        repeated: false,
    }
}

pub(super) fn text_of(provider: &str, conversation: &str) -> String {
    match provider {
        "local-a" => format!("amber birch cedar says {conversation} about the parcel"),
        _ => format!("quartz raven silver writes {conversation} of the courier"),
    }
}

/// Steady 0..5 s on local-a; its path is cut at 5 s and restored at 15 s; local-a answers again from 16 s; load ends at
/// 20 s. One turn every 250 ms: 20 before, 40 in the outage, 20 after. In the outage the first three turns take the
/// silence limit (1,000 ms) before the stand-in answers, the others go to it at once.
pub(super) fn good() -> Evidence {
    let mut ev = Evidence {
        drill: "by-hand".into(),
        seed: 1,
        declared: Declared {
            route: "support-chat".into(),
            deadline_ms: 4000.0,
            connect_limit_ms: 300.0,
            first_token_limit_ms: 1000.0,
            recovery_ms: Some(4000.0),
            useful_text_p95_ms: Some(3000.0),
            queue_max: Some(16),
            capacity_handoff_rate: Some(0.0),
            context_loss_turns: Some(0),
            max_attempts: 3,
            breaker_failures: 3,
            ..Declared::default()
        },
        needs: Needs { steady_turns: 10, outage_turns: 20, ..Needs::default() },
        broken: vec!["local-a".into()],
        stand_ins: vec!["local-b".into()],
        stand_ins_healthy: true,
        load_until_ms: 20_000.0,
        ..Evidence::default()
    };
    let count = |up: u64, down: u64| Counters { up_received: up, down_sent: down, ..Counters::default() };
    ev.counters_at_steady.insert("region-1.local-a".into(), count(0, 0));
    ev.counters_after_steady.insert("region-1.local-a".into(), count(9000, 90_000));
    ev.windows.push(Window {
        name: "outage".into(),
        injecting_ms: 4999.0,
        injected_ms: 5000.0,
        restoring_ms: 15_000.0,
        restored_ms: 15_010.0,
        until_ms: 20_000.0,
        faults: vec![FaultSpan {
            path: "region-1.local-a".into(),
            region: "region-1".into(),
            role: "provider".into(),
            provider: Some("local-a".into()),
            see: "connect_timeout, existing connections silent".into(),
            at_injection: Some(count(9000, 90_000)),
            at_restore: Some(count(9400, 90_000)),
            felt: Some(true),
            ..FaultSpan::default()
        }],
    });
    for n in 0..80_u32 {
        let started = f64::from(n) * 250.0 + 10.0;
        let outage = (5000.0..15_000.0).contains(&started);
        let by = if outage || (15_000.0..16_000.0).contains(&started) { "local-b" } else { "local-a" };
        let conversation = format!("c{n}");
        let mut r = request(&conversation, 1, started);
        r.text = text_of(by, &conversation);
        let mut p = seen(by, &r);
        if outage && started < 5700.0 {
            // 1,000 ms of silence, then as always.
            for at in [&mut r.headers_ms, &mut r.useful_text_ms, &mut r.committed_ms] {
                *at = at.map(|v| v + 1000.0);
            }
            r.ended_ms += 1000.0;
            p = ProviderRow { turn: 1, ..seen(by, &RequestRow { started_ms: started + 1000.0, ..r.clone() }) };
        }
        ev.requests.push(r);
        ev.providers.push(p);
    }
    ev
}

pub(super) fn codes(j: &Judgement) -> Vec<&str> {
    j.findings.iter().map(|f| f.code.as_str()).collect()
}

fn row<'a>(j: &'a Judgement, name: &str) -> &'a crate::drill::verdict::Row {
    j.promises.iter().flat_map(|p| &p.rows).find(|r| r.name == name).unwrap()
}

/// Places of the requests that started in the outage.
fn outage(ev: &Evidence) -> Vec<usize> {
    (0..ev.requests.len()).filter(|i| ev.windows[0].holds(ev.requests[*i].started_ms)).collect()
}

#[test]
fn a_good_run_passes_with_the_figures_worked_out_by_hand() {
    let j = judge(&good());
    assert_eq!(codes(&j), Vec::<&str>::new());
    assert_eq!(j.verdict, Verdict::Pass);
    // First turn after the cut at 5,010 ms, its useful text at 5,010 + 1,000 + 100.
    assert_eq!(j.rto_ms().0, Some(1100.0));
    // Restored at 15,010; the first turn of the primary starts at 16,010 and has text at 16,110.
    assert_eq!(j.recovery.rounds[0].failback_ms, Some(1100.0));
    // The first three wait for a provider at 5,010..6,020, 5,260..6,270 and 5,510..6,520; at 5,760 a fourth comes for 10 ms.
    assert_eq!(j.queue_max, 4);
    assert_eq!((j.useful_text_ms.n, j.useful_text_ms.p50, j.useful_text_ms.p95), (40, Some(100.0), Some(1100.0)));
    assert_eq!(j.attempts_per_request_max, 1);
    assert_eq!(j.phases["outage"].answered_by["local-b"], 40);
    for promise in &j.promises {
        assert_eq!(promise.verdict, Kept::Pass, "{}", promise.name);
    }
}

#[test]
fn no_failover() {
    let mut ev = good();
    for i in outage(&ev) {
        let r = &mut ev.requests[i];
        r.end = End::HttpError;
        r.status = Some(502);
        (r.useful_text_ms, r.committed_ms, r.text) = (None, None, String::new());
        r.ended_ms = r.started_ms + 30.0;
    }
    ev.providers.retain(|p| p.provider == "local-a");
    let j = judge(&ev);
    assert_eq!(j.verdict, Verdict::Fail);
    assert!(codes(&j).contains(&"no_failover"), "{:?}", codes(&j));
    assert!(codes(&j).contains(&"recovery_exceeded") || j.rto_ms().0.is_some());
    assert_eq!(row(&j, "failed_before_commit").measured, "40");
    // The stand-in was not well itself: then the failure says nothing about failing over.
    ev.stand_ins_healthy = false;
    assert!(codes(&judge(&ev)).contains(&"stand_in_down"));
}

#[test]
fn truncated_as_success() {
    for (end, finish) in [(End::Complete, Some("stop")), (End::CleanWithoutFinish, None)] {
        let mut ev = good();
        let r = &mut ev.requests[30];
        r.text.truncate(20);
        r.end = end;
        r.finish_reason = finish.map(Into::into);
        let j = judge(&ev);
        assert_eq!((j.verdict, codes(&j)), (Verdict::Fail, vec!["truncated_as_success"]));
    }
}

#[test]
fn spliced_answer() {
    let mut ev = good();
    let r = ev.requests[30].clone();
    let mut first = seen("local-a", &r);
    first.text = text_of("local-a", "c30");
    first.completed = false;
    first.arrived_ms = r.started_ms + 1.0;
    ev.requests[30].text = format!("{}{}", &first.text[..14], text_of("local-b", "c30"));
    ev.providers.push(first);
    // Harm is FAIL even though the broken provider was reached, which makes the run invalid otherwise.
    let j = judge(&ev);
    assert_eq!(j.verdict, Verdict::Fail);
    assert_eq!(codes(&j), vec!["spliced_answer", "fault_bypassed"]);
}

#[test]
fn duplicate_effect_counts_by_business_key_not_by_call_id() {
    let mut ev = good();
    ev.effects = vec![effect(1, "c30/1/create_ticket/late"), effect(2, "c31/1/create_ticket/late")];
    assert_eq!(judge(&ev).verdict, Verdict::Pass);
    let mut repeated = effect(1, "c30/1/create_ticket/late");
    repeated.repeated = true;
    ev.effects.push(repeated);
    assert_eq!(judge(&ev).verdict, Verdict::Pass);
    ev.effects.push(effect(3, "c30/1/create_ticket/late"));
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j), j.duplicate_effects), (Verdict::Fail, vec!["duplicate_effect"], 1));
}

#[test]
fn hanging_past_the_deadline_is_one_finding_not_two() {
    let mut ev = good();
    for i in outage(&ev) {
        let r = &mut ev.requests[i];
        r.end = End::GaveUp;
        (r.useful_text_ms, r.committed_ms, r.status, r.text) = (None, None, None, String::new());
        r.ended_ms = r.started_ms + 5000.0;
    }
    let j = judge(&ev);
    assert_eq!(j.verdict, Verdict::Fail);
    assert!(codes(&j).contains(&"deadline_missed") && !codes(&j).contains(&"no_failover"), "{:?}", codes(&j));
    // Ended by an error, but later than the deadline: the deadline is what was missed.
    for i in outage(&ev) {
        ev.requests[i].end = End::HttpError;
    }
    let j = judge(&ev);
    assert!(codes(&j).contains(&"deadline_missed") && !codes(&j).contains(&"no_failover"), "{:?}", codes(&j));
}

#[test]
fn traffic_around_the_path_is_invalid_never_a_pass() {
    let mut ev = good();
    for i in outage(&ev) {
        ev.requests[i].text = text_of("local-a", &format!("c{i}"));
        ev.providers[i].text = ev.requests[i].text.clone();
        ev.providers[i].provider = "local-a".into();
    }
    let j = judge(&ev);
    assert_eq!(j.verdict, Verdict::Invalid);
    assert!(codes(&j).contains(&"fault_bypassed"));
    // Also when it is seen only by this: the provider had traffic before, and none of it went through the proxy.
    let mut ev = good();
    ev.counters_after_steady = ev.counters_at_steady.clone();
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Invalid, vec!["fault_bypassed"]));
}

#[test]
fn each_sabotage_turns_exactly_its_row_red() {
    for name in ["schema", "handoff", "context", "finish"] {
        let mut ev = good();
        for r in &mut ev.requests {
            r.checked = INVARIANT_NAMES.iter().map(|n| (*n).to_string()).collect();
        }
        for i in outage(&ev).into_iter().step_by(6) {
            ev.requests[i].violations = vec![name.into()];
        }
        let j = judge(&ev);
        assert_eq!(j.verdict, Verdict::Fail, "{name}");
        let red: Vec<&str> = j
            .promises
            .iter()
            .flat_map(|p| &p.rows)
            .filter(|r| r.verdict == Kept::Fail)
            .map(|r| r.name.as_str())
            .collect();
        assert_eq!(red, vec![name]);
        assert_eq!(j.findings.len(), 1, "{:?}", codes(&j));
    }
}

const INVARIANT_NAMES: [&str; 4] = ["schema", "handoff", "context", "finish"];

#[test]
fn an_unfelt_fault_a_small_sample_a_late_load_or_a_bad_start_say_nothing() {
    let verdict = |change: &dyn Fn(&mut Evidence)| {
        let mut ev = good();
        change(&mut ev);
        let j = judge(&ev);
        (j.verdict, j.findings.first().map(|f| f.code.clone()).unwrap_or_default())
    };
    assert_eq!(verdict(&|ev| ev.windows[0].faults[0].felt = Some(false)), (Verdict::Invalid, "fault_not_seen".into()));
    assert_eq!(verdict(&|ev| ev.needs.outage_turns = 41), (Verdict::Invalid, "sample_too_small".into()));
    assert_eq!(verdict(&|ev| ev.needs.cut_after_content = 1), (Verdict::Invalid, "sample_too_small".into()));
    assert_eq!(verdict(&|ev| ev.dropped_rows = 1), (Verdict::Invalid, "evidence_lost".into()));
    assert_eq!(
        verdict(&|ev| ev.requests.iter_mut().for_each(|r| r.due_ms -= 300.0)),
        (Verdict::Invalid, "generator_late".into())
    );
    // The runner stood still for 3 s: few requests of a long run, and all in one burst.
    assert_eq!(verdict(&|ev| ev.requests[30].due_ms -= 900.0).0, Verdict::Pass);
    assert_eq!(verdict(&|ev| ev.requests[30].due_ms -= 3000.0), (Verdict::Invalid, "generator_late".into()));
    assert_eq!(
        verdict(&|ev| {
            ev.requests[3].end = End::HttpError;
            ev.requests[3].committed_ms = None;
        }),
        (Verdict::Invalid, "steady_state_not_met".into())
    );
    assert_eq!(
        verdict(&|ev| ev.providers.retain(|p| p.provider == "local-b")).1,
        "steady_state_not_met",
        "text without a provider row: nobody wrote it"
    );
    // An answer that ended well is never the reason by that.
    let mut ev = good();
    ev.providers.retain(|p| p.provider == "local-b");
    let found = judge(&ev).findings;
    let steady = found.iter().find(|f| f.code == "steady_state_not_met").unwrap();
    let right = "with text that no provider has in its log; seen when the rounds had run";
    assert!(steady.examples.iter().all(|e| e.ends_with(right)), "{steady:?}");
}

#[test]
fn a_primary_that_does_not_come_back_fails() {
    let mut ev = good();
    for i in 0..ev.requests.len() {
        if ev.requests[i].started_ms > 15_000.0 {
            ev.requests[i].text = text_of("local-b", &format!("c{i}"));
            ev.providers[i].text = ev.requests[i].text.clone();
            ev.providers[i].provider = "local-b".into();
        }
    }
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Fail, vec!["failback_missed"]));
    assert_eq!(row(&j, "failback_ms").verdict, Kept::Fail);
}

#[test]
fn lost_context_is_turns_or_tool_results_that_the_next_provider_did_not_receive() {
    let mut ev = good();
    ev.requests[30].turn = 4;
    ev.providers[30].turn = 2;
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Fail, vec!["context_lost"]));
    assert_eq!(j.compatibility.context_loss_turns, 2);
    assert_eq!(row(&j, "context_loss_turns").verdict, Kept::Fail);
}

#[test]
fn an_earlier_answer_that_the_next_provider_did_not_receive_is_lost_context() {
    let mut ev = good();
    ev.requests[30].assistant_messages = 3;
    ev.providers[30].assistant_messages = None;
    assert_eq!(judge(&ev).verdict, Verdict::Pass, "a lab that does not count them says nothing");
    ev.providers[30].assistant_messages = Some(2);
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Fail, vec!["context_lost"]));
    assert_eq!(j.compatibility.context_loss_turns, 1);
    let said = format!("{:?}", j.findings[0]);
    assert!(said.contains("2 of 3 earlier answers"), "{said}");
}

#[test]
fn bytes_and_dials_of_the_broken_region() {
    let mut ev = good();
    ev.windows[0].faults[0].at_restore = Some(Counters { down_sent: 90_007, ..Counters::default() });
    let j = judge(&ev);
    assert_eq!((codes(&j), row(&j, "bytes_from_broken_region").measured.as_str()), (vec!["not_independent"], "7"));

    // The gateway dialled it four times before its breaker opened at 6,200 (the fourth was under way then) and once more.
    let mut ev = good();
    let attempt = |reason: &str, dialled: f64, ended: f64| GatewayAttempt {
        target: "local-a".into(),
        reason: reason.into(),
        class: "provider".into(),
        dialled_ms: dialled,
        ended_ms: ended,
    };
    let mut view = GatewayView { name: "region-1".into(), ..GatewayView::default() };
    for (n, (arrived, ended)) in
        [(5010.0, 1000.0), (5260.0, 900.0), (5510.0, 680.0), (5760.0, 600.0), (9010.0, 10.0)].into_iter().enumerate()
    {
        view.decisions.push(GatewayDecision {
            request: format!("r{n}"),
            at_ms: arrived + 1400.0,
            record: GatewayRecord {
                attempts: vec![attempt("first_token_timeout", 0.0, ended)],
                total_ms: 1400.0,
                ..GatewayRecord::default()
            },
        });
    }
    view.changes.push(GatewayChange {
        at_ms: 6200.0,
        target: "local-a".into(),
        state: "cooling".into(),
        reason: "consecutive_failures".into(),
    });
    ev.gateways = Some(vec![view]);
    let j = judge(&ev);
    // Five dials; three of the breaker and one under way explain four.
    assert_eq!(
        (j.independence.dials, j.independence.dials_under_way, j.independence.dials_while_open),
        (Some(5), 1, 1)
    );
    assert_eq!(codes(&j), vec!["excess_dials"]);
    ev.gateways.as_mut().unwrap()[0].decisions.pop();
    assert_eq!(codes(&judge(&ev)), Vec::<&str>::new());
}

#[test]
fn an_entry_that_dies_is_not_the_gateways_fault_when_the_client_moves_on() {
    let mut ev = good();
    ev.windows[0].faults.push(FaultSpan {
        path: "entry.region-1".into(),
        region: "region-1".into(),
        role: "entry".into(),
        see: "refused".into(),
        felt: Some(true),
        ..FaultSpan::default()
    });
    for i in outage(&ev) {
        let mut dead = ev.requests[i].clone();
        dead.end = End::ConnectFailed;
        (dead.useful_text_ms, dead.committed_ms, dead.text) = (None, None, String::new());
        dead.ended_ms = dead.started_ms + 1.0;
        dead.last_of_turn = false;
        ev.requests[i].entry = "region-2".into();
        ev.requests[i].started_ms += 1.0;
        ev.requests[i].step = 1;
        ev.requests.push(dead);
    }
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Pass, vec![]));
}

#[test]
fn an_aborted_run_is_aborted_unless_harm_was_seen() {
    let mut ev = good();
    ev.aborted = Some(Aborted { by: "interrupted".into(), text: "Ctrl-C".into() });
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Aborted, vec![]));
    let rows = j.promises.iter().flat_map(|p| p.rows.iter().map(|r| r.verdict).chain([p.verdict]));
    assert!(rows.clone().count() > 4 && rows.into_iter().all(|v| v == Kept::NotJudged), "half a run keeps no promise");
    // What would be a failure of a whole run is none of half a one; harm is harm.
    ev.windows[0].restored_ms = f64::INFINITY;
    for request in &mut ev.requests {
        request.useful_text_ms = request.useful_text_ms.map(|ms| ms + 60_000.0);
    }
    assert_eq!(codes(&judge(&ev)), Vec::<&str>::new());
    ev.effects = vec![effect(1, "k"), effect(2, "k")];
    let j = judge(&ev);
    assert_eq!((j.verdict, codes(&j)), (Verdict::Fail, vec!["duplicate_effect"]));
}
