//! Payment cards: 13 to 19 digits of a card network whose last one is right by Luhn, alone or in groups.

use std::ops::Range;

use super::{after, before, digit, gap, glued};

const DIGITS_MAX: usize = 19;
const DIGITS_MIN: usize = 13;

/// Hands out where they stand.
pub(super) fn find(text: &str, found: &mut impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let begins = digit(bytes, at).is_some() && (at == 0 || digit(bytes, at - 1).is_none());
        if begins
            && !glued(before(text, at))
            && !fraction(bytes, at)
            && let Some(end) = card(text, at)
        {
            found(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
}

/// The whole text is one number of a card.
pub(in super::super) fn is_card(text: &str) -> bool {
    text.len() >= DIGITS_MIN && card(text, 0) == Some(text.len())
}

/// Digits behind the point of a number are no card.
fn fraction(bytes: &[u8], at: usize) -> bool {
    at >= 2 && matches!(bytes.get(at - 1), Some(b'.' | b',')) && digit(bytes, at - 2).is_some()
}

/// Where the longest card that begins here ends.
fn card(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut count, mut head) = (from, 0usize, 0u32);
    // Both ways to double every second digit: which one is right is known at the end.
    let (mut even, mut odd) = (0u32, 0u32);
    let mut best = None;
    loop {
        while let Some(d) = digit(bytes, at) {
            count += 1;
            if count > DIGITS_MAX {
                return best;
            }
            if count <= 4 {
                head = head * 10 + d;
            }
            let doubled = if d > 4 { 2 * d - 9 } else { 2 * d };
            if count.is_multiple_of(2) {
                even += doubled;
                odd += d;
            } else {
                even += d;
                odd += doubled;
            }
            at += 1;
        }
        // The last digit is never doubled.
        let sum = if count.is_multiple_of(2) { odd } else { even };
        let point = bytes.get(at) == Some(&b'.') && digit(bytes, at + 1).is_some();
        let part = point || glued(after(text, at));
        if count >= DIGITS_MIN && !part && sum.is_multiple_of(10) && network(head, count) {
            best = Some(at);
        }
        let space = gap(bytes, at);
        if space == 0 || digit(bytes, at + space).is_none() {
            return best;
        }
        at += space;
    }
}

/// The first four digits and the length belong to a card network. Other first digits are left out on purpose: times in
/// milliseconds begin with 1, and one number in ten passes Luhn.
fn network(head: u32, count: usize) -> bool {
    match head / 1000 {
        4 => matches!(count, 13 | 16 | 18 | 19),
        3 => (14..=19).contains(&count),
        // Mastercard and Mir; Maestro, UnionPay, Discover.
        2 | 5 | 6 => (16..=19).contains(&count),
        // Troy.
        9 => head == 9792 && count == 16,
        _ => false,
    }
}
