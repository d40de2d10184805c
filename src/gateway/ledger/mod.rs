//! The ledger on disk. The core decides (`router::ledger`); here its decisions are written down before they leave, and read
//! again after a restart. Texts of calls are here and nowhere in the core.

pub mod disk;
pub mod listing;
pub mod row;
pub mod stamp;
pub mod store;
mod writer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use self::disk::Disk;
use self::row::{CallRow, Change, ConversationRow};
use self::store::{Failed, Memory, Store};
use self::writer::{Heard, Job, Shown, Tell, Writer};
use super::bus::unix_ms;
use crate::error::{Expected, Result};
use crate::router::Remembered;

/// Jobs that may wait for the disk.
const WAITING: usize = 16_384;

/// Where the ledger is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this file.
    File(PathBuf),
    /// Nowhere: a restart forgets everything. Only for whoever asks for it.
    Memory,
}

/// The ledger's thread, as the rest of the gateway knows it.
pub struct Ledger {
    jobs: SyncSender<Job>,
    place: Place,
    shown: Arc<Shown>,
    listener: Arc<Mutex<Option<Tell>>>,
    /// Conversations that were heard of, for the thread to collect when it has time: it is not woken for each request.
    heard: Heard,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Calls on their way to the disk.
#[derive(Debug)]
pub struct Written(oneshot::Receiver<std::result::Result<(), Failed>>);

impl Written {
    /// Nothing is to be written.
    #[must_use]
    pub fn nothing() -> Written {
        let (tell, wait) = oneshot::channel();
        let _ = tell.send(Ok(()));
        Written(wait)
    }

    /// True once they are durable (or need not be), false if they could not be written.
    pub fn poll(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<bool> {
        use std::future::Future;
        std::pin::Pin::new(&mut self.0).poll(cx).map(|done| matches!(done, Ok(Ok(()))))
    }
}

impl Ledger {
    /// Opens the ledger and starts its thread.
    ///
    /// # Errors
    /// If it is in use, or no ledger, or cannot be opened or read.
    pub fn start(place: &Place) -> Result<Ledger> {
        let store: Box<dyn Store> = match place {
            Place::File(path) => Box::new(Disk::open(path)?),
            Place::Memory => Box::new(Memory::default()),
        };
        Ledger::with(store, place.clone())
    }

    /// The same with a store of one's own.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with(store: Box<dyn Store>, place: Place) -> Result<Ledger> {
        let (jobs, waiting) = sync_channel(WAITING);
        let shown = Arc::new(Shown::default());
        let listener: Arc<Mutex<Option<Tell>>> = Arc::default();
        let told = Arc::clone(&listener);
        let tell: Tell = Box::new(move |writable| {
            if let Some(tell) = &*told.lock().unwrap_or_else(PoisonError::into_inner) {
                tell(writable);
            }
        });
        let heard = Heard::default();
        let writer = Writer::new(store, Arc::clone(&shown), tell, Arc::clone(&heard));
        let spawned = std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&waiting));
        spawned.map_err(|e| Expected::could_not(format!("cannot start a thread: {e}"), "free some memory"))?;
        Ok(Ledger { jobs, place, shown, listener, heard })
    }

    /// Where it is kept.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Numbers for metrics and snapshots.
    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    /// It has failed and has not come back.
    #[must_use]
    pub fn failing(&self) -> bool {
        self.shown.failing.load(Ordering::Relaxed)
    }

    /// Who is told when it fails or comes back.
    pub fn on_change(&self, tell: Tell) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    }

    /// Begins to write calls. `needed`: they must not be handed out before.
    #[must_use]
    pub fn write(&self, rows: Vec<CallRow>, needed: bool) -> Written {
        let (done, wait) = oneshot::channel();
        // A full or closed queue drops the sender, which whoever waits reads as a failure.
        let _ = self.jobs.try_send(Job::Write { rows, needed, done });
        Written(wait)
    }

    /// Writes this when it is convenient.
    pub fn later(&self, change: Change) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.jobs.try_send(Job::Later(Box::new(change)))
        {
            self.shown.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Something was heard of a conversation.
    pub fn seen(&self, client: &str, route: &str, conversation: &str, turn: u64, version: Option<u64>) {
        let mut row = ConversationRow {
            client: client.to_owned(),
            route: route.to_owned(),
            conversation: conversation.to_owned(),
            ..ConversationRow::default()
        };
        row.see(turn, version, unix_ms());
        let waiting = {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.len() == WAITING {
                self.shown.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            heard.push(row);
            heard.len()
        };
        // Before there are too many; a full queue wakes it as well.
        if waiting.is_multiple_of(WAITING / 4) {
            let _ = self.jobs.try_send(Job::Collect);
        }
    }

    /// These calls as they were written down, in this order.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub async fn calls(&self, call_ids: Vec<String>) -> std::result::Result<Vec<CallRow>, Failed> {
        let (done, wait) = oneshot::channel();
        let sent = self.jobs.try_send(Job::Read { call_ids, done });
        sent.map_err(|_| "too much waits for the disk".to_owned())?;
        wait.await.unwrap_or_else(|_| Err("the ledger's thread has ended".to_owned()))
    }

    /// Every call; without `arguments` what stands for them.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub async fn list(&self, arguments: bool) -> std::result::Result<Vec<CallRow>, Failed> {
        let (done, wait) = oneshot::channel();
        self.jobs.try_send(Job::List { arguments, done }).map_err(|_| "too much waits for the disk".to_owned())?;
        wait.await.unwrap_or_else(|_| Err("the ledger's thread has ended".to_owned()))
    }

    /// Everything that a core must know when it begins. Waits for the disk.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn load(&self) -> std::result::Result<Vec<Remembered>, Failed> {
        let (done, wait) = sync_channel(1);
        self.jobs.send(Job::Load(done)).map_err(|_| "the ledger's thread has ended".to_owned())?;
        let (conversations, calls) = wait.recv().map_err(|_| "the ledger's thread has ended".to_owned())??;
        Ok(row::remembered(conversations, calls, unix_ms()))
    }

    /// Says who uses the file.
    pub fn used_by(&self, pid: u32, admin: SocketAddr) {
        if let Place::File(path) = &self.place {
            Beside { pid, admin }.write(&beside(path));
        }
    }

    /// Writes what waits and lets the file go. Waits at most so long.
    pub fn close(&self, limit: Duration) {
        if let Place::File(path) = &self.place {
            let _ = std::fs::remove_file(beside(path));
        }
        let (done, wait) = sync_channel(1);
        if self.jobs.try_send(Job::Close(done)).is_ok() {
            let _ = wait.recv_timeout(limit);
        }
    }
}

/// Who uses a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// The gateway's process.
    pub pid: u32,
    /// Its admin listener.
    pub admin: SocketAddr,
}

impl Beside {
    /// Reads such a note.
    #[must_use]
    pub fn read(path: &Path) -> Option<Beside> {
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    /// Leaves a note. That it cannot be written costs `llmfo ledger list` its way to the gateway and nothing else.
    fn write(&self, path: &Path) {
        if let Ok(text) = serde_json::to_string(self)
            && let Err(e) = std::fs::write(path, text)
        {
            tracing::warn!("cannot write who uses the ledger: {e}; `llmfo ledger list` needs --admin");
        }
    }
}

/// Beside the file: who uses it, so that `llmfo ledger list` finds the gateway that has it.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".gateway");
    PathBuf::from(name)
}
