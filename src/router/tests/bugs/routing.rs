//! Failures of rate limits, routing and resources that hit other tools, by their case id.

use crate::policy::*;
use crate::router::decision::{Availability, Note, Outcome};
use crate::router::testkit::*;
use crate::router::*;
use crate::units::Ts;

use super::*;

#[test]
fn b095_waits_of_seven_seconds_of_nothing_and_unreadable_ones() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, retry_after(7));
    d.pass_ms(6_999);
    assert_eq!(d.state("a"), "cooling");
    d.pass_ms(1);
    assert_eq!(d.state("a"), "serving");
    // Zero: no cooldown. Unreadable or negative is no hint at all: the base.
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, retry_after(0));
    assert_eq!(d.state("a"), "serving");
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(429));
    d.pass_ms(4_999);
    assert_eq!(d.state("a"), "cooling");
    d.pass_ms(1);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn b099_an_account_cap_skips_all_siblings() {
    let on = |key_name: &'static str, account: &'static str| {
        move |t: &mut Target| {
            t.credentials = key(key_name);
            t.domains.insert("account".into(), account.into());
        }
    };
    let mut d = Kit::new()
        .target("a1", on("K1", "x"))
        .target("a2", on("K2", "x"))
        .target("a3", on("K3", "x"))
        .target("b", on("K4", "y"))
        .route("r", &[&["a1", "a2", "a3", "b"]], |_| {})
        .drive();
    let r = d.arrive(facts());
    let a1 = d.attempt(r);
    d.broke(a1, object(429, "", "", "You have reached your spending cap"));
    assert_eq!(d.dialled(r), ["a1", "b"], "the other vendor is attempt two");
}

#[test]
fn b100_every_exit_frees_its_slot() {
    let mut d = two();
    for n in 0..50 {
        let r = d.arrive(facts());
        let Some((a, _)) = d.dial(r) else { continue };
        match n % 5 {
            0 => d.pass_s(10),
            1 => d.broke(a, status(502)),
            2 => d.input(Input::ClientGone { request: r, stalled: false }),
            3 => {
                d.committed(a);
                d.input(Input::ClientGone { request: r, stalled: true });
            }
            _ => d.ended(a),
        }
        if let Some((b, _)) = d.dial(r).filter(|(b, _)| *b != a) {
            d.ended(b);
        }
    }
    let snapshot = d.engine.snapshot(d.now);
    assert_eq!(snapshot.requests_open, 0);
    let probing = |t: &decision::TargetSnapshot| u32::from(t.availability == Availability::Probing);
    assert!(snapshot.targets.iter().all(|t| t.counters.in_flight == probing(t)), "{snapshot:?}");
}

#[test]
fn b105_a_stand_in_of_another_quality_is_marked() {
    let mut d = Kit::new()
        .target("large", |_| {})
        .target("small", |t| t.tier = "economy".into())
        .route("r", &[&["large"], &["small"]], |r| r.degrade = true)
        .drive();
    let r = d.arrive(facts());
    let large = d.attempt(r);
    d.broke(large, status(503));
    let small = d.attempt(r);
    d.committed(small);
    d.ended(small);
    assert!(d.out.contains(&Output::Deliver { request: r, attempt: small, attempts: 2, degraded: true }));
    let record = d.record(r).expect("done");
    assert_eq!((record.outcome, record.target.as_deref()), (Outcome::Degraded, Some("small")));
}

#[test]
fn b106_a_target_that_lacks_a_capability_is_skipped_with_its_reason() {
    let lacks = |t: &mut Target| {
        t.capabilities.vision = false;
        t.capabilities.tools = false;
    };
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", lacks)
        .target("c", |_| {})
        .route("r", &[&["a", "b", "c"]], |_| {})
        .drive();
    let r = d.arrive(Facts { vision: true, tools: true, ..facts() });
    let a = d.attempt(r);
    d.broke(a, Failure::Refused);
    assert_eq!(d.dialled(r), ["a", "c"]);
    let c = d.attempt(r);
    d.ended(c);
    let record = d.record(r).expect("done");
    assert_eq!((record.skipped[0].target.as_str(), record.skipped[0].reason.as_str()), ("b", "capability_tools"));

    let mut d = Kit::new().target("b", lacks).route("r", &[&["b"]], |_| {}).drive();
    let r = d.arrive(Facts { vision: true, ..facts() });
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!(why, "b: capability_vision (needs vision)");
}

