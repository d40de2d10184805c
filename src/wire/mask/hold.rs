//! Putting values back into one text that comes in pieces. Held back is only what could be the beginning of a placeholder, a
//! few dozen bytes at most; what turns out to be none is let go as it is.

use std::ops::Range;

use memchr::memchr;

use super::originals::{Originals, Reads};
use super::text::quoted_inside;

/// How what comes back must be written in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// As it is.
    Text,
    /// The text is JSON, and placeholders stand inside its strings.
    Json,
}

impl Mode {
    fn put(self, original: &str) -> String {
        match self {
            Mode::Text => original.to_owned(),
            Mode::Json => quoted_inside(original),
        }
    }
}

/// What to change in a piece so that it can be sent; `held` is what was held back before it, and afterwards what is held back
/// of it. `last`: nothing follows, so nothing is held back.
pub(super) fn restore(
    originals: &Originals,
    held: &mut String,
    piece: &str,
    mode: Mode,
    last: bool,
) -> Vec<(Range<usize>, String)> {
    let mut changes = Vec::new();
    let mut from = 0;
    if !held.is_empty() {
        let before = held.len();
        held.push_str(piece);
        match originals.read(held) {
            Reads::Whole(bytes, original) => {
                from = bytes.saturating_sub(before);
                changes.push((0..from, mode.put(original)));
            }
            Reads::Begins if !last => {
                return if piece.is_empty() { changes } else { vec![(0..piece.len(), String::new())] };
            }
            Reads::Begins | Reads::Not => {
                held.truncate(before);
                changes.push((0..0, std::mem::take(held)));
            }
        }
        held.clear();
    }
    let bytes = piece.as_bytes();
    while let Some(at) = bytes.get(from..).and_then(|rest| memchr(b'[', rest)).map(|n| n + from) {
        let rest = piece.get(at..).unwrap_or_default();
        match originals.read(rest) {
            Reads::Whole(bytes, original) => {
                changes.push((at..at + bytes, mode.put(original)));
                from = at + bytes;
            }
            Reads::Begins if !last => {
                held.push_str(rest);
                changes.push((at..piece.len(), String::new()));
                break;
            }
            Reads::Begins | Reads::Not => from = at + 1,
        }
    }
    changes
}
