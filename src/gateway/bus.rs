//! Events on their way out: numbered, kept in a bounded ring for `/events`, handed to the journal. Publishing never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::event::{EVENT_FORMAT, Event, Stamped};
use crate::telemetry::Journal;

/// Events kept for readers that come later or are slow.
pub const RING_EVENTS: usize = 4096;

/// The one place where events get their numbers.
#[derive(Debug)]
pub struct Bus {
    anchor: Instant,
    ring: Mutex<Ring>,
    latest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Ring {
    next_seq: u64,
    events: VecDeque<Arc<Stamped>>,
    journal: Option<Journal>,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// The next event.
    Event(Arc<Stamped>),
    /// The reader was too slow: so many events are gone; its place has moved behind them.
    Gap(u64),
}

impl Bus {
    /// A bus whose monotonic times count from `anchor`.
    #[must_use]
    pub fn new(anchor: Instant, journal: Option<Journal>) -> Bus {
        let ring = Ring { next_seq: 1, events: VecDeque::new(), journal };
        Bus { anchor, ring: Mutex::new(ring), latest: watch::channel(0).0 }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers an event and hands it to whoever reads. Returns it as they get it.
    pub fn publish(&self, event: Event) -> Arc<Stamped> {
        let mut ring = self.lock();
        let seq = ring.next_seq;
        ring.next_seq += 1;
        let mono_ns = u64::try_from(self.anchor.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let stamped = Arc::new(Stamped { v: EVENT_FORMAT, seq, at_unix_ms: unix_ms(), mono_ns, event });
        let oldest = if ring.events.len() == RING_EVENTS { ring.events.pop_front() } else { None };
        ring.events.push_back(Arc::clone(&stamped));
        if let Some(journal) = &ring.journal {
            journal.push(Arc::clone(&stamped));
        }
        drop(ring);
        drop(oldest);
        self.latest.send_replace(seq);
        stamped
    }

    /// Number of the last event; zero before the first.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.lock().next_seq - 1
    }

    /// What follows `seen`, if anything.
    #[must_use]
    pub fn after(&self, seen: u64) -> Option<Read> {
        let ring = self.lock();
        let first = ring.events.front()?.seq;
        if seen + 1 < first {
            return Some(Read::Gap(first - seen - 1));
        }
        let at = usize::try_from(seen + 1 - first).ok()?;
        ring.events.get(at).map(|e| Read::Event(Arc::clone(e)))
    }

    /// Wakes when a later event than the ones seen through it is there.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Journal lines dropped so far.
    #[must_use]
    pub fn journal_dropped(&self) -> u64 {
        self.lock().journal.as_ref().map_or(0, Journal::dropped)
    }

    /// Ends the journal, waiting at most `limit` for its disk.
    pub fn close_journal(&self, limit: std::time::Duration) {
        let journal = self.lock().journal.take();
        if let Some(journal) = journal {
            journal.close(limit);
        }
    }
}

/// The wall clock in Unix milliseconds; zero before 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_gets_a_gap_and_goes_on() {
        let bus = Bus::new(Instant::now(), None);
        assert_eq!(bus.after(0), None);
        for open in 0..(RING_EVENTS as u64 + 10) {
            bus.publish(Event::Stopped { open });
        }
        assert_eq!(bus.after(0), Some(Read::Gap(10)));
        let Some(Read::Event(e)) = bus.after(10) else { panic!("an event follows the gap") };
        assert_eq!((e.seq, &e.event), (11, &Event::Stopped { open: 10 }));
        assert_eq!(bus.after(bus.last_seq()), None);
    }
}
