//! Safe injection and restore, for our fault server and for real ones. Faults are named by what the application sees; each
//! change is written down before it is made; restoring is idempotent, touches only what is ours, never uses `/reset`, and
//! ends, if need be, in deleting a proxy and making it again from the snapshot.

mod inject;
mod marker;
mod plan;
mod standing;
mod undo;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::api::Proxy;
use super::client::Client;
use super::error::FaultError;
pub use inject::{Hold, Injected, inject};
pub use marker::{MARKER, Other, mark, sweep, unmark};
pub use plan::{Act, FaultSpec, Plan, Server, Step, plan};
pub use standing::{Look, Standing, answers};
pub use undo::{Restored, restore};

/// What all names of ours begin with.
pub const PREFIX: &str = "llmfo.";

/// What the application sees of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum See {
    /// A connect is refused; open connections end.
    Refused,
    /// A connect runs into the application's own limit; open connections go on (add `silence` for those).
    ConnectTimeout,
    /// Connections stay, and nothing passes in either direction. Heals without loss.
    Silence,
    /// Connections are reset.
    Reset,
    /// Connections are closed regularly.
    Fin,
    /// Answers are late, or drip.
    Slow {
        /// Delay of answers.
        #[serde(default)]
        latency_ms: u64,
        /// Kilobytes per second towards the application; none: as fast as it goes.
        #[serde(default)]
        rate_kb_s: Option<u64>,
    },
    /// An answer is cut under way: exactly one of `events`, `bytes`, `ms`.
    CutAfter {
        /// Server-sent events of the response.
        #[serde(default)]
        events: Option<u64>,
        /// Bytes on the wire of the response.
        #[serde(default)]
        bytes: Option<u64>,
        /// Milliseconds of the response.
        #[serde(default)]
        ms: Option<u64>,
        /// How it ends.
        #[serde(default)]
        how: super::toxic::cut_after::How,
    },
}

/// How the clean-up of a run ended: apart from its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cleanup {
    /// As before, at once.
    Clean,
    /// As before, after more than one try or more time than intended.
    RestoredLate,
    /// As before, but a proxy had to be deleted and made again.
    Recreated,
    /// Something may still be broken: what, and where.
    Dirty(String),
}

impl Cleanup {
    /// Something may still be broken.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        matches!(self, Cleanup::Dirty(_))
    }

    /// As reports name it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Cleanup::Clean => "clean",
            Cleanup::RestoredLate => "restored_late",
            Cleanup::Recreated => "recreated",
            Cleanup::Dirty(_) => "dirty",
        }
    }

    /// The graver of two; reasons of dirt are joined.
    #[must_use]
    pub fn and(self, other: Cleanup) -> Cleanup {
        let rank = |c: &Cleanup| match c {
            Cleanup::Clean => 0,
            Cleanup::RestoredLate => 1,
            Cleanup::Recreated => 2,
            Cleanup::Dirty(_) => 3,
        };
        match (self, other) {
            (Cleanup::Dirty(a), Cleanup::Dirty(b)) => Cleanup::Dirty(format!("{a}; {b}")),
            (a, b) => {
                if rank(&a) >= rank(&b) {
                    a
                } else {
                    b
                }
            }
        }
    }
}

/// The proxies as they are, to be put into the beginning of the log.
///
/// # Errors
/// Of the call, or a proxy in `names` that does not exist.
pub async fn snapshot(client: &Client, names: &[String]) -> Result<BTreeMap<String, Proxy>, FaultError> {
    let mut all = client.proxies().await?;
    if names.is_empty() {
        return Ok(all);
    }
    let mut wanted = BTreeMap::new();
    for name in names {
        match all.remove(name) {
            Some(proxy) => {
                wanted.insert(name.clone(), proxy);
            }
            None => {
                // For the server's own words.
                wanted.insert(name.clone(), client.proxy(name).await?);
            }
        }
    }
    Ok(wanted)
}

/// Toxics of ours, of any run, on these proxies: what a run whose log was lost has left. `(proxy, toxic)`.
#[must_use]
pub fn strays(proxies: &BTreeMap<String, Proxy>) -> Vec<(String, String)> {
    let ours = |proxy: &Proxy| {
        let toxics = proxy.toxics.iter().filter(|t| t.name.starts_with(PREFIX));
        toxics.map(|t| (proxy.name.clone(), t.name.clone())).collect::<Vec<_>>()
    };
    proxies.values().flat_map(ours).collect()
}
