//! Temporary folders of labs that were killed: they go when the next lab starts. A folder is removed only if its name is one
//! that a lab gives, it is a folder and no link, it belongs to this user and is open to nobody else, no process of the number
//! in its name lives, and nobody holds its lock (process numbers say nothing about a lab in another container that shares
//! the folder for temporary files).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use super::home::start_ticks;

/// What the names begin with; then the process and a number.
pub(super) const PREFIX: &str = "llmfo-lab-";
/// The file in it that is locked.
const LOCK: &str = ".lock";
/// Names that are looked at, and folders that are removed, at one start.
const LOOKED_AT: usize = 20_000;
const REMOVED: usize = 200;
/// A folder without a lock may be one that is just being made.
const OLD: Duration = Duration::from_secs(60);

/// The lock of a living lab.
#[derive(Debug)]
pub(super) struct Held(#[expect(dead_code, reason = "held, not used")] File);

/// Marks a fresh folder as that of a living lab.
pub(super) fn hold(path: &Path) -> io::Result<Held> {
    let file = File::create_new(path.join(LOCK))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Held(file))
}

/// Removes what dead labs have left. Whatever cannot be removed stays; nobody waits for it.
pub(super) fn sweep(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    let dead = entries.take(LOOKED_AT).flatten().map(|e| e.path()).filter(|p| is_dead(p));
    for path in dead.take(REMOVED) {
        // It follows no link, neither at the top nor below.
        let _ = fs::remove_dir_all(path);
    }
}

fn is_dead(path: &Path) -> bool {
    let Some(pid) = path.file_name().and_then(|n| n.to_str()).and_then(process_of) else { return false };
    // Also for another lab in this very process.
    if pid == std::process::id() || start_ticks(pid).is_some() {
        return false;
    }
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    ours && released(path)
        .unwrap_or_else(|| meta.modified().ok().and_then(|m| m.elapsed().ok()).is_some_and(|a| a > OLD))
}

/// Nobody holds the folder's lock; `None` if it has none.
fn released(path: &Path) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open(path.join(LOCK), flags, Mode::empty()) {
        Ok(file) => Some(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()),
        Err(rustix::io::Errno::NOENT) => None,
        Err(_) => Some(false),
    }
}

/// The process in `llmfo-lab-PROCESS-NUMBER`.
fn process_of(name: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let digits = |t: &str| !t.is_empty() && t.len() <= 10 && t.bytes().all(|b| b.is_ascii_digit());
    (digits(pid) && digits(n)).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, symlink};

    use super::*;

    #[test]
    fn only_folders_of_dead_labs_go() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let make = |name: &str, mode: u32| {
            fs::DirBuilder::new().mode(mode).create(at(name)).unwrap();
            fs::write(at(name).join("policy.yaml"), "x").unwrap();
        };
        // No process has this number: the largest that Linux gives is 4194304.
        let dead = 4_194_305;
        let names = |n: u32| format!("{PREFIX}{dead}-{n}");
        for n in 0..4 {
            make(&names(n), 0o700);
        }
        // 0: killed, its lock went with it. 1: locked by a lab elsewhere. 2: no lock, and fresh. 3: open to others.
        drop(hold(&at(&names(0))).unwrap());
        let held = hold(&at(&names(1))).unwrap();
        drop(hold(&at(&names(3))).unwrap());
        fs::set_permissions(at(&names(3)), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // A link to something precious, inside and in place of a folder.
        let precious = tempfile::tempdir().unwrap();
        fs::write(precious.path().join("keep"), "x").unwrap();
        symlink(precious.path(), at(&names(0)).join("link")).unwrap();
        symlink(precious.path(), at(&names(4))).unwrap();
        fs::write(at(&names(5)), "a file").unwrap();
        let living = format!("{PREFIX}{}-0", std::os::unix::process::parent_id());
        make(&living, 0o700);
        drop(hold(&at(&living)).unwrap());
        for other in [format!("{PREFIX}{dead}"), format!("{PREFIX}{dead}-x"), format!("other-{dead}-0")] {
            make(&other, 0o700);
            drop(hold(&at(&other)).unwrap());
        }
        let before = fs::read_dir(root.path()).unwrap().count();
        sweep(root.path());
        assert!(!at(&names(0)).exists());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), before - 1);
        assert!(precious.path().join("keep").exists());
        drop(held);
        sweep(root.path());
        assert!(!at(&names(1)).exists() && at(&names(2)).exists());
    }
}
