//! Taking secrets out of text that comes from outside, before anybody sees it (rule R7, cases B148 and B150).
//!
//! Known values are found whole, by their heads and tails of six characters and more, percent-encoded, in any case, and where
//! a provider masked the middle (`loc***789`). Beside them goes what looks like a key: well-known prefixes, what stands after
//! `Bearer`, `api_key=` and the like, and names and passwords in a URL. Too much is taken out rather than too little.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use memchr::memmem;

use crate::units::KEY_PREFIXES;

/// What stands in the place of a secret.
pub const REDACTED: &str = "[redacted]";

/// Shortest head or tail of a known value that is taken out.
const FRAGMENT_CHARS: usize = 6;
/// Shortest head or tail beside a mask (`***`) that gives a known value away.
const MASKED_CHARS: usize = 3;

/// Known credential values. Cheap to clone; never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Arc<[String]>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    /// Remembers these values. Ones of one or two characters are ignored: taking them out would only tear words.
    pub fn new<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Secrets {
        Secrets(values.into_iter().map(|v| v.as_ref().trim().to_owned()).filter(|v| v.chars().count() > 2).collect())
    }

    /// The text without secrets.
    #[must_use]
    pub fn scrub(&self, text: &str) -> String {
        scrub(text, &self.0)
    }
}

/// The text without the given secrets, their heads and tails of six characters and more, and anything that looks like a key.
#[must_use]
pub fn scrub<S: AsRef<str>>(text: &str, secrets: &[S]) -> String {
    // ASCII lower case keeps every byte in its place.
    let lower = text.to_ascii_lowercase();
    let mut marks = Marks(vec![false; text.len()]);
    for secret in secrets {
        let secret = secret.as_ref().to_ascii_lowercase();
        mark_known(&lower, &secret, &mut marks);
        let encoded = percent_encoded(&secret);
        if encoded != secret {
            mark_known(&lower, &encoded, &mut marks);
        }
    }
    for token in tokens(text) {
        mark_token(text, &lower, token, secrets, &mut marks);
    }
    mark_assignments(&lower, &mut marks);
    mark_userinfo(&lower, &mut marks);
    marks.render(text)
}

/// Which bytes go.
struct Marks(Vec<bool>);

impl Marks {
    fn set(&mut self, range: Range<usize>) {
        if let Some(marks) = self.0.get_mut(range) {
            marks.fill(true);
        }
    }

    fn render(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut inside = false;
        for (at, c) in text.char_indices() {
            let gone = self.0.get(at).copied().unwrap_or(false);
            if gone && !inside {
                out.push_str(REDACTED);
            }
            if !gone {
                out.push(c);
            }
            inside = gone;
        }
        out
    }
}

/// Marks a known value, its heads and its tails. Both texts are in lower case.
fn mark_known(text: &str, secret: &str, marks: &mut Marks) {
    let chars = secret.chars().count();
    if chars < FRAGMENT_CHARS {
        // A short value is taken out only as a word of its own.
        for at in memmem::find_iter(text.as_bytes(), secret.as_bytes()) {
            let end = at + secret.len();
            let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            if !secret.is_empty() && !word(text[..at].chars().next_back()) && !word(text[end..].chars().next()) {
                marks.set(at..end);
            }
        }
        return;
    }
    let head = end_of_char(secret, FRAGMENT_CHARS);
    for at in memmem::find_iter(text.as_bytes(), &secret.as_bytes()[..head]) {
        let more = common(text[at..].chars(), secret.chars());
        marks.set(at..at + more);
    }
    let tail = end_of_char(secret, chars - FRAGMENT_CHARS);
    for at in memmem::find_iter(text.as_bytes(), &secret.as_bytes()[tail..]) {
        let end = at + secret.len() - tail;
        let more = common(text[..end].chars().rev(), secret.chars().rev());
        marks.set(end - more..end);
    }
}

