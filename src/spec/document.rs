//! The way in for every file type: bytes in, a typed value and every problem out.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::tree::{Node, Span, Value};
use super::{check, rules, schema, yaml};
use crate::diag::{Diagnostic, Place, Rule, Source, quoted};

/// Findings per file; more than that help nobody.
pub const MAX_FINDINGS: usize = 1000;

/// How large a file may be. The figures are far above any honest file (the example policy has about 700 values, 8 levels)
/// and far below what hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file; checked before it is read.
    pub max_bytes: usize,
    /// Values (scalars, lists, maps).
    pub max_nodes: usize,
    /// Levels of lists and maps.
    pub max_depth: usize,
    /// Values that aliases bring in a second time.
    pub max_replayed_events: usize,
}

impl Limits {
    /// The limits of all files today.
    pub const DEFAULT: Limits =
        Limits { max_bytes: 16 * 1024 * 1024, max_nodes: 1_000_000, max_depth: 32, max_replayed_events: 20_000 };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// A read document: its text, and for every JSON pointer a place.
#[derive(Clone, Debug)]
pub struct SpannedDoc {
    source: Source,
    root: Option<Node>,
    json: serde_json::Value,
}

impl SpannedDoc {
    /// The text.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Gives the text away, for a report.
    #[must_use]
    pub fn into_source(self) -> Source {
        self.source
    }

    /// The whole document as JSON; null if it could not be read.
    #[must_use]
    pub fn json(&self) -> &serde_json::Value {
        &self.json
    }

    /// The JSON value at a pointer.
    #[must_use]
    pub fn get(&self, pointer: &str) -> Option<&serde_json::Value> {
        self.json.pointer(pointer)
    }

    /// The keys of the map at a pointer, in the order of the file; empty if there is no map.
    pub fn keys(&self, pointer: &str) -> impl Iterator<Item = &str> {
        self.get(pointer).and_then(|v| v.as_object()).into_iter().flatten().map(|(k, _)| k.as_str())
    }

    /// Where the value at a pointer is. A pointer that leads nowhere gives the key of its last part that exists.
    #[must_use]
    pub fn place(&self, pointer: &str) -> Place {
        let found = self.walk(pointer);
        self.source.place(if found.whole { found.value } else { found.key }, pointer)
    }

    /// Where the key at a pointer is. For an element of a list it is the element, for the document its start.
    #[must_use]
    pub fn key_place(&self, pointer: &str) -> Place {
        self.source.place(self.walk(pointer).key, pointer)
    }

    /// A finding at a value; says so if an alias or a merge brings that value in.
    #[must_use]
    pub fn at(&self, rule: &'static Rule, pointer: &str, message: impl Into<String>) -> Diagnostic {
        self.with_use(Diagnostic::new(rule, self.place(pointer), message), pointer)
    }

    /// A finding at a key.
    #[must_use]
    pub fn at_key(&self, rule: &'static Rule, pointer: &str, message: impl Into<String>) -> Diagnostic {
        self.with_use(Diagnostic::new(rule, self.key_place(pointer), message), pointer)
    }

    /// Never show the value at this pointer: it is a secret.
    pub fn hide(&mut self, pointer: &str) {
        let found = self.walk(pointer);
        if found.whole {
            self.source.hide(found.value);
        }
    }

    fn with_use(&self, d: Diagnostic, pointer: &str) -> Diagnostic {
        match self.walk(pointer).used {
            Some(used) => d.and(self.source.place(used, ""), "brought in here by an alias or a merge"),
            None => d,
        }
    }

