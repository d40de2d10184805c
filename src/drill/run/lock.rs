//! One drill per fault server: a lock file in the state folder, held by the kernel for as long as the runner lives.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Expected, Result};
use crate::units::printable;

/// A lock that is held; dropping it lets go.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock for the fault server at this address.
    ///
    /// # Errors
    /// Another drill holds it, or the folder cannot be written.
    pub fn take(state: &Path, server: &str) -> Result<Lock> {
        let name: String = server.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = state.join("locks").join(format!("{name}.lock"));
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
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut who = String::new();
            let _ = (&mut file).take(200).read_to_string(&mut who);
            return Err(Expected::could_not(
                format!("another drill works with {} ({})", printable(server, 100), printable(who.trim(), 100)),
                "wait until it ends, or stop it with Ctrl-C; it restores what it broke",
            ));
        }
        // Who holds it is for people; the lock itself is the kernel's.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "process {}", std::process::id());
        Ok(Lock { _file: file, path })
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
        let first = Lock::take(dir.path(), "http://127.0.0.1:8474").unwrap();
        let second = Lock::take(dir.path(), "http://127.0.0.1:8474").unwrap_err();
        assert!(second.what.contains(&format!("process {}", std::process::id())), "{second}");
        assert!(Lock::take(dir.path(), "http://127.0.0.1:8475").is_ok());
        drop(first);
        assert!(Lock::take(dir.path(), "http://127.0.0.1:8474").is_ok());
    }
}
