//! The lab's folder, and its claim on a fault server that it does not own.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::leftover::{self, Held};
use crate::error::{Expected, Result};

/// The folder with policy and evidence.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    /// Made by us with a name of our own, to be removed again; locked as long as this lab lives.
    temporary: Option<Held>,
}

impl Home {
    /// Uses `dir`, which is made if need be and kept, or a fresh temporary folder, which is removed on drop.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(dir: Option<&Path>) -> Result<Home> {
        let (path, temporary) = match dir {
            Some(dir) => (std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf()), None),
            None => {
                let root = std::env::temp_dir();
                leftover::sweep(&root);
                let path = fresh_temporary(&root)?;
                let held = leftover::hold(&path).map_err(|e| cannot_write(&path, &e))?;
                (path, Some(held))
            }
        };
        fs::create_dir_all(&path).map_err(|e| cannot_write(&path, &e))?;
        Ok(Home { path, temporary })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file below it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, below: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(below);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| cannot_write(parent, &e))?;
        }
        fs::write(&path, text).map_err(|e| cannot_write(&path, &e))?;
        Ok(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.temporary.is_some() {
            // Nothing can be done about a folder that cannot be removed; it holds no secret.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn fresh_temporary(root: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    for n in 0..1_000 {
        let path = root.join(format!("{}{}-{n}", leftover::PREFIX, std::process::id()));
        // Fails if the name is taken, also by a link that somebody else has put there.
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot_write(&path, &error)),
        }
    }
    Err(Expected::could_not(format!("no free folder name below {}", root.display()), "give one with --dir"))
}

fn cannot_write(path: &Path, error: &io::Error) -> Expected {
    Expected::could_not(format!("cannot write {}: {error}", path.display()), "give another folder with --dir")
}

/// What a lab has made on a fault server that runs outside it, on disk, so that the next lab can tell its leftovers from
/// somebody else's proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Format version.
    pub format: u32,
    /// Process of the lab.
    pub pid: u32,
    /// Its start time in clock ticks since boot (field 22 of /proc/PID/stat): a process id alone may be given again.
    pub started: Option<u64>,
    /// URL of the fault server; empty in claims of earlier versions.
    #[serde(default)]
    pub server: String,
    /// (name, listen, upstream) of every proxy.
    pub proxies: Vec<(String, String, String)>,
}

impl Claim {
    /// The claim of this process.
    #[must_use]
    pub fn ours(server: &str, proxies: Vec<(String, String, String)>) -> Claim {
        let pid = std::process::id();
        Claim { format: 1, pid, started: start_ticks(pid), server: server.into(), proxies }
    }

    /// The claim on the server at this address, if there is a readable one.
    #[must_use]
    pub fn read(toxiproxy: &str) -> Option<Claim> {
        serde_json::from_slice(&fs::read(claim_path(toxiproxy)?).ok()?).ok()
    }

    /// Writes it and waits until it is on disk.
    ///
    /// # Errors
    /// There is no state folder, or it cannot be written.
    pub fn write(&self, toxiproxy: &str) -> Result<()> {
        let path = claim_file(toxiproxy)?;
        let text = serde_json::to_vec(self).unwrap_or_default();
        let write = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut file = fs::File::create(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(|e| {
            Expected::could_not(format!("cannot write {}: {e}", path.display()), "set XDG_STATE_HOME to another folder")
        })
    }

    /// Takes it back.
    pub fn remove(toxiproxy: &str) {
        if let Some(path) = claim_path(toxiproxy) {
            // A stale claim of a dead process does no harm.
            let _ = fs::remove_file(path);
        }
    }

    /// Claims of labs that are gone, in this state folder, and where they lie.
    #[must_use]
    pub fn dead(state: &Path) -> Vec<(PathBuf, Claim)> {
        let files = fs::read_dir(state).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| is_claim(p));
        let read = |p: PathBuf| Some((p.clone(), serde_json::from_slice::<Claim>(&fs::read(&p).ok()?).ok()?));
        files.filter_map(read).filter(|(_, c)| !c.server.is_empty() && c.is_dead()).collect()
    }

    /// Claims in this state folder that cannot be read, and the folder itself if it cannot be listed: each in a sentence.
    #[must_use]
    pub fn unreadable(state: &Path) -> Vec<String> {
        let told = |path: &Path, why: String| format!("{}: {}", path.display(), crate::units::printable(&why, 200));
        let listing = match fs::read_dir(state) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(e) => return vec![told(state, e.to_string())],
        };
        let broken = |p: PathBuf| match fs::read(&p) {
            Ok(bytes) => serde_json::from_slice::<Claim>(&bytes).err().map(|e| told(&p, e.to_string())),
            // A lab that ends just now takes its own away.
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => Some(told(&p, e.to_string())),
        };
        listing.flatten().map(|e| e.path()).filter(|p| is_claim(p)).filter_map(broken).collect()
    }

    /// The lab that wrote it is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        if let Some(started) = self.started {
            // Also dead: a process that was killed and whose parent has not asked for its end yet.
            return start_ticks(self.pid) != Some(started);
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        // A process of somebody else answers "not permitted": it lives.
        pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }

    /// This proxy, exactly as it stands, was made by the lab that wrote the claim.
    #[must_use]
    pub fn holds(&self, name: &str, listen: &str, upstream: &str) -> bool {
        self.proxies.iter().any(|(n, l, u)| n == name && l == listen && u == upstream)
    }
}

fn is_claim(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.starts_with("lab-") && name.ends_with(".json")
}

/// Where the claim on the server at this address lies.
///
/// # Errors
/// There is no state folder.
pub(super) fn claim_file(toxiproxy: &str) -> Result<PathBuf> {
    claim_path(toxiproxy).ok_or_else(|| {
        Expected::could_not("there is no state folder", "set XDG_STATE_HOME or HOME to a folder that can be written")
    })
}

fn claim_path(toxiproxy: &str) -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .filter(|s| !s.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME").filter(|h| !h.is_empty())?).join(".local/state")))?;
    let name: String = toxiproxy.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).collect();
    Some(state.join("llmfo").join(format!("lab-{name}.json")))
}

/// When a living process was started; `None` for one that is gone, or gone but for its entry (states Z and X).
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; what follows the last one begins with field 3, the state.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_home_goes_and_a_given_one_stays() {
        let home = Home::open(None).unwrap();
        let path = home.path().to_path_buf();
        assert!(home.write("a/b.txt", "x").unwrap().is_file());
        drop(home);
        assert!(!path.exists());
        let given = tempfile::tempdir().unwrap();
        drop(Home::open(Some(given.path())).unwrap());
        assert!(given.path().exists());
    }

    #[test]
    fn a_living_process_is_not_dead_and_a_number_given_again_is() {
        let mine = Claim::ours("http://127.0.0.1:1", vec![("a".into(), "l".into(), "u".into())]);
        assert!(!mine.is_dead());
        assert!(Claim { started: mine.started.map(|s| s + 1), ..mine.clone() }.is_dead());
        assert!(mine.started.is_some());
        assert!(Claim { pid: 0, started: None, ..mine.clone() }.is_dead());
        assert!(mine.holds("a", "l", "u") && !mine.holds("a", "l", "other"));
    }
}
