//! Health: how well a target has answered of late, 0 to 100, and what share of the traffic it earns by that.
//!
//! ```text
//! score = 100 x (weight_errors x (1 - error rate) + weight_latency x latency part)
//! share = min(1, score / 50, 0.1 + 1.8 x latency part)
//! ```
//!
//! Over two windows (by default 5 minutes and 30 seconds) the worse counts: the long one is steady, the short one is quick. The
//! latency part is 1 while the 95th percentile of completed answers is at its baseline, and falls to 0 at three times that (a
//! baseline of less than 100 ms counts as that much); a policy that gives latency no weight moves nothing for it. So
//! the breaker takes away what fails, and health takes a part away from what is slow, gradually: a target that is slow because
//! it is loaded gets less load instead of none, and does not swing.
//!
//! Latency is the time to the first sign of life of a stream, or to the whole answer; each is measured against a baseline of
//! its own, so that both can stand in one window.

use std::time::Duration;

use super::outcome_window::{OutcomeWindow as Window, bin};
use crate::policy::Health as Settings;
use crate::units::Ts;

/// Fewer outcomes than this say nothing about errors: as many as may trip the breaker's window.
const MIN_OUTCOMES: u32 = 5;
/// The baseline is learned from so many answers where no record gives one.
const LEARNED_FROM: usize = 200;
/// Three times a few milliseconds is nothing that a customer feels: no baseline is lower than this.
const BASELINE_LEAST_S: f64 = 0.1;
/// Nothing is learned from a target that scores below this.
const LEARN_ABOVE: f64 = 90.0;
/// A target that serves is never left without any traffic: nothing would be seen of its recovery.
const LEAST_SHARE: f64 = 0.02;

/// What was measured of a completed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Time to the first sign of life.
    Stream,
    /// Time to the whole answer.
    Whole,
}

/// The two parts of a score, for people to see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    /// 0 to 100.
    pub(crate) total: f64,
    /// Share of outcomes that failed.
    pub(crate) error_rate: f64,
    /// 1 at the baseline, 0 at three times it.
    pub(crate) latency_part: f64,
}

/// A 95th percentile to compare with: given, or learned from the first answers.
#[derive(Clone, Debug)]
struct Baseline {
    p95_s: Option<f64>,
    seen: Vec<f32>,
}

impl Baseline {
    fn learn(&mut self, latency: Duration) {
        if self.p95_s.is_some() {
            return;
        }
        self.seen.push(latency.as_secs_f32());
        if self.seen.len() >= LEARNED_FROM {
            self.seen.sort_by(f32::total_cmp);
            // Nearest rank.
            let rank = (LEARNED_FROM * 95).div_ceil(100) - 1;
            self.p95_s = self.seen.get(rank).map(|s| f64::from(*s).max(0.001));
            self.seen = Vec::new();
        }
    }
}

/// What a window says; `None`: too few outcomes.
fn score_of(window: &Window, settings: &Settings) -> Option<Score> {
    let all = window.failed + window.answered;
    if all < MIN_OUTCOMES {
        return None;
    }
    let error_rate = f64::from(window.failed) / f64::from(all);
    let latency_part = match window.p95() {
        _ if window.answered == 0 => 0.0,
        None => 1.0,
        Some(ratio) => ((3.0 - ratio) / 2.0).clamp(0.0, 1.0),
    };
    let total = 100.0 * (settings.weight_errors * (1.0 - error_rate) + settings.weight_latency * latency_part);
    Some(Score { total, error_rate, latency_part })
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Ejected {
    next_probe: Ts,
    passed: u32,
}

/// Health of one target.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    settings: Settings,
    probes_wanted: u32,
    stream: Baseline,
    whole: Baseline,
    slow: Window,
    fast: Window,
    score: Option<Score>,
    below_since: Option<Ts>,
    ejected: Option<Ejected>,
    /// Exponentially weighted mean of the latency in seconds, and from how many answers.
    smoothed_s: f64,
    smoothed_from: u32,
}

/// Weight of the newest answer in the smoothed latency.
const NEWEST: f64 = 0.1;
/// Fewer answers than this say nothing about which target is faster.
const SMOOTHED_FROM: u32 = 10;

impl Health {
    /// `probes_wanted`: completed probes that end an ejection.
    pub(crate) fn new(settings: Settings, probes_wanted: u32) -> Health {
        let baseline = || Baseline { p95_s: None, seen: Vec::new() };
        Health {
            settings,
            probes_wanted: probes_wanted.max(1),
            stream: baseline(),
            whole: baseline(),
            slow: Window::new(settings.window),
            fast: Window::new(settings.fast_window),
            score: None,
            below_since: None,
            ejected: None,
            smoothed_s: 0.0,
            smoothed_from: 0,
        }
    }

