//! `slow_close`: the close is delayed, the data is not. Removal during the wait closes at once.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Item, Pull, Spec, Stage};
use crate::units::Ts;

/// The stage.
#[derive(Debug)]
pub struct SlowClose {
    delay_ms: u64,
    out: VecDeque<Item>,
    close: Option<(Item, Ts)>,
}

impl SlowClose {
    /// Milliseconds.
    #[must_use]
    pub fn new(delay_ms: u64) -> SlowClose {
        SlowClose { delay_ms, out: VecDeque::new(), close: None }
    }
}

impl Stage for SlowClose {
    fn room(&self) -> bool {
        self.out.is_empty() && self.close.is_none()
    }

    fn push(&mut self, item: Item, now: Ts) {
        match item {
            Item::Data { .. } => self.out.push_back(item),
            other => self.close = Some((other, now)),
        }
    }

    fn pull(&mut self, now: Ts) -> Pull {
        if let Some(item) = self.out.pop_front() {
            return Pull::Item(item);
        }
        match self.close.take() {
            None => Pull::Wait(None),
            Some((item, since)) => {
                let due = since + Duration::from_millis(self.delay_ms);
                if now < due {
                    self.close = Some((item, since));
                    return Pull::Wait(Some(due));
                }
                Pull::Item(item)
            }
        }
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        if let Spec::SlowClose { delay_ms } = *spec {
            self.delay_ms = delay_ms;
        }
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.out.into_iter().chain(self.close.map(|(item, _)| item)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_close_waits() {
        let mut stage = SlowClose::new(600);
        stage.push(Item::Eof, Ts::from_ms(50));
        assert_eq!(stage.pull(Ts::from_ms(60)), Pull::Wait(Some(Ts::from_ms(650))));
        assert_eq!(stage.pull(Ts::from_ms(650)), Pull::Item(Item::Eof));
    }
}
