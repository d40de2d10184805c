//! Family 1: who can really answer, as far as names and classes tell.

use crate::diag::{Diagnostic, Example, Rule, Severity, list, quoted};
use crate::spec::document::escape;
use crate::spec::policy::Route;
use crate::spec::text::Names;

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 7] =
    [&UNDECLARED_TOOL, &NOT_A_MEMBER, &NEVER_AGAIN, &OTHER_CLASS, &ILLEGAL_TARGET, &NO_TOOLS, &UNUSED_POOL];

/// A route's tool without a rule.
pub static UNDECLARED_TOOL: Rule = Rule {
    code: "LF109",
    name: "tool-without-rule",
    severity: Severity::Warning,
    what: "A route offers a tool that is not declared under `tools`.",
    why: "It counts as unkeyed, the strictest rule: it is never repeated or hedged, and a retry of its turn goes to a human.",
    fix: "Declare it under `tools` with its side effects: `none`, `idempotent`, `keyed` or `unkeyed`.",
    example: Example::Policy {
        good: "tools: [get_order, create_ticket]",
        bad: "tools: [get_order, create_ticket, issue_refund]",
    },
};

/// A target outside the group of its tier.
pub static NOT_A_MEMBER: Rule = Rule {
    code: "LF110",
    name: "not-a-member",
    severity: Severity::Warning,
    what: "An attempt demands a compatibility group of which one of its targets is no member.",
    why: "A target without the group's evidence may not stand in; once evidence is enforced it is never dialled.",
    fix: "Evaluate it and add it to the group's members, or take it out of the pool.",
    example: Example::Policy { good: "members: [local-a, local-b, vendor-x]", bad: "members: [local-a, local-b]" },
};

/// A target in two tiers.
pub static NEVER_AGAIN: Rule = Rule {
    code: "LF111",
    name: "tried-once-only",
    severity: Severity::Warning,
    what: "A route names the same target in two attempts.",
    why: "A target is tried at most once per request, so the second entry is an attempt that is never made.",
    fix: "Take it out of one of the two pools, or name another pool.",
    example: Example::Policy { good: "{ targets: [vendor-x] }", bad: "{ targets: [vendor-x, local-b] }" },
};

/// A target of another class.
pub static OTHER_CLASS: Rule = Rule {
    code: "LF112",
    name: "other-quality-class",
    severity: Severity::Error,
    what: "A route names a target of another quality class (`tier`) and does not say `degrade: allowed`.",
    why: "Such a target never answers on this route: a stand-in that exists on paper only.",
    fix: "Write `degrade: allowed` (answers are then marked as degraded), or take the target out of the pool.",
    example: Example::Policy { good: "max_attempts: 3\n    degrade: allowed", bad: "max_attempts: 3" },
};

/// A target that a route may not use.
pub static ILLEGAL_TARGET: Rule = Rule {
    code: "LF113",
    name: "outside-residency",
    severity: Severity::Warning,
    what: "A route names a target whose residency does not lie within the route's `residency_required`. An error if no target of the route does.",
    why: "The target is never dialled on this route, whatever fails. A legal filter is never relaxed.",
    fix: "Correct the residency of the target, extend `residency_required`, or take the target out of the pool.",
    example: Example::Policy { good: "residency: [eu]", bad: "residency: [us]" },
};

/// A target that gets no requests with tools.
pub static NO_TOOLS: Rule = Rule {
    code: "LF115",
    name: "target-without-tools",
    severity: Severity::Warning,
    what: "A route has tools, and one of its targets does not declare `capabilities: { tools: true }`.",
    why: "Requests that offer tools skip this target, so it does not stand in for them.",
    fix: "Declare the capability if the target has it, or take the target out of the pool.",
    example: Example::Policy {
        good: "domains: { vendor: x, region: eu-1, egress: kz-2 }\n    capabilities: { tools: true }",
        bad: "domains: { vendor: x, region: eu-1, egress: kz-2 }",
    },
};

/// A pool that no route names.
pub static UNUSED_POOL: Rule = Rule {
    code: "LF116",
    name: "unused-pool",
    severity: Severity::Warning,
    what: "No route names this pool.",
    why: "Its targets look like a fallback and are none.",
    fix: "Name it in an attempt, or remove it.",
    example: Example::Policy {
        good: "far: { targets: [vendor-x] }",
        bad: "far: { targets: [vendor-x] }\n  spare: { targets: [vendor-x] }",
    },
};

