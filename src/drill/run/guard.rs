//! The guard process beside a run on a fault server without leases, as the runner sees it: started before anything is broken,
//! given signs of life, missed when it ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::safety::BEAT_EVERY;
use super::signals::Stops;
use super::watch::guard_restored;
use crate::drill::spoilt::Reason;
use crate::error::{Expected, Result};
use crate::fault::guard::{BEAT, DONE};

/// How long a guard may take until it stands alone, and the pause between two looks.
const READY: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// How long a dismissed guard may take to end.
const END: Duration = Duration::from_secs(3);

/// The guard process, and the task that gives it signs of life.
#[derive(Debug)]
pub(super) struct Guard {
    say: mpsc::Sender<&'static str>,
    beats: JoinHandle<()>,
}

impl Guard {
    /// Starts this binary with the read end of a pipe, and waits until it leads a session of its own. It makes that itself,
    /// which it could not if it led a process group already; until then nothing is broken that it would have to restore.
    pub(super) async fn start(log: &Path, longest: Duration, stops: &Stops) -> Result<Guard> {
        let failed = |e: std::io::Error| Expected::could_not(format!("the guard cannot be started: {e}"), "");
        let mut process = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["drill", "guard", "--log"])
            .arg(log)
            .args(["--longest-s", &longest.as_secs().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let until = Instant::now() + READY;
        while !leads_a_session(&process) {
            if Instant::now() > until || !matches!(process.try_wait(), Ok(None)) {
                let _ = process.start_kill();
                return Err(Expected::could_not("the guard is not ready", "nothing was broken; try again"));
            }
            tokio::time::sleep(LOOK).await;
        }
        let Some(pipe) = process.stdin.take() else {
            return Err(Expected::could_not("the guard has no pipe", ""));
        };
        let (say, said) = mpsc::channel::<&'static str>(4);
        let beats = tokio::spawn(beat(process, pipe, said, log.to_path_buf(), stops.clone()));
        Ok(Guard { say, beats })
    }

    /// Dismisses it, or leaves a restore that did not succeed to it: then it tries again.
    pub(super) async fn end(self, restored: bool) {
        if restored {
            let _ = self.say.send(DONE).await;
        }
        drop(self.say);
        let _ = self.beats.await;
    }
}

/// Gives signs of life until the guard is to end or has ended. One that is gone too early would be missed only by a runner
/// that is gone too: the drill stops while there is somebody who restores.
async fn beat(
    mut process: Child,
    mut pipe: ChildStdin,
    mut said: mpsc::Receiver<&'static str>,
    log: PathBuf,
    stops: Stops,
) {
    let pid = process.id().unwrap_or_default();
    loop {
        let word = tokio::select! {
            _ = process.wait() => return gone(pid, &log, &stops),
            word = timeout(BEAT_EVERY, said.recv()) => match word {
                Ok(Some(word)) => word,
                Ok(None) => break,
                Err(_) => BEAT,
            },
        };
        // A pipe that nobody reads is told by the end of the process.
        let _ = pipe.write_all(format!("{word}\n").as_bytes()).await;
        if word == DONE {
            break;
        }
    }
    drop(pipe);
    let _ = timeout(END, process.wait()).await;
}

fn gone(pid: u32, log: &Path, stops: &Stops) {
    match guard_restored(log) {
        Some(why) => stops.ask(Reason::LeaseLost.code(), &why),
        None => stops.ask(
            Reason::GuardLost.code(),
            &format!(
                "the guard (process {pid}) ended although nobody had dismissed it: nobody would have restored after the drill"
            ),
        ),
    }
}

fn leads_a_session(process: &Child) -> bool {
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(crate::fault::guard::leads_a_session)
}
