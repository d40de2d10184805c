//! `llmfo drill`

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::policy_file::{self, Kind};
use super::{Global, drill_files};
use crate::drill::evidence::Evidence;
use crate::drill::library;
use crate::drill::propose::nothing;
use crate::drill::report::{
    Table, again_line, closing, cut_table, judged_alone, lines, not_judged_by_reason, phase_table, promise_lines,
    promise_table, rto_line, summary, times_head, whole_line, why,
};
use crate::drill::run::safety::state_folder;
use crate::drill::run::signals::Stops;
use crate::drill::run::{Done, Options, Reporter, execute, folder, leftovers};
use crate::drill::verdict::{Cleanup, Verdict};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::load::Key;
use crate::load::http::Base;
use crate::spec::drill::See;
use crate::term::progress::Progress;
use crate::term::table::{DEFAULT_WIDTH, table, wrap};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: DrillCommand,
}

/// `llmfo drill ...`
#[derive(clap::Subcommand, Debug)]
pub enum DrillCommand {
    /// Name the drills that are built in.
    List(drill_files::ListArgs),
    /// Print a drill's file.
    Show(drill_files::ShowArgs),
    /// Break a real path, drive conversations, judge what the customer saw, restore.
    Run(RunArgs),
    /// Find and heal what earlier runs left broken.
    Clean(CleanArgs),
    /// Print the wiring for a policy: proxies for a Toxiproxy, and connect_to lines.
    Paths(super::drill_paths::Args),
    /// The dead man's switch beside a real Toxiproxy; started by `run`.
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// How the result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences; the last line begins with the verdict.
    #[default]
    Human,
    /// One JSON value and nothing else.
    Json,
}

/// Arguments of `drill clean`.
#[derive(clap::Args, Debug)]
pub struct CleanArgs {
    /// How to write it.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What applications see of the broken providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SeeArg {
    /// New connections are refused, open ones closed.
    Refused,
    /// Connections stand, nothing passes.
    Silence,
    /// New connections are never accepted, open ones silent.
    #[value(name = "connect_timeout", alias = "connect-timeout")]
    ConnectTimeout,
}

/// Arguments of `drill run`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Without --target and --lab everything runs embedded: a lab with scripted providers, and one gateway per region, all on loopback, all gone at the end. Whatever happens, what was broken is restored; Ctrl-C restores, reports and exits 130.

Examples:
  llmfo drill run region-outage
  llmfo drill run midstream-break --seed 7 --report out
  llmfo drill run region-outage --toxiproxy http://127.0.0.1:8474
  llmfo drill run region-outage --lab http://127.0.0.1:41000 --target http://127.0.0.1:4000/v1 --policy mine.yaml
  llmfo drill run ./my-drill.yaml --format json | jq .verdict

Exits 0 for PASS, 1 for FAIL, 5 for INVALID or ABORTED, 6 if something may still be broken, 130 after Ctrl-C.")]
pub struct RunArgs {
    /// Name of a built-in drill, or the path of a file.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Seed of the load and the lab.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Judge this gateway (base URL, ending in /v1) instead of the embedded ones; needs --lab. May be given more than
    /// once: customers try them in order.
    #[arg(long, value_name = "URL", requires = "lab", value_hint = clap::ValueHint::Url)]
    pub target: Vec<String>,
    /// The file with the key that customers' application shows --target. Default: the key itself in $LLMFO_TARGET_KEY, else
    /// none.
    #[arg(long, value_name = "FILE", requires = "target", value_hint = clap::ValueHint::FilePath)]
    pub target_key_file: Option<PathBuf>,
    /// Attach to a lab that is already up: the admin URL that `llmfo lab up` printed.
    #[arg(long, value_name = "ADMIN_URL", value_hint = clap::ValueHint::Url)]
    pub lab: Option<String>,
    /// Break paths on this real Toxiproxy (API address) instead of the embedded fault server.
    #[arg(long, value_name = "URL", conflicts_with = "lab", value_hint = clap::ValueHint::Url)]
    pub toxiproxy: Option<String>,
    /// Policy of the gateways, and source of the objectives; without --lab its targets local-a and local-b are led to the
    /// embedded lab [default: the lab's; with --target that is not the gateway's own, so its limits are not judged].
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// What applications see of the broken providers, instead of what the drill says.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub see: Option<SeeArg>,
    /// Folder for summary.json, report.md, requests.jsonl, journal.jsonl; one with anything in it is refused [default:
    /// reports/NAME-TIME].
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub report: Option<PathBuf>,
    /// How to write the result.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Arguments of the guard.
#[derive(clap::Args, Debug)]
pub struct GuardArgs {
    /// The log of the run.
    #[arg(long)]
    pub log: PathBuf,
    /// It restores after this, whatever the runner says.
    #[arg(long)]
    pub longest_s: u64,
}

/// Narrower than this the table of the promises breaks every cell into pieces: 23 rows would fill 80 lines.
const PROMISES_WIDTH: u16 = 130;

/// Longest file with a key, in bytes.
const KEY_BYTES_MAX: u64 = 4_096;

/// Signs of life of the runner may be missing this long: ten beats.
const GUARD_BEAT: Duration = Duration::from_secs(5);

/// Runs it.
///
/// # Errors
/// Expected ones.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    match args.command {
        DrillCommand::Paths(args) => super::drill_paths::run(global, &args),
        DrillCommand::List(args) => drill_files::list(global, &args),
        DrillCommand::Show(args) => drill_files::show(global, &args),
        DrillCommand::Run(args) => drill(global, &args),
        DrillCommand::Clean(args) => clean(global, &args),
        DrillCommand::Guard(args) => {
            let limits =
                crate::fault::guard::Limits { beat: Some(GUARD_BEAT), total: Duration::from_secs(args.longest_s) };
            let (input, output) = (std::io::stdin(), std::io::stdout());
            crate::fault::guard::run(&args.log, limits, input, output).map(|_| Exit::Good)
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("cannot start the runtime: {e}"), ""))
}

