//! Where server-sent events end in a stream of bytes, however it is chunked. Only positions are found here; what the events
//! say is none of the fault layer's business. Rules of the HTML standard: lines end in LF, CR LF or CR; an empty line ends
//! an event; a block without a `data` field (a comment) is no event.

/// The field name that makes a block an event.
const DATA: &[u8] = b"data";
/// One byte order mark at the start of a stream is no part of its first line.
const BOM: &[u8] = b"\xEF\xBB\xBF";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data` were matched from the start of the line.
    Matching(usize),
    /// `data:` was seen, or the line was entered in its middle.
    Data,
    /// Some other field or a comment.
    Other,
}

/// Finds the ends of events, byte by byte.
#[derive(Clone, Debug)]
pub struct Scanner {
    line: Line,
    has_data: bool,
    after_cr: bool,
    /// The empty line that ends an event ended in CR: a LF right behind it still belongs to it.
    pending: bool,
    /// So many bytes of a byte order mark were seen; its length: it is over or was none.
    bom: usize,
}

impl Scanner {
    /// At the start of a stream.
    #[must_use]
    pub fn new() -> Scanner {
        Scanner { line: Line::Matching(0), has_data: false, after_cr: false, pending: false, bom: 0 }
    }

    /// In the middle of a stream: the first block is taken for an event.
    #[must_use]
    pub fn midway() -> Scanner {
        Scanner { line: Line::Data, has_data: true, after_cr: false, pending: false, bom: BOM.len() }
    }

    /// The position right behind the next event that ends in `bytes`, if one does. Bytes up to there (or all of them) are
    /// taken; the caller goes on with the rest. Zero means that the event had ended with the bytes before these.
    pub fn next_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (n, &b) in bytes.iter().enumerate() {
            if let Some(expected) = BOM.get(self.bom) {
                if b == *expected {
                    self.bom += 1;
                    continue;
                }
                if self.bom > 0 {
                    self.line = Line::Other;
                }
                self.bom = BOM.len();
            }
            if self.pending {
                self.pending = false;
                if b == b'\n' {
                    self.after_cr = false;
                    return Some(n + 1);
                }
                // This byte is not taken yet: the caller comes back with it.
                self.after_cr = false;
                return Some(n);
            }
            let second_half = self.after_cr && b == b'\n';
            self.after_cr = b == b'\r';
            if second_half {
                continue;
            }
            if b == b'\n' || b == b'\r' {
                let empty = self.line == Line::Matching(0);
                if empty {
                    let event = std::mem::take(&mut self.has_data);
                    if event && b == b'\n' {
                        return Some(n + 1);
                    }
                    self.pending = event;
                } else {
                    self.has_data |= matches!(self.line, Line::Data) || self.line == Line::Matching(DATA.len());
                    self.line = Line::Matching(0);
                }
                continue;
            }
            self.line = match self.line {
                Line::Matching(m) if DATA.get(m) == Some(&b) => Line::Matching(m + 1),
                Line::Matching(m) if m == DATA.len() && b == b':' => Line::Data,
                Line::Matching(_) => Line::Other,
                same => same,
            };
        }
        None
    }
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(chunks: &[&[u8]]) -> Vec<usize> {
        let (mut scanner, mut base, mut found) = (Scanner::new(), 0, Vec::new());
        for chunk in chunks {
            let mut pos = 0;
            while let Some(p) = scanner.next_end(&chunk[pos..]) {
                pos += p;
                found.push(base + pos);
            }
            base += chunk.len();
        }
        found
    }

    #[test]
    fn blank_lines_end_events_and_comments_are_none() {
        assert_eq!(ends(&[b"data: a\n\n: ping\n\nid: 4\n\ndata: b\n\n"]), [9, 33]);
        assert_eq!(ends(&[b"event: x\r\ndata: a\r\n\r\ndata\r\n\r\n"]), [21, 29]);
        // A lone CR ends lines as well; the end is known with the byte behind it.
        assert_eq!(ends(&[b"data: a\r\rdata: b\r\r", b"d"]), [9, 18]);
        assert_eq!(
            ends(&[b"\xEF\xBB", b"\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\n"]),
            [12],
            "only the first mark is none"
        );
        assert_eq!(ends(&[b"database: 1\n\ndata:\n\n"]), [20]);
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing(cuts in proptest::collection::vec(0usize..60, 0..8)) {
            let text: &[u8] = b"data: a\n\n: c\n\ndata: b\r\n\r\nevent: q\rdata: d\r\rdata: e\n\nx";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.sort_unstable();
            let (mut chunks, mut from) = (Vec::new(), 0);
            for cut in cuts {
                chunks.push(&text[from..cut]);
                from = cut;
            }
            chunks.push(&text[from..]);
            prop_assert_eq!(ends(&chunks), ends(&[text]));
        }
    }
}
