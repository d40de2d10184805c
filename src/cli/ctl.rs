//! `llmfo ctl`: orders to a running gateway.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::Global;
use super::keys::AdminKeyFile;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::gateway::admin::orders::REASON;
use crate::gateway::orders::{Forced, LONGEST};
use crate::spec::policy_tests::moment_ms;
use crate::term::table::table;
use crate::units::{human, printable};

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Every order needs a reason, is written to the journal (event `order`), and ends by itself. A policy that is read again changes no order; a restart ends them all.

Examples:
  llmfo ctl bench local-a --for 30m --reason \"driver update, INC-1234\"
  llmfo ctl unbench local-a --reason \"done\"
  llmfo ctl emergency --for 10m --reason \"region kz-1 is lost\"
  llmfo ctl emergency --off --reason \"over\"
  llmfo ctl list --admin 127.0.0.1:9090

Exit code 0 if the gateway has taken it, 2 if it refused, 3 if it cannot be reached.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
    /// The gateway's admin listener. Default: that of the only gateway with a ledger below the state folder.
    #[arg(long, global = true, value_name = "ADDR", env = "LLMFO_ADMIN")]
    pub admin: Option<SocketAddr>,
    #[command(flatten)]
    admin_key: AdminKeyFile,
    /// For people, or the list of orders as JSON.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One document.
    Json,
}

/// `llmfo ctl ...`
#[derive(clap::Subcommand, Debug)]
pub enum CtlCommand {
    /// Take a target out of service.
    Bench {
        /// By its name in the policy.
        target: String,
        /// How long, and why.
        #[command(flatten)]
        how: How,
    },
    /// Let a target back in before its time.
    Unbench {
        /// By its name in the policy.
        target: String,
        /// Why.
        #[command(flatten)]
        why: Why,
    },
    /// Refuse what the policy gives up first, and cap answers, as its `on_capacity_exhausted` says.
    Emergency {
        /// End it.
        #[arg(long)]
        off: bool,
        /// How long, and why.
        #[command(flatten)]
        how: How,
    },
    /// Make a target fail, for a test: only where the gateway was started with --forced-faults.
    Fault {
        /// By its name in the policy.
        target: String,
        /// How: timeout, 503, 429, reset, cut; or off.
        #[arg(value_name = "FAULT")]
        fault: String,
        /// How long, and why.
        #[command(flatten)]
        how: How,
    },
    /// Say which orders stand.
    List,
}

/// How long, and why.
#[derive(clap::Args, Debug)]
pub struct How {
    /// It ends by itself after this: 90s, 10m, 1h30m; at most a day.
    #[arg(long = "for", value_name = "SPAN", default_value = "10m")]
    pub lasts: String,
    #[command(flatten)]
    why: Why,
}

/// Why.
#[derive(clap::Args, Debug)]
pub struct Why {
    /// Why, for those who read the journal afterwards.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Longest wait for the gateway's answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What is asked of the gateway.
struct Ask {
    method: reqwest::Method,
    path: String,
    reason: String,
    done: String,
}

/// Runs it.
///
/// # Errors
/// The gateway cannot be reached, or refuses.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let ask = ask_of(&args.command)?;
    let admin = match args.admin {
        Some(admin) => admin,
        None => super::ledger::only_gateway()?,
    };
    let key = args.admin_key.read()?;
    let (done, answer) = (ask.done.clone(), send(admin, key.as_deref(), ask)?);
    match args.format {
        Format::Json => global.term.out(&format!("{answer:#}\n")),
        Format::Human => {
            if !global.quiet && !done.is_empty() {
                global.term.err(&done);
            }
            for note in answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                global.term.err(&format!("note: {}", printable(note, 300)));
            }
            human_list(global, &answer);
        }
    }
    Ok(Exit::Good)
}

fn ask_of(command: &CtlCommand) -> Result<Ask> {
    let name = |target: &str| percent(target);
    Ok(match command {
        CtlCommand::List => {
            Ask { method: reqwest::Method::GET, path: "/orders".into(), reason: String::new(), done: String::new() }
        }
        CtlCommand::Bench { target, how } => given(format!("/orders/bench/{}", name(target)), "", how)?,
        CtlCommand::Unbench { target, why } => ended(format!("/orders/bench/{}", name(target)), &why.reason)?,
        CtlCommand::Emergency { off: true, how } => ended("/orders/emergency".into(), &how.why.reason)?,
        CtlCommand::Emergency { off: false, how } => given("/orders/emergency".into(), "", how)?,
        CtlCommand::Fault { target, fault, how } => {
            let path = format!("/orders/fault/{}", name(target));
            match (fault.as_str(), Forced::named(fault)) {
                ("off", _) => ended(path, &how.why.reason)?,
                (_, Some(forced)) => given(path, &format!("as={}&", forced.name()), how)?,
                (other, None) => {
                    return Err(Expected::usage(
                        format!("{} is no fault", printable(other, 60)),
                        format!("write one of {}, or off", Forced::ALL.map(|(name, _)| name).join(", ")),
                    ));
                }
            }
        }
    })
}

