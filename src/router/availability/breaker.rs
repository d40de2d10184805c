//! The breaker of one target: counted failures take it out, completed probes let it back in.
//!
//! ```text
//! closed --(3 in a row, or >= 5 and >= 20 % within the window)--> open --(cooldown over)--> half open
//!    ^                                                             ^                            |
//!    +----------------(as many completed probes as asked)----------|----------------------------+
//!                                                                  +---(one counted failure)----+
//! ```
//!
//! Figures are the policy's; those above are its defaults. An attempt carries the *epoch* in which it began. A trip starts a
//! new epoch, and outcomes of an older one change nothing: neither do they lengthen the cooldown nor close the breaker.

use std::time::Duration;

use super::window::Window;
use crate::policy::Breaker as Settings;
use crate::router::io::AttemptId;
use crate::units::{Rng, Ts};

/// A cooldown is shortened by up to this share, drawn from the seed, so that many targets do not come back in one wave and
/// the policy's maximum stays a maximum.
const JITTER: f64 = 0.2;

/// No cooldown is shorter, whatever the policy says: a zero would make probes spin.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Clone, Debug, PartialEq)]
enum State {
    Closed,
    Open {
        since: Ts,
        cooldown: Duration,
        /// What the cooldown would be at base, for a route that has nobody else.
        at_base: Duration,
    },
    HalfOpen {
        passed: u32,
        owner: Option<AttemptId>,
        /// The place for a probe could be taken from then on.
        since: Ts,
    },
}

/// Why it tripped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trip {
    /// Counted failures in a row.
    Consecutive,
    /// Counted failures in the window, in number and in share.
    Ratio,
}

impl Trip {
    /// Its name in notes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Trip::Consecutive => "consecutive_failures",
            Trip::Ratio => "failure_ratio",
        }
    }
}

/// What the breaker says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Traffic may pass.
    Closed,
    /// Nothing may pass until then.
    Open(Ts),
    /// Only the probe may pass; true while one is under way.
    HalfOpen(bool),
}

/// State of one target's breaker.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    settings: Settings,
    state: State,
    epoch: u64,
    consecutive: u32,
    window: Window,
    /// How often in a row it opened without staying closed for a whole window in between.
    openings: u32,
    closed_at: Ts,
}

impl Breaker {
    pub(crate) fn new(settings: Settings) -> Breaker {
        Breaker {
            settings,
            state: State::Closed,
            epoch: 0,
            consecutive: 0,
            window: Window::new(settings.window),
            openings: 0,
            closed_at: Ts::ZERO,
        }
    }

    /// Another policy holds: its figures count from now on. What was counted stays, unless it is counted over another time.
    pub(crate) fn succeed(&mut self, settings: Settings) {
        if settings.window != self.settings.window {
            self.window = Window::new(settings.window);
        }
        self.settings = settings;
    }

    /// What an attempt that begins now must carry.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counted failures in a row.
    pub(crate) fn consecutive(&self) -> u32 {
        self.consecutive
    }

    /// What it says now.
    pub(crate) fn gate(&self) -> Gate {
        match &self.state {
            State::Closed => Gate::Closed,
            State::Open { since, cooldown, .. } => Gate::Open(*since + *cooldown),
            State::HalfOpen { owner, .. } => Gate::HalfOpen(owner.is_some()),
        }
    }

    /// A completed answer.
    pub(crate) fn success(&mut self, now: Ts, epoch: u64) {
        if self.state == State::Closed && epoch == self.epoch {
            self.consecutive = 0;
            self.window.add(now, true);
        }
    }

    /// A counted failure; says whether it tripped the breaker.
    pub(crate) fn failure(&mut self, now: Ts, epoch: u64, rng: &mut Rng) -> Option<Trip> {
        if self.state != State::Closed || epoch != self.epoch {
            return None;
        }
        self.consecutive = self.consecutive.saturating_add(1);
        self.window.add(now, false);
        let counts = self.window.counts(now);
        let trip = if self.consecutive >= self.settings.consecutive_failures.max(1) {
            Trip::Consecutive
        } else if counts.bad >= u64::from(self.settings.failures_in_window.max(1))
            && counts.bad_ratio() >= self.settings.failure_ratio
        {
            Trip::Ratio
        } else {
            return None;
        };
        // A target that trips again before it has been well for a whole window is flapping: the doubling goes on.
        if now.since(self.closed_at) > self.settings.window {
            self.openings = 0;
        }
        self.open(now, true, rng);
        Some(trip)
    }

