//! Reading JSON leniently and without losing a byte: members and elements are handed out as slices of the text they came
//! in, so that a caller can look at one value, leave the rest alone, and splice.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memchr2;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// One member of an object, as slices of the object's text.
pub(crate) struct Member<'a> {
    /// The key with its quotes.
    pub(crate) raw_key: &'a str,
    /// The value.
    pub(crate) value: &'a str,
}

impl<'a> Member<'a> {
    /// The key, escapes resolved.
    pub(crate) fn key(&self) -> Cow<'a, str> {
        let inner = self.raw_key.strip_prefix('"').and_then(|k| k.strip_suffix('"')).unwrap_or(self.raw_key);
        if inner.contains('\\') { Cow::Owned(text(self.raw_key).unwrap_or_default()) } else { Cow::Borrowed(inner) }
    }
}

/// The bytes as text; what is not UTF-8 becomes U+FFFD. Text that is whole, which nearly all is, is only looked over.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// True if this is one whole JSON value and nothing else.
pub(crate) fn is_whole(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Hands out the members of an object. False if the text is not an object (or not JSON); some members may have been handed
/// out by then.
pub(crate) fn members<'a>(object: &'a str, each: impl FnMut(Member<'a>)) -> bool {
    if !object.trim_start().starts_with('{') {
        return false;
    }
    let mut reader = serde_json::Deserializer::from_str(object);
    reader.deserialize_map(Members(each)).is_ok() && reader.end().is_ok()
}

/// Hands out the elements of an array. False if the text is not an array (or not JSON).
pub(crate) fn elements<'a>(array: &'a str, each: impl FnMut(&'a str)) -> bool {
    if !array.trim_start().starts_with('[') {
        return false;
    }
    let mut reader = serde_json::Deserializer::from_str(array);
    reader.deserialize_seq(Elements(each)).is_ok() && reader.end().is_ok()
}

struct Members<F>(F);

impl<'de, F: FnMut(Member<'de>)> Visitor<'de> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            (self.0)(Member { raw_key: key.get(), value: value.get() });
        }
        Ok(())
    }
}

struct Elements<F>(F);

impl<'de, F: FnMut(&'de str)> Visitor<'de> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(value) = seq.next_element::<&'de RawValue>()? {
            (self.0)(value.get());
        }
        Ok(())
    }
}

