//! What earlier runs left behind: found, healed and said before a new run starts, and by `llmfo drill clean`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::lock::Lock;
use super::safety::logs_folder;
use crate::drill::verdict::Cleanup;
use crate::error::Result;
use crate::fault::client::Client;
use crate::fault::error::{FaultError, FaultKind};
use crate::fault::restore::{Cleanup as Restoration, PREFIX, restore, sweep};
use crate::fault::wal::{Entry, Undo, Wal, WalFile, scan};
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
    /// Fault servers on which something may still be broken, each once.
    pub dirty_servers: Vec<String>,
    /// What helps where it could not be healed, one step for each of these servers.
    pub next: Vec<String>,
}

/// [`before_a_run`], who is at work now, and the marks that killed drills have left on fault servers. A folder that cannot be
/// listed is said like a log that cannot be read.
///
/// # Errors
/// None at present.
pub async fn heal(state: &Path, held: Option<&str>) -> Result<Healing> {
    let mut out = match left_behind(state, held).await {
        Ok(out) => out,
        Err(e) => {
            let mut out = Healing::default();
            unreadable(&mut out, format!("logs of earlier drills may hide a fault: {}", e.what));
            labs(state, &mut out, &[]).await;
            out
        }
    };
    marks(state, &mut out).await;
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
    // Servers that stand still: they are asked once.
    let mut silent: Vec<String> = Vec::new();
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
        if silent.contains(&server) {
            too(&mut out, &server, &format!("{} ended without restoring {} there too", who(&undo), names(&undo)));
        } else if let Some(e) = stands_still(&server).await {
            let at = printable(&server, 100);
            let what =
                format!("{} ended without restoring {} on {at}, which stands still: {e}", who(&undo), names(&undo));
            dirty(&mut out, &server, what);
            out.next.push(format!(
                "let the fault server at {at} go on (`kill -CONT` its process, if that was stopped), or end it and start it again; then `llmfo drill clean` once more"
            ));
            silent.push(server);
        } else {
            one(&path, &undo, &mut out).await;
        }
    }
    labs(state, &mut out, &silent).await;
    tidy(&logs_folder(state));
    Ok(out)
}

/// Marks of killed drills of this state folder, on servers where nothing of them is broken: there the next run would take them
/// away, and until then they look as if a drill were at work. A server that is gone has taken them along.
async fn marks(state: &Path, out: &mut Healing) {
    let mut servers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in logs(&logs_folder(state)) {
        let Ok(entries) = crate::fault::wal::read(&path) else { continue };
        let begins = entries.into_iter().filter_map(|e| match e {
            Entry::Begin { begin, .. } => Some(begin),
            _ => None,
        });
        // A server inside a lab of the run died with it.
        for begin in begins.filter(|b| !(b.embedded && b.lab_of_run)) {
            servers.entry(begin.server).or_default().insert(begin.run);
        }
    }
    for (server, runs) in servers.into_iter().filter(|(s, _)| !out.dirty_servers.contains(s)) {
        let Ok(client) = Client::anywhere(&server) else { continue };
        let at = printable(&server, 100);
        match sweep(&client, &runs).await {
            Ok(gone) => out.said.extend(gone.into_iter().map(|mark| {
                let run = printable(&mark.run, 64);
                format!("a drill (process {}, run {run}) ended without a final word; took its lock off {at}", mark.pid)
            })),
            Err(e) if e.kind == FaultKind::Timeout => {
                out.said.push(format!("whether a drill has left its lock on {at} could not be seen: {e}"));
            }
            // Nobody is there, or somebody else by now.
            Err(_) => {}
        }
    }
}

/// The logs in a folder, the oldest first.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let listing = std::fs::read_dir(folder).into_iter().flatten();
    let mut logs: Vec<_> = listing.filter_map(|e| e.ok().map(|e| e.path())).collect();
    logs.retain(|p| p.extension().is_some_and(|x| x == "jsonl"));
    logs.sort();
    logs
}

/// Proxies of labs that were killed.
async fn labs(state: &Path, out: &mut Healing, silent: &[String]) {
    for what in crate::lab::home::Claim::unreadable(state) {
        unreadable(out, format!("what a lab has made cannot be read and may be left: {what}"));
    }
    for (server, result) in crate::lab::paths::remove_dead(state, silent).await {
        match result {
            Ok(None) => {}
            Ok(Some(said)) => out.said.push(said),
            Err(why) if silent.contains(&server) => too(out, &server, &why),
            Err(why) => {
                dirty(out, &server, why);
                let step = by_hand(&server);
                if !out.next.contains(&step) {
                    out.next.push(step);
                }
            }
        }
    }
}

/// The server takes connections and says not even who it is: what it is told now it would do at some later time.
async fn stands_still(server: &str) -> Option<FaultError> {
    let told = Client::anywhere(server).ok()?.version().await.err();
    told.filter(|e| e.kind == FaultKind::Timeout)
}

fn by_hand(server: &str) -> String {
    let at = printable(server, 100);
    format!(
        "see that the fault server at {at} runs (start one there again if it ended) and look at GET {at}/proxies; then `llmfo drill clean` once more"
    )
}

/// One more thing about a server that was named already.
fn too(out: &mut Healing, server: &str, what: &str) {
    let at = printable(server, 100);
    match out.said.iter_mut().find(|said| said.contains(&at)) {
        Some(said) => said.push_str(&format!("; {what}")),
        None => out.said.push(format!("{at}: {what}")),
    }
}

