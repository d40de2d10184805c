//! E-mail addresses: `local@domain.tld`, also with the `@` written `%40` as in a link.

use std::ops::Range;

use memchr::memchr2;

use super::spaceless;

/// Bounds of RFC 5321, the first one in octets of UTF-8, generously.
const LOCAL_BYTES_MAX: usize = 128;
const DOMAIN_BYTES_MAX: usize = 255;

/// Hands out where they stand.
pub(super) fn find(text: &str, found: &mut impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut from = 0;
    // Nothing before this belongs to the next address.
    let mut floor = 0;
    while let Some(hit) = bytes.get(from..).and_then(|rest| memchr2(b'@', b'%', rest)) {
        let at = from + hit;
        let sign = if bytes.get(at) == Some(&b'@') { 1 } else { 3 };
        if sign == 3 && bytes.get(at + 1..at + 3) != Some(b"40") {
            from = at + 1;
            continue;
        }
        let right = at + sign;
        from = right;
        let start = local(text, floor, at);
        floor = right;
        let (Some(start), Some(end)) = (start, domain(text, right)) else { continue };
        found(start..end);
        floor = end;
        from = end;
    }
}

/// Where the local part that ends here begins.
fn local(text: &str, floor: usize, at: usize) -> Option<usize> {
    // Longer is no local part (RFC 5321): what stands before its last octets is something else.
    let mut floor = floor.max(at.saturating_sub(LOCAL_BYTES_MAX));
    while !text.is_char_boundary(floor) {
        floor += 1;
    }
    let before = text.get(floor..at)?;
    let of_local = |c: char| (c.is_alphanumeric() && !spaceless(c)) || "._%+-'".contains(c);
    let tail = before.trim_end_matches(of_local);
    let part = before.get(tail.len()..)?;
    let bare = part.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_');
    (!bare.is_empty()).then(|| at - bare.len())
}

/// Where the domain that begins here ends.
fn domain(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let of_domain = |c: char| (c.is_alphanumeric() && !spaceless(c)) || c == '.' || c == '-';
    let run = rest.get(..rest.find(|c| !of_domain(c)).unwrap_or(rest.len()))?;
    let mut end = None;
    let (mut offset, mut labels) = (0, 0);
    for label in run.split('.') {
        if offset + label.len() > DOMAIN_BYTES_MAX {
            break;
        }
        if label.is_empty() || label.starts_with('-') {
            break;
        }
        labels += 1;
        let bare = label.trim_end_matches('-');
        let top = bare.chars().count() >= 2 && bare.chars().all(char::is_alphabetic) || bare.starts_with("xn--");
        if labels > 1 && top {
            end = Some(offset + bare.len());
        }
        offset += label.len() + 1;
    }
    Some(at + end?)
}
