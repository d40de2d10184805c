//! Failures of limits, retries and duplicates that hit other tools, by their case id.

use std::time::Duration;

use crate::policy::*;
use crate::router::decision::Outcome;
use crate::router::testkit::*;
use crate::router::*;

use super::*;

#[test]
fn b078_no_total_timeout_on_a_stream_that_flows() {
    let mut d = one();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.committed(a);
    d.pass_s(3_600);
    d.ended(a);
    assert_eq!(d.record(r).expect("done").outcome, Outcome::Answered);
}

#[test]
fn b080_no_headers_means_the_next_target_and_one_failure() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(2);
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert!(d.out.contains(&Output::Cancel { attempt: a }), "its connection is closed");
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1);

    let answer_limit = |r: &mut Route| r.tiers[0].answer_timeout = Some(Duration::from_secs(3));
    let mut d = Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], answer_limit).drive();
    let r = d.arrive(Facts { stream: false, ..facts() });
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(3);
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1);
}

#[test]
fn b081_a_stall_after_tokens_breaks_counts_and_frees_the_slot() {
    let mut d = two();
    let open: Vec<RequestId> = (0..200).map(|_| d.arrive(facts())).collect();
    for r in &open {
        let a = d.attempt(*r);
        d.committed(a);
    }
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.in_flight, 200);
    for r in &open {
        let a = d.attempt(*r);
        d.broke(a, Failure::IdleTimeout);
    }
    let snapshot = d.engine.snapshot(d.now);
    assert_eq!((snapshot.targets[0].counters.in_flight, snapshot.requests_open), (0, 0));
    assert_eq!((d.state("a"), d.state("b")), ("cooling", "serving"));
    assert_eq!(d.out.iter().filter(|o| matches!(o, Output::Break { .. })).count(), 200);
}

#[test]
fn b083_first_token_limits_are_per_tier() {
    let slow = |r: &mut Route| {
        r.deadline = Duration::from_secs(120);
        r.tiers[0].first_token_timeout = Duration::from_secs(94);
    };
    let mut d =
        Kit::new().target("thinker", |_| {}).target("b", |_| {}).route("r", &[&["thinker"], &["b"]], slow).drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(93);
    assert_eq!(d.dialled(r), ["thinker"]);
    d.pass_s(1);
    assert_eq!(d.dialled(r), ["thinker", "b"]);
}

#[test]
fn b086_retry_after_never_delays_another_target() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, retry_after(47));
    assert_eq!(d.dialled(r), ["a", "b"], "in the same instant");
    d.pass_ms(46_999);
    assert_eq!(d.state("a"), "cooling");
    d.pass_ms(1);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn b087_dials_have_one_cap_over_all_layers() {
    let kit = ["a", "b", "c"].iter().fold(Kit::new(), |kit, name| kit.target(name, |_| {}));
    let mut d = kit.route("r", &[&["a", "b", "c"]], |r| r.same_target_retries = 2).drive();
    let r = d.arrive(facts());
    while let Some((attempt, _)) = d.dial(r).filter(|_| d.reply(r).is_none()) {
        d.broke(attempt, status(503));
        d.pass_s(2);
    }
    assert_eq!(d.dialled(r).len(), 3);
}

#[test]
fn b088_nobody_is_dialled_for_a_client_that_has_left() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.input(Input::ClientGone { request: r, stalled: false });
    assert!(d.out.contains(&Output::Cancel { attempt: a }));
    d.broke(a, status(503));
    d.pass_s(60);
    assert_eq!(d.dialled(r), ["a"]);
    assert_eq!(d.record(r).expect("done").attempts[0].reason, "client_gone");
}

#[test]
fn b089_an_answer_that_is_not_streamed_is_cancelled_too() {
    let mut d = one();
    let r = d.arrive(Facts { stream: false, ..facts() });
    let a = d.attempt(r);
    d.pass_ms(500);
    d.input(Input::ClientGone { request: r, stalled: false });
    assert!(d.out.contains(&Output::Cancel { attempt: a }));
}

#[test]
fn b091_failover_none_holds_in_every_phase() {
    let kit = || {
        let none = |r: &mut Route| r.no_failover = Some("regulator".into());
        Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], none).drive()
    };
    // Before headers.
    assert_eq!(kit().bad_request(&Failure::Refused), ["a"]);
    // Before the first token.
    let mut d = kit();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(2);
    assert_eq!(d.dialled(r), ["a"]);
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!() };
    assert!(why.contains("b: no_failover"), "{why}");
    // After it.
    let mut d = kit();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.committed(a);
    d.broke(a, Failure::Reset);
    assert_eq!(d.dialled(r), ["a"]);
}

#[test]
fn b093_the_slow_one_is_cancelled_and_no_success() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(2);
    let b = d.attempt(r);
    d.committed(b);
    // The slow one answers after all.
    d.committed(a);
    d.ended(a);
    d.ended(b);
    let delivered = |o: &&Output| matches!(o, Output::Deliver { .. });
    assert_eq!(d.out.iter().filter(delivered).count(), 1);
    let snapshot = d.engine.snapshot(d.now);
    assert_eq!((snapshot.targets[0].counters.answered, snapshot.targets[1].counters.answered), (0, 1));
}

/// Continuing another's answer is no part of this policy format; what must never happen is that a second target's refusal hides
/// the first one's stall.
#[test]
fn b094_after_a_stall_nobody_continues_and_the_stall_is_the_cause() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.committed(a);
    d.broke(a, Failure::IdleTimeout);
    assert_eq!(d.dialled(r), ["a"], "nobody continues a delivered answer");
    let record = d.record(r).expect("done");
    assert_eq!((record.outcome, record.attempts[0].reason.as_str()), (Outcome::BrokenAfterCommit, "idle_timeout"));
}
