//! The life of one request: dial, fail over, commit, end, break, leave.

use std::time::Duration;

use crate::policy::*;
use crate::router::classify::Class;
use crate::router::decision::{Note, Outcome};
use crate::router::testkit::*;
use crate::router::*;

/// Two targets in one tier.
fn two() -> Drive {
    Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], |_| {}).drive()
}

#[test]
fn a_stream_is_dialled_committed_delivered_and_done() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    assert_eq!(d.take().len(), 1, "one dial and nothing else");
    d.pass_ms(20);
    d.connected(a);
    d.pass_ms(100);
    d.committed(a);
    assert_eq!(d.take(), vec![Output::Deliver { request: r, attempt: a, attempts: 1, degraded: false }]);
    assert_eq!(d.engine.poll_timeout(), None, "no total limit on a stream that flows");
    d.pass_s(600);
    d.ended(a);
    let record = d.record(r).expect("done");
    assert_eq!(record.outcome, Outcome::Answered);
    assert_eq!(record.target.as_deref(), Some("a"));
    assert!((record.timings.dial_ms - 20.0).abs() < 1e-6, "{:?}", record.timings);
    assert!((record.timings.first_token_ms - 100.0).abs() < 1e-6);
    assert!(d.engine.is_idle());
}

#[test]
fn an_answer_that_is_not_streamed_is_delivered_at_its_end() {
    let mut d = two();
    let r = d.arrive(Facts { stream: false, ..facts() });
    let a = d.attempt(r);
    d.take();
    d.connected(a);
    d.ended(a);
    let out = d.take();
    assert!(matches!(out[0], Output::Deliver { .. }), "{out:?}");
    assert!(matches!(out[1], Output::Done { .. }));
    assert_eq!(out.len(), 2);
}

#[test]
fn a_silent_target_is_left_at_its_limit_and_cancelled() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_ms(1_999);
    assert_eq!(d.dialled(r), ["a"]);
    d.pass_ms(1);
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert!(d.out.contains(&Output::Cancel { attempt: a }));
    // The late answer of the first is not heard.
    d.take();
    d.committed(a);
    d.ended(a);
    assert_eq!(d.take(), vec![]);
}

#[test]
fn a_connect_that_hangs_is_left_at_the_connect_limit() {
    let mut d = two();
    let r = d.arrive(facts());
    d.pass_ms(1_000);
    assert_eq!(d.dialled(r), ["a", "b"]);
    let b = d.attempt(r);
    d.committed(b);
    d.ended(b);
    let record = d.record(r).expect("done");
    assert_eq!(record.attempts[0].reason, "connect_timeout");
    assert_eq!(record.attempts[1].why, "after a: connect_timeout");
    assert!((record.timings.detection_ms - 1_000.0).abs() < 1e-6);
    assert!(record.timings.decision_ms.abs() < 1e-6);
}

#[test]
fn the_first_sign_of_life_stops_the_first_token_clock_but_not_the_deadline() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.input(Input::FirstToken { attempt: a, sign: Sign::Life });
    d.pass_ms(6_999);
    assert_eq!(d.dialled(r), ["a"]);
    d.pass_ms(1);
    assert!(matches!(d.reply(r), Some(Reply::Handoff { .. })), "deadline less reserve: no time for another");
    assert_eq!(d.record(r).expect("done").attempts[0].reason, "deadline");
}

#[test]
fn a_tool_call_lifts_the_deadline() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.input(Input::FirstToken { attempt: a, sign: Sign::Life });
    d.input(Input::FirstToken { attempt: a, sign: Sign::ToolCall });
    d.pass_s(60);
    assert_eq!(d.reply(r), None);
    d.committed(a);
    assert!(d.out.iter().any(|o| matches!(o, Output::Deliver { .. })));
}

#[test]
fn after_delivery_a_break_is_controlled_and_nobody_else_is_dialled() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.committed(a);
    d.take();
    d.broke(a, Failure::Reset);
    let out = d.take();
    assert!(out.contains(&Output::Break { request: r, attempt: a, class: Class::Provider }), "{out:?}");
    assert!(!out.iter().any(|o| matches!(o, Output::Dial { .. } | Output::Reply { .. })));
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1, "and it counts");
}

#[test]
fn a_client_that_leaves_cancels_the_upstream_and_is_neutral() {
    for committed in [false, true] {
        let mut d = two();
        let r = d.arrive(facts());
        let a = d.attempt(r);
        if committed {
            d.committed(a);
        }
        d.take();
        d.input(Input::ClientGone { request: r, stalled: false });
        assert!(d.out.contains(&Output::Cancel { attempt: a }));
        assert_eq!(d.record(r).expect("done").outcome, Outcome::ClientGone);
        let counters = d.engine.snapshot(d.now).targets[0].counters;
        assert_eq!((counters.in_flight, counters.failed_counted, counters.failed_other), (0, 0, 0));
        assert!(d.engine.is_idle());
        d.broke(a, Failure::Reset);
        assert_eq!(d.take().len(), 2, "what comes later is not heard");
    }
}

#[test]
fn a_target_silent_past_its_limit_is_at_fault_even_if_the_client_leaves_in_that_moment() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.now = d.now + Duration::from_secs(2);
    d.input(Input::ClientGone { request: r, stalled: false });
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1);
    assert_eq!(d.dialled(r), ["a"], "no further attempt");
}