#[test]
fn b107_b108_the_snapshot_says_what_each_target_can_do() {
    let mut d = two();
    trip_a(&mut d);
    assert_eq!((d.state("a"), d.state("b")), ("cooling", "serving"));
}

#[test]
fn b110_a_target_that_serves_is_never_probed() {
    let mut d = two();
    d.good_request();
    d.pass_s(7 * 24 * 3_600);
    assert!(d.probes().is_empty());
}

#[test]
fn b112_each_target_at_most_once_per_request() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .route("r", &[&["a", "b"], &["b", "a"], &["a"]], |r| r.max_attempts = 9)
        .drive();
    assert_eq!(d.bad_request(&status(500)), ["a", "b"]);
}

#[test]
fn b143_a_name_that_does_not_resolve_has_its_own_reason() {
    let mut d = two();
    assert_eq!(d.bad_request(&Failure::Dns), ["a", "b"]);
    assert!(d.out.iter().any(|o| matches!(o, Output::Note(Note::AttemptFailed { reason, .. }) if reason == "dns")));
}

#[test]
fn b146_recovering_targets_do_not_come_back_in_one_wave() {
    let names: Vec<String> = (0..16).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let kit = names.iter().fold(Kit::new(), |kit, name| kit.target(name, |_| {}));
    let mut d = kit.route("r", &[&names], |r| r.max_attempts = 16).drive();
    for _ in 0..3 {
        d.bad_request(&Failure::Refused);
    }
    let mut ends: Vec<Ts> = Vec::new();
    for target in d.engine.snapshot(d.now).targets {
        let Availability::Cooling { until, .. } = target.availability else { panic!("{target:?}") };
        ends.push(until);
    }
    ends.sort();
    ends.dedup();
    assert_eq!(ends.len(), 16, "every cooldown ends at its own time");
}

#[test]
fn b159_a_stale_pooled_connection_is_not_the_providers_fault() {
    let mut d = two();
    for _ in 0..10 {
        let r = d.arrive(facts());
        let a = d.attempt(r);
        d.input(Input::Broke { attempt: a, failure: Failure::Reset, reused: true });
        let again = d.attempt(r);
        d.committed(again);
        d.ended(again);
        assert_eq!(d.record(r).expect("done").target.as_deref(), Some("a"));
    }
    assert_eq!(d.state("a"), "serving");
}

/// There are no weights; the nearest thing is a target that an operator took out: nobody is sent there, also as the last resort.
#[test]
fn b102_a_target_taken_out_gets_nothing_not_even_as_the_last_resort() {
    let mut d = two();
    d.input(Input::Bench { target: TargetId(1), out: true, until: None });
    assert_eq!(d.bad_request(&Failure::Refused), ["a"]);
    d.input(Input::Bench { target: TargetId(0), out: true, until: None });
    let r = d.arrive(facts());
    assert!(d.dialled(r).is_empty());
    assert!(matches!(d.reply(r), Some(Reply::Unavailable { .. })), "an honest refusal: {:?}", d.reply(r));
    d.input(Input::Bench { target: TargetId(1), out: false, until: None });
    let r = d.arrive(facts());
    assert_eq!(d.dialled(r), ["b"]);
}

/// Which statuses fail over is one table for all, not a list per policy: the same for streams and whole answers.
#[test]
fn b104_the_same_statuses_fail_over_streamed_or_not() {
    for stream in [true, false] {
        for (failure, fails_over) in [
            (object(401, "", "invalid_api_key", ""), true),
            (status(429), true),
            (status(500), true),
            (status(503), true),
            (object(400, "", "", "bad"), false),
        ] {
            let mut d = two();
            let r = d.arrive(Facts { stream, ..facts() });
            d.broke(d.attempt(r), failure.clone());
            assert_eq!(d.dialled(r).len() == 2, fails_over, "{failure:?} stream {stream}");
        }
    }
}
