//! Slots, the queue, rate limits and the emergency mode.

use std::time::Duration;

use crate::policy::*;
use crate::router::decision::Outcome;
use crate::router::testkit::*;
use crate::router::*;

fn queue(max_depth: u32, max_wait_ms: u64) -> Option<Queue> {
    Some(Queue { max_depth, max_wait: Duration::from_millis(max_wait_ms), reserved_for_open_conversations: 0.0 })
}

/// `a` with two slots and nobody else.
fn one(change: impl FnOnce(&mut Route)) -> Drive {
    Kit::new().target("a", |t| t.capacity.slots = Some(2)).route("r", &[&["a"]], change).drive()
}

fn task(task: &str) -> Facts {
    Facts { task: task.into(), ..facts() }
}

fn cause(d: &Drive, r: RequestId) -> Option<HandoffCause> {
    match d.reply(r) {
        Some(Reply::Handoff { cause, .. }) => Some(cause),
        _ => None,
    }
}

#[test]
fn who_finds_no_slot_waits_and_is_dialled_when_one_is_free() {
    let mut d = one(|r| r.queue = queue(8, 5_000));
    let (first, second) = (d.arrive(facts()), d.arrive(facts()));
    let third = d.arrive(facts());
    assert!(d.dial(third).is_none() && d.reply(third).is_none());
    d.pass_ms(700);
    d.committed(d.attempt(first));
    assert!(d.dial(third).is_none(), "a stream holds its slot until it ends");
    d.ended(d.attempt(first));
    assert_eq!(d.dialled(third), ["a"]);
    d.ended(d.attempt(third));
    let timings = d.record(third).expect("done").timings;
    assert!((timings.queued_ms - 700.0).abs() < 1e-6, "{timings:?}");
    d.ended(d.attempt(second));
    assert!(d.engine.is_idle());
}

#[test]
fn every_way_out_gives_the_slot_back() {
    type Way = fn(&mut Drive, RequestId);
    let ways: [Way; 4] = [
        |d, r| d.broke(d.attempt(r), Failure::Reset),
        |d, r| d.input(Input::ClientGone { request: r, stalled: false }),
        |d, _| d.pass_ms(2_000),
        |d, r| d.broke(d.attempt(r), object(400, "", "", "bad")),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let mut d = one(|r| r.queue = queue(8, 4_000));
        let (first, _second) = (d.arrive(facts()), d.arrive(facts()));
        let third = d.arrive(facts());
        assert!(d.dial(third).is_none());
        way(&mut d, first);
        assert_eq!(d.dialled(third), ["a"], "way {n}");
    }
}

#[test]
fn a_full_queue_and_a_long_wait_are_honest_handoffs() {
    let mut d = one(|r| r.queue = queue(1, 1_500));
    let _ = (d.arrive(facts()), d.arrive(facts()));
    let waits = d.arrive(facts());
    let full = d.arrive(facts());
    assert_eq!(cause(&d, full), Some(HandoffCause::QueueFull));
    for attempt in [d.attempt(RequestId(1)), d.attempt(RequestId(2))] {
        d.committed(attempt);
    }
    d.pass_ms(1_499);
    assert_eq!(d.reply(waits), None);
    d.pass_ms(1);
    assert_eq!(cause(&d, waits), Some(HandoffCause::QueueTimeout));
    let record = d.record(waits).expect("done");
    assert_eq!((record.outcome, record.handoff), (Outcome::Handoff, Some(HandoffCause::QueueTimeout)));
    assert_eq!(record.skipped[0].reason, "full");
}

#[test]
fn nobody_waits_beyond_the_point_where_a_dial_is_of_use() {
    // Deadline 8 s, reserve 1 s, half of the first-token limit 1 s: nothing later than 6 s.
    let mut d = one(|r| r.queue = queue(8, 60_000));
    let (a, b) = (d.arrive(facts()), d.arrive(facts()));
    let waits = d.arrive(facts());
    d.committed(d.attempt(a));
    d.committed(d.attempt(b));
    d.pass_ms(5_999);
    assert_eq!(d.reply(waits), None);
    d.pass_ms(2);
    assert_eq!(cause(&d, waits), Some(HandoffCause::QueueTimeout));
}

#[test]
fn customers_pass_background_tasks_and_dispensable_ones_are_refused_while_anybody_waits() {
    let mut d = one(|r| {
        r.queue = queue(8, 5_000);
        r.on_capacity_exhausted = Some(OnCapacityExhausted {
            disable_tasks: vec!["summary".into()],
            preserve_tasks: vec!["customer_reply".into()],
            max_output_tokens: Some(400),
        });
    });
    let before = d.arrive(task("summary"));
    let _ = d.arrive(facts());
    let draft = d.arrive(task("draft"));
    let customer = d.arrive(facts());
    let summary = d.arrive(task("summary"));
    assert!(matches!(d.reply(summary), Some(Reply::Unavailable { .. })), "given up first");
    d.take();
    d.ended(AttemptId(1));
    assert_eq!(d.dialled(customer), ["a"], "though the draft came before");
    assert!(d.dial(draft).is_none());
    let capped = d.out.iter().find_map(|o| match o {
        Output::Dial { max_output_tokens, .. } => Some(*max_output_tokens),
        _ => None,
    });
    assert_eq!(capped, Some(Some(400)), "somebody still waits");
    let _ = before;
}

