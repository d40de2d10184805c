//! What earlier runs left behind: found, healed and said before a new run starts, and by `llmfo drill clean`.

use std::path::Path;

use super::lock::Lock;
use super::safety::logs_folder;
use crate::drill::verdict::Cleanup;
use crate::error::Result;
use crate::fault::client::Client;
use crate::fault::restore::{Cleanup as Restoration, PREFIX, restore};
use crate::fault::wal::{Undo, Wal, WalFile, scan};
use crate::units::printable;

/// In the words of a restore.
const SERVER_GONE: &str = "fault server is gone";
/// Logs of finished runs that are kept.
const KEPT: usize = 20;

/// What was found and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healing {
    /// One sentence for each leftover.
    pub said: Vec<String>,
    /// The worst of the clean-ups.
    pub cleanup: Cleanup,
    /// Of these, drills that are at work now.
    pub running: Vec<String>,
    /// What could not be read, so that it may hide a fault.
    pub unreadable: Vec<String>,
    /// Fault servers on which something may still be broken.
    pub dirty_servers: Vec<String>,
}

/// [`before_a_run`], and who is at work now.
///
/// # Errors
/// The folder cannot be listed.
pub async fn heal(state: &Path, held: Option<&str>) -> Result<Healing> {
    let mut out = left_behind(state, held).await?;
    for what in Lock::unreadable(state) {
        unreadable(&mut out, format!("a lock cannot be looked at, and a drill may be at work: {what}"));
    }
    out.running = Lock::held(state);
    out.said.splice(0..0, out.running.clone());
    Ok(out)
}

/// Heals what runs and labs before this one have left, on any server.
///
/// # Errors
/// The folder cannot be listed.
pub async fn before_a_run(state: &Path) -> Result<Healing> {
    left_behind(state, None).await
}

/// `held` is the lock that this process has on a server already; a run that is still alive holds its own lock and is left
/// alone.
async fn left_behind(state: &Path, held: Option<&str>) -> Result<Healing> {
    let mut out = Healing::default();
    let scanned = scan(&logs_folder(state))?;
    for what in scanned.unreadable {
        unreadable(&mut out, format!("a log cannot be read and may hide a fault: {what}"));
    }
    for (path, undo) in scanned.left {
        let server = undo.begin.server.clone();
        let _lock = match held {
            Some(held) if held == server => None,
            _ => match Lock::try_take(state, &server, "clean") {
                Ok(Some(lock)) => Some(lock),
                // It restores what it has broken; who it is is said beside this.
                Ok(None) => continue,
                Err(e) => {
                    let text =
                        format!("{} did not say that it had restored, and is left as it is: {}", who(&undo), e.what);
                    dirty(&mut out, &server, text);
                    continue;
                }
            },
        };
        one(&path, &undo, &mut out).await;
    }
    labs(state, &mut out).await;
    tidy(&logs_folder(state));
    Ok(out)
}

/// Proxies of labs that were killed.
async fn labs(state: &Path, out: &mut Healing) {
    for what in crate::lab::home::Claim::unreadable(state) {
        unreadable(out, format!("what a lab has made cannot be read and may be left: {what}"));
    }
    for (server, result) in crate::lab::paths::remove_dead(state).await {
        match result {
            Ok(None) => {}
            Ok(Some(said)) => out.said.push(said),
            Err(why) => dirty(out, &server, why),
        }
    }
}

