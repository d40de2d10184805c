//! Nothing stays broken: a lock per fault server, a log written ahead of every change, a lease on a server of ours or a
//! guard process beside a real one, and a restore that runs however the drill ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::guard::Guard;
use super::journal::Anchor;
use super::place::Place;
use super::signals::Stops;
use super::watch::{Faults, Surroundings};
use crate::drill::spoilt::{Reason, Spoilt};
use crate::drill::verdict::Cleanup;
use crate::error::{Expected, Result};
use crate::fault::client::Client;
use crate::fault::restore::{Cleanup as Restoration, Hold, Injected, Standing, Step, inject, restore, snapshot};
use crate::fault::wal::{Begin, Entry, FORMAT, Stamp, Wal, WalFile};

/// Life of the lease without a refresh.
pub const LEASE_MS: u64 = 4000;
/// Between two refreshes, and between two heartbeats to the guard.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Refreshes that may fail in a row before the drill stops.
const MISSED_MAX: u32 = 3;
/// Faults on a server of ours end by themselves this much after the drill's longest duration.
pub(super) const EXPIRY_MARGIN: Duration = Duration::from_secs(10);
/// A restore that did not succeed is tried again so often, with this pause: a server that hung may have come to itself.
const RESTORE_TRIES: u32 = 4;
const RESTORE_PAUSE: Duration = Duration::from_millis(500);
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
    place: Place,
    client: Client,
    ours: bool,
    wal: WalFile,
    lease: Option<JoinHandle<()>>,
    guard: Option<Guard>,
    deadline: Duration,
    longest: Duration,
    outcome: Outcome,
    faults: Faults,
    whole: Standing,
    watch: JoinHandle<()>,
}

/// What a run is, for its log.
#[derive(Clone, Debug)]
pub struct RunIs<'a> {
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

impl Safety {
    /// Writes the beginning of the log, takes the lease or starts the guard. Nothing is broken yet.
    ///
    /// # Errors
    /// The log cannot be written, a proxy is not there, the lease or the guard cannot be had.
    pub async fn begin(place: Place, ours: bool, state: &Path, is: &RunIs<'_>, stops: &Stops) -> Result<Safety> {
        let made = match Safety::written(&place, ours, state, is, stops).await {
            Ok(made) => made,
            Err(e) => {
                place.leave().await;
                return Err(e);
            }
        };
        let client = place.client().clone();
        let (wal, faults, whole, lease, guard) = made;
        let watch = faults.watch(stops.clone(), is.anchor, is.around.clone());
        Ok(Safety {
            place,
            client,
            ours,
            wal,
            lease,
            guard,
            deadline: is.restore_deadline,
            longest: is.longest,
            outcome: Outcome::default(),
            faults,
            whole,
            watch,
        })
    }

    async fn written(place: &Place, ours: bool, state: &Path, is: &RunIs<'_>, stops: &Stops) -> Result<Written> {
        let client = place.client().clone();
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
        let run = place.run().to_owned();
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
        if ours {
            let id = lease_id(&run);
            client.lease(&id, LEASE_MS).await?;
            let lease = tokio::spawn(keep_lease(client, id, stops.clone()));
            return Ok((wal, faults, whole, Some(lease), None));
        }
        let guard = Guard::start(&path, is.longest + EXPIRY_MARGIN, stops).await?;
        Ok((wal, faults, whole, None, Some(guard)))
    }

    fn lease_id(&self) -> String {
        lease_id(self.place.run())
    }

    /// Looks no more: what comes now is the end.
    pub fn stop_watching(&self) {
        self.watch.abort();
    }

    /// A last look at the faults, before they are lifted: why the run says nothing, if they are not as they were set.
    pub async fn look(&self) -> Option<Spoilt> {
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
            self.whole = self.whole.again(&self.client).await;
            self.faults.set(Some(self.whole.clone()));
        }
        &self.outcome
    }

    /// Why the faults did not stay although nobody else touched them: the lease ran out, or the guard restored.
    pub async fn healed_by_itself(&self) -> Option<String> {
        self.faults.healed_by_ours().await
    }

    /// Restores, gives the lease back or dismisses the guard, and says how the clean-up went over all. The fault server is
    /// this run's until nothing of it is there any more, so its place comes back.
    pub async fn end(mut self) -> (Outcome, Place) {
        self.watch.abort();
        self.restore().await;
        if let Some(lease) = self.lease.take() {
            lease.abort();
            // It may have run out meanwhile.
            let _ = self.client.end_lease(&self.lease_id()).await;
        }
        if let Some(guard) = self.guard.take() {
            let said = guard.end(self.outcome.cleanup != Cleanup::Dirty).await;
            self.outcome.notes.extend(said);
        }
        (self.outcome, self.place)
    }
}

/// What a run keeps from its beginning on: log, faults, how all was, and the lease or the guard.
type Written = (WalFile, Faults, Standing, Option<JoinHandle<()>>, Option<Guard>);

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
                    stops.ask(Reason::LeaseLost.code(), &format!("the fault server did not renew the lease: {e}"));
                }
            }
        }
    }
}
