//! `[P]` A small value that satisfies a JSON schema, for probes with a schema or a forced tool. It knows the keywords
//! that structured answers use (type, properties, required, enum, const, items, bounds, anyOf, local $ref); for others it
//! does its best.

use serde_json::{Map, Value, json};

/// Deeper than this nothing is built.
const MAX_DEPTH: u32 = 16;
/// At most so many items of an array or characters of a string are made for a lower bound.
const MAX_MADE: u64 = 1_000;

/// A minimal instance of `schema`.
#[must_use]
pub fn minimal(schema: &Value) -> Value {
    build(schema, schema, 0)
}

fn build(root: &Value, schema: &Value, depth: u32) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(value) = schema.get("enum").and_then(Value::as_array).and_then(|e| e.first()) {
        return value.clone();
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
        return root.pointer(target).map_or(Value::Null, |s| build(root, s, depth + 1));
    }
    if let Some(first) = ["anyOf", "oneOf", "allOf"].iter().find_map(|k| schema.get(*k)?.as_array()?.first()) {
        return build(root, first, depth + 1);
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str).unwrap_or("null"),
        _ if schema.get("properties").is_some() => "object",
        _ => "string",
    };
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    match kind {
        "object" => {
            let required = schema.get("required").and_then(Value::as_array);
            let names = required.map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
            let made: Map<String, Value> = names
                .map(|name| {
                    let inner = schema.get("properties").and_then(|p| p.get(name)).unwrap_or(&Value::Null);
                    (name.to_string(), build(root, inner, depth + 1))
                })
                .collect();
            Value::Object(made)
        }
        "array" => {
            let count = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0).min(MAX_MADE);
            let items = schema.get("items").unwrap_or(&Value::Null);
            Value::Array((0..count).map(|_| build(root, items, depth + 1)).collect())
        }
        "integer" => {
            let low = number("minimum").or(number("exclusiveMinimum").map(|m| m + 1.0)).unwrap_or(0.0).ceil();
            let high = number("maximum").unwrap_or(f64::INFINITY);
            json!(low.max(0.0).min(high).max(low) as i64)
        }
        "number" => json!(number("minimum").or(number("exclusiveMinimum").map(|m| m + 1.0)).unwrap_or(0.0)),
        "boolean" => Value::Bool(true),
        "null" => Value::Null,
        _ => {
            let count = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0).clamp(2, MAX_MADE);
            Value::String("ok".chars().cycle().take(count as usize).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_satisfies_the_schema() {
        let schemas = [
            json!({"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"enum":["x","y"]},
                   "c":{"type":"array","items":{"type":"boolean"},"minItems":2},"d":{"type":["string","null"],"minLength":5}},
                   "required":["a","b","c","d"],"additionalProperties":false}),
            json!({"$defs":{"n":{"type":"number","exclusiveMinimum":0}},"type":"object",
                   "properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}),
            json!({"anyOf":[{"type":"null"},{"type":"string"}]}),
            json!({"const": 7}),
        ];
        for schema in schemas {
            let value = minimal(&schema);
            assert!(jsonschema::is_valid(&schema, &value), "{schema} -> {value}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]});
        assert!(minimal(&schema).is_object());
    }
}
