//! Looks about ten times a second whether the fault server answers and what was broken stays broken. Neither is the gateway's
//! doing, so a run in which it is otherwise says nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::journal::Anchor;
use super::lab::Lab;
use super::signals::Stops;
use crate::drill::spoilt::{Reason, Spoilt};
use crate::drill::stalls::{self, Stalls};
use crate::fault::client::Client;
use crate::fault::restore::{Look, Standing, answers};
use crate::fault::wal::{self, Entry};

/// Between two looks: see [`stalls::TICK_MS`]. A look is one or two small calls over loopback. On a real Toxiproxy, which
/// counts no changes, whatever somebody else breaks and mends between two looks is not seen, so that they are short.
const LOOK_EVERY: Duration = Duration::from_millis(stalls::TICK_MS as u64);

/// The runner looks at itself more often, since that costs nothing: the lags of a busy machine are short.
const OWN_LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks whether a change was a healing of this run's own that is not over yet.
const HEALING_LOOKS: u32 = 6;

/// When the runner, the lab and the fault server were seen, for as long as each is looked at.
#[derive(Clone, Debug, Default)]
pub struct Surroundings(Arc<Mutex<Stalls>>);

impl Surroundings {
    /// Watches whether this process itself goes on, until it is dropped.
    pub(super) fn runner(&self, anchor: Anchor) -> Own {
        let mut sight = self.sight(Reason::GeneratorLate, anchor);
        sight.every = OWN_LOOK_EVERY;
        Own(tokio::spawn(async move {
            loop {
                tokio::time::sleep(OWN_LOOK_EVERY).await;
                sight.seen();
            }
        }))
    }

    /// Looks at one of them begin now.
    fn sight(&self, reason: Reason, anchor: Anchor) -> Sight {
        Sight { around: self.clone(), reason, anchor, every: LOOK_EVERY, last_ms: anchor.elapsed_ms() }
    }

