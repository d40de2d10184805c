//! `cut_after` (ours): a response is cut after so many bytes, server-sent events or milliseconds: by RST, by FIN, or by
//! silence. Counted per response on a kept-alive HTTP connection, from when the toxic meets it; per connection for anything
//! that is not HTTP/1, and in the upstream direction.
//!
//! - `bytes`: as they are on the wire, head and chunk framing included; exactly so many pass.
//! - `events`: of responses that are event streams; the byte behind the event is the first that does not pass.
//! - `ms`: from the first byte of a response, or from when the toxic meets a response or a fresh connection. Traffic does
//!   not prolong it, and a connection idle between responses is left alone; but 0 cuts at once, idle or not.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::held::Held;
use super::http::{Mark, Tracker};
use super::sse::Scanner;
use super::{End, Item, Pull, Spec, Stage};
use crate::units::Ts;
use serde::{Deserialize, Serialize};

/// What a silent cut keeps before the sender has to wait.
const WINDOW_BYTES: usize = 64 << 10;

/// After how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Bytes on the wire.
    Bytes(u64),
    /// Server-sent events.
    Events(u64),
    /// Milliseconds.
    Ms(u64),
}

/// What the application sees at the cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// A reset.
    #[default]
    Rst,
    /// A regular close.
    Fin,
    /// Nothing more, while the connection stays. Removal heals it: what was held passes.
    Silence,
}

/// The stage.
#[derive(Debug)]
pub struct CutAfter {
    after: After,
    how: How,
    tracker: Tracker,
    scanner: Scanner,
    count: u64,
    clock: Option<Ts>,
    out: VecDeque<Item>,
    held: Held,
    cut: bool,
}

impl CutAfter {
    /// `tracker` has seen what passed before this toxic came.
    #[must_use]
    pub fn new(after: After, how: How, tracker: Tracker, now: Ts) -> CutAfter {
        CutAfter {
            after,
            how,
            scanner: if tracker.at_start() { Scanner::new() } else { Scanner::midway() },
            clock: (!tracker.is_idle()).then_some(now),
            tracker,
            count: 0,
            out: VecDeque::new(),
            held: Held::new(WINDOW_BYTES),
            cut: false,
        }
    }

    fn due(&self, now: Ts) -> Option<Ts> {
        match self.after {
            After::Ms(0) => Some(now),
            After::Ms(ms) => self.clock.map(|c| c + Duration::from_millis(ms)),
            After::Bytes(_) | After::Events(_) => None,
        }
    }

    fn cut(&mut self) {
        self.cut = true;
        match self.how {
            How::Rst => self.out.push_back(Item::End(End::Rst)),
            How::Fin => self.out.push_back(Item::End(End::Fin)),
            How::Silence => {}
        }
    }

    /// How many of `bytes` pass, and whether the cut follows them.
    fn passes(&mut self, bytes: &[u8], now: Ts) -> (usize, bool) {
        let mut pos = 0;
        loop {
            let rest = bytes.get(pos..).unwrap_or_default();
            let Some(mark) = self.tracker.step(rest) else { return (pos, false) };
            let (len, text) = match mark {
                Mark::Start => {
                    self.count = 0;
                    self.scanner = Scanner::new();
                    self.clock = Some(now);
                    continue;
                }
                Mark::Finish => {
                    self.clock = None;
                    continue;
                }
                Mark::Framing(n) => (n, false),
                Mark::Body(n) | Mark::Raw(n) => (n, self.tracker.is_sse()),
            };
            match self.after {
                After::Bytes(limit) => {
                    let left = limit.saturating_sub(self.count);
                    if len as u64 >= left {
                        return (pos + left as usize, true);
                    }
                    self.count += len as u64;
                }
                After::Events(limit) if text => {
                    let body = rest.get(..len).unwrap_or_default();
                    let mut at = 0;
                    while self.count < limit {
                        let Some(end) = self.scanner.next_end(body.get(at..).unwrap_or_default()) else { break };
                        at += end;
                        self.count += 1;
                    }
                    if self.count >= limit {
                        return (pos + at, true);
                    }
                }
                After::Events(_) | After::Ms(_) => {}
            }
            pos += len;
        }
    }

    fn data(&mut self, mut bytes: Bytes, at: Ts, now: Ts) {
        let (pass, cut) = self.passes(&bytes, now);
        let head = bytes.split_to(pass.min(bytes.len()));
        if !head.is_empty() {
            self.out.push_back(Item::Data { bytes: head, at });
        }
        if cut {
            self.cut();
            if self.how == How::Silence && !bytes.is_empty() {
                self.held.push(Item::Data { bytes, at });
            }
        }
    }
}

impl Stage for CutAfter {
    fn room(&self) -> bool {
        if self.cut { self.how == How::Silence && self.held.room() } else { self.out.is_empty() }
    }

    fn push(&mut self, item: Item, now: Ts) {
        if !self.cut && self.due(now).is_some_and(|due| due <= now) {
            self.cut();
        }
        match item {
            item if self.cut => {
                if self.how == How::Silence {
                    self.held.push(item);
                }
            }
            Item::Data { bytes, at } => self.data(bytes, at, now),
            other => self.out.push_back(other),
        }
    }

