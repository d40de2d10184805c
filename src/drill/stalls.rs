//! `[P]` What stood still around the gateway: the runner with its customers, the lab, the fault server. Each is seen about ten
//! times a second, and a longer pause between two sights is kept. A limit that is missed by no more than such a pause, in a
//! request that lived through it, is missed by nobody in particular.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::spoilt::{Reason, Spoilt};

/// Between two looks, milliseconds.
pub const TICK_MS: f64 = 100.0;
/// A pause between two sights that is kept: a look of a busy machine may come late by as much as its own interval.
pub const KEPT_MS: f64 = 2.0 * TICK_MS;
/// From this on everything in a run may be the doing of a pause, whatever the limits are.
const WHOLE_RUN_MS: f64 = 700.0;
/// What a pause has set off (a breaker that opened, a queue) goes on for this many times its length.
const AFTERMATH: f64 = 2.0;
/// Pauses that are kept; of more the earlier ones say enough.
const MOST: usize = 1000;

/// One pause: when it was seen last before, and when again.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// By what name a run is invalid for it.
    pub reason: Reason,
    /// Seen well for the last time.
    pub from_ms: f64,
    /// Seen again.
    pub until_ms: f64,
}

impl Stall {
    fn span(&self) -> f64 {
        self.until_ms - self.from_ms
    }

    fn whom(&self) -> &'static str {
        match self.reason {
            Reason::GeneratorLate => "the drill itself, with its customers,",
            Reason::FaultServerLost => "the fault server",
            _ => "the lab",
        }
    }
}

/// All pauses of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stalls(Vec<Stall>);

impl Stalls {
    /// Somebody was seen, and the time before was so long after the one before that.
    pub fn seen(&mut self, reason: Reason, last_ms: f64, now_ms: f64) {
        if now_ms - last_ms >= KEPT_MS && self.0.len() < MOST {
            self.0.push(Stall { reason, from_ms: last_ms, until_ms: now_ms });
        }
    }

    /// Nobody stood still.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How much of this time anybody stood still.
    #[must_use]
    pub fn within(&self, from_ms: f64, until_ms: f64) -> f64 {
        let cut = |s: &Stall| (s.from_ms.max(from_ms), s.until_ms.min(until_ms));
        let mut parts: Vec<(f64, f64)> = self.0.iter().map(cut).filter(|(a, b)| a < b).collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum, mut end) = (0.0, f64::NEG_INFINITY);
        for (a, b) in parts {
            sum += (b - a.max(end)).max(0.0);
            end = end.max(b);
        }
        sum
    }

    /// A request of this time met a pause, or what came of one.
    #[must_use]
    pub fn met(&self, from_ms: f64, until_ms: f64) -> bool {
        self.0.iter().any(|s| s.from_ms < until_ms && s.until_ms + AFTERMATH * s.span() > from_ms)
    }

    /// The longest from this moment on. Where the runner stood still it saw nobody else either: then it is named.
    fn longest(&self, since_ms: f64) -> Option<&Stall> {
        let late = || self.0.iter().filter(|s| s.until_ms > since_ms);
        let longest = late().max_by(|a, b| a.span().total_cmp(&b.span()))?;
        let runner = late().find(|s| {
            let both = s.until_ms.min(longest.until_ms) - s.from_ms.max(longest.from_ms);
            s.reason == Reason::GeneratorLate && both > longest.span() / 2.0
        });
        Some(runner.unwrap_or(longest))
    }

    /// The longest one in words.
    #[must_use]
    pub fn said(&self, since_ms: f64) -> Option<Spoilt> {
        let stall = self.longest(since_ms)?;
        let text = format!(
            "{} stood still for up to {:.0} ms, until {:.2} s: what customers met may be its doing",
            stall.whom(),
            stall.span(),
            stall.until_ms / 1e3
        );
        Some(Spoilt::for_a_while(stall.reason, text))
    }

    /// One so long that the gateway's own limits ran out in it: whatever failed after `since_ms` may come of it.
    /// `limits_ms`: those that the gateway works with.
    #[must_use]
    pub fn whole_run(&self, since_ms: f64, limits_ms: &[f64]) -> Option<Spoilt> {
        // A sight may be late by one interval although nobody stood still.
        let least = limits_ms.iter().copied().filter(|l| *l > KEPT_MS).fold(WHOLE_RUN_MS, f64::min) + TICK_MS;
        self.longest(since_ms).filter(|s| s.span() >= least).and_then(|_| self.said(since_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalls(all: &[(Reason, f64, f64)]) -> Stalls {
        let mut out = Stalls::default();
        for (reason, from, until) in all {
            out.seen(*reason, *from, *until);
        }
        out
    }

    #[test]
    fn time_is_counted_once_however_many_stood_still() {
        use Reason::{FaultServerLost, GeneratorLate, LabLost};
        let s =
            stalls(&[(LabLost, 1000.0, 1500.0), (FaultServerLost, 1300.0, 1700.0), (GeneratorLate, 3000.0, 3150.0)]);
        // The last one is no longer than a tick and a half, and not kept.
        assert_eq!(s.within(0.0, 9000.0), 700.0);
        assert_eq!(s.within(1400.0, 1600.0), 200.0);
        assert_eq!(s.within(2000.0, 9000.0), 0.0);
        // 1,700 and twice the 400 ms.
        assert!(s.met(2400.0, 2600.0) && !s.met(2600.0, 2700.0) && !s.met(0.0, 900.0));
    }

    #[test]
    fn a_runner_that_stood_still_explains_whom_it_did_not_see() {
        use Reason::{FaultServerLost, GeneratorLate};
        let s = stalls(&[(FaultServerLost, 950.0, 2010.0), (GeneratorLate, 1000.0, 2000.0)]);
        let said = s.said(0.0).unwrap();
        assert_eq!(said.reason, GeneratorLate);
        assert!(said.text.contains("up to 1000 ms, until 2.00 s") && said.for_a_while, "{}", said.text);
        assert_eq!(s.said(3000.0), None, "before anything was broken");
    }

    #[test]
    fn what_spoils_a_whole_run_follows_from_the_limits() {
        let s = stalls(&[(Reason::LabLost, 1000.0, 1750.0)]);
        // 750 ms: more than a limit of 600 ms and a tick, less than the 800 ms of a longer one.
        assert!(s.whole_run(0.0, &[600.0, 800.0, 0.0]).is_some());
        assert_eq!(s.whole_run(0.0, &[5000.0]), None);
        assert_eq!(s.whole_run(2000.0, &[600.0]), None);
    }
}
