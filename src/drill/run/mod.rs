//! Carrying out a drill on real sockets.

mod before;
pub mod children;
pub mod customers;
pub mod cuts;
pub mod dials;
pub mod embedded;
mod entries;
pub mod faults;
pub mod folder;
mod gather;
mod guard;
pub mod journal;
pub mod lab;
pub mod leftovers;
pub mod lock;
pub mod place;
mod rounds;
pub mod safety;
pub mod signals;
mod stage;
mod steady;
mod timeline;
mod watch;
mod write;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;

use futures_util::FutureExt;

use super::checks;
use super::evidence::{Aborted, Evidence};
use super::judge::{Judgement, judge};
use super::library::Found;
use super::propose::propose;
use super::report::RunFacts;
use super::spoilt::{Reason, Spoilt};
use super::verdict::Cleanup;
use crate::error::Result;
use crate::load::Key;
use crate::spec::drill::{DrillFile, See};
use signals::Stops;
use stage::{Run, Stage};

/// Where live progress goes.
pub trait Reporter: Send {
    /// The present state, in one line that may be replaced.
    fn state(&mut self, line: &str);
    /// Something that must stay readable.
    fn say(&mut self, line: &str, important: bool);
}

/// How a drill is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the load and the lab.
    pub seed: u64,
    /// Entries to drive instead of the lab's; several are tried in order.
    pub targets: Vec<String>,
    /// What customers' application shows them.
    pub target_key: Option<Key>,
    /// Admin URL of a lab that is already up.
    pub lab: Option<String>,
    /// A real Toxiproxy for the embedded lab.
    pub toxiproxy: Option<String>,
    /// Another policy than the lab's.
    pub policy: Option<PathBuf>,
    /// What applications see of broken providers, instead of what the drill says.
    pub see: Option<See>,
    /// Folder of the report.
    pub report: PathBuf,
    /// Folders that [`folder::claim`] has made for it, if it did: they go again with a run that never began.
    pub claimed: Vec<PathBuf>,
    /// State folder.
    pub state: PathBuf,
}

impl Options {
    /// The command that runs the same again, with everything that its verdict depends on.
    fn command(&self, name: &str, found: &Found) -> String {
        let name = if found.source.starts_with("built in") { name } else { &found.source };
        let mut words = vec![format!("llmfo drill run {name} --seed {}", self.seed)];
        words.extend(self.targets.iter().map(|t| format!("--target {t}")));
        words.extend(self.lab.iter().map(|l| format!("--lab {l}")));
        words.extend(self.toxiproxy.iter().map(|t| format!("--toxiproxy {t}")));
        words.extend(self.policy.iter().map(|p| format!("--policy {}", p.display())));
        words.extend(self.see.map(|see| {
            let see = match see {
                See::Refused => "refused",
                See::Silence => "silence",
                _ => "connect_timeout",
            };
            format!("--see {see}")
        }));
        crate::units::printable(&words.join(" "), 2_000)
    }
}

/// A drill that is over.
#[derive(Debug)]
pub struct Done {
    /// What it rests on.
    pub evidence: Evidence,
    /// The judgement.
    pub judgement: Judgement,
    /// How the run went.
    pub facts: RunFacts,
}

