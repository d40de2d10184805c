//! Account faults: a refused credential, a used-up budget, a model that this account does not have.

use std::collections::BTreeMap;

use super::bench::{Benched, Benches};
use crate::policy::{SecretRef, Target, TargetId};
use crate::router::classify::Bench;
use crate::router::io::RequestId;
use crate::units::Ts;

/// What is benched together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Every target with this credential.
    Credential(SecretRef),
    /// Every target in this `account` domain: a used-up budget is the account's, whichever key was shown.
    Account(String),
    /// One target alone.
    Target(TargetId),
}

impl Scope {
    /// What a fault of this kind benches.
    fn of(target: &Target, bench: Bench) -> Scope {
        let credential = || target.credentials.clone().map(Scope::Credential);
        let account = || target.domains.get("account").cloned().map(Scope::Account);
        let scope = match bench {
            Bench::Credential | Bench::CredentialIfRepeated => credential(),
            Bench::Budget => account().or_else(credential),
            Bench::Target => None,
        };
        scope.unwrap_or(Scope::Target(target.id))
    }

    /// True if this target is under it.
    fn covers(&self, target: &Target) -> bool {
        match self {
            Scope::Credential(secret) => target.credentials.as_ref() == Some(secret),
            Scope::Account(account) => target.domains.get("account") == Some(account),
            Scope::Target(id) => target.id == *id,
        }
    }
}

/// All accounts that are benched or suspected.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    benches: Benches<Scope>,
    /// A first 403, and the request that saw it: only a second one by another request benches.
    suspected: BTreeMap<Scope, RequestId>,
}

impl Accounts {
    pub(crate) fn new() -> Accounts {
        Accounts { benches: Benches::new(), suspected: BTreeMap::new() }
    }

    /// Books a fault that this request saw (none: a probe). True if something was newly benched.
    pub(crate) fn fault(
        &mut self,
        now: Ts,
        target: &Target,
        bench: Bench,
        why: &str,
        request: Option<RequestId>,
    ) -> bool {
        let scope = Scope::of(target, bench);
        if self.benches.contains(&scope) {
            return false;
        }
        if let (Bench::CredentialIfRepeated, Some(request)) = (bench, request) {
            match self.suspected.get(&scope) {
                Some(first) if *first != request => {}
                Some(_) => return false,
                None => {
                    self.suspected.insert(scope, request);
                    return false;
                }
            }
        }
        self.suspected.remove(&scope);
        self.benches.take_out(now, scope, why, target.id)
    }

    /// An answer in full: a lone 403 before it meant that request only.
    pub(crate) fn answered(&mut self, target: &Target) {
        if !self.suspected.is_empty() {
            self.suspected.retain(|scope, _| !scope.covers(target));
        }
    }

    /// The bench that keeps this target out longest.
    pub(crate) fn of(&self, target: &Target) -> Option<&Benched> {
        self.benches.longest(|scope| scope.covers(target))
    }

    /// When this target must be probed for a bench.
    pub(crate) fn probe_due(&self, target: TargetId) -> Option<Ts> {
        self.benches.probe_due(target)
    }

    /// Its probe passed: everything that this target is under is lifted.
    pub(crate) fn lift(&mut self, target: &Target) {
        self.benches.lift(|scope| scope.covers(target));
        self.answered(target);
    }

    /// Its probe did not pass.
    pub(crate) fn re_arm(&mut self, now: Ts, target: TargetId) {
        self.benches.re_arm(now, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::router::testkit::Kit;

    /// a and b share a key; c has another key on the account of b; d stands alone without a key.
    fn policy() -> Policy {
        let key = |name: &str| Some(SecretRef::Env(name.into()));
        let account = |name: &str| ("account".to_owned(), name.to_owned());
        Kit::new()
            .target("a", |t| t.credentials = key("K1"))
            .target("b", |t| {
                t.credentials = key("K1");
                t.domains.extend([account("acme")]);
            })
            .target("c", |t| {
                t.credentials = key("K2");
                t.domains.extend([account("acme")]);
            })
            .target("d", |_| {})
            .route("r", &[&["a", "b", "c", "d"]], |_| {})
            .policy()
    }

    fn benched(b: &Accounts, p: &Policy) -> String {
        p.targets.iter().filter(|t| b.of(t).is_some()).map(|t| t.name.as_str()).collect()
    }

    fn fault(b: &mut Accounts, p: &Policy, target: usize, bench: Bench, request: u64) -> bool {
        b.fault(Ts::from_s(1), &p.targets[target], bench, "why", Some(RequestId(request)))
    }

    #[test]
    fn a_refused_credential_benches_all_that_show_it() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(fault(&mut b, &p, 0, Bench::Credential, 1));
        assert!(!fault(&mut b, &p, 1, Bench::Credential, 2), "already benched: no second alert");
        assert_eq!(benched(&b, &p), "ab");
    }

    #[test]
    fn a_used_up_budget_benches_the_account_where_declared() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(fault(&mut b, &p, 1, Bench::Budget, 1));
        assert_eq!(benched(&b, &p), "bc");
        let mut b = Accounts::new();
        assert!(fault(&mut b, &p, 0, Bench::Budget, 1));
        assert_eq!(benched(&b, &p), "ab", "no account domain: the credential");
        let mut b = Accounts::new();
        assert!(fault(&mut b, &p, 3, Bench::Budget, 1));
        assert_eq!(benched(&b, &p), "d", "no credential: the target alone");
    }

    #[test]
    fn an_unknown_model_benches_its_target_alone() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(fault(&mut b, &p, 0, Bench::Target, 1));
        assert_eq!(benched(&b, &p), "a");
    }

    #[test]
    fn a_403_benches_only_when_two_requests_saw_it() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(!fault(&mut b, &p, 0, Bench::CredentialIfRepeated, 1));
        assert!(!fault(&mut b, &p, 1, Bench::CredentialIfRepeated, 1), "the same request at a sibling");
        assert_eq!(benched(&b, &p), "");
        assert!(fault(&mut b, &p, 0, Bench::CredentialIfRepeated, 2));
        assert_eq!(benched(&b, &p), "ab");
    }

    #[test]
    fn an_answer_between_two_403_clears_the_suspicion() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(!fault(&mut b, &p, 0, Bench::CredentialIfRepeated, 1));
        b.answered(&p.targets[1]);
        assert!(!fault(&mut b, &p, 0, Bench::CredentialIfRepeated, 2));
        assert_eq!(benched(&b, &p), "");
    }

    #[test]
    fn a_passed_probe_lifts_and_a_failed_one_waits_another_quarter_of_an_hour() {
        let (p, mut b) = (policy(), Accounts::new());
        assert!(fault(&mut b, &p, 0, Bench::Credential, 1));
        assert_eq!(b.probe_due(TargetId(0)), Some(Ts::from_s(901)));
        assert_eq!(b.probe_due(TargetId(1)), None, "one prober for all");
        b.re_arm(Ts::from_s(902), TargetId(0));
        assert_eq!(b.probe_due(TargetId(0)), Some(Ts::from_s(1802)));
        b.lift(&p.targets[1]);
        assert_eq!(benched(&b, &p), "", "a passed probe of any sibling proves the credential");
    }
}
