//! `llmfo serve`

mod signals;

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::signals::{Asked, Signals};
use tokio::sync::oneshot;

use super::Global;
use super::keys::{self, AdminKeyFile};
use super::policy_file;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::gateway::ledger::{Ledger, Place};
use crate::gateway::listener::ListenerLimits;
use crate::gateway::orders::Forced;
use crate::gateway::{Doors, Gateway, Settings};
use crate::policy::{Policy, SecretRef};
use crate::telemetry::{JournalSettings, log};
use crate::upstream::read_secret;

const EXAMPLES: &str = "\
Examples:
  llmfo serve --policy lab/policies/lab.yaml                     on 127.0.0.1:8080; `llmfo lab up --dir lab` writes it and runs its providers
  llmfo serve --policy p.yaml --listen 127.0.0.1:0 --format json prints the port it took
  llmfo serve --policy p.yaml --admin 127.0.0.1:9090 --journal /var/log/llmfo/journal.jsonl
  curl -N 127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
       -d '{\"model\":\"support-chat\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'

SIGHUP reads the policy again: requests under way end by the one they began with; a policy that cannot be used is refused, with a log line, an alert and a metric, and the one before goes on. SIGTERM, SIGINT and SIGQUIT drain, and so does a closed terminal: not ready at once, no new connections, open requests finish within --drain-s, then end with an error event. A second signal ends it at once (two within 100 ms are one). Exit code 0 after a drain. Under nohup SIGHUP stays ignored.";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What is written without `--policy` is not taken for one, but answered with it.
    #[arg(value_name = "PATH", hide = true, conflicts_with = "policy")]
    pub stray: Option<PathBuf>,
    /// The policy file. Default: $LLMFO_POLICY, else the only file in ./policies/.
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Where clients dial; port 0 takes a free one. Anything but loopback needs --client-keys.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address)]
    pub listen: SocketAddr,
    /// The file with the hashes of the clients' keys, their routes and quotas (`llmfo keys new NAME` makes a key). Without it
    /// whoever reaches the listener may ask. Read again with the policy.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub client_keys: Option<PathBuf>,
    #[command(flatten)]
    admin_key: AdminKeyFile,
    /// Where operators look: /healthz /readyz /metrics /snapshot /events /decisions/ID. Anything but loopback needs a key.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    pub admin: SocketAddr,
    /// Append events as JSON Lines to this file.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub journal: Option<PathBuf>,
    /// Write everything that goes into the core to this file (no bodies, no secrets), so that `llmfo simulate --inputs` can play
    /// it again.
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub record_inputs: Option<PathBuf>,
    /// Where delivered tool calls are written down, so that a repeated turn never makes one twice; `memory`: nowhere, and a
    /// restart forgets them. Default: a file for this address below the state folder ($XDG_STATE_HOME/llmfo/ledger).
    #[arg(long, value_name = "FILE|memory", value_hint = clap::ValueHint::FilePath)]
    pub ledger: Option<PathBuf>,
    /// Size in MiB at which the journal is rotated; three old files are kept.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub journal_mib: u64,
    /// MiB of request bodies that may be held at one moment, all requests together; a request that would exceed it is refused
    /// with 503 before its upload. One body may have 32 MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(32..=1_048_576))]
    pub bodies_mib: u64,
    /// Change nothing and only watch: of each request the first target of its route that may and can answer it is asked, nobody
    /// else, and what failover would have done is written into journal, metrics and decisions.
    #[arg(long, conflicts_with = "record_inputs")]
    pub observe: bool,
    /// Let faults be forced, for tests: FAULT__TARGET=timeout|503|429|reset|cut in the environment (with _ for -), and
    /// `llmfo ctl fault`. Never in production.
    #[arg(long)]
    pub forced_faults: bool,
    /// Seed of everything that is drawn at random. Default: from the clock.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Let SIGHUP put a policy with a lower serial in the place of one with a higher.
    #[arg(long)]
    pub allow_rollback: bool,
    /// Seconds that open requests have to finish when it is stopped.
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_s: u64,
    /// How to announce the addresses: for people, or one line of JSON.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// Say more: name every setting of the policy that is read and not enforced yet.
    #[arg(long, short)]
    pub verbose: bool,
    /// Stop when standard input ends: whoever started it is gone.
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// For machines: the first line of standard output.
    Json,
}

/// An address and port; what is likely to be meant otherwise is named.
fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().filter(|p| p.parse::<u16>().is_ok()).unwrap_or("8080");
        format!("not an IP address and a port; write 127.0.0.1:{port} or [::1]:{port}")
    })
}

/// How long open requests may go on when whoever started the gateway is gone.
const ORPHAN_DRAIN: Duration = Duration::from_secs(2);

