//! Health, ramp, and the order inside a tier.

use std::time::Duration;

use crate::policy::*;
use crate::router::testkit::*;
use crate::router::*;
use crate::units::Ts;

fn ramp() -> Option<Ramp> {
    Some(Ramp { steps: vec![0.05, 0.25, 0.5, 1.0], hold: Duration::from_secs(30), step_back_error_rate: 0.1 })
}

/// `a` and `b` at different accounts; a's baseline is 500 ms.
fn two(change: impl FnOnce(&mut Route)) -> Drive {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a", "b"]], change)
        .drive();
    d.input(Input::Evidence {
        records: (0..2)
            .map(|n| Evidence {
                group: "g".into(),
                target: TargetId(n),
                standing: Standing::Eligible,
                stale_at: None,
                baseline_p95_ms: Some(500),
                prompt_sha256: None,
            })
            .collect(),
    });
    d
}

/// One request, answered after so long; says by whom.
fn answer(d: &mut Drive, ms: u64) -> String {
    let r = d.arrive(facts());
    let (attempt, name) = d.dial(r).expect("somebody serves");
    d.pass_ms(ms);
    d.committed(attempt);
    d.ended(attempt);
    name
}

/// Trips `a`, then lets its probes pass.
fn trip_and_recover(d: &mut Drive) {
    for _ in 0..3 {
        let r = d.arrive(facts());
        d.broke(d.attempt(r), Failure::Refused);
        d.ended(d.attempt(r));
    }
    assert_eq!(d.state("a"), "cooling");
    d.take();
    while d.state("a") != "serving" {
        let at = d.engine.poll_timeout().expect("a probe is due");
        d.now = d.now.max(at);
        d.input(Input::Tick);
        while let Some((probe, _)) = d.probes().last().cloned() {
            d.take();
            d.ended(probe);
        }
    }
    d.take();
}

fn share_of_a(d: &mut Drive, n: usize) -> usize {
    (0..n).filter(|_| answer(d, 100) == "a").count()
}

#[test]
fn traffic_comes_back_in_steps_and_the_first_request_goes_to_the_recovered_target() {
    let mut d = two(|r| r.ramp = ramp());
    trip_and_recover(&mut d);
    assert_eq!(answer(&mut d, 100), "a", "the first one");
    assert_eq!(share_of_a(&mut d, 40), 2, "5 % of forty");
    d.pass_s(30);
    assert_eq!(share_of_a(&mut d, 40), 10, "25 % of forty");
    d.pass_s(30);
    assert_eq!(share_of_a(&mut d, 40), 20, "half");
    d.pass_s(30);
    assert_eq!(share_of_a(&mut d, 20), 20);
}

#[test]
fn a_ramp_steps_back_when_it_goes_wrong() {
    let mut d = two(|r| r.ramp = ramp());
    trip_and_recover(&mut d);
    share_of_a(&mut d, 40);
    d.pass_s(30);
    share_of_a(&mut d, 40);
    d.pass_s(30);
    // At half: every other request goes to a; two of five there fail, not three in a row.
    let mut at_a = 0;
    while d.engine.snapshot(d.now).targets[0].ramp_step == Some(2) {
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("dialled");
        if name == "a" {
            at_a += 1;
            if at_a % 2 == 0 {
                d.broke(attempt, Failure::Reset);
                d.ended(d.attempt(r));
                continue;
            }
        }
        d.ended(attempt);
        assert!(at_a < 10, "it never stepped back");
    }
    assert_eq!(d.engine.snapshot(d.now).targets[0].ramp_step, Some(1));
    assert_eq!(d.state("a"), "serving", "the breaker had no reason");
}

#[test]
fn a_ramp_limits_only_while_another_can_take_the_rest() {
    let mut d = two(|r| r.ramp = ramp());
    trip_and_recover(&mut d);
    answer(&mut d, 10);
    for _ in 0..3 {
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("dialled");
        assert_eq!(name, "b");
        d.broke(attempt, Failure::Refused);
        d.ended(d.attempt(r));
    }
    assert_eq!(d.state("b"), "cooling");
    assert_eq!(share_of_a(&mut d, 10), 10, "everything, whatever the step");
}

