//! The schema's objections, turned into findings that say where, what and what next.

use jsonschema::error::ValidationErrorKind as Kind;
use serde_json::Value;

use super::document::{MAX_FINDINGS, SpannedDoc, escape};
use super::text::{NAME, NAME_FORM};
use super::{names, rules, schema, shape};
use crate::diag::{Diagnostic, list, quoted};

/// What a check against a schema gives.
pub struct Checked {
    /// The findings.
    pub findings: Vec<Diagnostic>,
    /// The document without its broken parts.
    pub rest: Value,
}

/// Checks a document against a schema; values at the `known` pointers have been reported already.
pub fn against(doc: &SpannedDoc, root: &Value, known: &[&str]) -> Checked {
    let options = jsonschema::options().with_draft(jsonschema::Draft::Draft7).offline();
    let validator = match options.build(root) {
        Ok(validator) => validator,
        Err(e) => {
            let d = doc.at(&rules::NO_FIT, "", format!("llmfo's own schema is broken, please report this: {e}"));
            return Checked { findings: vec![d], rest: Value::Null };
        }
    };
    let mut findings = Vec::new();
    let mut broken: Vec<String> = known.iter().map(|p| (*p).to_owned()).collect();
    let mut missing = Vec::new();
    let mut meant = Vec::new();
    for error in validator.iter_errors(doc.json()).take(MAX_FINDINGS) {
        let pointer = error.instance_path().as_str().to_owned();
        match error.kind() {
            Kind::AdditionalProperties { unexpected } => {
                let room = MAX_FINDINGS.saturating_sub(findings.len());
                if let Some(more) = unexpected.len().checked_sub(room).filter(|more| *more > 0) {
                    let text = format!("{more} more keys are unknown here");
                    findings.push(Diagnostic::new(&rules::UNKNOWN_KEY, doc.place(&pointer), text));
                }
                for key in unexpected.iter().take(room) {
                    let below = format!("{pointer}/{}", escape(key));
                    let (d, guess) = unknown_key(doc, root, &pointer, &below, key);
                    meant.extend(guess.map(|g| format!("{pointer}/{}", escape(&g))));
                    findings.push(d);
                    broken.push(below);
                }
            }
            Kind::PropertyNames { error } => {
                let key = error.instance().as_str().unwrap_or("");
                let below = format!("{pointer}/{}", escape(key));
                findings.push(
                    doc.at_key(&rules::WRONG_FORM, &below, format!("{} is not usable as a name", quoted(key)))
                        .label("not of this form")
                        .expected(NAME_FORM)
                        .help("choose a plain name: it becomes a header value, a metric label and a file name"),
                );
            }
            Kind::Required { property } => missing.push((pointer, property.as_str().unwrap_or("").to_owned())),
            kind => {
                // One finding per value: what has the wrong type also fails everything else.
                if broken.contains(&pointer) {
                    continue;
                }
                findings.push(wrong_value(doc, root, &pointer, error.instance(), kind));
                broken.push(pointer);
            }
        }
    }
    for (parent, key) in missing {
        // A misspelt key is already reported, and so is a parent that is broken as a whole.
        if !meant.contains(&format!("{parent}/{}", escape(&key))) && !broken.contains(&parent) {
            findings.push(missing_key(doc, root, &parent, &key));
        }
    }
    Checked { findings, rest: shape::without(doc.json(), &broken) }
}

/// `routes[0]` for `/routes/0`; the root is "the file".
fn spoken(doc: &SpannedDoc, pointer: &str) -> String {
    if pointer.is_empty() {
        return "the file".to_owned();
    }
    let mut out = String::new();
    let mut at = String::new();
    for step in pointer.split('/').skip(1) {
        let inside_list = doc.get(&at).is_some_and(Value::is_array);
        at.push('/');
        at.push_str(step);
        let step = step.replace("~1", "/").replace("~0", "~");
        if inside_list {
            out.push_str(&format!("[{step}]"));
        } else {
            out.push_str(if out.is_empty() { "" } else { "." });
            out.push_str(&step);
        }
    }
    quoted(&out)
}

