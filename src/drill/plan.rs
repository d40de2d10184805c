//! `[P]` From a drill file to a plan: every name is looked up before anything is broken, objectives are inherited from the
//! route and may only get stricter.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Duration;

use super::evidence::{Declared, Needs};
use crate::error::{Expected, Result};
use crate::lab::topology::Topology;
use crate::policy::{Pii, Policy, Route, Target};
use crate::spec::drill::{self as file, CutHow, DrillFile, Existing, See};
use crate::units::human;

/// A path that can be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its fault proxy.
    pub proxy: String,
    /// Region.
    pub region: String,
    /// `provider`, `entry`, or the role of a dependency.
    pub role: String,
    /// Provider by name, if it is one.
    pub provider: Option<String>,
    /// Base URL through the proxy.
    pub url: String,
    /// What the drill's own call asks for below it.
    pub below: &'static str,
}

/// Where an answer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// At a point that is found from what was measured in steady state.
    At(file::CutAt),
    /// After so many events.
    Events(u32),
    /// After so many bytes.
    Bytes(u32),
    /// After so many milliseconds.
    Ms(u64),
}

/// One fault on one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// Path.
    pub path: Path,
    /// What the application sees.
    pub see: See,
    /// What open connections see.
    pub existing: Existing,
    /// Where an answer is cut, and how.
    pub cut: Option<(Cut, CutHow)>,
}

impl PlannedFault {
    /// What the application sees, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let open = match self.existing {
            Existing::Silence => "open connections silent",
            Existing::Closed => "open connections closed",
        };
        match (self.see, self.cut) {
            (See::Refused, _) => "refused, open connections closed".into(),
            (See::Reset, _) => "reset".into(),
            (See::Silence, _) => "silence".into(),
            (See::ConnectTimeout, _) => format!("connect_timeout, {open}"),
            (See::CutAfter, cut) => {
                let how = match cut.map_or(CutHow::Rst, |c| c.1) {
                    CutHow::Rst => "reset",
                    CutHow::Fin => "closed",
                    CutHow::Silence => "silent",
                };
                let at = match cut.map(|c| c.0) {
                    Some(Cut::At(file::CutAt::BeforeContent)) => "before content".into(),
                    Some(Cut::At(file::CutAt::AfterContent)) => "after content".into(),
                    Some(Cut::At(file::CutAt::InsideCall)) => "inside a tool call".into(),
                    Some(Cut::At(file::CutAt::AfterCall)) => "after a call's arguments".into(),
                    Some(Cut::Events(n)) => format!("after {n} events"),
                    Some(Cut::Bytes(n)) => format!("after {n} bytes"),
                    Some(Cut::Ms(n)) => format!("after {n} ms"),
                    None => "inside".into(),
                };
                format!("cut_after: answers {how} {at}")
            }
        }
    }
}

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRound {
    /// Name.
    pub name: String,
    /// Faults, all at once.
    pub faults: Vec<PlannedFault>,
    /// Outage.
    pub outage: Duration,
    /// The outage ends early once so many streams were cut.
    pub until_cut: Option<u32>,
    /// Customers pause until nothing is under way before the faults are set.
    pub quiet_first: bool,
    /// Limit of the recovery.
    pub recovery: Duration,
    /// Least time of it.
    pub recovery_min: Duration,
}

/// A drill, ready to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name.
    pub drill: String,
    /// Description.
    pub description: String,
    /// Objectives and limits.
    pub declared: Declared,
    /// How much must be seen.
    pub needs: Needs,
    /// Providers that are broken.
    pub broken: Vec<String>,
    /// Providers that are not.
    pub stand_ins: Vec<String>,
    /// The customers.
    pub load: file::Load,
    /// Watch before anything is broken.
    pub steady: Duration,
    /// Rounds.
    pub rounds: Vec<PlannedRound>,
    /// Rounds in all, repetitions included.
    pub max_rounds: usize,
    /// The drill stops after this.
    pub max_duration: Duration,
    /// A restore that takes longer is late.
    pub restore_deadline: Duration,
}

impl Plan {
    /// True if a provider is cut off whole in some round: then the drill is about recovery.
    #[must_use]
    pub fn cuts_off(&self) -> bool {
        self.rounds.iter().flat_map(|r| &r.faults).any(|f| f.path.provider.is_some() && f.see != See::CutAfter)
    }
}

