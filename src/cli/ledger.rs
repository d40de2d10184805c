//! `llmfo ledger`

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Global;
use super::keys::AdminKeyFile;
use crate::drill::run::safety::state_folder;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::gateway::ledger::disk::{Disk, NotOpened};
use crate::gateway::ledger::listing::{Filter, Listed, Listing, Which, list};
use crate::gateway::ledger::store::Store;
use crate::gateway::ledger::{Beside, beside};
use crate::policy::{SideEffects, sha256_hex};
use crate::router::ledger::CallState;
use crate::units::printable;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: LedgerCommand,
}

/// `llmfo ledger ...`
#[derive(clap::Subcommand, Debug)]
pub enum LedgerCommand {
    /// List tool calls that were handed to clients: what must be checked after an incident.
    List(ListArgs),
}

/// Arguments of `ledger list`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Works without a gateway and beside a running one: a ledger in use is read through its gateway's admin listener.
Exit code 0 if there are such calls, 4 if there is none. Arguments of calls may speak of people and are not shown.

Examples:
  llmfo ledger list                                   delivered, no result came back, twice would harm
  llmfo ledger list --state all --since 2h
  llmfo ledger list --ledger /var/lib/llmfo/ledger.redb --format json
  llmfo ledger list --admin 127.0.0.1:9090            ask this gateway")]
pub struct ListArgs {
    /// Which calls. `unconfirmed`: delivered, no result has come back, and to run them twice would harm.
    #[arg(long, value_enum, default_value_t, value_name = "STATE")]
    pub state: State,
    /// Only calls handed out since then: a span (30m, 2h, 7d) or a time (2026-11-30T12:00:00Z).
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// The ledger's file. Default: the only one below the state folder, where `llmfo serve` puts it.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub ledger: Option<PathBuf>,
    /// Ask the admin listener of a running gateway instead of reading a file.
    #[arg(long, value_name = "ADDR", conflicts_with = "ledger")]
    pub admin: Option<std::net::SocketAddr>,
    #[command(flatten)]
    admin_key: AdminKeyFile,
    /// With the arguments of each call, in JSON. They may hold personal data.
    #[arg(long, requires = "format")]
    pub with_arguments: bool,
    /// For people, or one JSON document.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// `--state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum State {
    /// Delivered, no result has come back, and twice would harm.
    #[default]
    Unconfirmed,
    /// Handed to the client.
    Delivered,
    /// Its result came back.
    Confirmed,
    /// Written by a model; it has not reached the client.
    Proposed,
    /// All.
    All,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Unconfirmed => "unconfirmed",
            State::Delivered => "delivered",
            State::Confirmed => "confirmed",
            State::Proposed => "proposed",
            State::All => "all",
        }
    }
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Human,
    /// One document.
    Json,
}

/// Longest wait for a gateway's answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Runs it.
///
/// # Errors
/// No ledger, or one that cannot be read.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let LedgerCommand::List(args) = args.command;
    let since_unix_ms = match &args.since {
        None => 0,
        Some(text) => since(text, jiff::Timestamp::now())?,
    };
    let which = Which::named(args.state.name()).unwrap_or(Which::Unconfirmed);
    let filter = Filter { which, since_unix_ms, arguments: args.with_arguments };
    let (listing, from) = match (&args.admin, &args.ledger) {
        (Some(admin), _) => (ask(*admin, &args, since_unix_ms)?, format!("the gateway at {admin}")),
        (None, Some(path)) => read(path, &filter, &args, since_unix_ms)?,
        (None, None) => read(&only_one()?, &filter, &args, since_unix_ms)?,
    };
    let exit = if listing.calls.is_empty() { Exit::Nothing } else { Exit::Good };
    match args.format {
        Format::Json => {
            let text = serde_json::to_string_pretty(&listing);
            global.term.out(&text.map_err(|e| Expected::could_not(format!("the list cannot be written: {e}"), ""))?);
        }
        Format::Human => human(global, &listing, &from, args.state),
    }
    Ok(exit)
}

