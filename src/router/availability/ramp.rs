//! The way back after recovery: a small share first, then more, step by step, and a step *back* when it goes wrong.
//!
//! A timer alone would swing: an idle target answers fast, gets everything, is slow again. So a step forward needs the hold
//! time, at least one answer in it, and a target that is well at its present share.
//!
//! Shares are dealt, not drawn: each request adds the share to an account, and one that brings it to a whole is let through.
//! So 25 % is every fourth request, and the first one after recovery goes to the recovered target.

use std::collections::BTreeMap;

use crate::policy::{Ramp as Settings, RouteId, TargetId};
use crate::units::Ts;

/// This many outcomes in a step are enough to step back before the hold is over.
const ENOUGH: u32 = 5;

#[derive(Clone, Debug)]
struct Step {
    at: usize,
    since: Ts,
    good: u32,
    bad: u32,
}

/// Ramps and accounts, by route and target. Empty most of the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ramps {
    steps: BTreeMap<(RouteId, TargetId), Step>,
    /// What was dealt so far; kept while a share is below one.
    dealt: BTreeMap<(RouteId, TargetId), f64>,
}

impl Ramps {
    /// A recovered target begins at the first step.
    pub(crate) fn begin(&mut self, now: Ts, route: RouteId, target: TargetId) {
        self.steps.insert((route, target), Step { at: 0, since: now, good: 0, bad: 0 });
        self.dealt.remove(&(route, target));
    }

    /// It was taken out again.
    pub(crate) fn end(&mut self, target: TargetId) {
        if !self.steps.is_empty() {
            self.steps.retain(|(_, id), _| *id != target);
        }
        if !self.dealt.is_empty() {
            self.dealt.retain(|(_, id), _| *id != target);
        }
    }

    /// What the route lets it have now.
    pub(crate) fn share(&self, settings: Option<&Settings>, route: RouteId, target: TargetId) -> f64 {
        if self.steps.is_empty() {
            return 1.0;
        }
        let step = self.steps.get(&(route, target));
        step.zip(settings).and_then(|(step, settings)| settings.steps.get(step.at)).copied().unwrap_or(1.0)
    }

    /// Which step of how many, for people; `None`: not ramping.
    pub(crate) fn step(&self, route: RouteId, target: TargetId) -> Option<usize> {
        self.steps.get(&(route, target)).map(|step| step.at)
    }

    /// An outcome of a request of this route. True if it stepped back.
    pub(crate) fn outcome(
        &mut self,
        now: Ts,
        settings: Option<&Settings>,
        route: RouteId,
        target: TargetId,
        good: bool,
    ) -> bool {
        if self.steps.is_empty() {
            return false;
        }
        let (Some(step), Some(settings)) = (self.steps.get_mut(&(route, target)), settings) else { return false };
        if good {
            step.good = step.good.saturating_add(1);
        } else {
            step.bad = step.bad.saturating_add(1);
        }
        if step.good + step.bad >= ENOUGH && breached(step, settings) {
            back(step, now);
            return true;
        }
        false
    }

    /// When a hold is over next.
    pub(crate) fn next(&self, settings: &Settings, route: RouteId, target: TargetId) -> Option<Ts> {
        if self.steps.is_empty() {
            return None;
        }
        self.steps.get(&(route, target)).map(|step| step.since + settings.hold)
    }

    /// Time has passed. `well`: it answers as it should at its present share. True if the step changed.
    pub(crate) fn advance(
        &mut self,
        now: Ts,
        settings: &Settings,
        route: RouteId,
        target: TargetId,
        well: bool,
    ) -> bool {
        let Some(step) = self.steps.get_mut(&(route, target)) else { return false };
        if now.since(step.since) < settings.hold {
            return false;
        }
        let before = step.at;
        if breached(step, settings) || (!well && step.good > 0) {
            back(step, now);
        } else if step.good == 0 {
            // Nothing was seen: no reason to go on, none to go back.
            step.since = now;
        } else {
            *step = Step { at: step.at + 1, since: now, good: 0, bad: 0 };
        }
        let at = step.at;
        if settings.steps.get(at).is_none_or(|share| *share >= 1.0) {
            self.steps.remove(&(route, target));
            self.dealt.remove(&(route, target));
        }
        at != before
    }

    /// True if the next request may go there at this share. Nothing is booked.
    pub(crate) fn would_deal(&self, route: RouteId, target: TargetId, share: f64) -> bool {
        share >= 1.0 || self.dealt.get(&(route, target)).map_or(1.0, |dealt| dealt + share) >= 1.0 - 1e-9
    }

