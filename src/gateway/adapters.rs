//! Adapters: a tested text that asks for a JSON schema where a target does not take the parameter. What comes back is held to
//! its end and checked against the schema, so that the client gets what the parameter would have given, or another target does.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use super::held::Held;
use super::targets::find;
use crate::check::{Schema, Verdict};
use crate::event::Event;
use crate::policy::{Policy, Route, Target, TargetId};
use crate::router::{Failure, Input};
use crate::units::printable;
use crate::wire::{AnswerChoice, ChatRequest, Overheard};

/// Longest text of an adapter, in bytes: it goes with every adapted request.
const TEXT_BYTES_MAX: u64 = 64 * 1024;

/// The texts that could be read, by target.
pub type Texts = BTreeMap<TargetId, Arc<str>>;

/// Reads the texts of a policy's adapters. Of each that cannot be read people are told: requests that need it skip its target.
#[must_use]
pub fn read(policy: &Policy, folder: &Path) -> (Texts, Vec<Event>) {
    let (mut texts, mut alerts) = (Texts::new(), Vec::new());
    for target in policy.live_targets().filter(|t| t.replaces_schema()) {
        match text(target, folder) {
            Ok(text) => drop(texts.insert(target.id, text)),
            Err(why) => alerts.push(Event::Alert {
                target: Some(target.name.clone()),
                client: None,
                route: None,
                reason: "adapter_unreadable".to_owned(),
                text: format!("the text of its adapter cannot be read: {why}; requests with a strict schema skip it"),
            }),
        }
    }
    (texts, alerts)
}

fn text(target: &Target, folder: &Path) -> Result<Arc<str>, String> {
    let said = target.adapter.as_ref().and_then(|a| a.system_suffix.as_deref()).unwrap_or_default();
    let path = find(folder, said.strip_prefix("file:").unwrap_or(said));
    let text = crate::files::text(Path::new(&path), TEXT_BYTES_MAX)
        .map_err(|why| format!("{}: {}", printable(&path, 120), printable(&why, 120)))?;
    if text.trim().is_empty() { Err(format!("{}: it is empty", printable(&path, 120))) } else { Ok(text.into()) }
}

/// Schemas whose compiled form is remembered. A service has a handful; one more than that costs what it cost without.
const SCHEMAS_MAX: usize = 64;

/// The texts that hold now, and the schemas that were asked for last.
#[derive(Debug, Default)]
pub struct Adapters {
    now: Held<Texts>,
    /// By the SHA-256 of their text; the one that was used last stands last.
    schemas: Mutex<VecDeque<(String, Option<Arc<Kept>>)>>,
}

impl Adapters {
    /// With these texts.
    #[must_use]
    pub fn new(texts: Texts) -> Adapters {
        Adapters { now: Held::new(texts), schemas: Mutex::default() }
    }

    /// The texts that hold now. A request keeps them to its end, as it keeps its policy.
    #[must_use]
    pub fn now(&self) -> Arc<Texts> {
        self.now.now()
    }

    /// Others hold from now on. Those of the policy before stay until the next one: a request that arrives in this moment may
    /// still be judged by that policy. A target whose text is another under the same version is told of: what was evaluated is
    /// not what is sent.
    pub fn hold(&self, policy: &Policy, before: &Policy, texts: Texts) -> Vec<Event> {
        let mut all = Texts::clone(&self.now.now());
        all.retain(|id, _| before.live_targets().any(|t| t.id == *id));
        let same_version = |id: TargetId| {
            let was = before.targets.iter().find(|t| t.id == id);
            was.is_some_and(|was| was.adapter == policy.target(id).adapter)
        };
        let changed =
            |(id, text): &(&TargetId, &Arc<str>)| all.get(id).is_some_and(|was| was != *text) && same_version(**id);
        let told = texts.iter().filter(changed).map(|(id, _)| Event::Alert {
            target: Some(policy.target(*id).name.clone()),
            client: None,
            route: None,
            reason: "adapter_changed".to_owned(),
            text: "the text of its adapter is another, and its version is the same: it was not evaluated".to_owned(),
        });
        let told = told.collect();
        all.extend(texts);
        self.now.hold(all);
        told
    }

