//! A policy that takes the place of another while requests are under way.

use std::time::Duration;

use crate::policy::{Breaker, Queue, SecretRef};
use crate::router::io::{AttemptId, Input, Machine};
use crate::router::testkit::*;

fn kit(names: &[&'static str]) -> Kit {
    let mut kit = Kit::new();
    for name in names {
        kit = kit.target(name, |t| {
            t.credentials = Some(SecretRef::Env(format!("K-{name}")));
            t.capacity.slots = Some(1);
        });
    }
    kit
}

/// One route over these, in this order.
fn one(names: &[&'static str]) -> Kit {
    kit(names).route("r", &[names], |_| {})
}

/// To the next probe: its attempt and its target's name.
fn next_probe(d: &mut Drive) -> (AttemptId, String) {
    let before = d.probes().len();
    while d.probes().len() == before {
        d.now = d.engine.poll_timeout().expect("a probe is due some time");
        d.input(Input::Tick);
    }
    d.probes().pop().expect("it was just begun")
}

#[test]
fn an_open_breaker_stays_open_and_its_probe_brings_the_target_back() {
    let mut d = one(&["a", "b"]).drive();
    for _ in 0..3 {
        d.bad_request(&status(503));
    }
    assert_eq!((d.state("a"), d.state("b")), ("cooling", "cooling"));
    // `b` is gone, `c` is new, and the order is another.
    d.replace(one(&["c", "a"]).policy());
    d.take();
    assert_eq!((d.state("a"), d.state("c")), ("cooling", "serving"));
    assert_eq!(d.good_request(), "c");
    let (probe, name) = next_probe(&mut d);
    assert_eq!(name, "a", "and nobody probes what is gone");
    d.ended(probe);
    let (probe, _) = d.probes().pop().expect("the second follows at once");
    d.ended(probe);
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn a_request_under_way_ends_by_the_policy_that_it_began_with() {
    let mut d = one(&["a", "b"]).drive();
    let request = d.arrive(facts());
    d.replace(kit(&["c"]).route("r", &[&["c"]], |r| r.max_attempts = 1).policy());
    d.broke(d.attempt(request), status(503));
    assert_eq!(d.dialled(request), ["a", "b"], "its own stand-in, its own number of dials");
    d.committed(d.attempt(request));
    d.ended(d.attempt(request));
    let record = d.record(request).expect("it is over");
    assert_eq!(record.target.as_deref(), Some("b"));
    assert_eq!(d.good_request(), "c");
    assert_eq!(d.engine.snapshot(d.now).targets.len(), 1, "what is retired and idle is not told of");
}

#[test]
fn places_taken_before_are_taken_after() {
    let queue = Queue { max_depth: 2, max_wait: Duration::from_secs(5), reserved_for_open_conversations: 0.0 };
    let policy = || kit(&["a"]).route("r", &[&["a"]], |r| r.queue = Some(queue)).policy();
    let mut d = Drive::new(policy());
    let (first, waits) = (d.arrive(facts()), d.arrive(facts()));
    d.replace(policy());
    let third = d.arrive(facts());
    assert_eq!((d.dial(waits), d.dial(third)), (None, None), "its one slot is taken");
    d.committed(d.attempt(first));
    d.ended(d.attempt(first));
    assert_eq!((d.dialled(waits), d.dial(third)), (vec!["a".to_owned()], None), "who came first goes first");
}

#[test]
fn a_slot_more_is_there_at_once_for_who_waits() {
    let queue = Queue { max_depth: 2, max_wait: Duration::from_secs(5), reserved_for_open_conversations: 0.0 };
    let with = |slots| {
        let kit = Kit::new().target("a", move |t| t.capacity.slots = Some(slots));
        kit.route("r", &[&["a"]], |r| r.queue = Some(queue)).policy()
    };
    let mut d = Drive::new(with(1));
    d.arrive(facts());
    let waits = d.arrive(facts());
    assert_eq!(d.dial(waits), None);
    d.replace(with(2));
    assert_eq!(d.dialled(waits), ["a"]);
}

#[test]
fn a_refused_credential_is_tried_again_once_a_policy_is_read_again() {
    let same_key = || {
        let key = |t: &mut crate::policy::Target| t.credentials = Some(SecretRef::Env("K".into()));
        Kit::new().target("a", key).target("b", key).target("other", |_| {}).route("r", &[&["a", "b", "other"]], |_| {})
    };
    let mut d = Drive::new(same_key().policy());
    for again in [false, true] {
        let request = d.arrive(facts());
        d.broke(d.attempt(request), status(401));
        assert_eq!((d.state("a"), d.state("b")), ("benched", "benched"));
        assert_eq!(d.dialled(request).last().map(String::as_str), Some("other"));
        // The same again is enough: what was mended stands in no policy.
        if again {
            d.input(Input::Reread)
        } else {
            d.replace(same_key().policy())
        }
        assert_eq!((d.state("a"), d.state("b")), ("serving", "serving"));
    }
    let probes = d.probes().len();
    d.pass_s(3_600);
    assert_eq!(d.probes().len(), probes, "nothing of the bench is left");
}

#[test]
fn what_was_spent_of_a_rate_and_a_cooldown_stay() {
    let with = |minute: u64, name: &'static str| {
        let kit = Kit::new().target(name, move |t| {
            t.base_url = "http://same.example/v1".into();
            t.model = "m".into();
            t.capacity.requests_per_minute = Some(minute);
        });
        kit.target("b", |_| {}).route("r", &[&[name, "b"]], |_| {}).policy()
    };
    let mut d = Drive::new(with(2, "a"));
    assert_eq!((d.good_request(), d.good_request(), d.good_request()), ("a".into(), "a".into(), "b".into()));
    // Another name and one more a minute: the two that went, went.
    d.replace(with(3, "renamed"));
    assert_eq!((d.good_request(), d.good_request()), ("renamed".into(), "b".into()));
    d.pass_s(61);
    let request = d.arrive(facts());
    d.broke(d.attempt(request), retry_after(600));
    d.replace(with(3, "a"));
    assert_eq!(d.state("a"), "cooling");
}

#[test]
fn new_figures_of_the_breaker_count_from_now_on() {
    let breaker = |failures| move |b: &mut Breaker| b.consecutive_failures = failures;
    let with = |failures| kit(&["a", "b"]).route("r", &[&["a", "b"]], |_| {}).breaker(breaker(failures)).policy();
    let mut d = Drive::new(with(10));
    for _ in 0..2 {
        let request = d.arrive(facts());
        d.broke(d.attempt(request), status(503));
        d.committed(d.attempt(request));
        d.ended(d.attempt(request));
    }
    d.replace(with(3));
    assert_eq!(d.state("a"), "serving");
    let request = d.arrive(facts());
    d.broke(d.attempt(request), status(503));
    assert_eq!(d.state("a"), "cooling", "the third in a row");
}

#[test]
fn a_probe_under_way_at_a_target_that_is_gone_is_heard_out() {
    let mut d = one(&["a", "b"]).drive();
    for _ in 0..3 {
        d.bad_request(&status(503));
    }
    let (probe, name) = next_probe(&mut d);
    let left = if name == "a" { "b" } else { "a" };
    d.replace(one(&[left]).policy());
    d.take();
    d.ended(probe);
    d.pass_s(600);
    assert!(d.probes().iter().all(|(_, n)| n == left), "nobody asks it again: {:?}", d.probes());
    while let Some((probe, _)) = d.probes().pop() {
        d.take();
        d.ended(probe);
    }
    assert!(d.engine.is_idle());
}
