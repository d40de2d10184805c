//! Failures of breakers and of classification that hit other tools, by their case id.

use std::time::Duration;

use crate::policy::*;
use crate::router::classify::Class;
use crate::router::decision::{Availability, Note, Outcome};
use crate::router::testkit::*;
use crate::router::*;

use super::*;

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