    /// What an adapted answer to this request must keep, compiled once for all requests that ask for the same. `None`: it has
    /// no schema, or none that can be checked within bounds; then only a target that enforces it itself will do.
    pub fn kept(&self, request: &ChatRequest) -> Option<Arc<Kept>> {
        let schema = request.schema()?;
        let key = crate::policy::sha256_hex(schema.to_string().as_bytes());
        let known = |all: &VecDeque<(String, _)>| all.iter().position(|(of, _)| *of == key);
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((key, kept)) = known(&schemas).and_then(|at| schemas.remove(at)) {
            schemas.push_back((key, kept.clone()));
            return kept;
        }
        // Others go on while this one is compiled.
        drop(schemas);
        let kept = Kept::of(&schema).map(Arc::new);
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        if known(&schemas).is_none() {
            schemas.push_back((key, kept.clone()));
        }
        if schemas.len() > SCHEMAS_MAX {
            schemas.pop_front();
        }
        kept
    }
}

/// The text that asks this target for the schema of this request, if a text must.
#[must_use]
pub fn text_for(texts: &Texts, target: &Target, request: &ChatRequest) -> Option<Arc<str>> {
    let needed = request.strict_schema && target.replaces_schema();
    needed.then(|| texts.get(&target.id).cloned()).flatten()
}

/// An adapter may stand in for a schema on this route.
#[must_use]
pub fn stand_in(policy: &Policy, route: &Route) -> bool {
    route.tiers.iter().flat_map(|tier| &tier.targets).any(|id| policy.target(*id).replaces_schema())
}

/// What the core is told.
#[must_use]
pub fn input(texts: &Texts) -> Input {
    Input::Adapters { targets: texts.keys().copied().collect() }
}

/// Largest schema that is checked here, in values. Those in use have some dozens.
const SCHEMA_VALUES_MAX: usize = 5_000;
/// Most work that one check may be: values of the schema times values of the answer, which is milliseconds.
const WORK_MAX: usize = 2_000_000;
/// Under these a small schema can stand for any amount of work.
const UNBOUNDED: [&str; 4] = ["$id", "$dynamicRef", "$recursiveRef", "uniqueItems"];
/// Patterns in a schema, and their characters: to compile one may cost a thousand times its length.
const PATTERNS_MAX: usize = 32;
const PATTERN_CHARS_MAX: usize = 200;
/// References that lead to references, so deep. What is generated from nested types has a few.
const REFERENCES_DEEP: usize = 32;

/// What an adapted answer must keep.
#[derive(Debug)]
pub struct Kept {
    schema: Schema,
    values: usize,
}

impl Kept {
    /// `None`: it cannot be checked within bounds.
    #[must_use]
    pub fn of(schema: &Value) -> Option<Kept> {
        let values = values(schema, SCHEMA_VALUES_MAX)?;
        Schema::compile_linear(schema).ok().map(|schema| Kept { schema, values })
    }

    /// Judges a text; inconclusive where that would be too much work.
    #[must_use]
    pub fn verdict(&self, text: &str) -> Verdict {
        if self.work(text) > WORK_MAX {
            return Verdict::Inconclusive("it is too large to be checked against its schema".to_owned());
        }
        self.schema.check(text)
    }

    fn work(&self, text: &str) -> usize {
        // Every value but the first follows one of these.
        let of_answer = 1 + text.bytes().filter(|b| matches!(b, b',' | b'[' | b'{' | b':')).count();
        of_answer.saturating_mul(self.values)
    }

    /// Judges an answer that was not streamed.
    ///
    /// # Errors
    /// It does not keep the schema.
    pub fn check(&self, choices: &[AnswerChoice]) -> Result<(), Failure> {
        choices.iter().filter(|choice| must_keep(choice)).try_for_each(|choice| self.check_text(&choice.text))
    }

    fn check_text(&self, text: &str) -> Result<(), Failure> {
        let fails = |why: &str| Err(Failure::Quality(format!("an adapted answer: {}", printable(why, 200))));
        if self.work(text) > WORK_MAX {
            return fails("it is too large to be checked against its schema");
        }
        match self.schema.check(text) {
            Verdict::Fail(why) => fails(&why),
            _ => Ok(()),
        }
    }

