//! The dead man's switch for a real Toxiproxy, which knows no leases: a helper process in a session of its own holds the
//! log and the read end of a pipe. When the pipe ends without a word (the runner was killed), or the heartbeat stays away, it
//! restores. The runner's terminal and process group do not reach it.

use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::Client;
use super::restore::{Cleanup, Restored, restore};
use super::wal::{Wal, WalFile, leftovers};
use crate::error::{Expected, Result};

/// The runner says this when it has restored by itself.
pub const DONE: &str = "done";
/// Any other line is a heartbeat.
pub const BEAT: &str = "beat";
/// The guard answers each heartbeat with this, so that one that only seems to be there (stopped, hanging) is told from one that
/// is.
pub const HEARD: &str = "heard";
/// A restore that ended dirty is tried again this often.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// How long the guard believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A heartbeat is missed after that; none: only the end of the pipe counts.
    pub beat: Option<Duration>,
    /// It restores then, heartbeat or not: the longest a drill may take.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { beat: None, total: Duration::from_secs(3600) }
    }
}

/// Why it acted, if it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runner said that it was done.
    Dismissed,
    /// It restored: why, and how that ended.
    Restored(&'static str, Restored),
}

/// Runs in a child process of the runner until it is dismissed or has restored. `input` is its standard input, `output` where
/// it answers heartbeats.
///
/// # Errors
/// The log cannot be read: nobody knows then what to restore.
pub fn run(wal: &Path, limits: Limits, input: impl Read + Send + 'static, output: impl Write) -> Result<Outcome> {
    // Without a session of its own a closed terminal would take it along.
    if let Err(e) = rustix::process::setsid()
        && !leads_a_session(rustix::process::getpid())
    {
        return Err(Expected::could_not(
            format!("the guard cannot leave its session: {e}"),
            "start it as no group's leader",
        ));
    }
    stand(wal, limits, input, output)
}

/// True if this process leads a session of its own.
#[must_use]
pub fn leads_a_session(pid: rustix::process::Pid) -> bool {
    // As text, where it can be had: the id of a session that began outside this container is 0, which `getsid` cannot return.
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    match text.ok().as_deref().and_then(session) {
        Some(session) => i64::from(pid.as_raw_nonzero().get()) == session,
        None => rustix::process::getsid(Some(pid)) == Ok(pid),
    }
}

/// The session in `/proc/PID/stat`: the fourth word behind the name, which may hold anything.
fn session(stat: &str) -> Option<i64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// [`run`] without leaving the session of its parent.
///
/// # Errors
/// As [`run`].
pub fn stand(wal: &Path, limits: Limits, input: impl Read + Send + 'static, output: impl Write) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Expected::could_not(format!("the guard cannot start: {e}"), ""))?;
    let outcome = runtime.block_on(watch(wal.to_owned(), limits, input, output));
    // The thread that reads the pipe may wait for ever.
    runtime.shutdown_background();
    outcome
}

async fn watch(
    wal: PathBuf,
    limits: Limits,
    input: impl Read + Send + 'static,
    mut output: impl Write,
) -> Result<Outcome> {
    let signals = |kind| signal(kind).map_err(|e| Expected::could_not(format!("the guard cannot start: {e}"), ""));
    let mut term = signals(SignalKind::terminate())?;
    let mut int = signals(SignalKind::interrupt())?;
    let mut hup = signals(SignalKind::hangup())?;
    let mut lines = lines(input);
    let end = Instant::now() + limits.total;
    let mut heard = Instant::now();
    loop {
        let beat = limits.beat.map_or(end, |beat| heard + beat);
        let why = tokio::select! {
            line = lines.recv() => match line.as_deref() {
                Some(DONE) => return Ok(Outcome::Dismissed),
                Some(_) => {
                    heard = Instant::now();
                    // Whoever does not read it is told by nothing else, and a runner that is gone is seen at the other pipe. It
                    // never waits: no more answers than heartbeats lie in the pipe.
                    let _ = writeln!(output, "{HEARD}").and_then(|()| output.flush());
                    continue;
                }
                None => "the runner is gone",
            },
            () = sleep_until(beat.min(end)) => "the runner gave no sign in time",
            _ = term.recv() => "the guard was told to end",
            // Ctrl-C and a closed terminal are for the runner, which restores by itself or leaves the pipe.
            _ = int.recv() => continue,
            _ = hup.recv() => continue,
        };
        return Ok(Outcome::Restored(why, heal(&wal).await?));
    }
}

/// Lines of the pipe. A thread of its own, since a pipe cannot be waited for otherwise.
fn lines(input: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::BufReader::new(input).lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line.trim().to_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn heal(path: &Path) -> Result<Restored> {
    let mut wal = WalFile::open(path)?;
    let Some(undo) = leftovers(wal.entries()) else {
        return Ok(Restored { cleanup: Cleanup::Clean, took: Duration::ZERO, notes: Vec::new() });
    };
    let client = Client::anywhere(&undo.begin.server)?;
    let mut restored = restore(&client, "guard", &mut wal).await;
    for _ in 1..TRIES {
        if !restored.cleanup.is_dirty() {
            break;
        }
        sleep(PAUSE).await;
        restored = restore(&client, "guard", &mut wal).await;
    }
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_read_whatever_the_name_is() {
        assert_eq!(session("42 (a) S 9 (b) c) S 1 42 7 34816 42 4194304"), Some(7));
        assert_eq!(session("42 (llmfo) S 1 42 0 0 -1"), Some(0), "it began outside the container");
        assert_eq!(session("42 (llmfo"), None);
    }
}
