//! Failures that hit other tools, named by their case id: those that a pure core decides.

use std::time::Duration;

use crate::policy::*;
use crate::router::classify::Class;
use crate::router::decision::{Availability, Note, Outcome};
use crate::router::testkit::*;
use crate::router::*;
use crate::units::Ts;

fn two() -> Drive {
    Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], |_| {}).drive()
}

fn one() -> Drive {
    Kit::new().target("a", |_| {}).route("r", &[&["a"]], |_| {}).drive()
}

fn key(name: &str) -> Option<SecretRef> {
    Some(SecretRef::Env(name.into()))
}

/// Answers every probe that has begun and was not answered yet, until none is left.
fn pass_probes(d: &mut Drive) {
    let mut done = 0;
    loop {
        let probes = d.probes();
        if probes.len() == done {
            return;
        }
        for (probe, _) in probes.into_iter().skip(done) {
            done += 1;
            d.ended(probe);
        }
    }
}

/// Trips the breaker of `a` by three refused connections.
fn trip_a(d: &mut Drive) {
    for _ in 0..3 {
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("a serves");
        assert_eq!(name, "a");
        d.broke(attempt, Failure::Refused);
        if let Some((attempt, _)) = d.dial(r).filter(|(_, name)| name != "a") {
            d.committed(attempt);
            d.ended(attempt);
        }
    }
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn b050_caller_mistakes_do_not_open_the_breaker() {
    let mut d = two();
    for n in 0..50 {
        let code = [400, 404, 413, 422][n % 4];
        let r = d.arrive(facts());
        let a = d.attempt(r);
        d.broke(a, object(code, "invalid_request_error", "", "no"));
        assert_eq!(d.reply(r), Some(Reply::AsItIs { attempt: a }), "{code}");
        assert_eq!(d.record(r).expect("done").outcome, Outcome::ReturnedAsItIs);
        assert_eq!(d.good_request(), "a", "another tenant is served there");
    }
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn b051_a_429_cools_only_its_key_and_model() {
    let mut d = Kit::new()
        .target("k1-x", |t| {
            t.credentials = key("K1");
            t.model = "x".into();
        })
        .target("k2-x", |t| {
            t.credentials = key("K2");
            t.model = "x".into();
        })
        .target("k1-y", |t| {
            t.credentials = key("K1");
            t.model = "y".into();
        })
        .route("r", &[&["k1-x", "k2-x", "k1-y"]], |_| {})
        .drive();
    let r = d.arrive(facts());
    let first = d.attempt(r);
    d.broke(first, retry_after(30));
    assert_eq!(d.dialled(r), ["k1-x", "k2-x"]);
    assert_eq!((d.state("k1-x"), d.state("k2-x"), d.state("k1-y")), ("cooling", "serving", "serving"));
    d.pass_ms(29_999);
    assert_eq!(d.state("k1-x"), "cooling");
    d.pass_ms(1);
    assert_eq!(d.state("k1-x"), "serving");
    // Ten at once, all refused: still no breaker.
    let together: Vec<RequestId> = (0..10).map(|_| d.arrive(facts())).collect();
    for r in together {
        let a = d.attempt(r);
        d.broke(a, retry_after(1));
    }
    d.pass_s(1);
    assert_eq!(d.state("k1-x"), "serving");
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.trips, 0, "the breaker never opened");
    assert!(d.probes().is_empty());
}

#[test]
fn b052_a_429_fails_over_and_is_remembered() {
    let mut d = two();
    for _ in 0..20 {
        let r = d.arrive(facts());
        while let Some((attempt, name)) = d.dial(r) {
            if name == "a" {
                d.broke(attempt, status(429));
            } else {
                d.committed(attempt);
                d.ended(attempt);
                break;
            }
        }
        assert_eq!(d.record(r).expect("done").outcome, Outcome::Answered);
        d.pass_ms(200);
    }
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.dials, 1, "not hit 20 times within its cooldown");
}

