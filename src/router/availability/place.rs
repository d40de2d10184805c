//! Places: a provider that refuses where a request comes from (451, unsupported region) refuses this target through this
//! egress, whichever credential is shown.

use super::bench::{Benched, Benches};
use crate::policy::{Target, TargetId};
use crate::units::Ts;

/// One target through one egress.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    target: TargetId,
    egress: Option<String>,
}

impl Way {
    fn of(target: &Target) -> Way {
        Way { target: target.id, egress: target.domains.get("egress").cloned() }
    }
}

/// All places that are benched.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    benches: Benches<Way>,
}

impl Places {
    pub(crate) fn new() -> Places {
        Places { benches: Benches::new() }
    }

    /// Books a fault. True if it was newly benched.
    pub(crate) fn fault(&mut self, now: Ts, target: &Target, why: &str) -> bool {
        self.benches.take_out(now, Way::of(target), why, target.id)
    }

    /// The bench of this target.
    pub(crate) fn of(&self, target: &Target) -> Option<&Benched> {
        if self.benches.is_empty() {
            return None;
        }
        let way = Way::of(target);
        self.benches.longest(|scope| *scope == way)
    }

    /// When this target must be probed for a bench.
    pub(crate) fn probe_due(&self, target: TargetId) -> Option<Ts> {
        self.benches.probe_due(target)
    }

    /// Its probe passed.
    pub(crate) fn lift(&mut self, target: &Target) {
        let way = Way::of(target);
        self.benches.lift(|scope| *scope == way);
    }

    /// Another policy holds: what is reached through another egress now is another way.
    pub(crate) fn succeed(&mut self, live: &[&Target]) {
        self.benches.succeed(|way, prober| live.iter().any(|t| Way::of(t) == *way).then_some(prober));
    }

    /// Its probe did not pass.
    pub(crate) fn re_arm(&mut self, now: Ts, target: TargetId) {
        self.benches.re_arm(now, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SecretRef;
    use crate::router::testkit::Kit;

    #[test]
    fn a_place_benches_the_target_through_its_egress_and_not_the_credential() {
        let same_key = Some(SecretRef::Env("K".into()));
        let policy = Kit::new()
            .target("through-eu", |t| {
                t.credentials.clone_from(&same_key);
                t.domains.insert("egress".into(), "eu".into());
            })
            .target("through-kz", |t| {
                t.credentials.clone_from(&same_key);
                t.domains.insert("egress".into(), "kz".into());
            })
            .route("r", &[&["through-eu", "through-kz"]], |_| {})
            .policy();
        let mut places = Places::new();
        assert!(places.fault(Ts::from_s(1), &policy.targets[1], "unsupported_region"));
        assert!(!places.fault(Ts::from_s(2), &policy.targets[1], "unsupported_region"), "no second alert");
        assert!(places.of(&policy.targets[0]).is_none());
        assert_eq!(places.of(&policy.targets[1]).map(|b| b.until), Some(Ts::from_s(901)));
        assert_eq!(places.probe_due(TargetId(1)), Some(Ts::from_s(901)));
        places.re_arm(Ts::from_s(901), TargetId(1));
        assert_eq!(places.probe_due(TargetId(1)), Some(Ts::from_s(1801)));
        places.lift(&policy.targets[1]);
        assert!(places.of(&policy.targets[1]).is_none());
    }
}
