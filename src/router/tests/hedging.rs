//! A second attempt beside a slow one.

use std::time::Duration;

use crate::policy::*;
use crate::router::classify::Class;
use crate::router::testkit::*;
use crate::router::*;

fn two(change: impl FnOnce(&mut Target)) -> Drive {
    Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| {
            t.credentials = Some(SecretRef::Env("KB".into()));
            change(t);
        })
        .route("r", &[&["a", "b"]], |r| r.hedge_after = Some(Duration::from_millis(1_200)))
        .drive()
}

fn hedges(d: &Drive) -> usize {
    d.out.iter().filter(|o| matches!(o, Output::Dial { hedge: true, .. })).count()
}

fn cancelled(d: &Drive) -> Vec<AttemptId> {
    let cancel = |o: &Output| match o {
        Output::Cancel { attempt } => Some(*attempt),
        _ => None,
    };
    d.out.iter().filter_map(cancel).collect()
}

#[test]
fn only_after_the_threshold_and_who_commits_first_is_delivered() {
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    let first = d.attempt(r);
    d.connected(first);
    d.pass_ms(1_199);
    assert_eq!(hedges(&d), 0);
    d.pass_ms(1);
    assert_eq!(d.dialled(r), ["a", "b"]);
    let second = d.attempt(r);
    d.committed(second);
    assert_eq!(cancelled(&d), [first]);
    d.ended(second);
    let record = d.record(r).expect("done");
    assert_eq!(record.target.as_deref(), Some("b"));
    assert_eq!(record.attempts[0].reason, "hedge_lost");
    assert!(record.attempts[1].why.starts_with("hedge"));
    let a = &d.engine.snapshot(d.now).targets[0];
    assert_eq!((a.counters.failed_counted, a.counters.failed_other, a.counters.in_flight), (0, 0, 0), "neutral");
    // 1,200 ms noticed slow, then the stand-in: the parts add up to the commit.
    let t = record.timings;
    assert!((t.detection_ms - 1_200.0).abs() < 1e-6, "{t:?}");
}

#[test]
fn the_first_may_still_win() {
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    let first = d.attempt(r);
    d.pass_ms(900);
    d.connected(first);
    d.pass_ms(300);
    let second = d.attempt(r);
    assert_ne!(first, second);
    d.committed(first);
    d.ended(first);
    assert_eq!(cancelled(&d), [second]);
    let record = d.record(r).expect("done");
    assert_eq!(record.target.as_deref(), Some("a"));
    assert!(record.timings.detection_ms.abs() < 1e-6, "{:?}", record.timings);
    assert!(d.engine.is_idle());
}

#[test]
fn risky_tools_are_never_hedged_and_signs_of_life_stop_it() {
    let mut d = two(|_| {});
    let r = d.arrive(Facts { tools: true, risky_tools: true, ..facts() });
    d.connected(d.attempt(r));
    d.pass_ms(1_900);
    assert_eq!(hedges(&d), 0);
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    d.pass_ms(1_100);
    let attempt = d.attempt(r);
    d.input(Input::FirstToken { attempt, sign: Sign::Life });
    d.pass_ms(900);
    assert_eq!(hedges(&d), 0, "it answers, slowly");
}

#[test]
fn never_where_capacity_was_refused_or_slots_are_scarce() {
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    d.broke(d.attempt(r), Failure::Refused);
    d.broke(d.attempt(r), retry_after(1));
    d.pass_s(2);
    d.take();
    let r = d.arrive(facts());
    d.connected(d.attempt(r));
    d.pass_ms(1_500);
    assert_eq!(hedges(&d), 0, "b's rate limit is not forgiven");

    let mut d = two(|t| t.capacity.slots = Some(4));
    for _ in 0..3 {
        let r = d.arrive(facts());
        d.broke(d.attempt(r), object(422, "", "", "`tools` is not supported"));
        d.committed(d.attempt(r));
    }
    assert_eq!(d.engine.snapshot(d.now).targets[1].free_slots, Some(1));
    d.take();
    let r = d.arrive(facts());
    d.connected(d.attempt(r));
    d.pass_ms(1_500);
    assert_eq!(d.dialled(r), ["a", "b"], "one of four is a quarter: room enough");
}

#[test]
fn when_one_fails_the_other_goes_on_and_when_both_fail_the_chain_does() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .target("c", |t| t.credentials = Some(SecretRef::Env("KC".into())))
        .route("r", &[&["a", "b", "c"]], |r| r.hedge_after = Some(Duration::from_millis(500)))
        .drive();
    let r = d.arrive(facts());
    let first = d.attempt(r);
    d.connected(first);
    d.pass_ms(500);
    let second = d.attempt(r);
    d.broke(first, Failure::Reset);
    assert_eq!(d.dialled(r), ["a", "b"], "b is under way");
    d.broke(second, Failure::Reset);
    assert_eq!(d.dialled(r), ["a", "b", "c"]);
    d.ended(d.attempt(r));
    let record = d.record(r).expect("done");
    assert_eq!(
        record.attempts.iter().map(|a| a.class).collect::<Vec<_>>(),
        [Class::Provider, Class::Provider, Class::Success]
    );
}

#[test]
fn a_client_that_leaves_ends_both() {
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    d.connected(d.attempt(r));
    d.pass_ms(1_300);
    d.input(Input::ClientGone { request: r, stalled: false });
    assert_eq!(cancelled(&d).len(), 2);
    assert!(d.engine.is_idle());
}

#[test]
fn a_hedge_counts_as_a_dial() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a", "b"]], |r| {
            r.hedge_after = Some(Duration::from_millis(500));
            r.max_attempts = 1;
        })
        .drive();
    let r = d.arrive(facts());
    d.connected(d.attempt(r));
    d.pass_ms(1_500);
    assert_eq!(d.dialled(r), ["a"]);
}

#[test]
fn a_dial_on_a_fresh_connection_is_hedged_as_the_one_before_was() {
    let mut d = two(|_| {});
    let r = d.arrive(facts());
    d.input(Input::Broke { attempt: d.attempt(r), failure: Failure::Reset, reused: true });
    assert_eq!(d.dialled(r), ["a", "a"]);
    d.connected(d.attempt(r));
    d.pass_ms(1_200);
    assert_eq!(d.dialled(r), ["a", "a", "b"]);
    assert_eq!(hedges(&d), 1);
}
