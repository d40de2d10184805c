//! `llmfo toxiproxy`

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Global;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::fault::server::table::Reach;
use crate::fault::server::{Options, start};

/// A list of proxies larger than this is not read.
const CONFIG_MAX_BYTES: u64 = 4 << 20;

const EXAMPLES: &str = "\
Examples:
  llmfo toxiproxy                                    the API of Toxiproxy 2.12 on 127.0.0.1:8474
  llmfo toxiproxy --port 0 --format json             on a free port; the first line says which
  llmfo toxiproxy --config proxies.json              with the proxies of a list
  curl -d '{\"name\":\"llm\",\"listen\":\"127.0.0.1:9001\",\"upstream\":\"127.0.0.1:8000\"}' 127.0.0.1:8474/proxies
  curl -d '{\"type\":\"cut_after\",\"attributes\":{\"events\":5,\"how\":\"rst\"}}' 127.0.0.1:8474/proxies/llm/toxics

Any Toxiproxy client works with it. What it does differently and in addition: docs/toxiproxy.md.
";

/// How the first line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One line of JSON.
    Json,
}

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address of the API. Anything but loopback needs --api-anywhere.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub host: IpAddr,
    /// Port of the API; 0 takes a free one.
    #[arg(long, default_value_t = 8474)]
    pub port: u16,
    /// A JSON list of proxies to start with, as for POST /populate.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Seed of everything drawn (jitter, toxicity below 1).
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How to say where it listens.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Allow the API on other addresses than loopback. It has no authentication.
    #[arg(long)]
    pub api_anywhere: bool,
    /// Allow proxies to listen on other addresses than loopback.
    #[arg(long)]
    pub listen_anywhere: bool,
    /// Allow proxies to dial other hosts than loopback.
    #[arg(long)]
    pub upstream_anywhere: bool,
}

/// Runs it.
///
/// # Errors
/// A busy port (exit 3), a list that is refused (exit 2).
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if !args.host.is_loopback() && !args.api_anywhere {
        return Err(Expected::usage(
            format!("{} is not a loopback address, and the API has no authentication", args.host),
            "leave --host out, or add --api-anywhere if the network is yours alone",
        ));
    }
    let list = args.config.as_deref().map(read_list).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("no runtime: {e}"), ""))?;
    // Before the first line is out, so that whoever reads it may send a signal at once.
    let (mut int, mut term) = {
        let _entered = runtime.enter();
        let listen = |kind| signal(kind).map_err(|e| Expected::could_not(format!("no signals: {e}"), ""));
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
    };
    let reach = Reach { listen_anywhere: args.listen_anywhere, upstream_anywhere: args.upstream_anywhere };
    let options = Options { reach, seed: args.seed, ..Options::default() };
    let server = start(SocketAddr::new(args.host, args.port), options)?;
    let proxies = list.map_or(Ok(0), |list| server.populate(list))?;
    match args.format {
        Format::Json => global.term.out(
            &json!({ "format": 1, "pid": std::process::id(), "api": server.url(), "proxies": proxies }).to_string(),
        ),
        Format::Human => global.term.out(&format!("fault server: {} ({proxies} proxies)", server.url())),
    }
    runtime.block_on(async {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    });
    server.shutdown();
    Ok(Exit::Good)
}

fn read_list(path: &Path) -> Result<serde_json::Value> {
    let shown = path.display();
    let hint = "it is a JSON list: [{\"name\":\"llm\",\"listen\":\"127.0.0.1:9001\",\"upstream\":\"127.0.0.1:8000\"}]";
    let text = crate::files::text(path, CONFIG_MAX_BYTES)
        .map_err(|e| Expected::usage(format!("cannot read {shown}: {e}"), hint))?;
    serde_json::from_str(&text).map_err(|e| Expected::usage(format!("{shown}: {e}"), hint))
}
