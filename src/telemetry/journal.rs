//! The journal: one line of JSON per event, written by a thread of its own.
//!
//! The channel to it is bounded; when the disk is slow or full, lines are dropped and counted, and traffic goes on. The
//! file is rotated by size: `FILE` becomes `FILE.1`, `FILE.1` becomes `FILE.2` and so on, the last one is removed.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::error::{Expected, Result};
use crate::event::Stamped;

/// Where and how much.
#[derive(Clone, Debug)]
pub struct JournalSettings {
    /// The file; its folder must exist.
    pub path: PathBuf,
    /// Size at which it is rotated, in bytes.
    pub rotate_bytes: u64,
    /// Rotated files kept.
    pub keep: u32,
    /// Lines that may wait for the disk.
    pub queue: usize,
}

impl JournalSettings {
    /// 64 MiB per file, three old ones, 8,192 lines waiting.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> JournalSettings {
        JournalSettings { path: path.into(), rotate_bytes: 64 << 20, keep: 3, queue: 8192 }
    }
}

/// The sending end. Dropping it lets the writer finish and stop.
#[derive(Debug)]
pub struct Journal {
    lines: Option<SyncSender<Arc<Stamped>>>,
    dropped: Arc<AtomicU64>,
    done: Receiver<()>,
}

/// How long a writer that cannot write waits before it tries the file again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// The pause after each write, in which lines gather. A reader of the file is behind by no more than that.
const GATHER: Duration = Duration::from_millis(5);

impl Journal {
    /// Opens the file (appending) and starts the writer.
    ///
    /// # Errors
    /// If the file cannot be opened: better known at start than found out after an outage.
    pub fn start(settings: JournalSettings) -> Result<Journal> {
        let file = open(&settings.path).map_err(|e| {
            Expected::could_not(
                format!("the journal {} cannot be opened: {e}", settings.path.display()),
                "name a file in a folder that exists and may be written",
            )
        })?;
        let (lines, receive) = sync_channel(settings.queue.max(1));
        let (tell, done) = sync_channel(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer::new(settings, file, Arc::clone(&dropped));
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || {
                writer.run(&receive);
                let _ = tell.send(());
            })
            .map_err(|e| Expected::could_not(format!("no thread for the journal: {e}"), "raise the thread limit"))?;
        Ok(Journal { lines: Some(lines), dropped, done })
    }

    /// Hands a line over. Never waits.
    pub fn push(&self, event: Arc<Stamped>) {
        let sent = self.lines.as_ref().is_some_and(|l| l.try_send(event).is_ok());
        if !sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Lets the writer finish, but waits no longer than `limit`: a dead disk must not hold up the exit.
    pub fn close(mut self, limit: Duration) {
        self.lines = None;
        let _ = self.done.recv_timeout(limit);
    }
}

/// Opens it to append, on a line of its own.
fn open(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if ends_in_half_a_line(path) {
        // A full disk or a lost machine has left it. Behind it the next line could not be read either.
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// The last byte is no end of a line. Where that cannot be read (a pipe, a device, a file that may only be written) the file is
/// taken as it is.
fn ends_in_half_a_line(path: &Path) -> bool {
    if !std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0) {
        return false;
    }
    let last = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte).map(|()| byte[0])
    };
    last().is_ok_and(|byte: u8| byte != b'\n')
}

struct Writer {
    settings: JournalSettings,
    file: Option<BufWriter<File>>,
    written: u64,
    failed_at: Option<Instant>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    fn new(settings: JournalSettings, file: File, dropped: Arc<AtomicU64>) -> Writer {
        let written = file.metadata().map_or(0, |m| m.len());
        Writer { settings, file: Some(BufWriter::new(file)), written, failed_at: None, dropped }
    }

