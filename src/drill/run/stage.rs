//! A drill on its stage: phases in their fixed order, with everything that must be undone held in one place, so that it is
//! undone however the drill ends.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::before;
use super::customers::Customers;
use super::dials;
use super::embedded::{Embedded, Settings as EmbeddedSettings};
use super::gather::Records;
use super::journal::{Anchor, Journal};
use super::lab::Lab;
use super::leftovers;
use super::place::Place;
use super::safety::{EXPIRY_MARGIN, RunIs, Safety};
use super::signals::Stops;
use super::watch::{LabWatch, Own, Surroundings};
use super::{Options, Reporter};
use crate::drill::evidence::{Evidence, PolicyOf};
use crate::drill::library::Found;
use crate::drill::plan::{Plan, compile};
use crate::error::{Expected, Result};
use crate::fault::client::Client;
use crate::lab::topology::Topology;
use crate::policy::Policy;
use crate::spec::drill::DrillFile;

/// Between two looks at how it goes.
pub(super) const TICK: Duration = Duration::from_millis(200);
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

    pub(super) fn embedded_settings<'b>(&'b self, logs: &'b std::path::Path) -> EmbeddedSettings<'b> {
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

    pub(super) async fn counters(
        &self,
        stage: &Stage,
    ) -> std::collections::BTreeMap<String, crate::fault::api::Counters> {
        match &stage.safety {
            Some(safety) if safety.ours() => safety.client().counters().await.unwrap_or_default(),
            _ => Default::default(),
        }
    }
}
