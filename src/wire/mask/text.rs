//! Texts inside JSON strings: what they say, and where a place in what they say stands in the string as it is written.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2, memmem};

/// Which backslashes mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    /// The inside of a JSON string: all of them.
    Json,
    /// A plain text into which JSON was pasted: `\u0040` and the like alone. `C:\new` stays what it is.
    Unicode,
}

/// One escape: the character, and how many bytes it is written with. Half a surrogate pair is U+FFFD.
fn escape(raw: &str, escapes: Escapes) -> Option<(char, usize)> {
    let bytes = raw.as_bytes();
    match (bytes.get(1)?, escapes) {
        (b'u', _) => {
            let Some(first) = hex(raw, 2) else {
                return (escapes == Escapes::Json).then_some(('\u{fffd}', 2));
            };
            if !(0xd800..0xe000).contains(&first) {
                return Some((char::from_u32(first).unwrap_or('\u{fffd}'), 6));
            }
            let second = (raw.get(6..8) == Some("\\u")).then(|| hex(raw, 8)).flatten();
            match second {
                Some(low) if first < 0xdc00 && (0xdc00..0xe000).contains(&low) => {
                    let code = 0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                    Some((char::from_u32(code).unwrap_or('\u{fffd}'), 12))
                }
                _ => Some(('\u{fffd}', 6)),
            }
        }
        (_, Escapes::Unicode) => None,
        (b'n', Escapes::Json) => Some(('\n', 2)),
        (b't', Escapes::Json) => Some(('\t', 2)),
        (b'r', Escapes::Json) => Some(('\r', 2)),
        (b'b', Escapes::Json) => Some(('\u{8}', 2)),
        (b'f', Escapes::Json) => Some(('\u{c}', 2)),
        (other, Escapes::Json) if other.is_ascii() => Some((char::from(*other), 2)),
        (_, Escapes::Json) => None,
    }
}

fn hex(raw: &str, at: usize) -> Option<u32> {
    let digits = raw.get(at..at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// What the text says.
pub(super) fn decoded(raw: &str, escapes: Escapes) -> Cow<'_, str> {
    let wanted = match escapes {
        Escapes::Json => memchr(b'\\', raw.as_bytes()).is_some(),
        Escapes::Unicode => memmem::find(raw.as_bytes(), b"\\u").is_some(),
    };
    if !wanted {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len());
    pieces(raw, escapes, |piece| match piece {
        Piece::Plain(text) => out.push_str(text),
        Piece::Escape(c, _) => out.push(c),
    });
    Cow::Owned(out)
}

/// Turns places in what the text says, in ascending order, into places in the text as it is written.
pub(super) fn places(raw: &str, escapes: Escapes, at: &mut [usize]) {
    let (mut said, mut written, mut next) = (0usize, 0usize, 0usize);
    pieces(raw, escapes, |piece| {
        let (says, takes) = match piece {
            Piece::Plain(text) => (text.len(), text.len()),
            Piece::Escape(c, takes) => (c.len_utf8(), takes),
        };
        while let Some(place) = at.get_mut(next)
            && *place < said + says
        {
            *place = written + if says == takes { *place - said } else { 0 };
            next += 1;
        }
        said += says;
        written += takes;
    });
    for place in at.iter_mut().skip(next) {
        *place = written;
    }
}

enum Piece<'a> {
    Plain(&'a str),
    Escape(char, usize),
}

fn pieces<'a>(raw: &'a str, escapes: Escapes, mut each: impl FnMut(Piece<'a>)) {
    let mut rest = raw;
    while let Some(at) = memchr(b'\\', rest.as_bytes()) {
        let (plain, from) = rest.split_at(at);
        if !plain.is_empty() {
            each(Piece::Plain(plain));
        }
        match escape(from, escapes) {
            Some((c, takes)) => {
                each(Piece::Escape(c, takes));
                rest = from.get(takes..).unwrap_or_default();
            }
            None => {
                // A backslash that means nothing is one.
                each(Piece::Plain(from.get(..1).unwrap_or_default()));
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    if !rest.is_empty() {
        each(Piece::Plain(rest));
    }
}

/// The text as the inside of a JSON string.
pub(super) fn quoted_inside(text: &str) -> String {
    let whole = serde_json::Value::from(text).to_string();
    whole.get(1..whole.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

/// A token of a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The inside of a string.
    Text(Range<usize>),
    /// A number.
    Number(Range<usize>),
}

/// Hands out the strings (keys too) and numbers of a document that is known to be JSON, in one pass and without a stack.
pub(super) fn tokens(json: &str, mut each: impl FnMut(Token)) {
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => {
                let from = at;
                let end = string_end(bytes, from);
                each(Token::Text(from..end));
                at = (end + 1).min(bytes.len());
            }
            b'0'..=b'9' | b'-' => {
                let from = at - 1;
                while bytes.get(at).is_some_and(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
                    at += 1;
                }
                each(Token::Number(from..at));
            }
            _ => {}
        }
    }
}

/// Where the string that begins here ends: the place of its closing quote.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at;
        }
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_text_says_and_where() {
        let raw = r"a\u0040b\n\ud83d\ude00c\ud83dx\\u0040";
        let says = decoded(raw, Escapes::Json);
        assert_eq!(says, "a@b\n😀c\u{fffd}x\\u0040");
        let mut at = [0, 1, 2, 3, 4, 8, 9];
        places(raw, Escapes::Json, &mut at);
        assert_eq!(at.map(|at| &raw[at..]), [raw, &raw[1..], &raw[7..], &raw[8..], &raw[10..], &raw[22..], &raw[23..]]);
        assert_eq!(decoded(r"C:\new\u0040", Escapes::Unicode), "C:\\new@");
    }

    #[test]
    fn the_tokens_of_a_document() {
        let json = r#"{"a\"b": [1, -2.5e3, "x"], "":null}"#;
        let mut seen = Vec::new();
        tokens(json, |t| {
            seen.push(match t {
                Token::Text(at) => format!("t {}", &json[at]),
                Token::Number(at) => format!("n {}", &json[at]),
            });
        });
        assert_eq!(seen, [r#"t a\"b"#, "n 1", "n -2.5e3", "t x", "t "]);
    }

    proptest! {
        /// Decoding is that of the JSON library, and each character is found where it is written.
        #[test]
        fn decoding_agrees_with_the_library(text in any::<String>(), ascii in any::<bool>()) {
            let mut raw = quoted_inside(&text);
            if ascii {
                raw = raw.chars().map(|c| if c.is_ascii() { c.to_string() } else {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")).collect()
                }).collect();
            }
            prop_assert_eq!(&decoded(&raw, Escapes::Json), &text);
            let mut at: Vec<usize> = text.char_indices().map(|(n, _)| n).collect();
            places(&raw, Escapes::Json, &mut at);
            for ((n, c), place) in text.char_indices().zip(at) {
                let rest = decoded(&raw[place..], Escapes::Json).into_owned();
                prop_assert!(rest.starts_with(c), "{}", n);
            }
        }
    }
}
