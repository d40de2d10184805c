//! Counts over a sliding window, in buckets.
//!
//! The window is cut into [`BUCKETS`] equal buckets, each stamped with the lap it was written in, so that a bucket of an
//! earlier lap can never be mistaken for a current one, however long nothing was written. An event counts for at least
//! `window - window / BUCKETS` and never longer than `window`.

use std::time::Duration;

use crate::units::Ts;

/// With the default window of 60 s a bucket is one second wide.
const BUCKETS: u64 = 60;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Number of the bucket since the anchor, plus one; zero: never written.
    stamp: u64,
    good: u32,
    bad: u32,
}

/// Good and bad outcomes of the last while.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    width_ns: u64,
    buckets: Vec<Bucket>,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Completed answers.
    pub(crate) good: u64,
    /// Counted failures.
    pub(crate) bad: u64,
}

impl Counts {
    /// Share of bad outcomes; zero if there are none at all.
    pub(crate) fn bad_ratio(self) -> f64 {
        let all = self.good + self.bad;
        if all == 0 { 0.0 } else { self.bad as f64 / all as f64 }
    }
}

impl Window {
    pub(crate) fn new(window: Duration) -> Window {
        let ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Window {
            width_ns: (ns / BUCKETS).max(1),
            buckets: vec![Bucket::default(); usize::try_from(BUCKETS).unwrap_or(60)],
        }
    }

    fn stamp(&self, now: Ts) -> u64 {
        now.0 / self.width_ns + 1
    }

    /// Books one outcome.
    pub(crate) fn add(&mut self, now: Ts, good: bool) {
        let stamp = self.stamp(now);
        let place = usize::try_from(stamp % BUCKETS).unwrap_or(0);
        let Some(bucket) = self.buckets.get_mut(place) else { return };
        if bucket.stamp != stamp {
            *bucket = Bucket { stamp, good: 0, bad: 0 };
        }
        let count = if good { &mut bucket.good } else { &mut bucket.bad };
        *count = count.saturating_add(1);
    }

    /// Sums what is not too old.
    pub(crate) fn counts(&self, now: Ts) -> Counts {
        let newest = self.stamp(now);
        let mut counts = Counts::default();
        for bucket in &self.buckets {
            if bucket.stamp != 0 && bucket.stamp + BUCKETS > newest {
                counts.good += u64::from(bucket.good);
                counts.bad += u64::from(bucket.bad);
            }
        }
        counts
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_old_lap_is_never_summed() {
        let mut w = Window::new(Duration::from_secs(60));
        w.add(Ts::from_s(1), false);
        assert_eq!(w.counts(Ts::from_s(60)), Counts { good: 0, bad: 1 });
        assert_eq!(w.counts(Ts::from_s(61)), Counts::default());
        assert_eq!(w.counts(Ts::from_s(601)), Counts::default(), "ten laps later, same place in the ring");
        w.add(Ts::from_s(61), true);
        assert_eq!(
            w.counts(Ts::from_s(61)),
            Counts { good: 1, bad: 0 },
            "the place was emptied before it was used again"
        );
    }

    #[test]
    fn ratio_of_nothing_is_zero() {
        assert!(Counts::default().bad_ratio().abs() < f64::EPSILON);
        assert!((Counts { good: 3, bad: 1 }.bad_ratio() - 0.25).abs() < 1e-12);
    }

    proptest! {
        // Against a list of all events: nothing younger than window - width is missing, nothing older than the window is in.
        #[test]
        fn brackets_the_exact_window(steps in prop::collection::vec((0u64..4_000, any::<bool>()), 1..200)) {
            let window = Duration::from_secs(60);
            let mut w = Window::new(window);
            let mut events: VecDeque<(Ts, bool)> = VecDeque::new();
            let mut now = Ts::ZERO;
            for (ms, good) in steps {
                now = now + Duration::from_millis(ms);
                w.add(now, good);
                events.push_back((now, good));
                let within = |d: Duration, good: bool| {
                    events.iter().filter(|(at, g)| *g == good && now.since(*at) < d).count() as u64
                };
                let got = w.counts(now);
                prop_assert!(got.bad >= within(Duration::from_secs(59), false) && got.bad <= within(window, false));
                prop_assert!(got.good >= within(Duration::from_secs(59), true) && got.good <= within(window, true));
            }
        }
    }
}
