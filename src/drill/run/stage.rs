//! A drill on its stage: phases in their fixed order, with everything that must be undone held in one place, so that it is
//! undone however the drill ends.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::customers::Customers;
use super::embedded::{Embedded, Settings as EmbeddedSettings};
use super::faults::{Ready, feel_all, prepare};
use super::journal::{Anchor, Journal};
use super::lab::{Felt, Lab, feel};
use super::leftovers;
use super::lock::Lock;
use super::safety::{RunIs, Safety};
use super::signals::Stops;
use super::{Options, Reporter};
use crate::drill::evidence::{Evidence, FaultSpan, Window};
use crate::drill::judge::judge;
use crate::drill::library::Found;
use crate::drill::plan::{Plan, PlannedRound, compile};
use crate::drill::verdict::Cleanup;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::fault::client::Client;
use crate::fault::restore::Server;
use crate::lab::topology::Topology;
use crate::load::{Entry, monotonic_ms};
use crate::measure::ProviderRow;
use crate::policy::Policy;
use crate::spec::drill::DrillFile;

/// Between two looks at how it goes.
const TICK: Duration = Duration::from_millis(200);
/// An entry must answer within this after its gateway is up.
const ENTRY_READY: Duration = Duration::from_secs(10);
/// Limit of one look whether somebody answers.
const LOOK: Duration = Duration::from_secs(1);

/// Everything that is up and must come down.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) embedded: Option<Embedded>,
    pub(super) safety: Option<Safety>,
    pub(super) customers: Option<Customers>,
}

/// What a run has gathered so far.
pub(super) struct Run<'a> {
    pub(super) options: &'a Options,
    pub(super) stops: Stops,
    pub(super) anchor: Anchor,
    pub(super) journal: Journal,
    pub(super) evidence: Evidence,
    pub(super) healed: Vec<String>,
    pub(super) not_exercised: Vec<String>,
    pub(super) policy_name: String,
    pub(super) targets: Vec<String>,
    pub(super) fault_server: String,
    pub(super) restore_deadline: Duration,
    pub(super) ours: bool,
}

/// What is needed all the way.
struct Ground {
    plan: Plan,
    topology: Topology,
    lab: Lab,
}

