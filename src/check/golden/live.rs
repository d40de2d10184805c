//! An answer to a customer against what can be known of it without labels: what the request itself demanded, and the rules of
//! the group that need no facts.

use super::{Golden, Invariant};
use crate::check::{Verdict, finish, json};
use crate::wire::{AnswerChoice, AnswerFacts};

/// What the request demanded.
pub struct Asked<'a> {
    /// Names of the tools it offered.
    pub tools: &'a [String],
    /// Its text must be JSON.
    pub json: bool,
    /// Judges a text by the request's schema.
    pub schema: Option<&'a dyn Fn(&str) -> Verdict>,
    /// What was judged is masked: values are others than those that the customer got, so that only its form can be judged.
    pub masked: bool,
}

impl std::fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("json", &self.json).field("masked", &self.masked).finish_non_exhaustive()
    }
}

/// Judges an answer that is complete, every choice of it. No reason holds a word of the answer: it is about a customer.
/// Consent and handoff need facts that nobody has labelled here; they are left out, never passed.
#[must_use]
pub fn live(asked: &Asked<'_>, rules: Option<&Golden>, answer: &AnswerFacts) -> Vec<(Invariant, Verdict)> {
    let mut all: Vec<(Invariant, Verdict)> = Vec::new();
    for choice in &answer.choices {
        for (invariant, verdict) in of_choice(asked, rules, choice) {
            match all.iter_mut().find(|(i, _)| *i == invariant) {
                // What is broken in one choice is broken.
                Some((_, worst)) if !worst.failed() && verdict.failed() => *worst = verdict,
                Some(_) => {}
                None => all.push((invariant, verdict)),
            }
        }
    }
    all.retain(|(_, verdict)| *verdict != Verdict::Skipped);
    all
}

fn of_choice(asked: &Asked<'_>, rules: Option<&Golden>, choice: &AnswerChoice) -> [(Invariant, Verdict); 3] {
    let tools = tools(asked, rules, choice);
    let ended = match finish(choice.finish_reason.as_deref(), &choice.tool_calls) {
        Verdict::Fail(_) => Verdict::Fail(
            match choice.finish_reason.as_deref() {
                Some("length") => "cut at the token limit",
                Some("content_filter") => "blocked by a content filter",
                _ => "a tool call without a name, or whose arguments are no JSON object",
            }
            .to_owned(),
        ),
        verdict => verdict,
    };
    [(Invariant::Finish, ended), (Invariant::Schema, schema(asked, choice)), (Invariant::Tools, tools)]
}

fn schema(asked: &Asked<'_>, choice: &AnswerChoice) -> Verdict {
    let broke_off = matches!(choice.finish_reason.as_deref(), Some("length" | "content_filter"));
    let instead = choice.text.trim().is_empty() && (!choice.tool_calls.is_empty() || !choice.refusal.trim().is_empty());
    if broke_off || instead || !(asked.json || asked.schema.is_some()) {
        return Verdict::Skipped;
    }
    if let Err(why) = json(&choice.text) {
        return Verdict::Fail(why);
    }
    match asked.schema.map(|check| check(&choice.text)) {
        None => Verdict::Pass,
        Some(verdict) if asked.masked && verdict.failed() => {
            Verdict::Inconclusive("masked values do not fit the schema; those under them may".to_owned())
        }
        Some(Verdict::Fail(_)) => Verdict::Fail("it does not fit the schema".to_owned()),
        Some(verdict) => verdict,
    }
}

fn tools(asked: &Asked<'_>, rules: Option<&Golden>, choice: &AnswerChoice) -> Verdict {
    let calls = &choice.tool_calls;
    if calls.is_empty() {
        return Verdict::Skipped;
    }
    if calls.iter().any(|call| !asked.tools.contains(&call.name)) {
        return Verdict::Fail("a tool was called that was not offered".to_owned());
    }
    let rules = rules.and_then(|golden| golden.file.tool_rules.as_ref());
    for (tool, rule) in rules.iter().flat_map(|r| r.iter()) {
        let times = calls.iter().filter(|call| call.name == tool).count();
        if rule.max_calls.is_some_and(|most| times > most as usize) {
            return Verdict::Fail(format!("`{tool}` was called more often than its rule allows"));
        }
    }
    Verdict::Pass
}
