//! Time: what one dial may take of what is left.
//!
//! - An attempt's limit is `min(its own, what remains - reserve)`.
//! - It starts only if that is at least half of its own limit.
//! - A timeout counts against the target only if the attempt had at least 80 % of its own limit.
//! - A stream's own limit is its tier's first-token limit. An answer that is not streamed has the tier's `answer_timeout`; where
//!   none is set, the larger of (what remains - reserve) / dials left and 1.5 x the target's p95 service time, never more than
//!   what remains - reserve. Such a computed limit is no figure of the operator's, so the two rules above use these instead: it
//!   starts if half of the tier's first-token limit remains, and a timeout counts if the attempt had 80 % of 1.5 x p95 (without
//!   a declared p95: of an even share of the whole budget).
//!
//! Everything ends at the deadline less the reserve: the reserve is for delivering, or for an honest refusal.

use std::time::Duration;

use super::io::Limits;
use crate::policy::{Policy, Route, Target, TargetId, Tier};
use crate::units::Ts;

/// No limit is shorter, whatever the policy says: a zero would make alarms spin.
const SHORTEST: Duration = Duration::from_millis(1);

/// What one dial was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) limits: Limits,
    /// Deadline less reserve.
    pub(super) until: Ts,
    /// A connect timeout counts against the target.
    pub(super) connect_counts: bool,
    /// A first-token or answer timeout counts against the target.
    pub(super) answer_counts: bool,
    /// Running into the deadline after a sign of life counts against the target.
    pub(super) deadline_counts: bool,
}

/// How far a request is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) arrived: Ts,
    pub(super) now: Ts,
    pub(super) stream: bool,
    /// Dials that may still be made, this one included.
    pub(super) dials_left: u32,
}

/// When the budget of a request that arrived then is used up.
pub(super) fn until(route: &Route, arrived: Ts) -> Ts {
    arrived + route.deadline.saturating_sub(route.reserve)
}

/// 80 % of `own` or more.
fn most_of(own: Duration, had: Duration) -> bool {
    had >= own.mul_f64(0.8)
}

/// The limits of a dial that begins now; `None`: too little time is left for it to be of use.
pub(super) fn grant(route: &Route, tier: &Tier, target: &Target, progress: Progress) -> Option<Grant> {
    let whole = route.deadline.saturating_sub(route.reserve);
    let until = until(route, progress.arrived);
    let left = until.since(progress.now);
    let (own, least, judged_by) = if progress.stream {
        let own = tier.first_token_timeout;
        (own, own / 2, own)
    } else if let Some(own) = tier.answer_timeout {
        (own, own / 2, own)
    } else {
        let share = left / progress.dials_left.max(1);
        let typical = target.capacity.p95_service_ms.map(|p95| Duration::from_millis(p95).mul_f64(1.5));
        let judged_by = typical.unwrap_or(whole / route.max_attempts.max(1)).min(whole);
        (typical.map_or(share, |t| t.max(share)), tier.first_token_timeout / 2, judged_by)
    };
    if left.is_zero() || left < least {
        return None;
    }
    let answer = own.min(left).max(SHORTEST);
    let connect = route.connect_timeout.min(answer).max(SHORTEST);
    Some(Grant {
        limits: Limits { connect, answer, idle: route.idle_timeout },
        until,
        connect_counts: most_of(route.connect_timeout, connect),
        answer_counts: most_of(judged_by, answer),
        deadline_counts: most_of(whole, left),
    })
}

