//! What could not be read is not judged: a rule is silent where a key that it looks at has a finding of its own. That key
//! mended, the rule speaks again, and then of what was meant.

use crate::diag::Diagnostic;

/// Where a target may be dialled, and which targets there are.
const WHO: [&str; 8] =
    ["routes", "attempts", "pool", "pools", "targets", "residency", "residency_required", "first_token_timeout_ms"];

/// What the arithmetic of the dials looks at beyond [`WHO`].
const TIMES: [&str; 14] = [
    "deadline_ms",
    "reserve_ms",
    "max_attempts",
    "connect_timeout_ms",
    "answer_timeout_ms",
    "same_target_retries",
    "failover",
    "failover_reason",
    "degrade",
    "tier",
    "capacity",
    "p95_service_ms",
    "pii",
    "intents",
];

/// What the arithmetic of a silent stream looks at beyond [`WHO`].
const SILENCE: [&str; 10] = [
    "deadline_ms",
    "reserve_ms",
    "max_attempts",
    "idle_timeout_ms",
    "failover",
    "failover_reason",
    "degrade",
    "tier",
    "pii",
    "intents",
];

/// The keys that a rule looks at, by their names: those of which the absence or a default value would be judged.
fn looked_at(code: &str) -> [&'static [&'static str]; 2] {
    match code {
        "LF109" => [&["tools"], &[]],
        "LF110" => [&WHO, &["compatibility_groups", "compatibility_group", "members", "candidates"]],
        "LF111" => [&WHO, &[]],
        "LF112" => [&WHO, &["tier", "degrade"]],
        "LF113" => [&WHO, &[]],
        "LF115" => [&WHO, &["tools", "capabilities"]],
        "LF116" => [&["routes", "attempts", "pool", "pools"], &[]],
        "LF201" | "LF202" | "LF206" | "LF209" => [&WHO, &TIMES],
        "LF203" | "LF204" => [&["max_attempts"], &[]],
        "LF205" => [&["reserve_ms", "deadline_ms"], &[]],
        "LF210" => [&WHO, &SILENCE],
        "LF208" => [&WHO, &["channel", "objectives", "useful_text_p95_ms", "commit_at"]],
        "LF402" => [&["pools", "targets", "select", "price"], &[]],
        "LF502" | "LF504" => [&WHO, &["data", "pii", "domains", "vendor"]],
        "LF505" => [&["base_url", "credentials", "connect_to"], &[]],
        "LF506" => [&WHO, &["data", "base_url", "domains", "vendor"]],
        "LF603" => [&["objectives", "recovery_ms"], &[]],
        "LF801" | "LF803" => [&["expires"], &[]],
        "LF802" => [&["serial"], &[]],
        _ => [&[], &[]],
    }
}

/// A place that could not be read, and the names of the keys that are missing for it.
struct Broken<'a> {
    pointer: &'a str,
    names: Vec<&'a str>,
}

/// Takes out what was judged by keys that `read` has findings about.
pub fn keep(found: &mut Vec<Diagnostic>, read: &[Diagnostic]) {
    let broken: Vec<Broken<'_>> = read.iter().filter(|d| d.rule.code.starts_with("LF0")).map(of).collect();
    found.retain(|d| {
        let keys = looked_at(d.rule.code);
        !broken.iter().any(|b| {
            !elsewhere(&d.place.pointer, b.pointer) && keys.iter().any(|k| b.names.iter().any(|n| k.contains(n)))
        })
    });
}

fn of(d: &Diagnostic) -> Broken<'_> {
    let pointer = d.place.pointer.as_str();
    let steps: Vec<&str> = pointer.split('/').skip(1).collect();
    let mut names: Vec<&str> = steps.iter().rev().find(|s| s.parse::<usize>().is_err()).copied().into_iter().collect();
    // `/targets/a` is no key called `a`: one of the `targets` is missing.
    if steps.len() <= 2 {
        names.extend(steps.first());
    }
    names.extend(d.nearest.as_deref());
    Broken { pointer, names }
}

/// True if one is in a route and the other in another: they have nothing to do with each other.
fn elsewhere(one: &str, other: &str) -> bool {
    let route = |p: &str| p.strip_prefix("/routes/").and_then(|r| r.split('/').next()?.parse::<usize>().ok());
    matches!((route(one), route(other)), (Some(a), Some(b)) if a != b)
}
