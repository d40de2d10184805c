//! One lab per fault server outside: a lock in the state folder, held by the kernel for as long as the lab lives, however it
//! ends. It is taken before anything is looked at there, so that of two labs that start together the second one is told of the
//! first, and touches neither its proxies nor its claim.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::home::{self, start_ticks};
use crate::error::{Expected, Result};
use crate::units::printable;

/// Looks for a name in a lock that somebody has just taken, and the pause between two.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// More than a name needs.
const NAME_MAX: u64 = 100;

/// The lock; dropping it lets go.
#[derive(Debug)]
pub(super) struct Alone(#[expect(dead_code, reason = "held, not used")] File);

impl Alone {
    /// Takes the server at this address.
    ///
    /// # Errors
    /// Another lab has it, or the state folder cannot be written.
    pub(super) async fn take(server: &str) -> Result<Alone> {
        let claim = home::claim_file(server)?;
        Alone::at(&claim.with_extension("lock"), server).await
    }

    async fn at(path: &Path, server: &str) -> Result<Alone> {
        match Alone::unless_held(path) {
            Ok(Some(alone)) => Ok(alone),
            Ok(None) => Err(busy(server, &holder(path).await)),
            Err(e) => {
                let what = format!("cannot lock {}: {e}", path.display());
                Err(Expected::could_not(what, "set XDG_STATE_HOME to another folder"))
            }
        }
    }

    /// The lock beside this claim; `None`: a lab holds it.
    pub(super) fn beside(claim: &Path) -> io::Result<Option<Alone>> {
        Alone::unless_held(&claim.with_extension("lock"))
    }

    fn unless_held(path: &Path) -> io::Result<Option<Alone>> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // Not truncated: it may be somebody else's.
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        // Who holds it is for people; the lock itself is the kernel's.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "process {}", std::process::id());
        Ok(Some(Alone(file)))
    }
}

fn busy(server: &str, who: &str) -> Expected {
    let who = if who.is_empty() { String::new() } else { format!(" ({who})") };
    Expected::could_not(
        format!("another lab works with {}{who}", printable(server, 100)),
        "stop that lab (Ctrl-C or SIGTERM; it removes its proxies), or use another Toxiproxy, or none",
    )
}

/// Who holds a lock. Whoever has taken it this instant has not written its name yet, and one that was killed has left its own.
async fn holder(path: &Path) -> String {
    let mut who = String::new();
    for _ in 0..LOOKS {
        who = written(path);
        let pid = who.strip_prefix("process ").and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| start_ticks(pid).is_some()) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    who
}

fn written(path: &Path) -> String {
    let mut who = String::new();
    let _ = File::open(path).and_then(|f| f.take(NAME_MAX).read_to_string(&mut who));
    printable(who.trim(), 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_is_told_of_the_first_until_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/lab-x.lock");
        let url = "http://127.0.0.1:8474";
        let first = Alone::at(&path, url).await.unwrap();
        let said = Alone::at(&path, url).await.unwrap_err();
        assert_eq!(said.what, format!("another lab works with {url} (process {})", std::process::id()));
        assert!(said.hint.contains("stop that lab"), "{}", said.hint);
        drop(first);
        assert!(Alone::at(&path, url).await.is_ok());
    }
}
