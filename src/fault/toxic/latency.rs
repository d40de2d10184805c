//! `latency`: every chunk is delayed, counted from its own arrival, so that chunks stay pipelined. A bare FIN is not
//! delayed. Removal hands over at once, in order.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Item, Pull, Spec, Stage};
use crate::units::{Rng, Ts};

/// Bytes under way per direction; beyond it the sender waits. At 1 s of latency this still passes 1 MiB/s, far above a
/// token stream.
const WINDOW_BYTES: usize = 1 << 20;
const ITEMS_MAX: usize = 4096;

/// The stage.
#[derive(Debug)]
pub struct Latency {
    latency_ms: u64,
    jitter_ms: u64,
    rng: Rng,
    held: VecDeque<(Item, Ts)>,
    bytes: usize,
    last_due: Ts,
}

impl Latency {
    /// A delay in milliseconds, with uniform jitter in `[-jitter, +jitter)`.
    #[must_use]
    pub fn new(latency_ms: u64, jitter_ms: u64, rng: Rng) -> Latency {
        Latency { latency_ms, jitter_ms, rng, held: VecDeque::new(), bytes: 0, last_due: Ts::ZERO }
    }

    /// Never negative: a draw below zero counts as zero.
    fn draw(&mut self) -> Duration {
        let mut micros = self.latency_ms as f64 * 1e3;
        if self.jitter_ms > 0 {
            micros += (self.rng.unit() * 2.0 - 1.0) * self.jitter_ms as f64 * 1e3;
        }
        // The cast saturates, so that absurd values stay a very long wait.
        Duration::from_micros(micros.max(0.0) as u64)
    }
}

impl Stage for Latency {
    fn room(&self) -> bool {
        self.bytes < WINDOW_BYTES && self.held.len() < ITEMS_MAX
    }

    fn push(&mut self, item: Item, _now: Ts) {
        let due = match &item {
            Item::Data { at, .. } => *at + self.draw(),
            Item::Eof | Item::End(_) => Ts::ZERO,
        };
        self.bytes += item.len();
        self.held.push_back((item, due));
    }

    fn pull(&mut self, now: Ts) -> Pull {
        let Some((_, due)) = self.held.front() else { return Pull::Wait(None) };
        if *due > now {
            return Pull::Wait(Some(*due));
        }
        let Some((item, due)) = self.held.pop_front() else { return Pull::Wait(None) };
        self.bytes -= item.len();
        Pull::Item(match item {
            Item::Data { bytes, .. } => {
                // The ideal moment, not the moment of the wake-up, so that a second delay does not add its slack.
                self.last_due = self.last_due.max(due);
                Item::Data { bytes, at: self.last_due }
            }
            other => other,
        })
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        let Spec::Latency { latency_ms, jitter_ms } = *spec else { return };
        self.latency_ms = latency_ms;
        self.jitter_ms = jitter_ms;
        for n in 0..self.held.len() {
            let delay = self.draw();
            if let Some((Item::Data { at, .. }, due)) = self.held.get_mut(n) {
                *due = *at + delay;
            }
        }
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.held.into_iter().map(|(item, _)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn data(text: &'static str, at_ms: u64) -> Item {
        Item::Data { bytes: Bytes::from_static(text.as_bytes()), at: Ts::from_ms(at_ms) }
    }

    #[test]
    fn each_chunk_is_late_by_the_same_and_a_fin_follows_its_data() {
        let mut stage = Latency::new(200, 0, Rng::new(1));
        stage.push(data("a", 0), Ts::ZERO);
        stage.push(data("b", 20), Ts::from_ms(20));
        stage.push(Item::Eof, Ts::from_ms(21));
        assert_eq!(stage.pull(Ts::from_ms(199)), Pull::Wait(Some(Ts::from_ms(200))));
        assert_eq!(stage.pull(Ts::from_ms(203)), Pull::Item(data("a", 200)));
        assert_eq!(stage.pull(Ts::from_ms(203)), Pull::Wait(Some(Ts::from_ms(220))));
        assert_eq!(stage.pull(Ts::from_ms(220)), Pull::Item(data("b", 220)));
        assert_eq!(stage.pull(Ts::from_ms(220)), Pull::Item(Item::Eof));
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_below_zero_is_zero() {
        let mut stage = Latency::new(100, 150, Rng::new(7));
        let draws: Vec<f64> = (0..4000).map(|_| stage.draw().as_secs_f64() * 1e3).collect();
        assert!(draws.iter().all(|d| (0.0..250.0).contains(d)));
        // Uniform on [-50, 250): one sixth of it is below zero.
        let zeros = draws.iter().filter(|d| **d == 0.0).count();
        assert!((500..840).contains(&zeros), "{zeros}");
    }
}