    /// Judges a stream by what the client would get of it.
    ///
    /// # Errors
    /// It does not keep the schema.
    pub fn check_stream(&self, out: &[Bytes]) -> Result<(), Failure> {
        let mut heard = Overheard::new(super::relay::attempt::ANSWER_BYTES_MAX);
        out.iter().cloned().for_each(|bytes| heard.add(bytes));
        self.check(&heard.end().facts().choices)
    }
}

/// What broke off at its length or by a filter says so, and would be no whole document under the parameter either; calls and a
/// refusal come in place of a document.
fn must_keep(choice: &AnswerChoice) -> bool {
    let broke_off = matches!(choice.finish_reason.as_deref(), Some("length" | "content_filter"));
    let instead = choice.text.trim().is_empty() && (!choice.tool_calls.is_empty() || !choice.refusal.trim().is_empty());
    !broke_off && !instead
}

/// How many values a schema has, each reference counted as what it leads to. `None`: more than that, or something under which
/// their number says nothing.
fn values(schema: &Value, most: usize) -> Option<usize> {
    let mut count = Count { root: schema, left: most, patterns_left: PATTERNS_MAX };
    count.value(schema, REFERENCES_DEEP)?;
    Some(most - count.left)
}

struct Count<'a> {
    root: &'a Value,
    left: usize,
    patterns_left: usize,
}

