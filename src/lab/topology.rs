//! `[P]` What is where in a lab: the answer of `GET /topology` and the line that `lab up` prints.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of both formats. Fields are only added.
pub const FORMAT: u32 = 1;

/// The regions of the lab, each with its provider.
pub const REGIONS: [(&str, &str); 2] = [("region-1", "local-a"), ("region-2", "local-b")];

/// Everything in the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Format version.
    pub format: u32,
    /// Folder with policy and evidence.
    pub dir: String,
    /// The policy file.
    pub policy: String,
    /// Base URL of the fault server's API.
    pub toxiproxy: String,
    /// The fault server runs inside the lab.
    pub embedded: bool,
    /// Region names.
    pub regions: Vec<String>,
    /// Scripted providers.
    pub providers: Vec<ProviderAt>,
    /// Dependencies.
    pub dependencies: Vec<DependencyAt>,
    /// The ticket system.
    pub tickets: TicketsAt,
    /// What customers dial.
    pub entries: Vec<EntryAt>,
}

/// Where a provider is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderAt {
    /// Name; the target's name in the policy.
    pub name: String,
    /// Region.
    pub region: String,
    /// Its fault proxy.
    pub proxy: String,
    /// Base URL through the proxy, for example `http://127.0.0.1:18001/v1`.
    pub proxied_url: String,
    /// Base URL around the proxy.
    pub direct_url: String,
}

/// Where a dependency is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyAt {
    /// `policy_store`, `secrets_store`, `history_store`, `telemetry`.
    pub role: String,
    /// Region.
    pub region: String,
    /// Its fault proxy.
    pub proxy: String,
    /// Base URL through the proxy, without `/v1`.
    pub proxied_url: String,
    /// Base URL around the proxy, without `/v1`.
    pub direct_url: String,
}

/// Where the ticket system is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketsAt {
    /// Base URL: `GET /tickets`, `POST /tools/<tool>`.
    pub url: String,
}

/// Where customers enter a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryAt {
    /// Name of the entry: its region.
    pub name: String,
    /// Region.
    pub region: String,
    /// Its fault proxy.
    pub proxy: String,
    /// Base URL that customers dial, through the proxy.
    pub url: String,
    /// Where this region's gateway must listen (`ip:port`).
    pub listen: String,
    /// Where its admin interface may listen (`ip:port`).
    pub admin: String,
}

/// The line that `lab up` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpLine {
    /// Format version.
    pub format: u32,
    /// Process id of the lab.
    pub pid: u32,
    /// Folder with policy and evidence.
    pub dir: String,
    /// Base URL of the admin interface.
    pub admin: String,
    /// The policy file.
    pub policy: String,
    /// Base URL of the fault server's API.
    pub toxiproxy: String,
    /// The fault server runs inside the lab.
    pub embedded: bool,
    /// Provider -> base URL through its proxy.
    pub providers: BTreeMap<String, String>,
    /// Entries by name.
    pub entries: BTreeMap<String, UpEntry>,
}

/// An entry in [`UpLine`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpEntry {
    /// Base URL that customers dial.
    pub url: String,
    /// Where the gateway must listen.
    pub listen: String,
    /// Where its admin interface may listen.
    pub admin: String,
}

impl Topology {
    /// What every embedded lab has, by name alone: what does not fit is told before a lab is started.
    #[must_use]
    pub fn names() -> Topology {
        let none = String::new;
        let provider = |(region, name): &(&str, &str)| ProviderAt {
            name: (*name).into(),
            region: (*region).into(),
            proxy: format!("{region}.{name}"),
            proxied_url: none(),
            direct_url: none(),
        };
        let dependency = |region: &str, role: &str| DependencyAt {
            role: role.into(),
            region: region.into(),
            proxy: format!("{region}.{role}"),
            proxied_url: none(),
            direct_url: none(),
        };
        let entry = |(region, _): &(&str, &str)| EntryAt {
            name: (*region).into(),
            region: (*region).into(),
            proxy: format!("entry.{region}"),
            url: none(),
            listen: none(),
            admin: none(),
        };
        let below = |(region, _): &(&'static str, &str)| {
            let region = *region;
            super::dependency::ROLES.iter().map(move |role| dependency(region, role))
        };
        Topology {
            format: FORMAT,
            dir: none(),
            policy: none(),
            toxiproxy: none(),
            embedded: true,
            regions: REGIONS.iter().map(|(region, _)| (*region).into()).collect(),
            providers: REGIONS.iter().map(provider).collect(),
            dependencies: REGIONS.iter().flat_map(below).collect(),
            tickets: TicketsAt { url: none() },
            entries: REGIONS.iter().map(entry).collect(),
        }
    }

    /// The line for `lab up`.
    #[must_use]
    pub fn up_line(&self, pid: u32, admin: &str) -> UpLine {
        let entry = |e: &EntryAt| UpEntry { url: e.url.clone(), listen: e.listen.clone(), admin: e.admin.clone() };
        UpLine {
            format: FORMAT,
            pid,
            dir: self.dir.clone(),
            admin: admin.to_string(),
            policy: self.policy.clone(),
            toxiproxy: self.toxiproxy.clone(),
            embedded: self.embedded,
            providers: self.providers.iter().map(|p| (p.name.clone(), p.proxied_url.clone())).collect(),
            entries: self.entries.iter().map(|e| (e.name.clone(), entry(e))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_may_name_the_regions_that_there_are() {
        assert_eq!(REGIONS.map(|(region, _)| region), crate::spec::drill::REGIONS);
    }
}
