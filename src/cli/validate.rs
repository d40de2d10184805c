//! `llmfo validate`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Global;
use super::policy_file::{self, Chosen, Content, Kind};
use crate::check::golden::Golden;
use crate::diag::{Report, render_human, render_json};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::lint::{self, SecretState, World};
use crate::policy::SecretRef;
use crate::spec::client_keys::{self, ClientKeysFile};
use crate::spec::drill::DrillFile;
use crate::spec::golden::GoldenFile;
use crate::spec::policy::PolicyFile;
use crate::spec::policy_tests::PolicyTestsFile;
use crate::spec::schema;

const EXAMPLES: &str = "\
Examples:
  llmfo validate                                 the only file in ./policies/, or $LLMFO_POLICY
  llmfo validate policies/support.yaml --deny warnings
  llmfo validate --format json policies/support.yaml | jq '.diagnostics[].code'
  llmfo validate drills/region-outage.yaml       a drill file is known by its `rounds`
  llmfo validate goldensets/support-v3.yaml      a golden set, by its `cases`
  llmfo validate clients.yaml                    a file of client keys, by its `clients`
  llmfo validate --tests policies/tests/support.yaml   who answers when what is down
  cat policy.yaml | llmfo validate -

Exit codes: 0 no errors; 1 errors (or warnings with --deny warnings); 2 a file that cannot be read, or bad flags.
`llmfo explain LF201` says more about a finding.
How to write a policy, with a file that works and every key: docs/policy.md in the source.";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The policy file (or a drill, a golden set, client keys); `-` is standard input. Default: $LLMFO_POLICY, else the only file in ./policies/.
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub path: Option<PathBuf>,
    /// How to print the findings.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// Findings that count as errors for the exit code.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub deny: Option<Deny>,
    /// The time to judge expiry by, instead of the clock.
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<jiff::Timestamp>,
    /// Run the tests of a policy: histories of its targets' health, and who must answer then.
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath, conflicts_with = "path")]
    pub tests: Option<PathBuf>,
    /// Print the JSON Schema of a file type and nothing else.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub print_schema: Option<SchemaOf>,
    /// Write the schemas into a folder (for the repository's own `schemas/`).
    #[arg(long, value_name = "DIR", hide = true)]
    pub write_schemas: Option<PathBuf>,
    /// Write the pages about the rules into a folder (for the repository's own `docs/rules/`).
    #[arg(long, value_name = "DIR", hide = true)]
    pub write_docs: Option<PathBuf>,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// For machines.
    Json,
}

/// `--deny`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Deny {
    /// Warnings make the exit code 1.
    Warnings,
}

/// `--print-schema`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SchemaOf {
    /// A policy.
    Policy,
    /// A drill.
    Drill,
    /// Tests of a policy.
    Tests,
    /// Keys of clients.
    Clients,
    /// A golden set.
    GoldenSet,
}

impl SchemaOf {
    fn text(self) -> String {
        match self {
            SchemaOf::Policy => schema::text_of::<PolicyFile>(),
            SchemaOf::Drill => schema::text_of::<DrillFile>(),
            SchemaOf::Tests => schema::text_of::<PolicyTestsFile>(),
            SchemaOf::Clients => schema::text_of::<ClientKeysFile>(),
            SchemaOf::GoldenSet => schema::text_of::<GoldenFile>(),
        }
    }
}

/// Runs it.
///
/// # Errors
/// No file, several files, or one that cannot be read.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if let Some(which) = args.print_schema {
        global.term.out(&which.text());
        return Ok(Exit::Good);
    }
    if args.write_schemas.is_some() || args.write_docs.is_some() {
        return write(args.write_schemas.as_deref(), args.write_docs.as_deref());
    }
    if let Some(tests) = &args.tests {
        return super::policy_tests::run(global, tests, args.format);
    }
    let chosen = policy_file::choose(args.path)?;
    let content = policy_file::read(&chosen.path)?;
    announce(global, &chosen);
    let now = args.now.unwrap_or_else(jiff::Timestamp::now);
    let (report, hint) = findings(&chosen.path, &content, now)?;
    let report = report.hide_info(global.quiet);
    let strict = args.deny == Some(Deny::Warnings);
    let exit = global.term.decided(if report.valid(strict) { Exit::Good } else { Exit::Verdict });
    match args.format {
        Format::Human => global.term.out(&render_human(&report, global.term.out_color, global.term.width)),
        Format::Json => global.term.out(&render_json(&report, strict)),
    }
    if let Some(hint) = hint.filter(|_| !global.quiet) {
        global.term.err(hint);
    }
    Ok(exit)
}

fn announce(global: &Global, chosen: &Chosen) {
    if !global.quiet {
        let how = if chosen.how.is_empty() { String::new() } else { format!(" ({})", chosen.how) };
        global.term.err(&format!("checking {}{how}", name_of(&chosen.path)));
    }
}

fn name_of(path: &Path) -> String {
    if path == Path::new("-") {
        "<stdin>".to_owned()
    } else {
        crate::units::printable(&path.display().to_string(), 300)
    }
}