/// Findings of this family.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        tools(view, &at, &who, route, found);
        repeated(view, &at, &who, route, found);
        members(view, &at, &who, route, found);
        classes(view, &at, &who, route, found);
        residency(view, &at, &who, route, found);
        without_tools(view, &at, &who, route, found);
    }
    unused(view, found);
}

fn tools(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let declared: Vec<&str> = view.doc.keys("/tools").collect();
    for (n, tool) in route.tools.iter().flat_map(|t| t.iter()).enumerate() {
        if declared.contains(&tool) {
            continue;
        }
        let d = view
            .doc
            .at(
                &UNDECLARED_TOOL,
                &format!("{at}/tools/{n}"),
                format!("{who} offers the tool {}, and no rule says what it does", quoted(tool)),
            )
            .label("counts as unkeyed");
        found.push(match crate::spec::names::nearest(tool, declared.iter().copied()) {
            Some(near) => d.nearest(near).help(format!("did you mean {}? Else declare it under `tools`", quoted(near))),
            None => d.help(format!("declare it: `tools: {{ {tool}: {{ side_effects: ... }} }}`")),
        });
    }
}

fn repeated(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for (a, attempt) in route.attempts.iter().flatten().enumerate() {
        for named in view.targets(attempt) {
            match seen.iter().find(|(name, _)| *name == named.name) {
                Some((_, first)) => {
                    let message = format!("{who} names the target {} again; it is tried once only", quoted(named.name));
                    found.push(
                        view.doc
                            .at(&NEVER_AGAIN, &format!("{at}/attempts/{a}/pool"), message)
                            .label("not tried again here")
                            .and(view.doc.place(&format!("{at}/attempts/{first}/pool")), "tried here")
                            .help("name another pool, or take the target out of one of the two"),
                    );
                }
                None => seen.push((named.name, a)),
            }
        }
    }
}

fn members(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    for (a, attempt) in route.attempts.iter().flatten().enumerate() {
        let Some(name) = attempt.compatibility_group.as_ref() else { continue };
        let Some(group) = view.raw.compatibility_groups.as_ref().and_then(|g| g.get(name.as_str())) else { continue };
        let Some(members) = &group.members else { continue };
        for named in view.targets(attempt) {
            if members.iter().any(|m| m == named.name) {
                continue;
            }
            let candidate = group.candidates.iter().flat_map(|c| c.iter()).any(|c| c == named.name);
            let what = if candidate { "only a candidate" } else { "no member" };
            let message = format!(
                "{who} may dial {}, which is {what} of the group {}",
                quoted(named.name),
                quoted(name.as_str())
            );
            found.push(
                view.doc
                    .at(&NOT_A_MEMBER, &format!("{at}/attempts/{a}/compatibility_group"), message)
                    .label(format!("{} is {what}", quoted(named.name)))
                    .and(
                        view.doc.place(&format!("/compatibility_groups/{}/members", escape(name.as_str()))),
                        "the members of the group",
                    )
                    .help("evaluate it and add it to the members, or take it out of the pool"),
            );
        }
    }
}

fn classes(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    if route.degrade.is_some() || view.doc.get(&format!("{at}/degrade")).is_some() {
        return;
    }
    let mut first: Option<super::view::Named<'_>> = None;
    for (a, attempt) in route.attempts.iter().flatten().enumerate() {
        for named in view.targets(attempt) {
            if !View::legal(route, named.target) {
                continue;
            }
            let first = *first.get_or_insert(named);
            if named.class() == first.class() {
                continue;
            }
            let message = format!(
                "{who} never uses {}: its class is {}, that of the first choice {} is {}",
                quoted(named.name),
                quoted(named.class()),
                quoted(first.name),
                quoted(first.class()),
            );
            found.push(
                view.doc
                    .at(&OTHER_CLASS, &format!("{at}/attempts/{a}/pool"), message)
                    .label("holds a target of another class")
                    .and(view.doc.place(&View::target_at(named.name, "tier")), "its class")
                    .expected("`degrade: allowed` on the route, or targets of one class")
                    .help("write `degrade: allowed` if a lesser answer is better than none here"),
            );
        }
    }
}