    /// Who stood still.
    #[must_use]
    pub fn stalls(&self) -> Stalls {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Own(JoinHandle<()>);

impl Drop for Own {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The sights of one of them.
struct Sight {
    around: Surroundings,
    reason: Reason,
    anchor: Anchor,
    /// Between two looks.
    every: Duration,
    last_ms: f64,
}

impl Sight {
    /// It was seen now. What counts is the time since it was seen last: it may have stood still between two looks.
    fn seen(&mut self) {
        let now_ms = self.anchor.elapsed_ms();
        let mut stalls = self.around.0.lock().unwrap_or_else(PoisonError::into_inner);
        stalls.seen(self.reason, self.last_ms, now_ms);
        stalls.late(self.reason, self.last_ms + self.every.as_secs_f64() * 1e3, now_ms);
        self.last_ms = now_ms;
    }
}

/// In one sentence, if the guard of the run with this log has restored.
pub(super) fn guard_restored(log: &Path) -> Option<String> {
    let entries = wal::read(log).unwrap_or_default();
    let guard = entries.iter().any(|e| matches!(e, Entry::Restored { by, .. } if by == "guard"));
    guard.then(|| "the guard restored: this process gave no sign for too long, or the guard was told to end".to_owned())
}

/// The faults in force, shared with the task that looks.
#[derive(Clone, Debug)]
pub struct Faults {
    client: Client,
    /// With the count of changes, so that a look that was under way at a change is not believed.
    standing: Arc<Mutex<(u64, Option<Standing>)>>,
    /// The lease, on a server of ours.
    lease: Option<String>,
    log: PathBuf,
}

impl Faults {
    /// Nothing is in force yet.
    #[must_use]
    pub fn new(client: Client, lease: Option<String>, log: &Path) -> Faults {
        Faults { client, standing: Arc::default(), lease, log: log.to_path_buf() }
    }

    /// What is in force from now on.
    pub fn set(&self, standing: Option<Standing>) {
        let mut now = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 + 1, standing);
    }

    fn get(&self) -> (u64, Option<Standing>) {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One look: why the run says nothing any more, if so.
    pub async fn look(&self) -> Option<Spoilt> {
        let (n, standing) = self.get();
        let look = match &standing {
            Some(standing) => standing.look(&self.client).await,
            None => answers(&self.client).await,
        };
        if self.get().0 != n {
            return None;
        }
        match look {
            Look::AsSet => None,
            Look::Silent(why) => {
                Some(Spoilt::by(Reason::FaultServerLost, format!("the fault server did not answer: {why}")))
            }
            Look::Changed(path, what) => Some(match self.healed_in_the_end().await {
                Some(why) => Spoilt::by(Reason::LeaseLost, why),
                None => {
                    let path = crate::units::printable(&path, 80);
                    let text = if what == "lifted" {
                        format!("the fault did not stay: {path} was lifted by somebody else")
                    } else {
                        format!("a path did not stay as the drill had left it: {path} was {what} by somebody else")
                    };
                    Spoilt::by(Reason::FaultLifted, text)
                }
            }),
        }
    }

    /// [`Faults::healed_by_ours`], which is written down only when all of it is healed: a look may come in the middle.
    async fn healed_in_the_end(&self) -> Option<String> {
        for _ in 1..HEALING_LOOKS {
            let healed = self.healed_by_ours().await;
            if healed.is_some() {
                return healed;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.healed_by_ours().await
    }

    /// What this run has set up to heal has healed, in one sentence: the runner had stood still, or was not heard.
    pub async fn healed_by_ours(&self) -> Option<String> {
        if let Some(lease) = &self.lease {
            let history = self.client.history().await.unwrap_or_default();
            let own = history.iter().filter(|h| h.lease.as_ref() == Some(lease));
            let mut paths: Vec<String> = own.map(|h| crate::units::printable(&h.proxy, 80)).collect();
            // One proxy may carry several faults.
            paths.sort_unstable();
            paths.dedup();
            return (!paths.is_empty())
                .then(|| format!("the lease ran out and the fault server healed by itself: {}", paths.join(", ")));
        }
        guard_restored(&self.log)
    }

    /// Looks until it is aborted.
    pub fn watch(&self, stops: Stops, anchor: Anchor, around: Surroundings) -> JoinHandle<()> {
        let faults = self.clone();
        tokio::spawn(async move {
            let mut sight = around.sight(Reason::FaultServerLost, anchor);
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let met = faults.look().await;
                sight.seen();
                if let Some(met) = met {
                    let text = format!("{}, seen at {:.2} s", met.text, anchor.elapsed_ms() / 1e3);
                    stops.ask(met.reason.code(), &text);
                    return;
                }
            }
        })
    }
}

/// A lab that is silent for so long was stopped, or this machine was: times and answers say nothing about a gateway then.
const LAB_SILENT: Duration = Duration::from_secs(2);

/// Looks whether the lab answers, all the time until it is dropped.
pub(super) struct LabWatch {
    lab: Lab,
    task: JoinHandle<()>,
}

impl LabWatch {
    pub(super) fn start(lab: &Lab, stops: &Stops, anchor: Anchor, around: Surroundings) -> LabWatch {
        let (own, stops) = (lab.clone(), stops.clone());
        let task = tokio::spawn(async move {
            let mut sight = around.sight(Reason::LabLost, anchor);
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let met = own.alive(LAB_SILENT).await;
                sight.seen();
                if let Err(why) = met {
                    stops.ask(Reason::LabLost.code(), &format!("the lab did not answer: {why}"));
                    return;
                }
            }
        });
        LabWatch { lab: lab.clone(), task }
    }

    /// Why the lab is not there, if it is not.
    pub(super) async fn look(&self) -> Option<String> {
        self.lab.alive(LAB_SILENT).await.err().map(|why| format!("the lab did not answer: {why}"))
    }
}

impl Drop for LabWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