fn names(undo: &Undo) -> String {
    undo.proxies.iter().map(|p| printable(p, 64)).collect::<Vec<_>>().join(", ")
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
    let paths = names(undo);
    let what = if let Restoration::Dirty(why) = &done.cleanup {
        let text = format!("{who} ended without restoring {paths} on {at}, and it could not be healed: {why}");
        dirty(out, &begin.server, text);
        let step = by_hand(&begin.server);
        if !out.next.contains(&step) {
            out.next.push(step);
        }
        return;
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
    if !out.dirty_servers.iter().any(|known| known == server) {
        out.dirty_servers.push(server.into());
    }
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
    let logs = logs(folder);
    let old = logs.len().saturating_sub(KEPT);
    for path in logs.into_iter().take(old) {
        let finished = WalFile::open(&path).is_ok_and(|w| crate::fault::wal::leftovers(w.entries()).is_none());
        if finished {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_that_cannot_be_listed_may_hide_a_fault() {
        let state = tempfile::tempdir().unwrap();
        // A file where the folder should be stands for one that may not be listed: root may list everything.
        std::fs::write(state.path().join("drills"), "").unwrap();
        let healing = heal(state.path(), None).await.unwrap();
        assert_eq!(healing.cleanup, Cleanup::Dirty);
        assert!(healing.unreadable.len() == 1 && healing.unreadable[0].contains("/drills: "), "{healing:?}");
        // A run that cannot know what is broken does not begin.
        assert!(before_a_run(state.path()).await.is_err());
    }

    /// A Toxiproxy that was stopped takes connections and answers nothing. Two drills and a lab were killed on it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_stands_still_is_named_once_with_a_step_that_helps() {
        use crate::fault::wal::{Change, Stamp};
        let state = tempfile::tempdir().unwrap();
        let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", stopped.local_addr().unwrap());
        for run in ["1700000000000-4194305", "1700000000001-4194306"] {
            let mut wal = WalFile::create(&logs_folder(state.path()).join(format!("{run}.jsonl"))).unwrap();
            wal.append(begun(run, &server)).unwrap();
            let change = Change::SetEnabled { proxy: format!("path-of-{run}"), enabled: false };
            wal.append(Entry::Intent { at: Stamp::now(), n: 1, change }).unwrap();
        }
        // No process has this number: the largest that Linux gives is 4194304.
        let claim = crate::lab::home::Claim {
            pid: 4_194_305,
            ..crate::lab::home::Claim::ours(&server, vec![("path".into(), "l".into(), "u".into())])
        };
        std::fs::write(state.path().join("lab-x.json"), serde_json::to_vec(&claim).unwrap()).unwrap();
        let healing = heal(state.path(), None).await.unwrap();
        assert_eq!((healing.cleanup, &healing.dirty_servers), (Cleanup::Dirty, &vec![server.clone()]), "{healing:?}");
        assert_eq!((healing.said.len(), healing.next.len()), (1, 1), "{healing:?}");
        let said = &healing.said[0];
        for what in ["path-of-1700000000000", "path-of-1700000000001", "the lab of process 4194305 is gone"] {
            assert!(said.contains(what), "{said}");
        }
        assert!(!said.contains("drill clean"), "what was just done is no advice: {said}");
        assert!(healing.next[0].contains("kill -CONT") && healing.next[0].contains(&server), "{healing:?}");
        assert!(state.path().join("lab-x.json").exists(), "what is left is not forgotten");
    }

    fn begun(run: &str, server: &str) -> Entry {
        use crate::fault::wal::{Begin, FORMAT, Stamp};
        let begin = Begin {
            format: FORMAT,
            run: run.into(),
            drill: "d".into(),
            pid: 1,
            server: server.into(),
            embedded: false,
            lab_of_run: true,
            lab_admin: None,
            snapshot: BTreeMap::new(),
        };
        Entry::Begin { at: Stamp::now(), begin }
    }

    /// Three drills were killed after they had restored: one of this state folder, one of another; the third is alive.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_mark_of_a_killed_drill_of_this_state_folder_is_taken_off_its_server() {
        let state = tempfile::tempdir().unwrap();
        let server = crate::fault::server::start("127.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
        let client = Client::new(&server.url()).unwrap();
        let space = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid").unwrap());
        let later = crate::fault::clock::wall_ms() / 1000 + 60;
        // No process has this number: the largest that Linux gives is 4194304.
        let mark = |run: &str| format!("llmfo-drill-lock.{run}.1.{space}.{later}");
        let alive = format!("1700000000002-{}", std::process::id());
        let logged = ["1700000000000-4194305", alive.as_str()];
        crate::fault::restore::mark(&client, &alive, 60).await.unwrap();
        for run in ["1700000000000-4194305", "1700000000001-4194305"] {
            client.create_proxy(&mark(run), "127.0.0.1:0", "127.0.0.1:9", false).await.unwrap();
        }
        for run in logged {
            let path = logs_folder(state.path()).join(format!("{run}.jsonl"));
            WalFile::create(&path).unwrap().append(begun(run, client.base_url())).unwrap();
        }
        let healing = heal(state.path(), None).await.unwrap();
        assert_eq!((healing.cleanup, healing.said.len()), (Cleanup::Clean, 1), "{healing:?}");
        assert!(healing.said[0].contains("run 1700000000000-4194305) ended without a final word; took its lock off"));
        let left: Vec<String> = client.proxies().await.unwrap().into_keys().collect();
        assert!(left.len() == 2 && left.iter().all(|n| !n.contains("1700000000000")), "{left:?}");
        assert_eq!(heal(state.path(), None).await.unwrap().said, Vec::<String>::new());
    }
}
