//! Whom a drill's requests will reach: looked at before the first of them is sent. A policy names real providers; a drill
//! is for the lab's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Expected, Result};
use crate::lab::topology::Topology;
use crate::load::http::Base;
use crate::policy::{Loaded, Policy, Target};
use crate::units::printable;

const CLEAR: &str =
    "a drill sends requests to nobody but the lab: leave the other targets out of the policy that you drill";

/// A policy whose lab addresses are filled in, and where it is written for the gateways.
pub struct Led {
    /// What the gateways of the run read.
    pub path: PathBuf,
    /// The same, read.
    pub policy: Policy,
}

/// A policy that leads to the embedded lab names the lab's providers and nobody else.
///
/// # Errors
/// A target that is no provider of the lab, which the gateway could dial (exit 2).
pub fn names_the_lab_s(name: &Path, policy: &Policy, topology: &Topology) -> Result<()> {
    let known: Vec<&str> = topology.providers.iter().map(|p| p.name.as_str()).collect();
    let strangers: Vec<String> =
        policy.targets.iter().filter(|t| !known.contains(&t.name.as_str())).map(|t| told(t)).collect();
    if strangers.is_empty() {
        return Ok(());
    }
    let shown = printable(&name.display().to_string(), 300);
    Err(Expected::usage(
        format!("{shown} dials more than the lab: {}", strangers.join(", ")),
        format!("{CLEAR}, and call those that the lab stands in for {}", known.join(" and ")),
    ))
}

/// For gateways that the drill starts: a copy of the policy in which the lab's providers are dialled at this lab's addresses,
/// with no key in it, and with admission records of what the lab's providers can do.
///
/// # Errors
/// A target that is no provider of the lab, which the gateway could dial (exit 2); the copy cannot be written.
pub fn led_to_the_lab(name: &Path, loaded: &Loaded, topology: &Topology) -> Result<Led> {
    let shown = printable(&name.display().to_string(), 300);
    let at: BTreeMap<&str, &str> =
        topology.providers.iter().map(|p| (p.name.as_str(), p.proxied_url.as_str())).collect();
    if let Some(policy) = &loaded.policy {
        names_the_lab_s(name, policy, topology)?;
    }
    let mut json = loaded.doc.json().clone();
    for (target, url) in &at {
        if let Some(map) = json.pointer_mut(&format!("/targets/{target}")).and_then(Value::as_object_mut) {
            map.insert("base_url".into(), Value::String((*url).to_owned()));
            // Where it is dialled instead, and whose key it takes, belongs to the real one.
            map.remove("connect_to");
            map.remove("connection");
            map.remove("credentials");
        }
    }
    // A lab's scripts answer the cases that ship, and nobody else's.
    let groups = json.pointer_mut("/compatibility_groups").and_then(Value::as_object_mut);
    for group in groups.into_iter().flat_map(|m| m.values_mut()).filter_map(Value::as_object_mut) {
        if group.get("golden_set").and_then(Value::as_str).is_some_and(|set| crate::assets::get(set).is_none()) {
            group.remove("golden_set");
        }
    }
    // The copy lies elsewhere; what it names beside itself does not.
    for adapter in json.pointer_mut("/adapters").and_then(Value::as_object_mut).into_iter().flat_map(|m| m.values_mut())
    {
        let Some(Value::String(text)) = adapter.get_mut("system_suffix") else { continue };
        if let Some(found) = text.strip_prefix("file:").and_then(|below| beside(name, below)) {
            *text = format!("file:{}", found.display());
        }
    }
    let text = format!("{json:#}\n");
    let (policy, found) = crate::policy::load(&shown, text.as_bytes());
    let policy = policy.ok_or_else(|| {
        let first = found.first().map(|d| format!(": {}", d.message)).unwrap_or_default();
        Expected::could_not(
            format!("{shown} cannot be led to the lab{first}"),
            "run it against a lab of your own: --lab",
        )
    })?;
    // What is dialled is read from the very file that the gateways get, not from what was meant to be in it.
    if let Some(target) = policy.targets.iter().find(|t| at.get(t.name.as_str()) != Some(&t.base_url.as_str())) {
        return Err(Expected::usage(format!("{shown} would dial {}", told(target)), CLEAR));
    }
    let home = Path::new(&topology.dir).join("drilled");
    let path = home.join("policies/drilled.yaml");
    write(&path, &text)?;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for (below, record) in crate::lab::policy::records(&policy, &now) {
        write(&home.join("evidence").join(below), &record.to_json())?;
    }
    Ok(Led { path, policy })
}

/// Where a file that a policy names is: from the policy's folder, else from the one above.
fn beside(policy: &Path, below: &str) -> Option<PathBuf> {
    let folder = std::path::absolute(policy).ok()?.parent()?.to_owned();
    [folder.join(below), folder.join("..").join(below)].into_iter().find(|path| path.is_file())
}

/// For a gateway that somebody else started with this policy: what it dials on the drill's route must be the lab's.
///
/// # Errors
/// It is not (exit 2).
pub fn are_the_lab_s(name: &Path, policy: &Policy, route: &str, topology: &Topology) -> Result<()> {
    let mut ports: BTreeSet<u16> = BTreeSet::new();
    for p in &topology.providers {
        // By port: a gateway in a container calls the same place by another host.
        ports.extend(
            [&p.proxied_url, &p.direct_url].into_iter().filter_map(|url| Base::new(url).ok()).map(|b| b.port()),
        );
    }
    let Some(route) = policy.route_named(route) else { return Ok(()) };
    let ids: BTreeSet<_> = route.tiers.iter().flat_map(|t| &t.targets).collect();
    let elsewhere: Vec<String> = ids
        .into_iter()
        .map(|id| policy.target(*id))
        .filter(|t| t.connect_to.is_some() || !Base::new(&t.base_url).is_ok_and(|b| ports.contains(&b.port())))
        .map(|t| told(t))
        .collect();
    if elsewhere.is_empty() {
        return Ok(());
    }
    let places: Vec<String> = topology.providers.iter().map(|p| format!("{} {}", p.name, p.proxied_url)).collect();
    Err(Expected::usage(
        format!(
            "route {} of {} leads past the lab: {}",
            printable(&route.name, 100),
            printable(&name.display().to_string(), 300),
            elsewhere.join(", ")
        ),
        format!("put this lab's addresses in and start your gateway with them ({}); {CLEAR}", places.join(", ")),
    ))
}

