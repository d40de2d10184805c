//! What is run, resolved from the arguments: policy, outages, prices.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Args, Down};
use crate::assets;
use crate::cli::policy_file::{self, Kind};
use crate::diag::Diagnostic;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::files;
use crate::lint::{self, World};
use crate::policy::{self, Policy};
use crate::sim::Setup;
use crate::sim::cost::{self, Prices};
use crate::sim::scenario::{self, MONTH, Options};
use crate::sim::trace::{self, History, Impact};
use crate::spec::names::nearest;
use crate::units::printable;

/// A longer history is not read.
const TRACE_MAX_BYTES: u64 = 64 << 20;
/// A longer list of prices is not read.
const PRICES_MAX_BYTES: u64 = 1 << 20;

/// What is run, resolved.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) policy: Arc<Policy>,
    pub(super) history: Option<(History, Vec<(String, usize)>)>,
}

/// Less than this is no time at all: 2.6 s.
const MONTHS_MIN: f64 = 1e-6;
/// Shorter outages than 0.6 s are no outages but single failures, and there would be more of them than can be drawn.
const MEAN_OUTAGE_MIN: f64 = 0.01;

/// A shared domain that is down for longer is no domain that two channels would share.
const SHARED_MAX: f64 = 0.5;

pub(super) fn check(args: &Args) -> Result<()> {
    let share = |name: &str, value: f64, least: f64| {
        if value.is_finite() && value >= least && value <= 1.0 {
            return Ok(());
        }
        Err(Expected::usage(format!("--{name} is {value}, which is no share"), "write 0.97 for 97 %"))
    };
    share("channel-availability", args.channel_availability, 0.01)?;
    share("shared-domain", args.shared_domain, 0.0)?;
    if args.shared_domain > SHARED_MAX {
        let hint = "what is down all the time needs no simulation; write 0.001 for 0.1 %";
        return Err(Expected::usage(format!("--shared-domain is {}", args.shared_domain), hint));
    }
    let within = |name: &str, value: f64, least: f64, most: f64| {
        if value.is_finite() && value >= least && value <= most {
            return Ok(());
        }
        Err(Expected::usage(format!("--{name} is {value}"), format!("name a number from {least} to {most}")))
    };
    within("months", args.months, MONTHS_MIN, 1_200.0)?;
    within("mean-outage-min", args.mean_outage_min, MEAN_OUTAGE_MIN, 100_000.0)
}

