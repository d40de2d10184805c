//! Runs a schedule against the entries. The start of a conversation never waits for an answer; if it cannot be begun in
//! time, its rows say by how much (`started_ms - due_ms`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::app::{App, Settings};
use super::clock::monotonic_ms;
use super::plan::Plan;
use crate::error::Result;
use crate::measure::RequestRow;

/// Rows that may wait for their reader; a reader that is slower than that holds the load up.
const ROWS_WAITING: usize = 8_192;

/// A load under way. Dropping it ends everything at once.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    task: Option<tokio::task::JoinHandle<()>>,
    started_ms: f64,
}

#[derive(Debug)]
struct Shared {
    app: App,
    stopping: AtomicBool,
    stop: Notify,
    begun: AtomicU64,
    open: AtomicU64,
    requests: AtomicU64,
}

/// How far a load is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Conversations begun.
    pub conversations: u64,
    /// Conversations open now.
    pub open: u64,
    /// Requests ended.
    pub requests: u64,
}

/// Starts a load. Rows come out as requests end; the channel closes when all is over.
///
/// # Errors
/// An entry or the ticket system has no usable URL.
pub fn run(plan: Plan, settings: Settings) -> Result<(Load, mpsc::Receiver<RequestRow>)> {
    let (rows, receiver) = mpsc::channel(ROWS_WAITING);
    let shared = Arc::new(Shared {
        app: App::new(settings)?,
        stopping: AtomicBool::new(false),
        stop: Notify::new(),
        begun: AtomicU64::new(0),
        open: AtomicU64::new(0),
        requests: AtomicU64::new(0),
    });
    let started_ms = monotonic_ms();
    let task = tokio::spawn(drive(plan, Arc::clone(&shared), rows, started_ms));
    Ok((Load { shared, task: Some(task), started_ms }, receiver))
}

impl Load {
    /// When it began, in milliseconds of CLOCK_MONOTONIC.
    #[must_use]
    pub fn started_ms(&self) -> f64 {
        self.started_ms
    }

    /// Requests that start from now on belong to this phase.
    pub fn set_phase(&self, phase: &str) {
        self.shared.app.set_phase(phase);
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Progress {
            conversations: of(&self.shared.begun),
            open: of(&self.shared.open),
            requests: of(&self.shared.requests),
        }
    }

    /// Begins no further conversation or turn, waits for the turns under way for at most `limit`, then ends the rest.
    /// True if all ended by themselves.
    pub async fn stop(mut self, limit: Duration) -> bool {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.stop.notify_waiters();
        self.shared.stop.notify_one();
        match self.task.take() {
            Some(mut task) => {
                let ended = timeout(limit, &mut task).await.is_ok();
                task.abort();
                ended
            }
            None => true,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn drive(plan: Plan, shared: Arc<Shared>, rows: mpsc::Sender<RequestRow>, started_ms: f64) {
    let begin = Instant::now();
    let room = Arc::new(Semaphore::new(shared.app.settings().max_conversations.max(1)));
    // Dropped with this task, and with it every conversation.
    let mut conversations = JoinSet::new();
    for conversation in plan {
        let due = begin + Duration::from_secs_f64(conversation.at_ms.max(0.0) / 1e3);
        let permit = tokio::select! {
            () = shared.stop.notified() => break,
            permit = async { sleep_until(due).await; Arc::clone(&room).acquire_owned().await } => permit,
        };
        let Ok(permit) = permit else { break };
        if shared.stopping.load(Ordering::Relaxed) {
            break;
        }
        while conversations.try_join_next().is_some() {}
        let (shared, rows) = (Arc::clone(&shared), rows.clone());
        shared.begun.fetch_add(1, Ordering::Relaxed);
        shared.open.fetch_add(1, Ordering::Relaxed);
        conversations.spawn(async move {
            let due_ms = started_ms + conversation.at_ms;
            let tell = |row| {
                shared.requests.fetch_add(1, Ordering::Relaxed);
                let rows = &rows;
                async move {
                    // Nobody reads any more: the load is being ended.
                    let _ = rows.send(row).await;
                }
            };
            let go_on = || !shared.stopping.load(Ordering::Relaxed);
            shared.app.converse(&conversation, due_ms, tell, go_on).await;
            shared.open.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
    }
    while conversations.join_next().await.is_some() {}
}