#[test]
fn a_stand_in_takes_its_guaranteed_slots_at_once() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .target("c", |t| t.credentials = Some(SecretRef::Env("KC".into())))
        .change(|p| {
            let group = Group {
                golden_set: None,
                members: vec![TargetId(0), TargetId(1)],
                candidates: Vec::new(),
                evidence_max_age: None,
                min_guaranteed_slots: Some(3),
                sampling: 0.0,
            };
            p.groups.insert("g".into(), group);
        })
        .route("r", &[&["a", "b", "c"]], |r| {
            r.ramp = ramp();
            r.tiers[0].group = Some("g".into());
        })
        .drive();
    // b is out and back, so it ramps; then a goes out.
    d.input(Input::Bench { target: TargetId(0), out: true, until: None });
    for _ in 0..3 {
        let r = d.arrive(facts());
        d.broke(d.attempt(r), Failure::Refused);
        d.ended(d.attempt(r));
    }
    d.take();
    while d.state("b") != "serving" {
        let at = d.engine.poll_timeout().expect("a probe is due");
        d.now = d.now.max(at);
        d.input(Input::Tick);
        while let Some((probe, _)) = d.probes().last().cloned() {
            d.take();
            d.ended(probe);
        }
    }
    let names: Vec<String> = (0..5)
        .map(|_| {
            let r = d.arrive(facts());
            d.dial(r).expect("dialled").1
        })
        .collect();
    assert_eq!(names[..3], ["b", "b", "b"], "three at once are guaranteed");
    assert!(names[3..].contains(&"c".to_owned()), "beyond that its share of 5 % holds: {names:?}");
}

#[test]
fn a_slow_target_loses_a_part_of_its_traffic_without_one_error() {
    let mut d = two(|_| {});
    for _ in 0..60 {
        answer(&mut d, 300);
    }
    assert_eq!(d.state("a"), "serving");
    // Three times the baseline: latency part 0, share 0.1.
    let slow = |d: &mut Drive, n: usize| {
        (0..n)
            .filter(|_| {
                let r = d.arrive(facts());
                let (attempt, name) = d.dial(r).expect("dialled");
                d.connected(attempt);
                d.pass_ms(if name == "a" { 1_500 } else { 300 });
                d.committed(attempt);
                d.ended(attempt);
                name == "a"
            })
            .count()
    };
    slow(&mut d, 60);
    let at_a = slow(&mut d, 50);
    assert!(at_a > 0 && at_a < 25, "{at_a} of 50");
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 0);
}

#[test]
fn three_bad_minutes_eject_and_probes_bring_it_back_but_never_the_last_one() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        // A breaker that never trips, so that health is seen alone.
        .breaker(|b| {
            b.consecutive_failures = 1_000_000;
            b.failures_in_window = 1_000_000;
        })
        .route("r", &[&["a", "b"]], |_| {})
        .drive();
    let fail_at_a = |d: &mut Drive| {
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("dialled");
        if name == "a" {
            d.broke(attempt, Failure::Reset);
            let (attempt, _) = d.dial(r).expect("b follows");
            d.ended(attempt);
        } else {
            d.ended(attempt);
        }
    };
    let start = d.now;
    while d.state("a") == "serving" {
        fail_at_a(&mut d);
        d.pass_ms(200);
        assert!(d.now.since(start) < Duration::from_secs(400), "never ejected");
    }
    let after = d.now.since(start).as_secs();
    assert!((180..=190).contains(&after), "three minutes below 30, and the first five outcomes: {after} s");
    let snapshot = d.engine.snapshot(d.now);
    assert!(format!("{:?}", snapshot.targets[0].availability).contains("ejected"));
    // b goes out as well: a is let back in, for somebody must answer.
    d.input(Input::Bench { target: TargetId(1), out: true, until: None });
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn select_health_prefers_the_better_and_shares_between_equals_by_free_slots() {
    let mut d = Kit::new()
        .target("a", |t| {
            t.credentials = Some(SecretRef::Env("KA".into()));
            t.capacity.slots = Some(10);
        })
        .target("b", |t| {
            t.credentials = Some(SecretRef::Env("KB".into()));
            t.capacity.slots = Some(30);
        })
        .route("r", &[&["a", "b"]], |r| r.tiers[0].select = Select::Health)
        .drive();
    let names: Vec<String> = (0..8)
        .map(|_| {
            let r = d.arrive(facts());
            d.dial(r).expect("dialled").1
        })
        .collect();
    // Free parts: equal, a first as written; then b until it is busier than a tenth: three to one.
    assert_eq!(names.join(""), "abbbabbb");
}