/// Everything that is found in a file, and what else to say; which type it is of is seen from its keys.
fn findings(path: &Path, content: &Content, now: jiff::Timestamp) -> Result<(Report, Option<&'static str>)> {
    let name = name_of(path);
    let mut report = Report::new();
    let loaded = content.policy(&name);
    let kind = Kind::of(&loaded.doc);
    if let (Some(Kind::Drill), Content::Bytes(bytes)) = (kind, content) {
        let (file, mut found, doc) = crate::spec::drill::read(&name, bytes);
        match &file {
            Some(file) => found.extend(lint::drills::check(file, &doc)),
            // One run tells all that can be told.
            None => found.extend(lint::drills::names(&doc)),
        }
        report.add(doc.into_source(), found);
        return Ok((report, None));
    }
    if let (Some(Kind::Tests), Content::Bytes(bytes)) = (kind, content) {
        let (_, found, doc) = crate::spec::policy_tests::read(&name, bytes);
        report.add(doc.into_source(), found);
        return Ok((report, Some("a file of tests: its form was checked; `llmfo validate --tests FILE` runs them")));
    }
    if let (Some(Kind::Clients), Content::Bytes(bytes)) = (kind, content) {
        let (_, found, doc) = client_keys::read(&name, bytes);
        report.add(doc.into_source(), found);
        return Ok((report, None));
    }
    if let (Some(Kind::GoldenSet), Content::Bytes(bytes)) = (kind, content) {
        golden_set(&mut report, &name, bytes);
        return Ok((report, None));
    }
    // Of what is something else altogether a list of the keys that it lacks helps nobody.
    policy_file::of_kind(Kind::Policy, &loaded.doc, &name)?;
    let wants = lint::wants(&loaded);
    let world = World {
        now_unix_s: Some(now.as_second()),
        files: wants.files.into_iter().map(|f| (f.clone(), policy_file::beside(path, &f).is_some())).collect(),
        secrets: wants.secrets.into_iter().map(|s| (s.clone(), secret_state(path, &s))).collect::<BTreeMap<_, _>>(),
    };
    let more = lint::check(&loaded, &world);
    // A gateway does not start with a set that is there and cannot be used.
    let groups = loaded.raw.iter().flat_map(|raw| raw.compatibility_groups.iter().flat_map(|g| g.iter()));
    let mut sets: Vec<&str> = groups.filter_map(|(_, group)| group.golden_set.as_deref()).collect();
    sets.sort_unstable();
    sets.dedup();
    for said in sets {
        let Some(at) = policy_file::beside(path, said.strip_prefix("file:").unwrap_or(said)) else { continue };
        if let Content::Bytes(bytes) = policy_file::read(&at)? {
            golden_set(&mut report, &name_of(&at), &bytes);
        }
    }
    let found = loaded.diagnostics.into_iter().chain(more);
    report.add(loaded.doc.into_source(), found.collect::<Vec<_>>());
    Ok((report, None))
}

fn golden_set(report: &mut Report, name: &str, bytes: &[u8]) {
    let (file, mut found, doc) = crate::spec::golden::read(name, bytes);
    if let Some(file) = file {
        let schemas = Golden::compile(file.clone()).err().unwrap_or_default();
        found.extend(lint::golden::check(&file, &doc, &schemas));
    }
    report.add(doc.into_source(), found);
}

/// Longest key that is believed, in bytes.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// Looks at a secret without keeping or showing it.
fn secret_state(policy: &Path, secret: &SecretRef) -> SecretState {
    let value = match secret {
        SecretRef::Env(name) => match std::env::var_os(name) {
            None => return SecretState::Missing,
            Some(value) => value.into_encoded_bytes(),
        },
        SecretRef::File(path) => {
            let Some(path) = policy_file::beside(policy, path) else { return SecretState::Missing };
            match crate::files::bytes_of_file(&path, MAX_KEY_BYTES) {
                Ok(value) => value,
                Err(_) => return SecretState::Missing,
            }
        }
    };
    judge_secret(&value)
}

/// One line end after a key is cut off; anything else that a header cannot carry is not.
fn judge_secret(value: &[u8]) -> SecretState {
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if value.is_empty() {
        SecretState::Empty
    } else if value.iter().all(u8::is_ascii_graphic) {
        SecretState::Usable
    } else {
        SecretState::Unusable
    }
}

fn write(schemas: Option<&Path>, docs: Option<&Path>) -> Result<Exit> {
    let put = |dir: &Path, name: &str, text: &str| {
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(dir.join(name), text)).map_err(|e| {
            Expected::could_not(format!("cannot write {}: {e}", dir.join(name).display()), "check the folder")
        })
    };
    if let Some(dir) = schemas {
        put(dir, "policy.schema.json", &SchemaOf::Policy.text())?;
        put(dir, "drill.schema.json", &SchemaOf::Drill.text())?;
        put(dir, "policy-tests.schema.json", &SchemaOf::Tests.text())?;
        put(dir, "client-keys.schema.json", &SchemaOf::Clients.text())?;
        put(dir, "golden-set.schema.json", &SchemaOf::GoldenSet.text())?;
    }
    if let Some(dir) = docs {
        let rules = lint::catalog::all();
        put(dir, "README.md", &lint::pages::index(&rules))?;
        for rule in rules {
            put(dir, &format!("{}.md", rule.code), &lint::pages::page(rule))?;
        }
    }
    Ok(Exit::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_after_a_key_is_no_fault() {
        for (value, state) in [
            ("", SecretState::Empty),
            ("\n", SecretState::Empty),
            ("abc", SecretState::Usable),
            ("abc\r\n", SecretState::Usable),
            ("abc\n\n", SecretState::Unusable),
            ("a b", SecretState::Unusable),
            ("ключ", SecretState::Unusable),
        ] {
            assert_eq!(judge_secret(value.as_bytes()), state, "{value:?}");
        }
    }
}
