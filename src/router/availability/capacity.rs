//! Rate limits and overload: what shares one limit cools down together.
//!
//! The scope is the target's declared `quota` domain, else its credential and model (rule R3). A stated wait is believed,
//! clamped to a day; without one the cooldown is the breaker's base, doubling with each refusal in a row up to its maximum.

use std::time::Duration;

use super::breaker::doubled;
use crate::policy::{SecretRef, Target};
use crate::units::Ts;

/// No stated wait is believed beyond this (design, settled questions).
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// What shares one limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bucket {
    /// The declared `quota` domain.
    Quota(String),
    /// One credential and model.
    CredentialModel(SecretRef, String),
    /// No credential: one address and model.
    AddressModel(String, String),
}

impl Bucket {
    /// The bucket of a target.
    pub(crate) fn of(target: &Target) -> Bucket {
        match (target.domains.get("quota"), &target.credentials) {
            (Some(quota), _) => Bucket::Quota(quota.clone()),
            (None, Some(secret)) => Bucket::CredentialModel(secret.clone(), target.model.clone()),
            (None, None) => Bucket::AddressModel(target.base_url.clone(), target.model.clone()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cooldown {
    since: Ts,
    until: Ts,
    /// Refusals in a row, each from an attempt that began after the one before was booked.
    strikes: u32,
}

/// Place of a bucket in the core's own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketId(pub(crate) u16);

/// All cooldowns under way or not yet forgiven.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    base: Duration,
    max: Duration,
    cooldowns: Vec<Option<Cooldown>>,
}

impl Capacity {
    pub(crate) fn new(base: Duration, max: Duration, buckets: usize) -> Capacity {
        Capacity { base, max, cooldowns: vec![None; buckets] }
    }

    /// A cooldown goes on in the bucket that stands for the same limit.
    pub(crate) fn inherit(&mut self, bucket: BucketId, old: &Capacity, place: BucketId) {
        self.set(bucket, old.of(place));
    }

    fn of(&self, bucket: BucketId) -> Option<Cooldown> {
        self.cooldowns.get(usize::from(bucket.0)).copied().flatten()
    }

    fn set(&mut self, bucket: BucketId, cooldown: Option<Cooldown>) {
        if let Some(place) = self.cooldowns.get_mut(usize::from(bucket.0)) {
            *place = cooldown;
        }
    }

    /// Until when this bucket cools, if it does.
    pub(crate) fn until(&self, now: Ts, bucket: BucketId) -> Option<Ts> {
        self.of(bucket).map(|c| c.until).filter(|until| *until > now)
    }

    /// True while a refusal is not forgiven: it cools, or has not answered since.
    pub(crate) fn signalled(&self, bucket: BucketId) -> bool {
        self.of(bucket).is_some()
    }

    /// An attempt that began at `began` was refused.
    pub(crate) fn refused(&mut self, now: Ts, began: Ts, bucket: BucketId, stated: Option<Duration>) {
        let stated = stated.map(|wait| wait.min(LONGEST_WAIT));
        let old = self.of(bucket);
        let strikes = match old {
            // It began before the bucket was known to be empty: no new strike, but a longer stated wait is believed.
            Some(old) if began <= old.since => {
                let until = stated.map_or(old.until, |wait| old.until.max(now + wait));
                self.set(bucket, Some(Cooldown { until, ..old }));
                return;
            }
            Some(old) => old.strikes,
            None => 0,
        };
        let wait = match stated {
            Some(wait) if !wait.is_zero() => wait,
            // "Come back at once" is believed one time; said again, it gets the usual backoff.
            Some(_) if strikes == 0 => Duration::ZERO,
            Some(_) => doubled(self.base, strikes - 1, self.max),
            None => doubled(self.base, strikes, self.max),
        };
        let cooldown = Cooldown { since: now, until: now + wait, strikes: strikes.saturating_add(1) };
        self.set(bucket, Some(cooldown));
    }

    /// An attempt that began at `began` was answered in full: the backoff starts anew.
    pub(crate) fn answered(&mut self, began: Ts, bucket: BucketId) {
        if self.of(bucket).is_some_and(|c| began > c.since && began >= c.until) {
            self.set(bucket, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::testkit::Kit;

    fn capacity() -> Capacity {
        Capacity::new(Duration::from_secs(5), Duration::from_secs(120), 1)
    }

    fn bucket() -> BucketId {
        BucketId(0)
    }

    fn left(c: &Capacity, now: Ts) -> u64 {
        c.until(now, bucket()).map_or(0, |until| until.since(now).as_secs())
    }

    #[test]
    fn scope_is_quota_domain_else_credential_and_model_else_address() {
        let policy = Kit::new()
            .target("q", |t| {
                t.domains.insert("quota".into(), "shared".into());
            })
            .target("k", |t| t.credentials = Some(SecretRef::Env("KEY".into())))
            .target("n", |_| {})
            .route("r", &[&["q", "k", "n"]], |_| {})
            .policy();
        assert_eq!(Bucket::of(&policy.targets[0]), Bucket::Quota("shared".into()));
        assert_eq!(
            Bucket::of(&policy.targets[1]),
            Bucket::CredentialModel(SecretRef::Env("KEY".into()), "model-k".into())
        );
        assert_eq!(
            Bucket::of(&policy.targets[2]),
            Bucket::AddressModel("http://n.example/v1".into(), "model-n".into())
        );
    }

    #[test]
    fn without_a_hint_base_doubling_and_an_answer_forgives() {
        let mut c = capacity();
        let mut now = Ts::from_s(1);
        for expected in [5, 10, 20, 40, 80, 120, 120] {
            c.refused(now, now, bucket(), None);
            assert_eq!(left(&c, now), expected);
            now = now + Duration::from_secs(expected);
            assert_eq!(left(&c, now), 0, "over at its end");
        }
        c.answered(now, bucket());
        c.refused(now, now, bucket(), None);
        assert_eq!(left(&c, now), 5);
    }

    #[test]
    fn a_stated_wait_is_believed_and_clamped_to_a_day() {
        let mut c = capacity();
        c.refused(Ts::from_s(1), Ts::from_s(1), bucket(), Some(Duration::from_secs(47)));
        assert_eq!(left(&c, Ts::from_s(1)), 47);
        let mut c = capacity();
        c.refused(Ts::from_s(1), Ts::from_s(1), bucket(), Some(Duration::from_secs(9_999_999)));
        assert_eq!(left(&c, Ts::from_s(1)), 86_400);
    }

    #[test]
    fn a_zero_wait_is_believed_once() {
        let mut c = capacity();
        let now = Ts::from_s(1);
        c.refused(now, now, bucket(), Some(Duration::ZERO));
        assert_eq!(left(&c, now), 0);
        let now = Ts::from_s(2);
        c.refused(now, now, bucket(), Some(Duration::ZERO));
        assert_eq!(left(&c, now), 5);
    }

    #[test]
    fn attempts_already_under_way_do_not_double_it() {
        let mut c = capacity();
        let began = Ts::from_s(1);
        for _ in 0..50 {
            c.refused(Ts::from_s(2), began, bucket(), None);
        }
        assert_eq!(left(&c, Ts::from_s(2)), 5);
        c.refused(Ts::from_s(3), began, bucket(), Some(Duration::from_secs(60)));
        assert_eq!(left(&c, Ts::from_s(3)), 60, "but a longer stated wait counts");
        c.answered(began, bucket());
        assert_eq!(left(&c, Ts::from_s(3)), 60, "and an answer to an older attempt ends nothing");
    }
}
