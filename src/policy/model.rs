//! The types of a resolved policy. Built only by `super::resolve`; read by everything else.

mod route;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::route::*;
pub use self::target::*;
use super::succeed::Retired;

/// Place of a target in [`Policy::targets`] (order of the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub u16);

/// Place of a route in [`Policy::routes`] (order of the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RouteId(pub u16);

/// A whole policy, ready to be run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Free text that says which release this is; sent as `x-llmfo-policy`.
    pub version: String,
    /// Grows with every release. Absent is a finding.
    pub serial: Option<u64>,
    /// The prompt version that evidence must speak about.
    pub prompt_version: Option<String>,
    /// Unix seconds at which the policy expires. Absent is a finding.
    pub expires_unix_s: Option<i64>,
    /// Intents still answered after expiry, tools withheld. `None`: nothing is answered after expiry.
    pub on_expired_intents: Option<Vec<String>>,
    /// Tools for which twice is twice are withheld when the ledger does not know what was done before (`on_ledger_loss: block`).
    pub blocks_on_ledger_loss: bool,
    /// Every target, in the order of the file.
    pub targets: Vec<Arc<Target>>,
    /// Every route, in the order of the file.
    pub routes: Vec<Arc<Route>>,
    /// Compatibility groups by name.
    pub groups: BTreeMap<String, Group>,
    /// Declared tools by name. One that is not here counts as unkeyed.
    pub tools: BTreeMap<String, Tool>,
    /// What the service depends on, by name.
    pub dependencies: BTreeMap<String, Dependency>,
    /// How a failing target is taken out and let back in.
    pub breaker: Breaker,
    /// How a slow or erring target loses its share.
    pub health: Health,
    /// SHA-256 of the file's bytes, in hex.
    pub sha256: String,
    /// Keys that were read but whose behaviour is not built yet: `path: what it will do`. Announced at start.
    pub not_enforced: Vec<String>,
    /// What is only kept for requests that began under an older policy (see [`super::succeed`]).
    pub retired: Retired,
}

impl Policy {
    /// The target with this id. Ids come from this policy only.
    #[must_use]
    pub fn target(&self, id: TargetId) -> &Arc<Target> {
        &self.targets[usize::from(id.0)]
    }

    /// The route with this id. Ids come from this policy only.
    #[must_use]
    pub fn route(&self, id: RouteId) -> &Arc<Route> {
        &self.routes[usize::from(id.0)]
    }

    /// The route with this name.
    #[must_use]
    pub fn route_named(&self, name: &str) -> Option<&Arc<Route>> {
        self.live_routes().find(|r| r.name == name)
    }

    /// The target with this name.
    #[must_use]
    pub fn target_named(&self, name: &str) -> Option<&Arc<Target>> {
        self.live_targets().find(|t| t.name == name)
    }

    /// The targets that new requests may go to.
    pub fn live_targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.targets.iter().filter(|t| !self.retired.targets.contains(&t.id))
    }

    /// The routes by which new requests may come in.
    pub fn live_routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().filter(|r| !self.retired.routes.contains(&r.id))
    }

    /// What this tool may do to the world. Unlisted is unkeyed (rule R9).
    #[must_use]
    pub fn side_effects(&self, tool: &str) -> SideEffects {
        self.tools.get(tool).map_or(SideEffects::Unkeyed, |t| t.side_effects)
    }
}

/// Where a secret is. The value is read at the edge, never here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretRef {
    /// `env:NAME`
    Env(String),
    /// `file:PATH`
    File(String),
}

/// A compatibility group: who may stand in for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path of its golden set.
    pub golden_set: Option<String>,
    /// Trusted members.
    pub members: Vec<TargetId>,
    /// Evaluated, not yet trusted.
    pub candidates: Vec<TargetId>,
    /// Evidence older than this is stale.
    pub evidence_max_age: Option<Duration>,
    /// Slots a stand-in takes at once after a failure.
    pub min_guaranteed_slots: Option<u32>,
    /// Share of the answers of its members that are judged by the checks of the group.
    pub sampling: f64,
}

/// What a tool may do to the world (rule R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideEffects {
    /// Reads only.
    None,
    /// Twice is as once.
    Idempotent,
    /// A key argument makes twice as once.
    Keyed,
    /// Twice is twice. Also every tool that is not listed.
    Unkeyed,
}

impl SideEffects {
    /// True if running it twice could harm (keyed or unkeyed): never hedged.
    #[must_use]
    pub fn risky(self) -> bool {
        matches!(self, SideEffects::Keyed | SideEffects::Unkeyed)
    }
}

/// A declared tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What it may do.
    pub side_effects: SideEffects,
    /// The argument the gateway fills with the operation's key.
    pub key_argument: Option<String>,
    /// Calling it hands the customer to a human.
    pub handoff: bool,
}

/// What happens without a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Last answer is used.
    Cached,
    /// A copy on disk is used.
    LocalCopy,
    /// The last snapshot is used.
    Snapshot,
    /// The customer is handed to a human.
    Handoff,
    /// Nothing is lost by going on.
    Continue,
}

/// Something the service needs besides models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// What it fails together with.
    pub domains: BTreeMap<String, String>,
    /// What happens without it.
    pub without: Without,
}

/// Breaker settings. Seconds may be fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Breaker {
    /// Counted failures in a row that trip it.
    pub consecutive_failures: u32,
    /// Counted failures in the window that may trip it.
    pub failures_in_window: u32,
    /// Share of attempts in the window that must have failed as well.
    pub failure_ratio: f64,
    /// The window.
    pub window: Duration,
    /// First cooldown.
    pub base_cooldown: Duration,
    /// Longest cooldown.
    pub max_cooldown: Duration,
    /// Completed probes that close it.
    pub half_open_successes: u32,
    /// `golden` probes in the background, `live` spends one request.
    pub probe: ProbeKind,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            consecutive_failures: 3,
            failures_in_window: 5,
            failure_ratio: 0.2,
            window: Duration::from_secs(60),
            base_cooldown: Duration::from_secs(5),
            max_cooldown: Duration::from_secs(120),
            half_open_successes: 2,
            probe: ProbeKind::Golden,
        }
    }
}

/// How recovery is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// In the background; no customer pays.
    Golden,
    /// One customer request.
    Live,
}

/// Health score settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Health {
    /// Window of the score.
    pub window: Duration,
    /// Window of the fast signal.
    pub fast_window: Duration,
    /// Weight of errors, 0..1.
    pub weight_errors: f64,
    /// Weight of latency, 0..1.
    pub weight_latency: f64,
    /// Below this the share shrinks.
    pub deweight_below: f64,
    /// Below this it is ejected.
    pub eject_below: f64,
    /// ... when it lasts so long.
    pub eject_after: Duration,
    /// Background probes.
    pub probe_every: Duration,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            window: Duration::from_secs(300),
            fast_window: Duration::from_secs(30),
            weight_errors: 0.7,
            weight_latency: 0.3,
            deweight_below: 50.0,
            eject_below: 30.0,
            eject_after: Duration::from_secs(180),
            probe_every: Duration::from_secs(60),
        }
    }
}
