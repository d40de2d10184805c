//! Phone numbers. International ones: a `+` and 8 to 15 digits (E.164), with spaces, hyphens, dots, slashes and brackets
//! between them; also after `tel:`. National ones only where the area code stands in brackets and the rest is grouped or, behind a trunk digit and
//! three digits, has seven; or where the area code begins with the trunk digit 0: bare digits would be order numbers as often as not.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::{after, before, digit, gap, glued};

const DIGITS: Range<usize> = 8..16;

/// Hands out where they stand; `taken`, in order, is something else.
pub(super) fn find(text: &str, taken: &[Range<usize>], found: &mut impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let taken = Taken(taken);
    let (mut from, mut floor) = (0, 0);
    while let Some(hit) = bytes.get(from..).and_then(|rest| memchr2(b'+', b'(', rest)) {
        let at = from + hit;
        from = at + 1;
        let number = match bytes.get(at) {
            Some(b'+') => international(text, at, floor, &taken).map(|end| at..end),
            _ => national(text, at, floor, &taken),
        };
        if let Some(number) = number {
            from = number.end;
            floor = number.end;
            found(number);
        }
    }
    by_scheme(text, found);
}

/// What something else has taken, in order and without overlaps.
struct Taken<'a>(&'a [Range<usize>]);

impl Taken<'_> {
    fn holds(&self, at: usize) -> bool {
        let before = self.0.partition_point(|r| r.end <= at);
        self.0.get(before).is_some_and(|r| r.start <= at)
    }
}

fn international(text: &str, plus: usize, floor: usize, taken: &Taken<'_>) -> Option<usize> {
    let bytes = text.as_bytes();
    // What comes directly behind another value is not glued to it.
    let behind = plus > 0 && (plus == floor || taken.holds(plus - 1));
    let stuck = !behind && before(text, plus).is_some_and(|c| c.is_alphanumeric() || c == '+');
    if stuck || taken.holds(plus) {
        return None;
    }
    let mut at = plus + 1;
    at += usize::from(matches!(bytes.get(at), Some(b' ' | b'(')));
    let first = digit(bytes, at).filter(|d| *d > 0)?;
    // The North American plan and that of Russia and Kazakhstan have one length.
    let one_length = if matches!(first, 1 | 7) { groups(bytes, at, 11, taken) } else { None };
    let one_length = one_length.filter(|(_, count)| *count == 11);
    let (end, count) = one_length.or_else(|| groups(bytes, at, DIGITS.end - 1, taken))?;
    DIGITS.contains(&count).then_some(end)
}

/// Groups of digits up to a number of them: where the last one ends, and how many digits there are. One that is longer than
/// what is left ends the number before it.
fn groups(bytes: &[u8], from: usize, most: usize, taken: &Taken<'_>) -> Option<(usize, usize)> {
    let mut count = 0;
    let mut at = from;
    let mut end = None;
    loop {
        let start = at;
        while digit(bytes, at).is_some() && at - start <= DIGITS.end {
            at += 1;
        }
        if at == start || count + (at - start) > most || taken.holds(start) {
            return end;
        }
        count += at - start;
        end = Some((at, count));
        if count == most {
            return end;
        }
        at = next_group(bytes, at);
        if digit(bytes, at).is_none() {
            return end;
        }
    }
}

/// Where the next group of digits begins, if one does: behind one dot or slash, or a few spaces, hyphens and brackets, no two
/// spaces in a row.
fn next_group(bytes: &[u8], at: usize) -> usize {
    if matches!(bytes.get(at), Some(b'.' | b'/')) {
        return at + 1;
    }
    let (mut to, mut spaced) = (at, false);
    for _ in 0..3 {
        let space = gap(bytes, to);
        let hyphen = bytes.get(to) == Some(&b'-');
        match bytes.get(to) {
            Some(b'(' | b')') => to += 1,
            _ if space > 0 && (hyphen || !spaced) => {
                spaced = !hyphen;
                to += space;
                continue;
            }
            _ => break,
        }
        spaced = false;
    }
    to
}

/// `(555) 123-4567`, `8 (701) 123-45-67`, `(0170) 1234567`.
fn national(text: &str, bracket: usize, floor: usize, taken: &Taken<'_>) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let area = (bracket + 1..bracket + 7).take_while(|at| digit(bytes, *at).is_some()).count();
    if !(3..=5).contains(&area) || bytes.get(bracket + 1 + area) != Some(&b')') {
        return None;
    }
    // A trunk digit or two before it.
    let mut start = bracket;
    let space = usize::from(bracket > floor && matches!(bytes.get(bracket - 1), Some(b' ' | b'-')));
    let trunk = (1..=2).take_while(|n| bracket >= space + n && digit(bytes, bracket - space - n).is_some()).count();
    if trunk > 0 && bracket - space - trunk >= floor && !glued(before(text, bracket - space - trunk)) {
        start = bracket - space - trunk;
    }
    let mut at = bracket + area + 2;
    at += gap(bytes, at);
    let rest = at;
    let trunked = digit(bytes, bracket + 1) == Some(0);
    let (mut count, mut parts, mut end) = (area + (bracket - start - if start < bracket { space } else { 0 }), 0, at);
    loop {
        let group = (at..at + 9).take_while(|at| digit(bytes, *at).is_some()).count();
        if group == 0 || group > 8 {
            break;
        }
        parts += 1;
        count += group;
        end = at + group;
        let space = if bytes.get(end) == Some(&b'.') { 1 } else { gap(bytes, end) };
        if space == 0 || count >= 12 {
            break;
        }
        at = end + space;
    }
    // Behind a trunk digit and an area code of three, seven digits that nobody has grouped are a number too.
    let bare = parts == 1 && start < bracket && area == 3 && end - rest == 7;
    let written = parts >= 2 || (parts == 1 && trunked) || bare;
    let free = !taken.holds(start) && !taken.holds(end.saturating_sub(1));
    (written && (9..=12).contains(&count) && !glued(after(text, end)) && free).then_some(start..end)
}

/// `tel:` says what it is.
fn by_scheme(text: &str, found: &mut impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(hit) = bytes.get(from..).and_then(|rest| memchr(b':', rest)) {
        let at = from + hit;
        from = at + 1;
        let scheme = at.checked_sub(3).and_then(|start| text.get(start..at));
        if !scheme.is_some_and(|s| s.eq_ignore_ascii_case("tel")) {
            continue;
        }
        let start = at + 1;
        // With a `+` it is found as any other.
        if let Some((end, count)) = groups(bytes, start, DIGITS.end - 1, &Taken(&[]))
            && count >= 7
            && digit(bytes, end).is_none()
        {
            found(start..end);
            from = end;
        }
    }
}