#[test]
fn select_latency_takes_the_faster_once_enough_was_seen() {
    let mut d = two(|r| r.tiers[0].select = Select::Latency);
    let run = |d: &mut Drive| {
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("dialled");
        d.pass_ms(if name == "a" { 400 } else { 200 });
        d.committed(attempt);
        d.ended(attempt);
        name
    };
    let names: Vec<String> = (0..30).map(|_| run(&mut d)).collect();
    assert_eq!(names[..10].concat(), "a".repeat(10), "as written until both are known");
    assert_eq!(names[10..20].concat(), "b".repeat(10), "then the unknown one");
    assert_eq!(names[20..].concat(), "b".repeat(10), "then the faster");
}

#[test]
fn select_cost_takes_the_cheaper_and_unknown_prices_last() {
    let price = |usd: f64| Some(Price { input_per_mtok_usd: usd, output_per_mtok_usd: usd });
    let mut d = Kit::new()
        .target("unknown", |_| {})
        .target("dear", |t| t.price = price(3.0))
        .target("cheap", |t| t.price = price(0.5))
        .route("r", &[&["unknown", "dear", "cheap"]], |r| r.tiers[0].select = Select::Cost)
        .drive();
    assert_eq!(d.bad_request(&Failure::Refused), ["cheap", "dear", "unknown"]);
}

#[test]
fn load_dependent_latency_settles_and_does_not_swing() {
    // a answers in 250 ms alone, and slower the more requests of the last second it had; b takes 700 ms always. On an on/off
    // rule all traffic would leave a, return, and leave again. 10 requests a second for ten minutes.
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a", "b"]], |r| r.ramp = ramp())
        .drive();
    d.input(Input::Evidence {
        records: vec![Evidence {
            group: "g".into(),
            target: TargetId(0),
            standing: Standing::Eligible,
            stale_at: None,
            baseline_p95_ms: Some(250),
            prompt_sha256: None,
        }],
    });
    let mut due: std::collections::BTreeMap<(Ts, u64), AttemptId> = std::collections::BTreeMap::new();
    let mut last_second: std::collections::VecDeque<Ts> = std::collections::VecDeque::new();
    let mut per_half_minute = [0u32; 20];
    let start = d.now;
    for n in 0..6_000u64 {
        let at = start + Duration::from_millis(100 * n);
        while let Some((&(ready, k), &attempt)) = due.first_key_value() {
            if ready > at {
                break;
            }
            due.remove(&(ready, k));
            d.pass_ms(u64::try_from(ready.since(d.now).as_millis()).expect("small"));
            d.committed(attempt);
            d.ended(attempt);
        }
        d.pass_ms(u64::try_from(at.since(d.now).as_millis()).expect("small"));
        d.take();
        let r = d.arrive(facts());
        let (attempt, name) = d.dial(r).expect("dialled");
        d.connected(attempt);
        let ms = if name == "a" {
            last_second.push_back(d.now);
            while last_second.front().is_some_and(|t| d.now.since(*t) > Duration::from_secs(1)) {
                last_second.pop_front();
            }
            per_half_minute[(n / 300) as usize] += 1;
            250 + 100 * (last_second.len() as u64).saturating_sub(3)
        } else {
            700
        };
        due.insert((d.now + Duration::from_millis(ms), n), attempt);
    }
    let late = &per_half_minute[8..];
    let (least, most) = (*late.iter().min().expect("some"), *late.iter().max().expect("some"));
    assert!(least > 0, "never empty: {per_half_minute:?}");
    assert!(most < 300, "never everything: {per_half_minute:?}");
    let mean = late.iter().sum::<u32>() as f64 / late.len() as f64;
    assert!(f64::from(most - least) <= 0.5 * mean, "swings: {per_half_minute:?}");
}
