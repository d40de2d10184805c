//! Starts everything in this process on free loopback ports, and takes it down again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::admin::Admin;
use super::dependency;
use super::home::Home;
use super::listen::{Ports, Server, address, serve_router};
use super::paths::{Path, Paths};
use super::policy;
use super::provider::Provider;
use super::tickets::Tickets;
use super::topology::{DependencyAt, EntryAt, FORMAT, ProviderAt, REGIONS, TicketsAt, Topology, UpLine};
use crate::assets;
use crate::error::Result;
use crate::fault::server::{self, Running};

/// What `lab up` is told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Base URL of a Toxiproxy to use instead of the embedded fault server.
    pub toxiproxy: Option<String>,
    /// Folder for policy and evidence; a fresh temporary one if not given.
    pub dir: Option<PathBuf>,
    /// Seed of everything random: pacing and call ids.
    pub seed: u64,
}

/// A running lab. [`Lab::down`] takes it down and says whether all was left clean.
#[derive(Debug)]
pub struct Lab {
    topology: Arc<Topology>,
    admin: String,
    paths: Paths,
    fault: Option<Running>,
    _ports: Ports,
    servers: Vec<Server>,
    _home: Home,
}

/// What is needed while the parts are being started.
struct Build {
    ports: Ports,
    servers: Vec<Server>,
    paths: Vec<Path>,
}

impl Build {
    /// Starts a server made by `serve` and leads a proxy to it: (proxied, direct) addresses.
    async fn behind_proxy(
        &mut self,
        proxy: &str,
        serve: impl FnOnce(tokio::net::TcpListener) -> Server,
    ) -> Result<(String, String)> {
        let listener = self.ports.listener().await?;
        let direct = address(&listener)?.to_string();
        self.servers.push(serve(listener));
        let proxied = self.proxy(proxy, &direct).await?;
        Ok((proxied, direct))
    }

    async fn proxy(&mut self, name: &str, upstream: &str) -> Result<String> {
        let listen = self.ports.free().await?.to_string();
        self.paths.push(Path { name: name.to_string(), listen: listen.clone(), upstream: upstream.to_string() });
        Ok(listen)
    }
}

impl Lab {
    /// Starts a lab.
    ///
    /// # Errors
    /// No port, no folder, no fault server.
    pub async fn up(options: &Options) -> Result<Lab> {
        let home = Home::open(options.dir.as_deref())?;
        let mut build = Build { ports: Ports::take(ports_seed()).await?, servers: Vec::new(), paths: Vec::new() };
        let (mut providers, mut provider_rows, mut dependencies, mut entries) = (vec![], vec![], vec![], vec![]);
        for (voice, (region, name)) in REGIONS.into_iter().enumerate() {
            let provider = Provider::new(name, voice, options.seed);
            let proxy = format!("{region}.{name}");
            let (proxied, direct) = build.behind_proxy(&proxy, |l| provider.serve(l)).await?;
            provider_rows.push(ProviderAt {
                name: name.to_string(),
                region: region.to_string(),
                proxy,
                proxied_url: format!("http://{proxied}/v1"),
                direct_url: format!("http://{direct}/v1"),
            });
            providers.push(provider);
            for role in dependency::ROLES {
                let proxy = format!("{region}.{role}");
                let router = dependency::router(region, role);
                let (proxied, direct) = build.behind_proxy(&proxy, |l| serve_router(l, router)).await?;
                dependencies.push(DependencyAt {
                    role: role.to_string(),
                    region: region.to_string(),
                    proxy,
                    proxied_url: format!("http://{proxied}"),
                    direct_url: format!("http://{direct}"),
                });
            }
            let (listen, admin) = (build.ports.free().await?, build.ports.free().await?);
            let proxy = format!("entry.{region}");
            let url = format!("http://{}/v1", build.proxy(&proxy, &listen.to_string()).await?);
            entries.push(EntryAt {
                name: region.to_string(),
                region: region.to_string(),
                proxy,
                url,
                listen: listen.to_string(),
                admin: admin.to_string(),
            });
        }
        let tickets = Tickets::default();
        let listener = build.ports.listener().await?;
        let tickets_at = TicketsAt { url: format!("http://{}", address(&listener)?) };
        build.servers.push(serve_router(listener, tickets.router()));
        let (toxiproxy, fault) = fault_server(options, &mut build.ports).await?;
        let policy = write_policy(&home, &provider_rows)?;
        let paths = Paths::open(&toxiproxy, fault.is_none(), build.paths).await?;
        let topology = Arc::new(Topology {
            format: FORMAT,
            dir: home.path().display().to_string(),
            policy,
            toxiproxy,
            embedded: fault.is_some(),
            regions: REGIONS.iter().map(|(region, _)| (*region).to_string()).collect(),
            providers: provider_rows,
            dependencies,
            tickets: tickets_at,
            entries,
        });
        let listener = build.ports.listener().await?;
        let admin = format!("http://{}", address(&listener)?);
        let routes = Admin { topology: Arc::clone(&topology), providers, tickets }.router();
        build.servers.push(serve_router(listener, routes));
        Ok(Lab { topology, admin, paths, fault, _ports: build.ports, servers: build.servers, _home: home })
    }

    /// What is where.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The line that `lab up` prints.
    #[must_use]
    pub fn line(&self) -> UpLine {
        self.topology.up_line(std::process::id(), &self.admin)
    }

    /// Heals and deletes the proxies, ends every server, removes the temporary folder.
    ///
    /// # Errors
    /// Exit 6 if something may be left on a fault server outside.
    pub async fn down(mut self) -> Result<()> {
        match self.fault.take() {
            // Its proxies and faults end with it.
            Some(fault) => {
                drop(fault);
                Ok(())
            }
            None => {
                // First of all nobody listens any more: who finds a proxy missing sees that the lab is gone.
                self.servers.clear();
                self.paths.close().await
            }
        }
    }
}

/// The fault server: (base URL of its API, the embedded one).
async fn fault_server(options: &Options, ports: &mut Ports) -> Result<(String, Option<Running>)> {
    if let Some(url) = &options.toxiproxy {
        return Ok((url.trim_end_matches('/').to_string(), None));
    }
    let settings = server::Options { seed: options.seed, ..server::Options::default() };
    let running = server::start(ports.free().await?, settings)?;
    Ok((running.url(), Some(running)))
}

fn write_policy(home: &Home, providers: &[ProviderAt]) -> Result<String> {
    let base_urls: BTreeMap<String, String> =
        providers.iter().map(|p| (p.name.clone(), p.proxied_url.clone())).collect();
    let stamp = |t: jiff::Timestamp| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let now = jiff::Timestamp::now();
    // A day: a lab that runs longer than that has been forgotten.
    let expires = now.saturating_add(jiff::SignedDuration::from_hours(24)).unwrap_or(now);
    let text = policy::fill(assets::LAB_POLICY, &base_urls, &stamp(expires))?;
    let policy = policy::read(&text, &base_urls)?;
    for asset in policy.groups.values().filter_map(|g| assets::get(g.golden_set.as_deref()?)) {
        home.write(asset.path, asset.text)?;
    }
    for (path, record) in policy::records(&policy, &stamp(now)) {
        home.write(&format!("evidence/{path}"), &record.to_json())?;
    }
    Ok(home.write("policies/lab.yaml", &text)?.display().to_string())
}

/// Differs between labs that start at the same time.
fn ports_seed() -> u64 {
    u64::from(std::process::id()).wrapping_mul(0x9E37_79B9) ^ crate::load::monotonic_ms().to_bits()
}
