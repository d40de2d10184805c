//! Every order of up to six inputs around the half-open state: never two probes, never a lost one.

use crate::router::decision::Availability;
use crate::router::testkit::*;
use crate::router::*;

/// What may happen around the half-open state.
const MOVES: usize = 8;

/// A route over two targets; `a` is open with two attempts from before the trip still under way, and its cooldown is over in
/// the next instant.
fn at_the_edge() -> (Drive, Vec<AttemptId>) {
    let mut d = Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], |_| {}).drive();
    let old: Vec<AttemptId> = (0..2)
        .map(|_| {
            let r = d.arrive(facts());
            let a = d.attempt(r);
            d.committed(a);
            a
        })
        .collect();
    for _ in 0..3 {
        let r = d.arrive(facts());
        let a = d.attempt(r);
        d.broke(a, Failure::Refused);
        let b = d.attempt(r);
        d.ended(b);
    }
    d.take();
    (d, old)
}

/// The probe under way, if there is one.
fn probe(d: &Drive, over: &[AttemptId]) -> Option<AttemptId> {
    d.probes().iter().map(|(probe, _)| *probe).find(|probe| !over.contains(probe))
}

fn make(d: &mut Drive, which: usize, old: &[AttemptId], over: &mut Vec<AttemptId>) {
    let under_way = probe(d, over);
    let mut end = |d: &mut Drive, input: &dyn Fn(AttemptId) -> Input| {
        if let Some(probe) = under_way {
            over.push(probe);
            d.input(input(probe));
        }
    };
    match which {
        0 => d.pass_ms(5_000),
        1 => end(d, &|attempt| Input::Ended { attempt, usage: None }),
        2 => end(d, &|attempt| Input::Broke { attempt, failure: Failure::Reset, reused: false }),
        3 => end(d, &|attempt| Input::Broke { attempt, failure: status(429), reused: false }),
        4 => d.ended(old[0]),
        5 => d.broke(old[1], Failure::Reset),
        6 => {
            let r = d.arrive(facts());
            let (attempt, name) = d.dial(r).expect("b serves");
            if name == "a" {
                assert_eq!(d.state("a"), "serving", "an open target got a request");
            }
            d.ended(attempt);
        }
        _ => d.pass_ms(100),
    }
    for output in &d.out {
        if let Output::Cancel { attempt } = output
            && !over.contains(attempt)
        {
            over.push(*attempt);
        }
    }
}

fn check(d: &Drive, over: &[AttemptId], path: &[usize]) {
    let under_way = d.probes().iter().filter(|(probe, _)| !over.contains(probe)).count();
    assert!(under_way <= 1, "two probes after {path:?}");
    let target = &d.engine.snapshot(d.now).targets[0];
    match &target.availability {
        Availability::Probing => assert_eq!(under_way, 1, "a lost probe after {path:?}"),
        Availability::Cooling { until, .. } => {
            assert_eq!(under_way, 0, "a probe of a cooling target after {path:?}");
            assert!(*until > d.now, "overdue after {path:?}");
            assert!(d.engine.poll_timeout().is_some_and(|at| at <= *until), "nobody wakes it after {path:?}");
        }
        Availability::Serving { .. } => assert_eq!(under_way, 0, "a probe of a serving target after {path:?}"),
        Availability::Benched { .. } => panic!("benched after {path:?}"),
    }
}

/// Tries every move from here, and every move after that, so many deep. A move that changes nothing ends its branch: what
/// could follow it follows without it as well. Returns how many states were checked.
fn explore(d: &Drive, old: &[AttemptId], over: &[AttemptId], path: &mut Vec<usize>, deep: usize) -> u64 {
    if deep == 0 {
        comes_back(d, over, path);
        return 1;
    }
    let mut checked = 0;
    for which in 0..MOVES {
        let idle = match which {
            1..=3 => probe(d, over).is_none(),
            4 | 5 => path.contains(&which),
            // Waiting in small steps twice in a row shows nothing that a long step does not.
            7 => path.last() == Some(&7),
            _ => false,
        };
        if idle {
            continue;
        }
        let (mut d, mut over) = (d.clone(), over.to_vec());
        path.push(which);
        make(&mut d, which, old, &mut over);
        check(&d, &over, path);
        checked += 1 + explore(&d, old, &over, path, deep - 1);
        path.pop();
    }
    checked
}

/// Every probe from here on is answered: the target must serve again.
fn comes_back(d: &Drive, over: &[AttemptId], path: &[usize]) {
    let (mut d, mut over) = (d.clone(), over.to_vec());
    for _ in 0..20 {
        while let Some(p) = probe(&d, &over) {
            over.push(p);
            d.ended(p);
        }
        if d.state("a") == "serving" {
            return;
        }
        d.now = d.engine.poll_timeout().expect("its probe is due");
        d.input(Input::Tick);
    }
    panic!("lost after {path:?}");
}

#[test]
fn every_order_of_six_inputs_keeps_exactly_one_probe() {
    let (mut d, old) = at_the_edge();
    d.pass_ms(3_990);
    let checked = explore(&d, &old, &[], &mut Vec::new(), 6);
    assert!(checked > 10_000, "only {checked} states: the moves no longer reach the half-open state");
}
