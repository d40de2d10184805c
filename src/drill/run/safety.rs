//! Nothing stays broken: a lock per fault server, a log written ahead of every change, a lease on a server of ours or a
//! guard process beside a real one, and a restore that runs however the drill ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::journal::Anchor;
use super::lock::Lock;
use super::signals::Stops;
use super::watch::{Faults, LEASE, Surroundings};
use crate::drill::verdict::Cleanup;
use crate::error::{Expected, Result};
use crate::fault::client::Client;
use crate::fault::guard::{BEAT, DONE};
use crate::fault::restore::{
    Cleanup as Restoration, Hold, Injected, Standing, Step, inject, mark, restore, snapshot, unmark,
};
use crate::fault::wal::{Begin, Entry, FORMAT, Stamp, Wal, WalFile};

/// Life of the lease without a refresh.
pub const LEASE_MS: u64 = 4000;
/// Between two refreshes, and between two heartbeats to the guard.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Refreshes that may fail in a row before the drill stops.
const MISSED_MAX: u32 = 3;
/// Faults on a server of ours end by themselves this much after the drill's longest duration.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);
/// A restore that did not succeed is tried again so often, with this pause: a server that hung may have come to itself.
const RESTORE_TRIES: u32 = 4;
const RESTORE_PAUSE: Duration = Duration::from_millis(500);
/// Looks for others at work, and what is waited between two of them, times a number that differs between processes.
const MARK_TRIES: u32 = 3;
const MARK_PAUSE: Duration = Duration::from_millis(40);
/// How long a guard may take until it stands alone, and the pause between two looks.
const GUARD_READY: Duration = Duration::from_secs(10);
const GUARD_LOOK: Duration = Duration::from_millis(10);
/// How long a dismissed guard may take to end.
const GUARD_END: Duration = Duration::from_secs(3);

/// Where drills keep what must survive them: `$XDG_STATE_HOME/llmfo`, else `~/.local/state/llmfo`.
///
/// # Errors
/// Neither variable is set.
pub fn state_folder() -> Result<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    of("XDG_STATE_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| of("HOME").map(|h| h.join(".local/state")))
        .map(|p| p.join("llmfo"))
        .ok_or_else(|| {
            Expected::usage("there is no state folder: neither XDG_STATE_HOME nor HOME is set", "set one of them")
        })
}

/// Where the logs of runs lie below the state folder.
#[must_use]
pub fn logs_folder(state: &Path) -> PathBuf {
    state.join("drills")
}

/// How a restore went, over all restores of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The worst of them.
    pub cleanup: Cleanup,
    /// What was out of the ordinary.
    pub notes: Vec<String>,
    /// How long the last one took.
    pub took: Duration,
}

impl Outcome {
    fn add(&mut self, how: &Restoration, notes: Vec<String>, took: Duration, deadline: Duration) {
        let mut worst = match how {
            Restoration::Clean => Cleanup::Clean,
            Restoration::RestoredLate => Cleanup::RestoredLate,
            Restoration::Recreated => Cleanup::Recreated,
            Restoration::Dirty(why) => {
                self.notes.push(why.clone());
                Cleanup::Dirty
            }
        };
        if worst == Cleanup::Clean && took > deadline {
            worst = Cleanup::RestoredLate;
            self.notes.push(format!("the restore took {:.1} s", took.as_secs_f64()));
        }
        // What could not be restored before and is now has been recreated, at best.
        self.cleanup = match (self.cleanup, worst) {
            (Cleanup::Dirty, Cleanup::Dirty) => Cleanup::Dirty,
            (Cleanup::Dirty, _) => Cleanup::Recreated,
            (before, now) => before.max(now),
        };
        self.notes.extend(notes);
        self.took = took;
    }
}

/// Keeps one run safe.
#[derive(Debug)]
pub struct Safety {
    client: Client,
    ours: bool,
    run: String,
    wal: WalFile,
    lease: Option<JoinHandle<()>>,
    guard: Option<Guard>,
    deadline: Duration,
    longest: Duration,
    outcome: Outcome,
    faults: Faults,
    whole: Standing,
    watch: JoinHandle<()>,
    _lock: Lock,
}

/// The guard process and the task that gives it signs of life.
#[derive(Debug)]
struct Guard {
    process: Child,
    say: tokio::sync::mpsc::Sender<&'static str>,
    beats: JoinHandle<()>,
}

/// What a run is, for its log.
#[derive(Clone, Debug)]
pub struct RunIs<'a> {
    /// Unique: see [`new_run`].
    pub run: &'a str,
    /// Drill by name.
    pub drill: &'a str,
    /// The fault server dies with the lab.
    pub embedded: bool,
    /// The lab was started by this run and dies with it.
    pub own_lab: bool,
    /// Admin URL of the lab.
    pub lab_admin: &'a str,
    /// Start of the drill.
    pub anchor: Anchor,
    /// The proxies that may be touched.
    pub proxies: &'a [String],
    /// Where it is kept that the fault server was slow.
    pub around: &'a Surroundings,
    /// All through which something of the drill passes: nobody else may touch them meanwhile.
    pub paths: &'a [String],
    /// Longest duration of the drill.
    pub longest: Duration,
    /// A restore that takes longer is late.
    pub restore_deadline: Duration,
}

