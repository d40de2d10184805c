//! Where HTTP/1 responses begin and end in the bytes towards the client, and which of them are body. It observes, it never
//! changes a byte. Anything that is not HTTP/1 (TLS included) is raw from its first byte on. Limits: a response to HEAD is
//! read as if it had the body it announces.

/// A head longer than this is not looked at further.
const HEAD_MAX: usize = 64 << 10;
/// A chunk-size line longer than this is not HTTP.
const LINE_MAX: usize = 4 << 10;
const PREFIX: &[u8] = b"HTTP/1.";

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A response begins here (no bytes).
    Start,
    /// So many bytes of head or of chunk framing.
    Framing(usize),
    /// So many bytes of body.
    Body(usize),
    /// So many bytes that are not HTTP.
    Raw(usize),
    /// The response is over (no bytes).
    Finish,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Before a response; so many bytes of the prefix were seen.
    Before(usize),
    Head {
        head: Vec<u8>,
        line_len: usize,
    },
    Fixed(u64),
    Size(Vec<u8>),
    Chunk(u64),
    ChunkEnd,
    Trailers {
        line_len: usize,
    },
    UntilClose,
    Raw,
}

/// Follows the responses of one connection.
#[derive(Clone, Debug)]
pub struct Tracker {
    state: State,
    started: bool,
    idle: bool,
    finish: bool,
    sse: bool,
    fresh: bool,
}

impl Tracker {
    /// At the start of a connection.
    #[must_use]
    pub fn new() -> Tracker {
        Tracker { state: State::Before(0), started: false, idle: false, finish: false, sse: false, fresh: true }
    }

    /// One that takes everything as raw.
    #[must_use]
    pub fn raw() -> Tracker {
        Tracker { state: State::Raw, ..Tracker::new() }
    }

    /// A response is over and no other has begun.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// No byte of a response or of raw data has passed since its start.
    #[must_use]
    pub fn at_start(&self) -> bool {
        self.idle || self.fresh
    }

    /// The bytes are an event stream: such a response, or raw data.
    #[must_use]
    pub fn is_sse(&self) -> bool {
        self.sse || self.state == State::Raw
    }

    /// Feeds all of `bytes` without looking at the marks.
    pub fn skip(&mut self, mut bytes: &[u8]) {
        while let Some(mark) = self.step(bytes) {
            if let Mark::Framing(n) | Mark::Body(n) | Mark::Raw(n) = mark {
                bytes = bytes.get(n..).unwrap_or_default();
            }
        }
    }

    /// Says what comes next in `bytes` and takes it. The caller steps on with what lies behind it.
    pub fn step(&mut self, bytes: &[u8]) -> Option<Mark> {
        if std::mem::take(&mut self.finish) {
            self.state = State::Before(0);
            self.started = false;
            self.idle = true;
            self.sse = false;
            return Some(Mark::Finish);
        }
        if bytes.is_empty() {
            return None;
        }
        if matches!(self.state, State::Before(_)) && !self.started {
            self.started = true;
            self.idle = false;
            return Some(Mark::Start);
        }
        self.fresh = false;
        Some(self.take(bytes))
    }

    fn take(&mut self, bytes: &[u8]) -> Mark {
        match &mut self.state {
            State::Before(seen) => {
                let want = PREFIX.get(*seen..).unwrap_or_default();
                let same = want.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                if same < want.len().min(bytes.len()) {
                    self.state = State::Raw;
                    return Mark::Raw(bytes.len());
                }
                *seen += same;
                if *seen == PREFIX.len() {
                    self.state = State::Head { head: PREFIX.to_vec(), line_len: PREFIX.len() };
                }
                Mark::Framing(same)
            }
            State::Head { head, line_len } => {
                let Some(n) = memchr::memchr(b'\n', bytes).map(|n| n + 1) else {
                    *line_len += bytes.len();
                    head.extend_from_slice(bytes);
                    self.bound();
                    return Mark::Framing(bytes.len());
                };
                let line = bytes.get(..n).unwrap_or_default();
                head.extend_from_slice(line);
                *line_len += n;
                let empty = *line_len == 1 || (*line_len == 2 && head.ends_with(b"\r\n"));
                *line_len = 0;
                if empty {
                    let head = std::mem::take(head);
                    self.body(&head);
                } else {
                    self.bound();
                }
                Mark::Framing(n)
            }
            State::Fixed(left) | State::Chunk(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                if *left == 0 {
                    if matches!(self.state, State::Chunk(_)) {
                        self.state = State::ChunkEnd;
                    } else {
                        self.finish = true;
                    }
                }
                Mark::Body(n)
            }
            State::Size(line) => {
                let (n, whole) = match memchr::memchr(b'\n', bytes) {
                    Some(n) => (n + 1, true),
                    None => (bytes.len(), false),
                };
                line.extend_from_slice(bytes.get(..n).unwrap_or_default());
                let too_long = line.len() > LINE_MAX;
                if whole || too_long {
                    let size = std::str::from_utf8(line).ok().and_then(|l| {
                        let digits = l.split(';').next().unwrap_or_default().trim();
                        u64::from_str_radix(digits, 16).ok()
                    });
                    self.state = match size {
                        Some(_) | None if too_long => State::Raw,
                        Some(0) => State::Trailers { line_len: 0 },
                        Some(size) => State::Chunk(size),
                        None => State::Raw,
                    };
                }
                Mark::Framing(n)
            }
            State::ChunkEnd => match memchr::memchr(b'\n', bytes) {
                Some(n) => {
                    self.state = State::Size(Vec::new());
                    Mark::Framing(n + 1)
                }
                None => Mark::Framing(bytes.len()),
            },
            State::Trailers { line_len } => match memchr::memchr(b'\n', bytes) {
                Some(n) => {
                    let line = bytes.get(..n).unwrap_or_default();
                    let empty = *line_len + n == 0 || (*line_len + n == 1 && (line == b"\r" || line.is_empty()));
                    *line_len = 0;
                    self.finish = empty;
                    Mark::Framing(n + 1)
                }
                None => {
                    *line_len += bytes.len();
                    Mark::Framing(bytes.len())
                }
            },
            State::UntilClose => Mark::Body(bytes.len()),
            State::Raw => Mark::Raw(bytes.len()),
        }
    }

