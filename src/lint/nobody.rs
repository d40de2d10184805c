//! Family 5: a route on which nobody may ever answer a request that carries personal data. The sums are those of the core:
//! `pii` absent is allowed inside `residency_required` and forbidden without it, masked text may be sent, and a request that
//! says nothing counts as personal.

use crate::diag::{Diagnostic, Example, Rule, Severity, list};
use crate::spec::policy::{DataClass, Pii, Route};

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 1] = [&NOWHERE];

/// Personal data may go nowhere.
pub static NOWHERE: Rule = Rule {
    code: "LF504",
    name: "personal-data-nowhere",
    severity: Severity::Error,
    what: "No attempt of a route may get personal data: error if the route's data is personal (or `data` is absent, which means the same), warning on a `data: none` route. `pii` absent means forbidden where the route has no `residency_required`. `pii: masked` is enough: the values are replaced before they are sent.",
    why: "Every request counts as personal unless the route says `data: none` and the request says `x-llmfo-data: none`. Every other request would be refused with 503 `nobody_may_answer` by a gateway that looks ready, so `llmfo serve` does not start with this error.",
    fix: "Write `pii: allowed` on the attempts that may get personal data, `pii: masked` on those that may get it masked, or `residency_required` on the route. If its requests carry none, write `data: none` on the route and let clients send `x-llmfo-data: none`.",
    example: Example::Policy { good: "\n    residency_required: [kz, eu]", bad: "" },
};

/// Findings about every route.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        found.extend(nowhere(view, &at, &who, route));
    }
}

fn nowhere(view: &View<'_>, at: &str, who: &str, route: &Route) -> Option<Diagnostic> {
    let attempts = route.attempts.as_ref()?;
    // What stands there and could not be read has its finding; what it would have meant is not known.
    let broken = |key: &str| view.doc.get(&format!("{at}/{key}")).is_some();
    if (route.data.is_none() && broken("data"))
        || (route.residency_required.is_none() && broken("residency_required"))
        || attempts.iter().enumerate().any(|(a, t)| t.pii.is_none() && broken(&format!("attempts/{a}/pii")))
    {
        return None;
    }
    // Tiers that can answer anything at all. If there is none, that is another finding (LF113).
    let mut able = Vec::new();
    for (a, attempt) in attempts.iter().enumerate() {
        let pool = view.raw.pools.as_ref()?.get(attempt.pool.as_ref()?.as_str())?;
        let targets = view.targets(attempt);
        if targets.len() != pool.targets.as_ref()?.0.len() {
            return None;
        }
        if targets.iter().any(|t| View::legal(route, t.target)) {
            let absent = if route.residency_required.is_some() { Pii::Allowed } else { Pii::Forbidden };
            if attempt.pii.unwrap_or(absent) != Pii::Forbidden {
                return None;
            }
            able.push((a, attempt));
        }
    }
    let &(first, attempt) = able.first()?;
    let why = match attempt.pii {
        Some(_) => "personal data may not go here",
        None => "`pii` is absent: forbidden, as the route has no `residency_required`",
    };
    let none = route.data == Some(DataClass::None);
    let message = if none {
        format!(
            "nobody may answer a request to {who} that does not say `x-llmfo-data: none`: no attempt may get personal data"
        )
    } else {
        let means = if route.data.is_some() { "its data is personal" } else { "`data` is absent, so it is personal" };
        format!("nobody may ever answer on {who}: {means}, and no attempt may get personal data")
    };
    let pii = format!("{at}/attempts/{first}/pii");
    let here = if attempt.pii.is_some() { pii } else { format!("{at}/attempts/{first}/pool") };
    let mut d = view
        .doc
        .at(&NOWHERE, &here, message)
        .severity(if none { Severity::Warning } else { Severity::Error })
        .label(why)
        .expected("at least one attempt to which personal data may go");
    if route.data.is_some() {
        d = d.and(view.doc.place(&format!("{at}/data")), if none { "clients must say so too" } else { "said here" });
    }
    Some(d.help(step(view, route, none)))
}

/// What to write, each way on its own.
fn step(view: &View<'_>, route: &Route, none: bool) -> String {
    let mut ways = vec![
        "write `pii: allowed` on the attempt (its targets then get personal data as it is) or `pii: masked` (they get \
         placeholders in its place)"
            .to_owned(),
    ];
    if route.residency_required.is_none() {
        let mut places: Vec<String> = Vec::new();
        let targets = route.attempts.iter().flatten().flat_map(|a| view.targets(a));
        for place in targets.filter_map(|t| t.target.residency.as_ref()).flat_map(|r| r.to_vec()) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        ways.push(if places.is_empty() {
            "`residency_required: [eu]` on the route and `residency: [eu]` on its targets, with the place where they are".to_owned()
        } else {
            let names = list(places.iter().map(String::as_str), 6).replace('`', "");
            format!("`residency_required: [{names}]` on the route and no `pii` on the attempt")
        });
    }
    ways.push(if none {
        "let every client of it send `x-llmfo-data: none`".to_owned()
    } else {
        "`data: none` on the route, if clients send `x-llmfo-data: none`".to_owned()
    });
    let last = ways.pop().unwrap_or_default();
    format!("{}; or {last}", ways.join("; or "))
}
