//! The opt-in input journal: everything that goes into the core, so that an incident can be played again (`llmfo simulate
//! --inputs`). It holds no body and no secret. A slow or full disk ends the journal, never a request.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::driver::Core;
use crate::error::{Expected, Result};
use crate::policy::Policy;
use crate::router::decision::Snapshot;
use crate::router::replay::{Entry, Header, JOURNAL_FORMAT, line};
use crate::router::{Engine, Input, Machine, Output};
use crate::units::{Ts, printable};

/// Lines that may wait for the disk.
const WAITING: usize = 65_536;
/// A longer journal ends: a day of a busy gateway.
const MAX_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Where the lines go.
#[derive(Clone, Debug)]
pub struct Recorder {
    way: Arc<Mutex<Way>>,
    /// A line was lost: what follows could not be replayed, so nothing follows.
    ended: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Way {
    /// Gone once the journal is closed.
    to: Option<SyncSender<String>>,
    /// Hangs up when the writer is through.
    written: Receiver<Infallible>,
}

impl Recorder {
    /// Opens the file, empty, and a thread that writes it.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(path: &Path) -> Result<Recorder> {
        refuse_others(path)?;
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(|e| {
            Expected::could_not(
                format!("cannot write the input journal {}: {e}", printable(&path.display().to_string(), 300)),
                "name a file in a folder that can be written to",
            )
        })?;
        let (to, from) = sync_channel(WAITING);
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let (through, written) = channel();
        let spawned = std::thread::Builder::new().name("input-journal".into()).spawn(move || {
            write(BufWriter::new(file), &from, &told);
            drop(through);
        });
        spawned.map_err(|e| Expected::could_not(format!("cannot start a thread: {e}"), "free some memory"))?;
        Ok(Recorder { way: Arc::new(Mutex::new(Way { to: Some(to), written })), ended })
    }

    /// Nothing follows.
    fn end(&self, why: &str) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            tracing::warn!("the input journal ends here: {why}");
        }
    }

    /// Takes nothing more, and waits until the disk has what it took, for at most `limit`. False: it has not.
    pub fn close(&self, limit: Duration) -> bool {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.to = None;
        !matches!(way.written.recv_timeout(limit), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
    }

    fn put(&self, text: Option<String>) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        let Some(text) = text else { return };
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to) = &way.to else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = to.try_send(text) {
            self.end("its disk is too slow or gone");
        }
    }
}

fn write(mut file: BufWriter<std::fs::File>, from: &Receiver<String>, ended: &AtomicBool) {
    let mut bytes = 0u64;
    while let Ok(text) = from.recv() {
        bytes += text.len() as u64;
        let mut written = file.write_all(text.as_bytes());
        // Whatever is there by now goes with it; then the disk has it.
        while let (Ok(()), Ok(text)) = (&written, from.try_recv()) {
            bytes += text.len() as u64;
            written = file.write_all(text.as_bytes());
        }
        let why = match written.and_then(|()| file.flush()) {
            Err(e) => e.to_string(),
            Ok(()) if bytes > MAX_BYTES => format!("it has {MAX_BYTES} bytes"),
            Ok(()) => continue,
        };
        if !ended.swap(true, Ordering::Relaxed) {
            tracing::warn!("the input journal ends here: {why}");
        }
        return;
    }
}

/// A file that is no input journal is never overwritten: a policy is soon named by mistake.
fn refuse_others(path: &Path) -> Result<()> {
    let Ok(file) = std::fs::File::open(path) else { return Ok(()) };
    if !file.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
        return Ok(());
    }
    let mut first = String::new();
    let read = BufReader::new(file.take(4_096)).read_line(&mut first);
    if read.is_ok() && serde_json::from_str::<Header>(&first).is_ok() {
        return Ok(());
    }
    Err(Expected::usage(
        format!("{} is there and is no input journal", printable(&path.display().to_string(), 300)),
        "name a new file for --record-inputs; nothing was overwritten",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_journal_has_every_line_that_it_took() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let recorder = Recorder::open(&path).unwrap();
        for n in 0..20_000 {
            recorder.put(Some(format!("{n}\n")));
        }
        assert!(recorder.close(Duration::from_secs(20)));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.lines().count(), text.lines().last()), (20_000, Some("19999")));
        recorder.put(Some("late\n".into()));
        assert!(recorder.close(Duration::ZERO), "closing twice is no harm");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn only_an_input_journal_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(Recorder::open(&path).is_ok(), "a new file");
        std::fs::write(&path, "version: support\n").unwrap();
        assert!(Recorder::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "version: support\n");
        let header = Header { format: 1, policy_sha256: "x".into(), seed: 1, hedges: false };
        std::fs::write(&path, line(&header).unwrap()).unwrap();
        assert!(Recorder::open(&path).is_ok());
    }
}

/// A core whose inputs are written down.
#[derive(Debug)]
pub struct Recorded {
    engine: Engine,
    recorder: Recorder,
    sha256: String,
    seq: u64,
}

impl Recorded {
    /// Begins a journal of this core: one that is rebuilt begins a new one in the same file.
    #[must_use]
    pub fn new(engine: Engine, policy: &Policy, seed: u64, recorder: Recorder) -> Recorded {
        let policy_sha256 = policy.sha256.clone();
        recorder.put(line(&Header { format: JOURNAL_FORMAT, policy_sha256, seed, hedges: true }).ok());
        Recorded { engine, recorder, sha256: policy.sha256.clone(), seq: 0 }
    }
}

impl Machine for Recorded {
    fn handle(&mut self, now: Ts, input: Input) {
        self.recorder.put(line(&Entry { seq: self.seq, at: now, input: input.clone() }).ok());
        self.seq += 1;
        self.engine.handle(now, input);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.engine.poll_output()
    }

    fn poll_timeout(&self) -> Option<Ts> {
        self.engine.poll_timeout()
    }
}

impl Core for Recorded {
    fn snapshot(&self, now: Ts) -> Snapshot {
        self.engine.snapshot(now)
    }

    fn succeed(&mut self, now: Ts, policy: &Arc<Policy>) {
        if policy.sha256 == self.sha256 {
            return self.handle(now, Input::Reread);
        }
        self.recorder.end("another policy holds from here on, and it is played under one");
        self.engine.succeed(now, Arc::clone(policy));
    }
}
