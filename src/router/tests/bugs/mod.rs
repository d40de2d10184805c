//! Failures that hit other tools, named by their case id: those that a pure core decides.

mod breaker;
mod routing;
mod time;

use crate::policy::*;
use crate::router::testkit::*;
use crate::router::*;

pub(super) fn two() -> Drive {
    Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], |_| {}).drive()
}

pub(super) fn one() -> Drive {
    Kit::new().target("a", |_| {}).route("r", &[&["a"]], |_| {}).drive()
}

pub(super) fn key(name: &str) -> Option<SecretRef> {
    Some(SecretRef::Env(name.into()))
}

/// Answers every probe that has begun and was not answered yet, until none is left.
pub(super) fn pass_probes(d: &mut Drive) {
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
pub(super) fn trip_a(d: &mut Drive) {
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
