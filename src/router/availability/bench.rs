//! What accounts and places have in common: a thing is taken out until a probe passes, and one is tried every 15 minutes.
//!
//! The target that showed the fault is the one that is probed; a passed probe lifts the bench for everything under it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::policy::TargetId;
use crate::units::Ts;

/// How long a benched target waits for its next probe (rule R3).
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(15 * 60);

/// One bench.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Benched {
    /// Next probe.
    pub(crate) until: Ts,
    /// Named reason.
    pub(crate) why: String,
    /// Who is probed.
    pub(crate) prober: TargetId,
}

/// Benches by what they cover.
#[derive(Clone, Debug)]
pub(super) struct Benches<Scope> {
    by_scope: BTreeMap<Scope, Benched>,
}

impl<Scope: Ord> Benches<Scope> {
    pub(super) fn new() -> Benches<Scope> {
        Benches { by_scope: BTreeMap::new() }
    }

    /// Takes a scope out. False if it is out already.
    pub(super) fn take_out(&mut self, now: Ts, scope: Scope, why: &str, prober: TargetId) -> bool {
        if self.by_scope.contains_key(&scope) {
            return false;
        }
        self.by_scope.insert(scope, Benched { until: now + PROBE_EVERY, why: why.to_owned(), prober });
        true
    }

    /// The longest bench among the scopes that `covers` names.
    pub(super) fn longest(&self, covers: impl Fn(&Scope) -> bool) -> Option<&Benched> {
        self.by_scope.iter().filter(|(scope, _)| covers(scope)).map(|(_, b)| b).max_by_key(|b| b.until)
    }

    /// When this target must be probed for a bench.
    pub(super) fn probe_due(&self, target: TargetId) -> Option<Ts> {
        self.by_scope.values().filter(|b| b.prober == target).map(|b| b.until).min()
    }

    /// A probe passed: lifts the scopes that `covers` names.
    pub(super) fn lift(&mut self, covers: impl Fn(&Scope) -> bool) {
        self.by_scope.retain(|scope, _| !covers(scope));
    }

    /// A probe did not pass: the benches that this target is probed for wait for the next one.
    pub(super) fn re_arm(&mut self, now: Ts, prober: TargetId) {
        for benched in self.by_scope.values_mut().filter(|b| b.prober == prober) {
            benched.until = now + PROBE_EVERY;
        }
    }

    /// Another policy holds: a bench stays if somebody is left who can be probed for it.
    pub(super) fn succeed(&mut self, mut prober: impl FnMut(&Scope, TargetId) -> Option<TargetId>) {
        self.by_scope.retain(|scope, benched| match prober(scope, benched.prober) {
            Some(other) => {
                benched.prober = other;
                true
            }
            None => false,
        });
    }

    pub(super) fn contains(&self, scope: &Scope) -> bool {
        self.by_scope.contains_key(scope)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_scope.is_empty()
    }
}