fn given(path: String, query: &str, how: &How) -> Result<Ask> {
    let ms = moment_ms(&how.lasts).map_err(|why| {
        Expected::usage(format!("--for {}: {why}", printable(&how.lasts, 40)), "write 90s, 10m or 1h30m, 24h at most")
    })?;
    let lasts = Duration::from_millis(ms);
    if lasts < Duration::from_secs(1) || lasts > LONGEST {
        return Err(Expected::usage(
            format!("--for {} is not between a second and a day", printable(&how.lasts, 40)),
            "an order that is forgotten must end: write 24h at most, and give it again if need be",
        ));
    }
    let path = format!("{path}?{query}for_s={}", lasts.as_secs());
    let done = format!("taken; it ends by itself in {}", human(lasts));
    Ok(Ask { method: reqwest::Method::POST, path, reason: reason(&how.why.reason)?, done })
}

fn ended(path: String, why: &str) -> Result<Ask> {
    Ok(Ask { method: reqwest::Method::DELETE, path, reason: reason(why)?, done: "ended".into() })
}

/// As it fits into a header.
fn reason(text: &str) -> Result<String> {
    let text: String = text.trim().chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    if text.is_empty() {
        return Err(Expected::usage("--reason is empty", "say why: it is what others will read afterwards"));
    }
    Ok(text)
}

/// Whatever is in a name, it is one part of a path.
fn percent(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn send(admin: SocketAddr, key: Option<&str>, ask: Ask) -> Result<Value> {
    let unreachable = |why: String| {
        Expected::could_not(
            format!("the gateway's admin listener at {admin} did not answer: {}", printable(&why, 200)),
            "`llmfo serve` prints its address at start: --admin ADDR, or LLMFO_ADMIN",
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| unreachable(e.to_string()))?;
    let (status, body) = runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build();
        let client = client.map_err(|e| unreachable(e.to_string()))?;
        let url = format!("http://{admin}{}", ask.path);
        let asked = client.request(ask.method, url).header(REASON, ask.reason);
        let asked = match key {
            Some(key) => asked.bearer_auth(key),
            None => asked,
        };
        let mut answer = asked.send().await.map_err(|e| unreachable(e.to_string()))?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|e| unreachable(e.to_string()))? {
            body.extend_from_slice(&part);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(unreachable("its answer is too long".to_owned()));
            }
        }
        Ok((status, body))
    })?;
    let read: Option<Value> = serde_json::from_slice(&body).ok();
    let said = read.as_ref().and_then(|v| v.pointer("/error/message")).and_then(Value::as_str);
    match (status.is_success(), &read, said) {
        (true, Some(answer), _) => Ok(answer.clone()),
        (_, _, Some(said)) => {
            let code = read.as_ref().and_then(|v| v.pointer("/error/code")).and_then(Value::as_str).unwrap_or_default();
            Err(Expected::usage(format!("refused: {}", printable(said, 800)), step_after(code)))
        }
        _ => Err(unreachable(format!("status {}, and no list of orders", status.as_u16()))),
    }
}

/// What helps after a refusal.
fn step_after(code: &str) -> &'static str {
    match code {
        "invalid_api_key" => super::keys::GIVE_ADMIN_KEY,
        "unknown_target" => {
            "write one of the names that are known: they are those under `targets` of the gateway's policy"
        }
        "faults_not_allowed" => {
            "start the gateway with `llmfo serve --forced-faults`, for a test and never in production"
        }
        "no_such_order" => "only an order that stands can be ended; one whose time is over has ended by itself",
        _ => "`llmfo ctl list` says what stands, `llmfo ctl --help` what can be ordered",
    }
}

fn human_list(global: &Global, answer: &Value) {
    let orders = answer["orders"].as_array().map(Vec::as_slice).unwrap_or_default();
    if orders.is_empty() {
        return global.term.err("no order stands");
    }
    let text = |v: &Value| v.as_str().map_or_else(|| "-".to_owned(), |s| printable(s, 200));
    let rows: Vec<Vec<String>> = orders
        .iter()
        .map(|o| {
            let ends = o["ends_in_ms"].as_u64().map_or_else(|| "never".into(), |ms| human(Duration::from_millis(ms)));
            vec![text(&o["order"]), text(&o["target"]), text(&o["fault"]), ends, text(&o["reason"])]
        })
        .collect();
    global.term.out(&table(&["order", "target", "fault", "ends in", "reason"], &rows, &[], global.term.width));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_reasons_fit_where_they_go() {
        assert_eq!(percent("local-a"), "local-a");
        assert_eq!(percent("a/../b c\u{e9}"), "a%2F..%2Fb%20c%C3%A9");
        assert_eq!(reason("  INC-1\r\nx: y  ").unwrap(), "INC-1??x: y");
        assert!(reason(" \t ").is_err());
    }

    #[test]
    fn spans_are_bounded() {
        let how = |lasts: &str| How { lasts: lasts.into(), why: Why { reason: "r".into() } };
        assert_eq!(given("/p".into(), "as=503&", &how("1h30m")).unwrap().path, "/p?as=503&for_s=5400");
        for bad in ["", "0s", "500ms", "25h", "soon", "-5m"] {
            assert!(given("/p".into(), "", &how(bad)).is_err(), "{bad}");
        }
        // A day is the most, and every refusal of a span says so.
        assert_eq!(given("/p".into(), "", &how("24h")).unwrap().path, "/p?for_s=86400");
        for long in ["2d", "25h", "1w"] {
            let said = given("/p".into(), "", &how(long)).map(|_| ()).unwrap_err();
            assert!(said.hint.contains("24h at most"), "{long}: {} {}", said.what, said.hint);
        }
    }
}
