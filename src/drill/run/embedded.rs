//! The embedded run: this same binary as the lab, and as each region's gateway with its own journal.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::children::Child;
use super::lab::Lab;
use crate::error::{Expected, Result};
use crate::lab::topology::{Topology, UpLine};

/// What a gateway says when it is ready. More may be there.
#[derive(Clone, Debug, Deserialize)]
struct Ready {
    listen: String,
}

/// The processes of an embedded run.
#[derive(Debug)]
pub struct Embedded {
    lab: Child,
    gateways: Vec<Child>,
    journals: Vec<(String, PathBuf)>,
    said: Vec<String>,
    admin: String,
}

/// What to start it with.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Folder for logs and journals of the children.
    pub dir: &'a Path,
    /// Seed of the lab.
    pub seed: u64,
    /// A real Toxiproxy to use.
    pub toxiproxy: Option<&'a str>,
    /// Another policy than the lab's.
    pub policy: Option<&'a Path>,
}

impl Embedded {
    /// Starts the lab.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(settings: &Settings<'_>) -> Result<Embedded> {
        let mut arguments = vec!["lab", "up", "--exit-with-stdin"].into_iter().map(String::from).collect::<Vec<_>>();
        arguments.extend(["--seed".into(), settings.seed.to_string()]);
        if let Some(url) = settings.toxiproxy {
            arguments.extend(["--toxiproxy".into(), url.into()]);
        }
        let (lab, line): (Child, UpLine) = Child::start("the lab", &arguments, &settings.dir.join("lab.log")).await?;
        Ok(Embedded { lab, gateways: Vec::new(), journals: Vec::new(), said: Vec::new(), admin: line.admin })
    }

    /// The lab's admin interface.
    ///
    /// # Errors
    /// Its URL is unusable.
    pub fn lab(&self) -> Result<Lab> {
        Lab::new(&self.admin)
    }

    /// Starts one gateway per region.
    ///
    /// # Errors
    /// One of them does not start.
    pub async fn start_gateways(&mut self, settings: &Settings<'_>, topology: &Topology) -> Result<()> {
        let policy = settings.policy.map_or_else(|| topology.policy.clone(), |p| p.display().to_string());
        for entry in &topology.entries {
            let journal = settings.dir.join(format!("gateway-{}.jsonl", entry.region));
            let ledger = settings.dir.join(format!("ledger-{}.redb", entry.region));
            let arguments: Vec<String> = [
                "serve",
                "--policy",
                &policy,
                "--listen",
                &entry.listen,
                "--admin",
                &entry.admin,
                "--format",
                "json",
                "--exit-with-stdin",
                "--seed",
                &settings.seed.to_string(),
                "--journal",
                &journal.display().to_string(),
                "--ledger",
                &ledger.display().to_string(),
            ]
            .into_iter()
            .map(String::from)
            .collect();
            let name = format!("the gateway of {}", entry.region);
            let log = settings.dir.join(format!("gateway-{}.log", entry.region));
            let (child, ready): (Child, Ready) = Child::start(&name, &arguments, &log).await?;
            if ready.listen != entry.listen {
                return Err(Expected::could_not(
                    format!(
                        "{name} listens on {}, not on {}",
                        crate::units::printable(&ready.listen, 60),
                        entry.listen
                    ),
                    "",
                ));
            }
            self.gateways.push(child);
            self.journals.push((entry.region.clone(), journal));
        }
        Ok(())
    }

    /// A gateway that has ended although it should not have.
    pub fn lost(&mut self) -> Option<String> {
        self.gateways.iter_mut().find_map(Child::ended)
    }

    /// The lab has ended although it should not have.
    pub fn lab_lost(&mut self) -> Option<String> {
        self.lab.ended()
    }

    /// Ends a lab that does not answer, and the faults of its fault server with it: asking it to is no use.
    pub async fn kill_lab(&mut self) {
        self.lab.kill().await;
    }

    /// Stops the gateways (their pipes close, they drain and end) and reads their journals.
    pub async fn stop_gateways(&mut self) -> Vec<(String, String)> {
        for child in self.gateways.drain(..) {
            self.said.extend(child.stop().await);
        }
        let read = |path: &PathBuf| std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
        self.journals.iter().map(|(region, path)| (region.clone(), read(path).unwrap_or_default())).collect()
    }

    /// Stops all of them. What was out of the ordinary comes back.
    pub async fn stop(mut self) -> Vec<String> {
        self.stop_gateways().await;
        let mut said = self.said;
        if self.lab.ended().is_none() {
            said.extend(self.lab.stop().await);
        }
        said
    }
}
