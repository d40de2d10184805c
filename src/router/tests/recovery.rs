//! How targets are taken out and come back: probes, benches, stranded routes.

use std::time::Duration;

use crate::policy::*;
use crate::router::decision::{Availability, Note};
use crate::router::testkit::*;
use crate::router::*;

fn two() -> Drive {
    Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a", "b"]], |_| {})
        .drive()
}

/// Fails `a` three times while `b` answers.
fn trip_a(d: &mut Drive) {
    for _ in 0..3 {
        fail_a(d, &Failure::Refused);
    }
    assert_eq!(d.state("a"), "cooling");
}

fn fail_a(d: &mut Drive, failure: &Failure) {
    let r = d.arrive(facts());
    let (a, name) = d.dial(r).expect("dialled");
    assert_eq!(name, "a");
    d.broke(a, failure.clone());
    let (b, name) = d.dial(r).expect("dialled");
    assert_eq!(name, "b");
    d.ended(b);
}

/// Lets time pass until a probe begins; says how long that took.
fn next_probe(d: &mut Drive) -> (AttemptId, Duration) {
    d.take();
    let start = d.now;
    while d.probes().is_empty() {
        let at = d.engine.poll_timeout().expect("something is due");
        d.now = at;
        d.input(Input::Tick);
    }
    (d.probes()[0].0, d.now.since(start))
}

