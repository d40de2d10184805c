//! Family 2 for streams that fall silent: what is left for a stand-in when the silence has been noticed. From the first
//! fragment of a tool call the idle limit takes the place of the deadline (`router::budget`), so nothing cuts it short.

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE};
use crate::spec::policy::{Attempt, Route};
use crate::units::human;

use super::view::{SLACK, View};

/// All of them.
pub static ALL: [&Rule; 1] = [&SILENCE];

/// A silence that is noticed too late.
pub static SILENCE: Rule = Rule {
    code: "LF210",
    name: "silence-outlives-deadline",
    severity: Severity::Warning,
    what: "A stream may show its first sign of life at the end of its first-token limit and then fall silent: that limit, the silence (`idle_timeout_ms`, 5 s if absent), half of a stand-in's first-token limit and 100 ms for the dial are more than `deadline_ms` less `reserve_ms`.",
    why: "The first-token limit ends with the first sign of life; from then on the idle limit notices a silence. Where the sign was the first fragment of a tool call it alone does, also past the deadline: the request ends in a handoff, late, although somebody could have answered.",
    fix: "Shorten `idle_timeout_ms`, so that the first tier's `first_token_timeout_ms`, the silence, half of the stand-in's `first_token_timeout_ms` and 100 ms fit into `deadline_ms` less `reserve_ms`; or raise `deadline_ms`.",
    example: Example::Policy {
        good: "deadline_ms: 8000\n    reserve_ms: 1000\n    idle_timeout_ms: 3500\n    attempts:\n      - { pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500, compatibility_group: support }",
        bad: "deadline_ms: 8000\n    reserve_ms: 1000\n    idle_timeout_ms: 5000\n    attempts:\n      - { pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500, compatibility_group: support }",
    },
};

/// A shorter pause than this is common in healthy streams (the time of a garbage collection, a lost packet sent again): it
/// is not recommended.
const PAUSE_MS: u128 = 500;

/// Findings about every route.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        found.extend(silence(view, &at, &who, route));
    }
}

fn silence(view: &View<'_>, at: &str, who: &str, route: &Route) -> Option<Diagnostic> {
    let deadline = route.deadline_ms?.duration();
    let tiers = view.dialled(route)?;
    let dials = route.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS);
    let broken = |key: &str| view.doc.get(&format!("{at}/{key}")).is_some();
    if (route.max_attempts.is_none() && broken("max_attempts"))
        || (route.reserve_ms.is_none() && broken("reserve_ms"))
        || (route.idle_timeout_ms.is_none() && broken("idle_timeout_ms"))
        || route.failover.is_some()
        || dials < 2
    {
        return None;
    }
    let first_tier = tiers.iter().position(|t| !t.is_empty())?;
    // Whoever of the first tier is dialled first, the others of it and of the later tiers may stand in.
    let first = tiers.get(first_tier)?.first()?;
    let until_a_sign = route.attempts.as_ref()?.get(first_tier)?.first_token_timeout_ms?.duration();
    let stand_ins = View::stand_ins(route, &tiers, (first_tier, first.name));
    let least = |a: &Attempt| Some(a.first_token_timeout_ms?.duration() / 2 + SLACK);
    let (stand_in, least) =
        stand_ins.iter().filter_map(|(t, a, _)| Some((t, least(a)?))).min_by_key(|(_, least)| *least)?;
    let idle = route.idle_timeout_ms.map_or(DEFAULT_IDLE_TIMEOUT, |m| m.duration());
    let reserve = route.reserve_ms.map_or(DEFAULT_RESERVE.min(deadline / 2), |m| m.duration());
    // A reserve that eats the deadline has its own finding, and so have first-token limits that leave nobody time.
    let budget = deadline.checked_sub(reserve)?;
    let pause = budget.checked_sub(until_a_sign + (least - SLACK)).filter(|p| !p.is_zero())?.saturating_sub(SLACK);
    if idle <= pause {
        return None;
    }
    let left = budget.saturating_sub(until_a_sign + idle);
    let message = format!(
        "a stream of {who} may show its first sign of life after {} and then be silent for {}; of the {} deadline less {} reserve {} left for a stand-in such as {}",
        human(until_a_sign),
        human(idle),
        human(deadline),
        human(reserve),
        if left.is_zero() { "nothing is".to_owned() } else { format!("{} are", human(left)) },
        quoted(stand_in.name),
    );
    let (key, label) = match route.idle_timeout_ms {
        Some(_) => ("idle_timeout_ms", "then nobody stands in".to_owned()),
        None => ("deadline_ms", format!("`idle_timeout_ms` is absent: {} are used", human(idle))),
    };
    let mut d = view.doc.at(&SILENCE, &format!("{at}/{key}"), message).label(label);
    if key == "idle_timeout_ms" {
        d = d.and(view.doc.place(&format!("{at}/deadline_ms")), "bound by this");
    }
    let full = route.reserve_ms.map_or(DEFAULT_RESERVE, |m| m.duration());
    // Half a millisecond cannot be written: what is to be shorter is rounded down, what is to be longer up.
    let longer = format!("`deadline_ms: {}`", (until_a_sign + idle + least + full).as_micros().div_ceil(1000));
    let shorter = pause.as_millis();
    let help = if shorter < PAUSE_MS {
        format!("write {longer}, or shorten the first-token limits and `idle_timeout_ms`")
    } else {
        format!("write `idle_timeout_ms: {shorter}` or less, or {longer}")
    };
    let expected = format!(
        "at least {} left: half of the stand-in's first-token limit, and {} for the dial",
        human(least),
        human(SLACK)
    );
    Some(d.expected(expected).help(help))
}

