//! `[P]` What the runner, the lab and the fault server were late by, each time that they were looked at: below what counts as
//! standing still. On a machine with too little processor such lags add up, from one hand-over of a request to the next, until
//! a limit is missed that no pause explains.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::spoilt::{Reason, Spoilt};
use super::stalls::{KEPT_MS, union_ms};

/// A lag that is kept: a timer of an idle machine is late by one or two milliseconds, and a look takes as long again.
const LAG_KEPT_MS: f64 = 15.0;
/// What is added up to tell whether the machine was starved.
const OVER_MS: f64 = 1000.0;
/// So much of it late: starved.
const STARVED_MS: f64 = 300.0;
/// Lags that are kept. One takes 25 ms at least with the look that it delays, so these are eight minutes of nothing else.
const MOST: usize = 20_000;

/// All lags of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lags(Vec<Lag>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Lag {
    whose: Reason,
    from_ms: f64,
    until_ms: f64,
}

impl Lags {
    pub(super) fn late(&mut self, whose: Reason, due_ms: f64, now_ms: f64) {
        if now_ms - due_ms >= LAG_KEPT_MS && self.0.len() < MOST {
            self.0.push(Lag { whose, from_ms: due_ms, until_ms: now_ms });
        }
    }

    /// Added up over those whose turn a request has to wait for. Where the runner was late it saw the others late: that is
    /// counted once.
    pub(super) fn within(&self, from_ms: f64, until_ms: f64) -> f64 {
        let runner = || self.of(Reason::GeneratorLate);
        let own = union_ms(runner(), from_ms, until_ms);
        let beyond = |r: Reason| union_ms(self.of(r).chain(runner()), from_ms, until_ms) - own;
        (own + beyond(Reason::LabLost) + beyond(Reason::FaultServerLost)).min(until_ms - from_ms).max(0.0)
    }

    fn of(&self, whose: Reason) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.0.iter().filter(move |l| l.whose == whose).map(|l| (l.from_ms, l.until_ms))
    }

    /// The seconds in which so much was late that any time in them is the machine's. A pause is no part of it: it excuses what
    /// it met and no more.
    pub(super) fn starved(&self) -> Vec<(f64, f64)> {
        let mut small: Vec<(f64, f64)> =
            self.0.iter().map(|l| (l.from_ms, l.until_ms)).filter(|(a, b)| b - a < KEPT_MS).collect();
        small.sort_by(|a, b| a.0.total_cmp(&b.0));
        let late_from = |i: usize| {
            let end = small[i].0 + OVER_MS;
            union_ms(small[i..].iter().copied().take_while(|l| l.0 < end), small[i].0, end)
        };
        (0..small.len()).filter(|i| late_from(*i) >= STARVED_MS).map(|i| (small[i].0, small[i].0 + OVER_MS)).collect()
    }

    /// In words, of what came after this moment.
    pub(super) fn said(&self, since_ms: f64) -> Option<Spoilt> {
        let after: Vec<Lag> = self.0.iter().copied().filter(|l| l.until_ms > since_ms).collect();
        let last = after.iter().map(|l| l.until_ms).reduce(f64::max)?;
        let late = union_ms(after.iter().map(|l| (l.from_ms, l.until_ms)), since_ms, last);
        let starved = self.starved();
        let seconds = union_ms(starved.into_iter(), since_ms, f64::INFINITY) / 1e3;
        let text = format!(
            "the machine was busy: from the first injection on the drill, the lab or the fault server were late for {late:.0} ms in all, {} times by {LAG_KEPT_MS:.0} ms or more, and {seconds:.1} s were starved: what customers met may be its doing",
            after.len()
        );
        Some(Spoilt::by(Reason::MachineBusy, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reason::{FaultServerLost, GeneratorLate, LabLost};

    fn lags(all: &[(Reason, f64, f64)]) -> Lags {
        let mut out = Lags::default();
        for (whose, due, now) in all {
            out.late(*whose, *due, *now);
        }
        out
    }

    #[test]
    fn lags_of_each_add_up_and_one_that_the_runner_made_counts_once() {
        // 40 of the runner; of the lab's 60 the same 40 and 20 more; 30 of the fault server; 10 ms are no lag.
        let all = [
            (GeneratorLate, 100.0, 140.0),
            (LabLost, 100.0, 160.0),
            (FaultServerLost, 110.0, 170.0),
            (GeneratorLate, 300.0, 310.0),
        ];
        assert_eq!(lags(&all).within(0.0, 1000.0), 40.0 + 20.0 + 30.0);
        assert_eq!(lags(&all).within(120.0, 130.0), 10.0, "no more than there was");
        assert_eq!(lags(&all).within(200.0, 1000.0), 0.0);
    }

    #[test]
    fn a_second_is_starved_by_many_small_lags_and_by_no_single_pause() {
        let one_pause = lags(&[(GeneratorLate, 1000.0, 1900.0)]);
        assert_eq!(one_pause.starved(), vec![]);
        // 40 ms of each 100: 400 of a second.
        let often: Vec<_> = (0..30).map(|i| f64::from(i) * 100.0).map(|at| (LabLost, at, at + 40.0)).collect();
        let starved = lags(&often).starved();
        assert_eq!((starved[0].0, union_ms(starved.iter().copied(), 0.0, 9e9)), (0.0, 3200.0));
        // 20 ms of each 100 are 200.
        let seldom: Vec<_> = (0..30).map(|i| f64::from(i) * 100.0).map(|at| (LabLost, at, at + 20.0)).collect();
        assert_eq!(lags(&seldom).starved(), vec![]);
    }
}