    /// The smoothed latency, for `select: latency`; `None`: too few answers.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        (self.smoothed_from >= SMOOTHED_FROM).then(|| Duration::from_secs_f64(self.smoothed_s))
    }

    /// The baseline that an admission record or the policy gives.
    pub(crate) fn set_baseline(&mut self, kind: Kind, p95: Duration) {
        if p95.is_zero() {
            return;
        }
        let baseline = Baseline { p95_s: Some(p95.as_secs_f64()), seen: Vec::new() };
        match kind {
            Kind::Stream => self.stream = baseline,
            Kind::Whole => self.whole = baseline,
        }
    }

    /// A completed answer.
    pub(crate) fn answered(&mut self, now: Ts, kind: Kind, latency: Duration) {
        let learns = self.score.is_none_or(|s| s.total >= LEARN_ABOVE);
        let baseline = match kind {
            Kind::Stream => &mut self.stream,
            Kind::Whole => &mut self.whole,
        };
        if learns {
            baseline.learn(latency);
        }
        let latency_s = latency.as_secs_f64();
        self.smoothed_s =
            if self.smoothed_from == 0 { latency_s } else { self.smoothed_s + NEWEST * (latency_s - self.smoothed_s) };
        self.smoothed_from = self.smoothed_from.saturating_add(1);
        let bin = baseline.p95_s.map(|p95| bin(latency_s / p95.max(BASELINE_LEAST_S)));
        self.slow.answered(now, bin);
        self.fast.answered(now, bin);
        self.judge(now);
    }

    /// A counted failure.
    pub(crate) fn failed(&mut self, now: Ts) {
        self.slow.failed(now);
        self.fast.failed(now);
        self.judge(now);
    }

    /// Time has passed.
    pub(crate) fn refresh(&mut self, now: Ts) {
        self.slow.slide(now);
        self.fast.slide(now);
        self.judge(now);
    }

    fn judge(&mut self, now: Ts) {
        // The window that was not written to has slid as well: both were.
        let (slow, fast) = (score_of(&self.slow, &self.settings), score_of(&self.fast, &self.settings));
        self.score = match (slow, fast) {
            (Some(slow), Some(fast)) => Some(if fast.total < slow.total { fast } else { slow }),
            (slow, fast) => slow.or(fast),
        };
        let below = self.score.is_some_and(|s| s.total < self.settings.eject_below);
        if !below {
            self.below_since = None;
        } else if self.below_since.is_none() {
            self.below_since = Some(now);
        }
    }

    /// As last judged; `None`: too few outcomes to say.
    pub(crate) fn score(&self) -> Option<Score> {
        self.score
    }

    /// The share of traffic it has earned, as last judged.
    pub(crate) fn share(&self) -> f64 {
        let Some(score) = self.score else { return 1.0 };
        // Zero: no score is so low that it costs traffic.
        let deweight = self.settings.deweight_below;
        let earned = if deweight > 0.0 { score.total / deweight } else { 1.0 };
        let by_latency = if self.settings.weight_latency > 0.0 { 0.1 + 1.8 * score.latency_part } else { 1.0 };
        earned.min(by_latency).clamp(LEAST_SHARE, 1.0)
    }

    /// True if time alone may change something: it is judged again at each bucket's end.
    pub(crate) fn unwell(&self) -> bool {
        self.ejected.is_some() || self.below_since.is_some() || self.share() < 1.0
    }

    /// When to judge again, if it is unwell.
    pub(crate) fn next_look(&self, now: Ts) -> Option<Ts> {
        if !self.unwell() {
            return None;
        }
        let width = self.fast.width_ns;
        let bucket = Ts((now.0 / width + 1) * width);
        let ripe = self.below_since.filter(|_| self.ejected.is_none()).map(|since| since + self.settings.eject_after);
        Some(ripe.filter(|at| *at > now).map_or(bucket, |at| at.min(bucket)))
    }

    /// True if it has been below the limit for long enough to be taken out.
    pub(crate) fn ripe(&self, now: Ts) -> bool {
        self.ejected.is_none() && self.below_since.is_some_and(|since| now.since(since) >= self.settings.eject_after)
    }

    /// Takes it out; a probe is tried now and then.
    pub(crate) fn eject(&mut self, now: Ts) {
        self.ejected = Some(Ejected { next_probe: now + self.settings.probe_every, passed: 0 });
    }

    /// While it is out: when its next probe is due.
    pub(crate) fn ejected_until(&self) -> Option<Ts> {
        self.ejected.map(|e| e.next_probe)
    }

    /// Lets it back in, with a clean slate: what was seen belongs to the time before.
    pub(crate) fn lift(&mut self, now: Ts) {
        self.ejected = None;
        self.clear(now);
    }

    /// Forgets the outcomes (not the baseline): the breaker has dealt with them.
    pub(crate) fn clear(&mut self, now: Ts) {
        self.slow.clear();
        self.fast.clear();
        self.judge(now);
    }

    /// A probe was answered in full; true if that ends an ejection.
    pub(crate) fn probe_passed(&mut self, now: Ts) -> bool {
        let Some(ejected) = &mut self.ejected else { return false };
        ejected.passed += 1;
        ejected.next_probe = now;
        if ejected.passed < self.probes_wanted {
            return false;
        }
        self.lift(now);
        true
    }

    /// A probe was not.
    pub(crate) fn probe_failed(&mut self, now: Ts) {
        if let Some(ejected) = &mut self.ejected {
            *ejected = Ejected { next_probe: now + self.settings.probe_every, passed: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let mut h = Health::new(Settings::default(), 2);
        h.set_baseline(Kind::Stream, Duration::from_secs(1));
        h
    }

    fn answer(h: &mut Health, now: Ts, ms: u64) {
        h.answered(now, Kind::Stream, Duration::from_millis(ms));
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn unknown_without_samples_and_full_share() {
        let mut h = health();
        assert_eq!(h.score(), None);
        for _ in 0..4 {
            h.failed(Ts::from_s(1));
        }
        assert_eq!(h.score(), None, "four outcomes say nothing");
        assert!(close(h.share(), 1.0));
    }

    #[test]
    fn errors_take_seventy_points() {
        let mut h = health();
        for n in 0..20 {
            if n % 4 == 0 {
                h.failed(Ts::from_s(1));
            } else {
                answer(&mut h, Ts::from_s(1), 300);
            }
        }
        let score = h.score().expect("twenty outcomes");
        assert!(close(score.error_rate, 0.25));
        assert!(close(score.latency_part, 1.0), "fifteen answers are too few for a percentile");
        assert!(close(score.total, 70.0 * 0.75 + 30.0), "{score:?}");
        assert!(close(h.share(), 1.0), "82.5 is above 50");
    }

    #[test]
    fn deweight_below_zero_points_is_never() {
        for (deweight_below, share) in [(50.0, 44.0 / 50.0), (100.0, 0.44), (0.0, 1.0)] {
            let mut h = Health::new(Settings { deweight_below, ..Settings::default() }, 2);
            h.set_baseline(Kind::Stream, Duration::from_secs(1));
            for n in 0..100 {
                if n % 5 == 0 { answer(&mut h, Ts::from_s(1), 300) } else { h.failed(Ts::from_s(1)) }
            }
            assert!(close(h.score().expect("a hundred").total, 70.0 * 0.2 + 30.0));
            assert!(close(h.share(), share), "{deweight_below}: {}", h.share());
        }
    }

    #[test]
    fn none_completed_scores_zero() {
        let mut h = health();
        for _ in 0..5 {
            h.failed(Ts::from_s(1));
        }
        assert!(close(h.score().expect("five").total, 0.0));
        assert!(close(h.share(), LEAST_SHARE));
    }

    #[test]
    fn latency_part_falls_from_the_baseline_to_three_times_it() {
        for (ms, part) in
            [(500, 1.0), (1_000, 1.0), (1_500, 0.75), (2_000, 0.5), (2_500, 0.25), (3_000, 0.0), (9_000, 0.0)]
        {
            let mut h = health();
            for _ in 0..100 {
                answer(&mut h, Ts::from_s(1), ms);
            }
            let got = h.score().expect("a hundred").latency_part;
            // A bin is ten per cent wide: half of it at three times the baseline is 0.075 of the part.
            assert!((got - part).abs() <= 0.08, "{ms} ms: {got}");
        }
    }

    #[test]
    fn a_few_milliseconds_more_are_no_brown_out() {
        let mut h = Health::new(Settings::default(), 2);
        h.set_baseline(Kind::Stream, Duration::from_millis(5));
        for _ in 0..100 {
            answer(&mut h, Ts::from_s(1), 60);
        }
        assert!(close(h.share(), 1.0) && close(h.score().expect("a hundred").latency_part, 1.0), "{}", h.share());
        // Three times a tenth of a second is felt.
        for _ in 0..100 {
            answer(&mut h, Ts::from_s(2), 400);
        }
        assert!(close(h.share(), 0.1), "{}", h.share());
    }

    #[test]
    fn latency_without_weight_moves_nothing() {
        let mut h = Health::new(Settings { weight_errors: 1.0, weight_latency: 0.0, ..Settings::default() }, 2);
        h.set_baseline(Kind::Stream, Duration::from_secs(1));
        for _ in 0..100 {
            answer(&mut h, Ts::from_s(1), 9_000);
        }
        assert!(close(h.share(), 1.0), "{}", h.share());
    }

    #[test]
    fn a_brown_out_shifts_traffic_without_a_single_error() {
        let mut h = health();
        for _ in 0..100 {
            answer(&mut h, Ts::from_s(1), 2_750);
        }
        // Part about 0.125: 0.1 + 1.8 x 0.125 = 0.325; the score of 73.75 alone would leave it everything.
        assert!(h.share() > 0.2 && h.share() < 0.46, "{}", h.share());
    }

    #[test]
    fn the_short_window_is_quick_and_the_worse_one_counts() {
        let mut h = health();
        for s in 0..300 {
            for _ in 0..2 {
                answer(&mut h, Ts::from_s(s), 500);
            }
        }
        assert!(close(h.score().expect("many").total, 100.0));
        for s in 300..315 {
            for _ in 0..2 {
                h.failed(Ts::from_s(s));
            }
        }
        // Fast window: 30 failures, 30 answers. Slow window: 30 of 600.
        let score = h.score().expect("many");
        assert!(score.error_rate > 0.45 && score.error_rate < 0.55, "{score:?}");
    }

    #[test]
    fn what_leaves_the_window_is_forgotten_exactly() {
        let mut h = health();
        for s in 0..200 {
            h.failed(Ts::from_s(s));
            answer(&mut h, Ts::from_s(s), 3_000);
        }
        h.refresh(Ts::from_s(200 + 301));
        assert_eq!(h.score(), None);
        assert_eq!((h.slow.failed, h.slow.answered, h.slow.p95()), (0, 0, None));
        assert!(h.slow.is_empty(), "every bin as well");
        h.refresh(Ts::from_s(1_000_000));
        answer(&mut h, Ts::from_s(1_000_000), 500);
        assert_eq!((h.slow.failed, h.slow.answered), (0, 1), "many laps later");
    }

    #[test]
    fn below_thirty_for_three_minutes_is_ripe_and_not_before() {
        let mut h = health();
        for s in 0..=185 {
            h.failed(Ts::from_s(s));
            // The fifth failure, at 4 s, is the first that says something.
            assert_eq!(h.ripe(Ts::from_s(s)), s >= 184, "{s}");
        }
        assert_eq!(h.next_look(Ts(500)), Some(Ts::from_s(1)), "a fast bucket is a second");
    }

    #[test]
    fn an_ejection_ends_by_probes_and_with_a_clean_slate() {
        let mut h = health();
        for s in 0..200 {
            h.failed(Ts::from_s(s));
        }
        h.eject(Ts::from_s(200));
        assert_eq!(h.ejected_until(), Some(Ts::from_s(260)));
        h.probe_failed(Ts::from_s(260));
        assert_eq!(h.ejected_until(), Some(Ts::from_s(320)));
        assert!(!h.probe_passed(Ts::from_s(321)));
        assert_eq!(h.ejected_until(), Some(Ts::from_s(321)), "back to back");
        assert!(h.probe_passed(Ts::from_s(322)));
        assert_eq!((h.ejected_until(), h.score()), (None, None));
        assert!(!h.unwell());
    }

    #[test]
    fn without_a_record_the_first_two_hundred_answers_are_the_baseline() {
        let mut h = Health::new(Settings::default(), 2);
        for n in 0..200 {
            answer(&mut h, Ts::from_s(1), 1_000 + n);
        }
        // Nearest rank: the 190th of 200 is 1,189 ms.
        assert!((h.stream.p95_s.expect("learned") - 1.189).abs() < 1e-3);
        h.answered(Ts::from_s(1), Kind::Whole, Duration::from_secs(9));
        assert_eq!(h.whole.p95_s, None, "each kind has its own");
    }

    #[test]
    fn nothing_is_learned_from_a_sick_target() {
        let mut h = Health::new(Settings::default(), 2);
        for _ in 0..50 {
            h.failed(Ts::from_s(1));
            answer(&mut h, Ts::from_s(1), 9_000);
        }
        assert!(h.stream.seen.len() <= 5, "{}", h.stream.seen.len());
    }
}
