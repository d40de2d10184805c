//! The answer to a case against what the case demands.

use std::collections::BTreeMap;

use super::{Golden, Invariant};
use crate::check::{Handoff, Verdict, context, finish, handoff};
use crate::spec::golden::{Case, ExpectHandoff, ExpectTools};
use crate::spec::text::Names;
use crate::units::printable;
use crate::wire::{AnswerChoice, AnswerFacts, ToolCall};

/// Violations named in one verdict.
const SHOWN: usize = 3;

impl Golden {
    /// Judges an answer that is complete. What does not apply to the case is left out.
    #[must_use]
    pub fn judge(&self, n: usize, answer: &AnswerFacts) -> Vec<(Invariant, Verdict)> {
        let Some(case) = self.case(n) else { return Vec::new() };
        let nothing = AnswerChoice::default();
        let choice = answer.first().unwrap_or(&nothing);
        let mut all = vec![(Invariant::Finish, self.finish(case, choice))];
        if let Some(schema) = case.expect.schema.as_ref().and_then(|name| self.schemas.get(name.as_str())) {
            all.push((Invariant::Schema, schema.check(&choice.text)));
        }
        all.push((Invariant::Tools, self.tools(case, &choice.tool_calls)));
        all.push((Invariant::Consent, self.consent(case, &choice.tool_calls)));
        let due = match case.expect.handoff {
            Some(ExpectHandoff::Required) => Handoff::Due,
            Some(ExpectHandoff::Forbidden) => Handoff::NotDue,
            None => Handoff::Unknown,
        };
        let by: Vec<&str> = self.file.handoff.iter().map(|h| h.tool.as_str()).collect();
        let handed = handoff(due, choice.tool_calls.iter().map(|c| c.name.as_str()), &by);
        all.push((Invariant::HandoffMissed, handed.missed));
        all.push((Invariant::HandoffNeedless, handed.needless));
        let contains = case.expect.contains.as_deref().unwrap_or_default();
        all.push((Invariant::Context, context(&choice.text, contains)));
        all.retain(|(_, verdict)| *verdict != Verdict::Skipped);
        all
    }

    fn finish(&self, case: &Case, choice: &AnswerChoice) -> Verdict {
        let Some(right) = &case.expect.finish else {
            return finish(choice.finish_reason.as_deref(), &choice.tool_calls);
        };
        // No reason at all, in an answer that is complete otherwise, is let pass (case B012).
        match choice.finish_reason.as_deref() {
            Some(reason) if !right.iter().any(|f| f.name() == reason) => {
                Verdict::Fail(format!("ended with finish reason `{}`", printable(reason, 40)))
            }
            _ => Verdict::Pass,
        }
    }

    fn tools(&self, case: &Case, calls: &[ToolCall]) -> Verdict {
        let nothing = ExpectTools::default();
        let expected = case.expect.tools.as_ref().unwrap_or(&nothing);
        let offered = |name: &str| self.file.tools.iter().flatten().any(|t| t.function.name.as_str() == name);
        let mut wrong = Vec::new();
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        for call in calls {
            *times.entry(&call.name).or_default() += 1;
        }
        for must in names(&expected.must).filter(|must| !times.contains_key(must)) {
            wrong.push(format!("`{must}` was not called"));
        }
        for (name, times) in &times {
            let shown = printable(name, 64);
            let rule = self.file.tool_rules.as_ref().and_then(|rules| rules.get(name));
            let may = expected.may.as_ref().is_none_or(|may| {
                may.iter().any(|m| m == *name)
                    || names(&expected.must).any(|m| m == *name)
                    || rule.is_some_and(|r| r.always_allowed == Some(true))
            });
            if !offered(name) {
                wrong.push(format!("`{shown}` was called and is not offered"));
            } else if names(&expected.must_not).any(|m| m == *name) || !may {
                wrong.push(format!("`{shown}` was called"));
            }
            if let Some(most) = rule.and_then(|r| r.max_calls).filter(|most| times > most) {
                wrong.push(format!("`{shown}` was called {times} times, at most {most} are right"));
            }
        }
        for call in calls {
            wrong.extend(arguments(expected, call));
        }
        let says_something = expected != &nothing || !calls.is_empty();
        match wrong.len() {
            0 if says_something => Verdict::Pass,
            0 => Verdict::Skipped,
            n => {
                let more = if n > SHOWN { format!("; and {} more", n - SHOWN) } else { String::new() };
                wrong.truncate(SHOWN);
                Verdict::Fail(wrong.join("; ") + &more)
            }
        }
    }

    /// Facts are labels of the case, so this is always decided.
    fn consent(&self, case: &Case, calls: &[ToolCall]) -> Verdict {
        let mut conditions = false;
        for (tool, rule) in self.file.tool_rules.iter().flat_map(|r| r.iter()) {
            let Some(requires) = &rule.requires else { continue };
            conditions = true;
            if !calls.iter().any(|call| call.name == tool) {
                continue;
            }
            let stated = |fact: &str| case.facts.iter().flat_map(Names::iter).any(|f| f == fact);
            if let Some(fact) = requires.iter().find(|fact| !stated(fact)) {
                return Verdict::Fail(format!("`{tool}` was called without `{fact}`"));
            }
        }
        if conditions { Verdict::Pass } else { Verdict::Skipped }
    }
}

fn names(names: &Option<Names>) -> impl Iterator<Item = &str> {
    names.iter().flat_map(Names::iter)
}

/// Arguments are compared as JSON values: a number is no text.
fn arguments(expected: &ExpectTools, call: &ToolCall) -> Option<String> {
    let wanted = expected.args.as_ref()?.get(&call.name)?;
    let given: serde_json::Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let wrong = wanted.iter().find(|(key, value)| given.get(*key) != Some(*value));
    wrong.map(|(key, _)| format!("`{}` was called with another `{}`", printable(&call.name, 64), printable(key, 64)))
}
