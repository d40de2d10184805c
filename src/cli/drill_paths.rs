//! `llmfo drill paths`: the wiring that makes a policy's own paths breakable.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::Global;
use super::drill::Format;
use super::policy_file::{self, Kind};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::policy::Policy;
use crate::units::printable;
use crate::upstream::Endpoint;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Nothing is contacted and nothing is changed: what is printed is for you to use. One path per target, named
<region>.<target>. With connect_to only the address that is dialled changes: Host header, SNI and the check of the
certificate stay those of base_url.

Examples:
  llmfo drill paths --policy mine.yaml
  llmfo drill paths --policy mine.yaml --format json | jq .populate |
    curl --data @- http://127.0.0.1:8474/populate")]
pub struct Args {
    /// The policy.
    #[arg(long, value_name = "FILE", env = "LLMFO_POLICY", value_hint = clap::ValueHint::FilePath)]
    pub policy: PathBuf,
    /// First port of the paths; each target takes the next one.
    #[arg(long, value_name = "PORT", default_value_t = 21_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub from_port: u16,
    /// For people, or one JSON document.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wire {
    target: String,
    proxy: String,
    listen: String,
    upstream: String,
}

/// Runs it.
///
/// # Errors
/// The policy cannot be used, or has more targets than there are ports.
pub fn run(global: &Global, args: &Args) -> Result<Exit> {
    let shown = printable(&args.policy.display().to_string(), 300);
    let loaded = policy_file::read(&args.policy)?.policy(&shown);
    policy_file::of_kind(Kind::Policy, &loaded.doc, &shown)?;
    let policy = loaded.policy.ok_or_else(|| {
        Expected::usage(format!("{shown} cannot be used"), format!("llmfo validate {shown} says where and why"))
    })?;
    let wires = wires(&policy, args.from_port)?;
    match args.format {
        Format::Json => {
            let connect: BTreeMap<&str, &str> = wires.iter().map(|w| (w.target.as_str(), w.listen.as_str())).collect();
            let whole = json!({ "format": 1, "populate": populate(&wires), "connect_to": connect });
            global.term.out(&format!("{whole:#}\n"));
        }
        Format::Human => global.term.out(&human(&wires)),
    }
    Ok(Exit::Good)
}

fn wires(policy: &Policy, from_port: u16) -> Result<Vec<Wire>> {
    let mut port = Some(from_port);
    let mut all = Vec::new();
    for target in policy.live_targets() {
        let endpoint = Endpoint::new(&target.base_url, target.connect_to.as_deref())?;
        let next = port.ok_or_else(|| {
            Expected::usage(
                format!("there are not enough ports from {from_port} on for {} targets", policy.live_targets().count()),
                "name a lower one: --from-port PORT",
            )
        })?;
        port = next.checked_add(1);
        let host = &endpoint.dial_host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let region = target.domains.get("region");
        all.push(Wire {
            target: target.name.clone(),
            proxy: region.map_or_else(|| target.name.clone(), |region| format!("{region}.{}", target.name)),
            listen: format!("127.0.0.1:{next}"),
            upstream: format!("{host}:{}", endpoint.dial_port),
        });
    }
    Ok(all)
}

fn populate(wires: &[Wire]) -> Vec<Value> {
    let proxy = |w: &Wire| json!({ "name": w.proxy, "listen": w.listen, "upstream": w.upstream, "enabled": true });
    wires.iter().map(proxy).collect()
}

fn human(wires: &[Wire]) -> String {
    let rows: Vec<String> = populate(wires).iter().map(|row| format!("  {row}")).collect();
    let mut out = format!(
        "# For the fault server: POST http://127.0.0.1:8474/populate\n[\n{}\n]\n\n# For a copy of the policy, below each target\n",
        rows.join(",\n")
    );
    out.push_str("targets:\n");
    for wire in wires {
        out.push_str(&format!("  {}:\n    connect_to: {}\n", printable(&wire.target, 128), wire.listen));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n\
        \x20 a: { base_url: 'https://api.vendor.example/v1', model: m, domains: { region: eu } }\n\
        \x20 b: { base_url: 'http://[::1]:8000/v1', model: m }\n\
        \x20 c: { base_url: 'https://api.vendor.example/v1', connect_to: '10.0.0.7:8443', model: n, domains: { region: us } }\n\
        pools: { all: { targets: [a, b, c] } }\nroutes:\n\
        \x20 - { route: chat, data: none, deadline_ms: 8000, attempts: [{ pool: all, first_token_timeout_ms: 2000 }] }\n";

    #[test]
    fn every_target_has_a_path_of_its_own_to_where_it_is_dialled() {
        let (policy, found) = crate::policy::load("t.yaml", POLICY.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}"));
        let wire = |target: &str, proxy: &str, port: u16, upstream: &str| Wire {
            target: target.into(),
            proxy: proxy.into(),
            listen: format!("127.0.0.1:{port}"),
            upstream: upstream.into(),
        };
        let right = [
            wire("a", "eu.a", 65_533, "api.vendor.example:443"),
            wire("b", "b", 65_534, "[::1]:8000"),
            wire("c", "us.c", 65_535, "10.0.0.7:8443"),
        ];
        assert_eq!(wires(&policy, 65_533).unwrap(), right);
        assert!(wires(&policy, 65_534).is_err());
        let said = human(&right);
        let (json, yaml) = said.split_once("\n\n").unwrap();
        let rows: Vec<Value> = serde_json::from_str(json.split_once('\n').unwrap().1).unwrap();
        assert_eq!(rows[0]["upstream"], "api.vendor.example:443");
        assert!(yaml.ends_with("  c:\n    connect_to: 127.0.0.1:65535\n"), "{yaml}");
    }
}
