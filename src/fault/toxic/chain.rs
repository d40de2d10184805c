//! The toxics of one direction of one connection, in a row, and the queue of what may be written at its end.

use std::collections::VecDeque;

use super::http::Tracker;
use super::spec::{Meeting, Spec};
use super::{End, Item, Pull, Stage};
use crate::units::{Rng, Ts};

/// What waits for the receiver before the sender is asked to pause.
const OUT_MAX_BYTES: usize = 64 << 10;

/// A toxic as a chain needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Active {
    /// Never used twice in a server.
    pub id: u64,
    /// What it does.
    pub spec: Spec,
    /// Share of connections, 0..1.
    pub toxicity: f32,
}

#[derive(Debug)]
struct Slot {
    id: u64,
    spec: Spec,
    /// Drawn once for this connection: below the toxicity means affected. A raised toxicity adds connections, never swaps.
    draw: f64,
    stage: Option<Box<dyn Stage>>,
}

/// See the module.
#[derive(Debug)]
pub struct Chain {
    slots: Vec<Slot>,
    out: VecDeque<Item>,
    out_bytes: usize,
    ended: bool,
    tracker: Option<Tracker>,
    seed: u64,
    armed: bool,
}

impl Chain {
    /// `follow_http`: this is the direction of responses. `seed` is the connection's. `armed`: it was opened while a
    /// `reset_peer` was on the proxy.
    #[must_use]
    pub fn new(follow_http: bool, seed: u64, armed: bool) -> Chain {
        Chain {
            slots: Vec::new(),
            out: VecDeque::new(),
            out_bytes: 0,
            ended: false,
            tracker: follow_http.then(Tracker::new),
            seed,
            armed,
        }
    }

    /// Brings the chain to this list: what is gone hands over what it held, what is new goes to the end.
    pub fn apply(&mut self, active: &[Active], now: Ts) {
        while let Some(n) = self.slots.iter().position(|s| active.iter().all(|a| a.id != s.id)) {
            let slot = self.slots.remove(n);
            if let Some(stage) = slot.stage {
                for item in stage.remove() {
                    self.push_into(n, item, now);
                }
            }
        }
        for want in active {
            let found = self.slots.iter().position(|s| s.id == want.id);
            let n = found.unwrap_or_else(|| {
                let draw = Rng::new(self.seed ^ want.id.wrapping_mul(0x9E37_79B9_7F4A_7C15)).unit();
                self.slots.push(Slot { id: want.id, spec: want.spec, draw, stage: None });
                self.slots.len() - 1
            });
            self.set(n, want, now);
        }
    }

    fn set(&mut self, n: usize, want: &Active, now: Ts) {
        let tracker = self.tracker.clone().unwrap_or_else(Tracker::raw);
        let rng = Rng::new(self.seed.rotate_left(17) ^ want.id);
        let armed = self.armed;
        let Some(slot) = self.slots.get_mut(n) else { return };
        let affected = slot.draw < f64::from(want.toxicity);
        match (&mut slot.stage, affected) {
            (Some(stage), true) => {
                if slot.spec != want.spec {
                    stage.update(&want.spec, now);
                }
            }
            (None, true) => slot.stage = want.spec.stage(Meeting { rng, armed, tracker, now }),
            (stage, false) => {
                if let Some(stage) = stage.take() {
                    for item in stage.remove() {
                        self.push_into(n + 1, item, now);
                    }
                }
            }
        }
        if let Some(slot) = self.slots.get_mut(n) {
            slot.spec = want.spec;
        }
    }

    /// The first stage at or behind `n`.
    fn stage_from(&self, n: usize) -> Option<usize> {
        (n..self.slots.len()).find(|i| self.slots.get(*i).is_some_and(|s| s.stage.is_some()))
    }

    fn room_at(&self, n: usize) -> bool {
        match self.stage_from(n).and_then(|i| self.slots.get(i)).and_then(|s| s.stage.as_ref()) {
            Some(stage) => stage.room(),
            None => !self.ended && self.out_bytes < OUT_MAX_BYTES,
        }
    }

    fn push_into(&mut self, n: usize, item: Item, now: Ts) {
        match self.stage_from(n).and_then(|i| self.slots.get_mut(i)).and_then(|s| s.stage.as_mut()) {
            Some(stage) => stage.push(item, now),
            None if self.ended => {}
            None => {
                if let (Item::Data { bytes, .. }, Some(tracker)) = (&item, &mut self.tracker) {
                    tracker.skip(bytes);
                }
                self.ended = matches!(item, Item::End(_));
                self.out_bytes += item.len();
                self.out.push_back(item);
            }
        }
    }

    /// Another item is wanted from the sender.
    #[must_use]
    pub fn room(&self) -> bool {
        self.room_at(0)
    }

    /// Takes an item from the sender.
    pub fn push(&mut self, item: Item, now: Ts) {
        self.push_into(0, item, now);
    }

