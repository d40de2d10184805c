//! Rounds: inject, outage, restore, recovery.

use std::time::Duration;

use tokio::time::Instant;

use super::Reporter;
use super::faults::{Ready, feel_all, prepare};
use super::lab::{Felt, feel};
use super::stage::{Ground, LOOK, Run, Stage};
use crate::drill::evidence::{Evidence, FaultSpan, Window};
use crate::drill::judge::judge;
use crate::drill::plan::PlannedRound;
use crate::drill::spoilt::Reason;
use crate::drill::verdict::Cleanup;
use crate::error::{Expected, Result};
use crate::fault::restore::Server;
use crate::load::monotonic_ms;
use crate::measure::ProviderRow;

/// Between two looks at what the providers saw.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// The phase, with the round's name where it says more.
fn phase(name: &str, round: &PlannedRound) -> String {
    if round.name == name || round.name == "outage" { name.into() } else { format!("{name} ({})", round.name) }
}

/// A window that is open still.
fn window(round: &PlannedRound, faults: Vec<FaultSpan>, injecting_ms: f64, injected_ms: f64) -> Window {
    Window {
        name: round.name.clone(),
        injecting_ms,
        injected_ms,
        restoring_ms: f64::INFINITY,
        restored_ms: f64::INFINITY,
        until_ms: f64::INFINITY,
        faults,
    }
}

