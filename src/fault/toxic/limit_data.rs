//! `limit_data`: so many bytes pass, counted from when the toxic meets the connection, then both sides are closed.

use std::collections::VecDeque;

use super::{End, Item, Pull, Spec, Stage};
use crate::units::Ts;

/// The stage.
#[derive(Debug)]
pub struct LimitData {
    limit_bytes: u64,
    passed_bytes: u64,
    out: VecDeque<Item>,
    over: bool,
}

impl LimitData {
    /// Bytes that pass.
    #[must_use]
    pub fn new(limit_bytes: u64) -> LimitData {
        LimitData { limit_bytes, passed_bytes: 0, out: VecDeque::new(), over: false }
    }
}

impl Stage for LimitData {
    fn room(&self) -> bool {
        !self.over && self.out.is_empty()
    }

    fn push(&mut self, item: Item, _now: Ts) {
        if self.over {
            return;
        }
        match item {
            Item::Data { mut bytes, at } => {
                let left = self.limit_bytes.saturating_sub(self.passed_bytes);
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.passed_bytes = self.passed_bytes.saturating_add(bytes.len() as u64);
                if !bytes.is_empty() {
                    self.out.push_back(Item::Data { bytes, at });
                }
                if self.passed_bytes >= self.limit_bytes {
                    self.over = true;
                    self.out.push_back(Item::End(End::Fin));
                }
            }
            other => self.out.push_back(other),
        }
    }

    fn pull(&mut self, _now: Ts) -> Pull {
        self.out.pop_front().map_or(Pull::Wait(None), Pull::Item)
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        if let Spec::LimitData { bytes } = *spec {
            self.limit_bytes = bytes;
        }
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.out.into()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn feed(stage: &mut LimitData, len: usize) -> (usize, bool) {
        stage.push(Item::Data { bytes: Bytes::from(vec![b'x'; len]), at: Ts::ZERO }, Ts::ZERO);
        let (mut bytes, mut ended) = (0, false);
        while let Pull::Item(item) = stage.pull(Ts::ZERO) {
            bytes += item.len();
            ended |= item == Item::End(End::Fin);
        }
        (bytes, ended)
    }

    #[test]
    fn exactly_the_limit_closes_at_once_and_zero_at_the_first_chunk() {
        assert_eq!(feed(&mut LimitData::new(5), 4), (4, false));
        assert_eq!(feed(&mut LimitData::new(5), 5), (5, true));
        assert_eq!(feed(&mut LimitData::new(5), 9), (5, true));
        assert_eq!(feed(&mut LimitData::new(0), 1), (0, true));
    }

    #[test]
    fn a_limit_lowered_below_what_passed_closes_at_the_next_chunk() {
        let mut stage = LimitData::new(100);
        assert_eq!(feed(&mut stage, 50), (50, false));
        stage.update(&Spec::LimitData { bytes: 10 }, Ts::ZERO);
        assert_eq!(feed(&mut stage, 3), (0, true));
    }
}
