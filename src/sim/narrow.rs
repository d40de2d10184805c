//! Declared capacities below the load of a run. The model answers all the same, slower or by somebody else, so that a share of
//! time alone does not show what was asked of whom.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::arrivals::{Load, classes};
use crate::policy::Policy;
use crate::router::{Engine, Input, Machine, Output, RequestId};
use crate::units::{Ts, printable};

/// First token and text of the model's usual streamed answer ([`super::world::Provider`]), in seconds: 0.6 and 2.
pub(super) const ANSWER_S: f64 = 2.6;

/// One declared capacity that cannot carry the load of the run at whoever answers alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Narrow {
    /// Target by name.
    pub target: String,
    /// The key below `capacity`: `slots`, or `requests_per_minute`.
    pub key: &'static str,
    /// What is declared.
    pub declared: u64,
    /// What the load needs, in the same unit, rounded up.
    pub load: u64,
}

/// All of them, for this load in requests a second.
#[must_use]
pub fn narrow(policy: &Policy, per_second: f64) -> Vec<Narrow> {
    let up = |needed: f64| needed.ceil().max(0.0) as u64;
    let (slots, a_minute) = (up(per_second * ANSWER_S), up(per_second * 60.0));
    let mut out = Vec::new();
    for target in &policy.targets {
        let of = |key, declared: Option<u64>, load: u64| {
            let declared = declared.filter(|d| *d < load)?;
            Some(Narrow { target: printable(&target.name, 100), key, declared, load })
        };
        out.extend(of("slots", target.capacity.slots.map(u64::from), slots));
        out.extend(of("requests_per_minute", target.capacity.requests_per_minute, a_minute));
    }
    out
}

/// What a reader of an availability must know of them; `None` where there are none.
#[must_use]
pub fn note(narrow: &[Narrow], per_second: f64) -> Option<String> {
    let one = |n: &Narrow| format!("{} `{}` {} of {}", n.target, n.key, n.declared, n.load);
    let all: Vec<String> = narrow.iter().map(one).collect();
    (!all.is_empty()).then(|| {
        format!(
            "declared capacity below the load of {per_second} requests/s: {}. Whoever answers alone cannot carry it as declared: what is beyond its slots answers slower in proportion, what is beyond its requests a minute goes to another target or to nobody; an availability beside this is of a load that was not declared for",
            all.join("; ")
        )
    })
}

/// The share of the requests of a run that the policy gives to people on its best day: all is well, and nobody may or can answer
/// them. Beside a channel that answers whatever it is asked they make a policy look worse than none.
#[must_use]
pub fn given_away(policy: &Arc<Policy>, load: &Load) -> f64 {
    let classes = classes(policy, load);
    // One core for all of them, not one each: a policy of thousands of routes has many classes. Each comes when the one before
    // has left and every budget of a minute is full again, so that none takes anything from another.
    let (mut core, mut now) = (Engine::new(Arc::clone(policy), 1), Ts::ZERO);
    let mut away = Vec::new();
    for (n, class) in (0u64..).zip(&classes) {
        let request = RequestId(n);
        core.handle(now, Input::Arrive { request, facts: class.facts.clone() });
        if !dials(&mut core) {
            away.push(class);
        }
        core.handle(now, Input::ClientGone { request, stalled: false });
        dials(&mut core);
        now = now + BETWEEN;
        for _ in 0..ALARMS {
            let Some(at) = core.poll_timeout().filter(|at| *at <= now) else { break };
            core.handle(at, Input::Tick);
            dials(&mut core);
        }
    }
    away.iter().map(|class| class.share).sum()
}

/// Between two classes: longer than the minute of `requests_per_minute`.
const BETWEEN: Duration = Duration::from_secs(61);
/// Alarms of a core in which nothing goes on, between two classes, at most.
const ALARMS: usize = 1_000;

/// Takes what the core says: whether somebody is dialled.
fn dials(core: &mut Engine) -> bool {
    std::iter::from_fn(|| core.poll_output()).filter(|output| matches!(output, Output::Dial { .. })).count() > 0
}