/// Bytes that the first `n` characters take.
fn end_of_char(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

/// Bytes of the common begin.
fn common(a: impl Iterator<Item = char>, b: impl Iterator<Item = char>) -> usize {
    a.zip(b).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    out
}

/// Runs of characters that keys are made of; masks too.
fn tokens(text: &str) -> impl Iterator<Item = Range<usize>> {
    let inside = |c: char| c.is_alphanumeric() || "-_.*…•+/=~".contains(c);
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (from, _) = chars.find(|(_, c)| inside(*c))?;
        while chars.next_if(|(_, c)| inside(*c)).is_some() {}
        let to = chars.peek().map_or(text.len(), |(at, _)| *at);
        Some(from..to)
    })
}

fn mark_token<S: AsRef<str>>(text: &str, lower: &str, token: Range<usize>, secrets: &[S], marks: &mut Marks) {
    let word = &lower[token.clone()];
    let masked = word.contains("***") || word.contains('…') || word.contains('•') || word.contains("...");
    let digit = word.bytes().any(|b| b.is_ascii_digit());
    let known_prefix = KEY_PREFIXES.iter().find_map(|p| {
        let rest = word.find(p).filter(|&at| at == 0 || !word.as_bytes()[at - 1].is_ascii_alphanumeric())?;
        Some(word.len() - rest - p.len())
    });
    let vendor = known_prefix.is_some_and(|rest| rest >= 16 || (rest >= 4 && (digit || masked)));
    let jwt = text[token.clone()].contains("eyJ") && word.len() >= 20;
    let stars = word.contains("****") && word.chars().any(char::is_alphanumeric);
    let mask = |c: char| "*…•.".contains(c);
    let betrays = masked
        && secrets.iter().any(|secret| {
            let secret = secret.as_ref().to_ascii_lowercase();
            let head = word.split(mask).next().unwrap_or_default();
            let tail = word.rsplit(mask).next().unwrap_or_default();
            (head.chars().count() >= MASKED_CHARS && secret.starts_with(head))
                || (tail.chars().count() >= MASKED_CHARS && secret.ends_with(tail))
        });
    let bearer = (word.len() >= 16 || digit)
        && word.len() >= FRAGMENT_CHARS
        && ["bearer ", "basic "].iter().any(|b| lower[..token.start].ends_with(b));
    if vendor || jwt || stars || betrays || bearer {
        marks.set(token);
    }
}

/// Names whose value is a secret, in lower case; true for those that stand in prose too and are believed only before `=`.
const SECRET_NAMES: [(&str, bool); 16] = [
    ("key", true),
    ("token", true),
    ("sig", true),
    ("auth", true),
    ("signature", true),
    ("api_key", false),
    ("apikey", false),
    ("api-key", false),
    ("x-api-key", false),
    ("access_token", false),
    ("refresh_token", false),
    ("client_secret", false),
    ("secret", false),
    ("password", false),
    ("passwd", false),
    ("authorization", false),
];

/// Marks the value in `?key=VALUE`, `x-api-key: VALUE`, `"api_key": "VALUE"`.
fn mark_assignments(lower: &str, marks: &mut Marks) {
    for (name, only_equals) in SECRET_NAMES {
        for at in memmem::find_iter(lower.as_bytes(), name.as_bytes()) {
            let before = lower[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-') {
                continue;
            }
            let rest = &lower[at + name.len()..];
            let trimmed = rest.trim_start_matches(['"', '\'', '`']);
            let Some(value) = trimmed.strip_prefix('=').or_else(|| {
                let colon = trimmed.trim_start().strip_prefix(':')?;
                (!only_equals).then_some(colon)
            }) else {
                continue;
            };
            let value = value.trim_start_matches([' ', '"', '\'', '`']);
            let from = lower.len() - value.len();
            let ends: &[char] = if name == "authorization" {
                &['"', '\'', '`', '\r', '\n', ',', ';', '<']
            } else {
                &['"', '\'', '`', ' ', '\t', '\r', '\n', ',', ';', '&', '<', '>', ')', '#', '}']
            };
            let bytes = value.find(ends).unwrap_or(value.len());
            marks.set(from..from + bytes);
        }
    }
}

