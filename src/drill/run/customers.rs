//! The load and the background work of the regions, and the rows that come out of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::journal::Anchor;
use crate::drill::evidence::{DependencyFacts, PATIENCE_MS};
use crate::drill::plan::Plan;
use crate::error::Result;
use crate::lab::topology::Topology;
use crate::load::regional::{Regional, Source};
use crate::load::{Entry, Key, Kind, Load, Plan as Schedule, PlanSettings, Settings};
use crate::measure::{End, RequestRow};

/// Limit of a customer's connect to an entry.
const ENTRY_CONNECT: Duration = Duration::from_millis(500);
/// Conversations at once.
const CONVERSATIONS: usize = 512;

/// The customers of a drill.
#[derive(Debug)]
pub struct Customers {
    schedule: PlanSettings,
    settings: Settings,
    /// Loads begun so far: each pause ends one.
    begun: u64,
    load: Option<Load>,
    regional: Option<Regional>,
    rows: Arc<Mutex<Vec<RequestRow>>>,
    reader: Option<tokio::task::JoinHandle<()>>,
}

/// What the last seconds looked like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Glimpse {
    /// Requests ended so far.
    pub requests: usize,
    /// Of these, not whole, and not sent again.
    pub failed: usize,
    /// Of these, not whole, and sent again at another entry by the customer's own application.
    pub again: usize,
    /// Who answered in the last seconds, as the gateway says; empty for a foreign one.
    pub lately: Vec<(String, usize)>,
}

/// Requests that ended within this count as "lately".
const LATELY_MS: f64 = 2500.0;

impl Customers {
    /// Starts them. `key` is what their application shows the entries.
    ///
    /// # Errors
    /// An entry has no usable URL.
    pub fn start(
        plan: &Plan,
        topology: &Topology,
        entries: Vec<Entry>,
        key: Option<Key>,
        seed: u64,
        run: &str,
    ) -> Result<Customers> {
        let kinds = plan.load.kinds.iter().filter_map(|k| Kind::named(k.name())).collect();
        let schedule = PlanSettings {
            seed,
            run: run.into(),
            turns_per_s: plan.load.turns_per_s.0,
            kinds,
            stream_share: plan.load.stream_share.0,
            ..PlanSettings::default()
        };
        let request_limit = Duration::from_secs_f64((plan.declared.deadline_ms.max(0.0) + PATIENCE_MS) / 1e3);
        let settings = Settings {
            entries,
            model: plan.declared.route.clone(),
            tickets_url: topology.tickets.url.clone(),
            key,
            connect_limit: ENTRY_CONNECT,
            request_limit,
            max_conversations: CONVERSATIONS,
            phase: "steady".into(),
        };
        let sources: Vec<Source> = topology
            .dependencies
            .iter()
            .map(|d| Source { region: d.region.clone(), role: d.role.clone(), url: d.proxied_url.clone() })
            .collect();
        let regional = crate::load::regional::start(&sources)?;
        let mut customers = Customers {
            schedule,
            settings,
            begun: 0,
            load: None,
            regional: Some(regional),
            rows: Arc::default(),
            reader: None,
        };
        customers.go_on("steady")?;
        Ok(customers)
    }

    /// Customers come (again): new conversations, from another part of the seeded schedule.
    ///
    /// # Errors
    /// As [`Customers::start`].
    pub fn go_on(&mut self, phase: &str) -> Result<()> {
        self.begun += 1;
        let mut schedule = self.schedule.clone();
        // The first one keeps the seed as it was given.
        schedule.seed = schedule.seed.wrapping_add((self.begun - 1) << 32);
        schedule.run = format!("{}{}", schedule.run, self.begun);
        let settings = Settings { phase: phase.into(), ..self.settings.clone() };
        let (load, mut receiver) = crate::load::run(Schedule::new(schedule), settings)?;
        let kept = Arc::clone(&self.rows);
        self.reader = Some(tokio::spawn(async move {
            while let Some(row) = receiver.recv().await {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(row);
            }
        }));
        self.load = Some(load);
        Ok(())
    }

    /// Customers begin nothing further; returns when nothing is under way.
    pub async fn pause(&mut self, hurry: bool) {
        let limit = if hurry { Duration::ZERO } else { self.settings.request_limit };
        if let Some(load) = self.load.take() {
            load.stop(limit).await;
        }
        // The channel is closed now; the reader ends once it has taken what was in it.
        if let Some(reader) = self.reader.take() {
            let _ = tokio::time::timeout(Duration::from_secs(2), reader).await;
        }
    }

    /// Requests that start from now on belong to this phase.
    pub fn set_phase(&self, phase: &str) {
        if let Some(load) = &self.load {
            load.set_phase(phase);
        }
    }

    /// The generator has ended although nobody stopped it.
    #[must_use]
    pub fn dead(&self) -> bool {
        self.load.is_some() && self.reader.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
    }

    /// The rows so far, on the drill's time line.
    #[must_use]
    pub fn rows(&self, anchor: &Anchor) -> Vec<RequestRow> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for row in &mut rows {
            on_time_line(row, anchor);
        }
        rows
    }

    /// How it looks.
    #[must_use]
    pub fn glimpse(&self) -> Glimpse {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let now = crate::load::monotonic_ms();
        let mut out = Glimpse { requests: rows.len(), ..Glimpse::default() };
        let broken = || rows.iter().filter(|r| r.end != End::Complete);
        out.again = broken().filter(|r| !r.last_of_turn).count();
        out.failed = broken().count() - out.again;
        let mut lately = std::collections::BTreeMap::<&str, usize>::new();
        for row in rows.iter().rev().take_while(|r| now - r.ended_ms < LATELY_MS) {
            if let Some(target) = row.gateway_target.as_deref() {
                *lately.entry(target).or_default() += 1;
            }
        }
        out.lately = lately.into_iter().map(|(t, n)| (crate::units::printable(t, 40), n)).collect();
        out
    }

    /// Begins nothing further and waits for what is under way, at most for the limit of a request.
    pub async fn stop(&mut self, hurry: bool) -> Vec<DependencyFacts> {
        self.pause(hurry).await;
        let copies = self.regional.take().map(|r| r.snapshot()).unwrap_or_default();
        copies
            .into_iter()
            .map(|c| DependencyFacts {
                region: c.region,
                role: c.role,
                refreshed: c.refreshed,
                failed: c.failed,
                oldest_copy_ms: c.good_ms.map(|_| c.max_age_ms),
            })
            .collect()
    }
}

fn on_time_line(row: &mut RequestRow, anchor: &Anchor) {
    for at in [&mut row.due_ms, &mut row.started_ms, &mut row.ended_ms] {
        *at = anchor.from_mono(*at);
    }
    for at in [&mut row.headers_ms, &mut row.useful_text_ms, &mut row.committed_ms] {
        *at = at.map(|v| anchor.from_mono(v));
    }
}