    fn run(mut self, lines: &Receiver<Arc<Stamped>>) {
        loop {
            // Flush when nothing more is waiting, so that a reader sees lines at once and a burst costs one write. On a busy
            // gateway this thread is not woken for each line: that would cost more than to write it.
            let event = match lines.try_recv() {
                Ok(event) => event,
                Err(_) => {
                    self.flush();
                    std::thread::sleep(GATHER);
                    match lines.recv_timeout(Duration::from_secs(60)) {
                        Ok(event) => event,
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            };
            self.line(&event);
        }
    }

    fn line(&mut self, event: &Stamped) {
        if self.try_line(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_line(&mut self, event: &Stamped) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(event).map_err(std::io::Error::other)?;
        line.push(b'\n');
        if self.written > 0 && self.written + line.len() as u64 > self.settings.rotate_bytes {
            self.rotate();
        }
        let file = self.file()?;
        if let Err(e) = file.write_all(&line) {
            self.fail();
            return Err(e);
        }
        self.written += line.len() as u64;
        Ok(())
    }

    fn file(&mut self) -> std::io::Result<&mut BufWriter<File>> {
        if self.file.is_none() {
            if self.failed_at.is_some_and(|at| at.elapsed() < REOPEN_AFTER) {
                return Err(std::io::Error::other("waiting before the next try"));
            }
            match open(&self.settings.path) {
                Ok(file) => {
                    self.written = file.metadata().map_or(0, |m| m.len());
                    self.file = Some(BufWriter::new(file));
                }
                Err(e) => {
                    self.failed_at = Some(Instant::now());
                    return Err(e);
                }
            }
        }
        self.file.as_mut().ok_or_else(|| std::io::Error::other("no file"))
    }

    fn flush(&mut self) {
        if self.file.as_mut().is_some_and(|f| f.flush().is_err()) {
            // What was buffered is lost; how many lines that were is not known, so at least one is counted.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.fail();
        }
    }

    /// Gives the file up without writing what is buffered, and tries again later.
    fn fail(&mut self) {
        if let Some(file) = self.file.take() {
            drop(file.into_parts());
        }
        self.failed_at = Some(Instant::now());
    }

    fn rotate(&mut self) {
        self.flush();
        self.file = None;
        self.written = 0;
        let name = |n: u32| {
            let mut name = self.settings.path.clone().into_os_string();
            if n > 0 {
                name.push(format!(".{n}"));
            }
            PathBuf::from(name)
        };
        if self.settings.keep == 0 {
            let _ = std::fs::remove_file(name(0));
            return;
        }
        for n in (0..self.settings.keep).rev() {
            let _ = std::fs::rename(name(n), name(n + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EVENT_FORMAT, Event};

    fn event(seq: u64) -> Arc<Stamped> {
        let event = Event::Stopped { open: seq };
        Arc::new(Stamped { v: EVENT_FORMAT, seq, at_unix_ms: 1, mono_ns: 2, event })
    }

    fn lines(path: &Path) -> Vec<Stamped> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn lines_come_out_as_they_went_in_and_files_rotate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let one = serde_json::to_vec(&*event(0)).unwrap().len() as u64 + 1;
        let settings = JournalSettings { rotate_bytes: one * 4, keep: 2, ..JournalSettings::at(&path) };
        let journal = Journal::start(settings).unwrap();
        for seq in 0..10 {
            journal.push(event(seq));
        }
        assert_eq!(journal.dropped(), 0);
        journal.close(Duration::from_secs(5));
        let seqs = |p: &Path| lines(p).iter().map(|l| l.seq).collect::<Vec<_>>();
        assert_eq!(seqs(&path), [8, 9]);
        assert_eq!(seqs(&dir.path().join("j.jsonl.1")), [4, 5, 6, 7]);
        assert_eq!(seqs(&dir.path().join("j.jsonl.2")), [0, 1, 2, 3]);
    }

    #[test]
    fn a_half_line_at_the_end_takes_no_line_of_the_next_start_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let whole = serde_json::to_string(&*event(0)).unwrap();
        std::fs::write(&path, format!("{whole}\n{{\"v\":1,\"half")).unwrap();
        for seq in [1, 2] {
            let journal = Journal::start(JournalSettings::at(&path)).unwrap();
            journal.push(event(seq));
            journal.close(Duration::from_secs(5));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let read: Vec<_> = text.lines().map(|l| serde_json::from_str::<Stamped>(l).ok().map(|s| s.seq)).collect();
        assert_eq!(read, [Some(0), None, Some(1), Some(2)], "{text}");
    }

    #[test]
    fn a_full_disk_drops_lines_and_never_waits() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let journal = Journal::start(JournalSettings::at(full)).unwrap();
        let start = Instant::now();
        for seq in 0..100_000 {
            journal.push(event(seq));
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        while journal.dropped() == 0 {
            assert!(start.elapsed() < Duration::from_secs(30));
            std::thread::yield_now();
        }
        journal.close(Duration::from_secs(5));
    }

    #[test]
    fn a_journal_that_cannot_be_opened_is_known_at_start() {
        let e = Journal::start(JournalSettings::at("/nowhere/at/all/j.jsonl")).unwrap_err();
        assert!(e.what.contains("/nowhere/at/all/j.jsonl"));
    }
}