#[test]
fn b053_no_stampede_into_a_half_open_target() {
    let mut d = two();
    trip_a(&mut d);
    d.pass_s(5);
    d.take();
    assert_eq!(d.state("a"), "probing");
    for _ in 0..200 {
        let r = d.arrive(facts());
        assert_eq!(d.dialled(r), ["b"], "at once");
        let b = d.attempt(r);
        d.committed(b);
    }
    assert!(d.probes().is_empty(), "the one that began before is still under way");
    // The probe hangs: it fails by the core's own clock and the target stays out, for longer.
    d.pass_s(2);
    assert_eq!(d.state("a"), "cooling");
    let Availability::Cooling { until, .. } = d.engine.snapshot(d.now).targets[0].availability.clone() else {
        panic!()
    };
    assert!(until.since(d.now) > Duration::from_secs(5), "doubled");
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.in_flight, 0);
}

#[test]
fn b056_the_breaker_closes_by_probes_even_without_traffic() {
    let mut d = two();
    trip_a(&mut d);
    d.take();
    d.pass_s(5);
    pass_probes(&mut d);
    assert_eq!(d.probes().len(), 2, "as many as the policy asks, back to back");
    assert_eq!(d.state("a"), "serving");
    assert_eq!(d.good_request(), "a");
    assert!(d.out.iter().any(|o| matches!(o,
        Output::Note(Note::Availability { now: Availability::Serving { .. }, reason, .. }) if reason == "probes_passed")));
}

#[test]
fn b057_the_open_period_follows_the_monotonic_clock_only() {
    // The core is handed one monotonic time; what the wall clock says (expiry) changes no cooldown.
    let mut d = two();
    trip_a(&mut d);
    let Availability::Cooling { until, .. } = d.engine.snapshot(d.now).targets[0].availability.clone() else {
        panic!()
    };
    d.arrive(Facts { expired: true, ..facts() });
    d.arrive(Facts { expired: false, ..facts() });
    assert_eq!(d.engine.snapshot(d.now).targets[0].availability, Availability::Cooling { until, why: "open".into() });
}

