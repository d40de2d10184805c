//! `slicer`: chunks are cut into pieces of about `average_size` bytes, give or take `size_variation`, with `delay_us`
//! **micro**seconds after each piece. The bytes stay the same.

use std::time::Duration;

use super::held::Held;
use super::{Item, Pull, Spec, Stage};
use crate::units::{Rng, Ts};

const WINDOW_BYTES: usize = 64 << 10;

/// The stage.
#[derive(Debug)]
pub struct Slicer {
    average_bytes: u64,
    variation_bytes: u64,
    delay_us: u64,
    rng: Rng,
    held: Held,
    free_at: Ts,
}

impl Slicer {
    /// Sizes in bytes (the variation below the average), delay in microseconds.
    #[must_use]
    pub fn new(average_bytes: u64, variation_bytes: u64, delay_us: u64, rng: Rng) -> Slicer {
        Slicer { average_bytes, variation_bytes, delay_us, rng, held: Held::new(WINDOW_BYTES), free_at: Ts::ZERO }
    }
}

impl Stage for Slicer {
    fn room(&self) -> bool {
        self.held.room()
    }

    fn push(&mut self, item: Item, _now: Ts) {
        self.held.push(item);
    }

    fn pull(&mut self, now: Ts) -> Pull {
        match self.held.front() {
            None => return Pull::Wait(None),
            Some(Item::Data { .. }) if self.free_at > now => return Pull::Wait(Some(self.free_at)),
            Some(_) => {}
        }
        let Some(item) = self.held.pop() else { return Pull::Wait(None) };
        let Item::Data { mut bytes, at } = item else { return Pull::Item(item) };
        let low = self.average_bytes.saturating_sub(self.variation_bytes).max(1);
        let span = self.variation_bytes.saturating_mul(2).saturating_add(1);
        let size = usize::try_from(low.saturating_add(self.rng.below(span))).unwrap_or(usize::MAX);
        let head = bytes.split_to(size.min(bytes.len()));
        if !bytes.is_empty() {
            self.held.push_front(Item::Data { bytes, at });
        }
        self.free_at = now + Duration::from_micros(self.delay_us);
        Pull::Item(Item::Data { bytes: head, at: now })
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        let Spec::Slicer { average_bytes, variation_bytes, delay_us } = *spec else { return };
        self.average_bytes = average_bytes;
        self.variation_bytes = variation_bytes;
        self.delay_us = delay_us;
        self.free_at = Ts::ZERO;
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.held.into_items()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn pieces_are_near_the_average_and_nothing_is_lost() {
        let mut stage = Slicer::new(100, 20, 0, Rng::new(3));
        let bytes: Vec<u8> = (0..2000u32).map(|n| n as u8).collect();
        stage.push(Item::Data { bytes: Bytes::from(bytes.clone()), at: Ts::ZERO }, Ts::ZERO);
        let (mut all, mut sizes) = (Vec::new(), Vec::new());
        while let Pull::Item(Item::Data { bytes, .. }) = stage.pull(Ts::ZERO) {
            sizes.push(bytes.len());
            all.extend_from_slice(&bytes);
        }
        assert_eq!(all, bytes);
        sizes.pop();
        assert!(sizes.iter().all(|s| (80..=120).contains(s)), "{sizes:?}");
    }
}
