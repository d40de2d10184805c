//! Routes that nobody serves: the one thing that whoever is on call must hear first. Pure: from what the core shows.

use std::collections::BTreeSet;

use crate::event::Event;
use crate::policy::{Policy, Route};
use crate::router::decision::{Availability, Snapshot};
use crate::units::printable;

/// Reason of the alert that nobody serves a route.
pub const NOBODY: &str = "nobody_serves";
/// Reason of the alert that somebody serves it again.
pub const SOMEBODY: &str = "somebody_serves";

/// What is to be told, where `known` are the routes, by name, of which people know that nobody serves them. A route that is
/// no longer in the policy is forgotten without a word.
pub fn told(policy: &Policy, snapshot: &Snapshot, known: &mut BTreeSet<String>) -> Vec<Event> {
    known.retain(|name| policy.live_routes().any(|route| route.name == *name));
    let mut told = Vec::new();
    for route in policy.live_routes() {
        let server = served_by(policy, route, snapshot);
        let name = printable(&route.name, 60);
        let (reason, text) = match server {
            Served::ByNobody if known.insert(route.name.clone()) => {
                (NOBODY, format!("route {name}: nobody serves; customers are refused or handed to a human"))
            }
            Served::By(target) if known.remove(&route.name) => {
                (SOMEBODY, format!("route {name}: {} serves again", printable(&target, 60)))
            }
            _ => continue,
        };
        let (reason, route) = (reason.to_owned(), Some(route.name.clone()));
        told.push(Event::Alert { target: None, client: None, route, reason, text });
    }
    told
}

enum Served {
    By(String),
    ByNobody,
    /// No target of the policy may serve it: that is said when the policy is loaded.
    NeverAtAll,
}

fn served_by(policy: &Policy, route: &Route, snapshot: &Snapshot) -> Served {
    let mut may = route.tiers.iter().flat_map(|t| &t.targets).filter(|id| route.legal(policy.target(**id))).peekable();
    if may.peek().is_none() {
        return Served::NeverAtAll;
    }
    let serving = |id: &&crate::policy::TargetId| {
        let here = snapshot.targets.iter().find(|t| t.target == **id);
        here.is_some_and(|t| matches!(t.availability, Availability::Serving { .. }))
    };
    match may.find(serving) {
        Some(id) => Served::By(policy.target(*id).name.clone()),
        None => Served::ByNobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ts;

    #[test]
    fn a_route_is_told_of_once_when_its_last_target_goes_and_once_when_one_is_back() {
        let text = "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n\
                    \x20 a: { base_url: 'http://127.0.0.1:1/v1', model: m }\n\
                    \x20 b: { base_url: 'http://127.0.0.1:2/v1', model: m }\n\
                    \x20 c: { base_url: 'http://127.0.0.1:3/v1', model: m }\n\
                    pools: { ab: { targets: [a, b] }, bc: { targets: [b, c] } }\nroutes:\n\
                    \x20 - { route: chat, data: none, deadline_ms: 8000, attempts: [{ pool: ab, first_token_timeout_ms: 2000 }] }\n\
                    \x20 - { route: mail, data: none, deadline_ms: 8000, attempts: [{ pool: bc, first_token_timeout_ms: 2000 }] }\n";
        let (policy, found) = crate::policy::load("t.yaml", text.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}"));
        let snapshot = |out: &[&str]| {
            let mut all = crate::router::Engine::new(std::sync::Arc::new(policy.clone()), 1).snapshot(Ts::ZERO);
            for t in all.targets.iter_mut().filter(|t| out.contains(&t.name.as_str())) {
                t.availability = Availability::Cooling { until: Ts::ZERO, why: "r".into() };
            }
            all
        };
        let mut known = BTreeSet::new();
        let mut told = |out: &[&str]| -> Vec<String> {
            let text = |event| match event {
                Event::Alert { text, .. } => text,
                other => panic!("{other:?}"),
            };
            super::told(&policy, &snapshot(out), &mut known).into_iter().map(text).collect()
        };
        assert!(told(&["a"]).is_empty());
        assert_eq!(told(&["a", "b"]), ["route chat: nobody serves; customers are refused or handed to a human"]);
        assert!(told(&["a", "b"]).is_empty(), "said already");
        assert_eq!(told(&["a", "b", "c"]).len(), 1);
        assert_eq!(told(&["a", "c"]), ["route chat: b serves again", "route mail: b serves again"]);
        assert!(told(&[]).is_empty());
        // Whoever they were told of is gone with its name.
        assert_eq!(told(&["a", "b"]).len(), 1);
        known.insert("gone".into());
        let mut again = known.clone();
        assert!(super::told(&policy, &snapshot(&["a", "b"]), &mut again).is_empty());
        assert_eq!(again, BTreeSet::from(["chat".to_owned()]));
    }
}
