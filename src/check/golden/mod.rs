//! A golden set, ready to be asked and judged by: its schemas compiled, its cases as request bodies, its demands as verdicts.

mod judge;
mod live;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Schema;
use crate::spec::document::escape;
use crate::spec::golden::{Case, DEFAULT_MAX_TOKENS, GoldenFile, PROBES_UNMARKED, Role};

pub use live::{Asked, live};

/// What is held of an answer: a closed list, which names metrics and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// It ended as an answer ends.
    Finish,
    /// It is JSON by the schema.
    Schema,
    /// It calls the right tools, rightly.
    Tools,
    /// No tool is called whose conditions do not hold.
    Consent,
    /// A handoff that was due came.
    HandoffMissed,
    /// No handoff came that was not due.
    HandoffNeedless,
    /// What it must name stands in it.
    Context,
}

impl Invariant {
    /// Its name in metrics, events and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Invariant::Finish => "finish",
            Invariant::Schema => "schema",
            Invariant::Tools => "tools",
            Invariant::Consent => "consent",
            Invariant::HandoffMissed => "handoff_missed",
            Invariant::HandoffNeedless => "handoff_needless",
            Invariant::Context => "context",
        }
    }
}

/// What a target must be able to do to be asked a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It offers tools.
    pub tools: bool,
    /// It demands a JSON schema.
    pub schema: bool,
}

/// A golden set without errors.
#[derive(Debug)]
pub struct Golden {
    file: GoldenFile,
    schemas: BTreeMap<String, Schema>,
    probes: Vec<usize>,
}

impl Golden {
    /// Compiles the schemas of a set that was read without errors.
    ///
    /// # Errors
    /// Those that are no schemas: pointer and reason, safe to print.
    pub fn compile(file: GoldenFile) -> Result<Golden, Vec<(String, String)>> {
        let (mut schemas, mut wrong) = (BTreeMap::new(), Vec::new());
        for (name, schema) in file.schemas.iter().flat_map(|s| s.iter()) {
            match Schema::compile(schema) {
                Ok(schema) => drop(schemas.insert(name.to_owned(), schema)),
                Err(why) => wrong.push((format!("/schemas/{}", escape(name)), why)),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let marked: Vec<usize> = (0..file.cases.len()).filter(|n| file.cases[*n].probe).collect();
        let probes = if marked.is_empty() { (0..file.cases.len().min(PROBES_UNMARKED)).collect() } else { marked };
        Ok(Golden { file, schemas, probes })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.set.as_str()
    }

    /// Places of the cases that probes ask; never empty.
    #[must_use]
    pub fn probes(&self) -> &[usize] {
        &self.probes
    }

    fn case(&self, n: usize) -> Option<&Case> {
        self.file.cases.get(n)
    }

    /// The id of a case.
    #[must_use]
    pub fn id(&self, n: usize) -> &str {
        self.case(n).map_or("", |case| case.id.as_str())
    }

    /// What a case needs.
    #[must_use]
    pub fn needs(&self, n: usize) -> Needs {
        Needs {
            tools: self.file.tools.is_some(),
            schema: self.case(n).is_some_and(|case| case.expect.schema.is_some()),
        }
    }

    /// The request of a case, in OpenAI form and streamed. `limit` is what the target calls the limit of output tokens.
    #[must_use]
    pub fn body(&self, n: usize, model: &str, limit: &str) -> String {
        let mut body = Map::new();
        body.insert("model".into(), model.into());
        body.insert("stream".into(), true.into());
        body.insert("messages".into(), self.case(n).map_or(Value::Null, |case| self.messages(case)));
        if let Some(temperature) = self.file.request.temperature {
            body.insert("temperature".into(), json!(temperature));
        }
        body.insert(limit.to_owned(), self.file.request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).into());
        if let Some(tools) = &self.file.tools {
            body.insert("tools".into(), json!(tools));
        }
        let schema = self.case(n).and_then(|case| case.expect.schema.as_ref());
        if let Some((name, schema)) =
            schema.and_then(|name| Some((name, self.file.schemas.as_ref()?.get(name.as_str())?)))
        {
            body.insert(
                "response_format".into(),
                json!({ "type": "json_schema", "json_schema": { "name": format_name(name.as_str()), "strict": true, "schema": schema } }),
            );
        }
        Value::Object(body).to_string()
    }

    fn messages(&self, case: &Case) -> Value {
        let own = case.messages.iter().any(|m| matches!(m.role, Role::System | Role::Developer));
        let system = self.file.system.as_ref().filter(|_| !own);
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        system.into_iter().chain(case.messages.iter().map(|m| json!(m))).collect()
    }
}

/// The API takes letters, digits, `_` and `-` in the name of a schema.
fn format_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
