//! Family 6: drill files.

use crate::diag::{Diagnostic, Example, Rule, Severity, list, quoted};
use crate::spec::SpannedDoc;
use crate::spec::drill::{DrillFile, REGIONS, ROLES, contradictions};
use crate::spec::names::nearest;

/// All of them.
pub static ALL: [&Rule; 2] = [&CONTRADICTORY_FAULT, &UNKNOWN_ROLE];

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

/// A role that no path has.
pub static UNKNOWN_ROLE: Rule = Rule {
    code: "LF602",
    name: "unknown-role",
    severity: Severity::Error,
    what: "A selector names a role that no path has, or a region that is none of the lab's.",
    why: "The drill would stop before it breaks anything, in the maintenance window that was made for it.",
    fix: "Write one of the roles: a provider, an entry, all dependencies, or one dependency by name; and `region-1` or `region-2`.",
    example: Example::Drill { good: "roles: [provider]", bad: "roles: [provder]" },
};

/// Findings about a drill that could be read.
#[must_use]
pub fn check(file: &DrillFile, doc: &SpannedDoc) -> Vec<Diagnostic> {
    let at = |(pointer, text): (String, String)| {
        doc.at(&CONTRADICTORY_FAULT, &pointer, text)
            .label("does not fit the rest")
            .help("change it, or the parts it names")
    };
    let mut found: Vec<Diagnostic> = contradictions(file).into_iter().map(at).collect();
    found.extend(names(doc));
    found
}

/// Names of roles and regions that no path has. Taken from the document itself: also where something else in it keeps the drill from
/// being read, they are told with that.
#[must_use]
pub fn names(doc: &SpannedDoc) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let count = |pointer: &str| doc.get(pointer).and_then(|l| l.as_array()).map_or(0, Vec::len);
    for r in 0..count("/rounds") {
        for f in 0..count(&format!("/rounds/{r}/faults")) {
            let select = format!("/rounds/{r}/faults/{f}/select");
            let region = format!("{select}/region");
            if let Some(name) = doc.get(&region).and_then(|r| r.as_str()).filter(|name| !REGIONS.contains(name)) {
                found.push(unknown(doc, &region, "region", name, &REGIONS));
            }
            let roles: Vec<(usize, &str)> = (0..count(&format!("{select}/roles")))
                .filter_map(|n| Some((n, doc.get(&format!("{select}/roles/{n}"))?.as_str()?)))
                .collect();
            for (n, role) in roles.into_iter().filter(|(_, role)| !ROLES.contains(role)) {
                let pointer = format!("{select}/roles/{n}");
                found.push(unknown(doc, &pointer, "role", role, &ROLES));
            }
        }
    }
    found
}

fn unknown(doc: &SpannedDoc, pointer: &str, what: &str, name: &str, known: &[&str]) -> Diagnostic {
    let d = doc
        .at(&UNKNOWN_ROLE, pointer, format!("{} is no {what}", quoted(name)))
        .expected(format!("one of {}", list(known.iter().copied(), known.len())));
    match nearest(name, known.iter().copied()) {
        Some(near) => d.label(format!("did you mean `{near}`?")).nearest(near).help(format!("write `{near}`")),
        None => d.label(format!("not a known {what}")).help(format!("write one of the {what}s")),
    }
}
