//! Incremental reader of an event stream, by the WHATWG HTML standard ("Server-sent events", parsing and interpreting an
//! event stream): CR, LF and CRLF end a line and nothing else does (not U+2028, U+0085, VT or FF); one leading byte order
//! mark is dropped; one space after the colon is dropped; several `data` lines are joined by LF; comments and unknown fields
//! are ignored.
//!
//! Two things differ from a browser, on purpose. Each event keeps the exact bytes it came in, so that a relay can send them
//! on unchanged. And an event that the end of the body left without its blank line is delivered when its data is whole JSON
//! or `[DONE]`; a browser would drop it, and with it the end of an answer.
//!
//! An event that lies in one chunk is a slice of that chunk; only one that spans chunks is copied, once.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// Largest event that llmfo accepts: 8 MiB, so that a tool call with 4 MiB of arguments in one line passes whole (case B034)
/// with room to spare.
pub const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// One block of the stream, up to and with the blank line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The exact bytes, blank line included. The raw bytes of all blocks, one after the other, are the stream (less a leading
    /// byte order mark). After [`SseReader::finish`] a missing blank line is added.
    pub raw: Bytes,
    /// The data, without the field name and the line ends. Empty if there is none.
    pub data: Bytes,
    /// Where `data` begins in `raw`; `None` if there is no data or it was joined from several lines.
    pub data_at: Option<usize>,
    /// What kind of block it is.
    pub kind: SseKind,
    /// Its name (`event:`) is `error`.
    pub named_error: bool,
    /// It has more than `data` lines: comments, names, ids, unknown fields.
    pub more_lines: bool,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseKind {
    /// At least one `data` line: an event.
    Data,
    /// Comments, fields without data (`event`, `id`, `retry`), or a bare blank line: nothing that a client acts on. A relay
    /// may drop it.
    Silent,
    /// No data, but a line that no event stream has: its field name is unknown. A bare JSON document or an HTML page looks so.
    Stray,
}

impl SseEvent {
    /// True for `[DONE]`.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.kind == SseKind::Data && is_done(&self.data)
    }
}

fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event is larger than the limit.
    #[error("an event is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// The body ended inside an event.
    #[error("the body ended inside an event")]
    Truncated,
}

/// Reads an event stream from chunks of any size. Push a chunk, then take events until there is none.
#[derive(Debug)]
pub struct SseReader {
    max_event_bytes: usize,
    /// The begin of a block whose end has not come.
    carry: BytesMut,
    /// The newest chunk, from the begin of the current block if `carry` is empty, else from where `carry` ends.
    chunk: Bytes,
    /// How much of `chunk` has been looked at.
    scanned: usize,
    /// Bytes of the current line before `scanned`.
    line_bytes: usize,
    /// The last byte looked at was a CR: a LF that follows belongs to it.
    after_cr: bool,
    /// The current block begins with the LF of the line end that closed the one before it.
    late_lf: bool,
    start: Start,
    failed: bool,
}

/// A byte order mark may come split over chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Fewer than three bytes have come, all of them part of a mark.
    Undecided,
    Over,
}

const BOM: &[u8] = b"\xef\xbb\xbf";

impl SseReader {
    /// A reader at the begin of a body. `max_event_bytes` bounds one event, usually [`MAX_EVENT_BYTES`].
    #[must_use]
    pub fn new(max_event_bytes: usize) -> SseReader {
        SseReader {
            max_event_bytes,
            carry: BytesMut::new(),
            chunk: Bytes::new(),
            scanned: 0,
            line_bytes: 0,
            after_cr: false,
            late_lf: false,
            start: Start::Undecided,
            failed: false,
        }
    }