/// The name of a new run: when, and which process.
#[must_use]
pub fn new_run() -> String {
    format!("{}-{}", crate::fault::clock::wall_ms(), std::process::id())
}

/// Nobody else is at work on this server, whatever their state folder. Two that start together may both find the other.
async fn alone(client: &Client, is: &RunIs<'_>) -> Result<()> {
    let longest_s = (is.longest + EXPIRY_MARGIN).as_secs();
    let mut met = mark(client, is.run, longest_s).await?;
    for n in 1..MARK_TRIES {
        if met.is_none() {
            return Ok(());
        }
        tokio::time::sleep(MARK_PAUSE * n * (1 + std::process::id() % 5)).await;
        met = mark(client, is.run, longest_s).await?;
    }
    match met {
        None => Ok(()),
        Some(other) => Err(Expected::could_not(
            format!(
                "another drill works with {} (process {}, run {})",
                client.base_url(),
                other.pid,
                crate::units::printable(&other.run, 64)
            ),
            "wait until it ends, or stop it with Ctrl-C; it restores what it broke",
        )),
    }
}

impl Safety {
    /// Writes the beginning of the log, takes the lease or starts the guard. Nothing is broken yet.
    ///
    /// # Errors
    /// The log cannot be written, a proxy is not there, the lease or the guard cannot be had.
    pub async fn begin(
        client: Client,
        ours: bool,
        lock: Lock,
        state: &Path,
        is: &RunIs<'_>,
        stops: &Stops,
    ) -> Result<Safety> {
        alone(&client, is).await?;
        let begun = Safety::begin_alone(client.clone(), ours, lock, state, is, stops).await;
        if begun.is_err() {
            // A mark that stays is known by its dead process.
            let _ = unmark(&client, is.run).await;
        }
        begun
    }

    async fn begin_alone(
        client: Client,
        ours: bool,
        lock: Lock,
        state: &Path,
        is: &RunIs<'_>,
        stops: &Stops,
    ) -> Result<Safety> {
        let before = snapshot(&client, is.proxies).await?;
        for proxy in before.values() {
            if !proxy.enabled || !proxy.toxics.is_empty() {
                let what = if proxy.enabled { "carries toxics" } else { "is disabled" };
                return Err(Expected::could_not(
                    format!(
                        "the path {} {what} already, so it is not well before the drill",
                        crate::units::printable(&proxy.name, 80)
                    ),
                    "bring it to its normal state first; the drill would restore it to what it found",
                ));
            }
        }
        let whole = Standing::whole(&client, is.paths).await?;
        let run = is.run.to_owned();
        let path = logs_folder(state).join(format!("{run}.jsonl"));
        let mut wal = WalFile::create(&path)?;
        let begin = Begin {
            format: FORMAT,
            run: run.clone(),
            drill: is.drill.into(),
            pid: std::process::id(),
            server: client.base_url().into(),
            embedded: is.embedded,
            lab_of_run: is.own_lab,
            lab_admin: Some(is.lab_admin.into()),
            snapshot: before,
        };
        wal.append(Entry::Begin { at: Stamp::now(), begin })?;
        let faults = Faults::new(client.clone(), ours.then(|| lease_id(&run)), &path);
        faults.set(Some(whole.clone()));
        let watch = faults.watch(stops.clone(), is.anchor, is.around.clone());
        let mut safety = Safety {
            client,
            ours,
            run,
            wal,
            lease: None,
            guard: None,
            deadline: is.restore_deadline,
            longest: is.longest,
            outcome: Outcome::default(),
            faults,
            whole,
            watch,
            _lock: lock,
        };
        if ours {
            safety.client.lease(&safety.lease_id(), LEASE_MS).await?;
            safety.lease = Some(tokio::spawn(keep_lease(safety.client.clone(), safety.lease_id(), stops.clone())));
        } else {
            safety.guard = Some(start_guard(&path, is.longest).await?);
        }
        Ok(safety)
    }

    fn lease_id(&self) -> String {
        lease_id(&self.run)
    }

    /// Looks no more: what comes now is the end.
    pub fn stop_watching(&self) {
        self.watch.abort();
    }

    /// A last look at the faults, before they are lifted: `(stop by, why)` if they are not as they were set.
    pub async fn look(&self) -> Option<(&'static str, String)> {
        self.faults.look().await
    }

    /// The client of the fault server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The server is ours: it counts, leases, and knows events.
    #[must_use]
    pub fn ours(&self) -> bool {
        self.ours
    }

