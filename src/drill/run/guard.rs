//! The guard process beside a run on a fault server without leases, as the runner sees it: started before anything is broken,
//! given signs of life, missed when it ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
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
/// Heartbeats in a row that it may leave unanswered. Counted and not timed, so that a runner that stood still itself misses
/// nobody: it has sent none meanwhile.
const UNANSWERED_MAX: u32 = 3;

/// The guard process, and the task that gives it signs of life.
#[derive(Debug)]
pub(super) struct Guard {
    say: mpsc::Sender<&'static str>,
    beats: JoinHandle<Option<String>>,
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
            .stdout(Stdio::piped())
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
        let (Some(pipe), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Expected::could_not("the guard has no pipe", ""));
        };
        let (say, said) = mpsc::channel::<&'static str>(4);
        let pipes = Pipes { ask: pipe, answers: Some(answers) };
        let beats = tokio::spawn(beat(process, pipes, said, log.to_path_buf(), stops.clone()));
        Ok(Guard { say, beats })
    }

    /// Dismisses it, or leaves a restore that did not succeed to it: then it tries again. What was out of the ordinary.
    pub(super) async fn end(self, restored: bool) -> Option<String> {
        if restored {
            let _ = self.say.send(DONE).await;
        }
        drop(self.say);
        self.beats.await.ok().flatten()
    }
}

/// Both ways between runner and guard.
struct Pipes {
    ask: ChildStdin,
    answers: Option<ChildStdout>,
}

impl Pipes {
    /// Resolves with each answer; never again once nobody is there, which the end of the process tells.
    async fn answer(&mut self) {
        let mut some = [0; 64];
        if let Some(pipe) = &mut self.answers {
            match pipe.read(&mut some).await {
                Ok(n) if n > 0 => return,
                _ => self.answers = None,
            }
        }
        std::future::pending().await
    }
}

/// Gives signs of life until the guard is to end or has ended, and wants one for each. One that is gone too early, or does
/// nothing any more, would be missed only by a runner that is gone too: the drill stops while there is somebody who restores.
async fn beat(
    mut process: Child,
    mut pipes: Pipes,
    mut said: mpsc::Receiver<&'static str>,
    log: PathBuf,
    stops: Stops,
) -> Option<String> {
    let pid = process.id().unwrap_or_default();
    let mut unanswered = 0;
    let dismissed = loop {
        let word = tokio::select! {
            _ = process.wait() => {
                gone(pid, &log, &stops);
                return None;
            }
            () = pipes.answer() => {
                unanswered = 0;
                continue;
            }
            word = timeout(BEAT_EVERY, said.recv()) => match word {
                Ok(Some(word)) => word,
                Ok(None) => break false,
                Err(_) => BEAT,
            },
        };
        if word == BEAT {
            if unanswered == UNANSWERED_MAX {
                silent(pid, &stops);
            }
            unanswered += 1;
        }
        // A pipe that nobody reads is told by the end of the process; it holds the beats of hours.
        let _ = pipes.ask.write_all(format!("{word}\n").as_bytes()).await;
        if word == DONE {
            break true;
        }
    };
    let stands = unanswered > UNANSWERED_MAX;
    if !dismissed && stands {
        // What could not be restored is left to it, if it can be brought to itself.
        signal(&process, Signal::CONT);
    }
    drop(pipes.ask);
    if !(dismissed && stands) && timeout(END, process.wait()).await.is_ok() {
        return None;
    }
    if !dismissed {
        // It is at work: it goes on for as long as its tries last.
        return None;
    }
    // All is restored, so that there is nothing it could still be good for.
    let _ = process.start_kill();
    let _ = timeout(END, process.wait()).await;
    Some(format!("the guard (process {pid}) did not end when it was dismissed, and was killed"))
}

fn signal(process: &Child, signal: Signal) {
    if let Some(pid) = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn silent(pid: u32, stops: &Stops) {
    stops.ask(
        Reason::GuardLost.code(),
        &format!(
            "the guard (process {pid}) gave no sign of life for {} s (stopped, or starved): nobody would have restored after the drill",
            BEAT_EVERY.as_secs() * u64::from(UNANSWERED_MAX)
        ),
    );
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