fn unknown_key(doc: &SpannedDoc, root: &Value, parent: &str, below: &str, key: &str) -> (Diagnostic, Option<String>) {
    let known = schema::at(root, parent).and_then(schema::properties).cloned().unwrap_or_default();
    let d = doc.at_key(&rules::UNKNOWN_KEY, below, format!("unknown key {} in {}", quoted(key), spoken(doc, parent)));
    let value = doc.get(below);
    if let Some(guess) = names::guess(key, value, &known) {
        let name = guess.name.clone();
        let d = d.nearest(&guess.name);
        let d = match guess.unit {
            Some((Some(figure), word)) => d
                .label(format!("did you mean `{name}`, {word}?"))
                .help(format!("write `{name}: {figure}` ({figure} {word})")),
            Some((None, word)) => d
                .label(format!("did you mean `{name}`, {word}?"))
                .help(format!("write `{name}:` and the figure in {word}")),
            None => d.label(format!("did you mean `{name}`?")).help(format!("write `{name}`, or remove the key")),
        };
        return (d, Some(name));
    }
    let homes = schema::homes(root, key);
    if !homes.is_empty() {
        let place = homes.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", or ");
        let d = d.label("not a key of this level").help(format!("this key belongs to {place}: check the indentation"));
        return (d, None);
    }
    let keys: Vec<&str> = value.and_then(Value::as_object).into_iter().flatten().map(|(k, _)| k.as_str()).collect();
    if let Some(home) = schema::home_of_shape(root, &keys) {
        let d = d
            .label("not a key of this level")
            .help(format!("what is in it looks like {}: is it indented too little, or too much?", quoted(&home)));
        return (d, None);
    }
    let d = d.label("not a known key");
    let d =
        if known.is_empty() { d } else { d.expected(format!("one of {}", list(known.keys().map(String::as_str), 40))) };
    (d.help("remove it, or correct its name; unknown keys are never ignored"), None)
}

fn missing_key(doc: &SpannedDoc, root: &Value, parent: &str, key: &str) -> Diagnostic {
    let schema = schema::at(root, &format!("{parent}/{}", escape(key)));
    let message = format!("{} lacks the key {}", spoken(doc, parent), quoted(key));
    let d = doc.at_key(&rules::MISSING_KEY, parent, message).label(format!("`{key}` is missing here"));
    let d = match schema {
        Some(schema) => {
            let note = schema.get("description").and_then(Value::as_str).and_then(|t| t.lines().next()).unwrap_or("");
            let wanted = shape::wanted(root, schema, key);
            d.expected(if note.is_empty() { wanted } else { format!("{wanted} ({})", note.trim_end_matches('.')) })
        }
        None => d,
    };
    d.help(format!("add `{key}:` here"))
}