/// Runs a drill: whatever happens in between, what was broken is restored, the processes it started are ended, and what was
/// seen is reported.
///
/// # Errors
/// It could not run; nothing is broken then.
pub async fn execute(
    options: &Options,
    file: &DrillFile,
    found: &Found,
    stops: Stops,
    tell: &mut dyn Reporter,
) -> Result<Done> {
    let started_at = jiff::Timestamp::now().to_string();
    let mut stage = Stage::default();
    let mut run = Run::new(options, stops);
    let made = match options.claimed.is_empty() {
        true => folder::to_be_made(&options.report),
        false => options.claimed.clone(),
    };
    let performed = AssertUnwindSafe(run.perform(file, found, &mut stage, tell)).catch_unwind().await;
    if let Some(safety) = &stage.safety {
        safety.stop_watching();
    }
    // A runner that stood still takes late answers for none: what healed by itself meanwhile explains the rest.
    let healed = match &stage.safety {
        Some(safety) => safety.healed_by_itself().await,
        None => None,
    };
    let stop = spoilt_by(run.stops.asked(), healed);
    let look = stop.is_some() || !matches!(performed, Ok(Ok(())));
    let lost = lab_lost(&mut stage, &run, look, stop.as_ref()).await;
    for spoilt in lost.into_iter().chain(stop.clone()) {
        run.evidence.spoils.add(spoilt);
    }
    if let (Some(_), Some(embedded)) = (run.evidence.spoils.lab(), &mut stage.embedded) {
        embedded.kill_lab().await;
    }
    // First of all, before anything that may take time or fail.
    if let Some(safety) = &mut stage.safety {
        let open = run.evidence.windows.last_mut().filter(|w| w.restored_ms.is_infinite());
        let restoring = run.anchor.elapsed_ms();
        safety.restore().await;
        if let Some(window) = open {
            window.restoring_ms = window.restoring_ms.min(restoring);
            window.restored_ms = run.anchor.elapsed_ms();
        }
    }
    let gathered = match &performed {
        Ok(Ok(())) => Some(run.gather(&mut stage).await),
        Ok(Err(_)) if !run.evidence.windows.is_empty() => Some(run.gather(&mut stage).await),
        _ => None,
    };
    // It may have gone at the very end, before everything was gathered.
    if let (Some(Err(_)), None) = (&gathered, run.evidence.spoils.lab())
        && let Some(lost) = lab_lost(&mut stage, &run, true, stop.as_ref()).await
    {
        run.evidence.spoils.add(lost);
    }
    if run.evidence.spoils.lab().is_some() {
        run.gather_remembered();
    }
    drop(stage.lab_watch.take());
    let (cleanup, cleanup_notes, log) = take_down(&mut stage).await;
    match performed {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(Err(e)) if run.evidence.windows.is_empty() && run.evidence.spoils.for_good().is_none() => {
            folder::discard(&made);
            return Err(if cleanup == Cleanup::Dirty { e.and_dirty() } else { e });
        }
        Ok(Err(e)) => run.evidence.aborted = Some(Aborted { by: "error".into(), text: e.to_string() }),
        Ok(Ok(())) => {}
    }
    if let Some(stop) = run.stops.asked() {
        run.evidence.aborted = Some(Aborted { by: stop.by, text: stop.text });
    }
    if let Some(spoilt) = stop.filter(|s| s.reason == Reason::LeaseLost && !by_hand(&run.stops)) {
        run.evidence.aborted = Some(Aborted { by: spoilt.reason.code().into(), text: spoilt.text });
    }
    let journals = match gathered {
        Some(Ok(journals)) => journals,
        Some(Err(e)) => {
            run.evidence.aborted.get_or_insert(Aborted { by: "evidence".into(), text: e.to_string() });
            Vec::new()
        }
        None => Vec::new(),
    };
    run.evidence.stalls = run.around.stalls();
    checks::fill(&mut run.evidence.requests);
    run.journal.phase("judge", "");
    let judgement = judge(&run.evidence);
    let facts = RunFacts {
        description: file.description.clone(),
        source: found.source.clone(),
        policy: run.policy_name.clone(),
        targets: run.targets.clone(),
        fault_server: run.fault_server.clone(),
        started_at,
        duration_ms: run.anchor.elapsed_ms(),
        cleanup,
        cleanup_notes,
        healed: run.healed.clone(),
        not_exercised: run.not_exercised.clone(),
        timeline: timeline::timeline(&run.evidence, &judgement),
        // What was measured under other faults than declared is no ground for a change.
        proposals: match run.evidence.spoils.for_good() {
            None => propose(&run.evidence, &judgement),
            Some(_) => Vec::new(),
        },
        again: options.command(&file.name, found),
    };
    let merged = run.journal.merged(&journals);
    write::report(&options.report, &run.evidence, &judgement, &facts, merged, log.as_deref())?;
    Ok(Done { evidence: run.evidence, judgement, facts })
}

/// What makes a run say nothing, from why it stopped and from what healed by itself.
fn spoilt_by(stop: Option<signals::Stop>, healed: Option<String>) -> Option<Spoilt> {
    // A lab that is lost is looked at by itself.
    let by = |stop: signals::Stop| {
        let reason = Reason::named(&stop.by).filter(|r| *r != Reason::LabLost)?;
        Some(Spoilt::by(reason, stop.text))
    };
    match (stop.and_then(by), healed) {
        (Some(stop), None) => Some(stop),
        (Some(stop), Some(_)) if stop.reason == Reason::LeaseLost => Some(stop),
        (_, healed) => healed.map(|text| Spoilt::by(Reason::LeaseLost, text)),
    }
}

