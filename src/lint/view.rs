//! Questions that several rules ask of a policy file.

use std::time::Duration;

use crate::diag::quoted;
use crate::policy::DEFAULT_TIER;
use crate::spec::document::{SpannedDoc, escape};
use crate::spec::policy::{Attempt, Pii, PolicyFile, Route, Target};

/// What passes between a limit that is over and the dial after it: alarms ring late, and a machine has other things to do.
/// An assumption, several times what the gateway needs when it is busy; a sum without it comes out a hair too short.
pub const SLACK: Duration = Duration::from_millis(100);

/// A policy file with its places.
pub struct View<'a> {
    /// The file.
    pub raw: &'a PolicyFile,
    /// Its text.
    pub doc: &'a SpannedDoc,
}

/// A target as one attempt of a route names it.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// Its name.
    pub name: &'a str,
    /// What is declared about it.
    pub target: &'a Target,
}

impl Named<'_> {
    /// Its quality class.
    pub fn class(&self) -> &str {
        self.target.tier.as_ref().map_or(DEFAULT_TIER, |t| t.as_str())
    }

    /// True if a vendor outside runs it.
    pub fn external(&self) -> bool {
        self.target.domains.as_ref().is_some_and(|d| d.get("vendor").is_some())
    }
}

impl<'a> View<'a> {
    /// Every route with its pointer and its name in words.
    pub fn routes(&self) -> impl Iterator<Item = (String, String, &'a Route)> {
        self.raw.routes.iter().flatten().enumerate().map(|(n, route)| {
            let who = route.route.as_ref().map_or_else(
                || format!("route number {}", n + 1),
                |name| format!("the route {}", quoted(name.as_str())),
            );
            (format!("/routes/{n}"), who, route)
        })
    }

    /// The declared targets of an attempt, in order.
    pub fn targets(&self, attempt: &Attempt) -> Vec<Named<'a>> {
        let pool = attempt.pool.as_ref().and_then(|p| self.raw.pools.as_ref()?.get(p.as_str()));
        let names = pool.and_then(|p| p.targets.as_ref()).into_iter().flat_map(|t| t.0.iter());
        names
            .filter_map(|name| {
                let target = self.raw.targets.as_ref()?.get(name.as_str())?;
                Some(Named { name: name.as_str(), target })
            })
            .collect()
    }

    /// True if a target may be dialled on a route at all: its whole residency lies within what the route requires.
    pub fn legal(route: &Route, target: &Target) -> bool {
        let Some(required) = &route.residency_required else { return true };
        let has = target.residency.as_ref().map(|r| r.to_vec()).unwrap_or_default();
        !has.is_empty() && has.iter().all(|r| required.iter().any(|q| q == r))
    }

    /// The targets that a route can dial, tier by tier, in order: legal, of a class it may use, each once. `None` if a part
    /// of the route could not be read: nothing is known then.
    pub fn dialled(&self, route: &Route) -> Option<Vec<Vec<Named<'a>>>> {
        let attempts = route.attempts.as_ref()?;
        let mut seen: Vec<&str> = Vec::new();
        let mut class: Option<&str> = None;
        let mut tiers = Vec::new();
        for attempt in attempts {
            let pool = self.raw.pools.as_ref()?.get(attempt.pool.as_ref()?.as_str())?;
            let all = self.targets(attempt);
            if all.len() != pool.targets.as_ref()?.0.len() {
                return None;
            }
            let mut tier = Vec::new();
            for named in all {
                if seen.contains(&named.name) || !View::legal(route, named.target) {
                    continue;
                }
                let class =
                    *class.get_or_insert_with(|| named.target.tier.as_ref().map_or(DEFAULT_TIER, |t| t.as_str()));
                if route.degrade.is_some() || named.class() == class {
                    seen.push(named.name);
                    tier.push(named);
                }
            }
            tiers.push(tier);
        }
        Some(tiers)
    }

    /// The others than the one that is dialled first, with their attempts: tier number `first`, and whoever of it that is.
    /// Those that stand in for every request, where there are any: a tier for some intents or without personal data is no help
    /// to the rest.
    pub fn stand_ins<'r>(
        route: &'r Route,
        tiers: &'r [Vec<Named<'a>>],
        first: (usize, &str),
    ) -> Vec<(Named<'a>, &'r Attempt, usize)> {
        let attempts = route.attempts.iter().flatten();
        let tiers = tiers.iter().zip(attempts).enumerate();
        let all = tiers.flat_map(|(n, (tier, attempt))| {
            tier.iter().filter(move |t| (n, t.name) != first).map(move |t| (*t, attempt, n))
        });
        let all: Vec<_> = all.collect();
        let everybody = |a: &Attempt| a.intents.is_none() && a.pii != Some(Pii::Forbidden);
        let of_all: Vec<_> = all.iter().filter(|(_, a, _)| everybody(a)).copied().collect();
        if of_all.is_empty() { all } else { of_all }
    }

    /// Pointer of a target's key.
    pub fn target_at(name: &str, key: &str) -> String {
        format!("/targets/{}/{key}", escape(name))
    }
}