/// Marks `user:password` in `scheme://user:password@host`.
fn mark_userinfo(lower: &str, marks: &mut Marks) {
    for at in memmem::find_iter(lower.as_bytes(), b"://") {
        let from = at + 3;
        let rest = &lower[from..];
        let authority = rest.find(['/', '?', '#', ' ', '"', '\'', '\n', '<']).map_or(rest, |end| &rest[..end]);
        if let Some(end) = authority.rfind('@') {
            marks.set(from..from + end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "local-a-9f8e7d6c5b4a";

    #[test]
    fn known_values_and_their_fragments_go() {
        let cut = |text: &str| scrub(text, &[KEY]);
        assert_eq!(cut("bad key local-a-9f8e7d6c5b4a!"), "bad key [redacted]!");
        assert_eq!(cut("bad key LOCAL-A-9F8E7D6C5B4A!"), "bad key [redacted]!");
        assert_eq!(cut("begins local-a-9f8 and so on"), "begins [redacted] and so on");
        assert_eq!(cut("ends (6c5b4a)"), "ends ([redacted])");
        assert_eq!(cut("masked loc***********b4a."), "masked [redacted]");
        assert_eq!(cut("masked loc...b4a"), "masked [redacted]");
        assert_eq!(cut("nothing here about local things"), "nothing here about local things");
        assert_eq!(scrub("x=a%2Bb%2Fc1234&y", &["a+b/c1234"]), "x=[redacted]&y");
        assert_eq!(scrub("the pin is 4711, not 147110", &["4711"]), "the pin is [redacted], not 147110");
    }

    #[test]
    fn b148_a_401_that_echoes_the_key_shows_none_of_it() {
        let key = "sk-proj-AbCdEf0123456789wxyz";
        let secrets = Secrets::new([key]);
        for text in [
            "Incorrect API key provided: sk-proj-********************wxyz. You can find your API key at https://x.example.",
            "Incorrect API key provided: sk-proj-AbCdEf0123456789wxyz.",
            "invalid x-api-key: sk-proj-AbCdEf0123456789wxyz",
            "header was {\"authorization\": \"Bearer sk-proj-AbCdEf0123456789wxyz\"}",
        ] {
            let out = secrets.scrub(text);
            assert!(!out.contains("wxyz") && !out.contains("AbC") && !out.contains("sk-"), "{out}");
            assert!(out.contains(REDACTED));
            // The shape alone is enough, without knowing the value.
            let out = scrub::<&str>(text, &[]);
            assert!(!out.contains("wxyz") && !out.contains("AbC"), "{out}");
        }
        assert_eq!(format!("{secrets:?}"), "Secrets(1)");
    }

    #[test]
    fn b150_a_key_in_a_url_goes() {
        let cut = |text: &str| scrub::<&str>(text, &[]);
        assert_eq!(cut("GET https://h/v1?key=SECRET&a=1 failed"), "GET https://h/v1?key=[redacted]&a=1 failed");
        assert_eq!(cut("http://u:p@h:1/v1?access_token=x"), "http://[redacted]@h:1/v1?access_token=[redacted]");
        assert_eq!(cut("Authorization: Basic dXNlcjpwYXNz, Host: h"), "Authorization: [redacted], Host: h");
        assert_eq!(cut("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"), "got [redacted]");
    }

    #[test]
    fn prose_is_left_alone() {
        for text in [
            "the key: not found; this token: expired",
            "Bearer authentication required",
            "Rate limit reached for requests per min (RPM): Limit 3, Used 3. Try again in 20s.",
            "sk-learn is not a key",
            "Wait... what? See https://host/path for max_tokens=4096.",
            "user a@b.example wrote",
        ] {
            assert_eq!(scrub::<&str>(text, &[]), text);
        }
    }

    proptest! {
        #[test]
        fn no_head_or_tail_survives(before in ".{0,20}", after in ".{0,20}", n in 6usize..=20, tail: bool) {
            let piece = if tail { &KEY[KEY.len() - n..] } else { &KEY[..n] };
            let out = scrub(&format!("{before}{piece}{after}"), &[KEY]);
            prop_assert!(!out.to_lowercase().contains(&KEY[..6]));
            prop_assert!(!out.to_lowercase().contains(&KEY[KEY.len() - 6..]));
        }

        #[test]
        fn never_panics(text in any::<String>(), secret in any::<String>()) {
            let _ = scrub(&text, &[secret]);
        }
    }
}