async fn one(path: &Path, undo: &Undo, out: &mut Healing) {
    let begin = &undo.begin;
    let who = who(undo);
    let at = printable(&begin.server, 100);
    let (mut wal, client) = match (WalFile::open(path), Client::anywhere(&begin.server)) {
        (Ok(wal), Ok(client)) => (wal, client),
        (Err(e), _) => {
            return dirty(
                out,
                &begin.server,
                format!("{who} ended without restoring; its log cannot be used: {}", e.what),
            );
        }
        (_, Err(e)) => {
            return dirty(
                out,
                &begin.server,
                format!("{who} ended without restoring, and its server has no usable URL: {e}"),
            );
        }
    };
    let lease = format!("{PREFIX}{}", begin.run);
    let ran_out: Vec<String> = match client.history().await {
        Ok(history) => history.into_iter().filter(|h| h.lease.as_deref() == Some(&lease)).map(|h| h.proxy).collect(),
        Err(_) => Vec::new(),
    };
    let left = still_there(&client, undo).await;
    let done = restore(&client, "clean", &mut wal).await;
    let paths = undo.proxies.iter().map(|p| printable(p, 64)).collect::<Vec<_>>().join(", ");
    let what = if let Restoration::Dirty(why) = &done.cleanup {
        return dirty(
            out,
            &begin.server,
            format!("{who} ended without restoring {paths} on {at}, and it could not be healed: {why}"),
        );
    } else if done.notes.iter().any(|n| n.contains(SERVER_GONE)) {
        format!("{who} ended without restoring {paths}; its fault server {at} is gone, and the faults with it")
    } else if left > 0 {
        format!("{who} ended without restoring; found {left} faults on {paths} ({at}) and healed them")
    } else if ran_out.is_empty() {
        format!("{who} ended without a final word; looked at {paths} ({at}): nothing is broken there")
    } else {
        let n = ran_out.len();
        format!(
            "{who} ended without restoring; its lease ran out and the fault server healed {n} faults by itself; looked at {paths} ({at}): nothing is left"
        )
    };
    out.said.push(what);
    out.said.extend(done.notes.into_iter().filter(|n| !n.contains(SERVER_GONE)));
    let worst = match done.cleanup {
        Restoration::Clean => Cleanup::Clean,
        Restoration::RestoredLate => Cleanup::RestoredLate,
        Restoration::Recreated => Cleanup::Recreated,
        Restoration::Dirty(_) => Cleanup::Dirty,
    };
    out.cleanup = out.cleanup.max(worst);
}

fn unreadable(out: &mut Healing, text: String) {
    out.said.push(text.clone());
    out.unreadable.push(text);
    out.cleanup = Cleanup::Dirty;
}

fn who(undo: &Undo) -> String {
    let begin = &undo.begin;
    format!("drill {} (process {}, run {})", printable(&begin.drill, 64), begin.pid, printable(&begin.run, 64))
}

fn dirty(out: &mut Healing, server: &str, text: String) {
    out.said.push(text);
    out.cleanup = Cleanup::Dirty;
    out.dirty_servers.push(server.into());
}

/// Faults of this run that are still in force.
async fn still_there(client: &Client, undo: &Undo) -> usize {
    let Ok(now) = client.proxies().await else { return 0 };
    let prefix = format!("{PREFIX}{}.", undo.begin.run);
    let mut n = 0;
    for name in &undo.proxies {
        let Some(proxy) = now.get(name) else { continue };
        n += proxy.toxics.iter().filter(|t| t.name.starts_with(&prefix)).count();
        n += usize::from(!proxy.enabled && undo.begin.snapshot.get(name).is_some_and(|b| b.enabled));
    }
    n
}

/// Removes the logs of long finished runs, the oldest first. Best effort: a log too many harms nobody.
fn tidy(folder: &Path) {
    let Ok(listing) = std::fs::read_dir(folder) else { return };
    let mut logs: Vec<_> = listing.filter_map(|e| e.ok().map(|e| e.path())).collect();
    logs.retain(|p| p.extension().is_some_and(|x| x == "jsonl"));
    logs.sort();
    let old = logs.len().saturating_sub(KEPT);
    for path in logs.into_iter().take(old) {
        let finished = WalFile::open(&path).is_ok_and(|w| crate::fault::wal::leftovers(w.entries()).is_none());
        if finished {
            let _ = std::fs::remove_file(path);
        }
    }
}
