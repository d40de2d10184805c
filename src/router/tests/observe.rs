//! Observing: one target is asked and nobody else, and what failover would have done is written down.

use crate::policy::*;
use crate::router::classify::Class;
use crate::router::decision::{Observed, Outcome};
use crate::router::testkit::*;
use crate::router::*;

/// `a`, then `b`; observed.
fn observing(change: impl FnOnce(&mut Route)) -> Drive {
    let mut drive = Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a"], &["b"]], change).drive();
    drive.engine = drive.engine.observing();
    drive
}

/// What is written down about a request, without the times.
fn observed(d: &Drive, of: RequestId) -> Vec<(String, Option<String>, String)> {
    let short = |o: Observed| (o.why, o.to, o.reason);
    d.record(of).expect("done").observed.into_iter().map(short).collect()
}

fn one(why: &str, to: Option<&str>, reason: &str) -> Vec<(String, Option<String>, String)> {
    vec![(why.to_owned(), to.map(str::to_owned), reason.to_owned())]
}

#[test]
fn an_answer_of_the_first_is_nothing_to_write_down() {
    let mut d = observing(|_| {});
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.committed(a);
    d.ended(a);
    let record = d.record(r).expect("done");
    assert_eq!((record.outcome, record.target.as_deref()), (Outcome::Answered, Some("a")));
    assert!(record.observed.is_empty());
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains("observed"), "records of others stay as they were: {text}");
}

#[test]
fn a_failure_goes_to_the_client_as_it_is_and_the_stand_in_is_named() {
    let mut d = observing(|_| {});
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(503));
    assert_eq!(d.dialled(r), ["a"], "nobody else is asked");
    assert_eq!(d.reply(r), Some(Reply::AsItIs { attempt: a }), "the provider's own 503");
    let record = d.record(r).expect("done");
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::ReturnedAsItIs, 1));
    assert_eq!(record.attempts[0].class, Class::Provider);
    assert_eq!(observed(&d, r), one("after a: status_503", Some("b"), "status_503"));
    assert!(d.engine.is_idle());
}

#[test]
fn a_failure_that_has_no_status_is_an_honest_error() {
    let mut d = observing(|_| {});
    let r = d.arrive(facts());
    d.broke(d.attempt(r), Failure::Refused);
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!(why, "a: refused (provider); b: observed (failover is only observed)");
    assert_eq!(observed(&d, r), one("after a: refused", Some("b"), "refused"));
}

#[test]
fn the_callers_own_mistake_would_fail_over_to_nobody() {
    let mut d = observing(|_| {});
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.broke(a, status(400));
    assert_eq!(d.reply(r), Some(Reply::AsItIs { attempt: a }));
    assert!(observed(&d, r).is_empty());
}

#[test]
fn an_open_breaker_takes_nobody_out_it_only_says_who_would_have_been_asked() {
    let mut d = observing(|_| {});
    for _ in 0..3 {
        assert_eq!(d.bad_request(&status(503)), ["a"]);
    }
    assert_eq!(d.state("a"), "cooling");
    d.take();
    let r = d.arrive(facts());
    assert_eq!(d.dialled(r), ["a"], "the observer refuses nothing");
    let a = d.attempt(r);
    d.committed(a);
    d.ended(a);
    assert_eq!(d.record(r).expect("done").target.as_deref(), Some("a"));
    assert_eq!(observed(&d, r), one("instead of a: open", Some("b"), "open"));
    // Its own probe brings it back, as it would.
    d.pass_s(200);
    for (probe, name) in d.probes() {
        assert_eq!(name, "a");
        d.ended(probe);
    }
}

