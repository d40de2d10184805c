//! JSON Schemas from types (draft-07, which editors understand), and how to find one's way in them.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// Steps through `$ref` and `allOf` at most, so that a schema in a circle ends.
const MAX_HOPS: usize = 16;

/// The schema of a type. A key with nothing after it is refused (an absent key is how "not set" is written), and a choice of
/// words is one `enum`, so that messages can list it.
#[must_use]
pub fn of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft07()
        .with(|s| {
            s.transforms.insert(0, Box::new(RecursiveTransform(no_null)));
            s.transforms.insert(1, Box::new(RecursiveTransform(one_enum)));
        })
        .into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The schema as it is written to `schemas/`.
#[must_use]
pub fn text_of<T: JsonSchema>() -> String {
    let mut schema = of::<T>();
    // What it is stands first, for people who open the file.
    if let Some(map) = schema.as_object_mut() {
        let mut first = Map::new();
        for key in ["$schema", "title", "description"] {
            first.extend(map.shift_remove(key).map(|v| (key.to_owned(), v)));
        }
        first.extend(std::mem::take(map));
        *map = first;
    }
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// Takes `null` out of types and choices.
fn no_null(schema: &mut Schema) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|t| t != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(words)) = map.get_mut("enum") {
        words.retain(|w| !w.is_null());
    }
    if let Some(Value::Array(choices)) = map.get_mut("anyOf") {
        choices.retain(|c| c.get("type").is_none_or(|t| t != "null"));
        if let [Value::Object(one)] = choices.as_slice() {
            let one = one.clone();
            map.remove("anyOf");
            for (k, v) in one {
                map.entry(k).or_insert(v);
            }
        }
    }
}

/// `oneOf` of described constants becomes `enum`, with the descriptions in one text.
fn one_enum(schema: &mut Schema) {
    let Some(map) = schema.as_object_mut() else { return };
    let Some(Value::Array(choices)) = map.get("oneOf") else { return };
    let mut words = Vec::new();
    let mut notes = Vec::new();
    for choice in choices {
        let several = choice.get("enum").and_then(Value::as_array).cloned();
        let Some(these) = choice.get("const").map(|c| vec![c.clone()]).or(several) else { return };
        let note = choice.get("description").and_then(Value::as_str).unwrap_or("");
        for word in &these {
            if let (Some(word), false) = (word.as_str(), note.is_empty()) {
                notes.push(format!("`{word}`: {note}"));
            }
        }
        words.extend(these);
    }
    map.remove("oneOf");
    map.insert("type".to_owned(), "string".into());
    map.insert("enum".to_owned(), Value::Array(words));
    if !notes.is_empty() {
        let before = map.get("description").and_then(Value::as_str).unwrap_or("").to_owned();
        let glue = if before.is_empty() { "" } else { "\n\n" };
        map.insert("description".to_owned(), format!("{before}{glue}{}", notes.join("\n")).into());
    }
}

/// Follows `$ref` and a lone `allOf` to the schema they mean.
#[must_use]
pub fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..MAX_HOPS {
        if let Some(target) =
            schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')).and_then(|p| root.pointer(p))
        {
            schema = target;
        } else if let Some([one]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
            schema = one;
        } else {
            break;
        }
    }
    schema
}

/// The schema of the value at a pointer, as far as the schema knows it.
#[must_use]
pub fn at<'a>(root: &'a Value, pointer: &str) -> Option<&'a Value> {
    let mut schema = resolve(root, root);
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        let next = if let Some(found) = properties(schema).and_then(|p| p.get(&step)) {
            found
        } else if let Some(found) = schema.get("additionalProperties").filter(|a| a.is_object()) {
            found
        } else {
            schema.get("items").filter(|_| step.parse::<usize>().is_ok())?
        };
        schema = resolve(root, next);
    }
    Some(schema)
}

/// The declared keys of a map.
#[must_use]
pub fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// Every place where `key` is a declared key, in words: `routes[].attempts[]`, `targets.<name>`; the root is "the top level".
#[must_use]
pub fn homes(root: &Value, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    walk(root, root, String::new(), 0, &mut |path, schema| {
        if properties(schema).is_some_and(|p| p.contains_key(key)) {
            found.push(if path.is_empty() { "the top level".to_owned() } else { format!("`{path}`") });
        }
    });
    found
}

/// The place of the map that knows all of `keys`, if there is one: tells where a misplaced section belongs.
#[must_use]
pub fn home_of_shape(root: &Value, keys: &[&str]) -> Option<String> {
    let mut found = None;
    if keys.len() < 2 {
        return None;
    }
    walk(root, root, String::new(), 0, &mut |path, schema| {
        if found.is_none()
            && !path.is_empty()
            && properties(schema).is_some_and(|p| keys.iter().all(|k| p.contains_key(*k)))
        {
            found = Some(path.to_owned());
        }
    });
    found
}

fn walk(root: &Value, schema: &Value, path: String, depth: usize, visit: &mut dyn FnMut(&str, &Value)) {
    if depth > MAX_HOPS {
        return;
    }
    let schema = resolve(root, schema);
    visit(&path, schema);
    for (name, below) in properties(schema).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(root, below, path, depth + 1, visit);
    }
    if let Some(below) = schema.get("items") {
        walk(root, below, format!("{path}[]"), depth + 1, visit);
    }
    if let Some(below) = schema.get("additionalProperties").filter(|a| a.is_object()) {
        walk(root, below, format!("{path}.<name>"), depth + 1, visit);
    }
}