    /// Books a request that could have gone there: it did, or it was passed over.
    pub(crate) fn deal(&mut self, route: RouteId, target: TargetId, share: f64, went: bool) {
        if share >= 1.0 {
            if !self.dealt.is_empty() {
                self.dealt.remove(&(route, target));
            }
            return;
        }
        let dealt = self.dealt.entry((route, target)).or_insert(1.0 - share);
        *dealt += share;
        if went {
            *dealt = (*dealt - 1.0).max(0.0);
        } else {
            // Those passed over for another reason earn nothing beyond the next request.
            *dealt = dealt.min(1.0);
        }
    }
}

fn breached(step: &Step, settings: &Settings) -> bool {
    let all = step.good + step.bad;
    all > 0 && f64::from(step.bad) / f64::from(all) >= settings.step_back_error_rate && step.bad > 0
}

fn back(step: &mut Step, now: Ts) {
    *step = Step { at: step.at.saturating_sub(1), since: now, good: 0, bad: 0 };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const R: RouteId = RouteId(0);
    const T: TargetId = TargetId(0);

    fn settings() -> Settings {
        Settings { steps: vec![0.05, 0.25, 0.5, 1.0], hold: Duration::from_secs(30), step_back_error_rate: 0.1 }
    }

    fn share(ramps: &Ramps) -> f64 {
        ramps.share(Some(&settings()), R, T)
    }

    #[test]
    fn holds_each_step_and_goes_on_when_well() {
        let mut ramps = Ramps::default();
        ramps.begin(Ts::ZERO, R, T);
        for (n, expected) in [0.05, 0.25, 0.5].into_iter().enumerate() {
            let at = Ts::from_s(30 * n as u64);
            assert!((share(&ramps) - expected).abs() < 1e-9);
            ramps.outcome(at, Some(&settings()), R, T, true);
            assert!(
                !ramps.advance(at + Duration::from_secs(29), &settings(), R, T, true),
                "not before the hold is over"
            );
            assert!(ramps.advance(at + Duration::from_secs(30), &settings(), R, T, true));
        }
        assert!((share(&ramps) - 1.0).abs() < 1e-9);
        assert_eq!(ramps.step(R, T), None, "over");
    }

    #[test]
    fn steps_back_on_errors_at_once_and_on_slowness_at_the_end_of_the_hold() {
        let mut ramps = Ramps::default();
        ramps.begin(Ts::ZERO, R, T);
        ramps.outcome(Ts::ZERO, Some(&settings()), R, T, true);
        ramps.advance(Ts::from_s(30), &settings(), R, T, true);
        ramps.outcome(Ts::from_s(31), Some(&settings()), R, T, true);
        ramps.advance(Ts::from_s(60), &settings(), R, T, true);
        assert_eq!(ramps.step(R, T), Some(2));
        for _ in 0..4 {
            assert!(!ramps.outcome(Ts::from_s(61), Some(&settings()), R, T, true));
        }
        assert!(ramps.outcome(Ts::from_s(61), Some(&settings()), R, T, false), "one of five is more than a tenth");
        assert_eq!(ramps.step(R, T), Some(1));
        ramps.outcome(Ts::from_s(62), Some(&settings()), R, T, true);
        assert!(ramps.advance(Ts::from_s(91), &settings(), R, T, false));
        assert_eq!(ramps.step(R, T), Some(0));
        ramps.outcome(Ts::from_s(92), Some(&settings()), R, T, true);
        ramps.advance(Ts::from_s(121), &settings(), R, T, false);
        assert_eq!(ramps.step(R, T), Some(0), "never below the first step");
    }

    #[test]
    fn without_traffic_it_stays_where_it_is() {
        let mut ramps = Ramps::default();
        ramps.begin(Ts::ZERO, R, T);
        for s in 1..100 {
            ramps.advance(Ts::from_s(30 * s), &settings(), R, T, true);
        }
        assert_eq!(ramps.step(R, T), Some(0));
    }

    #[test]
    fn the_first_request_goes_there_then_every_fourth_at_a_quarter() {
        let mut ramps = Ramps::default();
        let went: Vec<bool> = (0..12)
            .map(|_| {
                let went = ramps.would_deal(R, T, 0.25);
                ramps.deal(R, T, 0.25, went);
                went
            })
            .collect();
        let expected = [true, false, false, false, true, false, false, false, true, false, false, false];
        assert_eq!(went, expected);
    }
}