fn cooldown(d: &Drive) -> Duration {
    match &d.engine.snapshot(d.now).targets[0].availability {
        Availability::Cooling { until, .. } => until.since(d.now),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_open_target_gets_nothing_but_its_probe() {
    let mut d = two();
    trip_a(&mut d);
    d.take();
    for _ in 0..100 {
        assert_eq!(d.good_request(), "b");
        d.pass_ms(100);
    }
    assert_eq!(d.probes().iter().filter(|(_, name)| name == "a").count(), 1, "it hangs, and the next comes later");
}

/// A cooldown and the limit of an attempt run out between two ticks, the limit first. The stand-in of that attempt is the
/// target whose cooldown is over by now: people must hear that it serves before anything is sent there.
#[test]
fn a_late_tick_tells_that_a_target_serves_before_it_sends_there() {
    let mut d = two();
    fail_a(&mut d, &retry_after(2));
    d.pass_ms(500);
    let r = d.arrive(facts());
    assert_eq!(d.dial(r).map(|(_, name)| name).as_deref(), Some("b"), "a cools until 2.0 s, b must connect by 1.5 s");
    d.take();
    d.now = d.now + Duration::from_secs(2);
    d.input(Input::Tick);
    let told = |o: &Output| match o {
        Output::Note(Note::Availability { target, now: Availability::Serving { .. }, .. }) => Some(("serves", *target)),
        Output::Dial { target, .. } => Some(("dial", *target)),
        _ => None,
    };
    let a = TargetId(0);
    assert_eq!(d.out.iter().filter_map(told).collect::<Vec<_>>(), [("serves", a), ("dial", a)]);
}

fn live() -> Drive {
    let mut kit = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .breaker(|b| b.probe = ProbeKind::Live)
        .route("r", &[&["a", "b"]], |_| {})
        .drive();
    trip_a(&mut kit);
    kit.pass_s(6);
    kit.take();
    kit
}

#[test]
fn a_live_probe_is_one_customers_request_at_a_time() {
    let mut d = live();
    let first = d.arrive(facts());
    let second = d.arrive(facts());
    assert_eq!((d.dialled(first), d.dialled(second)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    assert!(d.probes().is_empty(), "nothing runs in the background");
    d.ended(d.attempt(first));
    assert_eq!(d.state("a"), "probing", "one of two");
    let third = d.arrive(facts());
    assert_eq!(d.dialled(third), ["a"]);
    d.ended(d.attempt(third));
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn a_live_probe_that_fails_costs_its_customer_a_failover_and_opens_again() {
    let mut d = live();
    let r = d.arrive(facts());
    d.broke(d.attempt(r), Failure::Refused);
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert_eq!(d.state("a"), "cooling");
    assert!(cooldown(&d) > Duration::from_secs(5), "twice as long");
    assert_eq!(d.good_request(), "b");
}

#[test]
fn a_live_probe_whose_client_leaves_gives_its_place_back_at_once() {
    let mut d = live();
    let r = d.arrive(facts());
    d.input(Input::ClientGone { request: r, stalled: false });
    assert_eq!(d.state("a"), "probing");
    let next = d.arrive(facts());
    assert_eq!(d.dialled(next), ["a"]);
}

#[test]
fn a_bad_request_as_a_live_probe_keeps_nobody_out() {
    let mut d = live();
    for _ in 0..20 {
        let bad = d.arrive(facts());
        assert_eq!(d.dialled(bad), ["a"]);
        d.broke(d.attempt(bad), object(400, "invalid_request_error", "", "bad"));
        d.pass_ms(10);
    }
    assert_eq!(d.good_request(), "a");
    assert_eq!(d.good_request(), "a");
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn a_rate_limited_live_probe_waits_as_long_as_before() {
    let mut d = live();
    let r = d.arrive(facts());
    d.broke(d.attempt(r), status(429));
    assert_eq!((d.state("a"), d.dialled(r)), ("cooling", vec!["a".to_owned(), "b".to_owned()]));
    assert!(cooldown(&d) <= Duration::from_secs(5));
}

#[test]
fn where_no_request_comes_a_live_probe_is_made_in_the_background() {
    let mut d = live();
    let (probe, waited) = next_probe(&mut d);
    assert!(waited <= Duration::from_secs(5), "one base cooldown after its own was over: {waited:?}");
    let beside = d.arrive(facts());
    assert_eq!(d.dialled(beside), ["b"], "one at a time");
    d.ended(d.attempt(beside));
    d.ended(probe);
    let (probe, _) = next_probe(&mut d);
    d.ended(probe);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn a_live_probe_that_is_overdue_when_its_client_leaves_has_failed() {
    let mut d = live();
    let r = d.arrive(facts());
    d.connected(d.attempt(r));
    d.now = d.now + Duration::from_secs(30);
    d.input(Input::ClientGone { request: r, stalled: false });
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn a_probe_that_fails_doubles_the_cooldown_and_one_that_is_rate_limited_does_not() {
    let mut d = two();
    trip_a(&mut d);
    let (probe, _) = next_probe(&mut d);
    d.broke(probe, Failure::Refused);
    assert!(cooldown(&d) > Duration::from_secs(5));
    let (probe, waited) = next_probe(&mut d);
    assert!(waited > Duration::from_secs(5) && waited <= Duration::from_secs(10), "{waited:?}");
    d.broke(probe, status(429));
    assert!(cooldown(&d) <= Duration::from_secs(10), "as before");
    let (probe, _) = next_probe(&mut d);
    d.broke(probe, retry_after(60));
    let (_, waited) = next_probe(&mut d);
    assert_eq!(waited, Duration::from_secs(60), "not before the provider said");
}

#[test]
fn a_hung_probe_fails_by_the_cores_own_clock() {
    for connect in [false, true] {
        let mut d = two();
        trip_a(&mut d);
        let (probe, _) = next_probe(&mut d);
        if connect {
            d.connected(probe);
        }
        d.pass_s(2);
        assert!(d.out.contains(&Output::Cancel { attempt: probe }));
        assert_eq!(d.state("a"), "cooling");
        d.ended(probe);
        assert_eq!(d.state("a"), "cooling", "a late answer is not heard");
    }
}

#[test]
fn a_probe_that_shows_life_and_never_ends_fails_at_the_deadline() {
    let mut d = two();
    trip_a(&mut d);
    let (probe, _) = next_probe(&mut d);
    d.connected(probe);
    d.input(Input::FirstToken { attempt: probe, sign: Sign::ToolCall });
    d.committed(probe);
    d.pass_ms(7_999);
    assert_eq!(d.state("a"), "probing");
    d.pass_ms(1);
    assert_eq!(d.state("a"), "cooling");
    assert!(!d.out.iter().any(|o| matches!(o, Output::Deliver { .. })));
}

#[test]
fn success_is_a_completed_answer_not_its_headers() {
    let mut d = two();
    trip_a(&mut d);
    let (probe, _) = next_probe(&mut d);
    d.connected(probe);
    d.input(Input::FirstToken { attempt: probe, sign: Sign::Life });
    assert_eq!(d.state("a"), "probing");
    d.broke(probe, Failure::Truncated);
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn a_refused_probe_keeps_the_target_out_without_doubling_and_tells_people() {
    let mut d = two();
    trip_a(&mut d);
    for _ in 0..4 {
        let (probe, waited) = next_probe(&mut d);
        assert!(waited <= Duration::from_secs(5));
        d.broke(probe, object(400, "invalid_request_error", "", "no"));
        assert!(d.out.iter().any(|o| matches!(o, Output::Note(Note::Alert { .. }))));
    }
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn a_stranded_route_probes_at_the_base_however_long_the_outage() {
    let mut d = Kit::new().target("a", |_| {}).route("r", &[&["a"]], |_| {}).drive();
    for _ in 0..3 {
        d.bad_request(&Failure::Refused);
    }
    for _ in 0..10 {
        let (probe, waited) = next_probe(&mut d);
        assert!(waited <= Duration::from_secs(5), "{waited:?}");
        d.broke(probe, Failure::Refused);
    }
}

#[test]
fn the_last_one_to_trip_shortens_the_wait_of_the_first() {
    let mut d = two();
    trip_a(&mut d);
    for _ in 0..4 {
        let (probe, _) = next_probe(&mut d);
        d.broke(probe, Failure::Refused);
    }
    assert!(cooldown(&d) > Duration::from_secs(60));
    for _ in 0..3 {
        assert_eq!(d.bad_request(&Failure::Refused), ["b"]);
    }
    assert!(cooldown(&d) <= Duration::from_secs(5));
}

#[test]
fn attempts_from_before_the_trip_neither_lengthen_nor_end_it() {
    let mut d = two();
    let under_way: Vec<RequestId> = (0..20).map(|_| d.arrive(facts())).collect();
    trip_a(&mut d);
    let before = d.engine.snapshot(d.now).targets[0].availability.clone();
    for (n, r) in under_way.into_iter().enumerate() {
        let a = d.attempt(r);
        if n % 2 == 0 {
            d.broke(a, Failure::Refused);
            let b = d.attempt(r);
            d.ended(b);
        } else {
            d.ended(a);
        }
    }
    assert_eq!(d.engine.snapshot(d.now).targets[0].availability, before);
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.trips, 1);
}

#[test]
fn a_refused_credential_benches_its_siblings_and_one_probe_lifts_them_all() {
    let with_key = |t: &mut Target| t.credentials = Some(SecretRef::Env("K".into()));
    let mut d = Kit::new()
        .target("a", with_key)
        .target("a2", with_key)
        .target("b", |_| {})
        .route("r", &[&["a", "a2", "b"]], |_| {})
        .drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(401));
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert_eq!((d.state("a"), d.state("a2"), d.state("b")), ("benched", "benched", "serving"));
    let (probe, waited) = next_probe(&mut d);
    assert_eq!(waited, Duration::from_secs(900));
    d.broke(probe, status(401));
    let (probe, waited) = next_probe(&mut d);
    assert_eq!(waited, Duration::from_secs(900));
    assert_eq!(d.probes().len(), 1, "one for both");
    d.ended(probe);
    assert_eq!((d.state("a"), d.state("a2")), ("serving", "serving"));
}

#[test]
fn a_single_403_fails_over_but_benches_nobody() {
    let mut d = two();
    let forbidden = object(403, "", "", "no");
    fail_a(&mut d, &forbidden);
    assert_eq!(d.state("a"), "serving");
    fail_a(&mut d, &forbidden);
    assert_eq!(d.state("a"), "benched");
}

#[test]
fn a_place_benches_the_target_and_not_the_credential() {
    let with_key = |t: &mut Target| t.credentials = Some(SecretRef::Env("K".into()));
    let mut d = Kit::new().target("a", with_key).target("b", with_key).route("r", &[&["a", "b"]], |_| {}).drive();
    fail_a(&mut d, &status(451));
    assert_eq!((d.state("a"), d.state("b")), ("benched", "serving"));
    assert!(d.out.iter().any(|o| matches!(o,
        Output::Note(Note::Availability { reason, .. }) if reason == "place_fault")));
}

#[test]
fn a_target_that_is_open_and_benched_is_probed_for_the_bench_alone() {
    let mut d = two();
    // Two attempts under way: one will show the refused credential, others trip the breaker.
    let late = d.arrive(facts());
    trip_a(&mut d);
    let a = d.attempt(late);
    d.broke(a, status(401));
    assert_eq!(d.state("a"), "benched");
    let (probe, waited) = next_probe(&mut d);
    assert_eq!(waited, Duration::from_secs(900));
    d.ended(probe);
    assert_eq!(d.state("a"), "probing", "the credential is proven; the breaker wants a second answer");
    let (second, _) =
        *d.probes().iter().rev().find(|(p, _)| *p != probe).map(|(p, n)| (*p, n)).as_ref().expect("back to back");
    d.ended(second);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn shared_quota_cools_together() {
    let quota = |t: &mut Target| {
        t.domains.insert("quota".into(), "q".into());
    };
    let mut d = Kit::new()
        .target("chat", quota)
        .target("batch", quota)
        .target("b", |_| {})
        .route("r", &[&["chat", "b"]], |_| {})
        .route("jobs", &[&["batch"]], |_| {})
        .drive();
    let r = d.arrive(Facts { route: RouteId(1), ..facts() });
    let batch = d.attempt(r);
    d.broke(batch, status(429));
    assert_eq!(d.state("chat"), "cooling");
    assert_eq!(d.good_request(), "b", "the batch job's 429 does not surprise the chat");
}

#[test]
fn timeouts_of_attempts_that_had_too_little_time_do_not_count() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .target("c", |_| {})
        .route("r", &[&["a", "b", "c"]], |r| r.deadline = Duration::from_millis(6_400))
        .drive();
    let r = d.arrive(facts());
    for _ in 0..3 {
        let attempt = d.attempt(r);
        d.connected(attempt);
        d.pass_s(2);
    }
    assert_eq!(d.dialled(r), ["a", "b", "c"]);
    let counted: Vec<u64> = d.engine.snapshot(d.now).targets.iter().map(|t| t.counters.failed_counted).collect();
    assert_eq!(counted, [1, 1, 0], "the third had 1,400 of 2,000 ms");
}
