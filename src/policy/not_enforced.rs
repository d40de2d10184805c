//! Keys that are read and whose behaviour is not built yet. They are announced at start and never weaken a filter. A line
//! leaves this list in the change that builds its behaviour.

use crate::spec::policy::PolicyFile;

/// `path: what it will do`, in the order of the file; each path once.
pub fn list(raw: &PolicyFile) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut say = |set: bool, path: &str, what: &str| {
        let line = format!("{path}: {what}");
        if set && !out.contains(&line) {
            out.push(line);
        }
    };
    say(raw.dependencies.is_some(), "dependencies", "will be searched for things whose loss takes a route down");
    out
}