fn residency(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let Some(required) = &route.residency_required else { return };
    let all: Vec<_> = route
        .attempts
        .iter()
        .flatten()
        .enumerate()
        .flat_map(|(a, t)| view.targets(t).into_iter().map(move |n| (a, n)))
        .collect();
    let none_legal = !all.is_empty() && all.iter().all(|(_, n)| !View::legal(route, n.target));
    if none_legal {
        found.push(nobody_legal(view, at, who, required));
        return;
    }
    for (a, named) in all {
        if View::legal(route, named.target) {
            continue;
        }
        let has = named.target.residency.as_ref().map(|r| r.to_vec()).unwrap_or_default();
        let where_to = if has.is_empty() {
            "declares no residency".to_owned()
        } else {
            format!("may put data in {}", list(has.iter().map(String::as_str), 6))
        };
        let message = format!("{who} never dials {}: it {where_to}", quoted(named.name));
        let d = view
            .doc
            .at(&ILLEGAL_TARGET, &format!("{at}/attempts/{a}/pool"), message)
            .label("holds a target that is not legal here")
            .and(view.doc.place(&format!("{at}/residency_required")), "required here")
            .expected(format!("all of its residency within {}", list(required.iter(), 6)));
        found.push(d.help("correct its residency, or take it out of the pool"));
    }
}

/// One mistake, so one finding, at the line that every target runs into.
fn nobody_legal(view: &View<'_>, at: &str, who: &str, required: &Names) -> Diagnostic {
    let known: std::collections::BTreeSet<&str> = view
        .doc
        .get("/targets")
        .and_then(|t| t.as_object())
        .into_iter()
        .flat_map(|t| t.values())
        .filter_map(|t| t.get("residency"))
        .flat_map(|r| {
            r.as_array().map_or_else(
                || r.as_str().into_iter().collect::<Vec<_>>(),
                |l| l.iter().filter_map(|v| v.as_str()).collect(),
            )
        })
        .collect();
    let message = format!(
        "{who} never dials any of its targets: none has all of its residency within {}",
        list(required.iter(), 6)
    );
    let d = view
        .doc
        .at(&ILLEGAL_TARGET, &format!("{at}/residency_required"), message)
        .severity(Severity::Error)
        .label("no target is legal here, so it can never answer");
    let d = if known.is_empty() {
        d
    } else {
        d.expected(format!("what the targets declare: {}", list(known.iter().copied(), 6)))
    };
    let same = |name: &str| known.iter().copied().find(|k| k.eq_ignore_ascii_case(name));
    let near = required
        .iter()
        .filter(|name| !known.contains(name))
        .find_map(|name| same(name).or_else(|| crate::spec::names::nearest(name, known.iter().copied())));
    match near {
        Some(near) => d.nearest(near).help(format!("did you mean {}?", quoted(near))),
        None => d.help("correct `residency_required`, or the `residency` of the targets"),
    }
}

fn without_tools(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    if route.tools.is_none() {
        return;
    }
    let mut said: Vec<&str> = Vec::new();
    for attempt in route.attempts.iter().flatten() {
        for named in view.targets(attempt) {
            let key = View::target_at(named.name, "capabilities");
            let broken = named.target.capabilities.is_none() && view.doc.get(&key).is_some();
            let able = named.target.capabilities.as_ref().and_then(|c| c.tools) == Some(true);
            if able || broken || !View::legal(route, named.target) || said.contains(&named.name) {
                continue;
            }
            said.push(named.name);
            let message = format!("{who} has tools, and {} does not declare that it can call any", quoted(named.name));
            found.push(
                view.doc
                    .at_key(&NO_TOOLS, &format!("/targets/{}", escape(named.name)), message)
                    .label("skipped by requests that offer tools")
                    .and(view.doc.key_place(&format!("{at}/tools")), "the tools of the route")
                    .expected("`capabilities: { tools: true }`")
                    .help("declare it if the target can call tools"),
            );
        }
    }
}

fn unused(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    // Looked up in the document: an attempt that could not be read may still name the pool.
    let mut used = Vec::new();
    for route in view.doc.get("/routes").and_then(|r| r.as_array()).into_iter().flatten() {
        for attempt in route.get("attempts").and_then(|a| a.as_array()).into_iter().flatten() {
            used.extend(attempt.get("pool").and_then(|p| p.as_str()));
        }
    }
    let declared: Vec<&str> = view.doc.keys("/pools").collect();
    // A name that leads nowhere may mean this pool: that is one finding, not two.
    if used.is_empty() || used.iter().any(|u| !declared.contains(u)) {
        return;
    }
    for name in declared.iter().filter(|n| !used.contains(n)) {
        found.push(
            view.doc
                .at_key(
                    &UNUSED_POOL,
                    &format!("/pools/{}", escape(name)),
                    format!("no route names the pool {}", quoted(name)),
                )
                .label("not a fallback of anything")
                .help("name it in an attempt, or remove it"),
        );
    }
}