fn paths(topology: &Topology) -> Vec<Path> {
    let mut out = Vec::new();
    for p in &topology.providers {
        out.push(Path {
            proxy: p.proxy.clone(),
            region: p.region.clone(),
            role: "provider".into(),
            provider: Some(p.name.clone()),
            url: p.proxied_url.clone(),
            below: "/models",
        });
    }
    for d in &topology.dependencies {
        out.push(Path {
            proxy: d.proxy.clone(),
            region: d.region.clone(),
            role: d.role.clone(),
            provider: None,
            url: d.proxied_url.clone(),
            below: "/v1/state",
        });
    }
    for e in &topology.entries {
        out.push(Path {
            proxy: e.proxy.clone(),
            region: e.region.clone(),
            role: "entry".into(),
            provider: None,
            url: e.url.clone(),
            below: "/models",
        });
    }
    out
}

fn selected(path: &Path, select: &file::Select) -> bool {
    let role = |r: &String| {
        let dependency = r == "dependency" && path.provider.is_none() && path.role != "entry";
        *r == path.role || dependency
    };
    path.region == select.region && select.roles.iter().any(role)
}

fn planned(fault: &file::Fault, path: Path, see: Option<See>) -> PlannedFault {
    let is_provider = path.provider.is_some();
    let see = see.filter(|_| is_provider && fault.see != See::CutAfter).unwrap_or(fault.see);
    let natural = match see {
        See::ConnectTimeout | See::Silence => Existing::Silence,
        See::Refused | See::Reset | See::CutAfter => Existing::Closed,
    };
    let existing = fault.existing.filter(|_| see == fault.see).unwrap_or(natural);
    let at = fault.at.map(Cut::At);
    let cut = at
        .or(fault.events.map(|n| Cut::Events(n.0)))
        .or(fault.bytes.map(|n| Cut::Bytes(n.0)))
        .or(fault.ms.map(|n| Cut::Ms(n.0)))
        .map(|c| (c, fault.how.unwrap_or(CutHow::Rst)));
    PlannedFault { path, see, existing, cut }
}