fn wrong_value(doc: &SpannedDoc, root: &Value, pointer: &str, value: &Value, kind: &Kind) -> Diagnostic {
    let schema = schema::at(root, pointer).unwrap_or(root);
    let key = key_of(pointer);
    let name = spoken(doc, pointer);
    let wanted = shape::wanted(root, schema, &key);
    // By the place, and by the keys above it: an alias brings a secret in from a place whose key may say nothing.
    let secret = (value.is_string() || value.is_number())
        && (doc.source().hides(&bytes(doc, pointer)) || pointer.split('/').any(crate::diag::is_secret_name));
    let shown = if secret { "a hidden value".to_owned() } else { shape::what(value) };
    let unit = names::unit_of(&key).map_or_else(String::new, |u| format!(" {u}"));
    match kind {
        Kind::Type { .. } if value.is_null() => {
            let message =
                if pointer.is_empty() { "the file is empty".to_owned() } else { format!("{name} has no value") };
            let d = doc.at(&rules::WRONG_TYPE, pointer, message).label("nothing is written here").expected(wanted);
            d.help(if pointer.is_empty() { "is this the right file?" } else { "write a value, or remove the key" })
        }
        Kind::Type { .. } => {
            let d =
                doc.at(&rules::WRONG_TYPE, pointer, format!("{name} is {shown}")).label("wrong type").expected(&wanted);
            d.help(if secret { format!("write {wanted}") } else { type_help(schema, value, &key, &wanted) })
        }
        Kind::Enum { options } => {
            let words = options.as_array().map_or(&[][..], Vec::as_slice);
            let near = value.as_str().and_then(|v| names::nearest(v, words.iter().filter_map(Value::as_str)));
            let d = doc
                .at(&rules::UNKNOWN_WORD, pointer, format!("{name} is {shown}, which is not one of its words"))
                .expected(format!("one of {}", shape::words_of(words)));
            match near {
                Some(near) => d
                    .label(format!("did you mean `{near}`?"))
                    .nearest(near)
                    .help(format!("write `{near}`, or another of the words")),
                None => d.label("not a known word").help("write one of the words"),
            }
        }
        Kind::Minimum { .. } | Kind::ExclusiveMinimum { .. } | Kind::Maximum { .. } | Kind::ExclusiveMaximum { .. } => {
            let d = doc
                .at(
                    &rules::OUT_OF_RANGE,
                    pointer,
                    format!("{name} is {}{unit}, outside its range", if secret { shown } else { value.to_string() }),
                )
                .label("outside its range")
                .expected(wanted);
            d.help(if secret {
                format!("write {}", shape::wanted(root, schema, &key))
            } else {
                range_help(schema, value, &key, kind)
            })
        }
        Kind::MinItems { .. } | Kind::MinProperties { .. } | Kind::MinLength { .. } => doc
            .at(&rules::EMPTY, pointer, format!("{name} is empty"))
            .label("nothing is in it")
            .expected(wanted)
            .help("write at least one entry, or remove the key"),
        Kind::MaxItems { limit } | Kind::MaxProperties { limit } | Kind::MaxLength { limit } => {
            doc.at(&rules::OUT_OF_RANGE, pointer, format!("{name} is too long")).expected(format!("at most {limit}"))
        }
        Kind::UniqueItems => doc
            .at(&rules::REPEATED_ELEMENT, pointer, format!("an element is written twice in {name}"))
            .label("twice in this list")
            .help("keep one of them"),
        Kind::Pattern { .. } | Kind::Format { .. } => {
            let is_name = matches!(kind, Kind::Pattern { pattern } if pattern == NAME);
            let note = schema.get("description").and_then(Value::as_str).unwrap_or("");
            let note = if is_name { NAME_FORM } else { note };
            let d = doc
                .at(&rules::WRONG_FORM, pointer, format!("{name} is {shown}, which has not the right form"))
                .label("not of this form");
            let d =
                if note.is_empty() { d } else { d.expected(note.lines().next().unwrap_or("").trim_end_matches('.')) };
            d.help(
                schema
                    .get("examples")
                    .and_then(|e| e.get(0))
                    .and_then(Value::as_str)
                    .map_or_else(|| "correct it".to_owned(), |e| format!("write it like `{e}`")),
            )
        }
        other => doc.at(&rules::NO_FIT, pointer, format!("{name} is {shown}; rule {:?} is broken", other.keyword())),
    }
}

fn bytes(doc: &SpannedDoc, pointer: &str) -> std::ops::Range<usize> {
    let place = doc.place(pointer);
    place.start..place.end
}

/// The last key of a pointer that is a name: `/routes/0/queue` gives `queue`, `/steps/2` gives `steps`.
fn key_of(pointer: &str) -> String {
    let named = pointer.rsplit('/').find(|s| s.parse::<usize>().is_err()).unwrap_or("");
    named.replace("~1", "/").replace("~0", "~")
}