/// Progress on stderr.
struct Live(Progress);

impl Reporter for Live {
    fn state(&mut self, line: &str) {
        self.0.state(line);
    }

    fn say(&mut self, line: &str, important: bool) {
        self.0.say(line, important);
    }
}

fn drill(global: &Global, args: &RunArgs) -> Result<Exit> {
    usable_urls(args)?;
    let found = library::find(&args.name)?;
    let file = drill_files::read(global, &found)?;
    match &args.policy {
        // The gateways of the run would refuse it: it is said before any of them is started, of the file that was given.
        Some(path) if args.lab.is_none() => {
            policy_file::servable(global, path, "cannot be drilled: no gateway would serve it as it is")?;
        }
        Some(path) => {
            let shown = crate::units::printable(&path.display().to_string(), 300);
            policy_file::of_kind(Kind::Policy, &policy_file::read(path)?.policy(&shown).doc, &shown)?;
        }
        None => {}
    }
    let state = state_folder()?;
    let runtime = runtime()?;
    let (report, claimed) = match &args.report {
        Some(named) => (named.clone(), Vec::new()),
        None => folder::claim(&default_report(&file.name))?,
    };
    let options = Options {
        seed: args.seed,
        targets: args.target.clone(),
        target_key: if args.target.is_empty() { None } else { target_key(args)? },
        lab: args.lab.clone(),
        toxiproxy: args.toxiproxy.clone(),
        policy: args.policy.clone(),
        see: args.see.map(|s| match s {
            SeeArg::Refused => See::Refused,
            SeeArg::Silence => See::Silence,
            SeeArg::ConnectTimeout => See::ConnectTimeout,
        }),
        report,
        claimed,
        state,
    };
    let mut live = Live(Progress::new(global.term, global.quiet));
    let done = runtime.block_on(async {
        let stops = Stops::listen().inspect_err(|_| folder::discard(&options.claimed))?;
        execute(&options, &file, &found, stops, &mut live).await
    });
    live.0.finish();
    runtime.shutdown_timeout(Duration::from_secs(1));
    let done = done?;
    let exit = global.term.decided(exit_of(&done.evidence, done.judgement.verdict, done.facts.cleanup));
    match args.format {
        Format::Json => {
            let value = summary(&done.evidence, &done.judgement, &done.facts);
            global.term.out(&serde_json::to_string_pretty(&value).unwrap_or_default());
        }
        Format::Human if global.quiet => global.term.out(done.judgement.verdict.word()),
        Format::Human => global.term.out(&human(global, &done, &options.report)),
    }
    Ok(exit)
}

/// Never on the command line, which others on this machine can see.
fn target_key(args: &RunArgs) -> Result<Option<Key>> {
    let read = match &args.target_key_file {
        Some(path) => Some(crate::files::text(path, KEY_BYTES_MAX).map_err(|why| {
            let shown = crate::units::printable(&path.display().to_string(), 300);
            Expected::usage(format!("--target-key-file {shown}: {why}"), "name a file with the key alone")
        })?),
        None => std::env::var("LLMFO_TARGET_KEY").ok().filter(|key| !key.is_empty()),
    };
    let Some(key) = read.as_deref().map(str::trim_end) else { return Ok(None) };
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
        let hint = "a key is one line of printable ASCII characters without blanks";
        return Err(Expected::usage("the target's key can be no key", hint));
    }
    Ok(Some(Key(key.to_owned())))
}

