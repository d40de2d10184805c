//! Family 8: what a policy needs to be released and replaced safely.

use crate::diag::{Diagnostic, Example, Rule, Severity};

use super::World;
use super::view::View;

/// All of them.
pub static ALL: [&Rule; 3] = [&NO_EXPIRY, &NO_SERIAL, &EXPIRED];

/// No expiry.
pub static NO_EXPIRY: Rule = Rule {
    code: "LF801",
    name: "no-expiry",
    severity: Severity::Warning,
    what: "The policy does not say when it expires.",
    why: "A gateway that has lost contact to its policy store would go on with an old policy for ever.",
    fix: "Write `expires`, a little longer than the time between two releases.",
    example: Example::Policy { good: "expires: 2100-01-01T00:00:00Z\n", bad: "" },
};

/// No serial.
pub static NO_SERIAL: Rule = Rule {
    code: "LF802",
    name: "no-serial",
    severity: Severity::Warning,
    what: "The policy has no serial number.",
    why: "Without it nothing can tell an older policy from a newer one, and an old one can replace a good one unnoticed.",
    fix: "Write `serial`, one more than in the release before.",
    example: Example::Policy { good: "serial: 1\n", bad: "" },
};

/// It has expired.
pub static EXPIRED: Rule = Rule {
    code: "LF803",
    name: "expired",
    severity: Severity::Error,
    what: "The policy has expired.",
    why: "After expiry only the intents of `on_expired` are answered, without tools; everything else goes to a human.",
    fix: "Release a policy with a later `expires` and a higher `serial`.",
    example: Example::Policy { good: "2100-01-01T00:00:00Z", bad: "2026-01-01T00:00:00Z" },
};

/// Findings of this family.
pub fn check(view: &View<'_>, world: &World, found: &mut Vec<Diagnostic>) {
    let absent = |key: &str| view.doc.get(key).is_none();
    if view.raw.expires.is_none() && absent("/expires") {
        found.push(
            view.doc
                .at_key(&NO_EXPIRY, "/version", "the policy does not say when it expires")
                .label("no `expires` beside it")
                .help("write `expires: 2027-01-31T00:00:00Z`, a little longer than the time between two releases"),
        );
    }
    if view.raw.serial.is_none() && absent("/serial") {
        found.push(
            view.doc
                .at_key(&NO_SERIAL, "/version", "the policy has no serial number")
                .label("no `serial` beside it")
                .help("write `serial`, one more than in the release before"),
        );
    }
    let expires = view.raw.expires.as_deref().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    if let (Some(expires), Some(now)) = (expires, world.now_unix_s)
        && expires.as_second() <= now
    {
        let ago = (now - expires.as_second()) / 86_400;
        let when = match ago {
            0 => "less than a day ago".to_owned(),
            1 => "a day ago".to_owned(),
            n => format!("{n} days ago"),
        };
        let d = view
            .doc
            .at(&EXPIRED, "/expires", format!("the policy expired {when}"))
            .label("in the past")
            .help("release a policy with a later `expires` and a higher `serial`");
        found.push(match view.raw.on_expired.as_ref().and_then(|o| o.intents.as_ref()) {
            Some(intents) if intents.iter().next().is_some() => {
                d.and(view.doc.key_place("/on_expired"), "only these intents are still answered, without tools")
            }
            _ => d,
        });
    }
}
