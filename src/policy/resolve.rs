//! From the file to the policy that is run. Everything that can be wrong has been reported before; what is missing here
//! gives no policy and no second finding.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::spec::named::Named;
use crate::spec::policy as file;
use crate::spec::text::{Name, Names};

use super::model::{
    Adapter, Basis, Breaker, Capabilities, Capacity, Channel, CommitAt, Connection, Context, DataClass, Dependency,
    Group, Health, JsonSchema, Objectives, OnCapacityExhausted, Otherwise, Peak, Pii, Policy, Price, ProbeKind, Queue,
    Ramp, Route, RouteId, Select, SideEffects, Target, TargetId, Tier, Tool, Without,
};
use super::{not_enforced, values};

/// Quality class of a target that names none.
pub const DEFAULT_TIER: &str = "standard";
/// Dials per request where the route sets no limit (which is a finding).
pub const DEFAULT_MAX_ATTEMPTS: u32 = 3;
/// Time kept for delivery where the route says nothing.
pub const DEFAULT_RESERVE: Duration = Duration::from_millis(500);
/// Time to connect where the route says nothing.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Silence allowed inside a stream where the route says nothing.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Share of a group's answers that are judged where it says nothing.
pub const DEFAULT_SAMPLING: f64 = 0.05;
/// Error rate at which a ramp steps back where it says nothing.
const DEFAULT_STEP_BACK: f64 = 0.1;

/// The policy of a file without errors.
pub fn policy(raw: &file::PolicyFile, bytes: &[u8]) -> Option<Policy> {
    let mut targets = Vec::new();
    for (n, (name, t)) in raw.targets.as_ref()?.iter().enumerate() {
        targets.push(Arc::new(target(raw, TargetId(u16::try_from(n).ok()?), name, t)?));
    }
    let ids: BTreeMap<&str, TargetId> = targets.iter().map(|t| (t.name.as_str(), t.id)).collect();
    let mut routes = Vec::new();
    for (n, r) in raw.routes.as_ref()?.iter().enumerate() {
        routes.push(Arc::new(route(raw, &ids, RouteId(u16::try_from(n).ok()?), r)?));
    }
    let mut groups = BTreeMap::new();
    for (name, g) in each(&raw.compatibility_groups) {
        groups.insert(name.to_owned(), group(&ids, g)?);
    }
    let mut tools = BTreeMap::new();
    for (name, t) in each(&raw.tools) {
        tools.insert(name.to_owned(), tool(t)?);
    }
    let mut dependencies = BTreeMap::new();
    for (name, d) in each(&raw.dependencies) {
        dependencies.insert(name.to_owned(), dependency(d)?);
    }
    Some(Policy {
        version: raw.version.clone()?,
        serial: raw.serial,
        prompt_version: raw.prompt_version.as_ref().map(|p| p.0.clone()),
        expires_unix_s: raw.expires.as_deref().and_then(values::expiry),
        on_expired_intents: raw
            .on_expired
            .as_ref()
            .and_then(|o| o.intents.as_ref())
            .map(|i| i.iter().map(str::to_owned).collect()),
        blocks_on_ledger_loss: raw.on_ledger_loss != Some(file::OnLedgerLoss::Allow),
        targets,
        routes,
        groups,
        tools,
        dependencies,
        breaker: breaker(raw.breaker.as_ref()),
        health: health(raw.health.as_ref()),
        sha256: sha256_hex(bytes),
        not_enforced: not_enforced::list(raw),
        retired: super::succeed::Retired::default(),
    })
}

/// SHA-256 in lower-case hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    crate::units::hex(&Sha256::digest(bytes))
}

fn each<T>(map: &Option<Named<T>>) -> impl Iterator<Item = (&str, &T)> {
    map.iter().flat_map(|m| m.iter())
}

fn texts(names: &Option<Names>) -> Vec<String> {
    names.as_ref().map(Names::to_vec).unwrap_or_default()
}

fn domains(map: &Option<Named<Name>>) -> BTreeMap<String, String> {
    each(map).map(|(k, v)| (k.to_owned(), v.0.clone())).collect()
}

