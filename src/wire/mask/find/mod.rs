//! Finding values in a plain text. Each finder looks at a bounded stretch around what gives a value away (an `@`, a country
//! code, a group of digits, a `+`), so that a megabyte of anything costs a megabyte's time.

mod card;
mod email;
mod iban;
mod phone;

use std::ops::Range;

use super::names::{Names, spaceless};
use super::originals::Kind;

pub(super) use card::is_card;

/// A value in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: Range<usize>,
    pub(super) kind: Kind,
}

/// All values of a text, in order. What overlaps is one value, of the graver kind: nothing of it may be left over.
pub(super) fn find(text: &str, names: &Names) -> Vec<Found> {
    let mut all = Vec::new();
    email::find(text, &mut |at| all.push(Found { at, kind: Kind::Email }));
    iban::find(text, &mut |at| all.push(Found { at, kind: Kind::Iban }));
    card::find(text, &mut |at| all.push(Found { at, kind: Kind::Card }));
    let mut all = merged(all);
    let taken: Vec<Range<usize>> = all.iter().map(|f| f.at.clone()).collect();
    phone::find(text, &taken, &mut |at| all.push(Found { at, kind: Kind::Phone }));
    names.find(text, |at| all.push(Found { at, kind: Kind::Name }));
    merged(all)
}

/// In order, without overlaps.
pub(super) fn merged(mut all: Vec<Found>) -> Vec<Found> {
    all.sort_by_key(|f| (f.at.start, f.kind, f.at.end));
    let mut out: Vec<Found> = Vec::with_capacity(all.len());
    for found in all {
        match out.last_mut() {
            Some(last) if found.at.start < last.at.end => {
                last.at.end = last.at.end.max(found.at.end);
                last.kind = last.kind.min(found.kind);
            }
            _ => out.push(found),
        }
    }
    out
}

/// The character before this place.
fn before(text: &str, at: usize) -> Option<char> {
    text.get(..at)?.chars().next_back()
}

/// The character at this place.
fn after(text: &str, at: usize) -> Option<char> {
    text.get(at..)?.chars().next()
}

/// A letter or digit that a value would be a part of. Scripts without spaces stand next to anything.
fn glued(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() && !spaceless(c))
}

/// The bytes of a space or hyphen between two groups of digits that begins here; 0: none does.
fn gap(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at..) {
        Some([b' ' | b'-', ..]) => 1,
        // No-break space; narrow no-break space, hyphens and dashes, figure and thin spaces.
        Some([0xc2, 0xa0, ..]) => 2,
        Some([0xe2, 0x80, 0xaf | 0x90 | 0x91 | 0x92 | 0x93 | 0x87 | 0x89, ..]) => 3,
        _ => 0,
    }
}

fn digit(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at).filter(|b| b.is_ascii_digit()).map(|b| u32::from(b - b'0'))
}

#[cfg(test)]
mod tests;
