//! `timeout`: bytes are swallowed. With a limit the connection is closed so long after the last chunk (an idle timer, as
//! the real server has it); without one it stays. What was swallowed is gone, so removal closes the connection.

use std::time::Duration;

use super::{End, Item, Pull, Spec, Stage};
use crate::units::Ts;

/// The stage.
#[derive(Debug)]
pub struct Timeout {
    timeout_ms: u64,
    since: Ts,
    /// A FIN or an end still passes.
    pass: Option<Item>,
    over: bool,
}

impl Timeout {
    /// Milliseconds after the last chunk; 0 never closes.
    #[must_use]
    pub fn new(timeout_ms: u64, now: Ts) -> Timeout {
        Timeout { timeout_ms, since: now, pass: None, over: false }
    }
}

impl Stage for Timeout {
    fn room(&self) -> bool {
        !self.over
    }

    fn push(&mut self, item: Item, now: Ts) {
        match item {
            Item::Data { .. } => self.since = now,
            other => self.pass = Some(other),
        }
    }

    fn pull(&mut self, now: Ts) -> Pull {
        if let Some(item) = self.pass.take() {
            return Pull::Item(item);
        }
        if self.timeout_ms == 0 || self.over {
            return Pull::Wait(None);
        }
        let due = self.since + Duration::from_millis(self.timeout_ms);
        if now < due {
            return Pull::Wait(Some(due));
        }
        self.over = true;
        Pull::Item(Item::End(End::Fin))
    }

    fn update(&mut self, spec: &Spec, now: Ts) {
        let Spec::Timeout { timeout_ms } = *spec else { return };
        self.timeout_ms = timeout_ms;
        self.since = now;
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.pass.into_iter().chain([Item::End(End::Fin)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn each_chunk_restarts_the_timer() {
        let mut stage = Timeout::new(700, Ts::ZERO);
        stage.push(Item::Data { bytes: Bytes::from_static(b"x"), at: Ts::ZERO }, Ts::from_ms(500));
        assert_eq!(stage.pull(Ts::from_ms(700)), Pull::Wait(Some(Ts::from_ms(1200))));
        stage.push(Item::Eof, Ts::from_ms(800));
        assert_eq!(stage.pull(Ts::from_ms(800)), Pull::Item(Item::Eof));
        assert_eq!(stage.pull(Ts::from_ms(1200)), Pull::Item(Item::End(End::Fin)));
    }
}
