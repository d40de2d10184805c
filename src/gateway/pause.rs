//! When this process itself stood still (stopped, starved, swapped out), every limit seems to have run out at once while the
//! answers lie unread in the sockets. A limit that is noticed late is therefore not believed: what has come meanwhile is read
//! first, and the time of the pause counts against nobody.

use std::time::{Duration, Instant};

use crate::units::Ts;

/// A timer that rings this much later than it was set for says that the process stood still. A busy machine's ring a few
/// milliseconds late.
pub(super) const LATE: Duration = Duration::from_millis(100);
/// How long sockets are read then before time goes on. Reading what lies there takes a millisecond or two.
pub(super) const GRACE: Duration = Duration::from_millis(50);

/// The core's time line: the monotonic clock without the pauses of this process. It never goes back.
#[derive(Debug)]
pub(super) struct CoreTime {
    anchor: Instant,
    /// What pauses have taken so far.
    lost: Duration,
    last: Ts,
}

impl CoreTime {
    pub(super) fn new(anchor: Instant) -> CoreTime {
        CoreTime { anchor, lost: Duration::ZERO, last: Ts(0) }
    }

    /// What time it is at this instant, if the next limit is `armed`. If that limit should have been noticed a good while ago,
    /// time stands still just before it for [`GRACE`].
    pub(super) fn at(&mut self, instant: Instant, armed: Option<Ts>) -> Ts {
        let read = |lost| {
            let real = instant.saturating_duration_since(self.anchor).saturating_sub(lost);
            Ts(u64::try_from(real.as_nanos()).unwrap_or(u64::MAX))
        };
        let mut now = read(self.lost);
        if let Some(late) = armed.map(|at| now.since(at)).filter(|late| *late > LATE) {
            self.lost += late + Duration::from_nanos(1) + GRACE;
            now = read(self.lost);
            let before = armed.map_or(now, |at| Ts(at.0.saturating_sub(1)));
            now = now.max(before);
        }
        self.last = self.last.max(now);
        self.last
    }

    /// When it will be this time, as far as is known.
    pub(super) fn instant(&self, at: Ts) -> Instant {
        self.anchor + Duration::from_nanos(at.0) + self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_not_counted_and_time_stands_still_while_sockets_are_read() {
        let anchor = Instant::now();
        let real = |ms| anchor + Duration::from_millis(ms);
        let mut time = CoreTime::new(anchor);
        let armed = Some(Ts::from_ms(800));
        assert_eq!(time.at(real(20), armed), Ts::from_ms(20));
        // Late by less than a pause: a limit like any other.
        assert_eq!(CoreTime::new(anchor).at(real(900), armed), Ts::from_ms(900));
        // It stood still until 1500: the limit has not run out, for anybody, while sockets are read.
        let held = Ts(Ts::from_ms(800).0 - 1);
        for ms in [1500, 1520, 1549] {
            assert_eq!(time.at(real(ms), armed), held, "{ms}");
        }
        assert_eq!(time.instant(Ts::from_ms(800)), real(1550) + Duration::from_nanos(1));
        // Then it goes on: who is still silent has run out of time.
        assert_eq!(time.at(real(1560), armed), Ts(Ts::from_ms(810).0 - 1));
        // Whoever was asked after the pause has its whole time.
        assert_eq!(time.at(real(1660), Some(Ts::from_ms(1600))), Ts(Ts::from_ms(910).0 - 1));
    }
}