    /// The log.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        self.wal.path()
    }

    /// Breaks what the steps say.
    ///
    /// # Errors
    /// A change failed; what was done until then is undone by [`Safety::restore`].
    pub async fn inject(&mut self, steps: &[Step]) -> Result<Injected> {
        let expiry = self.longest + EXPIRY_MARGIN;
        let hold = Hold {
            lease: self.ours.then(|| self.lease_id()),
            expires_in_ms: self.ours.then(|| u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX)),
        };
        self.faults.set(None);
        let done = inject(&self.client, steps, &hold, &mut self.wal).await?;
        self.faults.set(Some(self.whole.with(&self.client, &done).await?));
        Ok(done)
    }

    /// Undoes everything that this run has broken. Idempotent; what does not succeed is tried again a few times.
    pub async fn restore(&mut self) -> &Outcome {
        self.faults.set(None);
        let began = Instant::now();
        // What has been tried to the end already is looked at once more, and not waited for.
        let tries = if self.outcome.cleanup == Cleanup::Dirty { 1 } else { RESTORE_TRIES };
        for attempt in 1.. {
            let done = restore(&self.client, "runner", &mut self.wal).await;
            self.outcome.add(&done.cleanup, done.notes, began.elapsed(), self.deadline);
            if !done.cleanup.is_dirty() || attempt == tries {
                break;
            }
            tokio::time::sleep(RESTORE_PAUSE).await;
        }
        if self.outcome.cleanup != Cleanup::Dirty {
            self.faults.set(Some(self.whole.clone()));
        }
        &self.outcome
    }

    /// Why the faults did not stay although nobody else touched them: the lease ran out, or the guard restored.
    pub async fn healed_by_itself(&self) -> Option<String> {
        self.faults.healed_by_ours().await
    }

    /// Restores, gives the lease back or dismisses the guard, and says how the clean-up went over all.
    pub async fn end(mut self) -> Outcome {
        self.watch.abort();
        self.restore().await;
        if self.outcome.cleanup != Cleanup::Dirty {
            // One that stays is known by its dead process.
            let _ = unmark(&self.client, &self.run).await;
        }
        if let Some(lease) = self.lease.take() {
            lease.abort();
            // It may have run out meanwhile.
            let _ = self.client.end_lease(&self.lease_id()).await;
        }
        if let Some(guard) = self.guard.take() {
            // A dirty restore is left to the guard: it tries again.
            if self.outcome.cleanup != Cleanup::Dirty {
                let _ = guard.say.send(DONE).await;
            }
            drop(guard.say);
            let _ = guard.beats.await;
            let mut process = guard.process;
            let _ = timeout(GUARD_END, process.wait()).await;
        }
        self.outcome
    }
}

fn lease_id(run: &str) -> String {
    format!("llmfo.{run}")
}

async fn keep_lease(client: Client, id: String, stops: Stops) {
    let mut next = Instant::now();
    let mut missed = 0;
    loop {
        next += BEAT_EVERY;
        sleep_until(next).await;
        match client.lease(&id, LEASE_MS).await {
            Ok(_) => missed = 0,
            Err(e) => {
                missed += 1;
                if missed == MISSED_MAX {
                    stops.ask(LEASE, &format!("the fault server did not renew the lease: {e}"));
                }
            }
        }
    }
}

/// Starts the guard: this binary with the read end of a pipe, and waits until it leads a session of its own. It makes that
/// itself, which it could not if it led a process group already; until then nothing is broken that it would have to restore.
async fn start_guard(log: &Path, longest: Duration) -> Result<Guard> {
    let failed = |e: std::io::Error| Expected::could_not(format!("the guard cannot be started: {e}"), "");
    let mut process = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["drill", "guard", "--log"])
        .arg(log)
        .args(["--longest-s", &(longest + EXPIRY_MARGIN).as_secs().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let until = Instant::now() + GUARD_READY;
    while !leads_a_session(&process) {
        if Instant::now() > until || !matches!(process.try_wait(), Ok(None)) {
            let _ = process.start_kill();
            return Err(Expected::could_not("the guard is not ready", "nothing was broken; try again"));
        }
        tokio::time::sleep(GUARD_LOOK).await;
    }
    let Some(mut pipe) = process.stdin.take() else {
        return Err(Expected::could_not("the guard has no pipe", ""));
    };
    let (say, mut said) = tokio::sync::mpsc::channel::<&'static str>(4);
    let beats = tokio::spawn(async move {
        loop {
            let word = match timeout(BEAT_EVERY, said.recv()).await {
                Ok(Some(word)) => word,
                Ok(None) => return,
                Err(_) => BEAT,
            };
            if pipe.write_all(format!("{word}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    });
    Ok(Guard { process, say, beats })
}

fn leads_a_session(process: &Child) -> bool {
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(crate::fault::guard::leads_a_session)
}