fn target(raw: &file::PolicyFile, id: TargetId, name: &str, t: &file::Target) -> Option<Target> {
    let adapter = match &t.adapter {
        None => None,
        Some(name) => {
            let a = raw.adapters.as_ref()?.get(&name.0)?;
            Some(Adapter {
                name: name.0.clone(),
                version: a.version?,
                replaces: texts(&a.replaces),
                system_suffix: a.system_suffix.clone(),
            })
        }
    };
    let credentials = match &t.credentials {
        None => None,
        Some(text) => Some(values::secret_ref(text)?),
    };
    Some(Target {
        id,
        name: name.to_owned(),
        base_url: t.base_url.as_ref()?.trim_end_matches('/').to_owned(),
        connect_to: t.connect_to.clone(),
        connection: connection(t.connection.as_ref()),
        model: t.model.clone()?,
        credentials,
        tier: t.tier.as_ref().map_or_else(|| DEFAULT_TIER.to_owned(), |t| t.0.clone()),
        domains: domains(&t.domains),
        capabilities: capabilities(t.capabilities.as_ref()),
        capacity: capacity(t.capacity.as_ref()),
        price: t.price.as_ref().and_then(|p| {
            Some(Price { input_per_mtok_usd: p.input_per_mtok_usd?, output_per_mtok_usd: p.output_per_mtok_usd? })
        }),
        residency: texts(&t.residency),
        adapter,
    })
}

fn connection(c: Option<&file::Connection>) -> Connection {
    let d = Connection::default();
    let Some(c) = c else { return d };
    Connection {
        ca_file: c.ca_file.as_deref().and_then(|f| f.strip_prefix("file:")).map(str::to_owned),
        http2: c.http2.unwrap_or(d.http2),
        ready: c.ready.unwrap_or(d.ready),
        idle: c.idle_s.map_or(d.idle, |s| s.duration()),
    }
}

/// What is not declared is not there: a request that needs it goes elsewhere (never a weaker filter).
fn capabilities(c: Option<&file::Capabilities>) -> Capabilities {
    let Some(c) = c else {
        return Capabilities { tools: false, json_schema: JsonSchema::None, vision: false, context_tokens: None };
    };
    Capabilities {
        tools: c.tools.unwrap_or(false),
        json_schema: match c.json_schema {
            Some(file::JsonSchemaSupport::Strict) => JsonSchema::Strict,
            Some(file::JsonSchemaSupport::PromptOnly) => JsonSchema::PromptOnly,
            Some(file::JsonSchemaSupport::None) | None => JsonSchema::None,
        },
        vision: c.vision.unwrap_or(false),
        context_tokens: c.context_tokens,
    }
}

fn capacity(c: Option<&file::Capacity>) -> Capacity {
    let none = file::Capacity::default();
    let c = c.unwrap_or(&none);
    Capacity {
        slots: c.slots.map(|n| n.0),
        failure_unit_slots: c.failure_unit_slots.map(|n| n.0),
        reserve_slots: c.reserve_slots,
        requests_per_minute: c.requests_per_minute,
        tokens_per_minute: c.tokens_per_minute,
        mean_service_ms: c.mean_service_ms.map(|m| m.0),
        p95_service_ms: c.p95_service_ms.map(|m| m.0),
        basis: c.basis.map(|b| match b {
            file::Basis::Contract => Basis::Contract,
            file::Basis::Verified => Basis::Verified,
            file::Basis::Assumed => Basis::Assumed,
        }),
        verified_on: c.verified_on.clone(),
        cold_start_s: c.cold_start_s.map(|s| s.0),
    }
}

fn group(ids: &BTreeMap<&str, TargetId>, g: &file::Group) -> Option<Group> {
    let of = |name: &str| ids.get(name).copied();
    Some(Group {
        golden_set: g.golden_set.clone(),
        members: g.members.as_ref()?.iter().map(of).collect::<Option<_>>()?,
        candidates: g.candidates.iter().flat_map(|c| c.iter()).map(of).collect::<Option<_>>()?,
        evidence_max_age: g.evidence_max_age_s.map(|s| s.duration()),
        min_guaranteed_slots: g.min_guaranteed_slots.map(|n| n.0),
        sampling: g.sampling.map_or(DEFAULT_SAMPLING, |s| s.0),
    })
}

fn tool(t: &file::Tool) -> Option<Tool> {
    Some(Tool {
        side_effects: match t.side_effects? {
            file::SideEffects::None => SideEffects::None,
            file::SideEffects::Idempotent => SideEffects::Idempotent,
            file::SideEffects::Keyed => SideEffects::Keyed,
            file::SideEffects::Unkeyed => SideEffects::Unkeyed,
        },
        key_argument: t.key_argument.as_ref().map(|n| n.0.clone()),
        handoff: t.handoff.unwrap_or(false),
    })
}