/// Compiles a drill file against what is there. `see` overrides what applications see of broken providers.
///
/// # Errors
/// A contradiction in the file or an objective weaker than the route's (exit 2); a name that is not there (exit 4).
pub fn compile(drill: &DrillFile, topology: &Topology, policy: &Policy, see: Option<See>) -> Result<Plan> {
    if let Some((pointer, text)) = file::contradictions(drill).into_iter().next() {
        return Err(Expected::usage(
            format!("drill {}: {pointer}: {text}", drill.name),
            "llmfo validate shows the line",
        ));
    }
    let nothing = |what: String, known: Vec<String>| {
        Expected::nothing(format!("drill {}: {what}", drill.name), format!("there are: {}", known.join(", ")))
    };
    let Some(route) = policy.route_named(&drill.route) else {
        let known: Vec<&str> = policy.routes.iter().map(|r| r.name.as_str()).collect();
        let built_in = super::library::built_in().any(|a| a.name() == drill.name);
        let copy = match built_in {
            true => format!(
                "take a copy of the drill (`llmfo drill show {} > my-drill.yaml`), change its `route:`, and run ./my-drill.yaml",
                drill.name
            ),
            false => "change `route:` in the drill file".into(),
        };
        return Err(Expected::nothing(
            format!("drill {}: the policy has no route {}", drill.name, drill.route),
            format!("there are: {}; {copy}", known.join(", ")),
        ));
    };
    let all = paths(topology);
    let mut rounds = Vec::new();
    for round in &drill.rounds {
        let mut faults: Vec<PlannedFault> = Vec::new();
        for fault in &round.faults {
            for role in &fault.select.roles {
                let one = file::Select { region: fault.select.region.clone(), roles: vec![role.clone()] };
                if !all.iter().any(|p| selected(p, &one)) {
                    let known = all.iter().map(|p| format!("{} {}", p.region, p.role)).collect();
                    let what = format!("round {}: nothing is a {role} of {}", round.name, fault.select.region);
                    return Err(nothing(what, known));
                }
            }
            for path in all.iter().filter(|p| selected(p, &fault.select)) {
                if faults.iter().any(|f| f.path.proxy == path.proxy) {
                    return Err(Expected::usage(
                        format!("drill {}: round {}: {} is selected by two faults", drill.name, round.name, path.proxy),
                        "let each path be broken in one way per round",
                    ));
                }
                faults.push(planned(fault, path.clone(), see));
            }
        }
        rounds.push(PlannedRound {
            name: round.name.clone(),
            faults,
            outage: round.outage_ms.duration(),
            until_cut: round.until_cut.map(|n| n.0),
            quiet_first: round.quiet_first,
            recovery: round.recovery_ms.duration(),
            recovery_min: round.recovery_min_ms.duration(),
        });
    }
    let mut broken: Vec<String> =
        rounds.iter().flat_map(|r| &r.faults).filter_map(|f| f.path.provider.clone()).collect();
    broken.sort();
    broken.dedup();
    if broken.is_empty() {
        let known: Vec<String> = topology.providers.iter().map(|p| format!("{} of {}", p.name, p.region)).collect();
        return Err(Expected::nothing(
            format!("drill {}: no provider is broken, so nothing can fail over", drill.name),
            format!("let a fault select `roles: [provider]` of its region; providers of the lab: {}", known.join(", ")),
        ));
    }
    let stand_ins: Vec<String> =
        topology.providers.iter().map(|p| p.name.clone()).filter(|n| !broken.contains(n)).collect();
    if stand_ins.is_empty() {
        return Err(Expected::nothing(
            format!("drill {}: every provider is broken, so nobody can stand in", drill.name),
            format!("leave one of them out: {}", broken.join(", ")),
        ));
    }
    let needs = Needs {
        steady_turns: drill.steady_state.min_turns.0 as usize,
        outage_turns: drill.needs.outage_turns.0 as usize,
        cut_before_content: drill.needs.cut_before_content as usize,
        cut_after_content: drill.needs.cut_after_content as usize,
        cut_inside_call: drill.needs.cut_inside_call as usize,
    };
    Ok(Plan {
        drill: drill.name.clone(),
        description: drill.description.clone(),
        declared: declared(drill, policy, route, &broken, &stand_ins)?,
        needs,
        broken,
        stand_ins,
        load: drill.load.clone(),
        steady: drill.steady_state.for_ms.duration(),
        max_rounds: (drill.repeat.max_rounds.0 as usize).max(rounds.len()),
        rounds,
        max_duration: drill.limits.max_duration_s.duration(),
        restore_deadline: drill.limits.restore_deadline_s.duration(),
    })
}

/// The stricter of the route's objective and the drill's; a weaker one is an error, because a drill that asks for less than
/// the route promises would be a silent green.
fn stricter(drill: &str, key: &str, route: Option<f64>, own: Option<f64>) -> Result<Option<f64>> {
    match (route, own) {
        (Some(route), Some(own)) if own > route => Err(Expected::usage(
            format!("drill {drill}: declare.{key} {own} is weaker than the route's {route}"),
            "a drill may only be stricter than its route; change the route if it promises too much",
        )),
        (route, own) => Ok(own.or(route)),
    }
}

fn ms(d: Duration) -> f64 {
    crate::units::ms(d)
}

