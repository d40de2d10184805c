//! `llmfo simulate`

mod plan;
mod replay;
mod text;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;

use self::plan::{check, notes, plan, prices, setup_of};
use super::Global;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::sim::cost;
use crate::sim::lessons;
use crate::sim::limits;
use crate::sim::narrow;
use crate::sim::report::{PUBLISHED, Report, Summary};
use crate::sim::scenario::{self, ceiling_by_hand};
use crate::sim::swarm::{self, Swarm};
use crate::sim::{Progress as SimProgress, run as run_setup};
use crate::term::progress::Progress;
use crate::term::table::wrap;

const EXAMPLES: &str = "\
Examples:
  llmfo simulate dual-channel                         18 months, two channels at 97 %
  llmfo simulate dual-channel --seeds 20              the median of twenty seeds
  llmfo simulate dual-channel --shared-domain 0.001   both channels share something that is down for 0.1 % of the time
  llmfo simulate --policy policies/support.yaml --months 6
  llmfo simulate dual-channel --trace incidents.csv --down minor --map openai-api=channel-a
  llmfo simulate --swarm 200                          seeds that draw policies, worlds and outages
  llmfo simulate --policy p.yaml --inputs inputs.jsonl   an input journal of `llmfo serve --record-inputs`, played again
  llmfo simulate --list

A history is a CSV file: its first line is `target,from,to,impact`, and a line of it is `one,2026-01-03T10:00:00Z,2026-01-03T10:25:00Z,major`. What is computed how: docs/simulate.md. A debug build is about ten times slower than a release build; with thousands of targets begin with --months 0.1.
Exits 0 if every checked invariant of the core held (the objectives of the policy are shown beside the figures, not judged), 1 if one did not, 4 for an unknown scenario or a history without an outage, 5 if the sample is too small.
";

/// How the result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences; the verdict is the last line.
    #[default]
    #[value(name = "human", alias = "text")]
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
    /// Which target stands for a name of the history. Without it a target's own name stands for that target, and others take the
    /// policy's targets in order of appearance. Names of one target are merged: it is down while any of them is.
    #[arg(long, value_name = "NAME=TARGET", requires = "trace")]
    pub map: Vec<String>,
    /// Run so many seeds that draw policies, worlds and outages as well, and check every promise.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "policy", "trace", "seeds", "no_checks"],
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub swarm: Option<u64>,
    /// Play an input journal of `llmfo serve --record-inputs` again, under the policy it was written with: what the core did then.
    /// With --format json every output is printed, one per line.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, requires = "policy",
          conflicts_with_all = ["scenario", "trace", "seeds", "swarm"])]
    pub inputs: Option<PathBuf>,
    /// Leave the checkers out: how fast it is without them.
    #[arg(long)]
    pub no_checks: bool,
    /// Unit prices (YAML) for the bill [default: an example; examples/prices.yaml].
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub prices: Option<PathBuf>,
    /// Leave out the lessons of the published system, each switched on and off on the same outages.
    #[arg(long)]
    pub no_lessons: bool,
    /// How to write the result.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Runs it.