fn human(global: &Global, listing: &Listing, from: &str, state: State) {
    if !global.quiet {
        global.term.err(&format!("read from {from}"));
    }
    if listing.calls.is_empty() {
        return global
            .term
            .err(&format!("no call is {} in it", if state == State::All { "there" } else { state.name() }));
    }
    let word = |state: CallState| match state {
        CallState::Proposed => "proposed",
        CallState::Delivered => "delivered",
        CallState::Confirmed => "confirmed",
    };
    let effects = |effects: SideEffects| match effects {
        SideEffects::None => "harmless",
        SideEffects::Idempotent => "idempotent",
        SideEffects::Keyed => "keyed",
        SideEffects::Unkeyed => "unkeyed",
    };
    // No table: a key must be copied whole, however narrow the terminal.
    let tell = |c: &Listed| {
        let of = |text: &str| printable(text, 256);
        format!(
            "{:<10} {}  {} turn {}  {} ({})\n           {}  call {}  client {}  route {}",
            word(c.state),
            of(&c.since),
            of(&c.conversation),
            c.turn,
            of(&c.tool),
            effects(c.side_effects),
            c.key.as_deref().map_or_else(|| "no key".to_owned(), |key| format!("key {}", of(key))),
            of(&c.call_id),
            of(&c.client),
            of(&c.route),
        )
    };
    global.term.out(&listing.calls.iter().map(tell).collect::<Vec<_>>().join("\n"));
    if listing.left_out > 0 {
        global.term.err(&format!("{} older ones are not shown; narrow it with --since or --state", listing.left_out));
    }
    if state == State::Unconfirmed && !global.quiet {
        global.term.err(
            "look each up in the system of record, by its key where it has one, else by what it was to do (--format json --with-arguments): whether it ran is not known here",
        );
    }
}

/// From the file, or, if a gateway has it, from that gateway.
fn read(path: &Path, filter: &Filter, args: &ListArgs, since_unix_ms: u64) -> Result<(Listing, String)> {
    let name = printable(&path.display().to_string(), 300);
    match Disk::existing(path) {
        Ok(mut disk) => {
            let rows = disk.calls(filter.arguments).map_err(|why| NotOpened::Unreadable(why).told(path))?;
            Ok((list(rows, filter), name))
        }
        Err(NotOpened::InUse) => {
            let Some(user) = Beside::read(&beside(path)) else {
                return Err(Expected::could_not(
                    format!("the ledger {name} is in use, and it is not known by which gateway"),
                    "name its admin listener: llmfo ledger list --admin ADDR",
                ));
            };
            let listing = ask(user.admin, args, since_unix_ms)?;
            Ok((listing, format!("{name}, through the gateway with pid {} at {}", user.pid, user.admin)))
        }
        Err(NotOpened::Io(why)) if !path.exists() => Err(Expected::usage(
            format!("there is no ledger {name} ({why})"),
            "name the file that `llmfo serve` prints at its start",
        )),
        Err(NotOpened::Io(why)) => Err(Expected::could_not(
            format!("the ledger {name} cannot be read: {}", printable(&why, 200)),
            "its gateway's user may read it; or ask a running gateway: llmfo ledger list --admin ADDR",
        )),
        Err(other) => Err(other.told(path)),
    }
}

fn ask(admin: std::net::SocketAddr, args: &ListArgs, since_unix_ms: u64) -> Result<Listing> {
    let url = format!(
        "http://{admin}/ledger?state={}&since_unix_ms={since_unix_ms}&arguments={}",
        args.state.name(),
        u8::from(args.with_arguments)
    );
    let failed = |why: String| {
        Expected::could_not(
            format!("the gateway's admin listener at {admin} gave no list: {}", printable(&why, 200)),
            "see that it is a gateway of this version and that it runs; once it has stopped the file itself can be read",
        )
    };
    let key = args.admin_key.read()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| failed(e.to_string()))?;
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().map_err(|e| failed(e.to_string()))?;
        let asked = match &key {
            Some(key) => client.get(url).bearer_auth(key),
            None => client.get(url),
        };
        let mut answer = asked.send().await.map_err(|e| failed(e.to_string()))?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|e| failed(e.to_string()))? {
            body.extend_from_slice(&part);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(failed("its answer is too long".to_owned()));
            }
        }
        if status == reqwest::StatusCode::UNAUTHORIZED {
            return Err(Expected::usage(
                format!("the gateway's admin listener at {admin} wants a key"),
                super::keys::GIVE_ADMIN_KEY,
            ));
        }
        if !status.is_success() {
            return Err(failed(format!("status {}: {}", status.as_u16(), String::from_utf8_lossy(&body))));
        }
        serde_json::from_slice(&body).map_err(|e| failed(e.to_string()))
    })
}

/// The folder of ledgers that nobody has named.
fn folder() -> Result<PathBuf> {
    let hint =
        "name a file: --ledger FILE (`llmfo serve --ledger memory` keeps it in memory, and a restart forgets it)";
    state_folder().map(|state| state.join("ledger")).map_err(|e| Expected { hint: hint.to_owned(), ..e })
}

