//! Carrying out a drill on real sockets.

pub mod children;
pub mod customers;
pub mod cuts;
pub mod dials;
pub mod embedded;
pub mod faults;
pub mod folder;
mod gather;
pub mod journal;
pub mod lab;
pub mod leftovers;
pub mod lock;
mod rounds;
pub mod safety;
pub mod signals;
mod stage;
mod timeline;
mod watch;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures_util::FutureExt;

use super::checks;
use super::evidence::{Aborted, Evidence, Spoilt};
use super::judge::{Judgement, judge};
use super::library::Found;
use super::propose::propose;
use super::report::{RunFacts, markdown, summary};
use super::verdict::Cleanup;
use crate::error::{Expected, Result};
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
    let made = folder::to_be_made(&options.report);
    let performed = AssertUnwindSafe(run.perform(file, found, &mut stage, tell)).catch_unwind().await;
    if let Some(safety) = &stage.safety {
        safety.stop_watching();
    }
    let stop = run.stops.asked().filter(|s| s.by == watch::LIFTED || s.by == watch::SILENT);
    let look = stop.is_some() || !matches!(performed, Ok(Ok(())));
    run.evidence.lab_lost = lab_lost(&mut stage, &run, look).await;
    if let (Some(stop), None) = (stop, &run.evidence.spoilt) {
        run.evidence.spoilt = Some(Spoilt { code: stop.by, text: stop.text });
    }
    if let (Some(_), Some(embedded)) = (&run.evidence.lab_lost, &mut stage.embedded) {
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
    if let (Some(Err(_)), None) = (&gathered, &run.evidence.lab_lost) {
        run.evidence.lab_lost = lab_lost(&mut stage, &run, true).await;
    }
    if run.evidence.lab_lost.is_some() {
        run.gather_remembered();
    }
    drop(stage.lab_watch.take());
    let (cleanup, cleanup_notes, log) = take_down(&mut stage, &mut run).await;
    match performed {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(Err(e)) if run.evidence.windows.is_empty() && run.evidence.spoilt().is_none() => {
            folder::discard(&made);
            return Err(if cleanup == Cleanup::Dirty { e.and_dirty() } else { e });
        }
        Ok(Err(e)) => run.evidence.aborted = Some(Aborted { by: "error".into(), text: e.to_string() }),
        Ok(Ok(())) => {}
    }
    if let Some(stop) = run.stops.asked() {
        run.evidence.aborted = Some(Aborted { by: stop.by, text: stop.text });
    }
    let journals = match gathered {
        Some(Ok(journals)) => journals,
        Some(Err(e)) => {
            run.evidence.aborted.get_or_insert(Aborted { by: "evidence".into(), text: e.to_string() });
            Vec::new()
        }
        None => Vec::new(),
    };
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
        proposals: match run.evidence.spoilt() {
            None => propose(&run.evidence, &judgement),
            Some(_) => Vec::new(),
        },
        again: options.command(&file.name, found),
    };
    write_report(options, &run, &judgement, &facts, &journals, log.as_deref())?;
    Ok(Done { evidence: run.evidence, judgement, facts })
}

/// Why the lab cannot be asked any more, if it cannot. A run that has not come as far as its declaration has no summary
/// that could say so; its own error does. `look`: something went wrong, so ask the lab itself.
async fn lab_lost(stage: &mut Stage, run: &Run<'_>, look: bool) -> Option<String> {
    if run.evidence.drill.is_empty() {
        return None;
    }
    let asked = match run.stops.asked() {
        // Who ends the drill by hand may have ended the lab with it.
        Some(stop) if stop.by == "interrupted" || stop.by == "terminated" => return None,
        stop => stop.filter(|s| s.by == "lab_lost").map(|s| s.text),
    };
    let ended = || stage.embedded.as_mut().and_then(embedded::Embedded::lab_lost);
    match (asked.or_else(ended), &stage.lab_watch) {
        (None, Some(watch)) if look => watch.look().await,
        (lost, _) => lost,
    }
}

/// Ends the load, the lease or guard, and the processes. `(clean-up, notes, log of the run)`.
async fn take_down(stage: &mut Stage, run: &mut Run<'_>) -> (Cleanup, Vec<String>, Option<PathBuf>) {
    if let Some(mut customers) = stage.customers.take() {
        customers.stop(true).await;
    }
    let (mut cleanup, mut notes, mut log) = (Cleanup::Clean, Vec::new(), None);
    if let Some(safety) = stage.safety.take() {
        let by_itself = safety.healed_by_itself().await;
        if !by_itself.is_empty() {
            let text = format!("the lease ran out and the fault server healed by itself: {}", by_itself.join(", "));
            run.stops.ask("lease_lost", &text);
        }
        log = Some(safety.log_path().to_path_buf());
        let outcome = safety.end().await;
        cleanup = outcome.cleanup;
        notes = outcome.notes;
    }
    if let Some(embedded) = stage.embedded.take() {
        notes.extend(embedded.stop().await);
    }
    (cleanup, notes, log)
}

fn write_report(
    options: &Options,
    run: &Run<'_>,
    judgement: &Judgement,
    facts: &RunFacts,
    journals: &[(String, String)],
    log: Option<&Path>,
) -> Result<()> {
    let dir = &options.report;
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| {
            Expected::could_not(
                format!("{}: {e}", path.display()),
                "the drill is over and restored; give --report another folder",
            )
        })
    };
    let mut summary = serde_json::to_string_pretty(&summary(&run.evidence, judgement, facts)).unwrap_or_default();
    summary.push('\n');
    write("summary.json", summary)?;
    let lines = |rows: Vec<String>| rows.into_iter().map(|r| r + "\n").collect::<String>();
    let json = |row: &crate::measure::RequestRow| serde_json::to_string(row).unwrap_or_default();
    write("requests.jsonl", lines(run.evidence.requests.iter().map(json).collect()))?;
    let json = |row: &crate::measure::ProviderRow| serde_json::to_string(row).unwrap_or_default();
    write("providers.jsonl", lines(run.evidence.providers.iter().map(json).collect()))?;
    let json = |row: &crate::measure::EffectRow| serde_json::to_string(row).unwrap_or_default();
    write("effects.jsonl", lines(run.evidence.effects.iter().map(json).collect()))?;
    write("journal.jsonl", run.journal.merged(journals))?;
    write("report.md", markdown(&run.evidence, judgement, facts))?;
    let wal = log.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    write("wal.jsonl", wal)
}
