//! Family 7: golden sets.

use crate::diag::{Diagnostic, Example, Rule, Severity};
use crate::spec::SpannedDoc;
use crate::spec::golden::{GoldenFile, contradictions};

/// All of them.
pub static ALL: [&Rule; 3] = [&NO_CHECK, &CONTRADICTORY_SET, &NO_SCHEMA];

/// A case that nothing can fail.
pub static NO_CHECK: Rule = Rule {
    code: "LF701",
    name: "case-without-check",
    severity: Severity::Error,
    what: "A case demands nothing of its answer.",
    why: "Every answer would pass it: a green light that was never connected, for a model that nobody has tested.",
    fix: "Say under `expect` what the answer must be: `schema`, `tools`, `handoff`, `contains` or `finish`.",
    example: Example::Words("`expect: {}`; with `expect: { handoff: required }` it demands something."),
};

/// Parts that do not fit each other.
pub static CONTRADICTORY_SET: Rule = Rule {
    code: "LF702",
    name: "contradictory-golden-set",
    severity: Severity::Error,
    what: "Parts of a golden set exclude each other, or name a tool or schema that it does not have.",
    why: "No answer could pass the case, or none could fail it: targets would be kept out, or let in, for nothing.",
    fix: "Change the parts as the message says.",
    example: Example::Words("`tools: { must_not: [issue_refnd] }` in a set whose tool is `issue_refund`."),
};

/// A schema that is none.
pub static NO_SCHEMA: Rule = Rule {
    code: "LF703",
    name: "schema-that-is-none",
    severity: Severity::Error,
    what: "What stands under `schemas` is no JSON Schema that can be used.",
    why: "Answers could not be judged by it.",
    fix: "Correct it as the message says; references may lead only into the schema itself.",
    example: Example::Words("`schemas: { decision: { type: objekt } }`"),
};

/// Findings about a golden set that could be read. `schemas`: those that could not be compiled, with the reason.
#[must_use]
pub fn check(file: &GoldenFile, doc: &SpannedDoc, schemas: &[(String, String)]) -> Vec<Diagnostic> {
    let told = contradictions(file).into_iter().map(|c| {
        if c.no_check {
            return doc
                .at(&NO_CHECK, &c.pointer, c.text)
                .label("nothing is demanded")
                .help("write at least one of `schema`, `tools`, `handoff`, `contains`, `finish`");
        }
        let d = doc.at(&CONTRADICTORY_SET, &c.pointer, c.text);
        match c.near {
            Some(near) => {
                d.label(format!("did you mean `{near}`?")).nearest(near.clone()).help(format!("write `{near}`"))
            }
            None => d.label("does not fit the rest").help("change it, or the parts it names"),
        }
    });
    let schemas = schemas.iter().map(|(pointer, why)| {
        doc.at(&NO_SCHEMA, pointer, format!("this is no JSON Schema that can be used: {why}"))
            .label("not a schema")
            .help("correct it; references may lead only into the schema itself")
    });
    told.chain(schemas).collect()
}