/// Runs it until a signal.
///
/// # Errors
/// A policy that must not be served, a secret or an address that cannot be used.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if let Some(stray) = &args.stray {
        let shown = crate::units::printable(&stray.display().to_string(), 300);
        let what = format!("serve takes no file by itself: {shown}");
        return Err(Expected::usage(what, format!("llmfo serve --policy {shown}")));
    }
    let chosen = policy_file::choose(args.policy.clone())?;
    let policy = load(global, &chosen.path)?;
    if args.observe && !crate::router::observe::something_to_observe(&policy) {
        let what = "--observe with a policy in which no route has anybody to fail over to: there is nothing to observe";
        return Err(Expected::usage(what, "add a second target to a route, or serve it without --observe"));
    }
    crate::files::many_open();
    let logs = logs(global, args.format);
    if args.record_inputs.is_some() && args.record_inputs == args.journal {
        return Err(Expected::usage("--journal and --record-inputs name the same file", "give each a file of its own"));
    }
    let folder = match chosen.path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let clients = args.client_keys.as_deref().map(|path| keys::clients(global, path)).transpose()?;
    let admin_key = args.admin_key.wanted()?;
    credentials(&policy, &chosen.path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("no runtime: {e}"), "raise the limit of threads"))?;
    // Before the ledger and the journals are touched: of a gateway that runs already its port is what must be heard of.
    let doors = runtime.block_on(Doors::open(args.listen, clients.is_some(), args.admin, admin_key.is_some()))?;
    let ledger = Ledger::start(&ledger_place(&args, &chosen.path)?)?;
    let settings = Settings {
        policy: Arc::new(policy),
        folder,
        listen: args.listen,
        admin: args.admin,
        seed: args.seed.unwrap_or_else(seed_from_clock),
        journal: args
            .journal
            .clone()
            .map(|path| JournalSettings { rotate_bytes: args.journal_mib << 20, ..JournalSettings::at(path) }),
        forced: forced_faults(global, args.forced_faults)?,
        inputs: args.record_inputs.clone(),
        ledger: Arc::new(ledger),
        limits: ListenerLimits {
            bodies_bytes: usize::try_from(args.bodies_mib.saturating_mul(1 << 20)).unwrap_or(usize::MAX),
            ..ListenerLimits::default()
        },
        clients,
        observe: args.observe,
        admin_key,
    };
    let exit = runtime.block_on(serve(global, &args, &chosen, settings, doors));
    // Whatever is still open belongs to clients that were told, or to a second signal.
    runtime.shutdown_timeout(Duration::from_millis(100));
    if let Some((queue, writer)) = logs {
        queue.finish(&writer, Duration::from_secs(1));
    }
    exit
}

/// What the environment forces, if that is allowed.
fn forced_faults(global: &Global, allowed: bool) -> Result<Option<Vec<(String, Forced)>>> {
    let found = std::env::vars_os().filter_map(|(name, value)| {
        let target = name.to_str()?.strip_prefix("FAULT__")?.to_owned();
        Some((target, value.to_string_lossy().into_owned()))
    });
    let found: Vec<(String, String)> = found.filter(|(_, value)| !value.is_empty()).collect();
    if !allowed {
        if !found.is_empty() {
            global
                .term
                .err("FAULT__ variables are set and change nothing: faults are forced only with --forced-faults");
        }
        return Ok(None);
    }
    global.term.err("faults may be forced (--forced-faults): this gateway is for tests");
    let read = |(target, value): (String, String)| match Forced::named(&value) {
        Some(forced) => Ok((target, forced)),
        None => Err(Expected::usage(
            format!(
                "FAULT__{}={} is no fault",
                crate::units::printable(&target, 60),
                crate::units::printable(&value, 40)
            ),
            format!("write one of {}", Forced::ALL.map(|(name, _)| name).join(", ")),
        )),
    };
    found.into_iter().map(read).collect::<Result<Vec<_>>>().map(Some)
}

/// One line, or all of them with `--verbose`: what stands below it, the addresses, is what people look for.
fn say_not_enforced(global: &Global, args: &Args, policy: &Policy) {
    let settings = policy.not_enforced.len();
    if global.quiet || settings == 0 {
        return;
    }
    if args.verbose {
        for line in &policy.not_enforced {
            global.term.err(&format!("not enforced yet: {line}"));
        }
    } else {
        global.term.err(&not_enforced(settings));
    }
}

fn not_enforced(settings: usize) -> String {
    let (are, name) = if settings == 1 {
        ("setting of the policy is read and changes nothing", "names it")
    } else {
        ("settings of the policy are read and change nothing", "names them")
    };
    format!("not enforced yet: {settings} {are}; `serve -v` {name}")
}