    /// Moves on what may move. Returns when something may move next by time alone.
    pub fn advance(&mut self, now: Ts) -> Option<Ts> {
        let mut wake = vec![None; self.slots.len()];
        loop {
            let mut moved = false;
            for n in (0..self.slots.len()).rev() {
                while self.room_at(n + 1) {
                    let Some(stage) = self.slots.get_mut(n).and_then(|s| s.stage.as_mut()) else { break };
                    match stage.pull(now) {
                        Pull::Item(item) => {
                            self.push_into(n + 1, item, now);
                            moved = true;
                        }
                        Pull::Wait(until) => {
                            if let Some(w) = wake.get_mut(n) {
                                *w = until;
                            }
                            break;
                        }
                    }
                }
            }
            if !moved {
                return wake.into_iter().flatten().min();
            }
        }
    }

    /// What is to be written next.
    #[must_use]
    pub fn front(&self) -> Option<&Item> {
        self.out.front()
    }

    /// `n` bytes of the first item were written; an item without bytes is taken whole.
    pub fn written(&mut self, n: usize) {
        self.out_bytes = self.out_bytes.saturating_sub(n);
        match self.out.front_mut() {
            Some(Item::Data { bytes, .. }) if n < bytes.len() => {
                let _ = bytes.split_to(n);
            }
            _ => {
                self.out.pop_front();
            }
        }
    }

    /// The end that has reached the queue: nothing follows it.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        match self.out.back() {
            Some(Item::End(end)) if self.ended => Some(*end),
            _ => None,
        }
    }

    /// No toxic acts on this direction.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.slots.iter().all(|s| s.stage.is_none())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn all_out(chain: &mut Chain) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(item) = chain.front() {
            if let Item::Data { bytes, .. } = item {
                out.extend_from_slice(bytes);
            }
            let n = item.len();
            chain.written(n);
        }
        out
    }

    fn active(id: u64, spec: Spec) -> Active {
        Active { id, spec, toxicity: 1.0 }
    }

    #[test]
    fn two_delays_add_up_and_a_removed_one_hands_over_in_order() {
        let mut chain = Chain::new(false, 1, false);
        let (a, b) = (Spec::Latency { latency_ms: 100, jitter_ms: 0 }, Spec::Latency { latency_ms: 150, jitter_ms: 0 });
        chain.apply(&[active(1, a), active(2, b)], Ts::ZERO);
        chain.push(Item::Data { bytes: Bytes::from_static(b"one"), at: Ts::ZERO }, Ts::ZERO);
        assert_eq!(chain.advance(Ts::ZERO), Some(Ts::from_ms(100)));
        // The driver wakes up 3 ms late; the second delay still counts from the ideal moment.
        assert_eq!(chain.advance(Ts::from_ms(103)), Some(Ts::from_ms(250)));
        chain.push(Item::Data { bytes: Bytes::from_static(b"two"), at: Ts::from_ms(110) }, Ts::from_ms(110));
        chain.apply(&[], Ts::from_ms(120));
        assert_eq!(all_out(&mut chain), b"onetwo");
    }

    #[test]
    fn toxicity_is_sticky_and_grows_only() {
        let spec = Spec::Bandwidth { rate_kb_s: 0 };
        let affected = |seed: u64, toxicity: f32| {
            let mut chain = Chain::new(false, seed, false);
            chain.apply(&[Active { id: 9, spec, toxicity }], Ts::ZERO);
            !chain.is_plain()
        };
        let half: Vec<bool> = (0..1000).map(|seed| affected(seed, 0.5)).collect();
        let more: Vec<bool> = (0..1000).map(|seed| affected(seed, 0.8)).collect();
        assert!((440..560).contains(&half.iter().filter(|a| **a).count()));
        assert!(half.iter().zip(&more).all(|(h, m)| !h || *m));
        assert!((0..100).all(|seed| affected(seed, 1.0) && !affected(seed, 0.0)));
    }

    proptest! {
        /// Whatever comes and goes, toxics that only hold bytes never lose or reorder any.
        #[test]
        fn holding_toxics_lose_nothing(
            ops in proptest::collection::vec((0u8..5, 1usize..3000), 1..60)
        ) {
            let mut chain = Chain::new(true, 5, false);
            let (mut now, mut sent, mut got, mut id) = (Ts::ZERO, Vec::new(), Vec::new(), 0u64);
            let mut active_now: Vec<Active> = Vec::new();
            for (op, size) in ops {
                now = now + std::time::Duration::from_millis(size as u64 % 40);
                id += 1;
                match op {
                    0 => active_now.push(active(id, Spec::Latency { latency_ms: size as u64 % 90, jitter_ms: 20 })),
                    1 => active_now.push(active(id, Spec::Bandwidth { rate_kb_s: size as u64 % 3 * 50 })),
                    2 => active_now.push(active(id, Spec::Slicer { average_bytes: 50, variation_bytes: 9, delay_us: 10 })),
                    3 if !active_now.is_empty() => { active_now.remove(size % active_now.len()); }
                    _ => if chain.room() {
                        let bytes: Vec<u8> = (0..size).map(|n| (n + sent.len()) as u8).collect();
                        sent.extend_from_slice(&bytes);
                        chain.push(Item::Data { bytes: Bytes::from(bytes), at: now }, now);
                    },
                }
                chain.apply(&active_now, now);
                chain.advance(now);
                got.extend(all_out(&mut chain));
            }
            chain.apply(&[], now);
            got.extend(all_out(&mut chain));
            prop_assert_eq!(got, sent);
        }
    }
}
