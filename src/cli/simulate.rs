//! `llmfo simulate`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;

use super::Global;
use super::policy_file;
use crate::assets;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::policy::{self, Policy};
use crate::sim::lessons;
use crate::sim::report::{PUBLISHED, Report, Summary, percent};
use crate::sim::scenario::{self, MONTH, Options, ceiling_by_hand};
use crate::sim::swarm::{self, Swarm};
use crate::sim::trace::{self, History, Impact};
use crate::sim::{Progress as SimProgress, Setup, run as run_setup};
use crate::spec::names::nearest;
use crate::term::progress::Progress;
use crate::term::table::table;
use crate::units::printable;

/// A longer history is not read.
const TRACE_MAX_BYTES: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  llmfo simulate dual-channel                         18 months, two channels at 97 %
  llmfo simulate dual-channel --seeds 20              the median of twenty seeds
  llmfo simulate dual-channel --shared-domain 0.001   both channels share something that is down for 0.1 % of the time
  llmfo simulate --policy policies/support.yaml --months 6
  llmfo simulate dual-channel --trace incidents.csv --down minor --map openai-api=channel-a
  llmfo simulate --swarm 200                          seeds that draw policies, worlds and outages
  llmfo simulate --list

A history is a CSV file with the columns target, from, to, impact. What is computed how: docs/simulate.md.
Exits 0 if every checked promise held, 1 if one did not, 4 if the history has no outage left, 5 if the sample is too small.
";

/// How the result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences; the verdict is the last line.
    #[default]
    Text,
    /// One JSON value and nothing else.
    Json,
}

/// The least impact that counts as down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Down {
    /// Degraded or worse.
    Minor,
    /// Partly out or worse.
    Major,
    /// Out.
    Critical,
}

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A scenario by name; with --policy it may be left out.
    #[arg(value_name = "SCENARIO")]
    pub scenario: Option<String>,
    /// Name the scenarios that are built in.
    #[arg(long)]
    pub list: bool,
    /// Try this policy instead of the scenario's.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Seed of everything drawn; the first of several.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run so many seeds and tell medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: u64,
    /// Months simulated.
    #[arg(long, value_name = "N", default_value_t = 18.0, conflicts_with = "trace")]
    pub months: f64,
    /// Share of time each channel is up, 0..1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.97, conflicts_with = "trace")]
    pub channel_availability: f64,
    /// Mean length of an outage, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 30.0, conflicts_with = "trace")]
    pub mean_outage_min: f64,
    /// Share of time in which something that all channels share is down, 0..1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, conflicts_with = "trace")]
    pub shared_domain: f64,
    /// Replay an outage history (CSV: target, from, to, impact).
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub trace: Option<PathBuf>,
    /// The least impact that counts as down.
    #[arg(long, value_enum, default_value = "major", requires = "trace")]
    pub down: Down,
    /// Which target stands for a name of the history; others take the policy's targets in order of appearance.
    #[arg(long, value_name = "NAME=TARGET", requires = "trace")]
    pub map: Vec<String>,
    /// Run so many seeds that draw policies, worlds and outages as well, and check every promise.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "policy", "trace", "seeds", "no_checks"],
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub swarm: Option<u64>,
    /// Leave the checkers out: how fast it is without them.
    #[arg(long)]
    pub no_checks: bool,
    /// Leave out the lessons of the published system, each switched on and off on the same outages.
    #[arg(long)]
    pub no_lessons: bool,
    /// How to write the result.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What is run, resolved.
struct Plan {
    name: String,
    policy: Arc<Policy>,
    history: Option<(History, Vec<(String, usize)>)>,
}

