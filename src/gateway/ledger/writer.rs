//! The one thread that uses the store. Whoever has something durable to write waits without a thread; what has come meanwhile is
//! written with it, as one group.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::super::bus::unix_ms;
use super::row::{CallRow, Change, ConversationRow};
use super::store::{Bounds, Failed, Store, place};
use crate::router::ledger::RETENTION;

/// Jobs taken together.
const GROUP: usize = 4_096;
/// What can wait is written down so often.
const LATER: Duration = Duration::from_secs(1);
/// What is too old is forgotten so often.
const PRUNE: Duration = Duration::from_secs(600);
/// A store that has failed is tried again so often.
const RETRY: Duration = Duration::from_secs(2);
/// Changes kept for a store that has failed; the oldest go first.
const BACKLOG: usize = 20_000;
/// Conversations that wait to be written down.
const WAITING: usize = 20_000;

/// All rows of a store.
pub type Everything = (Vec<ConversationRow>, Vec<CallRow>);

/// Changes that must be written together, whether somebody must not go on without, and who waits.
type Asked = (Vec<Change>, bool, oneshot::Sender<Result<(), Failed>>);

/// What the thread is asked to do.
pub enum Job {
    /// Write these calls and say when they are durable. `needed`: without that they must not be handed out.
    Write {
        /// The calls.
        rows: Vec<CallRow>,
        /// At least one of them changes something that twice would harm.
        needed: bool,
        /// Who waits.
        done: oneshot::Sender<Result<(), Failed>>,
    },
    /// Write this when it is convenient.
    Later(Box<Change>),
    /// Collect the conversations that were heard of.
    Collect,
    /// Read the arguments of these calls.
    Read {
        /// Their ids.
        call_ids: Vec<String>,
        /// Who waits.
        done: oneshot::Sender<Result<Vec<CallRow>, Failed>>,
    },
    /// Every call.
    List {
        /// With its arguments.
        arguments: bool,
        /// Who waits.
        done: oneshot::Sender<Result<Vec<CallRow>, Failed>>,
    },
    /// Everything, for a core that begins.
    Load(SyncSender<Result<Everything, Failed>>),
    /// Write what waits, and end.
    Close(SyncSender<()>),
}

/// What others see of the thread's work.
#[derive(Debug, Default)]
pub struct Shown {
    /// The store has failed and has not come back.
    pub failing: AtomicBool,
    /// Groups written.
    pub groups: AtomicU64,
    /// Calls in them.
    pub calls: AtomicU64,
    /// Times that the store has failed.
    pub failures: AtomicU64,
    /// Changes lost while it had failed.
    pub lost: AtomicU64,
    /// Spent writing, in microseconds.
    pub busy_us: AtomicU64,
}

/// Conversations that were heard of and not yet collected.
pub(super) type Heard = Arc<Mutex<Vec<ConversationRow>>>;

/// Told when the store fails or comes back.
pub type Tell = Box<dyn Fn(bool) + Send>;

pub(super) struct Writer {
    store: Box<dyn Store>,
    shown: Arc<Shown>,
    tell: Tell,
    /// In order: calls and their states.
    pending: VecDeque<Change>,
    seen: BTreeMap<(String, String, String), ConversationRow>,
    heard: Heard,
    flushed: Instant,
    pruned: Option<Instant>,
    tried: Instant,
    bounds: Bounds,
}

impl Writer {
    pub(super) fn new(store: Box<dyn Store>, shown: Arc<Shown>, tell: Tell, heard: Heard) -> Writer {
        let now = Instant::now();
        let seen = BTreeMap::new();
        let bounds = Bounds::default();
        Writer { store, shown, tell, pending: VecDeque::new(), seen, heard, flushed: now, pruned: None, tried: now, bounds }
    }