    fn bound(&mut self) {
        if let State::Head { head, .. } = &self.state
            && head.len() > HEAD_MAX
        {
            self.state = State::Raw;
        }
    }

    /// What follows a head.
    fn body(&mut self, head: &[u8]) {
        let text = String::from_utf8_lossy(head).to_ascii_lowercase();
        let mut lines = text.lines();
        let status = lines.next().and_then(|l| l.split_ascii_whitespace().nth(1)).unwrap_or_default().to_owned();
        let (mut length, mut chunked, mut sse) = (None, false, false);
        for (name, value) in lines.filter_map(|l| l.split_once(':')) {
            match name.trim() {
                "content-length" => length = value.trim().parse::<u64>().ok(),
                "transfer-encoding" => chunked = value.contains("chunked"),
                "content-type" => sse = value.trim().starts_with("text/event-stream"),
                _ => {}
            }
        }
        self.sse = sse;
        self.state = match status.as_str() {
            "101" => State::Raw,
            s if s.starts_with('1') => {
                self.started = false;
                State::Before(0)
            }
            "204" | "304" => {
                self.finish = true;
                State::Before(0)
            }
            _ if chunked => State::Size(Vec::new()),
            _ => match length {
                Some(0) => {
                    self.finish = true;
                    State::Before(0)
                }
                Some(n) => State::Fixed(n),
                None => State::UntilClose,
            },
        };
    }
}

impl Default for Tracker {
    fn default() -> Tracker {
        Tracker::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bodies seen, response by response, and whether it was idle at the end.
    fn bodies(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
        let (mut tracker, mut out) = (Tracker::new(), Vec::new());
        for chunk in chunks {
            let mut rest: &[u8] = chunk;
            while let Some(mark) = tracker.step(rest) {
                match mark {
                    Mark::Start => out.push(Vec::new()),
                    Mark::Finish => {}
                    Mark::Framing(n) => rest = &rest[n..],
                    Mark::Body(n) => {
                        out.last_mut().unwrap().extend_from_slice(&rest[..n]);
                        rest = &rest[n..];
                    }
                    Mark::Raw(_) => return (vec![b"raw".to_vec()], false),
                }
            }
        }
        (out, tracker.is_idle())
    }

    const TWO: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n\
        5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc\
        HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        1\r\n!\r\n0\r\nx-trailer: 1\r\n\r\n";

    #[test]
    fn bodies_are_found_across_kept_alive_responses() {
        let (out, idle) = bodies(&[TWO]);
        let want: Vec<&[u8]> = vec![b"hello world", b"abc", b"", b"", b"!"];
        assert_eq!(out, want);
        assert!(idle);
    }

    #[test]
    fn what_is_not_http_is_raw() {
        assert_eq!(bodies(&[b"\x16\x03\x01"]).0, [b"raw"]);
        assert_eq!(bodies(&[b"HTT", b"Q"]).0, [b"raw"]);
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing(mut cuts in proptest::collection::vec(0usize..TWO.len(), 0..12)) {
            cuts.sort_unstable();
            let (mut chunks, mut from) = (Vec::new(), 0);
            for cut in cuts {
                chunks.push(&TWO[from..cut]);
                from = cut;
            }
            chunks.push(&TWO[from..]);
            prop_assert_eq!(bodies(&chunks), bodies(&[TWO]));
        }

        #[test]
        fn any_bytes_are_taken_whole(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut all = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            all.extend(bytes);
            Tracker::new().skip(&all);
        }
    }
}
