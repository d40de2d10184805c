//! Types of what llmfo reads from a request. One that is read otherwise by the target than here would make an honest answer
//! look like a fault of whoever gave it: `"stream": 1` streams at some servers and not at others.

use super::chunk::MAX_CHOICES;
use super::{inner, json};

/// What `messages` must be.
pub(super) const OBJECTS: &str = "a list of objects";

/// What this member must be, if it is not. Members that are misread without harm to anybody are left to the target.
pub(super) fn must_be(name: &str, value: &str) -> Option<&'static str> {
    let null = value == "null";
    let (fits, wanted) = match name {
        "stream" => (flag(value), "true or false"),
        "stream_options" => (null || options(value), "an object whose `include_usage` is true or false"),
        "n" => {
            let fits = |n| (1..=MAX_CHOICES as u64).contains(&n);
            (null || number(value).is_some_and(fits), "a whole number from 1 to 128")
        }
        // That they are objects is seen where they are looked at.
        "messages" => (value.starts_with('['), OBJECTS),
        "tools" | "functions" => (null || value.starts_with('['), "a list"),
        "response_format" => (null || value.starts_with('{'), "an object"),
        _ => return None,
    };
    (!fits).then_some(wanted)
}

fn flag(value: &str) -> bool {
    matches!(value, "true" | "false" | "null")
}

/// A number, not a string that looks like one.
fn number(value: &str) -> Option<u64> {
    json::unsigned(value).filter(|_| !value.starts_with('"'))
}

fn options(value: &str) -> bool {
    let mut fits = true;
    inner::members(value, |m| fits &= m.key() != "include_usage" || flag(m.value)) && fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_misread_is_refused_and_nothing_else() {
        for (name, good, bad) in [
            ("stream", &["true", "false", "null"][..], &["1", "0", "\"true\"", "[]", "{}", "1.0"][..]),
            (
                "stream_options",
                &["null", "{}", "{\"include_usage\":true}", "{\"include_usage\":null,\"x\":1}"],
                &["true", "[]", "{\"include_usage\":1}", "\"x\""],
            ),
            ("n", &["1", "128", "null", "2.0"], &["0", "129", "-1", "1.5", "\"2\"", "true", "[1]", "1e9"]),
            ("messages", &["[]", "[{}]"], &["null", "\"hi\"", "{}"]),
            ("tools", &["[]", "null", "[1]"], &["{}", "\"x\"", "true"]),
            ("functions", &["[]"], &["{}"]),
            ("response_format", &["null", "{}"], &["\"json_schema\"", "[]"]),
            ("max_tokens", &["-1", "\"x\"", "0"], &[]),
            ("metadata", &["1"], &[]),
        ] {
            for value in good {
                assert_eq!(must_be(name, value), None, "{name}: {value}");
            }
            for value in bad {
                assert!(must_be(name, value).is_some(), "{name}: {value}");
            }
        }
    }
}
