//! Files that a policy names: which, and whether they are there.

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{Loaded, secret_ref};
use crate::spec::document::escape;

use super::view::View;
use super::{Wants, World};

/// All of them.
pub static ALL: [&Rule; 1] = [&MISSING_FILE];

/// A file that is not there.
pub static MISSING_FILE: Rule = Rule {
    code: "LF114",
    name: "missing-file",
    severity: Severity::Warning,
    what: "A file that the policy names (a golden set, a text of an adapter, certificates) is not there.",
    why: "Without its golden set a group cannot be evaluated or probed; without its text an adapter cannot stand in; without its `ca_file` a gateway does not start.",
    fix: "Paths are searched from the policy's folder, then from its parent. Correct the path or add the file.",
    example: Example::Policy { good: "golden_set: goldensets/support.yaml", bad: "golden_set: goldensets/suport.yaml" },
};

/// Every file that the policy names, with the pointer of the value that names it.
fn named(view: &View<'_>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (name, adapter) in view.raw.adapters.iter().flat_map(|a| a.iter()) {
        if let Some(path) = adapter.system_suffix.as_deref().and_then(|s| s.strip_prefix("file:")) {
            all.push((format!("/adapters/{}/system_suffix", escape(name)), path.to_owned()));
        }
    }
    for (name, target) in view.raw.targets.iter().flat_map(|t| t.iter()) {
        let ca = target.connection.as_ref().and_then(|c| c.ca_file.as_deref());
        if let Some(path) = ca.and_then(|f| f.strip_prefix("file:")) {
            all.push((format!("/targets/{}/connection/ca_file", escape(name)), path.to_owned()));
        }
    }
    for (name, group) in view.raw.compatibility_groups.iter().flat_map(|g| g.iter()) {
        if let Some(path) = &group.golden_set {
            let path = path.strip_prefix("file:").unwrap_or(path);
            all.push((format!("/compatibility_groups/{}/golden_set", escape(name)), path.to_owned()));
        }
    }
    all
}

/// The files and secrets that whoever reads from the disk has to look for.
#[must_use]
pub fn wants(loaded: &Loaded) -> Wants {
    let Some(raw) = &loaded.raw else { return Wants::default() };
    let view = View { raw, doc: &loaded.doc };
    let secrets = raw.targets.iter().flat_map(|t| t.iter()).filter_map(|(_, t)| secret_ref(t.credentials.as_deref()?));
    Wants { files: named(&view).into_iter().map(|(_, path)| path).collect(), secrets: secrets.collect() }
}

/// Findings about files.
pub fn check(view: &View<'_>, world: &World, found: &mut Vec<Diagnostic>) {
    for (pointer, path) in named(view) {
        if world.files.get(&path) == Some(&false) {
            found.push(
                view.doc
                    .at(&MISSING_FILE, &pointer, format!("the file {} is not there", quoted(&path)))
                    .label("not found")
                    .expected("a file below the policy's folder or the folder above it")
                    .help("correct the path, or add the file"),
            );
        }
    }
}