/// What is no URL is said before anything is started.
fn usable_urls(args: &RunArgs) -> Result<()> {
    let usage = |flag: &str, what: String, hint: &str| Expected::usage(format!("{flag} {what}"), hint.to_owned());
    for (flag, url) in args.target.iter().map(|t| ("--target", t)).chain(args.lab.iter().map(|l| ("--lab", l))) {
        Base::new(url).map_err(|e| usage(flag, e.what, &e.hint))?;
    }
    args.toxiproxy.as_deref().map_or(Ok(()), usable_toxiproxy)
}

/// An address of a Toxiproxy that can be dialled at all.
///
/// # Errors
/// It cannot (exit 2).
pub(super) fn usable_toxiproxy(url: &str) -> Result<()> {
    let hint = "write http://127.0.0.1:8474, with the port of its API";
    crate::fault::client::Client::new(url)
        .map(|_| ())
        .map_err(|e| Expected::usage(format!("--toxiproxy {}: {}", crate::units::printable(url, 200), e.what), hint))
}

/// `reports/region-outage-20261130-093012`
fn default_report(name: &str) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    Path::new("reports").join(format!("{name}-{now}"))
}

fn human(global: &Global, done: &Done, report: &Path) -> String {
    let (ev, j, facts) = (&done.evidence, &done.judgement, &done.facts);
    let width = global.term.width;
    if ev.ended_by_hand() && j.verdict == Verdict::Aborted {
        return ended_by_hand(done, report, width);
    }
    let narrow = width.is_some_and(|w| w < DEFAULT_WIDTH);
    let draw = |t: &Table, right: &[&str]| match narrow {
        true => lines(t).join("\n"),
        false => table(&t.head, &t.rows, right, width),
    };
    let mut out = vec![format!("drill {}: {}", ev.drill, facts.description)];
    out.push(format!("policy {}; driven: {}; seed {}", facts.policy, facts.targets.join(", "), ev.seed));
    out.push(String::new());
    let as_lines = width.unwrap_or(DEFAULT_WIDTH) < PROMISES_WIDTH;
    // Rows that were not judged stand below, each once, with the reason.
    let judged = judged_alone(j);
    out.push(if as_lines { promise_lines(&judged).join("\n") } else { draw(&promise_table(&judged), &["n"]) });
    out.push(rto_line(j));
    out.push(String::new());
    out.push(draw(&phase_table(j), &["requests", "not whole", "useful text p50", "p95"]));
    if let Some(cuts) = cut_table(j) {
        out.push("\nstreams that were cut".into());
        out.push(draw(&cuts, &["streams", "answered whole by another", "ended by one error event", "otherwise"]));
    }
    out.push("timeline".into());
    out.extend(facts.timeline.iter().map(|m| format!("  {:>6.2} s  {}", m.at_ms / 1e3, m.text)));
    for f in &j.findings {
        let weight = f.weight.word(j.verdict);
        out.push(String::new());
        let cases = if f.n == 1 { "case" } else { "cases" };
        out.push(format!("{} [{weight}, {} {cases}]: {}", f.code, f.n, f.text));
        out.extend(f.examples.iter().map(|e| format!("  {e}")));
    }
    out.push(String::new());
    let section = |out: &mut Vec<String>, name: &str, lines: &[String]| {
        if !lines.is_empty() {
            out.push(name.into());
            out.extend(lines.iter().map(|l| format!("  {l}")));
        }
    };
    section(&mut out, "not judged", &not_judged_by_reason(ev, j));
    section(&mut out, "not exercised", &facts.not_exercised);
    section(&mut out, times_head(ev), &ev.declared.scaling);
    if facts.proposals.is_empty() {
        out.push(format!("proposed changes: {}", nothing(ev)));
    }
    section(&mut out, "proposed changes", &facts.proposals);
    section(&mut out, "found and healed before the start", &facts.healed);
    section(&mut out, "clean-up notes", &facts.cleanup_notes);
    out.extend(whole_line(j));
    out.extend(again_line(j));
    let mut out = vec![wrap(&out.join("\n"), width)];
    // What to do about the verdict stands beside it, where people look last.
    let reasons = why(ev, j);
    // To be copied, so never broken into lines.
    out.push(format!("report: {}\nagain: {}", report.display(), facts.again));
    let secs = facts.duration_ms / 1e3;
    let aborted = ev.aborted.as_ref().map(|a| format!(" ({}: {})", a.by, a.text)).unwrap_or_default();
    out.push(format!("clean-up {}, {secs:.1} s{aborted}", facts.cleanup.word()));
    out.extend(reasons.iter().map(|line| wrap(line, width)));
    out.push(closing(ev, j));
    out.join("\n")
}