/// The text of a JSON string. Half a surrogate pair, which some servers send when a token ends inside a character, becomes
/// U+FFFD here; what is relayed stays as it came.
pub(crate) fn text(value: &str) -> Option<String> {
    if !value.starts_with('"') {
        return None;
    }
    if let Ok(text) = serde_json::from_str::<String>(value) {
        return Some(text);
    }
    let mut reader = serde_json::Deserializer::from_str(value);
    let bytes = reader.deserialize_bytes(OwnBytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

struct OwnBytes;

impl Visitor<'_> for OwnBytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

/// The text of a string, or the spelling of a number or a boolean: ids and codes come as all of these.
pub(crate) fn loose_text(value: &str) -> Option<String> {
    match value.as_bytes().first()? {
        b'"' => text(value),
        b'0'..=b'9' | b'-' | b't' | b'f' => Some(value.to_owned()),
        _ => None,
    }
}

/// A string that is there and not empty.
pub(crate) fn filled_text(value: &str) -> Option<String> {
    text(value).filter(|t| !t.is_empty())
}

/// The text with the escapes of all its strings resolved, keys included: for looking at, not for reading again.
pub(crate) fn unescaped(document: &str) -> String {
    fn walk(value: &serde_json::Value, out: &mut String) {
        match value {
            serde_json::Value::Object(members) => members.iter().for_each(|(key, value)| {
                out.push_str(key);
                out.push('\n');
                walk(value, out);
            }),
            serde_json::Value::Array(list) => list.iter().for_each(|value| walk(value, out)),
            serde_json::Value::String(text) => {
                out.push_str(text);
                out.push('\n');
            }
            _ => {}
        }
    }
    let mut out = String::new();
    if let Ok(value) = serde_json::from_str(document) {
        walk(&value, &mut out);
    }
    out
}

/// A whole number that is not negative, also one that was sent as a string or as `3.0`.
pub(crate) fn unsigned(value: &str) -> Option<u64> {
    let value = value.trim_matches('"');
    if let Ok(n) = value.parse::<u64>() {
        return Some(n);
    }
    let n = value.parse::<f64>().ok()?;
    (n.fract() == 0.0 && (0.0..=9e15).contains(&n)).then_some(n as u64)
}

/// Where `inner`, a slice of `outer`, lies in it. `None` if it is no slice of it.
pub(crate) fn place(outer: &str, inner: &str) -> Option<Range<usize>> {
    let from = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    let to = from.checked_add(inner.len())?;
    (to <= outer.len()).then_some(from..to)
}

/// Behind the closing quote of the string that begins here. `None`: it does not end, or is none.
pub(crate) fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from) != Some(&b'"') {
        return None;
    }
    let mut at = from + 1;
    loop {
        // Text in strings has an escape every few words: those are found by looking at eight bytes at once, and only a long
        // stretch without any is worth a call.
        let mut words = bytes.get(at..)?.chunks_exact(8);
        let near = words.by_ref().take(8).enumerate().find_map(|(n, word)| Some(n * 8).zip(quote_or_escape(word)));
        at += match near {
            Some((begin, within)) => begin + within,
            None => {
                let seen = bytes.len().saturating_sub(at).min(64) / 8 * 8;
                seen + memchr2(b'"', b'\\', bytes.get(at + seen..)?)?
            }
        };
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Where the first quote or backslash stands in eight bytes. After Mycroft, as in "Bit Twiddling Hacks" (Anderson): the lowest mark
/// is always a true one.
fn quote_or_escape(word: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_le_bytes(word.try_into().ok()?);
    let marks = |needle: u8| {
        let zeroed = word ^ (ONES * u64::from(needle));
        zeroed.wrapping_sub(ONES) & !zeroed & (ONES << 7)
    };
    let found = marks(b'"') | marks(b'\\');
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// True if the text is nested deeper than `limit`. Takes no stack, whatever the text.
pub(crate) fn deeper_than(text: &[u8], limit: usize) -> bool {
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(text, at - 1).unwrap_or(text.len()),
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_ends_at_its_first_quote_that_is_not_escaped() {
        // Against the plain way, for every length and place.
        let plain = |bytes: &[u8]| {
            let mut at = 1;
            loop {
                match bytes.get(at)? {
                    b'"' => return Some(at + 1),
                    b'\\' => at += 2,
                    _ => at += 1,
                }
            }
        };
        for length in 0..150 {
            for at in 0..=length {
                for special in [&b"\""[..], b"\\\"", b"\\\\\"", b"\\"] {
                    let mut text = b"\"".to_vec();
                    // Neighbours of the two bytes that are looked for, which a careless search by words takes for them.
                    text.extend((0..at).map(|n| [b'#', b'!', b']', b'[', 0xa2, 0xdc][n % 6]));
                    text.extend_from_slice(special);
                    text.extend((at..length).map(|_| b'x'));
                    assert_eq!(string_end(&text, 0), plain(&text), "{length} {at} {special:?}");
                    text.extend_from_slice(b"\" tail");
                    assert_eq!(string_end(&text, 0), plain(&text), "{length} {at} {special:?}");
                }
            }
        }
        assert_eq!((string_end(b"x", 0), string_end(b"", 0), string_end(b"\"", 0)), (None, None, None));
    }

    #[test]
    fn members_are_slices_of_the_text() {
        let text = r#"{ "a" : 1.50 , "\u0062":{"x":[1,{}]},"c":"\ud83d" }"#;
        let mut seen = Vec::new();
        assert!(members(text, |m| seen.push((m.key().into_owned(), place(text, m.value).unwrap(), m.value))));
        assert_eq!(seen[0], ("a".to_owned(), 8..12, "1.50"));
        assert_eq!(seen[1].0, "b");
        assert_eq!(seen[1].2, r#"{"x":[1,{}]}"#);
        assert_eq!(super::text(seen[2].2).unwrap(), "\u{fffd}\u{fffd}\u{fffd}");
        assert!(!members("[1]", |_| ()));
        assert!(!members("{\"a\":1", |_| ()));
        assert!(!members("{} x", |_| ()));
    }

    #[test]
    fn numbers_come_in_several_spellings() {
        assert_eq!(unsigned("3"), Some(3));
        assert_eq!(unsigned("\"3\""), Some(3));
        assert_eq!(unsigned("3.0"), Some(3));
        assert_eq!(unsigned("-1"), None);
        assert_eq!(unsigned("1e400"), None);
        assert_eq!(unsigned("null"), None);
    }

    #[test]
    fn a_nest_of_a_million_brackets_is_only_not_json() {
        let bomb = "[".repeat(1_000_000);
        assert!(!is_whole(bomb.as_bytes()));
        assert!(!elements(&bomb, |_| ()));
    }
}