/// Every credential that cannot be used, in one error: whoever sets one variable per start is not served.
fn credentials(policy: &Policy, chosen: &Path) -> Result<()> {
    let mut unusable: Vec<Expected> = Vec::new();
    for target in &policy.targets {
        let from = match &target.credentials {
            None => continue,
            Some(SecretRef::File(path)) => {
                let path = policy_file::beside(chosen, path).unwrap_or_else(|| PathBuf::from(path));
                SecretRef::File(path.display().to_string())
            }
            Some(from) => from.clone(),
        };
        unusable.extend(read_secret(&target.name, &from).err());
    }
    match unusable.len() {
        0 => Ok(()),
        1 => unusable.pop().map_or(Ok(()), Err),
        n => {
            let all: Vec<String> = unusable.into_iter().map(|e| format!("\n  {}", e.what)).collect();
            Err(Expected::usage(
                format!("{n} credentials cannot be used:{}", all.concat()),
                "set every variable and put every file there, or name other sources under `credentials`",
            ))
        }
    }
}

fn ledger_place(args: &Args, policy: &Path) -> Result<Place> {
    Ok(match &args.ledger {
        Some(named) if named.as_os_str() == "memory" => Place::Memory,
        Some(named) => Place::File(named.clone()),
        None => Place::File(super::ledger::default_file(args.listen, policy)?),
    })
}

/// For people and machines.
fn ledger_named(place: &Place) -> String {
    match place {
        Place::File(path) => crate::units::printable(&path.display().to_string(), 300),
        Place::Memory => "memory".to_owned(),
    }
}

async fn serve(
    global: &Global,
    args: &Args,
    chosen: &policy_file::Chosen,
    settings: Settings,
    doors: Doors,
) -> Result<Exit> {
    let mut signals =
        Signals::catch().map_err(|e| Expected::could_not(format!("signals cannot be caught: {e}"), ""))?;
    let policy = Arc::clone(&settings.policy);
    let ledger = ledger_named(settings.ledger.place());
    let mut gateway = Gateway::start_behind(settings, doors).await?;
    // What keeps it from starting is said alone.
    say_not_enforced(global, args, &policy);
    announce(global, args, chosen, &policy, &ledger, &gateway);
    if !args.listen.ip().is_loopback() && !global.quiet {
        global
            .term
            .err("clients send their keys without TLS: let them reach this address by way of a proxy that has it");
    }
    if policy.expires_unix_s.is_some_and(|at| jiff::Timestamp::now().as_second() >= at) {
        // Also with --quiet: what looks like a service is none.
        global.term.err(&format!("EXPIRED {}", crate::gateway::expiry::text(&policy)));
    }
    let orphaned = stdin_end(args.exit_with_stdin);
    let mut orphaned = std::pin::pin!(async {
        if orphaned.await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let (drain, why) = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop(_, signal) => break (Duration::from_secs(args.drain_s), signal),
                Asked::Reload => reload(global, args, chosen, &mut gateway),
            },
            () = &mut orphaned => {
                break (ORPHAN_DRAIN.min(Duration::from_secs(args.drain_s)), "standard input has ended");
            }
        }
    };
    let (open, began) = (gateway.open(), std::time::Instant::now());
    if open > 0 && !global.quiet {
        global.term.err(&format!("stopping; {open} open requests have {} to finish", crate::units::human(drain)));
    }
    tokio::select! {
        cut = gateway.stop(drain) => {
            let drain_ms = crate::units::told_ms(crate::units::ms(began.elapsed()));
            // Cut requests are said also with --quiet: somebody's answer is missing.
            if cut > 0 {
                tracing::warn!(why, finished = open.saturating_sub(cut), cut, drain_ms, "stopped");
            } else {
                tracing::info!(why, finished = open, cut, drain_ms, "stopped");
            }
            Ok(Exit::Good)
        }
        exit = signals.stop() => {
            let drain_ms = crate::units::told_ms(crate::units::ms(began.elapsed()));
            tracing::warn!(why, open, drain_ms, "stopped at once: a second signal came");
            Ok(exit)
        }
    }
}

/// Reads the policy again. One that cannot be used is told of, and the one that holds goes on.
fn reload(global: &Global, args: &Args, chosen: &policy_file::Chosen, gateway: &mut Gateway) {
    match again(global, args, chosen, gateway) {
        Ok(None) => tracing::info!(
            "nothing changed: the policy is as before; credentials, admission records and texts of adapters were read again"
        ),
        Ok(Some(version)) => tracing::info!(policy = %version, "the policy was replaced"),
        // The alert is the log line too.
        Err(why) => gateway.refused(&format!("{}; next: {}", why.what, why.hint)),
    }
    // Each by itself: a key that is taken away must not wait for a policy that is mended.
    if let Some(path) = &args.client_keys {
        keys::again(global, path, gateway);
    }
}