fn dependency(d: &file::Dependency) -> Option<Dependency> {
    Some(Dependency {
        domains: domains(&d.domains),
        without: match d.without? {
            file::Without::Cached => Without::Cached,
            file::Without::LocalCopy => Without::LocalCopy,
            file::Without::Snapshot => Without::Snapshot,
            file::Without::Handoff => Without::Handoff,
            file::Without::Continue => Without::Continue,
        },
    })
}

fn route(raw: &file::PolicyFile, ids: &BTreeMap<&str, TargetId>, id: RouteId, r: &file::Route) -> Option<Route> {
    let deadline = r.deadline_ms?.duration();
    // A reserve that eats the deadline is a finding (LF205); half of the deadline is left so that requests are still tried.
    let reserve = r.reserve_ms.map_or(DEFAULT_RESERVE, |m| m.duration()).min(deadline / 2);
    let tiers = r.attempts.as_ref()?.iter().map(|a| tier(raw, ids, a)).collect::<Option<Vec<Tier>>>()?;
    if tiers.is_empty() {
        return None;
    }
    Some(Route {
        id,
        name: r.route.as_ref()?.0.clone(),
        channel: r.channel.map(|c| match c {
            file::Channel::Voice => Channel::Voice,
            file::Channel::Chat => Channel::Chat,
            file::Channel::Email => Channel::Email,
        }),
        objectives: objectives(r.objectives.as_ref()),
        peak: r.peak.as_ref().and_then(|p| {
            Some(Peak {
                requests_per_s: p.requests_per_s?,
                tokens_in_p95: p.tokens_in_p95,
                tokens_out_p95: p.tokens_out_p95,
            })
        }),
        data: match r.data {
            Some(file::DataClass::None) => DataClass::None,
            Some(file::DataClass::Personal) | None => DataClass::Personal,
        },
        residency_required: r.residency_required.as_ref().map(Names::to_vec),
        tools: texts(&r.tools),
        context: r.context.as_ref().map_or_else(Context::default, |c| Context {
            verbatim: texts(&c.verbatim),
            never_shorten: texts(&c.never_shorten),
            handoff_above_tokens: c.handoff_above_tokens,
        }),
        deadline,
        reserve,
        max_attempts: r.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
        connect_timeout: r.connect_timeout_ms.map_or(DEFAULT_CONNECT_TIMEOUT, |m| m.duration()),
        idle_timeout: r.idle_timeout_ms.map_or(DEFAULT_IDLE_TIMEOUT, |m| m.duration()),
        same_target_retries: r.same_target_retries.unwrap_or(0),
        commit_at: match r.commit_at {
            Some(file::CommitAt::FirstSentence) => CommitAt::FirstSentence,
            Some(file::CommitAt::Complete) => CommitAt::Complete,
            Some(file::CommitAt::FirstToken) | None => CommitAt::FirstToken,
        },
        tiers,
        no_failover: match r.failover {
            Some(file::Failover::None) => Some(r.failover_reason.clone()?),
            None => None,
        },
        degrade: r.degrade.is_some(),
        collect: texts(&r.collect),
        on_capacity_exhausted: r.on_capacity_exhausted.as_ref().map(|c| OnCapacityExhausted {
            disable_tasks: texts(&c.disable_tasks),
            preserve_tasks: texts(&c.preserve_tasks),
            max_output_tokens: c.max_output_tokens,
        }),
        queue: match &r.queue {
            None => None,
            Some(q) => Some(Queue {
                max_depth: q.max_depth?.0,
                max_wait: q.max_wait_ms?.duration(),
                reserved_for_open_conversations: q.reserved_for_open_conversations.map_or(0.0, |s| s.0),
            }),
        },
        ramp: match &r.ramp {
            None => None,
            Some(ramp) => Some(Ramp {
                steps: growing(ramp.steps.as_ref()?.iter().map(|s| s.0)),
                hold: ramp.hold_s?.duration(),
                step_back_error_rate: ramp.step_back_error_rate.map_or(DEFAULT_STEP_BACK, |s| s.0),
            }),
        },
        hedge_after: match &r.hedge {
            None => None,
            Some(h) => Some(h.after_ms?.duration()),
        },
        keep_alive: r.keep_alive_ms.map(|m| m.duration()),
    })
}