///
/// # Errors
/// An unknown scenario, an unreadable policy or history (exit 2); a history without an outage (exit 4).
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if args.list {
        return Ok(list(global, args.format));
    }
    if let Some(inputs) = &args.inputs {
        return replay::run(global, inputs, args.policy.as_deref(), args.format);
    }
    let stop = Arc::new(Stop::default());
    if let Some(seeds) = args.swarm {
        watch_signals(&stop)?;
        return swarm(global, &args, seeds, &stop);
    }
    check(&args)?;
    let (plan, prices) = (plan(&args)?, prices(&args)?);
    // From here on: who waits for a pipe that nobody writes to is ended by a signal as any process is.
    watch_signals(&stop)?;
    let mut progress = Progress::slow(global.term, global.quiet);
    let mut runs = Vec::new();
    let (mut requests, mut elapsed_s) = (0u64, 0.0);
    for n in 0..args.seeds {
        let setup = setup_of(&args, &plan, args.seed.wrapping_add(n));
        progress.state(&format!("seed {} ({} of {}): 0 %", setup.seed, n + 1, args.seeds));
        let began = Instant::now();
        let ran = run_setup(&setup, &mut |p: SimProgress| {
            progress.state(&format!("seed {} ({} of {}): {:.0} %", setup.seed, n + 1, args.seeds, p.share * 100.0));
            !stop.asked()
        });
        if ran.stopped {
            progress.finish();
            return Ok(stop.exit());
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
            !stop.asked()
        });
        let Some(told) = told else {
            progress.finish();
            return Ok(stop.exit());
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
    report.cost = report.runs.first().and_then(|run| cost::bill(&prices, &plan.policy, run));
    report.lay_beside(&plan.policy);
    let (per_second, _) = scenario::requests_per_s(&plan.policy);
    report.notes.extend(report.slots_note(&plan.policy, per_second));
    report.narrow = narrow::narrow(&plan.policy, per_second);
    report.notes.extend(narrow::note(&report.narrow, per_second));
    let load = scenario::load_of(&plan.policy);
    report.notes.extend(narrow::given_away_note(&plan.policy, &load, narrow::given_away(&plan.policy, &load)));
    report.notes.extend(limits::note(&plan.policy, &scenario::providers_of(&plan.policy)));
    report.notes.extend(notes(&plan));
    let exit = global.term.decided(exit_of(&report));
    match args.format {
        Format::Json => global.term.out(&report.json()),
        Format::Text if global.quiet => global.term.out(&text::verdict(global, &args, &report)),
        Format::Text => global.term.out(&text::text(global, &args, &report)),
    }
    Ok(exit)
}

/// Seeds that draw everything.
fn swarm(global: &Global, args: &Args, seeds: u64, stop: &Stop) -> Result<Exit> {
    let mut progress = Progress::slow(global.term, global.quiet);
    let (began, mut done) = (Instant::now(), Swarm::default());
    for n in 0..seeds {
        let seed = args.seed.wrapping_add(n);
        progress.state(&format!("seed {seed}: {n} of {seeds}, {} failed", done.failed.len()));
        let (policy, setup) = swarm::draw(seed);
        let Some(setup) = setup else {
            progress.finish();
            return Err(Expected::new(Exit::Bug, format!("seed {seed} drew a policy that is refused:\n{policy}"), ""));
        };
        let ran = run_setup(&setup, &mut |_| !stop.asked());
        if ran.stopped {
            progress.finish();
            return Ok(stop.exit());
        }
        done.add(seed, &policy, &ran);
    }
    progress.finish();
    let elapsed_s = began.elapsed().as_secs_f64();
    done.requests_per_s = (elapsed_s > 0.0).then(|| done.requests as f64 / elapsed_s);
    let exit = global.term.decided(if done.failed.is_empty() { Exit::Good } else { Exit::Verdict });
    global.term.out(&match args.format {
        Format::Json => serde_json::to_string_pretty(&done).unwrap_or_default() + "\n",
        // A policy and commands to be copied stay whole.
        Format::Text if done.failed.is_empty() => wrap(&done.text(), global.term.width) + "\n",
        Format::Text => done.text(),
    });
    Ok(exit)
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
        Format::Text => {
            let lines: Vec<String> = scenario::ALL.iter().map(|s| format!("{:<14} {}", s.name, s.about)).collect();
            wrap(&lines.join("\n"), global.term.width) + "\n"
        }
    });
    Exit::Good
}

/// Whether somebody wants this to end, and how they said so.
#[derive(Debug, Default)]
struct Stop {
    asked: AtomicBool,
    terminated: AtomicBool,
}

impl Stop {
    fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    fn exit(&self) -> Exit {
        if self.terminated.load(Ordering::Relaxed) { Exit::Terminated } else { Exit::Interrupted }
    }
}

/// Ctrl-C and SIGTERM end the run at its next step.
fn watch_signals(stop: &Arc<Stop>) -> Result<()> {
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
                _ = term.recv() => stop.terminated.store(true, Ordering::Relaxed),
            }
        });
        stop.asked.store(true, Ordering::Release);
    });
    Ok(())
}