    /// Works until it is closed or nobody can ask any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let first = match jobs.recv_timeout(LATER) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let group: Vec<Job> =
                first.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok())).take(GROUP).collect();
            if let Some(closed) = self.group(group) {
                let _ = self.flush();
                // The file is free before anybody is told.
                drop(self);
                let _ = closed.send(());
                return;
            }
            self.spare_time();
        }
        let _ = self.flush();
    }

    fn group(&mut self, group: Vec<Job>) -> Option<SyncSender<()>> {
        let (mut waiting, mut reads, mut closed): (Vec<Asked>, Vec<Job>, _) = (Vec::new(), Vec::new(), None);
        for job in group {
            match job {
                Job::Write { rows, needed, done } => {
                    self.shown.calls.fetch_add(rows.len() as u64, Ordering::Relaxed);
                    waiting.push((rows.into_iter().map(Change::Call).collect(), needed, done));
                }
                Job::Later(change) => match *change {
                    Change::Seen(row) => self.see(&row),
                    // Behind the call that it speaks of, which may be in this very group.
                    change => waiting.push((vec![change], false, oneshot::channel().0)),
                },
                Job::Close(done) => closed = Some(done),
                Job::Collect => {}
                read => reads.push(read),
            }
        }
        let durable = waiting.iter().any(|(changes, ..)| is_call(changes));
        if durable {
            self.write(waiting);
        } else {
            self.keep(waiting.into_iter().flat_map(|(changes, ..)| changes));
        }
        for read in reads {
            self.read(read);
        }
        closed
    }

    /// Writes a group and says so to whoever waits.
    fn write(&mut self, group: Vec<Asked>) {
        let before = self.pending.len();
        self.pending.extend(group.iter().flat_map(|(changes, ..)| changes.iter().cloned()));
        let failing = self.shown.failing.load(Ordering::Relaxed);
        let done = if failing && self.tried.elapsed() < RETRY { Err(FAILING.to_owned()) } else { self.flush() };
        if let Err(why) = done {
            // What was refused is not written later either: its call was not handed out.
            self.pending.truncate(before);
            for (changes, needed, done) in group {
                if needed {
                    let _ = done.send(Err(why.clone()));
                } else {
                    self.keep(changes);
                    let _ = done.send(Ok(()));
                }
            }
            return;
        }
        for (_, _, done) in group {
            let _ = done.send(Ok(()));
        }
    }

    fn see(&mut self, row: &ConversationRow) {
        self.seen.entry(place(row)).or_insert_with(|| row.clone()).join(row);
    }

    fn collect(&mut self) {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner));
        for row in &heard {
            self.see(row);
        }
    }

    fn keep(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.pending.extend(changes);
        while self.pending.len() > BACKLOG {
            self.pending.pop_front();
            self.shown.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes all that waits. What fails goes on waiting.
    fn flush(&mut self) -> Result<(), Failed> {
        self.collect();
        let began = Instant::now();
        (self.flushed, self.tried) = (began, began);
        let failing = self.shown.failing.load(Ordering::Relaxed);
        let seen = std::mem::take(&mut self.seen);
        let changes: Vec<Change> =
            self.pending.iter().cloned().chain(seen.values().cloned().map(Change::Seen)).collect();
        let reopened = if failing { self.store.reopen() } else { Ok(()) };
        let done =
            reopened.and_then(|()| if changes.is_empty() && !failing { Ok(()) } else { self.store.apply(&changes) });
        match &done {
            Ok(()) => {
                self.pending.clear();
                if !changes.is_empty() {
                    self.shown.groups.fetch_add(1, Ordering::Relaxed);
                    let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.shown.busy_us.fetch_add(us, Ordering::Relaxed);
                }
                if failing {
                    self.shown.failing.store(false, Ordering::Relaxed);
                    tracing::info!("the ledger can be written to again");
                    (self.tell)(true);
                }
            }
            Err(why) => {
                self.seen = seen;
                while self.seen.len() > WAITING {
                    self.seen.pop_first();
                    self.shown.lost.fetch_add(1, Ordering::Relaxed);
                }
                self.shown.failures.fetch_add(1, Ordering::Relaxed);
                if !self.shown.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!("the ledger cannot be written to: {why}; tools that change something are withheld");
                    (self.tell)(false);
                }
            }
        }
        done
    }

    fn spare_time(&mut self) {
        self.collect();
        let failing = self.shown.failing.load(Ordering::Relaxed);
        let waits = failing || !self.pending.is_empty() || !self.seen.is_empty();
        let due = if failing { self.tried.elapsed() >= RETRY } else { self.flushed.elapsed() >= LATER };
        if waits && (due || self.seen.len() > WAITING) {
            let _ = self.flush();
        }
        if !failing && self.pruned.is_none_or(|at| at.elapsed() >= PRUNE) {
            self.pruned = Some(Instant::now());
            let keep_ms = u64::try_from(RETENTION.as_millis()).unwrap_or(u64::MAX);
            match self.store.prune(unix_ms().saturating_sub(keep_ms), &self.bounds) {
                Ok(0) => {}
                Ok(n) => tracing::info!(calls = n, "the ledger has forgotten what is past its time"),
                Err(why) => tracing::warn!("the ledger could not forget what is past its time: {why}"),
            }
        }
    }

    /// Reads what is on disk and what waits to be.
    fn read(&mut self, job: Job) {
        match job {
            Job::Read { call_ids, done } => {
                let rows = call_ids.iter().map(|id| {
                    let waiting = self.pending.iter().rev().find_map(|change| match change {
                        Change::Call(row) if row.call_id == *id => Some(row.clone()),
                        _ => None,
                    });
                    let row = waiting.map_or_else(|| self.store.call(id), |row| Ok(Some(row)))?;
                    row.ok_or_else(|| format!("the call {id} is not in the ledger's file"))
                });
                let _ = done.send(rows.collect());
            }
            Job::List { arguments, done } => {
                let _ = self.flush();
                let _ = done.send(self.store.calls(arguments));
            }
            Job::Load(done) => {
                let _ = self.flush();
                let all = self.store.conversations().and_then(|known| Ok((known, self.store.calls(false)?)));
                let _ = done.send(all);
            }
            Job::Write { .. } | Job::Later(_) | Job::Collect | Job::Close(_) => {}
        }
    }
}

