//! Routes that nobody serves: the one thing that whoever is on call must hear first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::event::Event;
use crate::policy::Policy;
use crate::units::printable;

/// What was last told of each target, by name, and which routes are out.
#[derive(Debug, Default)]
pub struct Stranded {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    out: BTreeMap<String, String>,
    routes: BTreeSet<String>,
}

impl Stranded {
    /// A target's availability has changed: what is to be told of routes because of it. True: nobody serves it any more.
    pub fn heard(&self, policy: &Policy, target: &str, state: &str, reason: &str) -> Vec<(bool, Event)> {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state == "serving" {
            now.out.remove(target);
        } else {
            now.out.insert(target.to_owned(), reason.to_owned());
        }
        let mut told = Vec::new();
        for route in policy.live_routes() {
            let all = route.tiers.iter().flat_map(|tier| &tier.targets).map(|id| policy.target(*id));
            let legal: Vec<&str> = all.filter(|t| route.legal(t)).map(|t| t.name.as_str()).collect();
            let nobody = !legal.is_empty() && legal.iter().all(|name| now.out.contains_key(*name));
            let changed = if nobody { now.routes.insert(route.name.clone()) } else { now.routes.remove(&route.name) };
            if !changed {
                continue;
            }
            let name = printable(&route.name, 60);
            let (reason, text) = if nobody {
                ("nobody_serves", format!("route {name}: nobody serves; customers are refused or handed to a human"))
            } else {
                ("somebody_serves", format!("route {name}: {} serves again", printable(target, 60)))
            };
            told.push((nobody, Event::Alert { target: None, reason: reason.to_owned(), text }));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let stranded = Stranded::default();
        let told = |target: &str, state: &str| -> Vec<String> {
            let told = stranded.heard(&policy, target, state, "r");
            let text = |(_, event): (bool, Event)| match event {
                Event::Alert { text, .. } => text,
                other => panic!("{other:?}"),
            };
            told.into_iter().map(text).collect()
        };
        assert!(told("a", "cooling").is_empty());
        assert_eq!(told("b", "benched"), ["route chat: nobody serves; customers are refused or handed to a human"]);
        assert!(told("b", "probing").is_empty(), "said already");
        assert_eq!(told("c", "cooling").len(), 1);
        assert_eq!(told("b", "serving"), ["route chat: b serves again", "route mail: b serves again"]);
        assert!(told("a", "serving").is_empty());
    }
}