    fn open(&mut self, now: Ts, doubling: bool, rng: &mut Rng) {
        if doubling {
            self.openings = self.openings.saturating_add(1);
        }
        let keep = 1.0 - JITTER * rng.unit();
        let base = self.settings.base_cooldown.min(self.settings.max_cooldown);
        let cooldown = doubled(base, self.openings.saturating_sub(1), self.settings.max_cooldown);
        self.state = State::Open {
            since: now,
            cooldown: cooldown.mul_f64(keep).max(SHORTEST),
            at_base: base.mul_f64(keep).max(SHORTEST),
        };
        self.epoch += 1;
        self.consecutive = 0;
        self.window.clear();
    }

    /// A route of this target has no serving target: wait no longer than the base cooldown.
    pub(crate) fn cap_at_base(&mut self) {
        if let State::Open { cooldown, at_base, .. } = &mut self.state {
            *cooldown = (*cooldown).min(*at_base);
        }
    }

    /// Its answers are not good: out as if it had tripped, without doubling.
    pub(crate) fn put_out(&mut self, now: Ts, rng: &mut Rng) {
        if self.state == State::Closed {
            self.open(now, false, rng);
        }
    }

    /// When a probe may begin; `None`: it serves, or one is under way.
    pub(crate) fn probe_from(&self) -> Option<Ts> {
        match &self.state {
            State::Closed => None,
            State::Open { since, cooldown, .. } => Some(*since + *cooldown),
            State::HalfOpen { owner, since, .. } => owner.is_none().then_some(*since),
        }
    }

    /// True if a probe may begin.
    pub(crate) fn wants_probe(&self, now: Ts) -> bool {
        self.probe_from().is_some_and(|at| at <= now)
    }

    /// The probe begins; it owns the one place. Ignored unless [`Breaker::wants_probe`].
    pub(crate) fn begin_probe(&mut self, now: Ts, probe: AttemptId) {
        if !self.wants_probe(now) {
            return;
        }
        let passed = if let State::HalfOpen { passed, .. } = self.state { passed } else { 0 };
        let since = self.probe_from().unwrap_or(now);
        self.state = State::HalfOpen { passed, owner: Some(probe), since };
    }

    fn owned_by(&self, probe: AttemptId) -> bool {
        matches!(self.state, State::HalfOpen { owner: Some(owner), .. } if owner == probe)
    }

    /// The probe was answered in full; true if that closed the breaker.
    pub(crate) fn probe_passed(&mut self, now: Ts, probe: AttemptId) -> bool {
        if !self.owned_by(probe) {
            return false;
        }
        let State::HalfOpen { passed, .. } = self.state else { return false };
        let passed = passed + 1;
        if passed < self.settings.half_open_successes.max(1) {
            self.state = State::HalfOpen { passed, owner: None, since: now };
            return false;
        }
        self.state = State::Closed;
        self.closed_at = now;
        true
    }

    /// The probe failed in a way that counts: open again, for twice as long.
    pub(crate) fn probe_failed(&mut self, now: Ts, probe: AttemptId, rng: &mut Rng) -> bool {
        let owned = self.owned_by(probe);
        if owned {
            self.open(now, true, rng);
        }
        owned
    }

    /// The request that was the probe ended by its own fault, or its client's: nothing is known, and the next may be it at once.
    pub(crate) fn probe_released(&mut self, probe: AttemptId) {
        if self.owned_by(probe)
            && let State::HalfOpen { owner, .. } = &mut self.state
        {
            *owner = None;
        }
    }