/// Runs it.
///
/// # Errors
/// An unknown scenario, an unreadable policy or history (exit 2); a history without an outage (exit 4).
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if args.list {
        return Ok(list(global, args.format));
    }
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(&stop)?;
    if let Some(seeds) = args.swarm {
        return swarm(global, &args, seeds, &stop);
    }
    check(&args)?;
    let plan = plan(&args)?;
    let mut progress = Progress::new(global.term, global.quiet || !global.term.err_tty);
    let mut runs = Vec::new();
    let (mut requests, mut elapsed_s) = (0u64, 0.0);
    for n in 0..args.seeds {
        let setup = setup_of(&args, &plan, args.seed.wrapping_add(n));
        let began = Instant::now();
        let ran = run_setup(&setup, &mut |p: SimProgress| {
            progress.state(&format!("seed {} ({} of {}): {:.0} %", setup.seed, n + 1, args.seeds, p.share * 100.0));
            !stop.load(Ordering::Relaxed)
        });
        if ran.stopped {
            progress.finish();
            return Ok(Exit::Interrupted);
        }
        elapsed_s += began.elapsed().as_secs_f64();
        requests += ran.figures.requests;
        runs.push(Summary::of(setup.seed, &ran));
    }
    let mut variants = Vec::new();
    if args.policy.is_none() && !args.no_lessons {
        let setup = setup_of(&args, &plan, args.seed);
        let told = lessons::all(&setup, &mut |p| {
            progress.state(&format!("lessons: {:.0} %", p.share * 100.0));
            !stop.load(Ordering::Relaxed)
        });
        let Some(told) = told else {
            progress.finish();
            return Ok(Exit::Interrupted);
        };
        variants = told;
    }
    progress.finish();
    let mut report = Report::of(&plan.name, &plan.policy.version, !args.no_checks, runs);
    report.requests_per_s = (elapsed_s > 0.0).then(|| requests as f64 / elapsed_s);
    if plan.history.is_none() {
        let n = plan.policy.targets.len();
        report.ceiling_by_hand = Some(ceiling_by_hand(n, args.channel_availability, args.shared_domain));
    }
    if args.policy.is_none() {
        report.published = Some(PUBLISHED);
    }
    report.lessons = variants;
    report.notes.extend(notes(&plan));
    match args.format {
        Format::Json => global.term.out(&report.json()),
        Format::Text => global.term.out(&text(global, &args, &report)),
    }
    Ok(exit_of(&report))
}

/// Seeds that draw everything.
fn swarm(global: &Global, args: &Args, seeds: u64, stop: &AtomicBool) -> Result<Exit> {
    let mut progress = Progress::new(global.term, global.quiet || !global.term.err_tty);
    let (began, mut done) = (Instant::now(), Swarm::default());
    for n in 0..seeds {
        let seed = args.seed.wrapping_add(n);
        progress.state(&format!("seed {seed}: {n} of {seeds}, {} failed", done.failed.len()));
        let (policy, setup) = swarm::draw(seed);
        let Some(setup) = setup else {
            progress.finish();
            return Err(Expected::new(Exit::Bug, format!("seed {seed} drew a policy that is refused:\n{policy}"), ""));
        };
        let ran = run_setup(&setup, &mut |_| !stop.load(Ordering::Relaxed));
        if ran.stopped {
            progress.finish();
            return Ok(Exit::Interrupted);
        }
        done.add(seed, &policy, &ran);
    }
    progress.finish();
    let elapsed_s = began.elapsed().as_secs_f64();
    done.requests_per_s = (elapsed_s > 0.0).then(|| done.requests as f64 / elapsed_s);
    global.term.out(&match args.format {
        Format::Json => serde_json::to_string_pretty(&done).unwrap_or_default() + "\n",
        Format::Text => done.text(),
    });
    Ok(if done.failed.is_empty() { Exit::Good } else { Exit::Verdict })
}

fn exit_of(report: &Report) -> Exit {
    if report.violations() > 0 {
        Exit::Verdict
    } else if report.inconclusive() {
        Exit::Inconclusive
    } else {
        Exit::Good
    }
}

