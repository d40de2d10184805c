//! One drill per fault server: a lock in the state folder, and a mark on the server itself against drills with another one.
//! Both are taken before anything of this run is made there, and left when nothing of it is there any more.

use std::path::Path;
use std::time::Duration;

use super::lock::{Lock, busy};
use crate::error::Result;
use crate::fault::client::Client;
use crate::fault::restore::{mark, unmark};

/// Looks for others at work, and what is waited between two of them.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(60);

/// The name of a new run: when, and which process.
#[must_use]
pub fn new_run() -> String {
    format!("{}-{}", crate::fault::clock::wall_ms(), std::process::id())
}

/// When a run began (since 1970, milliseconds) and by which process, from its name.
pub(super) fn begun(run: &str) -> Option<(u64, u32)> {
    let (at, pid) = run.split_once('-')?;
    Some((at.parse().ok()?, pid.parse().ok()?))
}

/// A fault server that is this run's alone.
#[derive(Debug)]
pub struct Place {
    client: Client,
    run: String,
    _lock: Lock,
}

impl Place {
    /// Takes the server. `longest`: the run is over after that, whatever happens.
    ///
    /// # Errors
    /// Another drill is at work there, the state folder cannot be written, or a call failed.
    pub async fn take(state: &Path, client: Client, longest: Duration) -> Result<Place> {
        let run = new_run();
        let lock = Lock::take(state, client.base_url(), &run)?;
        alone(&client, &run, longest).await?;
        Ok(Place { client, run, _lock: lock })
    }

    /// The name of the run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The client of the fault server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Lets others in.
    pub async fn leave(self) {
        // A mark that stays is known by its dead process, and one on a server that is gone is gone too.
        let _ = unmark(&self.client, &self.run).await;
    }
}

/// Nobody else is at work on this server, whatever their state folder. Of two that start together both find the other and
/// take their mark back; the one that began later gives up, the other one looks again.
async fn alone(client: &Client, run: &str, longest: Duration) -> Result<()> {
    for n in 1.. {
        let Some(other) = mark(client, run, longest.as_secs()).await? else { return Ok(()) };
        if n == TRIES || begun(run) > begun(&other.run) {
            let who = format!("process {}, run {}", other.pid, crate::units::printable(&other.run, 64));
            return Err(busy(client.base_url(), &who, &other.run));
        }
        tokio::time::sleep(PAUSE * n).await;
    }
    Ok(())
}
