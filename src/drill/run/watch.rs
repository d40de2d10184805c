//! Looks about once a second whether the fault server answers and what was broken stays broken. Neither is the gateway's
//! doing, so a run in which it is otherwise says nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::journal::Anchor;
use super::signals::Stops;
use crate::fault::client::Client;
use crate::fault::restore::{Look, Standing, answers};
use crate::fault::wal::{self, Entry};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A drill whose fault was lifted by somebody else stops by this name.
pub const LIFTED: &str = "fault_lifted";
/// A drill whose fault server does not answer stops by this name.
pub const SILENT: &str = "fault_server_lost";
/// A drill whose faults were lifted by what it had set up itself, because it was not heard for too long, stops by this name.
pub const LEASE: &str = "lease_lost";

/// The faults in force, shared with the task that looks.
#[derive(Clone, Debug)]
pub struct Faults {
    client: Client,
    /// With the count of changes, so that a look that was under way at a change is not believed.
    standing: Arc<Mutex<(u64, Option<Standing>)>>,
    /// The lease, on a server of ours.
    lease: Option<String>,
    log: PathBuf,
}

impl Faults {
    /// Nothing is in force yet.
    #[must_use]
    pub fn new(client: Client, lease: Option<String>, log: &Path) -> Faults {
        Faults { client, standing: Arc::default(), lease, log: log.to_path_buf() }
    }

    /// What is in force from now on.
    pub fn set(&self, standing: Option<Standing>) {
        let mut now = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 + 1, standing);
    }

    fn get(&self) -> (u64, Option<Standing>) {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One look: `(stop by, why)` if the run says nothing any more.
    pub async fn look(&self) -> Option<(&'static str, String)> {
        let (n, standing) = self.get();
        let look = match &standing {
            Some(standing) => standing.look(&self.client).await,
            None => answers(&self.client).await,
        };
        if self.get().0 != n {
            return None;
        }
        match look {
            Look::AsSet => None,
            Look::Silent(why) => Some((SILENT, format!("the fault server did not answer: {why}"))),
            Look::Changed(path, what) => Some(match self.healed_by_ours().await {
                Some(why) => (LEASE, why),
                None => {
                    let path = crate::units::printable(&path, 80);
                    (LIFTED, format!("the fault did not stay: {path} was {what} by somebody else"))
                }
            }),
        }
    }

    /// What this run has set up to heal has healed, in one sentence: the runner had stood still, or was not heard.
    pub async fn healed_by_ours(&self) -> Option<String> {
        if let Some(lease) = &self.lease {
            let history = self.client.history().await.unwrap_or_default();
            let own = history.iter().filter(|h| h.lease.as_ref() == Some(lease));
            let mut paths: Vec<String> = own.map(|h| crate::units::printable(&h.proxy, 80)).collect();
            // One proxy may carry several faults.
            paths.sort_unstable();
            paths.dedup();
            return (!paths.is_empty())
                .then(|| format!("the lease ran out and the fault server healed by itself: {}", paths.join(", ")));
        }
        let entries = wal::read(&self.log).unwrap_or_default();
        let guard = entries.iter().any(|e| matches!(e, Entry::Restored { by, .. } if by == "guard"));
        guard.then(|| "this process gave no sign for too long, and the guard restored".to_owned())
    }

    /// Looks until it is aborted.
    pub fn watch(&self, stops: Stops, anchor: Anchor) -> JoinHandle<()> {
        let faults = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if let Some((by, why)) = faults.look().await {
                    stops.ask(by, &format!("{why}, seen at {:.2} s", anchor.elapsed_ms() / 1e3));
                    return;
                }
            }
        })
    }
}