/// The next step after a wrong type, for the slips that are made often.
fn type_help(schema: &Value, value: &Value, key: &str, wanted: &str) -> String {
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or("");
    let timed = schema.pointer("/examples/0").and_then(Value::as_str).is_some_and(|e| duration(e).is_some());
    match (kind, value) {
        ("string", Value::Number(n)) if timed => names::with_units(key, &n.to_string()),
        ("string", Value::Number(n)) => format!("put it in quotes: `{key}: \"{n}\"`"),
        ("string", Value::Bool(b)) => format!("put it in quotes: `{key}: \"{b}\"`"),
        ("boolean", Value::String(s)) if ["yes", "on", "y"].contains(&s.to_lowercase().as_str()) => {
            format!("write `{key}: true` (`{s}` is a text in YAML 1.2)")
        }
        ("boolean", Value::String(s)) if ["no", "off", "n"].contains(&s.to_lowercase().as_str()) => {
            format!("write `{key}: false` (`{s}` is a text in YAML 1.2)")
        }
        ("integer" | "number", Value::String(s)) => match (duration(s), names::unit_of(key)) {
            (Some(ms), Some("milliseconds")) => {
                format!("the unit is in the key's name: write `{key}: {}`", names::plain(ms))
            }
            (Some(ms), Some(_)) => format!("the unit is in the key's name: write `{key}: {}`", names::plain(ms / 1e3)),
            _ if s.parse::<f64>().is_ok() => format!("write the number without quotes: `{key}: {s}`"),
            _ => format!("write {wanted}"),
        },
        ("integer", Value::Number(n)) if names::unit_of(key) == Some("milliseconds") => {
            format!("milliseconds are whole numbers; did you mean {n} seconds? That is `{key}: {}`", {
                names::plain((n.as_f64().unwrap_or(0.0) * 1e3).round())
            })
        }
        ("integer", Value::Number(_)) => "write a whole number".to_owned(),
        ("object", _) => {
            "write a map below the key, each setting on a line of its own, two spaces further in".to_owned()
        }
        ("array", Value::String(s)) => format!("put it in brackets: `{key}: [{}]`", crate::units::printable(s, 40)),
        ("array", _) => format!("write a list: `{key}: [..., ...]`, or one `- ` line per element"),
        _ => format!("write {wanted}"),
    }
}

/// The next step after a number out of range.
fn range_help(schema: &Value, value: &Value, key: &str, kind: &Kind) -> String {
    let v = value.as_f64().unwrap_or(0.0);
    let high = schema.get("maximum").and_then(Value::as_f64);
    if high == Some(1.0) && v > 1.0 && v <= 100.0 {
        return format!("shares are written from 0 to 1: {v} % is `{key}: {}`", names::plain(v / 100.0));
    }
    match (names::unit_of(key), kind) {
        (Some(unit), Kind::Maximum { .. } | Kind::ExclusiveMaximum { .. }) => {
            format!("the figure is read as {unit}; check that it is not written in a smaller unit")
        }
        (Some(unit), _) if v == 0.0 => {
            format!("a limit of zero {unit} would switch it off or trip at once; write what is meant")
        }
        (Some(unit), _) if v < 0.0 => format!("write a positive number of {unit}"),
        (Some(unit), _) => match schema.get("minimum").and_then(Value::as_f64) {
            Some(low) => format!("write at least {} {unit}", names::plain(low)),
            None => format!("write a positive number of {unit}"),
        },
        (None, _) => "write a figure inside the range".to_owned(),
    }
}

/// `8s`, `250 ms`, `2 min` in milliseconds.
fn duration(text: &str) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let figure: f64 = text[..end].parse().ok()?;
    let per = match text[end..].trim() {
        "ms" => 1.0,
        "s" | "sec" | "secs" | "seconds" => 1e3,
        "m" | "min" | "minutes" => 6e4,
        "h" | "hours" => 3.6e6,
        _ => return None,
    };
    Some(figure * per)
}