#[test]
fn evidence_that_came_in_time_beats_a_late_tick() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.now = d.now + Duration::from_millis(2_050);
    d.committed(a);
    assert!(d.out.iter().any(|o| matches!(o, Output::Deliver { .. })));
    assert_eq!(d.dialled(r), ["a"]);
}

#[test]
fn every_dial_counts_and_the_last_failure_hands_off() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .target("c", |_| {})
        .route("r", &[&["a", "b", "c"]], |r| r.max_attempts = 2)
        .drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(503));
    let b = d.attempt(r);
    d.broke(b, Failure::Refused);
    assert_eq!(d.dialled(r), ["a", "b"]);
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!(why, "a: status_503 (provider); b: refused (provider); c: attempts_used");
}

#[test]
fn the_parts_of_the_time_add_up_to_the_commit() {
    let mut d = Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.same_target_retries = 2).drive();
    let r = d.arrive(facts());
    for _ in 0..2 {
        let a = d.attempt(r);
        d.pass_ms(300);
        d.broke(a, status(500));
        d.now = d.engine.poll_timeout().expect("a pause");
        d.input(Input::Tick);
    }
    let a = d.attempt(r);
    d.pass_ms(40);
    d.connected(a);
    d.pass_ms(110);
    d.committed(a);
    d.ended(a);
    let record = d.record(r).expect("done");
    let t = record.timings;
    assert!((t.detection_ms - 600.0).abs() < 1e-6, "two failures of 300 ms: {t:?}");
    let committed = record.attempts[2].committed_ms.expect("committed");
    assert!((t.detection_ms + t.decision_ms + t.dial_ms + t.first_token_ms - committed).abs() < 1e-6, "{t:?}");
}

#[test]
fn tiers_come_in_order() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .target("c", |_| {})
        .route("r", &[&["b"], &["c", "a"]], |_| {})
        .drive();
    assert_eq!(d.bad_request(&status(500)), ["b", "c", "a"]);
}

#[test]
fn a_duplicate_request_id_is_ignored() {
    let mut d = two();
    let r = d.arrive(facts());
    d.take();
    d.input(Input::Arrive { request: r, facts: facts() });
    assert_eq!(d.take(), vec![]);
}

#[test]
fn a_stale_pooled_connection_is_retried_once_fresh_and_not_counted() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.input(Input::Broke { attempt: a, failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a", "a"]);
    assert!(d.out.iter().any(|o| matches!(o, Output::Dial { fresh: true, .. })));
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 0);
    // The second failure is the target's, whatever the driver says.
    let fresh = d.attempt(r);
    d.input(Input::Broke { attempt: fresh, failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a", "a", "b"]);
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1);
}

#[test]
fn a_fresh_retry_is_a_dial_and_never_exceeds_the_limit() {
    let mut d = Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.max_attempts = 1).drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.input(Input::Broke { attempt: a, failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a"]);
    assert!(matches!(d.reply(r), Some(Reply::Handoff { .. })));
}

#[test]
fn no_retry_after_a_response_byte() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.input(Input::FirstToken { attempt: a, sign: Sign::Life });
    d.input(Input::Broke { attempt: a, failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a", "b"]);
}

#[test]
fn the_same_target_again_only_when_allowed_and_nobody_else_is_left() {
    let kit = |retries: u32| {
        Kit::new()
            .target("a", |_| {})
            .target("b", |_| {})
            .route("r", &[&["a", "b"]], |r| r.same_target_retries = retries)
    };
    let mut d = kit(0).drive();
    assert_eq!(d.bad_request(&status(500)), ["a", "b"]);

    let mut d = kit(1).drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(500));
    let b = d.attempt(r);
    d.broke(b, status(500));
    assert_eq!(d.dialled(r), ["a", "b"], "a pause first");
    d.pass_ms(2_000);
    assert_eq!(d.dialled(r), ["a", "b", "a"]);
    let again = d.attempt(r);
    d.broke(again, status(500));
    assert!(d.reply(r).is_some(), "three dials are used up");
}

#[test]
fn a_silent_target_is_never_redialled() {
    let mut d = Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.same_target_retries = 2).drive();
    let r = d.arrive(facts());
    d.pass_s(10);
    assert_eq!(d.dialled(r), ["a"]);
    assert!(matches!(d.reply(r), Some(Reply::Handoff { .. })));
}

#[test]
fn a_client_that_leaves_during_a_pause_is_not_dialled_for() {
    let mut d = Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.same_target_retries = 2).drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(500));
    d.input(Input::ClientGone { request: r, stalled: false });
    d.pass_s(10);
    assert_eq!(d.dialled(r), ["a"]);
    assert_eq!(d.record(r).expect("done").outcome, Outcome::ClientGone);
}

#[test]
fn the_same_seed_and_inputs_give_the_same_outputs() {
    let run = || {
        let mut d = two();
        for n in 0..20 {
            d.bad_request(&status(500 + n % 5));
            d.pass_s(3);
        }
        d.take()
    };
    assert_eq!(run(), run());
}

#[test]
fn notes_name_what_failed_and_what_changed() {
    let mut d = two();
    for _ in 0..3 {
        d.bad_request(&Failure::Refused);
    }
    let a = TargetId(0);
    let failed =
        Output::Note(Note::AttemptFailed { target: a, class: Class::Provider, reason: "refused".into(), probe: false });
    assert!(d.out.contains(&failed));
    assert!(d.out.iter().any(|o| matches!(o,
        Output::Note(Note::Availability { target, reason, .. }) if *target == a && reason == "consecutive_failures")));
}
