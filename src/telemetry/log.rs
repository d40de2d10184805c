//! Log lines on their way to standard error. Whoever reads standard error may stop reading; a full pipe must hold up no
//! request (case B158). So lines go through a bounded queue to a thread of their own, and what does not fit is counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Lines that may wait.
const QUEUE: usize = 4096;

/// Where log lines are put. Cheap to clone; never waits.
#[derive(Clone, Debug)]
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

/// The writing end; dropping it ends nothing, `finish` waits for what is queued.
#[derive(Debug)]
pub struct LogWriter {
    done: Receiver<()>,
}

/// Starts the writer.
///
/// # Errors
/// If there is no thread for it.
pub fn start(mut to: impl Write + Send + 'static) -> io::Result<(LogQueue, LogWriter)> {
    let (lines, receive) = sync_channel::<Vec<u8>>(QUEUE);
    let (tell, done) = sync_channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    std::thread::Builder::new().name("log".into()).spawn(move || {
        while let Ok(line) = receive.recv() {
            if line.is_empty() {
                // The mark of `finish`.
                break;
            }
            let missing = lost.swap(0, Ordering::Relaxed);
            if missing > 0 {
                let _ = writeln!(to, "({missing} log lines were dropped: standard error was not read)");
            }
            let _ = to.write_all(&line);
        }
        let _ = to.flush();
        let _ = tell.send(());
    })?;
    Ok((LogQueue { lines, dropped }, LogWriter { done }))
}

impl LogQueue {
    /// Lets what is queued be written, but waits no longer than `limit`.
    pub fn finish(&self, writer: &LogWriter, limit: Duration) {
        let end = Instant::now() + limit;
        while self.lines.try_send(Vec::new()).is_err() {
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = writer.done.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !line.is_empty() && self.lines.try_send(line.to_vec()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    struct Stuck(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_holds_up_nobody_and_is_told_what_it_missed() {
        let (go, wait) = mpsc::channel();
        let written = Arc::default();
        let (mut queue, writer) = start(Stuck(wait, Arc::clone(&written))).unwrap();
        for n in 0..QUEUE + 10 {
            // One write per line, as the log's formatter does it.
            queue.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        assert!(queue.dropped.load(Ordering::Relaxed) >= 9);
        drop(go);
        while queue.lines.try_send(b"last\n".to_vec()).is_err() {
            std::thread::yield_now();
        }
        queue.finish(&writer, Duration::from_secs(20));
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(text.contains("line 0\n") && text.ends_with("last\n"), "{text}");
        assert!(text.contains("log lines were dropped"));
    }
}