/// What a failing store says between two attempts.
const FAILING: &str = "it has failed a moment ago";

fn is_call(changes: &[Change]) -> bool {
    changes.iter().any(|c| matches!(c, Change::Call(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::gateway::ledger::store::Memory;
    use crate::policy::SideEffects;
    use crate::router::ledger::CallState;

    /// Fails while it is told to, and counts its groups.
    #[derive(Clone, Default)]
    struct Odd(Arc<Mutex<(Memory, bool, Vec<usize>)>>);

    impl Store for Odd {
        fn apply(&mut self, changes: &[Change]) -> Result<(), Failed> {
            let mut odd = self.0.lock().unwrap();
            if odd.1 {
                return Err("full".into());
            }
            odd.2.push(changes.len());
            odd.0.apply(changes)
        }
        fn call(&mut self, call_id: &str) -> Result<Option<CallRow>, Failed> {
            self.0.lock().unwrap().0.call(call_id)
        }
        fn calls(&mut self, arguments: bool) -> Result<Vec<CallRow>, Failed> {
            self.0.lock().unwrap().0.calls(arguments)
        }
        fn conversations(&mut self) -> Result<Vec<ConversationRow>, Failed> {
            self.0.lock().unwrap().0.conversations()
        }
        fn prune(&mut self, before: u64, bounds: &Bounds) -> Result<usize, Failed> {
            self.0.lock().unwrap().0.prune(before, bounds)
        }
        fn reopen(&mut self) -> Result<(), Failed> {
            Ok(())
        }
    }

    fn row(n: u64, side_effects: SideEffects) -> CallRow {
        CallRow {
            call_id: format!("call_{n}"),
            operation_key: String::new(),
            client: String::new(),
            route: String::new(),
            conversation: String::new(),
            turn: n,
            ordinal: 0,
            tool: "t".into(),
            side_effects,
            arguments: "{}".into(),
            state: CallState::Delivered,
            since_unix_ms: unix_ms(),
            changed_unix_ms: 0,
        }
    }

    fn writer(store: &Odd) -> (Writer, Arc<Shown>, Arc<Mutex<Vec<bool>>>) {
        let (shown, told) = (Arc::new(Shown::default()), Arc::new(Mutex::new(Vec::new())));
        let tell = Arc::clone(&told);
        let tell: Tell = Box::new(move |writable| tell.lock().unwrap().push(writable));
        (Writer::new(Box::new(store.clone()), Arc::clone(&shown), tell, Heard::default()), shown, told)
    }

    fn write(n: u64, needed: bool) -> (Job, oneshot::Receiver<Result<(), Failed>>) {
        let (done, wait) = oneshot::channel();
        let side_effects = if needed { SideEffects::Unkeyed } else { SideEffects::None };
        (Job::Write { rows: vec![row(n, side_effects)], needed, done }, wait)
    }

    fn state(n: u64) -> Job {
        let state = CallState::Proposed;
        Job::Later(Box::new(Change::State { call_id: format!("call_{n}"), state, at_unix_ms: 1 }))
    }

    #[test]
    fn a_group_is_written_as_one_and_a_later_state_stands_behind_its_call() {
        let store = Odd::default();
        let (mut writer, shown, _) = writer(&store);
        let ((a, mut wait_a), (b, mut wait_b)) = (write(1, true), write(2, true));
        assert!(writer.group(vec![a, state(1), b]).is_none());
        assert_eq!((wait_a.try_recv().unwrap(), wait_b.try_recv().unwrap()), (Ok(()), Ok(())));
        assert_eq!(store.0.lock().unwrap().2, [3], "one group");
        assert_eq!(writer.store.call("call_1").unwrap().unwrap().state, CallState::Proposed);
        assert_eq!(writer.store.call("call_2").unwrap().unwrap().state, CallState::Delivered);
        assert_eq!(shown.groups.load(Ordering::Relaxed), 1);
        // A state alone waits.
        writer.group(vec![state(2)]);
        assert_eq!(store.0.lock().unwrap().2, [3]);
        let _ = writer.flush();
        assert_eq!(writer.store.call("call_2").unwrap().unwrap().state, CallState::Proposed);
    }

    #[test]
    fn what_was_refused_is_never_written_and_what_is_harmless_is_later() {
        let store = Odd::default();
        let (mut writer, shown, told) = writer(&store);
        store.0.lock().unwrap().1 = true;
        let ((a, mut wait_a), (b, mut wait_b)) = (write(1, true), write(2, false));
        writer.group(vec![a, b]);
        assert!(wait_a.try_recv().unwrap().is_err());
        assert_eq!(wait_b.try_recv().unwrap(), Ok(()), "nobody is harmed");
        assert!(shown.failing.load(Ordering::Relaxed));
        // It is read from what waits.
        let (done, mut wait) = oneshot::channel();
        writer.group(vec![Job::Read { call_ids: vec!["call_2".into()], done }]);
        assert_eq!(wait.try_recv().unwrap().unwrap()[0].call_id, "call_2");
        // The next one is refused at once, without a look at the disk.
        let (c, mut wait_c) = write(3, true);
        let tried = writer.tried;
        writer.group(vec![c]);
        assert!(wait_c.try_recv().unwrap().is_err());
        assert_eq!(writer.tried, tried);
        store.0.lock().unwrap().1 = false;
        let _ = writer.flush();
        assert_eq!(*told.lock().unwrap(), [false, true]);
        let ids: Vec<String> = writer.store.calls(true).unwrap().into_iter().map(|c| c.call_id).collect();
        assert_eq!(ids, ["call_2"]);
    }

    #[test]
    fn a_failing_store_holds_a_bounded_backlog() {
        let store = Odd::default();
        store.0.lock().unwrap().1 = true;
        let (mut writer, shown, _) = writer(&store);
        let _ = writer.flush();
        writer.keep((0..BACKLOG as u64 + 7).map(|n| Change::Call(row(n, SideEffects::None))));
        assert_eq!((writer.pending.len(), shown.lost.load(Ordering::Relaxed)), (BACKLOG, 7));
    }

    #[test]
    fn closing_writes_what_waits() {
        let store = Odd::default();
        let (writer, ..) = writer(&store);
        let (jobs, waiting) = sync_channel(8);
        let mut seen = ConversationRow { conversation: "c".into(), ..ConversationRow::default() };
        seen.see(1, None, unix_ms());
        jobs.send(Job::Later(Box::new(Change::Seen(seen)))).unwrap();
        let (done, wait) = sync_channel(1);
        jobs.send(Job::Close(done)).unwrap();
        writer.run(&waiting);
        wait.try_recv().unwrap();
        assert_eq!(store.0.lock().unwrap().0.conversations().unwrap().len(), 1);
    }
}
