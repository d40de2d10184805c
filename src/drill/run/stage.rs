//! A drill on its stage: phases in their fixed order, with everything that must be undone held in one place, so that it is
//! undone however the drill ends.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::before;
use super::customers::Customers;
use super::dials;
use super::embedded::{Embedded, Settings as EmbeddedSettings};
use super::gather::Records;
use super::journal::{Anchor, Journal};
use super::lab::{Felt, Lab, feel, status};
use super::leftovers;
use super::place::Place;
use super::safety::{EXPIRY_MARGIN, RunIs, Safety};
use super::signals::Stops;
use super::watch::{LabWatch, Own, Surroundings};
use super::{Options, Reporter};
use crate::drill::evidence::{Evidence, PolicyOf};
use crate::drill::judge::judge;
use crate::drill::library::Found;
use crate::drill::plan::{Plan, compile};
use crate::drill::spoilt::Reason;
use crate::error::{Expected, Result};
use crate::fault::client::Client;
use crate::lab::topology::Topology;
use crate::load::Entry;
use crate::measure::RequestRow;
use crate::policy::Policy;
use crate::spec::drill::DrillFile;

/// Between two looks at how it goes.
const TICK: Duration = Duration::from_millis(200);
/// An entry must answer within this after its gateway is up.
const ENTRY_READY: Duration = Duration::from_secs(10);
/// A lab is up within this, or never.
const LAB_READY: Duration = Duration::from_secs(60);
/// Limit of one look whether somebody answers.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Everything that is up and must come down.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) embedded: Option<Embedded>,
    pub(super) lab_watch: Option<LabWatch>,
    /// Whether this process itself goes on.
    pub(super) own: Option<Own>,
    /// The fault server, from before the lab begins there until safety has it.
    pub(super) place: Option<Place>,
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
    /// Whether what is around the gateway stood still.
    pub(super) around: Surroundings,
    pub(super) ours: bool,
    pub(super) remembered: Option<Records>,
    /// The policy of the gateways that this run starts, if it is not the lab's.
    pub(super) led: Option<PathBuf>,
}

/// What is needed all the way.
pub(super) struct Ground {
    pub(super) plan: Plan,
    pub(super) topology: Topology,
    pub(super) lab: Lab,
}

