//! The command line: one file per command, arguments and glue only.

pub mod bench;
pub mod completions;
pub mod ctl;
pub mod drill;
pub mod drill_files;
pub mod drill_paths;
pub mod explain;
pub mod keys;
pub mod lab;
pub mod ledger;
mod misused;
pub mod policy_file;
pub mod policy_tests;
pub mod serve;
pub mod simulate;
pub mod toxiproxy;
pub mod trace;
pub mod validate;

use std::io::Write;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::exit::{self, Exit};
use crate::term::{ColorChoice, Term};

const EXAMPLES: &str = "\
Examples:
  llmfo drill run region-outage          break a real path in the embedded lab and judge what the customer saw
  llmfo validate policies/support.yaml   check a route policy
  llmfo serve --policy lab/policies/lab.yaml --listen 127.0.0.1:8080   while `llmfo lab up --dir lab` runs

In an empty folder: `llmfo drill run` brings its own policy; `llmfo lab up --dir lab` writes one that works to lab/policies/lab.yaml and runs the providers that it names; docs/policy.md says how to write your own.
";

/// Know what your customers see when a model, a provider, an account or a region fails.
#[derive(Parser, Debug)]
#[command(name = "llmfo", version, about, after_help = format!("{EXAMPLES}\n{}", exit::HELP))]
pub struct Cli {
    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: ColorChoice,
    /// Say less: errors and the verdict only.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Check a route policy: point at the line, say why and how to mend it.
    Validate(validate::Args),
    /// Explain a finding by its code, for example LF101.
    Explain(explain::Args),
    /// Run a policy as an OpenAI-compatible failover gateway.
    Serve(serve::Args),
    /// Break a real path, judge what the customer saw, restore.
    Drill(drill::Args),
    /// Run a policy through months of outages in seconds, on the same core.
    Simulate(simulate::Args),
    /// A laboratory on loopback: scripted providers, dependencies, a ticket system, a fault server.
    Lab(lab::Args),
    /// The embedded Toxiproxy-compatible fault server alone.
    Toxiproxy(toxiproxy::Args),
    /// What was handed to clients: tool calls that must be checked after an incident.
    Ledger(ledger::Args),
    /// Give orders to a running gateway: bench a target, emergency mode.
    Ctl(ctl::Args),
    /// Make a key for a client of the gateway, or for its admin listener.
    Keys(keys::Args),
    /// One customer's story from a journal: who was asked, why, what failed, what they got.
    Trace(trace::Args),
    /// Measure this gateway beside a real Envoy.
    Bench(bench::Args),
    /// Print shell completions.
    Completions(completions::Args),
}

/// What the command line itself has to say: help, the version, or what is wrong with it. Help that could not be written was
/// asked for in vain, as any other result.
#[must_use]
pub fn told(said: &clap::Error) -> Exit {
    let written = said.print().and_then(|()| std::io::stdout().flush());
    if said.use_stderr() {
        if let Some(step) = misused::next_step(said) {
            let term = Term::detect(ColorChoice::Auto);
            term.err(&term.wrapped_err(&format!("  next: {step}")));
        }
        return Exit::Usage;
    }
    match written {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Term::detect(ColorChoice::Auto).err(&format!("llmfo: the result could not be written: {e}"));
            Exit::CouldNotRun
        }
        Ok(()) | Err(_) => Exit::Good,
    }
}

/// What every command gets.
#[derive(Clone, Copy, Debug)]
pub struct Global {
    /// Terminal facts.
    pub term: Term,
    /// `--quiet`.
    pub quiet: bool,
}

/// Runs a parsed command line.
///
/// # Errors
/// Expected ones, each with its exit code.
pub fn run(cli: Cli) -> Result<Exit> {
    let global = Global { term: Term::detect(cli.color), quiet: cli.quiet };
    match cli.command {
        Command::Validate(args) => validate::run(&global, args),
        Command::Explain(args) => explain::run(&global, args),
        Command::Serve(args) => serve::run(&global, args),
        Command::Drill(args) => drill::run(&global, args),
        Command::Simulate(args) => simulate::run(&global, args),
        Command::Lab(args) => lab::run(&global, args),
        Command::Toxiproxy(args) => toxiproxy::run(&global, args),
        Command::Ledger(args) => ledger::run(&global, args),
        Command::Ctl(args) => ctl::run(&global, args),
        Command::Keys(args) => keys::run(&global, args),
        Command::Trace(args) => trace::run(&global, args),
        Command::Bench(args) => bench::run(&global, args),
        Command::Completions(args) => completions::run(&global, args),
    }
}
