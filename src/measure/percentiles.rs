//! Percentiles by nearest rank: the smallest sample with at least that share of the samples at or below it. It is always
//! a value that was really seen, and needs no assumption between samples. `n` stands beside every one of them.

use serde::{Deserialize, Serialize};

/// The `share` percentile (0..=1) of the samples, by nearest rank. `None` without samples; a NaN among them is left out.
#[must_use]
pub fn percentile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return None;
    }
    let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Median, 95th percentile, largest, and how many there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Number of samples.
    pub n: usize,
}

impl Spread {
    /// The spread of these samples.
    #[must_use]
    pub fn of(samples: &[f64]) -> Spread {
        Spread {
            p50: percentile(samples, 0.5),
            p95: percentile(samples, 0.95),
            max: percentile(samples, 1.0),
            n: samples.iter().filter(|v| !v.is_nan()).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_by_hand() {
        // The textbook case: of 15, 20, 35, 40, 50 the 30th percentile is 20, the 40th 20, the 50th 35, the 100th 50.
        let v = [40.0, 15.0, 50.0, 20.0, 35.0];
        assert_eq!(percentile(&v, 0.30), Some(20.0));
        assert_eq!(percentile(&v, 0.40), Some(20.0));
        assert_eq!(percentile(&v, 0.50), Some(35.0));
        assert_eq!(percentile(&v, 1.0), Some(50.0));
        assert_eq!(percentile(&v, 0.0), Some(15.0));
    }

    #[test]
    fn the_95th_of_twenty_is_the_nineteenth() {
        let v: Vec<f64> = (1..=20).map(f64::from).collect();
        let spread = Spread::of(&v);
        assert_eq!((spread.p50, spread.p95, spread.max, spread.n), (Some(10.0), Some(19.0), Some(20.0), 20));
    }

    #[test]
    fn no_samples_is_no_number() {
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(percentile(&[f64::NAN], 0.5), None);
    }
}
