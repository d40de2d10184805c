//! The steady state, which must be met before anything is broken; and waiting, with an eye on all that must be alive.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Reporter;
use super::customers::Customers;
use super::embedded::Embedded;
use super::stage::{Ground, Run, Stage, TICK};
use crate::drill::judge::judge;
use crate::drill::spoilt::Reason;
use crate::error::Result;
use crate::load::Entry;
use crate::measure::RequestRow;

impl Run<'_> {
    pub(super) async fn steady_state(
        &mut self,
        ground: &Ground,
        entries: Vec<Entry>,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) -> Result<()> {
        // A lab that has seen a run must not see its conversations again; a fresh one gives the same texts for a seed.
        let run = match self.options.lab {
            Some(_) => format!("s{}-{:x}-", self.options.seed, crate::fault::clock::wall_ms() / 100),
            None => format!("s{}-", self.options.seed),
        };
        let key = self.options.target_key.clone();
        let customers = Customers::start(&ground.plan, &ground.topology, entries, key, self.options.seed, &run)?;
        stage.customers = Some(customers);
        self.evidence.steady_from_ms = self.anchor.elapsed_ms();
        self.evidence.counters_at_steady = self.counters(stage).await;
        self.journal.phase("steady", &format!("{} s", ground.plan.steady.as_secs_f64()));
        self.wait("steady state", ground.plan.steady, stage, tell, |_| false).await;
        // A seed may deal few turns to a short steady state: that says nothing about the path, and more time mends it.
        let (anchor, wanted) = (self.anchor, ground.plan.needs.steady_turns);
        let from_ms = self.evidence.steady_from_ms;
        let enough = move |stage: &Stage| {
            let turns = |c: &Customers| ended_turns(&c.rows(&anchor), from_ms, anchor.elapsed_ms() - NOT_YET_MS);
            stage.customers.as_ref().is_none_or(|c| turns(c) >= wanted)
        };
        if !enough(&*stage) {
            self.wait("steady state, longer", ground.plan.steady, stage, tell, enough).await;
        }
        self.evidence.counters_after_steady = self.counters(stage).await;
        Ok(())
    }

    /// The steady state is met; otherwise nothing is broken.
    pub(super) async fn well(&mut self, ground: &Ground, stage: &Stage, tell: &mut dyn Reporter) -> Result<bool> {
        let so_far = self.so_far(ground, stage).await?;
        let judged_ms = so_far.steady_judged_ms;
        let findings = judge(&so_far).findings;
        let Some(found) = findings.into_iter().find(|f| f.code == "steady_state_not_met") else { return Ok(true) };
        for problem in &found.examples {
            tell.say(&format!("no steady state, so nothing is broken: {problem}"), true);
        }
        (self.evidence.not_well, self.evidence.not_well_cases) = (found.examples, found.n);
        self.evidence.steady_judged_ms = judged_ms;
        Ok(false)
    }

    async fn wait(
        &mut self,
        phase: &str,
        total: Duration,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
        done: impl Fn(&Stage) -> bool,
    ) {
        let began = Instant::now();
        while began.elapsed() < total && !self.stopped() && !done(stage) {
            let step = TICK.min(total - began.elapsed());
            self.wait_since(phase, began, total, step, stage, tell).await;
        }
    }

    /// Waits for one step, or until the drill must stop, and looks after what must be alive.
    pub(super) async fn wait_since(
        &self,
        phase: &str,
        began: Instant,
        total: Duration,
        step: Duration,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) {
        let until = Instant::now() + step;
        while Instant::now() < until && !self.stopped() {
            tokio::select! {
                () = sleep(TICK.min(until.saturating_duration_since(Instant::now()))) => {}
                () = self.stops.wait() => return,
            }
            if let Some(lost) = stage.embedded.as_mut().and_then(Embedded::lab_lost) {
                self.stops.ask(Reason::LabLost.code(), &lost);
            }
            if let Some(lost) = stage.embedded.as_mut().and_then(Embedded::lost) {
                self.stops.ask("child_lost", &lost);
            }
            let Some(customers) = &stage.customers else { continue };
            if customers.dead() {
                self.stops.ask("generator_dead", "the load has ended by itself");
            }
            let g = customers.glimpse();
            let by: Vec<String> = g.lately.iter().map(|(t, n)| format!("{t} {n}")).collect();
            let by = if by.is_empty() { String::new() } else { format!(" · lately {}", by.join(", ")) };
            let again = if g.again == 0 { String::new() } else { format!(" · {} sent again", g.again) };
            tell.state(&format!(
                "{phase}: {:.0} of {:.0} s · {} answered · {} not whole{again}{by}",
                began.elapsed().as_secs_f64(),
                total.as_secs_f64(),
                g.requests - g.failed - g.again,
                g.failed
            ));
        }
    }
}

/// The newest answers are not looked at yet when the path is judged: the providers' log may lack them.
const NOT_YET_MS: f64 = 300.0;

/// Turns that began after the one moment and were over before the other.
fn ended_turns(rows: &[RequestRow], from_ms: f64, until_ms: f64) -> usize {
    let over = rows.iter().filter(|r| r.last_of_turn && r.started_ms >= from_ms && r.ended_ms < until_ms);
    over.map(|r| (r.conversation.as_str(), r.turn)).collect::<BTreeSet<_>>().len()
}
