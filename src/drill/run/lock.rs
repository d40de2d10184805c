//! One drill per fault server: a lock file in the state folder, held by the kernel for as long as the runner lives.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::place::begun;
use crate::error::{Expected, Result};
use crate::units::printable;

/// A lock that is held; dropping it lets go.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

/// What to do about another drill.
const WAIT: &str = "wait until it ends, or stop it with Ctrl-C; it restores what it broke";
/// Looks for a name in a lock that somebody has just taken, and the pause between two.
const HOLDER_LOOKS: u32 = 50;
const HOLDER_PAUSE: Duration = Duration::from_millis(10);

/// Another drill is at work on this server: which, since when, what to do. `run`: its name, which says when it began.
pub(super) fn busy(server: &str, who: &str, run: &str) -> Expected {
    Expected::could_not(format!("another drill works with {} ({who}{})", printable(server, 100), since(run)), WAIT)
}

/// `, since 2026-11-30T20:05:43Z`
fn since(run: &str) -> String {
    let at = begun(run).and_then(|(ms, _)| jiff::Timestamp::from_second(i64::try_from(ms / 1000).ok()?).ok());
    at.map(|at| format!(", since {at}")).unwrap_or_default()
}

/// Who holds a lock. Whoever has taken it this instant has not written a name yet, and one that was killed has left its own.
fn holder(path: &Path) -> String {
    for _ in 1..HOLDER_LOOKS {
        let who = written(path, 300);
        let pid = who.strip_prefix("process ").and_then(|w| w.split(',').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
            return who;
        }
        std::thread::sleep(HOLDER_PAUSE);
    }
    written(path, 300)
}

fn written(path: &Path, most: u64) -> String {
    let mut who = String::new();
    let _ = File::open(path).and_then(|f| f.take(most).read_to_string(&mut who));
    printable(who.trim(), 300)
}

fn lock_path(state: &Path, server: &str) -> PathBuf {
    let name: String = server.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    state.join("locks").join(format!("{name}.lock"))
}

impl Lock {
    /// Takes the lock for the fault server at this address, for this run.
    ///
    /// # Errors
    /// Another drill holds it, or the folder cannot be written.
    pub fn take(state: &Path, server: &str, run: &str) -> Result<Lock> {
        Lock::try_take(state, server, run)?.ok_or_else(|| {
            let who = holder(&lock_path(state, server));
            Expected::could_not(format!("another drill works with {} ({who})", printable(server, 100)), WAIT)
        })
    }

    /// The same; `None`: another drill holds it.
    ///
    /// # Errors
    /// The folder or the lock cannot be written, so that nobody knows whether one does.
    pub fn try_take(state: &Path, server: &str, run: &str) -> Result<Option<Lock>> {
        let path = lock_path(state, server);
        let failed = |e: std::io::Error| {
            Expected::could_not(
                format!("the lock {} cannot be taken: {e}", path.display()),
                "set XDG_STATE_HOME to a folder that can be written",
            )
        };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(e) => return Err(failed(e.into())),
        }
        // Who holds it is for people; the lock itself is the kernel's.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "process {}, run {run}{}, {server}", std::process::id(), since(run));
        Ok(Some(Lock { _file: file, path }))
    }

    /// Who is at work now, one sentence each: every lock in the state folder that is held.
    #[must_use]
    pub fn held(state: &Path) -> Vec<String> {
        let listing = std::fs::read_dir(state.join("locks")).into_iter().flatten().flatten();
        let mut held = Vec::new();
        for path in listing.map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "lock")) {
            let Ok(file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
                let who = written(&path, 400);
                held.push(format!("a drill is running ({who}); it restores what it breaks when it ends"));
            }
        }
        held.sort();
        held
    }

    /// Locks that cannot be looked at, and the folder of the locks if it cannot be listed: a drill may be at work there.
    #[must_use]
    pub fn unreadable(state: &Path) -> Vec<String> {
        let folder = state.join("locks");
        let told = |path: &Path, e: &std::io::Error| format!("{}: {e}", path.display());
        let gone = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
        let listing = match std::fs::read_dir(&folder) {
            Ok(listing) => listing,
            Err(e) if gone(&e) => return Vec::new(),
            Err(e) => return vec![told(&folder, &e)],
        };
        let locks = listing.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "lock"));
        locks.filter_map(|p| File::open(&p).err().filter(|e| !gone(e)).map(|e| told(&p, &e))).collect()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_drills_on_one_server_exclude_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path(), "http://127.0.0.1:8474", "r1").unwrap();
        let held = Lock::held(dir.path());
        assert!(held.len() == 1 && held[0].contains(&format!("process {}, run r1", std::process::id())), "{held:?}");
        let second = Lock::take(dir.path(), "http://127.0.0.1:8474", "r2").unwrap_err();
        assert!(second.what.contains(&format!("process {}", std::process::id())), "{second}");
        assert!(Lock::take(dir.path(), "http://127.0.0.1:8475", "r3").is_ok());
        drop(first);
        assert_eq!(Lock::held(dir.path()), Vec::<String>::new());
        assert!(Lock::take(dir.path(), "http://127.0.0.1:8474", "r4").is_ok());
    }

    #[test]
    fn locks_that_cannot_be_looked_at_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Lock::unreadable(dir.path()), Vec::<String>::new());
        // A file where the folder should be stands for one that may not be listed: root may list everything.
        std::fs::write(dir.path().join("locks"), "").unwrap();
        let said = Lock::unreadable(dir.path());
        assert!(said.len() == 1 && said[0].contains("/locks: "), "{said:?}");
    }
}