/// What a reader must know of them; `None` where there are none.
#[must_use]
pub fn given_away_note(policy: &Policy, load: &Load, share: f64) -> Option<String> {
    let tools = load.tools > 0.0 && policy.live_targets().all(|target| !target.capabilities.tools);
    let next = if tools {
        "no target declares `tools: true`, and a tenth of the requests offer tools"
    } else {
        "ask a policy test (`validate --tests`) why"
    };
    (share > 0.000_5).then(|| {
        format!(
            "{:.1} % of the requests have nobody who may or can answer them even while all is well ({next}). They count against the policy, and not against the channel alone, which is asked them all the same",
            share * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of the requests offer tools; nobody takes them.
    #[test]
    fn requests_that_nobody_can_answer_on_the_best_day_are_named() {
        let policy = |tools: bool| {
            let text = format!(
                "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a: {{ base_url: \"https://a.example/v1\", model: m, \
                 residency: [eu], credentials: env:K, capabilities: {{ tools: {tools} }} }}\npools:\n  p: {{ targets: [a] }}\nroutes:\n  \
                 - {{ route: r, data: none, deadline_ms: 8000, tools: [look_up], attempts: [{{ pool: p, first_token_timeout_ms: 2000, \
                 answer_timeout_ms: 4000 }}] }}\ntools:\n  look_up: {{ side_effects: none }}\n"
            );
            let (policy, found) = crate::policy::load("p", text.as_bytes());
            Arc::new(policy.unwrap_or_else(|| panic!("{found:#?}")))
        };
        let load = Load::default();
        let share = given_away(&policy(false), &load);
        assert!((share - 0.1).abs() < 1e-9, "{share}");
        let note = given_away_note(&policy(false), &load, share).unwrap();
        assert!(note.starts_with("10.0 % of the requests") && note.contains("`tools: true`"), "{note}");
        assert!(given_away(&policy(true), &load).abs() < 1e-9);
        assert_eq!(given_away_note(&policy(true), &load, 0.0), None);
    }

    /// One request a minute and one slot for 600 classes (150 routes, streamed and not, with and without tools): each is asked
    /// on its own, whatever the others took.
    #[test]
    fn no_class_takes_a_slot_or_a_minute_from_another() {
        let mut text = "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a: { base_url: \"https://a.example/v1\", \
                        model: m, residency: [eu], credentials: env:K, capabilities: { tools: false }, capacity: { slots: 1, \
                        requests_per_minute: 1, basis: assumed } }\npools:\n  p: { targets: [a] }\nroutes:\n"
            .to_owned();
        for n in 0..150 {
            text += &format!(
                "  - {{ route: r{n}, data: none, deadline_ms: 8000, tools: [look_up], attempts: [{{ pool: p, \
                 first_token_timeout_ms: 2000, answer_timeout_ms: 4000 }}] }}\n"
            );
        }
        text += "tools:\n  look_up: { side_effects: none }\n";
        let (policy, found) = crate::policy::load("p", text.as_bytes());
        let policy = Arc::new(policy.unwrap_or_else(|| panic!("{found:#?}")));
        let share = given_away(&policy, &Load::default());
        assert!((share - 0.1).abs() < 1e-9, "those with tools, and no others: {share}");
    }

    /// 5 requests/s of 2.6 s are 13 at one moment, and 300 a minute.
    #[test]
    fn what_is_declared_below_the_load_is_named_with_both_figures() {
        let policy = |capacity: &str| {
            let text = crate::spec::examples::POLICY.replacen(
                "slots: 56, failure_unit_slots: 8, reserve_slots: 8,",
                capacity,
                1,
            );
            crate::policy::load("p", text.as_bytes()).0.unwrap()
        };
        let of = |capacity: &str| {
            let policy = policy(capacity);
            let first = policy.targets[0].name.clone();
            let own = |n: &Narrow| n.target == first;
            narrow(&policy, 5.0).into_iter().filter(own).map(|n| (n.key, n.declared, n.load)).collect::<Vec<_>>()
        };
        let first = policy("slots: 56,").targets.iter().position(|t| t.capacity.slots == Some(56));
        assert_eq!(first, Some(0), "the piece that is replaced is the first target's");
        assert_eq!(of("slots: 4,"), [("slots", 4, 13)]);
        assert_eq!(of("slots: 12,"), [("slots", 12, 13)]);
        assert_eq!(of("slots: 13,"), []);
        assert_eq!(of("slots: 56, requests_per_minute: 299,"), [("requests_per_minute", 299, 300)]);
        assert_eq!(of("slots: 56, requests_per_minute: 300,"), []);
        let both = policy("slots: 4,");
        let said = note(&narrow(&both, 5.0), 5.0).unwrap();
        assert!(
            said.contains(&format!("{} `slots` 4 of 13", both.targets[0].name)) && said.contains("5 requests/s"),
            "{said}"
        );
        assert_eq!(note(&[], 5.0), None);
    }
}
