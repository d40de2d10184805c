//! Family 6: drill files.

use crate::diag::{Diagnostic, Example, Rule, Severity};
use crate::spec::SpannedDoc;
use crate::spec::drill::{DrillFile, contradictions};

/// All of them.
pub static ALL: [&Rule; 1] = [&CONTRADICTORY_FAULT];

/// Parts of a fault that exclude each other.
pub static CONTRADICTORY_FAULT: Rule = Rule {
    code: "LF601",
    name: "contradictory-drill",
    severity: Severity::Error,
    what: "Parts of a drill exclude each other: a cut without a place to cut, two rounds of one name.",
    why: "The drill would break something else than it says, or nothing, and its verdict would be about that.",
    fix: "Change the parts as the message says.",
    example: Example::Drill { good: "see: connect_timeout", bad: "see: cut_after" },
};

/// Findings about a drill that could be read.
#[must_use]
pub fn check(file: &DrillFile, doc: &SpannedDoc) -> Vec<Diagnostic> {
    let at = |(pointer, text): (String, String)| {
        doc.at(&CONTRADICTORY_FAULT, &pointer, text)
            .label("does not fit the rest")
            .help("change it, or the parts it names")
    };
    contradictions(file).into_iter().map(at).collect()
}
