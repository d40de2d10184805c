//! Family 2 for streams that fall silent: what is left for a stand-in when the silence has been noticed. From the first
//! fragment of a tool call the idle limit takes the place of the deadline (`router::budget`), so nothing cuts it short.

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE};
use crate::spec::policy::{Attempt, Route};
use crate::units::human;

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 1] = [&SILENCE];

/// A silence that is noticed too late.
pub static SILENCE: Rule = Rule {
    code: "LF210",
    name: "silence-outlives-deadline",
    severity: Severity::Warning,
    what: "A stream that falls silent after its first sign of life is noticed so late (`idle_timeout_ms`, 5 s if absent) that the deadline leaves no stand-in half of its first-token limit.",
    why: "The first-token limit ends with the first sign of life; from then on the idle limit notices a silence. Where the sign was the first fragment of a tool call it alone does, also past the deadline: the request ends in a handoff, late, although somebody could have answered.",
    fix: "Shorten `idle_timeout_ms`, so that it and half of the stand-in's `first_token_timeout_ms` fit into `deadline_ms` less `reserve_ms`; or raise `deadline_ms`.",
    example: Example::Policy { good: "idle_timeout_ms: 5000", bad: "idle_timeout_ms: 7000" },
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
    let attempts: Vec<&Attempt> = route.attempts.iter().flatten().collect();
    let first_tier = tiers.iter().position(|t| !t.is_empty())?;
    // Whoever of the first tier is dialled first, the others of it and of the later tiers may stand in.
    let stand_ins = tiers.iter().zip(&attempts).enumerate().flat_map(|(n, (tier, attempt))| {
        let others = tier.iter().skip(usize::from(n == first_tier));
        others.map(move |t| Some((t, attempt.first_token_timeout_ms?.duration() / 2)))
    });
    let (stand_in, least) = stand_ins.flatten().min_by_key(|(_, least)| *least)?;
    let idle = route.idle_timeout_ms.map_or(DEFAULT_IDLE_TIMEOUT, |m| m.duration());
    let reserve = route.reserve_ms.map_or(DEFAULT_RESERVE.min(deadline / 2), |m| m.duration());
    // A reserve that eats the deadline has its own finding.
    let budget = deadline.checked_sub(reserve).filter(|b| !b.is_zero())?;
    if idle + least <= budget {
        return None;
    }
    let left = budget.saturating_sub(idle);
    let message = format!(
        "a stream of {who} that has shown a sign of life may then be silent for {}; of the {} deadline less {} reserve {} left for a stand-in such as {}",
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
    let longer = format!("`deadline_ms: {}`", (idle + least + full).as_micros().div_ceil(1000));
    let shorter = budget.saturating_sub(least).as_millis();
    let help = if shorter < PAUSE_MS {
        format!("write {longer}, or shorten `first_token_timeout_ms` of the stand-in and `idle_timeout_ms`")
    } else {
        format!("write `idle_timeout_ms: {shorter}` or less, or {longer}")
    };
    Some(d.expected(format!("at least {} left: half of the stand-in's first-token limit", human(least))).help(help))
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

    /// 8000 less 1000 are 7000 ms; `local-b` wants half of its 2000, so silence may last 6000 ms.
    #[test]
    fn silence_must_leave_a_stand_in_half_of_its_first_token_limit() {
        assert!(found(&[("idle_timeout_ms: 5000", "idle_timeout_ms: 6000")]).is_empty());
        let late = found(&[("idle_timeout_ms: 5000", "idle_timeout_ms: 6001")]);
        assert_eq!((late.len(), late[0].severity), (1, Severity::Warning));
        assert!(late[0].place.pointer.ends_with("/idle_timeout_ms"), "{late:#?}");
        assert!(
            late[0]
                .message
                .contains("may then be silent for 6 s; of the 8 s deadline less 1 s reserve 999 ms are left")
        );
        assert!(late[0].message.ends_with("such as `local-b`"), "{late:#?}");
        assert_eq!(late[0].help.as_deref(), Some("write `idle_timeout_ms: 6000` or less, or `deadline_ms: 8001`"));
        let later = found(&[("idle_timeout_ms: 5000", "idle_timeout_ms: 7000")]);
        assert!(later[0].message.contains("nothing is left for a stand-in"), "{later:#?}");
    }

    /// 5 s are used: with 1000 ms for the stand-in and 1000 in reserve that is a deadline of 7000 ms.
    #[test]
    fn the_default_is_named_where_the_key_is_absent() {
        let absent = ("\n    idle_timeout_ms: 5000", "");
        assert!(found(&[absent, ("deadline_ms: 8000", "deadline_ms: 7000")]).is_empty());
        let late = found(&[absent, ("deadline_ms: 8000", "deadline_ms: 5000")]);
        assert!(late[0].place.pointer.ends_with("/deadline_ms"), "{late:#?}");
        assert_eq!(late[0].label, "`idle_timeout_ms` is absent: 5 s are used");
        assert_eq!(late[0].help.as_deref(), Some("write `idle_timeout_ms: 3000` or less, or `deadline_ms: 7000`"));
        // No reserve written: 500 ms, of 1400 ms. The half of 2000 leaves no pause that a healthy stream never makes.
        let tight = found(&[absent, ("\n    reserve_ms: 1000", ""), ("deadline_ms: 8000", "deadline_ms: 1400")]);
        assert!(tight[0].help.as_deref().unwrap().starts_with("write `deadline_ms: 6500`, or shorten"), "{tight:#?}");
        // What was written and could not be read is not judged by its default.
        assert!(
            found(&[("idle_timeout_ms: 5000", "idle_timeout_ms: soon"), ("deadline_ms: 8000", "deadline_ms: 5000")])
                .is_empty()
        );
    }

    #[test]
    fn where_nobody_may_stand_in_nobody_is_kept_waiting() {
        let late = ("idle_timeout_ms: 5000", "idle_timeout_ms: 9000");
        assert_eq!(found(&[late]).len(), 1);
        assert!(found(&[late, ("max_attempts: 3", "max_attempts: 1")]).is_empty());
        let none = ("max_attempts: 3", "max_attempts: 3\n    failover: none\n    failover_reason: by contract");
        assert!(found(&[late, none]).is_empty());
        // One target in each of two tiers: the second one's 3000 ms count, half of them.
        let two = ("near: { targets: [local-a, local-b]", "near: { targets: [local-a]");
        assert!(found(&[two, ("idle_timeout_ms: 5000", "idle_timeout_ms: 5500")]).is_empty());
        let late = found(&[two, ("idle_timeout_ms: 5000", "idle_timeout_ms: 5501")]);
        assert!(late[0].message.ends_with("such as `vendor-x`"), "{late:#?}");
    }
}
