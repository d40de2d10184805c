//! Chunks of one answer differ in little but their text. One that differs from an earlier one in nothing but the string of its
//! delta's `content` says the same with another text, and need not be read anew: what a JSON document means does not depend on
//! anything but its bytes.

use super::chunk::Chunk;
use super::{inner, json};

/// Tries to learn from one stream. One whose chunks differ in more than their text (usage in each, padding) is read as it is.
const LESSONS: u8 = 3;

/// What stands around the text in every chunk of a stream.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// Up to the text's opening quote.
    before: Vec<u8>,
    /// From behind its closing quote.
    after: Vec<u8>,
    /// What such a chunk says, with the text of the last.
    chunk: Chunk,
    lessons: u8,
    known: bool,
}

impl Alike {
    /// What this data says, if it differs from what was learned in nothing but its text.
    pub(super) fn read(&mut self, data: &[u8]) -> Option<&Chunk> {
        if !self.known {
            return None;
        }
        let text = data.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())?;
        let content = self.chunk.choices.first_mut()?.delta.content.as_mut()?;
        let inner = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        // Empty text is none, and says so elsewhere.
        if inner.is_empty() {
            return None;
        }
        if inner.iter().any(|byte| matches!(byte, b'"' | b'\\' | ..b' ')) {
            // Escapes, or what no string may hold.
            *content = serde_json::from_slice::<String>(text).ok()?;
        } else {
            content.clear();
            content.push_str(std::str::from_utf8(inner).ok()?);
        }
        Some(&self.chunk)
    }

    /// Learns from a chunk that was read as it is.
    pub(super) fn learn(&mut self, data: &[u8], chunk: &Chunk) {
        let plain = match chunk.choices.as_slice() {
            [one] => {
                let delta = &one.delta;
                let more = delta.refusal.is_some() || delta.reasoning.is_some() || delta.audio;
                delta.content.is_some() && !more && delta.tool_calls.is_empty() && one.finish_reason.is_none()
            }
            _ => false,
        };
        if !plain || chunk.error.is_some() || chunk.usage.is_some() || self.lessons == LESSONS {
            return;
        }
        self.lessons += 1;
        self.known = false;
        let Some(at) = std::str::from_utf8(data).ok().and_then(only_content) else { return };
        let (Some(before), Some(after)) = (data.get(..at.start), data.get(at.end..)) else { return };
        (self.before, self.after) = (before.to_vec(), after.to_vec());
        self.chunk = chunk.clone();
        self.known = true;
    }
}

/// Where the one string stands that is the text of the one choice. `None`: there is not exactly one.
fn only_content(data: &str) -> Option<std::ops::Range<usize>> {
    let (mut found, mut others) = (None, false);
    let mut once = |place: &mut Option<std::ops::Range<usize>>, value: &str| {
        others |= place.is_some() || !value.starts_with('"');
        *place = json::place(data, value);
    };
    // A key that stands twice is read twice: such a chunk teaches nothing.
    let (mut choices, mut deltas) = (0, 0);
    json::members(data, |m| {
        if m.key() == "choices" {
            choices += 1;
            inner::elements(m.value, |choice| {
                inner::members(choice, |m| {
                    if m.key() == "delta" {
                        deltas += 1;
                        inner::members(m.value, |m| {
                            if m.key() == "content" {
                                once(&mut found, m.value);
                            }
                        });
                    }
                });
            });
        }
    });
    if others || choices != 1 || deltas != 1 { None } else { found }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Secrets;

    fn chunk(data: &str) -> Chunk {
        Chunk::read(data.as_bytes(), &Secrets::default()).unwrap()
    }

    fn taught(data: &str) -> Alike {
        let mut alike = Alike::default();
        alike.learn(data.as_bytes(), &chunk(data));
        alike
    }

    const FIRST: &str = r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"f","choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}]}"#;

    #[test]
    fn another_text_is_read_as_the_whole_reading_reads_it() {
        let mut alike = taught(FIRST);
        for text in [" world", r#"a \"word\""#, r"\n\t\u00e9", "é", r"back\\", r"\\\\"] {
            let data = FIRST.replace("Hello", text);
            assert_eq!(alike.read(data.as_bytes()).cloned(), Some(chunk(&data)), "{text}");
        }
    }

    #[test]
    fn what_differs_in_more_is_not_its_business() {
        let mut alike = taught(FIRST);
        let finish = FIRST.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#);
        let other_index = FIRST.replace(r#""index":0"#, r#""index":1"#);
        let with_more = FIRST.replace(r#""Hello""#, r#""Hello","role":"assistant""#);
        let two_strings = FIRST.replace(r#""Hello""#, r#""a","content":"b""#);
        for data in [finish, other_index, with_more, two_strings, FIRST.replace("Hello", "")] {
            assert_eq!(alike.read(data.as_bytes()), None, "{data}");
        }
        // No strings: a bare control character, half an escape, an escaped closing quote, half a surrogate pair.
        for text in ["a\u{1}b", r"a\", r"\u12", r"\ud83d", "a\"b"] {
            assert_eq!(alike.read(FIRST.replace("Hello", text).as_bytes()), None, "{text}");
        }
        let mut broken = FIRST.replace("Hello", "#").into_bytes();
        let at = broken.iter().position(|b| *b == b'#').unwrap();
        broken[at] = 0xff;
        assert_eq!(alike.read(&broken), None);
        // Shorter than what stands around.
        assert_eq!(alike.read(&FIRST.as_bytes()[..20]), None);
    }

    #[test]
    fn only_plain_chunks_teach() {
        let parts =
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"a"}]},"finish_reason":null}]}"#;
        let twice = r#"{"choices":[{"index":0,"delta":{"content":"a","content":"b"},"finish_reason":null}]}"#;
        let two_deltas = r#"{"choices":[{"index":0,"delta":{"content":"a"},"delta":{},"finish_reason":null}]}"#;
        let two_lists = r#"{"choices":[],"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
        let usage = r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}"#;
        for data in [parts, twice, two_deltas, two_lists, usage] {
            assert_eq!(taught(data).read(data.as_bytes()), None, "{data}");
        }
        // A key in escapes is the same key.
        let escaped = r#"{"choices":[{"index":0,"delta":{"\u0063ontent":"a"}}]}"#;
        assert_eq!(
            taught(escaped).read(escaped.replace("\"a\"", "\"b\"").as_bytes()).unwrap().choices[0].delta.content,
            Some("b".to_owned())
        );
    }

    #[test]
    fn it_learns_anew_a_few_times_and_then_no_more() {
        let mut alike = Alike::default();
        let nth = |n: usize| FIRST.replace(r#""created":1"#, &format!(r#""created":{n}"#));
        for n in 0..9 {
            let data = nth(n);
            assert_eq!(alike.read(data.as_bytes()), None);
            alike.learn(data.as_bytes(), &chunk(&data));
        }
        assert!(alike.read(nth(2).as_bytes()).is_some() && alike.read(nth(8).as_bytes()).is_none());
    }

    proptest! {
        /// Whatever stands in the place of the text, and wherever bytes were changed: what is read this way is what is read as it is.
        #[test]
        fn never_another_reading(text in r#"[a-z"\\{},:\[\]u0-9é]{0,12}"#, at in 0..FIRST.len(), with in any::<u8>(), change: bool) {
            let mut alike = taught(FIRST);
            let mut data = FIRST.replace("Hello", &text).into_bytes();
            if change && at < data.len() {
                data[at] = with;
            }
            if let Some(read) = alike.read(&data) {
                prop_assert_eq!(Ok(read.clone()), Chunk::read(&data, &Secrets::default()));
            }
        }
    }
}