    fn walk(&self, pointer: &str) -> Found {
        let Some(mut node) = self.root.as_ref() else {
            return Found { key: 0..0, value: 0..0, used: None, whole: pointer.is_empty() };
        };
        let mut found = Found { key: 0..0, value: range(node.span), used: None, whole: true };
        for step in pointer.split('/').skip(1) {
            let step = unescape(step);
            let Some((entry, next)) = node.child(&step) else {
                found.whole = false;
                break;
            };
            found.value = range(next.span);
            found.key = entry.map_or_else(|| found.value.clone(), |e| range(e.key_span));
            found.used = next.used.map(range).or(found.used);
            node = next;
        }
        // A value with no text of its own (`key:` and nothing after it) is shown at its key.
        if found.value.is_empty() {
            found.value = found.key.clone();
        }
        found
    }
}

struct Found {
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
    used: Option<std::ops::Range<usize>>,
    whole: bool,
}

fn range(span: Span) -> std::ops::Range<usize> {
    let at = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    at(span.start)..at(span.end)
}

/// One step of a JSON pointer, escaped.
#[must_use]
pub fn escape(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

fn unescape(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// Reads a document without a schema: limits, syntax, repeated keys, numbers that are none.
#[must_use]
pub fn read(name: &str, bytes: &[u8], limits: &Limits) -> (SpannedDoc, Vec<Diagnostic>) {
    if bytes.len() > limits.max_bytes {
        let (doc, d) = too_long(name, bytes.len(), limits);
        return (doc, vec![d]);
    }
    let empty = |text: &str| SpannedDoc { source: Source::new(name, text), root: None, json: serde_json::Value::Null };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(e) => {
            let doc = empty(std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""));
            let end = doc.source.text().len();
            let d = Diagnostic::new(
                &rules::YAML,
                doc.source.place(end..end, ""),
                "the file is not UTF-8 text from here on",
            )
            .help("save it as UTF-8");
            return (doc, vec![d]);
        }
    };
    let mut doc = empty(text);
    match yaml::read(&doc.source, limits) {
        Err(d) => (doc, vec![*d]),
        Ok(root) => {
            let mut found = Vec::new();
            look(&doc.source, &root, "", &mut found);
            doc.json = root.to_json();
            doc.root = Some(root);
            (doc, found)
        }
    }
}

/// An empty document with the finding that its file is too long, for those who look at the length before reading.
#[must_use]
pub fn too_long(name: &str, bytes: usize, limits: &Limits) -> (SpannedDoc, Diagnostic) {
    let doc = SpannedDoc { source: Source::new(name, ""), root: None, json: serde_json::Value::Null };
    let mib = limits.max_bytes / (1024 * 1024);
    let d = Diagnostic::new(
        &rules::TOO_BIG,
        doc.place(""),
        format!("the file has {bytes} bytes; at most {mib} MiB are read"),
    )
    .help("is this the right file? A policy has a few hundred lines");
    (doc, d)
}

/// Reads a document and loads it as `T`. All problems are reported, not the first alone. A value is given if what could be
/// read of the document fits the type: what is wrong is left out of it, so that later checks can go on; whether the file
/// may be *used* is for the findings to say (any error means no).
#[must_use]
pub fn load<T: DeserializeOwned + JsonSchema>(
    name: &str,
    bytes: &[u8],
    limits: &Limits,
) -> (Option<T>, Vec<Diagnostic>, SpannedDoc) {
    let (doc, mut found) = read(name, bytes, limits);
    if doc.root.is_none() {
        return (None, found, doc);
    }
    let schema = schema::of::<T>();
    let known: Vec<&str> =
        found.iter().filter(|d| d.rule == &rules::NOT_FINITE).map(|d| d.place.pointer.as_str()).collect();
    let checked = check::against(&doc, &schema, &known);
    found.extend(checked.findings);
    let broken = found.iter().any(Diagnostic::is_error);
    let typed = match serde_path_to_error::deserialize::<_, T>(&checked.rest) {
        Ok(typed) => Some(typed),
        Err(e) => {
            if !broken {
                let pointer = pointer_of(e.path());
                let why = e.inner().to_string();
                found.push(doc.at(&rules::NO_FIT, &pointer, format!("this value does not fit here: {why}")));
            }
            None
        }
    };
    found.truncate(MAX_FINDINGS);
    (typed, found, doc)
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut out = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => out.push_str(&format!("/{index}")),
            Segment::Map { key } => out.push_str(&format!("/{}", escape(key))),
            Segment::Enum { .. } | Segment::Unknown => break,
        }
    }
    out
}

/// Repeated keys and numbers that are none.
fn look(source: &Source, node: &Node, pointer: &str, found: &mut Vec<Diagnostic>) {
    if found.len() >= MAX_FINDINGS {
        return;
    }
    match &node.value {
        Value::Float(v) if !v.is_finite() => {
            let place = source.place(range(node.span), pointer);
            found.push(
                Diagnostic::new(&rules::NOT_FINITE, place, "infinity and not-a-number are no settings")
                    .expected("a plain number")
                    .help("write the figure that is meant; a limit that must not bind is left out"),
            );
        }
        Value::Seq(items) => {
            for (n, item) in items.iter().enumerate() {
                look(source, item, &format!("{pointer}/{n}"), found);
            }
        }
        Value::Map(entries) => {
            let mut seen = std::collections::BTreeMap::new();
            for entry in entries {
                let below = format!("{pointer}/{}", escape(&entry.key));
                if let Some(first) = seen.get(&entry.key) {
                    let place = source.place(range(entry.key_span), &below);
                    found.push(
                        Diagnostic::new(
                            &rules::REPEATED_KEY,
                            place,
                            format!("the key {} is written twice", quoted(&entry.key)),
                        )
                        .label("written again here")
                        .and(source.place(range(*first), &below), "first written here")
                        .help("keep one of them; if both are meant, one needs another name"),
                    );
                } else {
                    seen.insert(&entry.key, entry.key_span);
                }
                look(source, &entry.node, &below, found);
            }
        }
        _ => {}
    }
}