/// Shares in growing order, each once, the last one 1; what is not so is a finding (LF301).
fn growing(steps: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = steps.filter(|s| *s > 0.0 && *s < 1.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all.push(1.0);
    all
}

fn tier(raw: &file::PolicyFile, ids: &BTreeMap<&str, TargetId>, a: &file::Attempt) -> Option<Tier> {
    let name = a.pool.as_ref()?;
    let pool = raw.pools.as_ref()?.get(&name.0)?;
    Some(Tier {
        pool: name.0.clone(),
        targets: pool.targets.as_ref()?.iter().map(|t| ids.get(t).copied()).collect::<Option<_>>()?,
        select: match pool.select {
            Some(file::Select::Health) => Select::Health,
            Some(file::Select::Latency) => Select::Latency,
            Some(file::Select::Cost) => Select::Cost,
            Some(file::Select::Priority) | None => Select::Priority,
        },
        first_token_timeout: a.first_token_timeout_ms?.duration(),
        answer_timeout: a.answer_timeout_ms.map(|m| m.duration()),
        group: a.compatibility_group.as_ref().map(|g| g.0.clone()),
        pii: a.pii.map(|p| match p {
            file::Pii::Allowed => Pii::Allowed,
            file::Pii::Masked => Pii::Masked,
            file::Pii::Forbidden => Pii::Forbidden,
        }),
        intents: a.intents.as_ref().map(Names::to_vec),
        otherwise: match a.otherwise {
            Some(file::Otherwise::CollectAndHandoff) => Otherwise::CollectAndHandoff,
            Some(file::Otherwise::Skip) | None => Otherwise::Skip,
        },
    })
}

fn objectives(o: Option<&file::Objectives>) -> Objectives {
    o.map_or_else(Objectives::default, |o| Objectives {
        recovery_ms: o.recovery_ms.map(|m| m.0),
        useful_text_p95_ms: o.useful_text_p95_ms.map(|m| m.0),
        transport_failure_rate: o.transport_failure_rate.map(|s| s.0),
        deadline_miss_rate: o.deadline_miss_rate.map(|s| s.0),
        invariant_violation_rate: o.invariant_violation_rate.map(|s| s.0),
        capacity_handoff_rate: o.capacity_handoff_rate.map(|s| s.0),
        context_loss_turns: o.context_loss_turns,
    })
}

fn breaker(b: Option<&file::Breaker>) -> Breaker {
    let d = Breaker::default();
    let Some(b) = b else { return d };
    let base_cooldown = b.base_cooldown_s.map_or(d.base_cooldown, |s| s.duration());
    Breaker {
        consecutive_failures: b.consecutive_failures.unwrap_or(d.consecutive_failures),
        failures_in_window: b.failures_in_window.unwrap_or(d.failures_in_window),
        failure_ratio: b.failure_ratio.unwrap_or(d.failure_ratio),
        window: b.window_s.map_or(d.window, |s| s.duration()),
        base_cooldown,
        max_cooldown: b.max_cooldown_s.map_or(d.max_cooldown, |s| s.duration()).max(base_cooldown),
        half_open_successes: b.half_open_successes.unwrap_or(d.half_open_successes),
        probe: match b.probe {
            Some(file::Probe::Live) => ProbeKind::Live,
            Some(file::Probe::Golden) | None => ProbeKind::Golden,
        },
    }
}

fn health(h: Option<&file::Health>) -> Health {
    let d = Health::default();
    let Some(h) = h else { return d };
    let weight = |of: fn(&file::Weights) -> Option<f64>, or| h.weights.as_ref().and_then(of).unwrap_or(or);
    Health {
        window: h.window_s.map_or(d.window, |s| s.duration()),
        fast_window: h.fast_window_s.map_or(d.fast_window, |s| s.duration()),
        weight_errors: weight(|w| w.errors.map(|s| s.0), d.weight_errors),
        weight_latency: weight(|w| w.latency.map(|s| s.0), d.weight_latency),
        deweight_below: h.deweight_below.unwrap_or(d.deweight_below),
        eject_below: h.eject_below.unwrap_or(d.eject_below),
        eject_after: h.eject_after_s.map_or(d.eject_after, |s| s.duration()),
        probe_every: h.probe_every_s.map_or(d.probe_every, |s| s.duration()),
    }
}
