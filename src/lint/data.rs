//! Family 5: where data and secrets go.

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{SecretRef, secret_ref};
use crate::spec::policy::{DataClass, Pii, Route};

use super::view::View;
use super::{SecretState, World};

/// All of them.
pub static ALL: [&Rule; 2] = [&PII_OUTSIDE, &SECRET_UNUSABLE];

/// Personal data to a vendor.
pub static PII_OUTSIDE: Rule = Rule {
    code: "LF502",
    name: "personal-data-to-vendor",
    severity: Severity::Warning,
    what: "A route with personal data sends it as it is to an external target, because an attempt says `pii: allowed`.",
    why: "In an outage the personal data of every customer goes to a vendor. That needs a contract, not a default.",
    fix: "Keep it where a contract covers it, else write `pii: masked` (values are replaced by placeholders and put back in the answer) or `pii: forbidden`. If it is forbidden and no other attempt may get personal data, nobody answers it then.",
    example: Example::Policy { good: "pii: forbidden", bad: "pii: allowed" },
};

/// A secret that is not there.
pub static SECRET_UNUSABLE: Rule = Rule {
    code: "LF503",
    name: "secret-not-here",
    severity: Severity::Info,
    what: "The place that a credential's reference names is not set on this machine (info), or holds something that cannot be sent (warning).",
    why: "A stand-in whose key is missing fails at the first failover, when nobody has time to look for it.",
    fix: "Set it where the policy runs. `llmfo serve` does not start without it.",
    example: Example::Policy { good: "credentials: env:LOCAL_B_KEY", bad: "credentials: env:LLMFO_EXAMPLE_UNSET" },
};

/// True if personal data may go to another attempt of the route than this one.
fn others(view: &View<'_>, route: &Route, this: usize) -> bool {
    let absent = if route.residency_required.is_some() { Pii::Allowed } else { Pii::Forbidden };
    route.attempts.iter().flatten().enumerate().any(|(a, attempt)| {
        let legal = || view.targets(attempt).iter().any(|t| View::legal(route, t.target));
        a != this && attempt.pii.unwrap_or(absent) != Pii::Forbidden && legal()
    })
}

/// Findings of this family.
pub fn check(view: &View<'_>, world: &World, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        if route.data == Some(DataClass::None) {
            continue;
        }
        for (a, attempt) in route.attempts.iter().flatten().enumerate() {
            if attempt.pii != Some(Pii::Allowed) {
                continue;
            }
            for named in view.targets(attempt) {
                if named.external() && View::legal(route, named.target) {
                    let message =
                        format!("{who} sends personal data as it is to the external target {}", quoted(named.name));
                    found.push(
                        view.doc
                            .at(&PII_OUTSIDE, &format!("{at}/attempts/{a}/pii"), message)
                            .label("unmasked")
                            .and(view.doc.place(&View::target_at(named.name, "domains")), "a vendor runs it")
                            .expected("a contract that covers it, `masked`, or `forbidden`")
                            .help(format!(
                                "keep it if a contract covers this; else write `pii: masked`, which sends placeholders and puts the values back, or `pii: forbidden`{}",
                                if others(view, route, a) {
                                    ""
                                } else {
                                    ", with which nobody may answer personal data on this route"
                                }
                            )),
                    );
                }
            }
        }
    }
    for (name, target) in view.raw.targets.iter().flat_map(|t| t.iter()) {
        let Some(reference) = target.credentials.as_deref().and_then(secret_ref) else { continue };
        let (what, help) = match &reference {
            SecretRef::Env(var) => {
                (format!("the variable {}", quoted(var)), format!("set {var} where the policy runs"))
            }
            SecretRef::File(path) => {
                (format!("the file {}", quoted(path)), "put the key there where the policy runs".to_owned())
            }
        };
        let (severity, says) = match world.secrets.get(&reference) {
            None | Some(SecretState::Usable) => continue,
            Some(SecretState::Missing) => (Severity::Info, "is not there on this machine"),
            Some(SecretState::Empty) => (Severity::Warning, "is empty"),
            Some(SecretState::Unusable) => {
                (Severity::Warning, "holds blanks or characters that cannot be sent in a header")
            }
        };
        found.push(
            view.doc
                .at(
                    &SECRET_UNUSABLE,
                    &View::target_at(name, "credentials"),
                    format!("the key of {}: {what} {says}", quoted(name)),
                )
                .severity(severity)
                .label("no usable key")
                .help(help),
        );
    }
}