/// `own (http://10.0.0.11:8000/v1)`
fn told(target: &Target) -> String {
    let by = target.connect_to.as_ref().map(|to| format!(", dialled at {to}")).unwrap_or_default();
    printable(&format!("{} ({}{by})", target.name, target.base_url), 300)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(path, text)).map_err(|e| {
        Expected::could_not(format!("cannot write {}: {e}", path.display()), "is the folder for temporary files full?")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::topology::{FORMAT, ProviderAt, TicketsAt};

    fn topology(dir: &Path) -> Topology {
        let provider = |name: &str, port: u16| ProviderAt {
            name: name.into(),
            region: "r".into(),
            proxy: name.into(),
            proxied_url: format!("http://127.0.0.1:{port}/v1"),
            direct_url: format!("http://127.0.0.1:{}/v1", port + 100),
        };
        Topology {
            format: FORMAT,
            dir: dir.display().to_string(),
            policy: String::new(),
            toxiproxy: String::new(),
            embedded: true,
            regions: Vec::new(),
            providers: vec![provider("local-a", 7001), provider("local-b", 7002)],
            dependencies: Vec::new(),
            tickets: TicketsAt { url: String::new() },
            entries: Vec::new(),
        }
    }

    /// A policy with a real address and key for local-a, a merged one for local-b, and a third target.
    fn policy(third: bool) -> String {
        let more = if third { "  vendor: { base_url: https://api.vendor.example/v1, model: m }\n" } else { "" };
        let pool = if third { "[local-a, local-b, vendor]" } else { "[local-a, local-b]" };
        format!(
            "version: '1'\nserial: 1\nprompt_version: p1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  local-a: &one\n    \
             base_url: https://prod.example/v1\n    connect_to: 10.0.0.1:443\n    connection: {{ http2: true }}\n    model: m\n    credentials: env:PROD_KEY\n  \
             local-b: {{ <<: *one, model: n }}\n{more}compatibility_groups:\n  g: {{ members: [local-a, local-b] }}\npools:\n  \
             all: {{ targets: {pool} }}\nroutes:\n  - route: support-chat\n    deadline_ms: 5000\n    attempts:\n      - {{ pool: all, \
             first_token_timeout_ms: 600, pii: allowed }}\n"
        )
    }

    fn loaded(text: &str) -> Loaded {
        crate::policy::load_with_places("p.yaml", text.as_bytes())
    }

    #[test]
    fn every_target_of_the_copy_is_the_labs_and_no_key_goes_along() {
        let dir = tempfile::tempdir().unwrap();
        let led = led_to_the_lab(Path::new("p.yaml"), &loaded(&policy(false)), &topology(dir.path())).unwrap();
        let seen: Vec<_> = led
            .policy
            .targets
            .iter()
            .map(|t| (t.base_url.as_str(), &t.connect_to, t.connection.http2, &t.credentials, t.model.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("http://127.0.0.1:7001/v1", &None, false, &None, "m"),
                ("http://127.0.0.1:7002/v1", &None, false, &None, "n")
            ]
        );
        let text = std::fs::read_to_string(&led.path).unwrap();
        assert!(!text.contains("prod.example") && !text.contains("PROD_KEY") && !text.contains("10.0.0.1"), "{text}");
        assert!(led.path.starts_with(dir.path()));
        assert!(dir.path().join("drilled/evidence/g/local-a@p1.json").is_file());
    }

    #[test]
    fn a_target_that_is_not_the_labs_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = led_to_the_lab(Path::new("p.yaml"), &loaded(&policy(true)), &topology(dir.path())).err().unwrap();
        assert_eq!(refused.exit.code(), 2);
        assert!(refused.what.contains("vendor (https://api.vendor.example/v1)"), "{}", refused.what);
        assert!(!dir.path().join("drilled").exists());
    }

    #[test]
    fn the_policy_of_a_foreign_gateway_must_name_the_labs_addresses() {
        let at = topology(Path::new("/nowhere"));
        let check = |text: &str| are_the_lab_s(Path::new("p.yaml"), &loaded(text).policy.unwrap(), "support-chat", &at);
        let refused = check(&policy(false)).unwrap_err();
        assert_eq!(refused.exit.code(), 2);
        assert!(
            refused.what.contains("local-a (https://prod.example/v1, dialled at 10.0.0.1:443)"),
            "{}",
            refused.what
        );
        assert!(refused.hint.contains("local-a http://127.0.0.1:7001/v1"), "{}", refused.hint);
        let plain = policy(false).replace("    connect_to: 10.0.0.1:443\n", "");
        assert!(check(&plain).is_err());
        // Another host with the lab's port is how a container calls it; a direct address is for the drill to notice.
        let filled = plain.replace("https://prod.example/v1", "http://host.docker.internal:7001/v1");
        check(&filled).unwrap();
        check(&filled.replace(":7001", ":7102")).unwrap();
        assert!(check(&filled.replace(":7001", "")).is_err());
    }
}