    /// The probe ended without a verdict on the provider (a rate limit, a refused credential): open again, as long as before.
    pub(crate) fn probe_undecided(&mut self, now: Ts, probe: AttemptId, rng: &mut Rng) -> bool {
        let owned = self.owned_by(probe);
        if owned {
            self.open(now, false, rng);
        }
        owned
    }
}

/// `base` doubled so many times, at most `max`.
pub(super) fn doubled(base: Duration, times: u32, max: Duration) -> Duration {
    let factor = 1u32.checked_shl(times.min(31)).unwrap_or(u32::MAX);
    base.checked_mul(factor).unwrap_or(max).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> (Breaker, Rng) {
        (Breaker::new(Settings::default()), Rng::new(7))
    }

    /// Trips by three failures in a row at `now`.
    fn trip(b: &mut Breaker, rng: &mut Rng, now: Ts) {
        for n in 0..3 {
            let tripped = b.failure(now, b.epoch(), rng);
            assert_eq!(tripped.is_some(), n == 2);
        }
    }

    fn cooldown(b: &Breaker, now: Ts) -> Duration {
        match b.gate() {
            Gate::Open(until) => until.since(now),
            other => panic!("not open: {other:?}"),
        }
    }

    #[test]
    fn three_in_a_row_trip_and_a_success_between_prevents_it() {
        let (mut b, mut rng) = breaker();
        let now = Ts::from_s(1);
        assert_eq!(b.failure(now, 0, &mut rng), None);
        assert_eq!(b.failure(now, 0, &mut rng), None);
        b.success(now, 0);
        assert_eq!(b.failure(now, 0, &mut rng), None);
        assert_eq!(b.failure(now, 0, &mut rng), None);
        b.success(now, 0);
        assert_eq!(b.gate(), Gate::Closed);
        assert_eq!(b.failure(now, 0, &mut rng), Some(Trip::Ratio), "the fifth in the window, of seven attempts");
    }

    #[test]
    fn the_window_needs_number_and_share() {
        // The fifth failure is one of 26 attempts, 19.2 %: not enough. The sixth is one of 28, 21.4 %.
        let (mut b, mut rng) = breaker();
        let now = Ts::from_s(1);
        for _ in 0..17 {
            b.success(now, 0);
        }
        for n in 0..5 {
            assert_eq!(b.failure(now, 0, &mut rng), None, "{n}");
            b.success(now, 0);
        }
        assert_eq!(b.gate(), Gate::Closed);
        assert_eq!(b.failure(now, 0, &mut rng), Some(Trip::Ratio));
    }

    #[test]
    fn failures_older_than_the_window_do_not_count() {
        let (mut b, mut rng) = breaker();
        for s in [0, 20, 40, 60, 80, 100, 120] {
            // One failure and one success every 20 s: never more than three failures within 60 s.
            assert_eq!(b.failure(Ts::from_s(s), 0, &mut rng), None);
            b.success(Ts::from_s(s), 0);
        }
    }

    #[test]
    fn cooldown_doubles_to_its_maximum_with_jitter_downwards() {
        let (mut b, mut rng) = breaker();
        let mut now = Ts::from_s(100);
        trip(&mut b, &mut rng, now);
        for (n, nominal) in [5u64, 10, 20, 40, 80, 120, 120].into_iter().enumerate() {
            let wait = cooldown(&b, now);
            assert!(wait <= Duration::from_secs(nominal), "{wait:?} > {nominal}");
            assert!(wait >= Duration::from_secs(nominal).mul_f64(0.8), "{wait:?} < 80 % of {nominal}");
            assert!(!b.wants_probe(Ts((now + wait).0 - 1)));
            now = now + wait;
            assert!(b.wants_probe(now));
            let probe = AttemptId(n as u64);
            b.begin_probe(now, probe);
            assert!(b.probe_failed(now, probe, &mut rng));
        }
    }

    #[test]
    fn attempts_from_before_the_trip_change_nothing_after_it() {
        let (mut b, mut rng) = breaker();
        let now = Ts::from_s(1);
        let old = b.epoch();
        trip(&mut b, &mut rng, now);
        let gate = b.gate();
        assert_eq!(b.failure(now, old, &mut rng), None);
        b.success(now, old);
        assert_eq!(b.gate(), gate);
        // Nor after it has closed again.
        let later = Ts::from_s(10);
        for n in 0..2 {
            b.begin_probe(later, AttemptId(n));
            b.probe_passed(later, AttemptId(n));
        }
        assert_eq!(b.gate(), Gate::Closed);
        for _ in 0..10 {
            assert_eq!(b.failure(later, old, &mut rng), None);
        }
        assert_eq!(b.gate(), Gate::Closed);
    }

    #[test]
    fn one_probe_at_a_time_two_close_it_and_strangers_decide_nothing() {
        let (mut b, mut rng) = breaker();
        trip(&mut b, &mut rng, Ts::from_s(1));
        let now = Ts::from_s(6);
        b.begin_probe(now, AttemptId(1));
        assert!(!b.wants_probe(now), "the place is taken");
        b.begin_probe(now, AttemptId(2));
        assert!(!b.probe_passed(now, AttemptId(2)), "not the owner");
        assert!(!b.probe_failed(now, AttemptId(2), &mut rng), "not the owner");
        assert!(!b.probe_passed(now, AttemptId(1)), "the first of two");
        assert!(b.wants_probe(now), "back to back");
        b.begin_probe(now, AttemptId(3));
        assert!(b.probe_passed(now, AttemptId(3)));
        assert_eq!(b.gate(), Gate::Closed);
    }

    #[test]
    fn an_undecided_probe_re_arms_without_doubling() {
        let (mut b, mut rng) = breaker();
        let mut now = Ts::from_s(1);
        trip(&mut b, &mut rng, now);
        for n in 0..5 {
            now = now + Duration::from_secs(5);
            b.begin_probe(now, AttemptId(n));
            assert!(b.probe_undecided(now, AttemptId(n), &mut rng));
            assert!(cooldown(&b, now) <= Duration::from_secs(5));
        }
    }

    #[test]
    fn flapping_goes_on_doubling_and_a_quiet_window_forgives() {
        let (mut b, mut rng) = breaker();
        let mut now = Ts::from_s(1);
        let mut n = 0;
        for nominal in [5u64, 10, 20] {
            trip(&mut b, &mut rng, now);
            let wait = cooldown(&b, now);
            assert!(wait > Duration::from_secs(nominal).mul_f64(0.79) && wait <= Duration::from_secs(nominal));
            now = now + wait;
            for _ in 0..2 {
                n += 1;
                b.begin_probe(now, AttemptId(n));
                b.probe_passed(now, AttemptId(n));
            }
            assert_eq!(b.gate(), Gate::Closed);
        }
        now = now + Duration::from_secs(61);
        trip(&mut b, &mut rng, now);
        assert!(cooldown(&b, now) <= Duration::from_secs(5));
    }

    #[test]
    fn a_stranded_route_waits_no_longer_than_the_base() {
        let (mut b, mut rng) = breaker();
        let mut now = Ts::from_s(1);
        trip(&mut b, &mut rng, now);
        for n in 0..4 {
            now = now + cooldown(&b, now);
            b.begin_probe(now, AttemptId(n));
            b.probe_failed(now, AttemptId(n), &mut rng);
        }
        assert!(cooldown(&b, now) > Duration::from_secs(60));
        b.cap_at_base();
        assert!(cooldown(&b, now) <= Duration::from_secs(5));
    }

    #[test]
    fn absurd_settings_neither_spin_nor_overflow() {
        let settings = Settings { base_cooldown: Duration::ZERO, consecutive_failures: 0, ..Settings::default() };
        let mut b = Breaker::new(settings);
        let mut rng = Rng::new(1);
        assert_eq!(b.failure(Ts::ZERO, 0, &mut rng), Some(Trip::Consecutive));
        assert!(!b.wants_probe(Ts::ZERO));
        assert_eq!(doubled(Duration::MAX, 40, Duration::from_secs(9)), Duration::from_secs(9));
    }
}
