//! `[P]` The resolved policy: names are looked up, defaults filled in, illegal states cannot be written.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod evidence;
pub mod model;
mod names;
mod not_enforced;
mod resolve;
pub mod rules;
pub mod succeed;
mod values;

pub use model::*;
pub use resolve::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE, DEFAULT_TIER, sha256_hex,
};

use crate::diag::Diagnostic;
use crate::spec::SpannedDoc;
use crate::spec::policy::{self as file, PolicyFile};

/// A policy file that was read and looked through.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The policy. Absent if anything in it blocks serving ([`Diagnostic::blocks_serving`]).
    pub policy: Option<Policy>,
    /// What could be read of the file.
    pub raw: Option<PolicyFile>,
    /// The text with its places.
    pub doc: SpannedDoc,
    /// What is wrong with it, as far as reading it tells; [`crate::lint`] finds more.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a policy: the policy if it can be used, and every finding.
#[must_use]
pub fn load(name: &str, bytes: &[u8]) -> (Option<Policy>, Vec<Diagnostic>) {
    let loaded = load_with_places(name, bytes);
    (loaded.policy, loaded.diagnostics)
}

/// Reads a policy and keeps its text, for those who look further or show findings.
#[must_use]
pub fn load_with_places(name: &str, bytes: &[u8]) -> Loaded {
    let file::Loaded { raw, mut doc, mut diagnostics } = file::load(name, bytes);
    let Some(raw) = raw else {
        return Loaded { policy: None, raw: None, doc, diagnostics };
    };
    let dangling = names::check(&raw, &doc, &diagnostics);
    diagnostics.extend(dangling);
    diagnostics.extend(values::check(&raw, &doc));
    for d in &diagnostics {
        if d.rule == &rules::SECRET && d.place.pointer.ends_with("/credentials") {
            doc.hide(&d.place.pointer);
        }
    }
    let policy = if diagnostics.iter().any(Diagnostic::blocks_serving) { None } else { resolve::policy(&raw, bytes) };
    Loaded { policy, raw: Some(raw), doc, diagnostics }
}

/// The reference to a secret that a text is, if it is one: `env:NAME` or `file:PATH`.
#[must_use]
pub fn secret_ref(text: &str) -> Option<SecretRef> {
    values::secret_ref(text)
}

#[cfg(test)]
mod tests;