impl<'a> Run<'a> {
    pub(super) fn new(options: &'a Options, stops: Stops) -> Run<'a> {
        let anchor = Anchor::now();
        Run {
            options,
            stops,
            anchor,
            journal: Journal::new(anchor),
            evidence: Evidence::default(),
            healed: Vec::new(),
            not_exercised: Vec::new(),
            policy_name: String::new(),
            targets: Vec::new(),
            fault_server: String::new(),
            restore_deadline: Duration::from_secs(5),
            ours: true,
        }
    }

    fn stopped(&self) -> bool {
        self.stops.asked().is_some()
    }

    /// All phases up to the end of the load. Whatever it leaves on the stage is taken down by the caller.
    pub(super) async fn perform(
        &mut self,
        file: &DrillFile,
        found: &Found,
        stage: &mut Stage,
        tell: &mut dyn Reporter,
    ) -> Result<()> {
        let logs = self.options.report.join("logs");
        std::fs::create_dir_all(&logs).map_err(|e| {
            Expected::usage(format!("{}: {e}", logs.display()), "give --report a folder that can be written")
        })?;
        let healing = leftovers::heal(&self.options.state, None).await?;
        for line in &healing.said {
            tell.say(&format!("before the start: {line}"), true);
        }
        self.healed = healing.said;
        let (lab, topology) = self.lab(stage, &logs, tell).await?;
        self.fault_server = topology.toxiproxy.clone();
        if healing.dirty_servers.contains(&topology.toxiproxy) {
            return Err(Expected::new(
                Exit::Dirty,
                format!("an earlier drill has left {} broken, and it could not be healed", topology.toxiproxy),
                "mend it by hand (GET /proxies), then `llmfo drill clean`",
            ));
        }
        let policy = self.policy(&topology)?;
        let plan = compile(file, &topology, &policy, self.options.see)?;
        self.declare(file, &plan, &topology, found);
        self.watch_duration(&plan);
        let ground = Ground { plan, topology, lab };
        self.open_safety(&ground, stage).await?;
        let entries = self.entries(&ground, stage, &logs, tell).await?;
        self.steady_state(&ground, entries, stage, tell).await?;
        if self.stopped() || !self.well(&ground, stage, tell).await? {
            return Ok(());
        }
        self.rounds(&ground, stage, tell).await
    }

    async fn lab(
        &mut self,
        stage: &mut Stage,
        logs: &std::path::Path,
        tell: &mut dyn Reporter,
    ) -> Result<(Lab, Topology)> {
        let lab = match &self.options.lab {
            Some(url) => Lab::new(url)?,
            None => {
                tell.state("starting the lab");
                let settings = self.embedded_settings(logs);
                let embedded = Embedded::start(&settings).await?;
                let lab = embedded.lab()?;
                stage.embedded = Some(embedded);
                lab
            }
        };
        let topology = lab.topology().await?;
        Ok((lab, topology))
    }

    fn embedded_settings<'b>(&'b self, logs: &'b std::path::Path) -> EmbeddedSettings<'b> {
        EmbeddedSettings {
            dir: logs,
            seed: self.options.seed,
            toxiproxy: self.options.toxiproxy.as_deref(),
            policy: self.options.policy.as_deref(),
        }
    }

    fn policy(&mut self, topology: &Topology) -> Result<Policy> {
        let path = self.options.policy.clone().unwrap_or_else(|| PathBuf::from(&topology.policy));
        self.policy_name = match &self.options.policy {
            Some(path) => path.display().to_string(),
            None => "built in: policies/lab.yaml, with the ports of this lab".into(),
        };
        let bytes = std::fs::read(&path).map_err(|e| {
            Expected::usage(format!("{}: {e}", path.display()), "give --policy a file that can be read")
        })?;
        let (policy, found) = crate::policy::load(&path.display().to_string(), &bytes);
        policy.ok_or_else(|| {
            let first = found.first().map(|d| format!(": line {}: {}", d.place.line, d.message)).unwrap_or_default();
            Expected::usage(format!("{} cannot be used{first}", path.display()), "llmfo validate shows every finding")
        })
    }

    fn declare(&mut self, file: &DrillFile, plan: &Plan, topology: &Topology, found: &Found) {
        self.restore_deadline = plan.restore_deadline;
        self.evidence.drill = plan.drill.clone();
        self.evidence.seed = self.options.seed;
        self.evidence.declared = plan.declared.clone();
        self.evidence.needs = plan.needs;
        self.evidence.broken = plan.broken.clone();
        self.evidence.stand_ins = plan.stand_ins.clone();
        self.evidence.load_until_ms = f64::INFINITY;
        let detail = format!(
            "{} ({}), seed {}, route {}, policy {}, fault server {}",
            file.name, found.source, self.options.seed, plan.declared.route, self.policy_name, topology.toxiproxy
        );
        self.journal.phase("declare", &detail);
    }

    fn watch_duration(&self, plan: &Plan) {
        let (stops, longest) = (self.stops.clone(), plan.max_duration);
        tokio::spawn(async move {
            sleep(longest).await;
            stops.ask("max_duration", &format!("the drill was not over after {} s", longest.as_secs()));
        });
    }

    async fn open_safety(&mut self, ground: &Ground, stage: &mut Stage) -> Result<()> {
        let url = &ground.topology.toxiproxy;
        let client = Client::new(url)?;
        let ours = client.is_ours().await?;
        self.ours = ours;
        let lock = Lock::take(&self.options.state, url)?;
        let mut proxies: Vec<String> =
            ground.plan.rounds.iter().flat_map(|r| &r.faults).map(|f| f.path.proxy.clone()).collect();
        proxies.sort();
        proxies.dedup();
        let is = RunIs {
            drill: &ground.plan.drill,
            embedded: ground.topology.embedded,
            proxies: &proxies,
            longest: ground.plan.max_duration,
            restore_deadline: ground.plan.restore_deadline,
        };
        stage.safety = Some(Safety::begin(client, ours, lock, &self.options.state, &is, &self.stops).await?);
        Ok(())
    }

    /// Starts the gateways of an embedded run and waits until every entry answers.
    async fn entries(
        &mut self,
        ground: &Ground,
        stage: &mut Stage,
        logs: &std::path::Path,
        tell: &mut dyn Reporter,
    ) -> Result<Vec<Entry>> {
        if let Some(embedded) = &mut stage.embedded
            && self.options.targets.is_empty()
        {
            tell.state("starting a gateway in each region");
            let settings = self.embedded_settings(logs);
            embedded.start_gateways(&settings, &ground.topology).await?;
        }
        let entries: Vec<Entry> = if self.options.targets.is_empty() {
            let of = |e: &crate::lab::topology::EntryAt| Entry { name: e.name.clone(), url: e.url.clone() };
            ground.topology.entries.iter().map(of).collect()
        } else {
            let named = |(n, url): (usize, &String)| {
                let name = if n == 0 { "target".to_string() } else { format!("target-{}", n + 1) };
                Entry { name, url: url.clone() }
            };
            self.options.targets.iter().enumerate().map(named).collect()
        };
        self.targets = entries.iter().map(|e| e.url.clone()).collect();
        for entry in &entries {
            self.answers(entry).await?;
        }
        Ok(entries)
    }

    async fn answers(&self, entry: &Entry) -> Result<()> {
        let until = Instant::now() + ENTRY_READY;
        loop {
            let met = feel(&entry.url, "/models", LOOK).await;
            match met {
                Felt::Answered => return Ok(()),
                _ if self.stopped() => return Ok(()),
                met if Instant::now() > until => {
                    return Err(Expected::could_not(
                        format!("{} ({}) does not answer: {}", entry.name, entry.url, met.text()),
                        "is the gateway up, and does its URL end in /v1?",
                    ));
                }
                _ => sleep(TICK).await,
            }
        }
    }

    async fn steady_state(
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
        let customers = Customers::start(&ground.plan, &ground.topology, entries, self.options.seed, &run)?;
        stage.customers = Some(customers);
        self.evidence.steady_from_ms = self.anchor.elapsed_ms();
        self.evidence.counters_at_steady = self.counters(stage).await;
        self.journal.phase("steady", &format!("{} s", ground.plan.steady.as_secs_f64()));
        self.wait("steady state", ground.plan.steady, stage, tell, |_| false).await;
        self.evidence.counters_after_steady = self.counters(stage).await;
        Ok(())
    }

    async fn counters(&self, stage: &Stage) -> std::collections::BTreeMap<String, crate::fault::api::Counters> {
        match &stage.safety {
            Some(safety) if safety.ours() => safety.client().counters().await.unwrap_or_default(),
            _ => Default::default(),
        }
    }

    /// The steady state is met; otherwise nothing is broken.
    async fn well(&mut self, ground: &Ground, stage: &Stage, tell: &mut dyn Reporter) -> Result<bool> {
        let mut so_far = self.evidence.clone();
        self.gather_providers(ground, &mut so_far).await?;
        if let Some(customers) = &stage.customers {
            so_far.requests = customers.rows(&self.anchor);
        }
        let problems: Vec<String> = judge(&so_far)
            .findings
            .into_iter()
            .filter(|f| f.code == "steady_state_not_met")
            .flat_map(|f| f.examples)
            .collect();
        for problem in &problems {
            tell.say(&format!("no steady state, so nothing is broken: {problem}"), true);
        }
        Ok(problems.is_empty())
    }

    async fn gather_providers(&self, ground: &Ground, into: &mut Evidence) -> Result<()> {
        into.providers.clear();
        into.dropped_rows = 0;
        for provider in &ground.topology.providers {
            let (rows, dropped) = ground.lab.provider_log(&provider.name).await?;
            let mut rows: Vec<ProviderRow> = rows.into_iter().map(|r| self.on_time_line(r)).collect();
            // A lab that is attached to may have dropped rows of earlier runs: those are not missed.
            if rows.first().is_some_and(|r| r.arrived_ms >= 0.0) {
                into.dropped_rows += dropped;
            }
            rows.retain(|r| r.arrived_ms >= 0.0);
            into.providers.extend(rows);
        }
        Ok(())
    }

    fn on_time_line(&self, mut row: ProviderRow) -> ProviderRow {
        row.arrived_ms = self.anchor.from_mono(row.arrived_ms);
        for at in [&mut row.first_byte_ms, &mut row.first_token_ms, &mut row.ended_ms] {
            *at = at.map(|v| self.anchor.from_mono(v));
        }
        row
    }

    async fn rounds(&mut self, ground: &Ground, stage: &mut Stage, tell: &mut dyn Reporter) -> Result<()> {
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
        let mut so_far = self.evidence.clone();
        self.gather_providers(ground, &mut so_far).await?;
        if let Some(customers) = &stage.customers {
            so_far.requests = customers.rows(&self.anchor);
        }
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
        let window = self.inject(round, &ready, stage, tell).await?;
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
        safety.inject(&ready.steps.steps).await?;
        let injected_ms = self.anchor.elapsed_ms();
        let counters = self.counters(stage).await;
        let mut spans = ready.spans.clone();
        for span in &mut spans {
            span.at_injection = counters.get(&span.path).cloned();
            self.journal.fault(&span.path, &span.see, "injected");
        }
        Ok(Window {
            name: round.name.clone(),
            injecting_ms,
            injected_ms,
            restoring_ms: f64::INFINITY,
            restored_ms: f64::INFINITY,
            until_ms: f64::INFINITY,
            faults: spans,
        })
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
            let step = Duration::from_millis(400).min(round.outage - waited);
            self.wait_since(&format!("outage ({})", round.name), began, round.outage, step, stage, tell).await;
            waited = began.elapsed();
            if let Some(wanted) = until_cut
                && self.streams_cut(ground, since).await >= wanted
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

    /// Streams of a broken provider whose peer has left since then.
    async fn streams_cut(&self, ground: &Ground, since_ms: f64) -> u32 {
        let mut n = 0;
        for name in &ground.plan.broken {
            let Ok((rows, _)) = ground.lab.provider_log(name).await else { continue };
            let cut = |r: &&ProviderRow| r.stream && !r.probe && r.cancelled && r.arrived_ms >= since_ms;
            n += rows.iter().filter(cut).count();
        }
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    async fn restore(&mut self, place: usize, stage: &mut Stage, tell: &mut dyn Reporter) {
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
            let step = Duration::from_millis(400).min(round.recovery - began.elapsed());
            self.wait_since(&format!("recovery ({})", round.name), began, round.recovery, step, stage, tell).await;
            if began.elapsed() >= round.recovery_min && self.primary_is_back(ground, restored).await {
                break;
            }
        }
    }

    /// Each broken provider has answered three customers whole since the restore.
    async fn primary_is_back(&self, ground: &Ground, restored_ms: f64) -> bool {
        for name in &ground.plan.broken {
            let Ok((rows, _)) = ground.lab.provider_log(name).await else { return false };
            let own = |r: &&ProviderRow| {
                !r.probe && r.completed && self.anchor.from_mono(r.arrived_ms) >= restored_ms && r.tool_calls.is_empty()
            };
            if rows.iter().filter(own).count() < crate::measure::rto::IN_A_ROW {
                return false;
            }
        }
        true
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
    async fn wait_since(
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
            tell.state(&format!(
                "{phase}: {:.0} of {:.0} s · {} answered · {} not whole{by}",
                began.elapsed().as_secs_f64(),
                total.as_secs_f64(),
                g.requests - g.failed,
                g.failed
            ));
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
        let topology = lab.topology().await?;
        let mut evidence = std::mem::take(&mut self.evidence);
        for provider in &topology.providers {
            let (rows, dropped) = lab.provider_log(&provider.name).await?;
            let mut rows: Vec<ProviderRow> = rows.into_iter().map(|r| self.on_time_line(r)).collect();
            if rows.first().is_some_and(|r| r.arrived_ms >= 0.0) {
                evidence.dropped_rows += dropped;
            }
            rows.retain(|r| r.arrived_ms >= 0.0);
            evidence.providers.extend(rows);
        }
        let (effects, dropped) = lab.effects().await?;
        let mut effects = effects;
        for effect in &mut effects {
            effect.at_ms = self.anchor.from_mono(effect.at_ms);
        }
        if effects.first().is_some_and(|e| e.at_ms >= 0.0) {
            evidence.dropped_rows += dropped;
        }
        effects.retain(|e| e.at_ms >= 0.0);
        evidence.effects = effects;
        if !journals.is_empty() {
            let views = journals.iter().map(|(name, text)| super::journal::view(name, text, &self.anchor)).collect();
            evidence.gateways = Some(views);
        }
        self.evidence = evidence;
        Ok(journals)
    }
}
