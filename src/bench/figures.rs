//! `[P]` Medians, spread and ratios. A ratio is formed within each round, where both sides met the same machine, and the median
//! taken over the rounds; a ratio of two medians would mix rounds.

use serde::Serialize;

/// One figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median; of an even number the mean of the middle two.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Rounds that have it.
    pub n: usize,
}

impl Figure {
    /// The figure of these samples; `None` without any. What is no number is left out.
    #[must_use]
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Figure> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len();
        let (low, high) = (sorted.get((n - 1) / 2)?, sorted.get(n / 2)?);
        Some(Figure { median: f64::midpoint(*low, *high), min, max, n })
    }
}

/// What one side did in one cell of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests that ended well in the window.
    pub good: u64,
    /// Requests that ended in it otherwise.
    pub bad: u64,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Median time to the whole answer, milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of it.
    pub p99_ms: Option<f64>,
    /// Median time to the first word, milliseconds (streams).
    pub first_ms: Option<f64>,
    /// CPU seconds of the side's own process in the window; `None`: it has none, or it is not known.
    pub cpu_s: Option<f64>,
}

impl Sample {
    /// Good answers a second.
    #[must_use]
    pub fn rps(&self) -> Option<f64> {
        (self.seconds > 0.0 && self.good > 0).then(|| self.good as f64 / self.seconds)
    }

    /// CPU seconds for a thousand requests, bad ones included: they cost as well.
    #[must_use]
    pub fn cpu_per_1k(&self) -> Option<f64> {
        let ended = self.good + self.bad;
        self.cpu_s.filter(|_| ended > 0).map(|cpu| cpu * 1_000.0 / ended as f64)
    }
}

/// One side's samples of one cell, a place for each round.
pub type Rounds = Vec<Option<Sample>>;

/// A figure of these rounds.
#[must_use]
pub fn figure(rounds: &[Option<Sample>], of: impl Fn(&Sample) -> Option<f64>) -> Option<Figure> {
    Figure::of(rounds.iter().flatten().filter_map(of))
}

/// `ours / theirs` round by round. A round in which either is missing, or theirs is not above zero, has none.
#[must_use]
pub fn ratio(
    ours: &[Option<Sample>],
    theirs: &[Option<Sample>],
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<Figure> {
    let pairs = ours.iter().zip(theirs).filter_map(|(a, b)| Some((of(a.as_ref()?)?, of(b.as_ref()?)?)));
    Figure::of(pairs.filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b))
}

/// What a side adds to the direct way, round by round.
#[must_use]
pub fn added(
    side: &[Option<Sample>],
    direct: &[Option<Sample>],
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<Figure> {
    Figure::of(differences(side, direct, of).into_iter().flatten())
}

/// The ratio of what two sides add to the direct way, round by round.
#[must_use]
pub fn added_ratio(
    ours: &[Option<Sample>],
    theirs: &[Option<Sample>],
    direct: &[Option<Sample>],
    of: impl Fn(&Sample) -> Option<f64> + Copy,
) -> Option<Figure> {
    let pairs = differences(ours, direct, of).into_iter().zip(differences(theirs, direct, of));
    // Noise can make what was added vanish; of such a round nothing can be said.
    Figure::of(pairs.filter_map(|(a, b)| b.filter(|b| *b > 0.0).zip(a)).map(|(b, a)| a / b))
}

fn differences(
    side: &[Option<Sample>],
    direct: &[Option<Sample>],
    of: impl Fn(&Sample) -> Option<f64>,
) -> Vec<Option<f64>> {
    let of = |s: &Option<Sample>| s.as_ref().and_then(&of);
    side.iter().zip(direct).map(|(a, b)| Some(of(a)? - of(b)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(p50_ms: f64) -> Option<Sample> {
        Some(Sample { p50_ms: Some(p50_ms), ..Sample::default() })
    }

    fn p50(s: &Sample) -> Option<f64> {
        s.p50_ms
    }

    #[test]
    fn medians_by_hand() {
        // Odd: the middle one. Even: (2 + 4) / 2. What is no number does not count.
        let odd = Figure::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!(odd, Figure { median: 3.0, min: 1.0, max: 5.0, n: 3 });
        let even = Figure::of([4.0, f64::NAN, 1.0, 2.0, 9.0, f64::INFINITY]).unwrap();
        assert_eq!(even, Figure { median: 3.0, min: 1.0, max: 9.0, n: 4 });
        assert_eq!(Figure::of([]), None);
    }

    #[test]
    fn a_ratio_is_formed_within_each_round() {
        // 10/5, 30/10, 20/20 = 2, 3, 1: median 2. The ratio of the medians would be 20/10 = 2 too; the spread tells them apart.
        let ours = [took(10.0), took(30.0), took(20.0), None, took(7.0)];
        let theirs = [took(5.0), took(10.0), took(20.0), took(1.0), took(0.0)];
        assert_eq!(ratio(&ours, &theirs, p50), Some(Figure { median: 2.0, min: 1.0, max: 3.0, n: 3 }));
        assert_eq!(ratio(&ours, &[None], p50), None);
    }

    #[test]
    fn what_is_added_is_compared_with_what_the_other_adds() {
        let direct = [took(1.0), took(2.0), took(3.0)];
        let ours = [took(3.0), took(5.0), took(4.0)];
        // Adds 1, 2 and, by noise, less than nothing.
        let theirs = [took(2.0), took(4.0), took(2.5)];
        assert_eq!(added(&ours, &direct, p50).unwrap().median, 2.0);
        let ratio = added_ratio(&ours, &theirs, &direct, p50).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.n), (1.75, 1.5, 2.0, 2));
    }

    #[test]
    fn rates_of_one_window() {
        let s = Sample { good: 900, bad: 100, seconds: 2.0, cpu_s: Some(0.5), ..Sample::default() };
        assert_eq!((s.rps(), s.cpu_per_1k()), (Some(450.0), Some(0.5)));
        let nothing = Sample { cpu_s: Some(0.5), ..Sample::default() };
        assert_eq!((nothing.rps(), nothing.cpu_per_1k()), (None, None));
        assert_eq!(Sample { good: 1, seconds: 1.0, ..Sample::default() }.cpu_per_1k(), None);
    }
}