/// Somebody ended the drill.
fn by_hand(stops: &Stops) -> bool {
    stops.asked().is_some_and(|s| s.by == "interrupted" || s.by == "terminated")
}

/// Why the lab cannot be asked any more, if it cannot. A run that has not come as far as its declaration has no summary
/// that could say so; its own error does. `look`: something went wrong, so ask the lab itself.
async fn lab_lost(stage: &mut Stage, run: &Run<'_>, look: bool, spoilt: Option<&Spoilt>) -> Option<Spoilt> {
    // Who ends the drill by hand may have ended the lab with it.
    if run.evidence.drill.is_empty() || by_hand(&run.stops) {
        return None;
    }
    // Of a runner that was not heard for a while only what it sees now counts.
    let stood_still = spoilt.is_some_and(|s| s.reason == Reason::LeaseLost);
    let asked = run.stops.asked().filter(|s| s.by == Reason::LabLost.code() && !stood_still).map(|s| s.text);
    let ended = || stage.embedded.as_mut().and_then(embedded::Embedded::lab_lost);
    let lost = match (asked.or_else(ended), &stage.lab_watch) {
        (None, Some(watch)) if look => watch.look().await,
        (lost, _) => lost,
    };
    lost.map(|text| Spoilt::by(Reason::LabLost, text))
}

/// Ends the load, the lease or guard, and the processes. `(clean-up, notes, log of the run)`.
async fn take_down(stage: &mut Stage) -> (Cleanup, Vec<String>, Option<PathBuf>) {
    if let Some(mut customers) = stage.customers.take() {
        customers.stop(true).await;
    }
    let (mut cleanup, mut notes, mut log) = (Cleanup::Clean, Vec::new(), None);
    let mut place = stage.place.take();
    if let Some(safety) = stage.safety.take() {
        log = Some(safety.log_path().to_path_buf());
        let (outcome, taken) = safety.end().await;
        cleanup = outcome.cleanup;
        notes = outcome.notes;
        place = Some(taken);
    }
    if let Some(embedded) = stage.embedded.take() {
        notes.extend(embedded.stop().await);
    }
    // Not before the lab's paths are gone: the next run makes its own by the same names. Where something may still be broken
    // the mark stays, and is known by its dead process.
    if let Some(place) = place.filter(|_| cleanup != Cleanup::Dirty) {
        place.leave().await;
    }
    (cleanup, notes, log)
}

#[cfg(test)]
mod tests {
    use super::signals::Stop;
    use super::*;

    #[test]
    fn what_healed_by_itself_explains_every_other_stop() {
        let stop = |by: &str| Some(Stop { by: by.into(), text: format!("because of {by}") });
        let of = |by, healed: Option<&str>| {
            spoilt_by(stop(by), healed.map(str::to_owned)).map(|s| (s.reason.code().to_owned(), s.text))
        };
        let said = |code: &str, text: &str| Some((code.to_owned(), text.to_owned()));
        assert_eq!(of("fault_lifted", None), said("fault_lifted", "because of fault_lifted"));
        assert_eq!(of("fault_server_lost", None), said("fault_server_lost", "because of fault_server_lost"));
        assert_eq!(of("guard_lost", None), said("guard_lost", "because of guard_lost"));
        assert_eq!(of("lease_lost", None), said("lease_lost", "because of lease_lost"));
        assert_eq!(of("lease_lost", Some("healed")), said("lease_lost", "because of lease_lost"));
        for by in ["fault_server_lost", "lab_lost", "max_duration", "interrupted"] {
            assert_eq!(of(by, Some("healed")), said("lease_lost", "healed"), "{by}");
        }
        for by in ["max_duration", "interrupted", "lab_lost"] {
            assert_eq!(of(by, None), None, "{by}");
        }
        assert_eq!(spoilt_by(None, None), None);
        assert!(spoilt_by(None, Some("healed".into())).is_some());
    }
}