fn declared(
    drill: &DrillFile,
    policy: &Policy,
    route: &Route,
    broken: &[String],
    stand_ins: &[String],
) -> Result<Declared> {
    let name = drill.name.as_str();
    let o = &route.objectives;
    let own = &drill.declare;
    let of = |v: Option<u64>| v.map(|v| v as f64);
    let in_tier = |names: &[String], tier: &&crate::policy::Tier| {
        tier.targets.iter().any(|t| names.contains(&policy.target(*t).name))
    };
    let Some(tier) = route.tiers.iter().find(|t| in_tier(broken, t)) else {
        let known: Vec<String> = policy.targets.iter().map(|t| t.name.clone()).collect();
        return Err(Expected::nothing(
            format!("drill {name}: route {} never uses {}", route.name, broken.join(", ")),
            format!(
                "name the target that dials the lab's provider {} so (or add it to the route); targets of the policy now: {}. docs/drill.md, \"A policy that works\", has one that does",
                broken.join(", "),
                known.join(", ")
            ),
        ));
    };
    let slots = stand_ins.iter().filter_map(|n| policy.target_named(n)).filter_map(|t| t.capacity.slots);
    let queue = stricter(name, "queue_max", route.queue.map(|q| f64::from(q.max_depth)), own.queue_max.map(f64::from))?;
    let mut key_arguments: Vec<String> = policy.tools.values().filter_map(|t| t.key_argument.clone()).collect();
    key_arguments.dedup();
    Ok(Declared {
        route: route.name.clone(),
        deadline_ms: ms(route.deadline),
        connect_limit_ms: ms(route.connect_timeout),
        first_token_limit_ms: ms(tier.first_token_timeout),
        idle_limit_ms: ms(route.idle_timeout),
        answer_limit_ms: tier.answer_timeout.map(ms),
        recovery_ms: stricter(name, "recovery_ms", of(o.recovery_ms), own.recovery_ms.map(|m| m.0 as f64))?,
        useful_text_p95_ms: stricter(
            name,
            "useful_text_p95_ms",
            of(o.useful_text_p95_ms),
            own.useful_text_p95_ms.map(|m| m.0 as f64),
        )?,
        deadline_miss_rate: o.deadline_miss_rate.unwrap_or(0.0),
        invariant_violation_rate: o.invariant_violation_rate.unwrap_or(0.0),
        capacity_handoff_rate: o.capacity_handoff_rate,
        context_loss_turns: stricter(
            name,
            "context_loss_turns",
            of(o.context_loss_turns),
            own.context_loss_turns.map(f64::from),
        )?
        .map(|v| v as u64),
        queue_max: queue.map(|v| v as u64),
        max_attempts: route.max_attempts,
        breaker_failures: policy.breaker.consecutive_failures,
        stand_in_slots: slots.reduce(u32::saturating_add),
        key_arguments,
        nobody_stands_in: nobody_stands_in(policy, route, stand_ins),
        scaling: scaling(policy, route),
    })
}

/// What in the policy keeps every stand-in from answering the drill's customers: they stream and do not, offer tools, and
/// carry personal data.
fn nobody_stands_in(policy: &Policy, route: &Route, stand_ins: &[String]) -> Option<String> {
    let name = &route.name;
    let (them, one) = (stand_ins.join(", "), stand_ins.first().map_or("", String::as_str));
    if route.no_failover.is_some() {
        return Some(format!(
            "route {name} says `failover: none`, so only its first target is ever tried: take it out"
        ));
    }
    if route.max_attempts < 2 {
        return Some(format!(
            "route {name} says `max_attempts: 1`, which leaves no dial for {them} until the breaker opens: write 2 or more"
        ));
    }
    let tiers = |id| route.tiers.iter().filter(move |t| t.targets.contains(&id));
    let all: Vec<&Target> = stand_ins
        .iter()
        .filter_map(|n| policy.target_named(n))
        .filter(|t| tiers(t.id).next().is_some())
        .map(|t| &**t)
        .collect();
    if all.is_empty() {
        return Some(format!("no attempt of route {name} leads to {them}: add a pool with {one} to `attempts`"));
    }
    if all.iter().all(|t| !route.legal(t)) {
        let wanted = route.residency_required.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        return Some(format!(
            "route {name} requires the residency {wanted}, and {them} has another: no personal data may go there"
        ));
    }
    if all.iter().all(|t| tiers(t.id).all(|tier| route.pii(tier) == Pii::Forbidden)) {
        return Some(format!(
            "the drill's requests carry personal data, which may not go to {them}: write `pii: masked` on its attempt, \
             or `pii: allowed` where it may be told"
        ));
    }
    if all.iter().all(|t| !t.capabilities.tools) {
        return Some(format!(
            "every request of the drill offers tools, and {them} does not declare `capabilities: {{ tools: true }}`"
        ));
    }
    None
}

/// How this policy's times differ from the defaults that a service would run with.
fn scaling(policy: &Policy, route: &Route) -> Vec<String> {
    let usual = crate::policy::Breaker::default();
    let b = &policy.breaker;
    let mut out = Vec::new();
    let mut say = |what: &str, here: Duration, there: Duration| {
        if here < there {
            let times = there.as_secs_f64() / here.as_secs_f64().max(1e-6);
            out.push(format!("{what}: {} here, {} by default ({times:.0} times shorter)", human(here), human(there)));
        }
    };
    say("breaker's first cooldown", b.base_cooldown, usual.base_cooldown);
    say("breaker's longest cooldown", b.max_cooldown, usual.max_cooldown);
    say("breaker's window", b.window, usual.window);
    if let Some(ramp) = &route.ramp {
        say("hold of a ramp step", ramp.hold, Duration::from_secs(30));
    }
    out
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
