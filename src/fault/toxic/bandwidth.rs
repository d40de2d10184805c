//! `bandwidth`: so many KB (1000 bytes) per second and connection. Bytes pass when their time is over, in slices of at
//! most 100 ms worth. Rate 0 lets nothing pass and loses nothing: the stall that heals.

use std::time::Duration;

use super::held::Held;
use super::{Item, Pull, Spec, Stage};
use crate::units::Ts;

/// Enough to keep a slice ready; a stalled path makes its sender wait soon, as a real one does.
const WINDOW_BYTES: usize = 64 << 10;
/// After a pause made by the receiver, at most this much may be caught up at once.
const CREDIT: Duration = Duration::from_millis(100);

/// The stage.
#[derive(Debug)]
pub struct Bandwidth {
    rate_kb_s: u64,
    held: Held,
    /// When the last slice was paid for.
    free_at: Ts,
}

impl Bandwidth {
    /// Kilobytes per second.
    #[must_use]
    pub fn new(rate_kb_s: u64) -> Bandwidth {
        Bandwidth { rate_kb_s, held: Held::new(WINDOW_BYTES), free_at: Ts::ZERO }
    }
}

impl Stage for Bandwidth {
    fn room(&self) -> bool {
        self.held.room()
    }

    fn push(&mut self, item: Item, _now: Ts) {
        self.held.push(item);
    }

    fn pull(&mut self, now: Ts) -> Pull {
        let (len, at) = match self.held.front() {
            None => return Pull::Wait(None),
            Some(Item::Data { bytes, at }) => (bytes.len(), *at),
            Some(Item::Eof | Item::End(_)) => return self.held.pop().map_or(Pull::Wait(None), Pull::Item),
        };
        if self.rate_kb_s == 0 {
            return Pull::Wait(None);
        }
        let slice = usize::try_from(self.rate_kb_s.saturating_mul(100)).unwrap_or(usize::MAX).min(len);
        // One KB/s is one byte per millisecond.
        let cost = Duration::from_nanos((slice as u64).saturating_mul(1_000_000) / self.rate_kb_s);
        let due = self.free_at.max(at) + cost;
        if due > now {
            return Pull::Wait(Some(due));
        }
        let Some(Item::Data { mut bytes, at }) = self.held.pop() else { return Pull::Wait(None) };
        self.free_at = due.max(Ts(now.0.saturating_sub(CREDIT.as_nanos() as u64)));
        let head = bytes.split_to(slice);
        if !bytes.is_empty() {
            self.held.push_front(Item::Data { bytes, at });
        }
        Pull::Item(Item::Data { bytes: head, at: due })
    }

    fn update(&mut self, spec: &Spec, now: Ts) {
        let Spec::Bandwidth { rate_kb_s } = *spec else { return };
        if self.rate_kb_s == 0 {
            // A stall that ends gives no credit for the time it lasted.
            self.free_at = now;
        }
        self.rate_kb_s = rate_kb_s;
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.held.into_items()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Pulls as a driver would: at each wake-up, until nothing is left.
    fn drain(stage: &mut Bandwidth, mut now: Ts) -> Vec<(u64, usize)> {
        let mut out = Vec::new();
        loop {
            match stage.pull(now) {
                Pull::Item(item) => out.push((now.as_ms(), item.len())),
                Pull::Wait(Some(at)) => now = at,
                Pull::Wait(None) => return out,
            }
        }
    }

    #[test]
    fn large_chunks_go_in_slices_of_a_tenth_of_a_second() {
        let mut stage = Bandwidth::new(100);
        stage.push(Item::Data { bytes: Bytes::from(vec![0; 25_000]), at: Ts::ZERO }, Ts::ZERO);
        assert_eq!(drain(&mut stage, Ts::ZERO), [(100, 10_000), (200, 10_000), (250, 5_000)]);
    }

    #[test]
    fn zero_holds_and_removal_gives_everything_back() {
        let mut stage = Bandwidth::new(0);
        let item = Item::Data { bytes: Bytes::from_static(b"held"), at: Ts::ZERO };
        stage.push(item.clone(), Ts::ZERO);
        stage.push(Item::Eof, Ts::ZERO);
        assert_eq!(stage.pull(Ts::from_s(3600)), Pull::Wait(None));
        assert_eq!(Box::new(stage).remove(), [item, Item::Eof]);
    }

    #[test]
    fn a_late_driver_keeps_the_rate_but_a_blocked_receiver_earns_no_burst() {
        let mut stage = Bandwidth::new(10);
        stage.push(Item::Data { bytes: Bytes::from(vec![0; 10_000]), at: Ts::ZERO }, Ts::ZERO);
        // Nobody pulled for 10 s. The slice due at 100 ms and what fits into the credit pass; then the rate holds again.
        let now = Ts::from_s(10);
        let mut at_once = 0;
        while let Pull::Item(item) = stage.pull(now) {
            at_once += item.len();
        }
        assert_eq!(at_once, 2_000);
    }
}
