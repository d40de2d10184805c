//! Family 6 in a policy: what drills need to judge a route.

use crate::diag::{Diagnostic, Example, Rule, Severity};

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 1] = [&NO_OBJECTIVE];

/// No recovery promised.
pub static NO_OBJECTIVE: Rule = Rule {
    code: "LF603",
    name: "no-recovery-objective",
    severity: Severity::Info,
    what: "A route does not say how soon useful answers must be back after a failure (`objectives.recovery_ms`).",
    why: "A drill measures the recovery and has nothing to hold it against, so it cannot say whether it was soon enough.",
    fix: "Write `objectives: { recovery_ms: 8000 }` on the route, with what its customers bear.",
    example: Example::Policy { good: "objectives: { recovery_ms: 8000, useful_text_p95_ms: 1800 }\n    ", bad: "" },
};

/// Findings about every route.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        let recovery = route.objectives.as_ref().and_then(|o| o.recovery_ms);
        let objectives = format!("{at}/objectives");
        // A figure that stands there and cannot be read has its finding.
        let broken = match &route.objectives {
            Some(_) => view.doc.get(&format!("{objectives}/recovery_ms")).is_some(),
            None => view.doc.get(&objectives).is_some(),
        };
        if recovery.is_some() || broken || view.doc.get(&format!("{at}/route")).is_none() {
            continue;
        }
        let message =
            format!("{who} does not say how soon useful answers must be back; drills cannot judge its recovery");
        let d = if route.objectives.is_some() {
            view.doc.at_key(&NO_OBJECTIVE, &objectives, message).label("no `recovery_ms` in it")
        } else {
            view.doc.at_key(&NO_OBJECTIVE, &format!("{at}/route"), message).label("no `objectives` beside it")
        };
        found.push(d.help("write `objectives: { recovery_ms: 8000 }`, with what its customers bear"));
    }
}
