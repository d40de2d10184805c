//! Every rule there is, by code: what `llmfo explain` and `docs/rules/` are made from.

use crate::diag::Rule;

/// Every rule, sorted by code.
#[must_use]
pub fn all() -> Vec<&'static Rule> {
    let mut rules: Vec<&'static Rule> = Vec::new();
    rules.extend(crate::spec::rules::ALL);
    rules.extend(crate::policy::rules::ALL);
    rules.extend(super::routing::ALL);
    rules.extend(super::files::ALL);
    rules.extend(super::times::ALL);
    rules.extend(super::answers::ALL);
    rules.extend(super::silence::ALL);
    rules.extend(super::data::ALL);
    rules.extend(super::nobody::ALL);
    rules.extend(super::hosts::ALL);
    rules.extend(super::cost::ALL);
    rules.extend(super::drills::ALL);
    rules.extend(super::golden::ALL);
    rules.extend(super::promises::ALL);
    rules.extend(super::release::ALL);
    rules.sort_by_key(|r| r.code);
    rules
}

/// The rule of a code or a name, in any case.
#[must_use]
pub fn find(code: &str) -> Option<&'static Rule> {
    all().into_iter().find(|r| r.code.eq_ignore_ascii_case(code) || r.name.eq_ignore_ascii_case(code))
}

/// The rule whose code or name is nearest by its letters.
#[must_use]
pub fn nearest(code: &str) -> Option<&'static Rule> {
    let rules = all();
    crate::spec::names::nearest(code, rules.iter().flat_map(|r| [r.code, r.name])).and_then(find)
}

/// The number of what is written as a code is, whether there is such a rule or not.
#[must_use]
pub fn number(code: &str) -> Option<u32> {
    let (letters, digits) = code.split_at_checked(2)?;
    let is_one = letters.eq_ignore_ascii_case("LF") && digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit());
    is_one.then(|| digits.parse().ok()).flatten()
}