/// Where `serve` keeps the ledger if nobody says: one file per address, else (port 0) per policy file.
///
/// # Errors
/// There is no state folder.
pub fn default_file(listen: std::net::SocketAddr, policy: &Path) -> Result<PathBuf> {
    let name = if listen.port() == 0 {
        let path = std::path::absolute(policy).unwrap_or_else(|_| policy.to_owned());
        let hash = sha256_hex(path.display().to_string().as_bytes());
        format!("policy-{}", hash.get(..12).unwrap_or(&hash))
    } else {
        format!("{}-{}", listen.ip().to_string().replace(':', "."), listen.port())
    };
    Ok(folder()?.join(format!("{name}.redb")))
}

/// The admin listener of the only gateway that runs with a ledger of its own below the state folder.
///
/// # Errors
/// None is found, or several are.
pub fn only_gateway() -> Result<std::net::SocketAddr> {
    let hint = "`llmfo serve` prints it at start: --admin ADDR, or LLMFO_ADMIN";
    let entries = std::fs::read_dir(folder()?).into_iter().flatten().flatten().map(|e| e.path());
    let notes = entries.filter(|p| p.extension().is_some_and(|e| e == "gateway"));
    let mut found: Vec<Beside> = notes.filter_map(|path| Beside::read(&path)).filter(|b| runs(b.pid)).collect();
    match (found.len(), found.pop()) {
        (1, Some(one)) => Ok(one.admin),
        (0, _) => Err(Expected::usage("no admin listener is named, and no running gateway was found", hint)),
        (_, last) => {
            found.extend(last);
            let mut at: Vec<String> = notes_of(&found);
            at.sort_unstable();
            Err(Expected::usage(
                format!("no admin listener is named, and {} gateways run: {}", at.len(), at.join(", ")),
                format!("name one of them: --admin {}", at.first().map_or("ADDR", String::as_str)),
            ))
        }
    }
}

/// Admin listeners, for people. A gateway of several ledgers is one.
fn notes_of(found: &[Beside]) -> Vec<String> {
    let all: std::collections::BTreeSet<String> = found.iter().map(|b| b.admin.to_string()).collect();
    all.into_iter().collect()
}

/// True if a process has this number.
fn runs(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}

fn only_one() -> Result<PathBuf> {
    let folder = folder()?;
    let shown = printable(&folder.display().to_string(), 300);
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut found: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "redb")).collect();
    found.sort_unstable();
    match found.len() {
        0 => Err(Expected::usage(
            format!("there is no ledger in {shown}"),
            "name the file that `llmfo serve` prints at its start: --ledger FILE",
        )),
        1 => Ok(found.remove(0)),
        n => {
            let names: Vec<String> = found.iter().take(10).map(|p| printable(&p.display().to_string(), 300)).collect();
            Err(Expected::usage(
                format!("there are {n} ledgers in {shown}:\n  {}", names.join("\n  ")),
                "name one: --ledger FILE",
            ))
        }
    }
}

/// A span before now, or a time.
fn since(text: &str, now: jiff::Timestamp) -> Result<u64> {
    let bad = || {
        Expected::usage(
            format!("--since {} is neither a span nor a time", printable(text, 60)),
            "write 30m, 2h or 7d, or a time as 2026-11-30T12:00:00Z",
        )
    };
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(u64::try_from(at.as_millisecond()).unwrap_or(0));
    }
    let unit = text.chars().next_back().ok_or_else(bad)?;
    let number: u64 = text.strip_suffix(unit).and_then(|n| n.parse().ok()).ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    let span_ms = number.saturating_mul(seconds).saturating_mul(1_000);
    Ok(u64::try_from(now.as_millisecond()).unwrap_or(0).saturating_sub(span_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_span_or_a_time() {
        let now: jiff::Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let ms = |text: &str| since(text, now).unwrap();
        let at = |text: &str| u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap();
        assert_eq!(ms("30m"), at("2026-11-30T11:30:00Z"));
        assert_eq!(ms("7d"), at("2026-11-23T12:00:00Z"));
        assert_eq!(ms("2026-11-29T00:00:00Z"), at("2026-11-29T00:00:00Z"));
        assert_eq!(ms("9999999999999999d"), 0);
        for bad in ["", "h", "2 weeks", "-3h", "yesterday", "3é"] {
            assert!(since(bad, now).is_err(), "{bad}");
        }
    }
}