/// Limits of a probe: those of the first tier that holds the target, and the route's whole deadline for its answer.
/// `None`: no route holds it, so nothing ever dials it.
pub(super) fn probe(policy: &Policy, target: TargetId, now: Ts) -> Option<Grant> {
    let tiers = policy.routes.iter().flat_map(|route| route.tiers.iter().map(move |tier| (route, tier)));
    let (route, tier) = tiers.into_iter().find(|(_, tier)| tier.targets.contains(&target))?;
    let answer = tier.first_token_timeout.max(SHORTEST);
    Some(Grant {
        limits: Limits { connect: route.connect_timeout.min(answer).max(SHORTEST), answer, idle: route.idle_timeout },
        until: now + route.deadline.max(answer),
        connect_counts: true,
        answer_counts: true,
        deadline_counts: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::testkit::Kit;

    /// Deadline 8 s, reserve 1 s, three dials, first token 2 s, connect 1 s; p95 of `a` as given.
    fn policy(answer_timeout: Option<u64>, p95_ms: Option<u64>) -> Policy {
        Kit::new()
            .target("a", |t| t.capacity.p95_service_ms = p95_ms)
            .route("r", &[&["a"]], |r| r.tiers[0].answer_timeout = answer_timeout.map(Duration::from_millis))
            .policy()
    }

    fn at(policy: &Policy, stream: bool, now_ms: u64, dials_left: u32) -> Option<Grant> {
        let progress = Progress { arrived: Ts::ZERO, now: Ts::from_ms(now_ms), stream, dials_left };
        grant(&policy.routes[0], &policy.routes[0].tiers[0], &policy.targets[0], progress)
    }

    fn answer_ms(grant: Option<Grant>) -> Option<u128> {
        grant.map(|g| g.limits.answer.as_millis())
    }

    #[test]
    fn a_stream_gets_its_own_limit_or_what_is_left() {
        let p = policy(None, None);
        assert_eq!(answer_ms(at(&p, true, 0, 3)), Some(2_000));
        assert_eq!(answer_ms(at(&p, true, 5_500, 1)), Some(1_500));
        assert_eq!(answer_ms(at(&p, true, 6_000, 1)), Some(1_000), "half of its own limit");
        assert_eq!(at(&p, true, 6_001, 1), None, "less than half");
    }

    #[test]
    fn a_timeout_counts_only_with_most_of_its_own_limit() {
        let p = policy(None, None);
        assert!(at(&p, true, 5_400, 1).is_some_and(|g| g.answer_counts), "1,600 of 2,000 ms");
        assert!(at(&p, true, 5_401, 1).is_some_and(|g| !g.answer_counts));
        assert!(at(&p, true, 6_000, 1).is_some_and(|g| g.connect_counts), "1,000 of 1,000 ms to connect");
    }

    #[test]
    fn an_answer_that_is_not_streamed_shares_what_is_left() {
        let p = policy(None, None);
        assert_eq!(answer_ms(at(&p, false, 0, 3)), Some(2_333), "7,000 / 3");
        assert_eq!(answer_ms(at(&p, false, 0, 1)), Some(7_000));
        let p = policy(None, Some(3_000));
        assert_eq!(answer_ms(at(&p, false, 0, 3)), Some(4_500), "1.5 x p95 is larger");
        assert_eq!(answer_ms(at(&p, false, 4_500, 2)), Some(2_500), "never more than what is left");
        assert!(at(&p, false, 4_500, 2).is_some_and(|g| !g.answer_counts), "2,500 of 4,500 ms");
        let p = policy(None, Some(7_000));
        assert_eq!(answer_ms(at(&p, false, 0, 3)), Some(7_000));
        assert!(at(&p, false, 0, 3).is_some_and(|g| g.answer_counts), "all there ever is");
    }

    #[test]
    fn the_operators_answer_limit_rules() {
        let p = policy(Some(3_000), Some(7_000));
        assert_eq!(answer_ms(at(&p, false, 0, 3)), Some(3_000));
        assert_eq!(answer_ms(at(&p, false, 5_500, 1)), Some(1_500));
        assert_eq!(at(&p, false, 5_501, 1), None);
    }

    #[test]
    fn a_probe_has_the_limits_of_its_tier() {
        let p = policy(None, None);
        let grant = probe(&p, TargetId(0), Ts::from_s(9)).expect("the route holds it");
        assert_eq!(grant.limits.answer, Duration::from_secs(2));
        assert_eq!(grant.until, Ts::from_s(17));
    }
}