/// Puts the file's policy in the place of the one that holds; its version, unless it is the same.
fn again(global: &Global, args: &Args, chosen: &policy_file::Chosen, gateway: &mut Gateway) -> Result<Option<String>> {
    let policy = load(global, &chosen.path)?;
    let holds = gateway.policy();
    credentials(&policy, &chosen.path)?;
    // A file without a serial is older than any that has one: else two steps would lead where one may not.
    if let Some(before) = holds.serial.filter(|before| policy.serial.is_none_or(|serial| serial < *before))
        && !args.allow_rollback
    {
        let what = match policy.serial {
            Some(serial) => format!("serial {serial} is lower than {before}, which holds"),
            None => format!("it has no serial, and {before} holds"),
        };
        return Err(Expected::usage(what, "give the file a higher serial, or start with --allow-rollback"));
    }
    let version = crate::units::printable(&policy.version, 100);
    let same = policy.sha256 == holds.sha256;
    gateway.reload(policy)?;
    Ok((!same).then_some(version))
}

/// Tells when standard input ends; with an error at once if that is not wanted.
fn stdin_end(wanted: bool) -> oneshot::Receiver<()> {
    let (tell, ended) = oneshot::channel();
    if wanted {
        // Not a task: a blocking read of standard input would hold up the runtime's end.
        let _ = std::thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut buf = [0; 256];
            let mut stdin = std::io::stdin().lock();
            while matches!(stdin.read(&mut buf), Ok(n) if n > 0) {}
            let _ = tell.send(());
        });
    } else {
        drop(tell);
    }
    ended
}

fn load(global: &Global, path: &Path) -> Result<Policy> {
    policy_file::servable(global, path, "must not be served as it is")
}

fn announce(
    global: &Global,
    args: &Args,
    chosen: &policy_file::Chosen,
    policy: &Policy,
    ledger: &str,
    gateway: &Gateway,
) {
    match args.format {
        Format::Json => {
            let line = serde_json::json!({
                "format": 1,
                "pid": std::process::id(),
                "listen": gateway.listen.to_string(),
                "admin": gateway.admin.to_string(),
                "policy": policy.version,
                "policy_sha256": policy.sha256,
                "ledger": ledger,
                "observe": args.observe,
            });
            global.term.out(&line.to_string());
        }
        Format::Human => {
            let how = if chosen.how.is_empty() { String::new() } else { format!(" ({})", chosen.how) };
            let path = crate::units::printable(&chosen.path.display().to_string(), 300);
            let version = crate::units::printable(&policy.version, 100);
            let observe = if args.observe {
                "OBSERVE only the first target of a route is asked; what failover would have done is written down\n"
            } else {
                ""
            };
            global.term.out(&format!(
                "{observe}policy  {path}{how}, version {version}\nledger  {ledger}{}\nserving http://{}/v1\nadmin   http://{}/snapshot",
                if ledger == "memory" { ": a restart forgets which calls were delivered" } else { "" },
                gateway.listen, gateway.admin
            ));
        }
    }
}

/// Logs go to standard error, by way of a queue: as JSON for machines, in plain lines for people. `RUST_LOG` chooses what.
fn logs(global: &Global, format: Format) -> Option<(log::LogQueue, log::LogWriter)> {
    use tracing_subscriber::EnvFilter;
    let level = if global.quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let (queue, writer) = log::start(std::io::stderr()).ok()?;
    let lines = queue.clone();
    let builder = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_env_filter(filter);
    // A second subscriber in one process is refused; the first one stays.
    let _ = match format {
        // The module's name would stand under `target` too, behind the target's own.
        Format::Json => builder.json().flatten_event(true).with_target(false).try_init(),
        Format::Human => builder.with_ansi(global.term.err_color).with_target(false).try_init(),
    };
    Some((queue, writer))
}

fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX) ^ u64::from(std::process::id()).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_half_is_answered_with_an_example() {
        assert_eq!(address("[::1]:9782").unwrap().port(), 9782);
        for text in ["9782", ":9782", "localhost:9782"] {
            assert!(address(text).unwrap_err().ends_with("write 127.0.0.1:9782 or [::1]:9782"), "{text}");
        }
        assert!(address("127.0.0.1").unwrap_err().contains("127.0.0.1:8080"));
    }

    #[test]
    fn one_setting_is_read_and_changes_nothing() {
        let one = "not enforced yet: 1 setting of the policy is read and changes nothing; `serve -v` names it";
        let two = "not enforced yet: 2 settings of the policy are read and change nothing; `serve -v` names them";
        assert_eq!((not_enforced(1).as_str(), not_enforced(2).as_str()), (one, two));
    }
}
