//! One drill at a time on a fault server, whoever starts it: a disabled proxy whose name says which run is at work. It is
//! made first and looked around second, so that of two that start together at most one goes on. A marker whose process is
//! gone, or whose time is over, is taken away.

use std::collections::BTreeSet;

use crate::fault::client::Client;
use crate::fault::clock::wall_ms;
use crate::fault::error::{FaultError, FaultKind};

/// What names of markers begin with; then run, start of the process, namespace of its number, and end in seconds.
pub const MARKER: &str = "llmfo-drill-lock.";

/// Another run that is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its run.
    pub run: String,
    /// Its process.
    pub pid: u32,
}

/// Marks the server as ours. `longest_s`: the run is over after that, whatever happens.
///
/// # Errors
/// Of a call. `Ok(Some)`: another run is at work, and the mark was taken back.
pub async fn mark(client: &Client, run: &str, longest_s: u64) -> Result<Option<Other>, FaultError> {
    let pid = std::process::id();
    let ticks = start_ticks(pid).unwrap_or_default();
    let name = format!("{MARKER}{run}.{ticks}.{}.{}", namespace(), wall_ms() / 1000 + longest_s);
    client.create_proxy(&name, "127.0.0.1:0", "127.0.0.1:9", false).await?;
    let mut other = None;
    for seen in client.proxies().await?.into_keys().filter(|n| *n != name) {
        match Marker::read(&seen) {
            Some(marker) if marker.is_over() => match client.delete_proxy(&seen).await {
                Err(e) if e.kind != FaultKind::NotFound => return Err(e),
                _ => {}
            },
            Some(marker) => other = Some(Other { run: marker.run.to_owned(), pid: marker.pid }),
            None => {}
        }
    }
    if other.is_some() {
        client.delete_proxy(&name).await?;
    }
    Ok(other)
}

/// Takes the marks of this run away.
///
/// # Errors
/// Of a call.
pub async fn unmark(client: &Client, run: &str) -> Result<(), FaultError> {
    for name in client.proxies().await?.into_keys() {
        if Marker::read(&name).is_some_and(|m| m.run == run) {
            match client.delete_proxy(&name).await {
                Err(e) if e.kind != FaultKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Takes away the marks of these runs that are over: one whose process was killed has left its own.
///
/// # Errors
/// Of a call.
pub async fn sweep(client: &Client, runs: &BTreeSet<String>) -> Result<Vec<Other>, FaultError> {
    let mut gone = Vec::new();
    for name in client.proxies().await?.into_keys() {
        let Some(marker) = Marker::read(&name).filter(|m| m.is_over() && runs.contains(m.run)) else { continue };
        match client.delete_proxy(&name).await {
            Err(e) if e.kind != FaultKind::NotFound => return Err(e),
            _ => gone.push(Other { run: marker.run.to_owned(), pid: marker.pid }),
        }
    }
    Ok(gone)
}

#[derive(Debug, PartialEq, Eq)]
struct Marker<'a> {
    run: &'a str,
    pid: u32,
    ticks: u64,
    namespace: u64,
    until_s: u64,
}

impl Marker<'_> {
    fn read(name: &str) -> Option<Marker<'_>> {
        let mut parts = name.strip_prefix(MARKER)?.split('.');
        let run = parts.next()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (ticks, namespace, until_s) = (number()?, number()?, number()?);
        let pid = run.rsplit('-').next()?.parse().ok()?;
        Some(Marker { run, pid, ticks, namespace, until_s })
    }

    /// Its process is gone or its time is over. A number of another namespace says nothing about its process.
    fn is_over(&self) -> bool {
        let gone = self.namespace == namespace() && start_ticks(self.pid) != Some(self.ticks);
        gone || wall_ms() / 1000 > self.until_s
    }
}

/// When a living process was started, in clock ticks since boot; `None` for one that is gone, or gone but for its entry.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The namespace of process numbers that this process lives in; 0 if it cannot be told.
fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_over_with_its_process_or_its_time() {
        let pid = std::process::id();
        let ticks = start_ticks(pid).unwrap();
        let (here, later) = (namespace(), wall_ms() / 1000 + 60);
        let name = |pid: u32, ticks: u64, ns: u64, until: u64| format!("{MARKER}1700-{pid}.{ticks}.{ns}.{until}");
        let over = |name: String| Marker::read(&name).unwrap().is_over();
        assert!(!over(name(pid, ticks, here, later)));
        assert!(over(name(pid, ticks + 1, here, later)), "the number was given again");
        // No process has this number: the largest that Linux gives is 4194304.
        assert!(over(name(4_194_305, 1, here, later)));
        assert!(!over(name(4_194_305, 1, here + 1, later)), "in another container");
        assert!(over(name(4_194_305, 1, here + 1, 1000)), "its time is over");
        for other in ["p", "llmfo-drill-lock.", "llmfo-drill-lock.1-x.1.1.1", "llmfo-drill-lock.1-2.1.1"] {
            assert_eq!(Marker::read(other), None, "{other}");
        }
    }
}