fn list(global: &Global, format: Format) -> Exit {
    global.term.out(&match format {
        Format::Json => {
            let rows: Vec<_> =
                scenario::ALL.iter().map(|s| json!({ "name": s.name, "description": s.about })).collect();
            serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n"
        }
        Format::Text => scenario::ALL.iter().map(|s| format!("{:<14} {}\n", s.name, s.about)).collect(),
    });
    Exit::Good
}

fn check(args: &Args) -> Result<()> {
    let share = |name: &str, value: f64, least: f64| {
        if value.is_finite() && value >= least && value <= 1.0 {
            return Ok(());
        }
        Err(Expected::usage(format!("--{name} is {value}, which is no share"), "write 0.97 for 97 %"))
    };
    share("channel-availability", args.channel_availability, 0.01)?;
    share("shared-domain", args.shared_domain, 0.0)?;
    let within = |name: &str, value: f64, most: f64| {
        if value.is_finite() && value > 0.0 && value <= most {
            return Ok(());
        }
        Err(Expected::usage(format!("--{name} is {value}"), format!("name a number above 0, at most {most}")))
    };
    within("months", args.months, 1_200.0)?;
    within("mean-outage-min", args.mean_outage_min, 100_000.0)
}

fn plan(args: &Args) -> Result<Plan> {
    let names = || scenario::ALL.iter().map(|s| s.name);
    let named = match &args.scenario {
        Some(name) => Some(scenario::named(name).ok_or_else(|| {
            let near = nearest(name, names()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            Expected::usage(
                format!("there is no scenario {}", printable(name, 60)),
                format!("{near}`llmfo simulate --list` names them"),
            )
        })?),
        None if args.policy.is_none() => {
            return Err(Expected::usage(
                "neither a scenario nor a policy is named",
                "`llmfo simulate dual-channel`, or `llmfo simulate --policy FILE`; `--list` names scenarios",
            ));
        }
        None => None,
    };
    let (policy, file) = match &args.policy {
        Some(path) => (load(path)?, path.display().to_string()),
        None => {
            let path = named.map_or("", |n| n.policy);
            let text = assets::get(path).map_or("", |a| a.text);
            let (policy, _) = policy::load(path, text.as_bytes());
            let policy = policy.ok_or_else(|| Expected::usage(format!("{path} cannot be used"), ""))?;
            (policy, path.to_owned())
        }
    };
    let name = named.map_or(printable(&file, 200), |n| n.name.to_owned());
    let policy = Arc::new(policy);
    let history = args.trace.as_deref().map(|path| history(args, path, &policy)).transpose()?;
    Ok(Plan { name, policy, history })
}

fn load(path: &Path) -> Result<Policy> {
    let shown = printable(&path.display().to_string(), 300);
    let loaded = policy_file::read(path)?.policy(&shown);
    loaded.policy.ok_or_else(|| {
        Expected::usage(format!("{shown} cannot be used as a policy"), format!("`llmfo validate {shown}` says why"))
    })
}

fn history(args: &Args, path: &Path, policy: &Policy) -> Result<(History, Vec<(String, usize)>)> {
    let shown = printable(&path.display().to_string(), 300);
    let hint = "it is a CSV file with the columns target, from, to, impact";
    let size = std::fs::metadata(path).map_err(|e| Expected::usage(format!("cannot read {shown}: {e}"), hint))?.len();
    if size > TRACE_MAX_BYTES {
        return Err(Expected::usage(format!("{shown} is larger than {TRACE_MAX_BYTES} bytes"), hint));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Expected::usage(format!("cannot read {shown}: {e}"), hint))?;
    let history =
        trace::read(&text).map_err(|e| Expected::usage(format!("{shown}, line {}: {}", e.line, e.what), hint))?;
    let mut map = BTreeMap::new();
    for entry in &args.map {
        let Some((name, target)) = entry.split_once('=') else {
            return Err(Expected::usage(
                format!("--map {} names no target", printable(entry, 60)),
                "write NAME=TARGET",
            ));
        };
        let Some(found) = policy.target_named(target) else {
            let known = policy.targets.iter().map(|t| t.name.as_str());
            let near = nearest(target, known.clone()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            return Err(Expected::usage(
                format!("--map names {}, which is no target of the policy", printable(target, 60)),
                format!("{near}its targets: {}", known.collect::<Vec<_>>().join(", ")),
            ));
        };
        if !history.names.iter().any(|n| n == name) {
            let known = history.names.iter().map(String::as_str);
            let near = nearest(name, known.clone()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            return Err(Expected::usage(
                format!("--map names {}, which is not in {shown}", printable(name, 60)),
                format!("{near}its names: {}", known.collect::<Vec<_>>().join(", ")),
            ));
        }
        let id = usize::from(found.id.0);
        if map.iter().any(|(other, at)| other != name && *at == id) {
            let what = format!("--map lets two names stand for {}", printable(target, 60));
            return Err(Expected::usage(what, "give each name a target of its own"));
        }
        map.insert(name.to_owned(), id);
    }
    let assigned = history.assign(policy, &map).map_err(|name| {
        Expected::usage(
            format!(
                "{shown} has {} names, the policy {} targets: none is left for {name}",
                history.names.len(),
                policy.targets.len()
            ),
            "leave lines out of the history, or name a policy with more targets",
        )
    })?;
    if assigned.iter().all(|(name, _)| history.merged(name, impact(args.down)).spans.is_empty()) {
        return Err(Expected::nothing(format!("{shown} has no outage of this impact or graver"), "try --down minor"));
    }
    Ok((history, assigned))
}

fn impact(down: Down) -> Impact {
    match down {
        Down::Minor => Impact::Minor,
        Down::Major => Impact::Major,
        Down::Critical => Impact::Critical,
    }
}

fn setup_of(args: &Args, plan: &Plan, seed: u64) -> Setup {
    let mut options = Options {
        seed,
        span: MONTH.mul_f64(args.months),
        channel_availability: args.channel_availability,
        mean_outage: std::time::Duration::from_secs_f64(args.mean_outage_min * 60.0),
        shared_down: args.shared_domain,
        checks: !args.no_checks,
    };
    match &plan.history {
        Some((history, assigned)) => {
            options.span = history.span();
            scenario::with_sources(&plan.policy, history.sources(assigned, impact(args.down), seed), &options)
        }
        None => scenario::channels(&plan.policy, &options),
    }
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((_, assigned)) = &plan.history {
        let names: Vec<String> =
            assigned.iter().map(|(name, target)| format!("{name} = {}", plan.policy.targets[*target].name)).collect();
        notes.push(format!("the history stands for: {}", names.join(", ")));
        let without = plan.policy.targets.iter().filter(|t| !assigned.iter().any(|(_, n)| *n == usize::from(t.id.0)));
        let without: Vec<&str> = without.map(|t| t.name.as_str()).collect();
        if !without.is_empty() {
            notes.push(format!("without a history, taken as up all the time: {}", without.join(", ")));
        }
    }
    if !plan.policy.not_enforced.is_empty() {
        let keys = plan.policy.not_enforced.iter().filter_map(|key| key.split(": ").next());
        notes.push(format!("read, not enforced by the core yet: {}", keys.collect::<Vec<_>>().join(", ")));
    }
    notes
}

fn text(global: &Global, args: &Args, report: &Report) -> String {
    let mut out = String::new();
    let days = report.runs.first().map_or(0.0, |r| r.days);
    let seeds = if args.seeds == 1 {
        format!("seed {}", args.seed)
    } else {
        format!("seeds {} to {}, medians", args.seed, args.seed + args.seeds - 1)
    };
    let requests: u64 = report.runs.iter().map(|r| r.requests).sum();
    let real: f64 = report.runs.iter().map(|r| r.real_requests).sum();
    out += &format!(
        "{}: policy {}, {days:.0} days, {seeds}; {requests} requests simulated stand for {real:.0}\n\n",
        report.scenario, report.policy_version
    );
    let head = ["", "one channel", "policy", "published"];
    let head = if report.published.is_some() { &head[..] } else { &head[..3] };
    let rows: Vec<Vec<String>> = report.table().into_iter().map(|r| r[..head.len()].to_vec()).collect();
    out += &table(head, &rows, &["one channel", "policy", "published"], global.term.width);
    out += "\n\n";
    if let Some(first) = report.runs.first() {
        let alone =
            first.channels.iter().map(|c| format!("{} {} (up {})", c.target, percent(c.availability), percent(c.up)));
        out += &format!("each channel alone: {}\n", alone.collect::<Vec<_>>().join(", "));
    }
    if let Some(ceiling) = report.ceiling_by_hand {
        out += &format!("ceiling by hand, from what was asked for: {:.4} %\n", ceiling * 100.0);
    }
    out += &report.details();
    if !report.lessons.is_empty() {
        let head = ["lesson", "measured", "without", "with", "change", "published"];
        let rows: Vec<Vec<String>> = report.lessons.iter().map(lesson_row).collect();
        out += &format!("\n{}\n\n", table(&head, &rows, &["without", "with", "change"], global.term.width));
    }
    out += &format!(
        "{:.0} requests/s ({}), trace {}\n",
        report.requests_per_s.unwrap_or(0.0),
        if report.checks { "with checkers" } else { "without checkers" },
        report.trace_hash
    );
    out += &verdict(args, report);
    out
}

fn lesson_row(lesson: &lessons::Lesson) -> Vec<String> {
    let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let change = lesson.change().map_or("-".to_owned(), |c| format!("{:+.1} %", c * 100.0));
    vec![
        lesson.name.clone(),
        lesson.measure.clone(),
        value(lesson.without),
        value(lesson.with),
        change,
        lesson.published.clone(),
    ]
}

fn verdict(args: &Args, report: &Report) -> String {
    let mut out = String::new();
    for run in report.runs.iter().filter(|r| !r.violations.is_empty()) {
        for v in &run.violations {
            out += &format!("broken at {:.3} s, seed {}: {}: {}\n", v.at_s, run.seed, v.rule, v.what);
        }
        out += &format!("again: {}\n", again(args, run.seed));
    }
    out += match exit_of(report) {
        Exit::Verdict => "FAIL: a promise was not held\n",
        Exit::Inconclusive => "INCONCLUSIVE: the sample is too small\n",
        _ if report.checks => "PASS: every checked promise held\n",
        _ => "DONE: nothing was checked\n",
    };
    out
}

/// The exact command that shows one seed again.
fn again(args: &Args, seed: u64) -> String {
    let mut out = "llmfo simulate".to_owned();
    if let Some(name) = &args.scenario {
        out += &format!(" {name}");
    }
    if let Some(policy) = &args.policy {
        out += &format!(" --policy {}", policy.display());
    }
    match &args.trace {
        Some(trace) => {
            let down = format!("{:?}", args.down).to_lowercase();
            out += &format!(" --trace {} --down {down}", trace.display());
            out += &args.map.iter().map(|m| format!(" --map {m}")).collect::<String>();
        }
        None => {
            out += &format!(
                " --months {} --channel-availability {} --mean-outage-min {} --shared-domain {}",
                args.months, args.channel_availability, args.mean_outage_min, args.shared_domain
            );
        }
    }
    out + &format!(" --seed {seed}")
}

/// Ctrl-C and SIGTERM end the run at its next step.
fn watch_signals(stop: &Arc<AtomicBool>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("no runtime: {e}"), ""))?;
    let stop = Arc::clone(stop);
    let (mut int, mut term) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _entered = runtime.enter();
        let listen = |kind| signal(kind).map_err(|e| Expected::could_not(format!("no signals: {e}"), ""));
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = int.recv() => {}
                _ = term.recv() => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}