    /// Adds a chunk of the body. Take all events before the next push: what is left over is joined by copying.
    pub fn push(&mut self, chunk: Bytes) {
        if self.failed || chunk.is_empty() {
            return;
        }
        self.chunk = if self.chunk.is_empty() {
            chunk
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&chunk);
            joined.freeze()
        };
        if self.start == Start::Undecided {
            let mark = BOM.len().min(self.chunk.len());
            if self.chunk[..mark] != BOM[..mark] {
                self.start = Start::Over;
            } else if mark == BOM.len() {
                self.chunk = self.chunk.slice(mark..);
                self.start = Start::Over;
            }
        }
    }

    /// The next whole block; `None` until more has come. After an error there is nothing more.
    #[expect(clippy::should_implement_trait, reason = "None is not the end: more may come after the next push")]
    pub fn next(&mut self) -> Option<Result<SseEvent, SseError>> {
        if self.failed || self.start == Start::Undecided {
            return None;
        }
        while let Some(found) = memchr2(b'\r', b'\n', &self.chunk[self.scanned..]) {
            let at = self.scanned + found;
            let byte = self.chunk[at];
            if byte == b'\n' && found == 0 && self.after_cr {
                // The second half of a CRLF whose first half ended the chunk before.
                self.after_cr = false;
                self.scanned = at + 1;
                if self.block_is_empty(at) {
                    self.late_lf = true;
                }
                continue;
            }
            let blank = self.line_bytes + found == 0;
            let crlf = byte == b'\r' && self.chunk.get(at + 1) == Some(&b'\n');
            self.scanned = at + 1 + usize::from(crlf);
            self.after_cr = byte == b'\r' && !crlf;
            self.line_bytes = 0;
            if blank {
                return Some(self.take_block(at + 1));
            }
        }
        let rest = self.chunk.len() - self.scanned;
        self.line_bytes += rest;
        if rest > 0 {
            self.after_cr = false;
        }
        if self.too_large(self.chunk.len()) {
            return Some(Err(self.fail()));
        }
        self.carry.extend_from_slice(&self.chunk);
        self.chunk = Bytes::new();
        self.scanned = 0;
        None
    }

    /// To be called once the body has ended, when [`SseReader::next`] has nothing more: the unterminated last block. Its
    /// data counts if it is whole JSON or `[DONE]`, else the body was cut inside an event.
    pub fn finish(&mut self) -> Option<Result<SseEvent, SseError>> {
        if self.failed {
            return None;
        }
        self.failed = true;
        self.start = Start::Over;
        let mut raw = std::mem::take(&mut self.carry);
        raw.extend_from_slice(&self.chunk);
        let blank = raw.iter().all(|b| matches!(b, b'\r' | b'\n'));
        if blank {
            return None;
        }
        if self.line_bytes > 0 {
            raw.extend_from_slice(b"\n");
        }
        raw.extend_from_slice(b"\n");
        let event = read_block(raw.freeze());
        let whole = event.kind != SseKind::Data || is_done(&event.data) || super::json::is_whole(&event.data);
        Some(if whole { Ok(event) } else { Err(SseError::Truncated) })
    }

    /// Nothing of the current block lies before `at` in the chunk.
    fn block_is_empty(&self, at: usize) -> bool {
        self.carry.is_empty() && at == 0
    }

    /// `end` bytes of the chunk, with what was carried, are too much for one event. The LF of a CRLF that a chunk border
    /// split off is not counted, so that the same stream gives the same answer however it is cut.
    fn too_large(&self, end: usize) -> bool {
        self.carry.len() + end - usize::from(self.late_lf) > self.max_event_bytes
    }

    fn fail(&mut self) -> SseError {
        self.failed = true;
        self.carry = BytesMut::new();
        self.chunk = Bytes::new();
        SseError::TooLarge { limit_bytes: self.max_event_bytes }
    }

    fn take_block(&mut self, end: usize) -> Result<SseEvent, SseError> {
        if self.too_large(end) {
            return Err(self.fail());
        }
        let tail = self.chunk.split_to(self.scanned);
        self.scanned = 0;
        self.late_lf = false;
        let raw = if self.carry.is_empty() {
            tail
        } else {
            self.carry.extend_from_slice(&tail);
            std::mem::take(&mut self.carry).freeze()
        };
        Ok(read_block(raw))
    }
}

