//! Outcomes over a sliding window with the latency of the answers among them, for health.
//!
//! Latency is kept as a multiple of its baseline, in bins that are each a tenth wider than the one before. Sums are exact: a bucket
//! that leaves the window is subtracted, bin by bin.

use std::time::Duration;

use crate::units::Ts;

/// Time buckets of a window.
const BUCKETS: u64 = 30;
/// Latency bins, each this much wider than the one before ...
const BIN_RATIO: f64 = 1.1;
/// ... from this multiple of the baseline on; 32 of them reach 4.6 times the baseline, beyond the 3 at which it is all the same.
const BIN_FIRST: f64 = 0.2;
/// Number of bins.
const BINS: usize = 33;
/// Fewer completed answers than this say nothing about a 95th percentile: below it, it is just the largest.
const MIN_ANSWERS: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    failed: u32,
    answered: u32,
    bins: [u16; BINS],
}

const EMPTY: Bucket = Bucket { failed: 0, answered: 0, bins: [0; BINS] };

/// Outcomes of the last while, with exact sums: a bucket that leaves is subtracted.
#[derive(Clone, Debug)]
pub(super) struct OutcomeWindow {
    /// Width of a bucket.
    pub(super) width_ns: u64,
    newest: u64,
    ring: Vec<Bucket>,
    /// Counted failures.
    pub(super) failed: u32,
    /// Completed answers.
    pub(super) answered: u32,
    bins: [u32; BINS],
}

impl OutcomeWindow {
    pub(super) fn new(length: Duration) -> OutcomeWindow {
        let ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        OutcomeWindow {
            width_ns: (ns / BUCKETS).max(1),
            newest: 0,
            ring: vec![EMPTY; BUCKETS as usize],
            failed: 0,
            answered: 0,
            bins: [0; BINS],
        }
    }

    /// Lets buckets leave that have become too old.
    pub(super) fn slide(&mut self, now: Ts) {
        let stamp = now.0 / self.width_ns;
        let steps = stamp.saturating_sub(self.newest).min(BUCKETS);
        if self.failed != 0 || self.answered != 0 {
            for n in 1..=steps {
                // With more steps than buckets every one is emptied, in whatever order.
                let Some(bucket) = self.ring.get_mut(((self.newest + n) % BUCKETS) as usize) else { continue };
                self.failed -= bucket.failed;
                self.answered -= bucket.answered;
                for (sum, bin) in self.bins.iter_mut().zip(&bucket.bins) {
                    *sum -= u32::from(*bin);
                }
                *bucket = EMPTY;
            }
        }
        self.newest = self.newest.max(stamp);
    }

    pub(super) fn failed(&mut self, now: Ts) {
        self.slide(now);
        let Some(bucket) = self.ring.get_mut((self.newest % BUCKETS) as usize) else { return };
        bucket.failed += 1;
        self.failed += 1;
    }

    /// `bin`: where its latency lies; `None` while there is no baseline.
    pub(super) fn answered(&mut self, now: Ts, bin: Option<usize>) {
        self.slide(now);
        let Some(bucket) = self.ring.get_mut((self.newest % BUCKETS) as usize) else { return };
        bucket.answered += 1;
        self.answered += 1;
        let Some(bin) = bin else { return };
        if let (Some(one), Some(sum)) = (bucket.bins.get_mut(bin), self.bins.get_mut(bin))
            && *one < u16::MAX
        {
            *one += 1;
            *sum += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.fill(EMPTY);
        self.failed = 0;
        self.answered = 0;
        self.bins = [0; BINS];
    }

    /// The 95th percentile as a multiple of the baseline; `None`: too few to say.
    pub(super) fn p95(&self) -> Option<f64> {
        let all: u32 = self.bins.iter().sum();
        if all < MIN_ANSWERS {
            return None;
        }
        let rank = (u64::from(all) * 95).div_ceil(100);
        let mut below = 0u64;
        let bin = self.bins.iter().position(|n| {
            below += u64::from(*n);
            below >= rank
        })?;
        // The middle of the bin, so that a latency at the baseline reads as the baseline within five per cent.
        Some(BIN_FIRST * BIN_RATIO.powf(bin as f64 - 0.5))
    }

    /// Nothing is in it, down to the last bin.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.failed == 0 && self.answered == 0 && self.bins.iter().all(|n| *n == 0)
    }
}

/// The bin of a latency, given as a multiple of its baseline.
pub(super) fn bin(ratio: f64) -> usize {
    let n = (ratio.max(BIN_FIRST / BIN_RATIO) / BIN_FIRST).ln() / BIN_RATIO.ln();
    // Between 0 and 32: never negative after the clamp above.
    (n.ceil().clamp(0.0, (BINS - 1) as f64)) as usize
}
