//! Values and schemas in words, and a document without its broken parts.

use serde_json::Value;

use super::{names, schema};
use crate::diag::quoted;

/// Most words of a choice that are listed.
const MAX_WORDS: usize = 12;

/// What a value is, in words: `the text "off"`, `a list`, `nothing`.
#[must_use]
pub fn what(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(v) => format!("`{v}`"),
        Value::Number(n) => format!("the number {n}"),
        Value::String(s) => format!("the text {}", quoted(s)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

/// What a schema wants, in words: `a map with the keys ...`, `a whole number of milliseconds, 1 to 86400000`.
#[must_use]
pub fn wanted(root: &Value, schema: &Value, key: &str) -> String {
    let schema = schema::resolve(root, schema);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return format!("one of {}", words_of(words));
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => match schema::properties(schema) {
            Some(known) => {
                let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let mut keys: Vec<&str> = required.iter().filter_map(Value::as_str).collect();
                keys.extend(known.keys().map(String::as_str).filter(|k| !required.iter().any(|r| r == k)));
                format!("a map with keys such as {}", crate::diag::list(keys, 4))
            }
            None => "a map from names to settings, for example `{ name: ... }`".to_owned(),
        },
        Some("array") => {
            let item = schema.get("items").map(|i| wanted(root, i, key));
            item.map_or_else(|| "a list".to_owned(), |i| format!("a list; each element {i}"))
        }
        Some("string") => "a text".to_owned(),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some(kind @ ("integer" | "number")) => number(schema, kind, key),
        _ => "something else".to_owned(),
    }
}

/// A number with its unit and its range.
fn number(schema: &Value, kind: &str, key: &str) -> String {
    let unit = names::unit_of(key).map_or_else(String::new, |u| format!(" of {u}"));
    let mut text = if kind == "integer" { format!("a whole number{unit}") } else { format!("a number{unit}") };
    let bound = |name: &str| schema.get(name).map(ToString::to_string);
    match (bound("minimum"), bound("exclusiveMinimum"), bound("maximum")) {
        (Some(low), _, Some(high)) => text.push_str(&format!(", {low} to {high}")),
        (_, Some(low), Some(high)) => text.push_str(&format!(", more than {low} and at most {high}")),
        (Some(low), _, None) => text.push_str(&format!(", at least {low}")),
        (_, Some(low), None) => text.push_str(&format!(", more than {low}")),
        (None, None, Some(high)) => text.push_str(&format!(", at most {high}")),
        (None, None, None) => {}
    }
    text
}

/// The words of a choice.
#[must_use]
pub fn words_of(words: &[Value]) -> String {
    crate::diag::list(words.iter().filter_map(Value::as_str), MAX_WORDS)
}

/// Takes what these pointers name out of a document, so that the rest can still be read. An element of a list takes its
/// list with it: leaving it out alone would move the others to wrong places.
#[must_use]
pub fn without(json: &Value, pointers: &[String]) -> Value {
    let mut rest = json.clone();
    for pointer in pointers {
        let mut at = pointer.as_str();
        while let Some((parent, key)) = at.rsplit_once('/') {
            match rest.pointer_mut(parent) {
                Some(Value::Object(map)) => {
                    map.shift_remove(&key.replace("~1", "/").replace("~0", "~"));
                    break;
                }
                _ => at = parent,
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_element_takes_its_list_with_it() {
        let json = json!({"a": {"b/c": 1, "d": 2}, "l": [{"x": 1}, 5], "k": 0});
        let rest = without(&json, &["/a/b~1c".into(), "/l/1".into(), "/nowhere/x".into()]);
        assert_eq!(rest, json!({"a": {"d": 2}, "k": 0}));
    }
}