impl Count<'_> {
    fn value(&mut self, value: &Value, references: usize) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        match value {
            Value::Array(list) => list.iter().try_for_each(|value| self.value(value, references)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| self.member(key, value, references)),
            _ => Some(()),
        }
    }

    fn member(&mut self, key: &str, value: &Value, references: usize) -> Option<()> {
        match (key, value) {
            (key, _) if UNBOUNDED.contains(&key) => return None,
            ("$ref", Value::String(to)) => {
                // One that leads back to itself comes to an end here.
                let there = self.root.pointer(to.strip_prefix('#')?)?;
                return self.value(there, references.checked_sub(1)?);
            }
            ("pattern", Value::String(pattern)) => self.pattern(pattern)?,
            ("patternProperties", Value::Object(map)) => map.keys().try_for_each(|pattern| self.pattern(pattern))?,
            _ => {}
        }
        self.value(value, references)
    }

    fn pattern(&mut self, pattern: &str) -> Option<()> {
        self.patterns_left = self.patterns_left.checked_sub(1)?;
        (pattern.len() <= PATTERN_CHARS_MAX).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_that_may_stand_for_any_amount_of_work_is_not_checked_here() {
        assert_eq!(values(&json!({ "type": "object", "required": ["a", "b"] }), 100), Some(5));
        assert_eq!(values(&json!([1, [2, 3], {}]), 6), Some(6));
        assert_eq!(values(&json!([1, [2, 3], {}]), 5), None);
        assert_eq!(
            values(&json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }] } } }), 100),
            None
        );
        assert_eq!(values(&json!({ "items": { "uniqueItems": true } }), 100), None);
        let patterns = |n: usize| json!({ "allOf": vec![json!({ "pattern": "^a" }); n] });
        assert!(
            values(&patterns(PATTERNS_MAX), 1_000).is_some() && values(&patterns(PATTERNS_MAX + 1), 1_000).is_none()
        );
        assert_eq!(values(&json!({ "patternProperties": { "a".repeat(201): {} } }), 100), None);
        // A long chain would be walked by a deep recursion.
        let chain: serde_json::Map<String, Value> =
            (0..4_000).map(|n| (format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", n + 1) }))).collect();
        assert_eq!(values(&json!({ "$ref": "#/$defs/d0", "$defs": chain }), SCHEMA_VALUES_MAX), None);
    }

    #[test]
    fn only_what_says_that_it_is_no_document_need_not_be_one() {
        let choice = |text: &str, finish: Option<&str>| AnswerChoice {
            text: text.into(),
            finish_reason: finish.map(str::to_owned),
            ..AnswerChoice::default()
        };
        for finish in [Some("stop"), Some("tool_calls"), None] {
            assert!(must_keep(&choice("x", finish)), "{finish:?}");
        }
        assert!(!must_keep(&choice("{", Some("length"))) && !must_keep(&choice("", Some("content_filter"))));
        assert!(must_keep(&AnswerChoice { refusal: " ".into(), ..choice("x", Some("stop")) }));
        assert!(must_keep(&AnswerChoice { refusal: "no".into(), ..choice("x", Some("stop")) }));
        assert!(!must_keep(&AnswerChoice { refusal: "no".into(), ..choice(" ", Some("stop")) }));
        let calls = vec![crate::wire::ToolCall::default()];
        assert!(!must_keep(&AnswerChoice { tool_calls: calls, ..choice("", Some("tool_calls")) }));
    }

    fn request(schema: &Value) -> ChatRequest {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }],
            "response_format": { "type": "json_schema", "json_schema": { "strict": true, "schema": schema } } });
        ChatRequest::parse(Bytes::from(body.to_string())).unwrap()
    }

    #[test]
    fn an_answer_that_would_take_long_to_check_is_none() {
        let adapters = Adapters::default();
        let of = |schema: Value| adapters.kept(&request(&schema));
        let kept = of(json!({ "items": { "enum": (0..1000).collect::<Vec<_>>() } })).unwrap();
        let list = |n: usize| format!("[{}]", vec!["1"; n].join(","));
        assert!(kept.check_text(&list(100)).is_ok());
        assert!(matches!(kept.check_text(&list(3000)), Err(Failure::Quality(why)) if why.contains("too large")));
        assert!(of(json!({ "$ref": "#/$defs/a", "$defs": { "a": {} } })).is_some());
        assert!(of(json!({ "$ref": "#" })).is_none());
        // A pattern that needs backtracking is not matched in linear time.
        assert!(of(json!({ "pattern": "(?=a)b" })).is_none());
        assert!(of(json!({ "pattern": "^(a+)+$" })).is_some());
    }

    #[test]
    fn the_text_of_a_target_that_is_gone_stays_for_one_more_policy_and_not_for_ever() {
        let policy = |targets: &[&str]| {
            let rows: String = targets
                .iter()
                .map(|t| format!("  {t}: {{ base_url: \"https://{t}.example/v1\", model: m, residency: [eu], credentials: env:K }}\n"))
                .collect();
            let text = format!(
                "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n{rows}pools:\n  p: {{ targets: [{}] }}\n\
                 routes:\n  - {{ route: r, data: none, deadline_ms: 8000, attempts: [{{ pool: p, first_token_timeout_ms: 2000 }}] }}\n",
                targets.join(", ")
            );
            crate::policy::load("t.yaml", text.as_bytes()).0.unwrap()
        };
        let texts = |ids: &[u16]| ids.iter().map(|id| (TargetId(*id), Arc::from("text"))).collect::<Texts>();
        let ids = |adapters: &Adapters| adapters.now().keys().map(|id| id.0).collect::<Vec<_>>();
        let first = policy(&["a", "b"]);
        let second = crate::policy::succeed::succeed(&first, policy(&["b"])).unwrap();
        let third = crate::policy::succeed::succeed(&second, policy(&["b", "c"])).unwrap();
        let adapters = Adapters::new(texts(&[0, 1]));
        let of_a_request = adapters.now();
        adapters.hold(&second, &first, texts(&[1]));
        assert_eq!(ids(&adapters), [0, 1], "who arrives now may be judged by the policy before");
        adapters.hold(&third, &second, texts(&[1, 2]));
        assert_eq!(ids(&adapters), [1, 2]);
        assert_eq!(of_a_request.len(), 2, "a request keeps what it came in with");
    }

    #[test]
    fn a_schema_is_compiled_once_for_all_that_ask_for_it_and_only_the_last_ones_are_remembered() {
        let adapters = Adapters::default();
        let of = |n: usize| adapters.kept(&request(&json!({ "const": n }))).unwrap();
        let first = of(0);
        assert!(Arc::ptr_eq(&first, &of(0)));
        for n in 1..SCHEMAS_MAX {
            of(n);
        }
        assert!(Arc::ptr_eq(&first, &of(0)), "the one used last is kept");
        of(SCHEMAS_MAX);
        assert!(Arc::ptr_eq(&first, &of(0)) && adapters.schemas.lock().unwrap().len() == SCHEMAS_MAX);
    }
}
