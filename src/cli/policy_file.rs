//! Which policy is used, and how it is read: the same rule for every command that takes one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Global;
use crate::diag::{Diagnostic, Report, render_human};
use crate::error::{Expected, Result};
use crate::lint::{self, World};
use crate::policy::{self, Loaded, Policy};
use crate::spec::SpannedDoc;
use crate::spec::document::{Limits, too_long};

/// The folder that is searched when nothing is named.
const FOLDER: &str = "policies";

/// A policy and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its path; `-` is standard input.
    pub path: PathBuf,
    /// How it was chosen, in words; empty if it was named.
    pub how: &'static str,
}

/// The policy to use: what was named (by flag or `LLMFO_POLICY`), else the only file in `./policies/`.
///
/// # Errors
/// Nothing is named, and the folder has none or several.
pub fn choose(named: Option<PathBuf>) -> Result<Chosen> {
    if let Some(path) = named {
        return Ok(Chosen { path, how: "" });
    }
    if let Some(path) = std::env::var_os("LLMFO_POLICY").filter(|v| !v.is_empty()) {
        return Ok(Chosen { path: path.into(), how: "from LLMFO_POLICY" });
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(FOLDER)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "yaml" || e == "yml") && p.is_file())
        .collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok(Chosen { path: one.clone(), how: "the only file in ./policies/" }),
        [] => Err(Expected::usage(
            "no policy is named, and ./policies/ has none",
            "name one (`llmfo validate PATH`, `llmfo serve --policy PATH`), or set LLMFO_POLICY; `llmfo lab up --dir lab` writes one that works to lab/policies/lab.yaml, and docs/policy.md begins with one",
        )),
        several => {
            let names: Vec<String> = several.iter().map(|p| p.display().to_string()).collect();
            Err(Expected::usage(
                format!("no policy is named, and ./policies/ has {}: {}", several.len(), names.join(", ")),
                {
                    let first = names.first().map_or("", String::as_str);
                    format!("name one (`llmfo validate {first}`, `llmfo serve --policy {first}`), or set LLMFO_POLICY")
                },
            ))
        }
    }
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// It is longer than any file may be, and was not read. The length is known in bytes.
    TooLong(usize),
}

impl Content {
    /// Loads it as a policy.
    #[must_use]
    pub fn policy(&self, name: &str) -> Loaded {
        match self {
            Content::Bytes(bytes) => policy::load_with_places(name, bytes),
            Content::TooLong(length) => {
                let (doc, d) = too_long(name, *length, &Limits::DEFAULT);
                Loaded { policy: None, raw: None, doc, diagnostics: vec![d] }
            }
        }
    }
}

/// Types of files that people hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A policy.
    Policy,
    /// A drill.
    Drill,
    /// Tests of a policy.
    Tests,
    /// Keys of clients.
    Clients,
    /// Unit prices of `simulate`.
    Prices,
    /// What a drill came to.
    Summary,
    /// What a simulation came to.
    Simulation,
    /// The proof that a target may stand in.
    Record,
    /// What a lab printed at its start.
    Lab,
    /// Cases that stand-ins are judged by.
    GoldenSet,
}

impl Kind {
    /// The type of a file, seen from its keys; `None` if they say nothing.
    #[must_use]
    pub fn of(doc: &SpannedDoc) -> Option<Kind> {
        let has = |key: &str| doc.keys("").any(|k| k == key);
        let all = |keys: &[&str]| keys.iter().all(|k| has(k));
        match () {
            () if has("routes") || has("targets") || has("pools") => Some(Kind::Policy),
            // Before the drills: a summary tells of its rounds too.
            () if all(&["verdict", "promises"]) || all(&["drill", "verdict"]) => Some(Kind::Summary),
            () if has("rounds") => Some(Kind::Drill),
            () if has("tests") => Some(Kind::Tests),
            () if has("clients") => Some(Kind::Clients),
            () if all(&["scenario", "trace_hash"]) => Some(Kind::Simulation),
            () if all(&["group", "target", "verdict"]) => Some(Kind::Record),
            () if PRICES.iter().filter(|k| has(k)).count() >= 2 => Some(Kind::Prices),
            () if all(&["admin", "providers", "entries"]) => Some(Kind::Lab),
            () if has("cases") || has("conversations") => Some(Kind::GoldenSet),
            () => None,
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Policy => ("a policy", "`llmfo validate FILE` checks it, `llmfo serve --policy FILE` runs it"),
            Kind::Drill => ("a drill", "`llmfo drill run FILE` runs it, `llmfo validate FILE` checks it"),
            Kind::Tests => ("a file of tests of a policy", "`llmfo validate --tests FILE` runs it"),
            Kind::Clients => {
                ("a file of client keys", "`llmfo validate FILE` checks it, `llmfo serve --client-keys FILE` takes it")
            }
            Kind::Prices => ("a list of prices", "`llmfo simulate --prices FILE` reads it"),
            Kind::Summary => {
                ("the summary of a drill", "`llmfo drill run` wrote it; report.md beside it says the same for people")
            }
            Kind::Simulation => ("the result of a simulation", "`llmfo simulate --format json` wrote it"),
            Kind::Lab => (
                "what a lab printed at its start",
                "`policy` in it names the policy that the lab wrote: `llmfo validate` checks that one",
            ),
            Kind::Record => (
                "an admission record",
                "`llmfo serve` reads it from evidence/<group>/<target>@<prompt_version>.json in the folder of its policy",
            ),
            Kind::GoldenSet => {
                ("a golden set", "`llmfo validate FILE` checks it; a policy names it as `golden_set` of a group")
            }
        }
    }
}

