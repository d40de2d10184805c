//! Splits objects and arrays inside a JSON document that was read whole before: a value that [`super::json::members`] handed out is
//! known to be JSON, so its parts need only be found, not proved again. A conversation's text is then proved once, and not once
//! for each level that it lies in. Of anything else than JSON the parts are nonsense, and nothing worse.

use super::json::{Member, string_end};

/// The members of an object that is known to be one value of JSON. False: it is no object.
pub(crate) fn members<'a>(object: &'a str, each: impl FnMut(Member<'a>)) -> bool {
    members_of(object, each).is_some()
}

/// The members of the object that the text begins with, whatever follows; where it ends.
fn members_of<'a>(text: &'a str, mut each: impl FnMut(Member<'a>)) -> Option<usize> {
    parts(text, b'{', |from| {
        let bytes = text.as_bytes();
        let key_end = string_end(bytes, from)?;
        let value = skip_blank(bytes, skip_blank(bytes, key_end) + 1);
        let end = value_end(bytes, value)?;
        each(Member { raw_key: text.get(from..key_end)?, value: text.get(value..end)? });
        Some(end)
    })
}

/// The elements of an array that is known to be one value of JSON. False: it is no array.
pub(crate) fn elements<'a>(array: &'a str, mut each: impl FnMut(&'a str)) -> bool {
    let all = parts(array, b'[', |from| {
        let end = value_end(array.as_bytes(), from)?;
        each(array.get(from..end)?);
        Some(end)
    });
    all.is_some()
}

/// What an array of objects holds, seen in one pass: a long conversation is not looked at once for its messages, and again for
/// what is in each.
pub(crate) enum Seen<'a> {
    /// A member of the object that is under way.
    Member(Member<'a>),
    /// The object is over.
    Over,
    /// An element that is no object.
    Other,
}

/// The objects of an array that is known to be one value of JSON. False: it is no array.
pub(crate) fn objects<'a>(array: &'a str, mut each: impl FnMut(Seen<'a>)) -> bool {
    let all = parts(array, b'[', |from| {
        let rest = array.get(from..)?;
        if !rest.starts_with('{') {
            each(Seen::Other);
            return value_end(array.as_bytes(), from);
        }
        let length = members_of(rest, |m| each(Seen::Member(m)))?;
        each(Seen::Over);
        Some(from + length)
    });
    all.is_some()
}

/// Hands out where each part begins; `part` says where it ends. Where the whole ends.
fn parts(text: &str, open: u8, mut part: impl FnMut(usize) -> Option<usize>) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = skip_blank(bytes, 0);
    if bytes.get(at) != Some(&open) {
        return None;
    }
    at = skip_blank(bytes, at + 1);
    while !matches!(bytes.get(at)?, b'}' | b']') {
        at = skip_blank(bytes, part(at)?);
        match bytes.get(at)? {
            b',' => at = skip_blank(bytes, at + 1),
            b'}' | b']' => {}
            // No JSON.
            _ => return None,
        }
    }
    Some(at + 1)
}

fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Behind the value that begins here.
fn value_end(bytes: &[u8], from: usize) -> Option<usize> {
    match bytes.get(from)? {
        b'"' => string_end(bytes, from),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0usize, from);
            loop {
                match bytes.get(at)? {
                    b'"' => at = string_end(bytes, at)?,
                    b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
                    b'}' | b']' if depth <= 1 => return Some(at + 1),
                    b'}' | b']' => (depth, at) = (depth - 1, at + 1),
                    _ => at += 1,
                }
            }
        }
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
            let bytes = bytes.get(from..)?;
            let length = bytes.iter().position(ends).unwrap_or(bytes.len());
            (length > 0).then_some(from + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::json;

    type Parts<'a> = (bool, Vec<(&'a str, &'a str)>);

    fn by(split: impl FnOnce(&mut dyn FnMut(Member<'static>)) -> bool) -> Parts<'static> {
        let mut all = Vec::new();
        let is = split(&mut |m| all.push((m.raw_key, m.value)));
        (is, all)
    }

    fn both(text: &'static str) {
        let here = by(|each| members(text, each));
        assert_eq!(here, by(|each| json::members(text, each)), "{text}");
        let here = by(|each| elements(text, |value| each(Member { raw_key: "", value })));
        assert_eq!(here, by(|each| json::elements(text, |value| each(Member { raw_key: "", value }))), "{text}");
    }

    #[test]
    fn parts_of_known_json_are_those_that_a_whole_reading_finds() {
        for text in [
            "{}",
            "[]",
            " { } ",
            "[ ]",
            r#"{"a":1}"#,
            r#"{"a":"}","b":[1,{"c":"]"}],"d":null}"#,
            r#"["\"","\\",",",{}]"#,
            "{ \"a\" :\t-1.5e3 ,\n\"b\\\"\" : true }",
            "[1 , 2\n]",
            "7",
            "\"x\"",
            "null",
            r#"{"a":{"a":{"a":[[],[[]]]}}}"#,
            r#"{"é":"ü","":""}"#,
        ] {
            both(text);
        }
    }

    #[test]
    fn objects_are_seen_in_one_pass() {
        let mut seen = Vec::new();
        let array = r#" [ {"a":1,"b":{"c":[2]}} ,{}, 7, "{", {"d":"}]"} ] "#;
        assert!(objects(array, |one| seen.push(match one {
            Seen::Member(m) => format!("{}={}", m.raw_key, m.value),
            Seen::Over => "over".to_owned(),
            Seen::Other => "other".to_owned(),
        })));
        let right = [r#""a"=1"#, r#""b"={"c":[2]}"#, "over", "over", "other", "other", r#""d"="}]""#, "over"];
        assert_eq!(seen, right);
        assert!(!objects("{}", |_| {}) && !objects("7", |_| {}));
    }

    #[test]
    fn what_is_no_json_does_no_harm() {
        for text in [
            "",
            "{",
            "[",
            "{\"",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{a:1}",
            "[1,",
            "[\"\\",
            "{]",
            "[}",
            "{,}",
            "[,]",
            "{\"a\" 1 2}",
            "[é",
        ] {
            members(text, |_| {});
            elements(text, |_| {});
            objects(text, |_| {});
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            r#"[a-c"\\{}\[\],: é\n]{0,8}"#.prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::hash_map(r#"[a-c"\\{}]{0,4}"#, inner, 0..6)
                    .prop_map(|all| serde_json::Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_document_is_split_alike(value in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            both(text.leak());
        }

        #[test]
        fn anything_at_all_does_no_harm(text in r#"[\[\]{}",:\\0-9ae é]{0,24}"#) {
            let mut bytes = 0;
            members(&text, |m| bytes += m.raw_key.len() + m.value.len());
            prop_assert!(bytes <= text.len());
            elements(&text, |_| {});
            objects(&text, |_| {});
        }
    }
}