#[test]
fn b059_everything_open_is_refused_at_once_with_the_soonest_probe() {
    for names in [&["a"][..], &["a", "b", "c"]] {
        let kit = names.iter().fold(Kit::new(), |kit, name| kit.target(name, |_| {}));
        let mut d = kit.route("r", &[names], |_| {}).drive();
        for _ in 0..3 {
            d.bad_request(&Failure::Refused);
        }
        d.take();
        let soonest = d.engine.poll_timeout().expect("a probe is due").since(d.now);
        assert!(soonest <= Duration::from_secs(5), "at the base, as nobody else serves");
        let r = d.arrive(facts());
        let Some(Reply::Unavailable { retry_after, why }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
        assert_eq!(retry_after, soonest);
        for name in names {
            assert!(why.contains(&format!("{name}: open")), "{why}");
        }
        assert!(d.dialled(r).is_empty(), "no last-resort dial");
        assert_eq!(d.record(r).expect("done").outcome, Outcome::Refused);
    }
}

#[test]
fn b061_dead_targets_are_not_walked_by_every_request() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .target("c", |_| {})
        .route("r", &[&["a", "b", "c"]], |_| {})
        .drive();
    let mut walked = Vec::new();
    for _ in 0..10 {
        let r = d.arrive(facts());
        for _ in 0..3 {
            let (attempt, name) = d.dial(r).expect("dialled");
            if name == "c" {
                d.committed(attempt);
                d.ended(attempt);
                break;
            }
            d.connected(attempt);
            d.pass_s(2);
        }
        walked.push(d.dialled(r).len());
    }
    assert_eq!(walked, [3, 3, 3, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn b063_an_unusable_body_counts_and_headers_reset_nothing() {
    let mut d = two();
    for n in 0..3 {
        assert_eq!(d.state("a"), "serving", "{n}");
        let r = d.arrive(facts());
        let a = d.attempt(r);
        d.connected(a);
        d.broke(a, Failure::Malformed("<html>".into()));
    }
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn b064_insufficient_quota_as_429_is_an_account_fault() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = key("K1"))
        .target("b", |t| t.credentials = key("K2"))
        .route("r", &[&["a", "b"]], |r| r.same_target_retries = 2)
        .drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, object(429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"));
    assert_eq!(d.dialled(r), ["a", "b"], "at once, and never the same account again");
    assert_eq!(d.state("a"), "benched");
    assert!(d.out.iter().any(|o| matches!(o, Output::Note(Note::Alert { reason, .. }) if reason == "quota_used_up")));
    d.take();
    d.pass_ms(899_999);
    assert!(d.probes().is_empty());
    d.pass_ms(1);
    assert_eq!(d.probes().len(), 1, "tried every 15 minutes");
    pass_probes(&mut d);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn b067_a_content_filter_is_returned_as_it_is() {
    let mut d = two();
    for failure in [object(400, "", "content_filter", ""), object(403, "", "", "requires moderation")] {
        let r = d.arrive(facts());
        let a = d.attempt(r);
        d.broke(a, failure);
        assert_eq!(d.reply(r), Some(Reply::AsItIs { attempt: a }));
        assert_eq!(d.record(r).expect("done").attempts[0].class, Class::PolicyBlock);
    }
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 0);
}

#[test]
fn b068_every_5xx_fails_over_whatever_the_body() {
    for code in [500, 502, 503, 504, 520, 521, 522, 524, 529, 530, 599] {
        let mut d = two();
        assert_eq!(d.bad_request(&status(code)), ["a", "b"], "{code}");
    }
}

#[test]
fn b069_a_page_with_status_200_fails_over() {
    let mut d = two();
    let r = d.arrive(Facts { stream: false, ..facts() });
    let a = d.attempt(r);
    d.broke(a, Failure::Malformed("text/html".into()));
    assert_eq!(d.dialled(r), ["a", "b"]);
}

#[test]
fn b072_too_long_goes_only_to_a_larger_window() {
    let kit = |small: u64, same: u64, large: u64| {
        let window = |tokens: u64| move |t: &mut Target| t.capabilities.context_tokens = Some(tokens);
        Kit::new()
            .target("small", window(small))
            .target("same", window(same))
            .target("large", window(large))
            .route("r", &[&["small", "same", "large"]], |_| {})
            .drive()
    };
    let too_long = object(400, "invalid_request_error", "context_length_exceeded", "");
    let mut d = kit(8_000, 8_000, 128_000);
    let r = d.arrive(facts());
    let small = d.attempt(r);
    d.broke(small, too_long.clone());
    assert_eq!(d.dialled(r), ["small", "large"]);
    let large = d.attempt(r);
    d.broke(large, too_long.clone());
    assert_eq!(d.reply(r), Some(Reply::TooLong));
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 0);

    let mut d = kit(8_000, 4_000, 8_000);
    assert_eq!(d.bad_request(&too_long), ["small"]);
}

#[test]
fn b073_overload_in_any_dress_is_capacity() {
    let overloaded = |code| object(code, "overloaded_error", "", "Overloaded");
    for failure in [overloaded(500), overloaded(400), overloaded(200), status(529)] {
        let mut d = two();
        assert_eq!(d.bad_request(&failure), ["a", "b"]);
        assert_eq!((d.state("a"), d.engine.snapshot(d.now).targets[0].counters.failed_counted), ("cooling", 0));
    }
}

#[test]
fn b075_the_first_cause_is_not_hidden_by_the_last() {
    let mut d = two();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(503));
    let b = d.attempt(r);
    d.broke(b, object(400, "invalid_request_error", "unsupported_parameter", "Unsupported parameter: 'x'"));
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!(why, "a: status_503 (provider); b: unsupported (mismatch)");
}

#[test]
fn b076_what_one_target_lacks_is_not_the_callers_error() {
    let mut d = two();
    for failure in [
        object(400, "invalid_request_error", "unsupported_value", "Unexpected role 'developer'"),
        object(422, "", "bad_response_status_code", "unsupported parameter: max_completion_tokens"),
        object(400, "", "", "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9."),
    ] {
        assert_eq!(d.bad_request(&failure), ["a", "b"], "{failure:?}");
    }
    let snapshot = d.engine.snapshot(d.now);
    assert!(snapshot.targets.iter().all(|t| t.counters.failed_counted == 0));
    assert!(d.out.iter().any(|o| matches!(o, Output::Note(Note::Alert { reason, .. }) if reason == "unsupported")));
}

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
