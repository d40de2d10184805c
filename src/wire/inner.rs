//! Splits objects and arrays inside a JSON document that was read whole before: a value that [`super::json::members`] handed out is
//! known to be JSON, so its parts need only be found, not proved again. A conversation's text is then proved once, and not once
//! for each level that it lies in. Of anything else than JSON the parts are nonsense, and nothing worse.

use memchr::memchr2;

use super::json::Member;

/// The members of an object that is known to be one value of JSON. False: it is no object.
pub(crate) fn members<'a>(object: &'a str, mut each: impl FnMut(Member<'a>)) -> bool {
    parts(object, b'{', |text, from, to| {
        let bytes = text.as_bytes();
        let key_end = string_end(bytes, from)?;
        let colon = skip_blank(bytes, key_end);
        let value = skip_blank(bytes, colon + 1);
        let end = value_end(bytes, value)?;
        *to = end;
        each(Member { raw_key: text.get(from..key_end)?, value: text.get(value..end)? });
        Some(())
    })
}

/// The elements of an array that is known to be one value of JSON. False: it is no array.
pub(crate) fn elements<'a>(array: &'a str, mut each: impl FnMut(&'a str)) -> bool {
    parts(array, b'[', |text, from, to| {
        *to = value_end(text.as_bytes(), from)?;
        each(text.get(from..*to)?);
        Some(())
    })
}

/// Hands each part to `part`, from where it begins; it says where it ends.
fn parts<'a>(text: &'a str, open: u8, mut part: impl FnMut(&'a str, usize, &mut usize) -> Option<()>) -> bool {
    let bytes = text.as_bytes();
    let mut at = skip_blank(bytes, 0);
    if bytes.get(at) != Some(&open) {
        return false;
    }
    at = skip_blank(bytes, at + 1);
    while !matches!(bytes.get(at), None | Some(b'}' | b']')) {
        let mut end = at;
        if part(text, at, &mut end).is_none() {
            return false;
        }
        at = skip_blank(bytes, end);
        if bytes.get(at) == Some(&b',') {
            at = skip_blank(bytes, at + 1);
        } else if end == at && !matches!(bytes.get(at), Some(b'}' | b']')) {
            // No JSON: something would have to follow.
            return false;
        }
    }
    at < bytes.len()
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

/// Behind the closing quote of the string that begins here.
fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from) != Some(&b'"') {
        return None;
    }
    let mut at = from + 1;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
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
        let here = by(|each| members(text, |m| each(m)));
        assert_eq!(here, by(|each| json::members(text, |m| each(m))), "{text}");
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
        }
    }
}
