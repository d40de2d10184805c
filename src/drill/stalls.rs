//! `[P]` What stood still around the gateway: the runner with its customers, the lab, the fault server. Each is seen about ten
//! times a second, and a longer pause between two sights is kept. A limit that is missed by no more than such a pause, in a
//! request that lived through it, is missed by nobody in particular. On a machine that is only busy nobody stands still, but each
//! is late by a little again and again: these lags are added up (`lags`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::lags::Lags;
use super::spoilt::{Reason, Spoilt};

/// Between two looks, milliseconds.
pub const TICK_MS: f64 = 100.0;
/// A pause between two sights that is kept: a look of a busy machine may come late by as much as its own interval.
pub const KEPT_MS: f64 = 2.0 * TICK_MS;
/// From this on a pause is long, whatever the gateway's limits are.
const LONG_MS: f64 = 700.0;
/// What a pause has set off (a queue) goes on for this many times its length.
const AFTERMATH: f64 = 2.0;
/// What a long one has set off goes on for this long: limits have run out in it, breakers opened, and one that opened at its end
/// has its first cooldown (five seconds where a policy says nothing) and a probe before it.
const LONG_AFTERMATH_MS: f64 = 6_000.0;
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
pub struct Stalls {
    all: Vec<Stall>,
    /// From this on one is long.
    long_ms: Option<f64>,
    /// What they were late by, each time.
    lags: Lags,
    /// The lags excuse too, and these seconds, in which the machine was starved.
    busy: Option<Vec<(f64, f64)>>,
}

impl Stalls {
    /// Somebody who was to be seen at `due_ms` was seen now.
    pub fn late(&mut self, reason: Reason, due_ms: f64, now_ms: f64) {
        self.lags.late(reason, due_ms, now_ms);
    }

    /// The same, where what a busy machine explains is excused as well.
    #[must_use]
    pub fn busy(&self) -> Stalls {
        Stalls { busy: Some(self.lags.starved()), ..self.clone() }
    }

    /// Why nothing in a busy run can be held against its gateway, in words.
    #[must_use]
    pub fn said_busy(&self, since_ms: f64) -> Option<Spoilt> {
        self.lags.said(since_ms)
    }

    /// Seconds of starvation, each with what it has set off.
    fn starved(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.busy.iter().flatten().map(|(from, until)| (*from, until + LONG_AFTERMATH_MS))
    }

    /// Somebody was seen, and the time before was so long after the one before that.
    pub fn seen(&mut self, reason: Reason, last_ms: f64, now_ms: f64) {
        if now_ms - last_ms >= KEPT_MS && self.all.len() < MOST {
            self.all.push(Stall { reason, from_ms: last_ms, until_ms: now_ms });
        }
    }

    /// Nobody stood still.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How much of this time anybody stood still.
    #[must_use]
    pub fn within(&self, from_ms: f64, until_ms: f64) -> f64 {
        let end = |s: &Stall| if self.is_long(s) { self.over(s) } else { s.until_ms };
        let pauses = self.all.iter().map(|s| (s.from_ms, end(s))).chain(self.starved());
        let stood = union_ms(pauses, from_ms, until_ms);
        let late = self.busy.as_ref().map_or(0.0, |_| self.lags.within(from_ms, until_ms));
        stood.max(late)
    }

    /// A request of this time met a pause, or what came of one.
    #[must_use]
    pub fn met(&self, from_ms: f64, until_ms: f64) -> bool {
        let mut all = self.all.iter().map(|s| (s.from_ms, self.over(s))).chain(self.starved());
        all.any(|(from, over)| from < until_ms && over > from_ms)
    }

    /// When what it has set off is over.
    fn over(&self, s: &Stall) -> f64 {
        s.until_ms + if self.is_long(s) { LONG_AFTERMATH_MS } else { AFTERMATH * s.span() }
    }

    fn is_long(&self, s: &Stall) -> bool {
        self.long_ms.is_some_and(|long| s.span() >= long)
    }

    /// The same, where the limits that the gateway works with are known: one that is longer than the shortest of them is long, and
    /// what failed for a while after it may come of it.
    #[must_use]
    pub fn under(&self, limits_ms: &[f64]) -> Stalls {
        // A sight may be late by one interval although nobody stood still.
        let long = limits_ms.iter().copied().filter(|l| *l > KEPT_MS).fold(LONG_MS, f64::min) + TICK_MS;
        Stalls { long_ms: Some(long), ..self.clone() }
    }

    /// The longest from this moment on. Where the runner stood still it saw nobody else either: then it is named.
    fn longest(&self, since_ms: f64) -> Option<&Stall> {
        let late = || self.all.iter().filter(|s| s.until_ms > since_ms);
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
        Some(Spoilt::by(stall.reason, text))
    }
}

/// How much of this time lies in any of these spans.
pub(super) fn union_ms(spans: impl Iterator<Item = (f64, f64)>, from_ms: f64, until_ms: f64) -> f64 {
    let cut = |(a, b): (f64, f64)| (a.max(from_ms), b.min(until_ms));
    let mut parts: Vec<(f64, f64)> = spans.map(cut).filter(|(a, b)| a < b).collect();
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut end) = (0.0, f64::NEG_INFINITY);
    for (a, b) in parts {
        sum += (b - a.max(end)).max(0.0);
        end = end.max(b);
    }
    sum
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
        assert!(said.text.contains("up to 1000 ms, until 2.00 s"), "{}", said.text);
        assert_eq!(s.said(3000.0), None, "before anything was broken");
    }

    /// 750 ms: more than a limit of 600 ms and a tick, less than the 800 ms of a longer one, and then 6 s for what it set off.
    #[test]
    fn what_is_long_follows_from_the_limits_and_excuses_nothing_before_it_and_little_after_it() {
        let s = stalls(&[(Reason::LabLost, 10_000.0, 10_750.0)]);
        let (long, short) = (s.under(&[600.0, 800.0, 0.0]), s.under(&[5000.0]));
        assert!(!long.met(9_000.0, 9_990.0) && !short.met(9_000.0, 9_990.0), "over before it");
        assert!(long.met(9_000.0, 10_100.0) && short.met(9_000.0, 10_100.0));
        assert!(long.met(16_700.0, 16_800.0) && !long.met(16_760.0, 16_800.0));
        assert!(short.met(12_200.0, 12_300.0) && !short.met(12_260.0, 12_300.0), "twice its length");
        assert_eq!((long.within(9_000.0, 30_000.0), short.within(9_000.0, 30_000.0)), (6_750.0, 750.0));
    }
}