impl Run<'_> {
    pub(super) async fn rounds(&mut self, ground: &Ground, stage: &mut Stage, tell: &mut dyn Reporter) -> Result<()> {
        let mut n = 0;
        while n < ground.plan.max_rounds && !self.stopped() {
            let planned = &ground.plan.rounds[n % ground.plan.rounds.len()];
            let mut round = planned.clone();
            if n >= ground.plan.rounds.len() {
                round.name = format!("{} ({})", planned.name, n / ground.plan.rounds.len() + 1);
            }
            self.round(ground, &round, stage, tell).await?;
            n += 1;
            if n >= ground.plan.rounds.len() && (n == ground.plan.max_rounds || self.enough(ground, stage).await?) {
                break;
            }
        }
        Ok(())
    }

    /// Everything that the drill needs has been seen.
    async fn enough(&self, ground: &Ground, stage: &Stage) -> Result<bool> {
        let mut so_far = self.so_far(ground, stage).await?;
        so_far.stand_ins_healthy = true;
        Ok(!judge(&so_far).findings.iter().any(|f| f.code == "sample_too_small"))
    }

    async fn round(
        &mut self,
        ground: &Ground,
        round: &PlannedRound,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) -> Result<()> {
        let server = if self.ours { Server::Ours } else { Server::Real };
        let mut measured = Evidence::default();
        self.gather_providers(ground, &mut measured).await?;
        let ready = prepare(round, server, &measured.providers)?;
        for note in &ready.steps.notes {
            if !self.not_exercised.contains(note) {
                self.not_exercised.push(note.clone());
            }
        }
        if round.quiet_first
            && let Some(customers) = &mut stage.customers
        {
            tell.state(&format!("customers pause; then: {}", round.name));
            customers.pause(self.stopped()).await;
        }
        let window = self.inject(round, &ready, stage, tell).await?;
        if round.quiet_first
            && let Some(customers) = &mut stage.customers
        {
            customers.go_on("outage")?;
        }
        let place = self.evidence.windows.len();
        self.evidence.windows.push(window);
        if let Some(customers) = &stage.customers {
            customers.set_phase("outage");
        }
        self.journal.phase("outage", &format!("{}: {} s", round.name, round.outage.as_secs_f64()));
        self.outage(ground, round, &ready, place, stage, tell).await;
        self.restore(place, stage, tell).await;
        if let Some(customers) = &stage.customers {
            customers.set_phase("recovery");
        }
        self.journal.phase("recovery", &format!("{}: at most {} s", round.name, round.recovery.as_secs_f64()));
        self.recovery(ground, round, place, stage, tell).await;
        self.evidence.windows[place].until_ms = self.anchor.elapsed_ms();
        Ok(())
    }

    async fn inject(
        &mut self,
        round: &PlannedRound,
        ready: &Ready,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) -> Result<Window> {
        let paths: Vec<&str> = ready.spans.iter().map(|s| s.path.as_str()).collect();
        self.journal.phase("inject", &format!("{}: {}", round.name, paths.join(", ")));
        tell.say(&format!("breaking {} ({})", paths.join(", "), round.name), false);
        let Some(safety) = &mut stage.safety else { return Err(Expected::could_not("there is no safety", "")) };
        let injecting_ms = self.anchor.elapsed_ms();
        if let Err(e) = safety.inject(&ready.steps.steps).await {
            // A fault server that went away half-way has left paths broken, and customers have met them: that is a run to be
            // reported, although it says nothing. One that answers has refused, and what it took is undone: no run.
            if let Some(met) = safety.look().await {
                self.stops.ask(met.reason.code(), &format!("{}, while paths were being broken", met.text));
                let injected_ms = self.anchor.elapsed_ms();
                self.evidence.windows.push(window(round, ready.spans.clone(), injecting_ms, injected_ms));
            }
            return Err(e);
        }
        let injected_ms = self.anchor.elapsed_ms();
        let counters = self.counters(stage).await;
        let mut spans = ready.spans.clone();
        for span in &mut spans {
            span.at_injection = counters.get(&span.path).cloned();
            self.journal.fault(&span.path, &span.see, "injected");
        }
        Ok(window(round, spans, injecting_ms, injected_ms))
    }

    async fn outage(
        &mut self,
        ground: &Ground,
        round: &PlannedRound,
        ready: &Ready,
        place: usize,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) {
        let since = monotonic_ms();
        // The look at the paths runs beside the outage, not before it.
        let looking = ready.clone();
        let look = tokio::spawn(async move { feel_all(&looking).await });
        let until_cut = round.until_cut;
        let mut waited = Duration::ZERO;
        let began = Instant::now();
        while waited < round.outage && !self.stopped() {
            let step = LOOK_EVERY.min(round.outage - waited);
            self.wait_since(&phase("outage", round), began, round.outage, step, stage, tell).await;
            waited = began.elapsed();
            self.remember(ground).await;
            if let Some(wanted) = until_cut
                && self.streams_cut(ground, place, since).await >= wanted
            {
                break;
            }
        }
        let felt = if look.is_finished() { look.await.unwrap_or_default() } else { Vec::new() };
        for (span, met) in self.evidence.windows[place].faults.iter_mut().zip(felt) {
            if let Some(met) = met {
                span.own_dials += 1;
                span.felt = Some(met != Felt::Answered);
                self.journal.fault(&span.path, &met.text(), "bit");
            }
        }
        let mut healthy = true;
        for provider in ground.topology.providers.iter().filter(|p| ground.plan.stand_ins.contains(&p.name)) {
            healthy &= feel(&provider.direct_url, "/models", LOOK).await == Felt::Answered;
        }
        self.evidence.stand_ins_healthy = healthy && (place == 0 || self.evidence.stand_ins_healthy);
    }

    /// Streams of broken providers that were cut since then.
    async fn streams_cut(&self, ground: &Ground, place: usize, since_ms: f64) -> u32 {
        let mut n = 0;
        for name in &ground.plan.broken {
            let Ok((rows, _)) = ground.lab.provider_log(name, since_ms).await else { continue };
            let own = |f: &&FaultSpan| f.provider.as_deref() == Some(name);
            let events = self.evidence.windows[place].faults.iter().find(own).and_then(|f| f.cut_events);
            let beyond = |r: &ProviderRow| events.is_some_and(|n| r.events_sent > n);
            let cut = |r: &&ProviderRow| r.stream && !r.probe && r.arrived_ms >= since_ms && (r.cancelled || beyond(r));
            n += rows.iter().filter(cut).count();
        }
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    async fn restore(&mut self, place: usize, stage: &mut Stage, tell: &mut dyn Reporter) {
        // Calls to the fault server of a lab that stands still would only hang; its faults end with it.
        if self.stops.asked().is_some_and(|s| s.by == Reason::LabLost.code())
            && let Some(embedded) = &mut stage.embedded
        {
            embedded.kill_lab().await;
        }
        if let (Some(safety), false) = (&stage.safety, self.stopped())
            && let Some(met) = safety.look().await
        {
            let text = format!("{}, seen at {:.2} s", met.text, self.anchor.elapsed_ms() / 1e3);
            self.stops.ask(met.reason.code(), &text);
        }
        let counters = self.counters(stage).await;
        for span in &mut self.evidence.windows[place].faults {
            span.at_restore = counters.get(&span.path).cloned();
        }
        self.journal.phase("restore", &self.evidence.windows[place].name);
        self.evidence.windows[place].restoring_ms = self.anchor.elapsed_ms();
        let Some(safety) = &mut stage.safety else { return };
        let how = safety.restore().await.clone();
        self.evidence.windows[place].restored_ms = self.anchor.elapsed_ms();
        let paths: Vec<FaultSpan> = self.evidence.windows[place].faults.clone();
        for span in &paths {
            self.journal.fault(&span.path, &span.see, "restored");
        }
        if how.cleanup == Cleanup::Dirty {
            tell.say(&format!("the restore did not succeed: {}", how.notes.join("; ")), true);
        } else {
            tell.say(&format!("restored after {:.0} ms", how.took.as_secs_f64() * 1e3), false);
        }
    }

    async fn recovery(
        &mut self,
        ground: &Ground,
        round: &PlannedRound,
        place: usize,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) {
        let began = Instant::now();
        let restored = self.evidence.windows[place].restored_ms;
        while began.elapsed() < round.recovery && !self.stopped() {
            let step = LOOK_EVERY.min(round.recovery - began.elapsed());
            self.wait_since(&phase("recovery", round), began, round.recovery, step, stage, tell).await;
            self.remember(ground).await;
            if began.elapsed() >= round.recovery_min && self.primary_is_back(ground, restored).await {
                break;
            }
        }
    }

    /// Each broken provider has answered three customers whole since the restore.
    async fn primary_is_back(&self, ground: &Ground, restored_ms: f64) -> bool {
        for name in &ground.plan.broken {
            let since_ms = self.anchor.mono_ms + restored_ms;
            let Ok((rows, _)) = ground.lab.provider_log(name, since_ms).await else { return false };
            let own = |r: &&ProviderRow| {
                !r.probe && r.completed && self.anchor.from_mono(r.arrived_ms) >= restored_ms && r.tool_calls.is_empty()
            };
            if rows.iter().filter(own).count() < crate::measure::rto::IN_A_ROW {
                return false;
            }
        }
        true
    }
}
