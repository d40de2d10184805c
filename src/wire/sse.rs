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
fn read_block(raw: Bytes) -> SseEvent {
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
            b"" | b"event" | b"id" | b"retry" => {}
            _ => stray = true,
        }
        at += line_bytes + 1;
    }
    let (data, data_at, kind) = match (joined, only) {
        (Some(joined), _) => (joined.freeze(), None, SseKind::Data),
        (None, Some((from, to))) => (raw.slice(from..to), Some(from), SseKind::Data),
        (None, None) => (Bytes::new(), None, if stray { SseKind::Stray } else { SseKind::Silent }),
    };
    SseEvent { raw, data, data_at, kind }
}
