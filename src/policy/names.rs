//! Looks every name up. Declared names are taken from the document, not from what could be loaded: a target whose own
//! entry is broken is still declared, and one mistake stays one finding.

use std::collections::BTreeMap;

use crate::diag::{Diagnostic, Rule, list, quoted};
use crate::spec::document::{SpannedDoc, escape};
use crate::spec::names::nearest;
use crate::spec::policy::PolicyFile;

use super::rules;

/// Names listed in "expected".
const LISTED: usize = 12;

/// Findings about names that lead nowhere; `known` are the findings about the shape of the file.
pub fn check(raw: &PolicyFile, doc: &SpannedDoc, known: &[Diagnostic]) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut look = |rule, pointer: String, who: String, kind, section: &str, name: &str| {
        // What follows from another finding is none of its own: the section is missing or misspelt, or the entry stands at
        // the wrong level.
        let missing = doc.get(&format!("/{section}")).is_none();
        let required = matches!(section, "targets" | "pools");
        let misspelt =
            known.iter().any(|d| d.place.pointer.rfind('/') == Some(0) && d.nearest.as_deref() == Some(section));
        let misplaced = doc.keys("").any(|k| k == name);
        if !(missing && (required || misspelt) || misplaced) {
            found.extend(lookup(doc, rule, &pointer, &who, kind, section, name));
        }
    };
    for (name, target) in raw.targets.iter().flat_map(|t| t.iter()) {
        if let Some(adapter) = &target.adapter {
            let pointer = format!("/targets/{}/adapter", escape(name));
            let who = format!("the target {}", quoted(name));
            look(&rules::UNKNOWN_ADAPTER, pointer, who, "adapter", "adapters", adapter.as_str());
        }
    }
    for (name, pool) in raw.pools.iter().flat_map(|p| p.iter()) {
        for (n, target) in pool.targets.iter().flat_map(|t| t.iter()).enumerate() {
            let pointer = format!("/pools/{}/targets/{n}", escape(name));
            let who = format!("the pool {}", quoted(name));
            look(&rules::UNKNOWN_TARGET, pointer, who, "target", "targets", target);
        }
    }
    for (name, group) in raw.compatibility_groups.iter().flat_map(|g| g.iter()) {
        let who = || format!("the group {}", quoted(name));
        for (n, target) in group.members.iter().flat_map(|t| t.iter()).enumerate() {
            let pointer = format!("/compatibility_groups/{}/members/{n}", escape(name));
            look(&rules::UNKNOWN_TARGET, pointer, who(), "target", "targets", target);
        }
        for (n, target) in group.candidates.iter().flat_map(|t| t.iter()).enumerate() {
            let pointer = format!("/compatibility_groups/{}/candidates/{n}", escape(name));
            look(&rules::UNKNOWN_TARGET, pointer, who(), "target", "targets", target);
        }
    }
    for (r, route) in raw.routes.iter().flatten().enumerate() {
        let who =
            || route.route.as_ref().map_or_else(|| format!("route {r}"), |n| format!("the route {}", quoted(&n.0)));
        for (a, attempt) in route.attempts.iter().flatten().enumerate() {
            let at = format!("/routes/{r}/attempts/{a}");
            if let Some(pool) = &attempt.pool {
                look(&rules::UNKNOWN_POOL, format!("{at}/pool"), who(), "pool", "pools", pool.as_str());
            }
            if let Some(group) = &attempt.compatibility_group {
                let pointer = format!("{at}/compatibility_group");
                look(&rules::UNKNOWN_GROUP, pointer, who(), "group", "compatibility_groups", group.as_str());
            }
        }
    }
    found.extend(both_member_and_candidate(raw, doc));
    found.extend(routes_of_one_name(raw, doc));
    found
}

fn lookup(
    doc: &SpannedDoc,
    rule: &'static Rule,
    pointer: &str,
    who: &str,
    kind: &str,
    section: &str,
    name: &str,
) -> Option<Diagnostic> {
    let at = format!("/{section}");
    let declared: Vec<&str> = doc.keys(&at).collect();
    if declared.contains(&name) {
        return None;
    }
    let d = doc.at(rule, pointer, format!("{who} names the {kind} {}, which is not declared", quoted(name)));
    if declared.is_empty() {
        return Some(
            d.label("not declared")
                .expected(format!("a {kind} declared under `{section}`"))
                .help(format!("declare it: `{section}: {{ {name}: ... }}`")),
        );
    }
    let d = d
        .expected(format!("one of {}", list(declared.iter().copied(), LISTED)))
        .and(doc.key_place(&at), format!("{kind}s are declared here"));
    Some(match nearest(name, declared.iter().copied()) {
        Some(near) => {
            d.label(format!("did you mean {}?", quoted(near))).nearest(near).help("correct the name, or declare it")
        }
        None => d.label("not declared").help(format!("correct the name, or declare it under `{section}`")),
    })
}

fn both_member_and_candidate(raw: &PolicyFile, doc: &SpannedDoc) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (name, group) in raw.compatibility_groups.iter().flat_map(|g| g.iter()) {
        let members: Vec<&str> = group.members.iter().flat_map(|t| t.iter()).collect();
        for (n, candidate) in group.candidates.iter().flat_map(|t| t.iter()).enumerate() {
            if let Some(m) = members.iter().position(|m| *m == candidate) {
                let group = format!("/compatibility_groups/{}", escape(name));
                let message = format!("{} is both a member and a candidate of {}", quoted(candidate), quoted(name));
                found.push(
                    doc.at(&rules::AMBIGUOUS_MEMBER, &format!("{group}/candidates/{n}"), message)
                        .label("a candidate is not trusted yet")
                        .and(doc.place(&format!("{group}/members/{m}")), "a member is")
                        .help("keep it in one of the two lists"),
                );
            }
        }
    }
    found
}

fn routes_of_one_name(raw: &PolicyFile, doc: &SpannedDoc) -> Vec<Diagnostic> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut found = Vec::new();
    for (r, route) in raw.routes.iter().flatten().enumerate() {
        let Some(name) = &route.route else { continue };
        let pointer = format!("/routes/{r}/route");
        if let Some(first) = seen.get(&name.0) {
            found.push(
                doc.at(&rules::REPEATED_ROUTE, &pointer, format!("the route {} is declared twice", quoted(&name.0)))
                    .label("again here")
                    .and(doc.place(first), "first here")
                    .help("rename one of them, or merge the two"),
            );
        } else {
            seen.insert(name.0.clone(), pointer);
        }
    }
    found
}