pub(super) fn plan(args: &Args) -> Result<Plan> {
    let names = || scenario::ALL.iter().map(|s| s.name);
    let named = match &args.scenario {
        Some(name) => Some(scenario::named(name).ok_or_else(|| {
            let near = nearest(name, names()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            Expected::nothing(
                format!("there is no scenario {}", printable(name, 60)),
                format!("{near}`llmfo simulate --list` names them"),
            )
        })?),
        None if args.policy.is_none() => {
            return Err(Expected::usage(
                "neither a scenario nor a policy is named",
                "`llmfo simulate dual-channel`, or `llmfo simulate --policy FILE`; `--list` names scenarios",
            ));
        }
        None => None,
    };
    let (policy, file) = match &args.policy {
        Some(path) => (load(path)?, path.display().to_string()),
        None => {
            let path = named.map_or("", |n| n.policy);
            let text = assets::get(path).map_or("", |a| a.text);
            let (policy, _) = policy::load(path, text.as_bytes());
            let policy = policy.ok_or_else(|| Expected::usage(format!("{path} cannot be used"), ""))?;
            (policy, path.to_owned())
        }
    };
    let name = named.map_or(printable(&file, 200), |n| n.name.to_owned());
    let policy = Arc::new(policy);
    let history = args.trace.as_deref().map(|path| history(args, path, &policy)).transpose()?;
    Ok(Plan { name, policy, history })
}

pub(super) fn prices(args: &Args) -> Result<Prices> {
    let Some(path) = &args.prices else {
        return cost::read(assets::PRICES).map_err(|e| Expected::new(Exit::Bug, e, ""));
    };
    let shown = printable(&path.display().to_string(), 300);
    let hint = "it is a YAML file with the keys of examples/prices.yaml";
    let text = files::text(path, PRICES_MAX_BYTES)
        .map_err(|e| Expected::usage(format!("cannot read {shown}: {e}"), "name a file that can be read"))?;
    cost::read(&text).map_err(|e| {
        let (doc, _) = crate::spec::document::read(&shown, text.as_bytes(), &crate::spec::document::Limits::DEFAULT);
        let other = policy_file::of_kind(Kind::Prices, &doc, &shown).err();
        other.unwrap_or_else(|| Expected::usage(format!("{shown}: {e}"), hint))
    })
}

fn load(path: &Path) -> Result<Policy> {
    let shown = printable(&path.display().to_string(), 300);
    let loaded = policy_file::read(path)?.policy(&shown);
    policy_file::of_kind(Kind::Policy, &loaded.doc, &shown)?;
    // What must not be served is not worth simulating: a route that nobody may answer would end in a green figure.
    let blocked = lint::check(&loaded, &World::default()).iter().any(Diagnostic::blocks_serving);
    loaded.policy.filter(|_| !blocked).ok_or_else(|| {
        Expected::usage(format!("{shown} cannot be used as a policy"), format!("`llmfo validate {shown}` says why"))
    })
}

fn history(args: &Args, path: &Path, policy: &Policy) -> Result<(History, Vec<(String, usize)>)> {
    let shown = printable(&path.display().to_string(), 300);
    let hint = "it is a CSV file whose first line is `target,from,to,impact`, and a line of it is `one,2026-01-03T10:00:00Z,2026-01-03T10:25:00Z,major`";
    let text = files::text(path, TRACE_MAX_BYTES)
        .map_err(|e| Expected::usage(format!("cannot read {shown}: {e}"), "name a file that can be read"))?;
    let history = trace::read(&text).map_err(|wrong| {
        let said: Vec<String> = wrong.iter().map(|e| format!("{shown}, line {}: {}", e.line, e.what)).collect();
        let first = if said.len() == trace::BAD_LINES_MAX { "\n(the first of them)" } else { "" };
        Expected::usage(format!("{}{first}", said.join("\n")), hint)
    })?;
    let mut map = BTreeMap::new();
    for entry in &args.map {
        let Some((name, target)) = entry.split_once('=') else {
            return Err(Expected::usage(
                format!("--map {} names no target", printable(entry, 60)),
                "write NAME=TARGET",
            ));
        };
        let Some(found) = policy.target_named(target) else {
            let known = policy.targets.iter().map(|t| t.name.as_str());
            let near = nearest(target, known.clone()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            return Err(Expected::usage(
                format!("--map names {}, which is no target of the policy", printable(target, 60)),
                format!("{near}its targets: {}", known.collect::<Vec<_>>().join(", ")),
            ));
        };
        if !history.names.iter().any(|n| n == name) {
            let known = history.names.iter().map(String::as_str);
            let near = nearest(name, known.clone()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            return Err(Expected::usage(
                format!("--map names {}, which is not in {shown}", printable(name, 60)),
                format!("{near}its names: {}", known.collect::<Vec<_>>().join(", ")),
            ));
        }
        let id = usize::from(found.id.0);
        if map.contains_key(name) {
            let what = format!("--map says twice what {} stands for", printable(name, 60));
            return Err(Expected::usage(what, "give each name once"));
        }
        map.insert(name.to_owned(), id);
    }
    // A name that is a target's own stands for that target, if nobody said otherwise.
    for name in &history.names {
        if let Some(own) = policy.target_named(name).map(|t| usize::from(t.id.0))
            && !map.contains_key(name)
        {
            map.insert(name.clone(), own);
        }
    }
    let assigned = history.assign(policy, &map).map_err(|name| {
        Expected::usage(
            format!(
                "{shown} has {} names, the policy {} targets: none is left for {name}",
                history.names.len(),
                policy.targets.len()
            ),
            "lay names of one target together with --map, leave lines out of the history, or name a policy with more targets",
        )
    })?;
    if assigned.iter().all(|(name, _)| history.merged(&[name], impact(args.down)).spans.is_empty()) {
        return Err(Expected::nothing(format!("{shown} has no outage of this impact or graver"), "try --down minor"));
    }
    Ok((history, assigned))
}

fn impact(down: Down) -> Impact {
    match down {
        Down::Minor => Impact::Minor,
        Down::Major => Impact::Major,
        Down::Critical => Impact::Critical,
    }
}

pub(super) fn setup_of(args: &Args, plan: &Plan, seed: u64) -> Setup {
    let mut options = Options {
        seed,
        span: MONTH.mul_f64(args.months),
        channel_availability: args.channel_availability,
        mean_outage: Duration::from_secs_f64(args.mean_outage_min * 60.0),
        shared_down: args.shared_domain,
        checks: !args.no_checks,
    };
    match &plan.history {
        Some((history, assigned)) => {
            options.span = history.span();
            scenario::with_sources(&plan.policy, history.sources(assigned, impact(args.down), seed), &options)
        }
        None => scenario::channels(&plan.policy, &options),
    }
}

pub(super) fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((_, assigned)) = &plan.history {
        let names: Vec<String> = trace::by_target(assigned)
            .into_iter()
            .map(|(target, names)| {
                let merged = if names.len() > 1 { " (merged)" } else { "" };
                format!("{} = {}{merged}", names.join(" + "), plan.policy.targets[target].name)
            })
            .collect();
        notes.push(format!("the history stands for: {}", names.join(", ")));
        let without = plan.policy.targets.iter().filter(|t| !assigned.iter().any(|(_, n)| *n == usize::from(t.id.0)));
        let without: Vec<&str> = without.map(|t| t.name.as_str()).collect();
        if !without.is_empty() {
            notes.push(format!("without a history, taken as up all the time: {}", without.join(", ")));
        }
    }
    let (requests_per_s, declared) = scenario::requests_per_s(&plan.policy);
    notes.extend(super::text::load_note(requests_per_s, declared));
    if let Some(at) = plan.policy.expires_unix_s.filter(|at| jiff::Timestamp::now().as_second() >= *at) {
        let when = jiff::Timestamp::from_second(at).map_or_else(|_| String::new(), |t| format!(" on {t}"));
        notes.push(format!(
            "the policy expired{when}: here it is run as if it were valid; `serve` would answer {}",
            if crate::gateway::expiry::answers_nobody(&plan.policy) {
                "nobody"
            } else {
                "the intents of on_expired alone"
            }
        ));
    }
    if !plan.policy.not_enforced.is_empty() {
        let keys = plan.policy.not_enforced.iter().filter_map(|key| key.split(": ").next());
        notes.push(format!("read, not enforced by the core yet: {}", keys.collect::<Vec<_>>().join(", ")));
    }
    notes
}