#[test]
fn an_operators_emergency_refuses_dispensable_tasks_and_caps_answers() {
    let mut d = one(|r| {
        r.on_capacity_exhausted = Some(OnCapacityExhausted {
            disable_tasks: vec!["summary".into()],
            preserve_tasks: Vec::new(),
            max_output_tokens: Some(400),
        });
    });
    let cap = |d: &mut Drive| {
        let r = d.arrive(facts());
        let cap = d.out.iter().rev().find_map(|o| match o {
            Output::Dial { max_output_tokens, .. } => Some(*max_output_tokens),
            _ => None,
        });
        d.ended(d.attempt(r));
        cap.expect("dialled")
    };
    assert_eq!(cap(&mut d), None);
    d.input(Input::Emergency { on: true });
    assert_eq!(cap(&mut d), Some(400));
    let summary = d.arrive(task("summary"));
    assert!(matches!(d.reply(summary), Some(Reply::Unavailable { .. })));
    d.input(Input::Emergency { on: false });
    let summary = d.arrive(task("summary"));
    assert_eq!(d.dialled(summary), ["a"]);
}

#[test]
fn a_full_target_spills_to_the_next_before_anybody_waits() {
    let mut d = Kit::new()
        .target("a", |t| t.capacity.slots = Some(1))
        .target("b", |_| {})
        .route("r", &[&["a"], &["b"]], |r| r.queue = queue(8, 5_000))
        .drive();
    let (first, second) = (d.arrive(facts()), d.arrive(facts()));
    assert_eq!((d.dialled(first), d.dialled(second)), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

#[test]
fn the_reserve_is_for_the_loss_of_a_neighbour() {
    let mut d = Kit::new()
        .target("a", |t| {
            t.capacity.slots = Some(4);
            t.capacity.reserve_slots = Some(1);
        })
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a"]], |_| {})
        .route("both", &[&["b", "a"]], |_| {})
        .drive();
    let names = |d: &mut Drive, n: usize| {
        (0..n)
            .filter(|_| {
                let r = d.arrive(facts());
                d.dial(r).is_some()
            })
            .count()
    };
    assert_eq!(names(&mut d, 6), 3, "one of four is kept");
    for _ in 0..3 {
        let r = d.arrive(Facts { route: RouteId(1), ..facts() });
        d.broke(d.attempt(r), Failure::Refused);
    }
    assert_eq!(d.state("b"), "cooling");
    assert_eq!(names(&mut d, 1), 1, "b is out: the reserve is for this");
}

#[test]
fn our_own_rate_limit_keeps_a_stand_in_from_being_run_into_its_limit() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |t| t.capacity.requests_per_minute = Some(5))
        .route("r", &[&["a"], &["b"]], |r| r.queue = queue(2, 500))
        .drive();
    for _ in 0..3 {
        let r = d.arrive(facts());
        d.broke(d.attempt(r), Failure::Refused);
        d.ended(d.attempt(r));
    }
    d.take();
    // Two more fit into the minute, then two wait, and the rest goes to people: none becomes the provider's 429.
    let requests: Vec<RequestId> = (0..6).map(|_| d.arrive(facts())).collect();
    let dialled = requests.iter().filter(|r| d.dial(**r).is_some()).count();
    let full = requests.iter().filter(|r| cause(&d, **r) == Some(HandoffCause::QueueFull)).count();
    assert_eq!((dialled, full), (2, 2));
}

#[test]
fn who_waits_for_a_rate_limit_goes_when_it_gives_room() {
    let mut d = Kit::new()
        .target("a", |t| t.capacity.requests_per_minute = Some(1))
        .route("r", &[&["a"]], |r| {
            r.queue = queue(2, 60_000);
            r.deadline = Duration::from_secs(90);
        })
        .drive();
    let first = d.arrive(facts());
    d.ended(d.attempt(first));
    let second = d.arrive(facts());
    d.pass_s(59);
    assert!(d.dial(second).is_none());
    d.pass_s(2);
    assert_eq!(d.dialled(second), ["a"]);
}

#[test]
fn a_client_that_leaves_the_queue_leaves_no_trace() {
    let mut d = one(|r| r.queue = queue(1, 5_000));
    let _ = (d.arrive(facts()), d.arrive(facts()));
    let waits = d.arrive(facts());
    d.input(Input::ClientGone { request: waits, stalled: false });
    assert_eq!(d.record(waits).expect("done").outcome, Outcome::ClientGone);
    assert_eq!(d.engine.snapshot(d.now).queued, [0]);
    let next = d.arrive(facts());
    assert!(d.reply(next).is_none(), "its place is free");
}

#[test]
fn who_has_no_dial_left_does_not_wait_for_room() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |t| t.capacity.slots = Some(1))
        .route("r", &[&["a"], &["b"]], |r| {
            r.max_attempts = 1;
            r.queue = queue(8, 5_000);
        })
        .route("holds", &[&["b"]], |_| {})
        .drive();
    d.arrive(Facts { route: RouteId(1), ..facts() });
    let r = d.arrive(facts());
    d.broke(d.attempt(r), Failure::Refused);
    assert_eq!(cause(&d, r), Some(HandoffCause::Tried), "{:?}", d.reply(r));
}
