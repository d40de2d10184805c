//! Gathering what everybody saw.

use std::time::Duration;

use super::lab::Lab;
use super::stage::{Ground, Run, Stage};
use crate::drill::evidence::Evidence;
use crate::error::Result;
use crate::lab::topology::Topology;
use crate::measure::{EffectRow, ProviderRow};

/// The lab is asked so often for what it has recorded, in case it is lost later.
const REMEMBER_EVERY: Duration = Duration::from_secs(2);

/// What the lab had recorded at one moment: complete up to there.
pub(super) struct Records {
    /// The moment before it was asked.
    pub(super) at_ms: f64,
    providers: Vec<ProviderRow>,
    effects: Vec<EffectRow>,
    dropped: u64,
}

/// A provider notes the end of an answer this much after its client has it, at most: both run on this machine.
const WRITTEN_DOWN_MS: f64 = 100.0;

impl Run<'_> {
    /// What the providers saw in this run.
    pub(super) async fn gather_providers(&self, ground: &Ground, into: &mut Evidence) -> Result<()> {
        (into.providers, into.dropped_rows) = self.provider_rows(&ground.lab, &ground.topology).await?;
        Ok(())
    }

    async fn provider_rows(&self, lab: &Lab, topology: &Topology) -> Result<(Vec<ProviderRow>, u64)> {
        let (mut all, mut dropped_rows) = (Vec::new(), 0);
        for provider in &topology.providers {
            let (rows, dropped) = lab.provider_log(&provider.name, self.anchor.mono_ms).await?;
            let mut rows: Vec<ProviderRow> = rows.into_iter().map(|r| self.on_time_line(r)).collect();
            // A lab that is attached to may have dropped rows of earlier runs: those are not missed.
            if rows.first().is_some_and(|r| r.arrived_ms >= 0.0) {
                dropped_rows += dropped;
            }
            rows.retain(|r| r.arrived_ms >= 0.0);
            all.extend(rows);
        }
        Ok((all, dropped_rows))
    }

    async fn records(&self, lab: &Lab, topology: &Topology) -> Result<Records> {
        let at_ms = self.anchor.elapsed_ms();
        let (providers, mut dropped) = self.provider_rows(lab, topology).await?;
        let (mut effects, dropped_effects) = lab.effects(self.anchor.mono_ms).await?;
        for effect in &mut effects {
            effect.at_ms = self.anchor.from_mono(effect.at_ms);
        }
        if effects.first().is_some_and(|e| e.at_ms >= 0.0) {
            dropped += dropped_effects;
        }
        effects.retain(|e| e.at_ms >= 0.0);
        Ok(Records { at_ms, providers, effects, dropped })
    }

    /// Keeps what the lab has recorded so far. A lab that does not answer is noticed elsewhere.
    pub(super) async fn remember(&mut self, ground: &Ground) {
        let due = |r: &Records| self.anchor.elapsed_ms() - r.at_ms >= crate::units::ms(REMEMBER_EVERY);
        if self.remembered.as_ref().is_none_or(due)
            && let Ok(records) = self.records(&ground.lab, &ground.topology).await
        {
            self.remembered = Some(records);
        }
    }

    /// Everything so far, as far as both sides can be laid beside each other: of the customers' requests those that had
    /// ended before the first log was asked for, since a later one is not in it as a whole.
    pub(super) async fn so_far(&self, ground: &Ground, stage: &Stage) -> Result<Evidence> {
        let mut so_far = self.evidence.clone();
        let asked_ms = self.anchor.elapsed_ms() - WRITTEN_DOWN_MS;
        self.gather_providers(ground, &mut so_far).await?;
        if let Some(customers) = &stage.customers {
            so_far.requests = customers.rows(&self.anchor);
            so_far.requests.retain(|r| r.ended_ms < asked_ms);
            so_far.steady_judged_ms = Some(asked_ms);
        }
        Ok(so_far)
    }

    fn on_time_line(&self, mut row: ProviderRow) -> ProviderRow {
        row.arrived_ms = self.anchor.from_mono(row.arrived_ms);
        for at in [&mut row.first_byte_ms, &mut row.first_token_ms, &mut row.ended_ms] {
            *at = at.map(|v| self.anchor.from_mono(v));
        }
        row
    }

    /// Of a lab that is lost, what it had recorded when it was last asked.
    pub(super) fn gather_remembered(&mut self) {
        // Where rows were dropped nothing is complete, and nothing can be proven.
        if let Some(records) = self.remembered.take().filter(|r| r.dropped == 0) {
            self.evidence.lab_seen_ms = Some(records.at_ms);
            self.evidence.providers = records.providers;
            self.evidence.effects = records.effects;
        }
    }

    /// Ends the load and gathers what everybody saw. The lab must still be up.
    pub(super) async fn gather(&mut self, stage: &mut Stage) -> Result<Vec<(String, String)>> {
        self.evidence.load_until_ms = self.anchor.elapsed_ms();
        for window in &mut self.evidence.windows {
            window.until_ms = window.until_ms.min(self.evidence.load_until_ms);
            window.restoring_ms = window.restoring_ms.min(self.evidence.load_until_ms);
            window.restored_ms = window.restored_ms.min(self.evidence.load_until_ms);
        }
        if let Some(customers) = &mut stage.customers {
            self.evidence.dependencies = customers.stop(self.stops.in_a_hurry()).await;
            self.evidence.requests = customers.rows(&self.anchor);
        }
        let lab = match (&stage.embedded, &self.options.lab) {
            (Some(embedded), _) => embedded.lab()?,
            (None, Some(url)) => Lab::new(url)?,
            (None, None) => return Ok(Vec::new()),
        };
        let mut journals = Vec::new();
        if let Some(embedded) = &mut stage.embedded {
            journals = embedded.stop_gateways().await;
        }
        if self.evidence.spoils.lab().is_some() {
            return Ok(journals);
        }
        let topology = lab.topology().await?;
        let records = self.records(&lab, &topology).await?;
        self.evidence.providers = records.providers;
        self.evidence.effects = records.effects;
        self.evidence.dropped_rows += records.dropped;
        if !journals.is_empty() {
            let views = journals.iter().map(|(name, text)| super::journal::view(name, text, &self.anchor)).collect();
            self.evidence.gateways = Some(views);
        }
        Ok(journals)
    }
}
