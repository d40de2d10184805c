//! Is the answer JSON, as it stands, and valid against the schema? Nothing is repaired: a program that reads the answer does
//! not repair it either. Frequent wrappings are named, because the cure is known.

use serde_json::Value;

use super::Verdict;
use crate::units::printable;

/// Most memory of one compiled pattern that comes from outside.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Violations named in one verdict.
const SHOWN: usize = 3;

/// A schema, compiled.
#[derive(Debug)]
pub struct Schema(jsonschema::Validator);

impl Schema {
    /// Compiles a schema. Formats (`date`, `email` ...) are checked, whatever the draft; references lead nowhere but into the
    /// schema itself.
    ///
    /// # Errors
    /// If it is no valid schema; says why, safe to print.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        jsonschema::options()
            .should_validate_formats(true)
            .build(schema)
            .map(Schema)
            .map_err(|e| printable(&e.to_string(), 200))
    }

    /// As [`Schema::compile`], with patterns that are matched in time linear in the text: for schemas that come from outside.
    ///
    /// # Errors
    /// As there, and if a pattern needs more (look-around, back-references).
    pub fn compile_linear(schema: &Value) -> Result<Schema, String> {
        jsonschema::options()
            .should_validate_formats(true)
            .with_pattern_options(jsonschema::PatternOptions::regex().size_limit(PATTERN_BYTES_MAX))
            .build(schema)
            .map(Schema)
            .map_err(|e| printable(&e.to_string(), 200))
    }

    /// Judges the text of an answer.
    #[must_use]
    pub fn check(&self, text: &str) -> Verdict {
        let value = match json(text) {
            Ok(value) => value,
            Err(why) => return Verdict::Fail(why),
        };
        // What the customer said stands in the values: they are masked.
        let mut errors = self.0.iter_errors(&value);
        let shown: Vec<String> = errors
            .by_ref()
            .take(SHOWN)
            .map(|e| {
                let place = e.instance_path().to_string();
                let place = if place.is_empty() { "/" } else { place.as_str() };
                printable(&format!("{place}: {}", e.masked()), 160)
            })
            .collect();
        if shown.is_empty() {
            return Verdict::Pass;
        }
        let more = errors.count();
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        Verdict::Fail(format!("does not fit the schema: {}{more}", shown.join("; ")))
    }
}

/// The JSON value that the text is, as it stands.
///
/// # Errors
/// If it is not one; says what it is instead, where that is clear.
pub fn json(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("the answer is empty".to_owned());
    }
    let error = match serde_json::from_str::<Value>(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let trimmed = text.trim();
    let why = if trimmed.starts_with("```") {
        "the JSON stands in a code fence".to_owned()
    } else if text.starts_with('\u{feff}') {
        "a byte order mark stands before the JSON".to_owned()
    } else if inner(trimmed).is_some() {
        "other text stands around the JSON".to_owned()
    } else if error.is_eof() {
        "the JSON is cut off".to_owned()
    } else {
        format!("not JSON (line {}, column {})", error.line(), error.column())
    };
    Err(why)
}

/// A JSON object or array with other text around it.
fn inner(text: &str) -> Option<()> {
    for (open, close) in [('{', '}'), ('[', ']')] {
        let (from, to) = (text.find(open)?, text.rfind(close)?);
        if from < to && serde_json::from_str::<serde::de::IgnoredAny>(&text[from..=to]).is_ok() {
            return Some(());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    fn schema() -> Schema {
        Schema::compile(&value!({
            "type": "object",
            "properties": {
                "order_id": { "type": "string" },
                "status": { "enum": ["shipped", "open"] },
                "eta_days": { "type": "integer", "minimum": 0 },
                "on": { "type": "string", "format": "date" }
            },
            "required": ["order_id", "status"],
            "additionalProperties": false
        }))
        .unwrap()
    }

    #[test]
    fn valid_and_invalid_answers() {
        let schema = schema();
        assert!(schema.check(" {\"order_id\":\"A-17\",\"status\":\"open\",\"eta_days\":3}\n").passed());
        for (text, says) in [
            ("{\"order_id\":\"A-17\"}", "\"status\" is a required property"),
            ("{\"order_id\":7,\"status\":\"open\"}", "/order_id: "),
            ("{\"order_id\":\"A\",\"status\":\"open\",\"more\":1}", "/: "),
            ("{\"order_id\":\"A\",\"status\":\"open\",\"on\":\"tomorrow\"}", "/on: "),
            ("[]", "/: "),
            ("{}{}", "not JSON"),
        ] {
            let verdict = schema.check(text);
            assert!(verdict.failed() && verdict.why().unwrap().contains(says), "{text}: {verdict:?}");
        }
    }

    #[test]
    fn nothing_is_repaired_and_wrappings_are_named() {
        let good = "{\"order_id\":\"A-17\",\"status\":\"open\"}";
        let schema = schema();
        for (text, says) in [
            (format!("```json\n{good}\n```"), "the JSON stands in a code fence"),
            (format!("```\n{good}```"), "the JSON stands in a code fence"),
            (format!("Here it is: {good}"), "other text stands around the JSON"),
            (format!("{good} Anything else?"), "other text stands around the JSON"),
            (format!("\u{feff}{good}"), "a byte order mark stands before the JSON"),
            (good[..20].to_owned(), "the JSON is cut off"),
            ("{'order_id': 1}".to_owned(), "not JSON (line 1, column 2)"),
            (" \n".to_owned(), "the answer is empty"),
            ("Sorry.".to_owned(), "not JSON (line 1, column 1)"),
        ] {
            assert_eq!(schema.check(&text).why(), Some(says), "{text}");
        }
    }

    #[test]
    fn what_the_customer_said_is_not_repeated() {
        let why = schema().check("{\"order_id\":\"A\",\"status\":\"Jane Doe, 12 High Street\"}");
        assert!(!why.why().unwrap().contains("Jane"), "{why:?}");
    }

    #[test]
    fn a_bad_schema_is_an_error_and_references_lead_nowhere() {
        assert!(Schema::compile(&value!({"type": "no such type"})).is_err());
        assert!(Schema::compile(&value!({"$ref": "https://schemas.example/x.json"})).is_err());
        assert!(Schema::compile(&value!({"$ref": "file:///etc/passwd"})).is_err());
        let own = Schema::compile(&value!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}})).unwrap();
        assert!(own.check("\"x\"").passed() && own.check("1").failed());
    }
}