/// Reads the lines of one whole block.
pub(super) fn read_block(raw: Bytes) -> SseEvent {
    let (mut named_error, mut more_lines) = (false, false);
    let mut only: Option<(usize, usize)> = None;
    let mut joined: Option<BytesMut> = None;
    let mut stray = false;
    let mut at = 0;
    while at < raw.len() {
        let rest = &raw[at..];
        let line_bytes = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..line_bytes];
        let colon = memchr(b':', line);
        let name = &line[..colon.unwrap_or(line_bytes)];
        let mut value = colon.map_or(line_bytes, |c| c + 1);
        if colon.is_some() && line.get(value) == Some(&b' ') {
            value += 1;
        }
        match name {
            b"data" => {
                let (from, to) = (at + value, at + line_bytes);
                if let Some(joined) = &mut joined {
                    joined.extend_from_slice(b"\n");
                    joined.extend_from_slice(&raw[from..to]);
                } else if let Some((first_from, first_to)) = only {
                    let mut both = BytesMut::with_capacity(raw.len());
                    both.extend_from_slice(&raw[first_from..first_to]);
                    both.extend_from_slice(b"\n");
                    both.extend_from_slice(&raw[from..to]);
                    joined = Some(both);
                } else {
                    only = Some((from, to));
                }
            }
            // The last name counts, as in a browser.
            b"event" => named_error = rest[value..line_bytes].trim_ascii().eq_ignore_ascii_case(b"error"),
            b"" | b"id" | b"retry" => {}
            _ => stray = true,
        }
        more_lines |= name != b"data" && line_bytes > 0;
        at += line_bytes + 1;
    }
    let (data, data_at, kind) = match (joined, only) {
        (Some(joined), _) => (joined.freeze(), None, SseKind::Data),
        (None, Some((from, to))) => (raw.slice(from..to), Some(from), SseKind::Data),
        (None, None) => (Bytes::new(), None, if stray { SseKind::Stray } else { SseKind::Silent }),
    };
    SseEvent { raw, data, data_at, kind, named_error, more_lines }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All events of a body that comes in these pieces, with what `finish` says.
    fn read(pieces: &[&[u8]], max: usize) -> (Vec<SseEvent>, Vec<SseError>) {
        let mut reader = SseReader::new(max);
        let (mut events, mut errors) = (Vec::new(), Vec::new());
        let mut take = |next: Result<SseEvent, SseError>| match next {
            Ok(event) => events.push(event),
            Err(error) => errors.push(error),
        };
        for piece in pieces {
            reader.push(Bytes::copy_from_slice(piece));
            while let Some(next) = reader.next() {
                take(next);
            }
        }
        if let Some(last) = reader.finish() {
            take(last);
        }
        (events, errors)
    }

    fn data(pieces: &[&[u8]]) -> Vec<String> {
        let (events, errors) = read(pieces, 1 << 20);
        assert_eq!(errors, []);
        let events = events.iter().filter(|e| e.kind == SseKind::Data);
        events.map(|e| String::from_utf8(e.data.to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_examples_of_the_standard() {
        // From the WHATWG HTML standard, section 9.2.6; the data of each event that it says is dispatched.
        assert_eq!(data(&[b"data: YHOO\ndata: +2\ndata: 10\n\n"]), ["YHOO\n+2\n10"]);
        let four = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n";
        assert_eq!(data(&[four]), ["first event", "second event", " third event"]);
        assert_eq!(data(&[b"data\n\ndata\ndata\n\n"]), ["", "\n"]);
        assert_eq!(data(&[b"data:test\n\ndata: test\n\n"]), ["test", "test"]);
    }

    #[test]
    fn all_line_ends_also_split_over_chunks() {
        for end in ["\n", "\r", "\r\n"] {
            let text = format!("data: a{end}{end}: c{end}{end}data: b{end}data: c{end}{end}");
            assert_eq!(data(&[text.as_bytes()]), ["a", "b\nc"], "{end:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(data(&bytes), ["a", "b\nc"], "{end:?} byte by byte");
        }
        // The event is there at the CR, without waiting for a byte that may never come.
        let mut reader = SseReader::new(99);
        reader.push(Bytes::from_static(b"data: a\r\n\r"));
        assert_eq!(reader.next().unwrap().unwrap().data, "a");
        reader.push(Bytes::from_static(b"\ndata: b\n\n"));
        let second = reader.next().unwrap().unwrap();
        assert_eq!((&second.data[..], &second.raw[..]), (&b"b"[..], &b"\ndata: b\n\n"[..]));
        assert!(reader.next().is_none());
    }

    #[test]
    fn an_event_in_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: one\n\ndata: two\n\ndata: thr");
        let inside = |part: &Bytes| chunk.as_ptr_range().contains(&part.as_ptr());
        let mut reader = SseReader::new(99);
        reader.push(chunk.clone());
        for _ in 0..2 {
            let event = reader.next().unwrap().unwrap();
            assert!(inside(&event.raw) && inside(&event.data));
            assert_eq!(event.data_at, Some(6));
        }
        assert!(reader.next().is_none());
        reader.push(Bytes::from_static(b"ee\n\n"));
        assert_eq!(reader.next().unwrap().unwrap().data, "three");
    }

    #[test]
    fn kinds_are_told_apart() {
        let kinds = |text: &[u8]| read(&[text], 999).0.iter().map(|e| e.kind).collect::<Vec<_>>();
        assert_eq!(kinds(b": ping\n\n"), [SseKind::Silent]);
        assert_eq!(kinds(b":\n\n"), [SseKind::Silent]);
        assert_eq!(kinds(b"event: ping\nid: 7\nretry: 5\n\n"), [SseKind::Silent]);
        assert_eq!(kinds(b"\n"), [SseKind::Silent]);
        assert_eq!(kinds(b"\ndata: 1\n\n"), [SseKind::Silent, SseKind::Data]);
        assert_eq!(kinds(b"{\"a\":1}\n\n"), [SseKind::Stray]);
        assert_eq!(kinds(b"unknown: 1\ndata: 1\n\n"), [SseKind::Data]);
        assert_eq!(kinds(b"datax: 1\n\n"), [SseKind::Stray]);
    }

    #[test]
    fn the_unterminated_last_event() {
        assert_eq!(data(&[b"data: {\"a\":1}"]), ["{\"a\":1}"]);
        assert_eq!(data(&[b"data: {\"a\":1}\n"]), ["{\"a\":1}"]);
        assert_eq!(data(&[b"data: [DONE]"]), ["[DONE]"]);
        assert_eq!(data(&[b"data: [DONE]\r"]), ["[DONE]"]);
        for cut in [&b"data: {\"a\":"[..], b"data: ", b"data: {\"a\":1}\ndata: {", b"data: [DON"] {
            assert_eq!(read(&[cut], 99), (vec![], vec![SseError::Truncated]), "{}", String::from_utf8_lossy(cut));
        }
        let (events, _) = read(&[b"event: x\r\ndata: 1\r\n"], 99);
        assert_eq!(events[0].raw, "event: x\r\ndata: 1\r\n\n");
        // A name cut in its middle is nothing, and a comment that was cut is only a comment.
        assert_eq!(read(&[b": pin"], 99).0[0].kind, SseKind::Silent);
        assert_eq!(read(&[b"dat"], 99).0[0].kind, SseKind::Stray);
    }

    #[test]
    fn an_event_above_the_limit_is_an_error_and_never_shortened() {
        let whole = b"data: 1234\n\n";
        assert_eq!(read(&[whole], whole.len()).1, []);
        let too_large = SseError::TooLarge { limit_bytes: whole.len() - 1 };
        assert_eq!(read(&[whole], whole.len() - 1), (vec![], vec![too_large]));
        let mut reader = SseReader::new(16);
        for _ in 0..3 {
            reader.push(Bytes::from_static(b"data: 0123456789"));
            let _ = reader.next();
        }
        assert!(reader.next().is_none() && reader.finish().is_none());
        assert!(reader.carry.is_empty() && reader.chunk.is_empty());
    }

    #[test]
    fn a_byte_order_mark_is_dropped_once() {
        let text = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n";
        for size in [1, 2, 3, 4, 99] {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            let (events, _) = read(&pieces, 99);
            assert_eq!((&events[0].data[..], events[1].kind), (&b"a"[..], SseKind::Stray), "{size}");
        }
        assert_eq!(data(&[b"", b"\xef\xbb\xbf", b"\xef\xbb\xbfdata: x\n\n", b"data: y\n\n"]), ["y"]);
        assert_eq!(read(&[b"\xef\xbb\xbf"], 99), (vec![], vec![]));
    }

    /// Streams made of the bytes that matter.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let ends = vec!["\n", "\r", "\r\n", "\n\n", "\r\n\r\n"];
        let words = vec!["data:", "data: ", "data", ":", ": ping", "event: x", "id", "{", "\u{2028}", "\u{feff}"];
        let piece = prop_oneof![
            4 => prop::sample::select(ends).prop_map(|s| s.as_bytes().to_vec()),
            4 => prop::sample::select(words).prop_map(|s| s.as_bytes().to_vec()),
            2 => prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    /// The standard, word by word: split into lines first, then follow the steps for each line.
    fn by_the_book(bytes: &[u8]) -> Vec<Vec<u8>> {
        let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
        let mut lines = vec![Vec::new()];
        let mut rest = bytes.iter().peekable();
        while let Some(byte) = rest.next() {
            match byte {
                b'\r' => {
                    rest.next_if_eq(&&b'\n');
                    lines.push(Vec::new());
                }
                b'\n' => lines.push(Vec::new()),
                other => lines.last_mut().unwrap().push(*other),
            }
        }
        lines.pop();
        let (mut out, mut buffer) = (Vec::new(), Vec::new());
        for line in lines {
            if line.is_empty() {
                if !buffer.is_empty() {
                    buffer.pop();
                    out.push(std::mem::take(&mut buffer));
                }
                continue;
            }
            let (name, value) = match line.iter().position(|b| *b == b':') {
                Some(0) => continue,
                Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
                None => (&line[..], &b""[..]),
            };
            if name == b"data" {
                buffer.extend_from_slice(value);
                buffer.push(b'\n');
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn events_are_those_of_the_standard(bytes in stream()) {
            let mut reader = SseReader::new(1 << 20);
            reader.push(Bytes::from(bytes.clone()));
            let mut seen = Vec::new();
            while let Some(next) = reader.next() {
                let event = next.unwrap();
                if event.kind == SseKind::Data {
                    if let Some(at) = event.data_at {
                        prop_assert_eq!(&event.raw[at..at + event.data.len()], &event.data[..]);
                    }
                    seen.push(event.data.to_vec());
                }
            }
            prop_assert_eq!(seen, by_the_book(&bytes));
        }

        #[test]
        fn any_cutting_gives_the_same_events(
            bytes in stream(),
            sizes in prop::collection::vec(1usize..9, 1..50),
            max in 1usize..60,
        ) {
            let mut pieces = Vec::new();
            let mut rest = &bytes[..];
            for size in sizes.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            for max in [max, 1 << 20] {
                let (whole, whole_errors) = read(&[&bytes], max);
                let (cut, cut_errors) = read(&pieces, max);
                prop_assert_eq!(&whole_errors, &cut_errors);
                let facts = |events: &[SseEvent]| events.iter().map(|e| (e.kind, e.data.clone())).collect::<Vec<_>>();
                prop_assert_eq!(facts(&whole), facts(&cut));
                // Byte for byte what came, wherever it was cut; only a last LF may be left.
                let input = bytes.strip_prefix(BOM).unwrap_or(&bytes);
                for events in [&whole, &cut] {
                    let raw: Vec<u8> = events.iter().flat_map(|e| e.raw.to_vec()).collect();
                    let same = input.len().min(raw.len());
                    prop_assert_eq!(&raw[..same], &input[..same]);
                }
            }
        }
    }
}
