//! `reset_peer`: after the first chunk or FIN of its direction, so long later, both sides are ended: by RST on a connection
//! that was opened while a `reset_peer` was on the proxy, by FIN otherwise (as the real server does it). Unlike there, a
//! wait under way is given up when the toxic is removed, and what was held passes.

use std::time::Duration;

use super::held::Held;
use super::{End, Item, Pull, Spec, Stage};
use crate::units::Ts;

const WINDOW_BYTES: usize = 64 << 10;

/// The stage.
#[derive(Debug)]
pub struct ResetPeer {
    timeout_ms: u64,
    how: End,
    started: Option<Ts>,
    held: Held,
    over: bool,
}

impl ResetPeer {
    /// Milliseconds from the first chunk, and how this connection ends.
    #[must_use]
    pub fn new(timeout_ms: u64, how: End) -> ResetPeer {
        ResetPeer { timeout_ms, how, started: None, held: Held::new(WINDOW_BYTES), over: false }
    }
}

impl Stage for ResetPeer {
    fn room(&self) -> bool {
        !self.over && self.held.room()
    }

    fn push(&mut self, item: Item, now: Ts) {
        self.started.get_or_insert(now);
        self.held.push(item);
    }

    fn pull(&mut self, now: Ts) -> Pull {
        let Some(started) = self.started else { return Pull::Wait(None) };
        if self.over {
            return Pull::Wait(None);
        }
        let due = started + Duration::from_millis(self.timeout_ms);
        if now < due {
            return Pull::Wait(Some(due));
        }
        self.over = true;
        Pull::Item(Item::End(self.how))
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        if let Spec::ResetPeer { timeout_ms } = *spec {
            self.timeout_ms = timeout_ms;
        }
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
    fn idle_connections_stay_and_removal_during_the_wait_heals() {
        let mut stage = ResetPeer::new(100, End::Rst);
        assert_eq!(stage.pull(Ts::from_s(60)), Pull::Wait(None));
        let item = Item::Data { bytes: Bytes::from_static(b"x"), at: Ts::from_s(60) };
        stage.push(item.clone(), Ts::from_s(60));
        assert_eq!(stage.pull(Ts::from_s(60)), Pull::Wait(Some(Ts::from_ms(60_100))));
        assert_eq!(Box::new(stage).remove(), [item]);
    }
}
