//! `llmfo lab`

use std::io::Read;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use super::Global;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::lab::up::{Lab, Options};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// `llmfo lab ...`
#[derive(clap::Subcommand, Debug)]
pub enum LabCommand {
    /// Start providers, dependencies, a ticket system and a fault server, print where they are, run until stopped.
    Up(UpArgs),
}

/// Arguments of `lab up`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Prints one line of JSON: {format, pid, dir, admin, policy, toxiproxy, embedded, providers, entries}. Starts no gateway.
Runs until SIGINT, SIGTERM, SIGQUIT or SIGHUP, then removes its proxies and exits 0 (6 if a proxy may be left).

Examples:
  llmfo lab up                                          everything inside this process
  llmfo lab up --toxiproxy http://127.0.0.1:8474        proxies on a Toxiproxy that runs already
  llmfo lab up --dir /tmp/lab > lab.json &              keep policy and evidence in /tmp/lab, go on in this shell")]
pub struct UpArgs {
    /// Use this Toxiproxy (API address) instead of the embedded fault server.
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    pub toxiproxy: Option<String>,
    /// Folder for the policy and the admission records [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Seed of the providers' pacing.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also stop when standard input reaches its end: the lab ends with the program that started it.
    #[arg(long)]
    pub exit_with_stdin: bool,
}

/// Runs it.
///
/// # Errors
/// Expected ones.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let LabCommand::Up(args) = args.command;
    args.toxiproxy.as_deref().map_or(Ok(()), super::drill::usable_toxiproxy)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("cannot start the runtime: {e}"), ""))?;
    let done = runtime.block_on(up(global, args));
    // A thread may still wait on standard input.
    runtime.shutdown_background();
    done
}

async fn up(global: &Global, args: UpArgs) -> Result<Exit> {
    let cannot = |e: std::io::Error| Expected::could_not(format!("cannot listen for signals: {e}"), "");
    // Before anything is started, so that a signal in between is not lost.
    let [mut interrupt, mut terminate, mut quit, mut hangup] = [
        signal(SignalKind::interrupt()).map_err(cannot)?,
        signal(SignalKind::terminate()).map_err(cannot)?,
        signal(SignalKind::quit()).map_err(cannot)?,
        signal(SignalKind::hangup()).map_err(cannot)?,
    ];
    let lab = Lab::up(&Options { toxiproxy: args.toxiproxy, dir: args.dir, seed: args.seed }).await?;
    let line = serde_json::to_string(&lab.line())
        .map_err(|e| Expected::could_not(format!("the lab cannot be described: {e}"), ""))?;
    global.term.out(&line);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = quit.recv() => {}
        _ = hangup.recv() => {}
        () = stdin_end(args.exit_with_stdin) => {}
    }
    lab.down().await?;
    Ok(Exit::Good)
}

/// Returns when standard input reaches its end; never, if that is not wanted.
async fn stdin_end(wanted: bool) {
    if !wanted {
        return std::future::pending().await;
    }
    let (ended, wait) = tokio::sync::oneshot::channel();
    // A thread of its own: a blocking read cannot be cancelled, and must not hold up the end of the runtime.
    std::thread::spawn(move || {
        let mut bytes = [0u8; 4096];
        while matches!(std::io::stdin().lock().read(&mut bytes), Ok(n) if n > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}
