//! Family 2 for answers that are not streamed: how long one may wait at a silent first target, and what is left then.
//! The sums are those of the router (`router::budget`).

use std::time::Duration;

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE};
use crate::spec::policy::{Attempt, Route};
use crate::units::human;

use super::view::{Named, SLACK, View};

/// All of them.
pub static ALL: [&Rule; 1] = [&ANSWER_WAIT];

/// The first target may keep the whole time.
pub static ANSWER_WAIT: Rule = Rule {
    code: "LF209",
    name: "answer-waits-too-long",
    severity: Severity::Warning,
    what: "An answer that is not streamed may wait so long at a silent first target that no stand-in is dialled in time (warning), or longer than its share of the time, because 1.5 times the target's 95th percentile is longer (info).",
    why: "Without a first token to wait for, only the answer's own limit ends the wait. Where it takes the whole deadline, failover works for streams and not for anything else.",
    fix: "Write `answer_timeout_ms` on the attempt, so that half of the stand-in's own limit and 100 ms for the dial are left (a stand-in of the same attempt has the same limit: two thirds of the time at most); or raise `deadline_ms`.",
    example: Example::Policy {
        good: "- { pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500, compatibility_group: support }",
        bad: "- { pool: near, first_token_timeout_ms: 2000, compatibility_group: support }",
    },
};

/// Findings about every route.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        if let Some(d) = wait(view, &at, &who, route) {
            found.push(d);
        }
    }
}

/// What a route is about to lose to its first target.
fn wait(view: &View<'_>, at: &str, who: &str, route: &Route) -> Option<Diagnostic> {
    let deadline = route.deadline_ms?.duration();
    let tiers = view.dialled(route)?;
    let dials = route.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS);
    let broken = |key: &str| view.doc.get(&format!("{at}/{key}")).is_some();
    if (route.max_attempts.is_none() && broken("max_attempts")) || (route.reserve_ms.is_none() && broken("reserve_ms"))
    {
        return None;
    }
    // One dial, one target or a promise not to fail over: nobody is kept waiting.
    if route.failover.is_some() || dials < 2 || tiers.iter().map(Vec::len).sum::<usize>() < 2 {
        return None;
    }
    let reserve = route.reserve_ms.map_or(DEFAULT_RESERVE.min(deadline / 2), |m| m.duration());
    let budget = deadline.checked_sub(reserve).filter(|b| !b.is_zero())?;
    let attempts: Vec<&Attempt> = route.attempts.iter().flatten().collect();
    let first_tier = tiers.iter().position(|t| !t.is_empty())?;
    let attempt = attempts.get(first_tier)?;
    let share = budget / dials;
    // Whichever of the tier is dialled first: the one that keeps the request longest.
    let (first, own) =
        tiers.get(first_tier)?.iter().rev().map(|t| (t, own_limit(attempt, t, share))).max_by_key(|(_, own)| *own)?;
    let waits = own.min(budget);
    let left = budget - waits;
    let stand_ins = View::stand_ins(route, &tiers, (first_tier, first.name));
    let limit = |a: &Attempt| Some(a.answer_timeout_ms.or(a.first_token_timeout_ms)?.duration());
    let (stand_in, least) =
        stand_ins.iter().filter_map(|(t, a, _)| Some((t, limit(a)? / 2 + SLACK))).min_by_key(|(_, least)| *least)?;
    let severity = if left < least {
        Severity::Warning
    } else if attempt.answer_timeout_ms.is_none() && waits > share {
        Severity::Info
    } else {
        return None;
    };
    let key = if attempt.answer_timeout_ms.is_some() { "answer_timeout_ms" } else { "pool" };
    let p95 = first.target.capacity.as_ref().and_then(|c| c.p95_service_ms);
    let d = view
        .doc
        .at(
            &ANSWER_WAIT,
            &format!("{at}/attempts/{first_tier}/{key}"),
            format!(
                "an answer of {who} that is not streamed may wait {} of the {} deadline at a silent {}; {} left for a stand-in such as {}",
                human(waits),
                human(deadline),
                quoted(first.name),
                if left.is_zero() { "nothing is".to_owned() } else { format!("{} are", human(left)) },
                quoted(stand_in.name),
            ),
        )
        .severity(severity)
        .label(if left < least { "then nobody stands in" } else { "longer than its share" });
    let d = match p95 {
        Some(p95) if attempt.answer_timeout_ms.is_none() && waits > share => d.and(
            view.doc.place(&View::target_at(first.name, "capacity/p95_service_ms")),
            format!("1.5 x {} ms", p95.0),
        ),
        _ => d,
    };
    // What is written on the first tier is the limit of the stand-ins of that tier as well: with `x` it takes `x` and half of `x`.
    let spare = budget.saturating_sub(SLACK);
    let most = stand_ins.iter().filter_map(|(_, a, n)| {
        if *n == first_tier { Some(spare * 2 / 3) } else { Some(spare.saturating_sub(limit(a)? / 2)) }
    });
    let most = most.max().unwrap_or_default().as_millis();
    // The least is what makes a stand-in worth a dial. How many of its answers then come in time is for people to weigh.
    let declared = stand_in.target.capacity.as_ref().and_then(|c| c.mean_service_ms.or(c.p95_service_ms));
    let more = declared.map(|ms| ms.duration()).filter(|usual| *usual > least).map(|usual| {
        format!(
            "; {} declares {} for an answer, so slower ones are cut off there unless so much is left",
            quoted(stand_in.name),
            human(usual)
        )
    });
    let d = d.expected(format!(
        "at least {} left: half of the stand-in's own limit, and {} for the dial{}",
        human(least),
        human(SLACK),
        more.unwrap_or_default()
    ));
    Some(if most == 0 {
        d.help("raise `deadline_ms`, or shorten the stand-in's limit")
    } else {
        d.help(format!(
            "write `answer_timeout_ms: {most}` or less here ({} is an even share)",
            share.as_millis().min(most)
        ))
    })
}

/// How long an answer may take at a target that is dialled first.
fn own_limit(attempt: &Attempt, target: &Named<'_>, share: Duration) -> Duration {
    if let Some(own) = attempt.answer_timeout_ms {
        return own.duration();
    }
    let p95 = target.target.capacity.as_ref().and_then(|c| c.p95_service_ms);
    p95.map_or(share, |p95| p95.duration().mul_f64(1.5).max(share))
}