impl<'a> Run<'a> {
    pub(super) fn new(options: &'a Options, stops: Stops) -> Run<'a> {
        let anchor = Anchor::now();
        Run {
            around: Surroundings::default(),
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
            remembered: None,
            led: None,
        }
    }

    pub(super) fn stopped(&self) -> bool {
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
        before::fits(self.options, file)?;
        let logs = super::folder::open(&self.options.report)?;
        let healing = leftovers::before_a_run(&self.options.state).await?;
        for line in &healing.said {
            tell.say(&format!("before the start: {line}"), true);
        }
        self.healed = healing.said;
        if let Some(url) = &self.options.toxiproxy {
            stage.place = self.place(url, file).await?;
        }
        let (lab, topology) = self.lab(stage, &logs, tell).await?;
        self.fault_server = topology.toxiproxy.clone();
        if healing.dirty_servers.contains(&topology.toxiproxy) {
            let step = healing.next.into_iter().find(|step| step.contains(&topology.toxiproxy));
            return Err(Expected::dirty(
                format!("an earlier drill has left {} broken, and it could not be healed", topology.toxiproxy),
                step.unwrap_or_else(|| "mend it by hand (GET /proxies), then `llmfo drill clean`".to_owned()),
            ));
        }
        let policy = self.policy(&topology, &file.route)?;
        let plan = compile(file, &topology, &policy, self.options.see)?;
        self.declare(file, &plan, &topology, found);
        if policy.expires_unix_s.is_some_and(|at| jiff::Timestamp::now().as_second() >= at) {
            tell.say(
                &format!("the policy {} has expired: a gateway of it hands requests to a human", self.policy_name),
                true,
            );
        }
        before::can_pass(&plan)?;
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

    /// A fault server that was there before this run is taken before the lab makes its paths on it: the second of two drills
    /// that begin together is told of the first one, and not of its paths. One that does not answer is told by the lab.
    async fn place(&self, url: &str, file: &DrillFile) -> Result<Option<Place>> {
        let client = Client::new(url)?;
        if client.version().await.is_err() {
            return Ok(None);
        }
        let longest = file.limits.max_duration_s.duration() + EXPIRY_MARGIN + LAB_READY;
        Place::take(&self.options.state, client, longest).await.map(Some)
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
        stage.own = Some(self.around.runner(self.anchor));
        stage.lab_watch = Some(LabWatch::start(&lab, &self.stops, self.anchor, self.around.clone()));
        Ok((lab, topology))
    }

    fn embedded_settings<'b>(&'b self, logs: &'b std::path::Path) -> EmbeddedSettings<'b> {
        EmbeddedSettings {
            dir: logs,
            seed: self.options.seed,
            toxiproxy: self.options.toxiproxy.as_deref(),
            policy: self.led.as_deref(),
        }
    }

    fn policy(&mut self, topology: &Topology, route: &str) -> Result<Policy> {
        let path = self.options.policy.clone().unwrap_or_else(|| PathBuf::from(&topology.policy));
        self.evidence.foreign = self.options.lab.is_some();
        // Where no target is named, the lab's entries are driven: gateways of the lab's policy belong there.
        let lab_s = self.options.policy.is_none() && !self.options.targets.is_empty();
        self.evidence.policy_of = if lab_s { PolicyOf::Lab } else { PolicyOf::Gateway };
        self.policy_name = match &self.options.policy {
            Some(path) if self.options.lab.is_none() => {
                format!("{}, with the addresses of this lab in it", path.display())
            }
            Some(path) => path.display().to_string(),
            None if lab_s => "the lab's (built in: policies/lab.yaml); the gateway's own was not given".into(),
            None => "built in: policies/lab.yaml, with the ports of this lab".into(),
        };
        let (loaded, policy) = before::read(&path)?;
        match (&self.options.policy, &self.options.lab) {
            (None, _) => Ok(policy),
            (Some(_), Some(_)) => dials::are_the_lab_s(&path, &policy, route, topology).map(|()| policy),
            (Some(_), None) => {
                let led = dials::led_to_the_lab(&path, &loaded, topology)?;
                self.led = Some(led.path);
                Ok(led.policy)
            }
        }
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
        let place = match stage.place.take() {
            Some(place) => place,
            None => {
                let client = Client::new(&ground.topology.toxiproxy)?;
                Place::take(&self.options.state, client, ground.plan.max_duration + EXPIRY_MARGIN).await?
            }
        };
        let ours = place.client().is_ours().await;
        let ours = match ours {
            Ok(ours) => ours,
            Err(e) => {
                place.leave().await;
                return Err(e.into());
            }
        };
        self.ours = ours;
        let mut proxies: Vec<String> =
            ground.plan.rounds.iter().flat_map(|r| &r.faults).map(|f| f.path.proxy.clone()).collect();
        proxies.sort();
        proxies.dedup();
        let mut paths: Vec<String> = proxies.clone();
        paths.extend(ground.topology.providers.iter().map(|p| p.proxy.clone()));
        paths.extend(ground.topology.dependencies.iter().map(|d| d.proxy.clone()));
        paths.extend(ground.topology.entries.iter().map(|e| e.proxy.clone()));
        let is = RunIs {
            drill: &ground.plan.drill,
            embedded: ground.topology.embedded,
            own_lab: self.options.lab.is_none(),
            lab_admin: ground.lab.url(),
            anchor: self.anchor,
            proxies: &proxies,
            around: &self.around,
            paths: &paths,
            longest: ground.plan.max_duration,
            restore_deadline: ground.plan.restore_deadline,
        };
        stage.safety = Some(Safety::begin(place, ours, &self.options.state, &is, &self.stops).await?);
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
            let own = ground.topology.entries.iter().find(|e| e.url == entry.url && stage.embedded.is_none());
            self.answers(entry, own.map(|e| e.listen.as_str())).await?;
        }
        for url in &self.options.targets {
            with_its_path(url).await?;
        }
        self.through_what_is_cut(ground)?;
        Ok(entries)
    }

    /// An entry that is cut must be one that customers use, or nothing of it is felt.
    fn through_what_is_cut(&self, ground: &Ground) -> Result<()> {
        if self.options.targets.is_empty() {
            return Ok(());
        }
        let same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
        for path in ground.plan.rounds.iter().flat_map(|r| &r.faults).map(|f| &f.path).filter(|p| p.role == "entry") {
            if self.options.targets.iter().any(|url| same(url, &path.url)) {
                continue;
            }
            let at = ground.topology.entries.iter().find(|e| e.proxy == path.proxy).map_or("", |e| e.listen.as_str());
            return Err(Expected::usage(
                format!("this drill cuts {}, and no --target is reached through it", path.proxy),
                format!(
                    "let your gateway of {} listen on {at}, and name the lab's entry: --target {}",
                    path.region, path.url
                ),
            ));
        }
        Ok(())
    }

    async fn answers(&self, entry: &Entry, listen: Option<&str>) -> Result<()> {
        let until = Instant::now() + ENTRY_READY;
        loop {
            let met = feel(&entry.url, "/models", LOOK).await;
            match met {
                Felt::Answered => return Ok(()),
                _ if self.stopped() => return Ok(()),
                met if Instant::now() > until => {
                    let what = format!("{} ({}) does not answer: {}", entry.name, entry.url, met.text());
                    // Without a target the lab's own entry was tried, behind which nobody has to listen yet.
                    let hint = listen.map_or_else(
                        || "is the gateway up, and does its URL end in /v1?".to_owned(),
                        |at| {
                            format!(
                                "start `llmfo serve --listen {at}` of that region, or name your gateway with --target"
                            )
                        },
                    );
                    return Err(Expected::could_not(what, hint));
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

    pub(super) async fn counters(
        &self,
        stage: &Stage,
    ) -> std::collections::BTreeMap<String, crate::fault::api::Counters> {
        match &stage.safety {
            Some(safety) if safety.ours() => safety.client().counters().await.unwrap_or_default(),
            _ => Default::default(),
        }
    }

    /// The steady state is met; otherwise nothing is broken.
    async fn well(&mut self, ground: &Ground, stage: &Stage, tell: &mut dyn Reporter) -> Result<bool> {
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

/// A base URL that lacks its `/v1`: every request of the load would get the same 404. A gateway that has no `/models` at either
/// place is believed.
async fn with_its_path(url: &str) -> Result<()> {
    if status(url, "/models", LOOK).await != Some(404) {
        return Ok(());
    }
    let longer = format!("{}/v1", url.trim_end_matches('/'));
    match status(&longer, "/models", LOOK).await {
        None | Some(404) => Ok(()),
        Some(_) => Err(Expected::usage(
            format!("--target {url}: it has no /models there, but below /v1 it has"),
            format!("--target {longer}"),
        )),
    }
}

/// The newest answers are not looked at yet when the path is judged: the providers' log may lack them.
const NOT_YET_MS: f64 = 300.0;

/// Turns that began after the one moment and were over before the other.
fn ended_turns(rows: &[RequestRow], from_ms: f64, until_ms: f64) -> usize {
    let over = rows.iter().filter(|r| r.last_of_turn && r.started_ms >= from_ms && r.ended_ms < until_ms);
    over.map(|r| (r.conversation.as_str(), r.turn)).collect::<BTreeSet<_>>().len()
}