#[test]
fn a_slow_answer_is_waited_for_and_counts_as_it_would_have() {
    let mut d = observing(|_| {});
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    // Its tier gives it 2 s to the first token; the route's deadline less reserve is 7 s.
    d.pass_ms(2_000);
    assert_eq!((d.dialled(r), d.reply(r)), (vec!["a".to_owned()], None));
    let seen = |d: &Drive| {
        let counters = d.engine.snapshot(d.now).targets[0].counters;
        (counters.failed_counted, counters.answered)
    };
    assert_eq!(seen(&d), (1, 0), "failover would have counted it");
    d.pass_ms(3_000);
    d.committed(a);
    d.ended(a);
    assert_eq!(seen(&d), (1, 0), "and it counts once");
    assert_eq!(d.record(r).expect("done").outcome, Outcome::Answered);
    assert_eq!(observed(&d, r), one("after a: first_token_timeout", Some("b"), "first_token_timeout"));
    assert!((d.record(r).expect("done").observed[0].at_ms - 2_000.0).abs() < 1e-6);
}

#[test]
fn nothing_is_waited_for_beyond_the_deadline() {
    let mut d = observing(|_| {});
    let r = d.arrive(Facts { stream: false, ..facts() });
    let a = d.attempt(r);
    d.connected(a);
    d.pass_ms(7_000);
    assert!(d.out.contains(&Output::Cancel { attempt: a }));
    assert!(matches!(d.reply(r), Some(Reply::Handoff { .. })));
    assert_eq!(d.dialled(r), ["a"]);
    assert_eq!(observed(&d, r).len(), 1, "{:?}", observed(&d, r));
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 1, "once");
}

#[test]
fn law_and_ability_choose_the_one_that_is_asked() {
    let mut d = Kit::new()
        .target("a", |t| t.capabilities.vision = false)
        .target("b", |t| t.capabilities.vision = true)
        .route("r", &[&["a"], &["b"]], |_| {})
        .drive();
    d.engine = d.engine.observing();
    let r = d.arrive(Facts { vision: true, ..facts() });
    assert_eq!(d.dialled(r), ["b"], "the first that can");
    d.broke(d.attempt(r), Failure::Reset);
    assert_eq!(observed(&d, r), one("after b: reset", None, "reset"));
}

#[test]
fn a_pool_that_would_choose_otherwise_and_a_full_one_are_told() {
    let mut d = Kit::new()
        .target("a", |t| t.capacity.slots = Some(1))
        .target("b", |_| {})
        .route("r", &[&["a"], &["b"]], |_| {})
        .drive();
    d.engine = d.engine.observing();
    let first = d.arrive(facts());
    let second = d.arrive(facts());
    assert_eq!((d.dialled(first), d.dialled(second)), (vec!["a".to_owned()], vec!["a".to_owned()]));
    let attempt = d.attempt(second);
    d.committed(attempt);
    d.ended(attempt);
    assert_eq!(observed(&d, second), one("instead of a: full", Some("b"), "full"));
}

#[test]
fn a_reused_connection_that_fails_is_redialled_whatever_the_breaker_says() {
    let mut d = observing(|_| {});
    for _ in 0..3 {
        d.bad_request(&status(503));
    }
    d.take();
    let r = d.arrive(facts());
    d.input(Input::Broke { attempt: d.attempt(r), failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a", "a"]);
    let again = d.attempt(r);
    d.committed(again);
    d.ended(again);
    assert_eq!(d.record(r).expect("done").outcome, Outcome::Answered);
}

#[test]
fn nobody_but_those_that_are_asked_first_is_ever_probed() {
    let account = |t: &mut Target| t.credentials = Some(SecretRef::Env("SAME".into()));
    let mut d = Kit::new().target("a", account).target("b", account).route("r", &[&["a"], &["b"]], |_| {}).drive();
    d.engine = d.engine.observing();
    let r = d.arrive(facts());
    d.broke(d.attempt(r), status(401));
    assert_eq!((d.state("a"), d.state("b")), ("benched", "benched"), "they share a credential");
    d.pass_s(3_600);
    assert!(!d.probes().is_empty() && d.probes().iter().all(|(_, name)| name == "a"), "{:?}", d.probes());
}