/// Keys by which a list of prices is known; two of them are no chance.
const PRICES: [&str; 6] =
    ["currency", "idle_reserve_per_slot", "eval_run", "state_copy", "on_call_hour", "lost_conversation"];

/// A file of another type than is needed here is said so in one line: what its keys would be wrong for helps nobody.
///
/// # Errors
/// It is of another type (exit 2).
pub fn of_kind(wanted: Kind, doc: &SpannedDoc, shown: &str) -> Result<()> {
    match Kind::of(doc) {
        Some(is) if is != wanted => {
            let (what, step) = is.words();
            let step = step.replace("FILE", shown);
            Err(Expected::usage(format!("{shown} is {what}; {} is needed here", wanted.words().0), step))
        }
        _ => Ok(()),
    }
}

/// What a file is, and what reads it; `None` if its keys say nothing.
#[must_use]
pub fn named(doc: &SpannedDoc, shown: &str) -> Option<(&'static str, String)> {
    let (what, step) = Kind::of(doc)?.words();
    Some((what, step.replace("FILE", shown)))
}

/// Reads a file, or standard input for `-`. What is too long is not read.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Content> {
    let limit = Limits::DEFAULT.max_bytes;
    let fail = |e: &std::io::Error| {
        let why = if path.is_dir() { "it is a folder".to_owned() } else { e.to_string() };
        let shown = crate::units::printable(&path.display().to_string(), 300);
        Expected::usage(format!("cannot read {shown}: {why}"), "name a readable policy file")
    };
    // One byte more than the limit tells a file that grows, a pipe or a device from one that fits.
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    } else {
        let file = File::open(path).map_err(|e| fail(&e))?;
        let length = usize::try_from(file.metadata().map_err(|e| fail(&e))?.len()).unwrap_or(usize::MAX);
        if length > limit {
            return Ok(Content::TooLong(length));
        }
        file.take(most).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    }
    Ok(if bytes.len() > limit { Content::TooLong(bytes.len()) } else { Content::Bytes(bytes) })
}

/// The policy of a file that a gateway may serve; what keeps it from that is shown as `validate` shows it. Routing and data are
/// judged beyond reading: a route that can answer nobody must not look ready. Nothing of the outside is asked about; files,
/// keys and expiry are no reason to stop.
///
/// # Errors
/// It cannot be read, is of another type, or must not be served; `refused` says so of it.
pub fn servable(global: &Global, path: &Path, refused: &str) -> Result<Policy> {
    let name = crate::units::printable(&path.display().to_string(), 300);
    let loaded = read(path)?.policy(&name);
    of_kind(Kind::Policy, &loaded.doc, &name)?;
    let mut blocking = lint::check(&loaded, &World::default());
    blocking.extend(loaded.diagnostics.iter().cloned());
    blocking.retain(Diagnostic::blocks_serving);
    match loaded.policy {
        Some(policy) if blocking.is_empty() => Ok(policy),
        _ => {
            let mut report = Report::new();
            report.add(loaded.doc.into_source(), blocking);
            global.term.err(&render_human(&report, global.term.err_color, global.term.width));
            Err(Expected::usage(
                format!("{name} {refused}"),
                format!("mend what is said above; `llmfo validate {name}` shows everything"),
            ))
        }
    }
}

/// Where a file that a policy names is: searched from the policy's folder, then from the folder above it.
#[must_use]
pub fn beside(policy: &Path, named: &str) -> Option<PathBuf> {
    let folder = policy.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = std::path::absolute(folder).ok().and_then(|f| f.parent().map(Path::to_path_buf));
    [Some(folder.join(named)), above.map(|a| a.join(named))].into_iter().flatten().find(|p| p.is_file())
}
