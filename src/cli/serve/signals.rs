//! The signals that ask `serve` to stop.

use std::io::Result;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// Those that ask it to stop. A closed terminal (SIGHUP) and Ctrl-\ (SIGQUIT) too: by themselves they would end the process at
/// once, and cut every stream without a word.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
    hup: Option<Signal>,
    quit: Option<Signal>,
}

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
        })
    }

    /// The next one, as the exit code of a process that it ended.
    pub(super) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.term.recv() => Exit::Terminated,
            _ = self.int.recv() => Exit::Interrupted,
            () = recv(&mut self.hup) => Exit::Terminated,
            () = recv(&mut self.quit) => Exit::Terminated,
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
