//! What is wrong with the parts of a golden set taken together, which a schema cannot say.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, ExpectHandoff, GoldenFile, Message, Role};
use crate::spec::document::escape;
use crate::spec::names::nearest;
use crate::spec::text::Names;
use crate::units::printable;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// JSON pointer.
    pub pointer: String,
    /// A sentence.
    pub text: String,
    /// What may be meant instead.
    pub near: Option<String>,
    /// The case has no check that can fail.
    pub no_check: bool,
}

struct Search<'a> {
    file: &'a GoldenFile,
    tools: BTreeSet<&'a str>,
    schemas: BTreeSet<&'a str>,
    found: Vec<Contradiction>,
}

/// All of them, in the order of the file.
#[must_use]
pub fn contradictions(file: &GoldenFile) -> Vec<Contradiction> {
    let tools = file.tools.iter().flatten().map(|t| t.function.name.as_str()).collect();
    let schemas = file.schemas.iter().flat_map(|s| s.names()).collect();
    let mut search = Search { file, tools, schemas, found: Vec::new() };
    search.top();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, case) in file.cases.iter().enumerate() {
        if let Some(first) = seen.insert(case.id.as_str(), n) {
            search.say(format!("/cases/{n}/id"), format!("case {} has this id already", first + 1));
        }
        search.case(n, case);
    }
    search.found
}

impl Search<'_> {
    fn say(&mut self, pointer: String, text: impl Into<String>) {
        self.found.push(Contradiction { pointer, text: text.into(), near: None, no_check: false });
    }

    fn tool(&mut self, pointer: String, name: &str) {
        if !self.tools.contains(name) {
            let near = nearest(name, self.tools.iter().copied()).map(str::to_owned);
            let text = format!("`{}` is none of the tools of this set", printable(name, 64));
            self.found.push(Contradiction { pointer, text, near, no_check: false });
        }
    }

    fn top(&mut self) {
        if self.file.system.as_deref().is_some_and(|s| s.starts_with("file:")) {
            // It would be sent as it stands.
            self.say("/system".into(), "the system prompt stands here as text; a path is not followed");
        }
        let mut seen = BTreeSet::new();
        for (n, tool) in self.file.tools.iter().flatten().enumerate() {
            if !seen.insert(tool.function.name.as_str()) {
                self.say(format!("/tools/{n}/function/name"), "a tool of this name is offered already");
            }
        }
        for (name, _) in self.file.tool_rules.iter().flat_map(|r| r.iter()) {
            self.tool(format!("/tool_rules/{}", escape(name)), name);
        }
        if let Some(by) = &self.file.handoff {
            self.tool("/handoff/tool".into(), by.tool.as_str());
        }
    }

    fn case(&mut self, n: usize, case: &Case) {
        let at = |key: &str| format!("/cases/{n}/{key}");
        if !case.expect.is_effective() {
            self.found.push(Contradiction {
                pointer: at("expect"),
                text: format!("case `{}` demands nothing of its answer", printable(case.id.as_str(), 64)),
                near: None,
                no_check: true,
            });
        }
        self.messages(n, &case.messages);
        if let Some(name) = case.expect.schema.as_ref().filter(|name| !self.schemas.contains(name.as_str())) {
            let near = nearest(name.as_str(), self.schemas.iter().copied()).map(str::to_owned);
            let text = format!("`{}` is none of the schemas of this set", printable(name.as_str(), 64));
            self.found.push(Contradiction { pointer: at("expect/schema"), text, near, no_check: false });
        }
        if case.expect.handoff.is_some() && self.file.handoff.is_none() {
            self.say(at("expect/handoff"), "the set does not say how a customer is handed over: write `handoff.tool`");
        }
        self.tools(n, case);
    }

    fn messages(&mut self, n: usize, messages: &[Message]) {
        for (m, message) in messages.iter().enumerate() {
            let at = format!("/cases/{n}/messages/{m}");
            let empty = message.content.as_deref().is_none_or(|c| c.trim().is_empty());
            if empty && message.tool_calls.is_none() {
                self.say(at.clone(), "this message says nothing");
            }
            if (message.role == Role::Tool) != message.tool_call_id.is_some() {
                self.say(at.clone(), "`tool_call_id` belongs to messages of the role `tool`, and to all of them");
            }
            if message.tool_calls.is_some() && message.role != Role::Assistant {
                self.say(at, "only the assistant calls tools");
            }
        }
        if let Some(last) = messages.last().filter(|m| !matches!(m.role, Role::User | Role::Tool)) {
            let at = format!("/cases/{n}/messages/{}", messages.len() - 1);
            self.say(at, format!("the last message is of the role `{}`: nothing is asked", role(last.role)));
        }
    }

    fn tools(&mut self, n: usize, case: &Case) {
        let at = |key: &str| format!("/cases/{n}/expect/tools/{key}");
        let Some(tools) = &case.expect.tools else { return };
        let list = |names: &Option<Names>| names.as_ref().map(Names::to_vec).unwrap_or_default();
        let (must, must_not) = (list(&tools.must), list(&tools.must_not));
        for (i, name) in must.iter().enumerate() {
            let place = at(&format!("must/{i}"));
            self.tool(place.clone(), name);
            if must_not.contains(name) {
                self.say(place.clone(), "it must and must not be called");
            }
            let rule = self.file.tool_rules.as_ref().and_then(|rules| rules.get(name));
            let facts: Vec<&str> = case.facts.iter().flat_map(Names::iter).collect();
            let lacking = rule.and_then(|r| r.requires.as_ref()).and_then(|r| r.iter().find(|f| !facts.contains(f)));
            if let Some(fact) = lacking {
                let text = format!("it must be called, and its rule forbids that: `{fact}` is no fact of this case");
                self.say(place.clone(), text);
            }
            let hands_over = self.file.handoff.as_ref().is_some_and(|h| h.tool.as_str() == name);
            if hands_over && case.expect.handoff == Some(ExpectHandoff::Forbidden) {
                self.say(place, "it hands the customer over, and `handoff` is forbidden");
            }
        }
        for (i, name) in must_not.iter().enumerate() {
            self.tool(at(&format!("must_not/{i}")), name);
        }
        for (i, name) in tools.may.iter().flat_map(|m| m.iter()).enumerate() {
            self.tool(at(&format!("may/{i}")), name);
        }
        for (name, _) in tools.args.iter().flat_map(|a| a.iter()) {
            self.tool(at(&format!("args/{}", escape(name))), name);
        }
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}
