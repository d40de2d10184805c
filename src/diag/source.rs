//! A text that findings point into: places, and what of it may be shown.

use std::ops::Range;
use std::sync::Arc;

use super::{FileName, secrets};

/// A place in a text. Lines and columns count from one; columns count characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the text.
    pub file: FileName,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Line of the first byte.
    pub line: usize,
    /// Column of the first byte.
    pub column: usize,
    /// JSON pointer of the node, where there is one.
    pub pointer: String,
}

/// A named text with its line starts. What it shows is not always what it holds: secrets written into a file by mistake
/// and control characters are masked, byte for byte, so that places stay right.
#[derive(Clone, Debug)]
pub struct Source {
    name: FileName,
    text: Arc<str>,
    lines: Arc<[usize]>,
    /// Sorted, and apart from each other.
    hidden: Vec<Range<usize>>,
}

impl Source {
    /// A named text.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Source {
        let lines: Vec<usize> =
            std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|n| n + 1)).collect();
        Source { name: Arc::from(name), text: Arc::from(text), lines: lines.into(), hidden: secrets::find(text) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &FileName {
        &self.name
    }

    /// The text as it was read.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Never show these bytes.
    pub fn hide(&mut self, bytes: Range<usize>) {
        self.hidden.push(bytes);
        self.hidden = secrets::join(std::mem::take(&mut self.hidden));
    }

    /// True if showing these bytes would show something hidden.
    #[must_use]
    pub fn hides(&self, bytes: &Range<usize>) -> bool {
        self.hidden_from(bytes.start).is_some_and(|h| h.start < bytes.end && bytes.start < h.end)
    }

    /// A place from a range of bytes; out of range is moved to the end.
    #[must_use]
    pub fn place(&self, bytes: Range<usize>, pointer: &str) -> Place {
        let start = floor(&self.text, bytes.start);
        let end = floor(&self.text, bytes.end).max(start);
        let line = self.line_of(start);
        let from = self.lines.get(line).copied().unwrap_or(0);
        let column = self.text.get(from..start).map_or(0, |t| t.chars().count()) + 1;
        Place { file: self.name.clone(), start, end, line: line + 1, column, pointer: pointer.to_owned() }
    }

    /// A place from a line and a column, both counted from one.
    #[must_use]
    pub fn place_at(&self, line: usize, column: usize) -> Place {
        let from = line.checked_sub(1).and_then(|l| self.lines.get(l)).copied().unwrap_or(self.text.len());
        let rest = self.text.get(from..).unwrap_or("");
        let to = rest.char_indices().nth(column.saturating_sub(1)).map_or(rest.len(), |(n, _)| n);
        let wide = rest.get(to..).and_then(|t| t.chars().next()).map_or(0, char::len_utf8);
        self.place(from + to..from + to + wide, "")
    }

    /// The byte where the line of this byte starts.
    #[must_use]
    pub fn line_start(&self, byte: usize) -> usize {
        self.lines.get(self.line_of(byte)).copied().unwrap_or(0)
    }

    /// The byte where the line of this byte ends, its end-of-line left out.
    #[must_use]
    pub fn line_end(&self, byte: usize) -> usize {
        let next = self.lines.get(self.line_of(byte) + 1).map_or(self.text.len(), |n| n - 1);
        if next > 0 && self.text.as_bytes().get(next - 1) == Some(&b'\r') {
            (next - 1).max(byte.min(next))
        } else {
            next
        }
    }

    /// A part of the text as it may be shown: the same number of bytes, hidden parts as `*`, and whatever could steer a
    /// terminal as a harmless character of the same width in bytes.
    #[must_use]
    pub fn shown(&self, bytes: Range<usize>) -> String {
        let Some(part) = self.text.get(bytes.clone()) else { return String::new() };
        let mut out = String::with_capacity(part.len());
        for (n, c) in part.char_indices() {
            let at = bytes.start + n;
            let width = c.len_utf8();
            let hidden = self.hidden_from(at).is_some_and(|h| h.contains(&at));
            if c == '\n' || c == '\t' {
                out.push(c);
            } else if hidden {
                out.extend(std::iter::repeat_n('*', width));
            } else if c == '\r' {
                out.push(' ');
            } else if steers(c) {
                out.push_str(match width {
                    1 => "?",
                    2 => "\u{bf}",
                    _ => "\u{fffd}",
                });
            } else {
                out.push(c);
            }
        }
        out
    }

    /// The first hidden part that ends after this byte.
    fn hidden_from(&self, byte: usize) -> Option<&Range<usize>> {
        self.hidden.get(self.hidden.partition_point(|h| h.end <= byte))
    }

    fn line_of(&self, byte: usize) -> usize {
        self.lines.partition_point(|start| *start <= byte).saturating_sub(1)
    }
}

/// True for what could steer a terminal or hide text in it. All of these are at most three bytes wide.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn floor(text: &str, byte: usize) -> usize {
    let mut at = byte.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let s = Source::new("f", "a: 1\nключ: x\r\nlast");
        let p = s.place(5..13, "/k");
        assert_eq!((p.line, p.column), (2, 1));
        let p = s.place(15..16, "");
        assert_eq!((p.line, p.column, s.shown(15..16).as_str()), (2, 7, "x"));
        assert_eq!(s.line_end(5), 16);
        assert_eq!(s.shown(s.line_start(15)..s.line_end(15)), "ключ: x");
        let end = s.place(999..1200, "");
        assert_eq!((end.line, end.column), (3, 5));
        let at = s.place_at(2, 7);
        assert_eq!((at.start, at.end), (15, 16));
    }

    #[test]
    fn secrets_and_control_characters_are_never_shown_and_places_stay() {
        let text = "t: { credentials: sk-live-1, x: env:A }\napi_key: \"abc d\" # note\nu: http://me:pw@h/v1\ncredentials: env:OK\ne: \u{1b}[2J\u{9b}\u{202e}\n";
        let s = Source::new("f", text);
        let shown = s.shown(0..text.len());
        assert_eq!(shown.len(), text.len());
        for secret in ["sk-live", "abc", "me:pw", "\u{1b}", "\u{9b}", "\u{202e}"] {
            assert!(!shown.contains(secret), "{secret:?} in {shown}");
        }
        assert!(shown.contains("credentials: env:OK") && shown.contains("# note") && shown.contains("@h/v1"));
    }
}
