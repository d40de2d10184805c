//! The signals that ask `serve` to stop, or to read its policy again.

use std::io::{IsTerminal, Result};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Stop; the exit code of a process that the signal itself ended, and which it was.
    Stop(Exit, &'static str),
    /// Read the policy again.
    Reload,
}

/// SIGHUP asks to read the policy again, unless it says that the terminal which `serve` was started from is gone. That and Ctrl-\
/// (SIGQUIT) ask to stop: by themselves they would end the process at once, and cut every stream without a word.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
    hup: Option<Signal>,
    quit: Option<Signal>,
    had_terminal: bool,
    asked: Option<Instant>,
}

/// Two that ask to stop within this time are one: `timeout` sends its signal to the process and to its group, a terminal and
/// whoever watches over a service may do so both. Nobody who means it presses a key twice as fast.
const SAME: Duration = Duration::from_millis(100);

impl Signals {
    /// Catches them from here on. The last two only if nobody has had them ignored: `nohup` does, and means it.
    pub(super) fn catch() -> Result<Signals> {
        let ignored = ignored();
        let unless_ignored = |kind: SignalKind| match ignored & bit(kind) {
            0 => signal(kind).map(Some),
            _ => Ok(None),
        };
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: unless_ignored(SignalKind::hangup())?,
            quit: unless_ignored(SignalKind::quit())?,
            had_terminal: std::io::stdin().is_terminal(),
            asked: None,
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Asked {
        let asked = self.any().await;
        if matches!(asked, Asked::Stop(..)) {
            self.asked.get_or_insert_with(Instant::now);
        }
        asked
    }

    async fn any(&mut self) -> Asked {
        tokio::select! {
            _ = self.term.recv() => Asked::Stop(Exit::Terminated, "SIGTERM"),
            _ = self.int.recv() => Asked::Stop(Exit::Interrupted, "SIGINT"),
            () = recv(&mut self.hup) => {
                // A terminal that has hung up is none any more.
                let gone = self.had_terminal && !std::io::stdin().is_terminal();
                if gone { Asked::Stop(Exit::Terminated, "the terminal was closed") } else { Asked::Reload }
            }
            () = recv(&mut self.quit) => Asked::Stop(Exit::Terminated, "SIGQUIT"),
        }
    }

    /// The next one that asks to stop, and does not belong to the one before.
    pub(super) async fn stop(&mut self) -> Exit {
        loop {
            if let Asked::Stop(exit, _) = self.any().await
                && self.asked.is_none_or(|first| first.elapsed() >= SAME)
            {
                return exit;
            }
        }
    }
}

async fn recv(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn bit(kind: SignalKind) -> u64 {
    u32::try_from(kind.as_raw_value() - 1).ok().and_then(|n| 1u64.checked_shl(n)).unwrap_or(0)
}

/// The signals that this process was started with ignored, one bit each, as Linux tells it. None elsewhere.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