#[cfg(test)]
mod tests {
    use super::super::{World, check};
    use super::*;
    use crate::policy::load_with_places;
    use crate::spec::examples::POLICY;

    fn found(changes: &[(&str, &str)]) -> Vec<Diagnostic> {
        let text = changes.iter().fold(POLICY.to_owned(), |text, (good, bad)| {
            assert_eq!(text.matches(good).count(), 1, "{good:?} is in the example once");
            text.replacen(good, bad, 1)
        });
        let loaded = load_with_places("example", text.as_bytes());
        check(&loaded, &World::default()).into_iter().filter(|d| d.rule == &SILENCE).collect()
    }

    /// 8000 less 1000 are 7000 ms; the sign of life may take 2000, `local-b` wants half of its 2000, and the dial 100: silence
    /// may last 3900 ms.
    #[test]
    fn silence_must_leave_a_stand_in_half_of_its_first_token_limit() {
        assert!(found(&[("idle_timeout_ms: 3500", "idle_timeout_ms: 3900")]).is_empty());
        let late = found(&[("idle_timeout_ms: 3500", "idle_timeout_ms: 3901")]);
        assert_eq!((late.len(), late[0].severity), (1, Severity::Warning));
        assert!(late[0].place.pointer.ends_with("/idle_timeout_ms"), "{late:#?}");
        assert!(
            late[0].message.contains(
                "may show its first sign of life after 2 s and then be silent for 3.9 s; of the 8 s deadline less 1 s reserve 1.1 s are left"
            ),
            "{late:#?}"
        );
        assert!(late[0].message.ends_with("such as `local-b`"), "{late:#?}");
        assert_eq!(late[0].help.as_deref(), Some("write `idle_timeout_ms: 3900` or less, or `deadline_ms: 8001`"));
        let later = found(&[("idle_timeout_ms: 3500", "idle_timeout_ms: 5000")]);
        assert!(later[0].message.contains("nothing is left for a stand-in"), "{later:#?}");
    }

    /// 5 s are used: with 2000 ms before them, 1100 ms for the stand-in and 1000 in reserve that is a deadline of 9100 ms.
    #[test]
    fn the_default_is_named_where_the_key_is_absent() {
        let absent = ("\n    idle_timeout_ms: 3500", "");
        assert!(found(&[absent, ("deadline_ms: 8000", "deadline_ms: 9100")]).is_empty());
        let late = found(&[absent, ("deadline_ms: 8000", "deadline_ms: 7000")]);
        assert!(late[0].place.pointer.ends_with("/deadline_ms"), "{late:#?}");
        assert_eq!(late[0].label, "`idle_timeout_ms` is absent: 5 s are used");
        assert_eq!(late[0].help.as_deref(), Some("write `idle_timeout_ms: 2900` or less, or `deadline_ms: 9100`"));
        // No reserve written: 500 ms, of 3700 ms. The 100 ms that remain are no pause that a healthy stream never makes.
        let tight = found(&[absent, ("\n    reserve_ms: 1000", ""), ("deadline_ms: 8000", "deadline_ms: 3700")]);
        assert!(tight[0].help.as_deref().unwrap().starts_with("write `deadline_ms: 8600`, or shorten"), "{tight:#?}");
        // What was written and could not be read is not judged by its default.
        assert!(
            found(&[("idle_timeout_ms: 3500", "idle_timeout_ms: soon"), ("deadline_ms: 8000", "deadline_ms: 7000")])
                .is_empty()
        );
    }

    #[test]
    fn where_nobody_may_stand_in_nobody_is_kept_waiting() {
        let late = ("idle_timeout_ms: 3500", "idle_timeout_ms: 9000");
        assert_eq!(found(&[late]).len(), 1);
        assert!(found(&[late, ("max_attempts: 3", "max_attempts: 1")]).is_empty());
        let none = ("max_attempts: 3", "max_attempts: 3\n    failover: none\n    failover_reason: by contract");
        assert!(found(&[late, none]).is_empty());
        // 3000 ms less 1000 are gone when the sign comes: that is LF201's or LF202's, however short the silence is.
        assert!(found(&[late, ("deadline_ms: 8000", "deadline_ms: 3000")]).is_empty());
        // One target in each of two tiers: the second one's 3000 ms count, half of them: 7000 - 2000 - 1500 - 100.
        let two = ("near: { targets: [local-a, local-b]", "near: { targets: [local-a]");
        assert!(found(&[two, ("idle_timeout_ms: 3500", "idle_timeout_ms: 3400")]).is_empty());
        let late = found(&[two, ("idle_timeout_ms: 3500", "idle_timeout_ms: 3401")]);
        assert!(late[0].message.ends_with("such as `vendor-x`"), "{late:#?}");
    }

    /// A tier for some requests only is no help to the others: `vendor-x` with its quick 400 ms gets no personal data.
    #[test]
    fn a_stand_in_is_one_for_every_request() {
        let quick = ("{ pool: far, first_token_timeout_ms: 3000", "{ pool: far, first_token_timeout_ms: 400");
        let late = found(&[quick, ("idle_timeout_ms: 3500", "idle_timeout_ms: 3901")]);
        assert!(late[0].message.ends_with("such as `local-b`"), "{late:#?}");
        let masked = ("compatibility_group: support, pii: forbidden", "compatibility_group: support, pii: masked");
        assert!(found(&[quick, masked, ("idle_timeout_ms: 3500", "idle_timeout_ms: 4700")]).is_empty());
    }
}