/// Whoever pressed Ctrl-C wants to know that nothing stays broken; rows of half a run would only look like results.
fn ended_by_hand(done: &Done, report: &Path, width: Option<u16>) -> String {
    let (ev, facts) = (&done.evidence, &done.facts);
    let secs = facts.duration_ms / 1e3;
    let restored = match ev.windows.last() {
        None => "nothing was broken yet".to_owned(),
        Some(window) => {
            let paths: Vec<&str> = window.faults.iter().map(|f| f.path.as_str()).collect();
            let restored = window.restored_ms.is_finite() && facts.cleanup != Cleanup::Dirty;
            let what = if restored { "restored" } else { "NOT RESTORED" };
            format!("{what}: {} ({})", paths.join(", "), window.name)
        }
    };
    let mut lines = vec![format!("drill {}: ended by hand after {secs:.1} s", ev.drill), restored];
    lines.push(format!("clean-up {}", facts.cleanup.word()));
    lines.extend(facts.cleanup_notes.iter().map(|note| format!("  {note}")));
    let mut lines = vec![wrap(&lines.join("\n"), width)];
    lines.push(format!("report: {}\nagain: {}", report.display(), facts.again));
    lines.extend(why(ev, &done.judgement).iter().map(|line| wrap(line, width)));
    if facts.cleanup == Cleanup::Dirty {
        lines.push("next: `llmfo drill clean` restores what is still broken".to_owned());
    }
    lines.push(closing(ev, &done.judgement));
    lines.join("\n")
}

fn clean(global: &Global, args: &CleanArgs) -> Result<Exit> {
    let state = state_folder()?;
    let healing = runtime()?.block_on(leftovers::heal(&state, None))?;
    let dirty = healing.cleanup == Cleanup::Dirty;
    let exit = global.term.decided(if dirty { Exit::Dirty } else { Exit::Good });
    if args.format == Format::Json {
        let value = json!({
            "format": 1,
            "cleanup": healing.cleanup.word(),
            "said": healing.said,
            "running": healing.running,
            "unreadable": healing.unreadable,
            "dirty_servers": healing.dirty_servers,
            "next": healing.next,
        });
        global.term.out(&value.to_string());
        return Ok(exit);
    }
    if healing.said.is_empty() {
        global.term.out("nothing was left behind by earlier drills");
    }
    for line in &healing.said {
        global.term.out(line);
    }
    for step in &healing.next {
        global.term.out(&format!("next: {step}"));
    }
    Ok(exit)
}

fn exit_of(evidence: &Evidence, verdict: Verdict, cleanup: Cleanup) -> Exit {
    let mut exit = match verdict {
        Verdict::Pass => Exit::Good,
        Verdict::Fail => Exit::Verdict,
        Verdict::Invalid | Verdict::Aborted => Exit::Inconclusive,
    };
    match evidence.aborted.as_ref().map(|a| a.by.as_str()) {
        Some("interrupted") => exit = exit.and(Exit::Interrupted),
        Some("terminated") => exit = exit.and(Exit::Terminated),
        _ => {}
    }
    if cleanup == Cleanup::Dirty {
        exit = exit.and(Exit::Dirty);
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::evidence::Aborted;

    #[test]
    fn exit_codes_follow_their_rank() {
        let with = |by: Option<&str>| Evidence {
            aborted: by.map(|b| Aborted { by: b.into(), text: String::new() }),
            ..Evidence::default()
        };
        assert_eq!(exit_of(&with(None), Verdict::Pass, Cleanup::Clean), Exit::Good);
        assert_eq!(exit_of(&with(None), Verdict::Fail, Cleanup::Recreated), Exit::Verdict);
        assert_eq!(exit_of(&with(None), Verdict::Invalid, Cleanup::Clean), Exit::Inconclusive);
        assert_eq!(exit_of(&with(Some("max_duration")), Verdict::Aborted, Cleanup::Clean), Exit::Inconclusive);
        assert_eq!(exit_of(&with(Some("interrupted")), Verdict::Aborted, Cleanup::Clean), Exit::Interrupted);
        assert_eq!(exit_of(&with(Some("interrupted")), Verdict::Fail, Cleanup::Clean), Exit::Interrupted);
        assert_eq!(exit_of(&with(Some("terminated")), Verdict::Aborted, Cleanup::Clean), Exit::Terminated);
        assert_eq!(exit_of(&with(Some("interrupted")), Verdict::Aborted, Cleanup::Dirty), Exit::Dirty);
    }
}