    fn pull(&mut self, now: Ts) -> Pull {
        if let Some(item) = self.out.pop_front() {
            return Pull::Item(item);
        }
        if self.cut {
            return Pull::Wait(None);
        }
        match self.due(now) {
            Some(due) if due <= now => {
                self.cut();
                self.out.pop_front().map_or(Pull::Wait(None), Pull::Item)
            }
            wait => Pull::Wait(wait),
        }
    }

    fn update(&mut self, spec: &Spec, _now: Ts) {
        if let Spec::CutAfter { after, how } = *spec {
            self.after = after;
            self.how = how;
        }
    }

    fn remove(self: Box<Self>) -> Vec<Item> {
        self.out.into_iter().chain(self.held.into_items()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
        9\r\ndata: a\n\n\r\n12\r\ndata: b\n\ndata: c\n\n\r\n0\r\n\r\n";
    const JSON: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\ndata: x\n\n{}";

    /// What passes of these chunks, and whether the end came.
    fn run(stage: &mut CutAfter, chunks: &[&[u8]]) -> (Vec<u8>, bool) {
        let (mut passed, mut ended) = (Vec::new(), false);
        for chunk in chunks.iter().filter(|c| !c.is_empty()) {
            stage.push(Item::Data { bytes: Bytes::copy_from_slice(chunk), at: Ts::ZERO }, Ts::ZERO);
            while let Pull::Item(item) = stage.pull(Ts::ZERO) {
                match item {
                    Item::Data { bytes, .. } => passed.extend_from_slice(&bytes),
                    Item::End(_) => ended = true,
                    Item::Eof => {}
                }
            }
        }
        (passed, ended)
    }

    fn events(n: u64, how: How) -> CutAfter {
        CutAfter::new(After::Events(n), how, Tracker::new(), Ts::ZERO)
    }

    #[test]
    fn events_are_counted_per_response_on_a_kept_alive_connection() {
        let mut stage = events(4, How::Rst);
        // Three events, a JSON body that only looks like one, three events again: never four in one response.
        assert_eq!(run(&mut stage, &[STREAM, JSON, STREAM]), ([STREAM, JSON, STREAM].concat(), false));
        let mut stage = events(3, How::Rst);
        let (passed, ended) = run(&mut stage, &[JSON, STREAM]);
        assert!(ended && passed.ends_with(b"data: b\n\ndata: c\n\n"), "{:?}", String::from_utf8_lossy(&passed));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_anywhere_change_nothing(mut cuts in proptest::collection::vec(0usize..STREAM.len(), 0..10)) {
            cuts.sort_unstable();
            let (mut chunks, mut from) = (Vec::new(), 0);
            for cut in cuts {
                chunks.push(&STREAM[from..cut]);
                from = cut;
            }
            chunks.push(&STREAM[from..]);
            let (passed, ended) = run(&mut events(2, How::Fin), &chunks);
            prop_assert!(ended && passed.ends_with(b"12\r\ndata: b\n\n"));
        }
    }

    #[test]
    fn bytes_count_the_head_and_pass_exactly() {
        let mut stage = CutAfter::new(After::Bytes(20), How::Fin, Tracker::new(), Ts::ZERO);
        assert_eq!(run(&mut stage, &[STREAM]), (STREAM[..20].to_vec(), true));
    }

    #[test]
    fn silence_holds_and_removal_heals() {
        let mut stage = events(1, How::Silence);
        let (mut passed, ended) = run(&mut stage, &[STREAM]);
        assert!(!ended && passed.ends_with(b"data: a\n\n"));
        for item in Box::new(stage).remove() {
            if let Item::Data { bytes, .. } = item {
                passed.extend_from_slice(&bytes);
            }
        }
        assert_eq!(passed, STREAM);
    }

    #[test]
    fn time_runs_per_response_and_rests_between_them() {
        let mut stage = CutAfter::new(After::Ms(300), How::Fin, Tracker::new(), Ts::ZERO);
        assert_eq!(stage.pull(Ts::from_ms(100)), Pull::Wait(Some(Ts::from_ms(300))), "a fresh connection");
        let push = |stage: &mut CutAfter, bytes: &'static [u8], ms| {
            stage.push(Item::Data { bytes: Bytes::from_static(bytes), at: Ts::from_ms(ms) }, Ts::from_ms(ms));
            while let Pull::Item(_) = stage.pull(Ts::from_ms(ms)) {}
        };
        push(&mut stage, JSON, 200);
        assert_eq!(stage.pull(Ts::from_ms(9000)), Pull::Wait(None), "idle between responses");
        push(&mut stage, &STREAM[..90], 9000);
        push(&mut stage, &STREAM[90..95], 9200);
        assert_eq!(stage.pull(Ts::from_ms(9299)), Pull::Wait(Some(Ts::from_ms(9300))), "traffic does not prolong it");
        assert_eq!(stage.pull(Ts::from_ms(9300)), Pull::Item(Item::End(End::Fin)));
    }
}
