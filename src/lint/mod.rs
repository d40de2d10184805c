//! `[P]` What can be known about a policy without running it, one file per family of rules. What it needs to know of the
//! outside (the time, which files and variables are there) is handed in.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod answers;
pub mod catalog;
mod cost;
mod data;
pub mod drills;
mod files;
pub mod golden;
mod hosts;
mod nobody;
pub mod pages;
mod promises;
mod readable;
mod release;
mod routing;
mod silence;
mod times;
mod view;

use std::collections::BTreeMap;

use crate::diag::Diagnostic;
use crate::policy::{Loaded, SecretRef};

pub use files::wants;

/// What is known of the outside. What is not in it is not judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// Now, in Unix seconds.
    pub now_unix_s: Option<i64>,
    /// Files that the policy names, as it names them: whether they are there.
    pub files: BTreeMap<String, bool>,
    /// Secrets that the policy refers to: what is there.
    pub secrets: BTreeMap<SecretRef, SecretState>,
}

/// What is at the place that a secret's reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// Something that can be sent as a key.
    Usable,
    /// Nothing.
    Missing,
    /// An empty text.
    Empty,
    /// A text with blanks or characters that no header can carry. A line end after it is no fault; it is cut off.
    Unusable,
}

/// Files and secrets that a policy names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Files, as the policy names them (without `file:`).
    pub files: Vec<String>,
    /// Secrets.
    pub secrets: Vec<SecretRef>,
}

/// Findings beyond those of reading. What is broken in the file is left alone: it has its finding already.
#[must_use]
pub fn check(loaded: &Loaded, world: &World) -> Vec<Diagnostic> {
    let Some(raw) = &loaded.raw else { return Vec::new() };
    let view = view::View { raw, doc: &loaded.doc };
    let mut found = Vec::new();
    routing::check(&view, &mut found);
    times::check(&view, &mut found);
    answers::check(&view, &mut found);
    silence::check(&view, &mut found);
    data::check(&view, world, &mut found);
    nobody::check(&view, &mut found);
    hosts::check(&view, &mut found);
    cost::check(&view, &mut found);
    promises::check(&view, &mut found);
    files::check(&view, world, &mut found);
    release::check(&view, world, &mut found);
    readable::keep(&mut found, &loaded.diagnostics);
    found
}

#[cfg(test)]
mod data_tests;
#[cfg(test)]
mod tests;
