//! One policy takes the place of another while requests of the old one are under way.
//!
//! Ids are places in a policy, and requests under way hold them: what both policies have keeps its id, what is new gets one
//! behind all others, and what is gone stays in its place, retired. A target is the same if its address, model and credential
//! are; whatever else is declared of it may change. A route is the same if its name is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Policy, Route, RouteId, Target, TargetId};
use crate::error::{Expected, Result};

/// Ids are never used twice, so that a request under way cannot meet another target under its id; this many are given out.
const MOST_IDS: usize = 4_096;

/// What is only kept for requests that began under an older policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Targets.
    pub targets: BTreeSet<TargetId>,
    /// Routes.
    pub routes: BTreeSet<RouteId>,
}

/// `new`, with the ids of `old` wherever both speak of the same.
///
/// # Errors
/// If so many policies have followed each other that no ids are left.
pub fn succeed(old: &Policy, new: Policy) -> Result<Policy> {
    let (targets, target_ids) = targets(old, &new)?;
    let mut retired = Retired::default();
    let live: BTreeSet<TargetId> = target_ids.values().copied().collect();
    retired.targets.extend(targets.iter().map(|t| t.id).filter(|id| !live.contains(id)));

    let mut routes: Vec<Arc<Route>> = old.routes.clone();
    let mut live = BTreeSet::new();
    for route in &new.routes {
        let id = match old.routes.iter().find(|r| r.name == route.name) {
            Some(same) => same.id,
            None => RouteId(place(routes.len())?),
        };
        live.insert(id);
        let mut route = Route::clone(route);
        route.id = id;
        for tier in &mut route.tiers {
            renumber(&mut tier.targets, &target_ids);
        }
        match routes.get_mut(usize::from(id.0)) {
            Some(place) => *place = Arc::new(route),
            None => routes.push(Arc::new(route)),
        }
    }
    retired.routes.extend(routes.iter().map(|r| r.id).filter(|id| !live.contains(id)));

    let mut groups = new.groups;
    for group in groups.values_mut() {
        renumber(&mut group.members, &target_ids);
        renumber(&mut group.candidates, &target_ids);
    }
    Ok(Policy { targets, routes, groups, retired, ..new })
}

/// From an id in the file's order to the id that continues the old policy's.
type Ids = BTreeMap<TargetId, TargetId>;

/// All targets in the order of their ids, and the ids of the new policy's own ones.
fn targets(old: &Policy, new: &Policy) -> Result<(Vec<Arc<Target>>, Ids)> {
    let mut all: Vec<Arc<Target>> = old.targets.clone();
    let mut ids = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for target in &new.targets {
        let same = |t: &&Arc<Target>| {
            t.base_url == target.base_url && t.model == target.model && t.credentials == target.credentials
        };
        let free = || old.targets.iter().filter(same).filter(|t| !taken.contains(&t.id));
        // Two targets may differ in nothing but their names.
        let id = match free().find(|t| t.name == target.name).or_else(|| free().next()) {
            Some(same) => same.id,
            None => TargetId(place(all.len())?),
        };
        taken.insert(id);
        ids.insert(target.id, id);
        let target = Arc::new(Target { id, ..Target::clone(target) });
        match all.get_mut(usize::from(id.0)) {
            Some(place) => *place = target,
            None => all.push(target),
        }
    }
    Ok((all, ids))
}

fn renumber(targets: &mut [TargetId], ids: &BTreeMap<TargetId, TargetId>) {
    for target in targets {
        if let Some(id) = ids.get(target) {
            *target = *id;
        }
    }
}

fn place(n: usize) -> Result<u16> {
    u16::try_from(n).ok().filter(|_| n < MOST_IDS).ok_or_else(|| {
        Expected::could_not(
            format!("{MOST_IDS} targets or routes have come and gone since the start"),
            "restart the gateway; it drains first",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load;

    fn policy(targets: &[(&str, &str)], routes: &[(&str, &str)]) -> Policy {
        let mut text = String::from("version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n");
        for (name, host) in targets {
            text += &format!(
                "  {name}: {{ base_url: \"https://{host}.example/v1\", model: m, residency: [eu], credentials: env:K }}\n"
            );
        }
        text += "pools:\n";
        for (route, list) in routes {
            text += &format!("  p-{route}: {{ targets: [{list}] }}\n");
        }
        text += "routes:\n";
        for (route, _) in routes {
            text += &format!(
                "  - {{ route: {route}, data: none, deadline_ms: 8000, attempts: [{{ pool: p-{route}, \
                 first_token_timeout_ms: 2000 }}] }}\n"
            );
        }
        let (policy, found) = load("t.yaml", text.as_bytes());
        policy.unwrap_or_else(|| panic!("{found:#?}"))
    }

    fn names(policy: &Policy) -> Vec<(&str, u16, bool)> {
        policy.targets.iter().map(|t| (t.name.as_str(), t.id.0, policy.retired.targets.contains(&t.id))).collect()
    }

    #[test]
    fn what_both_have_keeps_its_id_and_what_is_gone_stays_in_its_place() {
        let old = policy(&[("a", "h1"), ("b", "h2"), ("c", "h3")], &[("r1", "a, b"), ("r2", "c")]);
        // `a` is gone, `b` has another name, `d` is new; the order is another.
        let new = policy(&[("d", "h4"), ("c", "h3"), ("bb", "h2")], &[("r3", "d"), ("r1", "bb, d, c")]);
        let now = succeed(&old, new).unwrap();
        assert_eq!(names(&now), [("a", 0, true), ("bb", 1, false), ("c", 2, false), ("d", 3, false)]);
        let route = |name: &str| now.route_named(name).map(|r| (r.id.0, r.tiers[0].targets.clone()));
        let ids = |list: &[u16]| list.iter().map(|id| TargetId(*id)).collect::<Vec<_>>();
        assert_eq!(route("r1"), Some((0, ids(&[1, 3, 2]))));
        assert_eq!(route("r3"), Some((2, ids(&[3]))));
        assert_eq!(route("r2"), None, "nobody new may come in by it");
        assert_eq!(now.retired.routes, BTreeSet::from([RouteId(1)]));
        assert!(now.target_named("a").is_none());
    }

    #[test]
    fn what_comes_back_has_its_old_id_and_a_new_address_is_a_new_target() {
        let first = policy(&[("a", "h1"), ("b", "h2")], &[("r", "a, b")]);
        let second = succeed(&first, policy(&[("b", "h2")], &[("r", "b")])).unwrap();
        let third = succeed(&second, policy(&[("a", "h9"), ("b", "h2"), ("c", "h1")], &[("r", "a, b, c")])).unwrap();
        assert_eq!(names(&third), [("c", 0, false), ("b", 1, false), ("a", 2, false)]);
        assert_eq!(third.target_named("a").map(|t| t.base_url.as_str()), Some("https://h9.example/v1"));
    }

    #[test]
    fn twins_keep_apart_by_their_names() {
        let old = policy(&[("a", "h"), ("b", "h")], &[("r", "a, b")]);
        let now = succeed(&old, policy(&[("b", "h"), ("a", "h")], &[("r", "b, a")])).unwrap();
        assert_eq!(names(&now), [("a", 0, false), ("b", 1, false)]);
        assert_eq!(now.route_named("r").map(|r| r.tiers[0].targets.clone()), Some(vec![TargetId(1), TargetId(0)]));
    }

    #[test]
    fn ids_run_out_with_an_error_and_are_never_used_twice() {
        let first = policy(&[("a", "h0")], &[("r", "a")]);
        let mut now = succeed(&first, policy(&[("a", "h1")], &[("r", "a")])).unwrap();
        assert_eq!(now.targets.len(), 2);
        // As after so many more.
        for n in 2..MOST_IDS {
            let id = TargetId(u16::try_from(n).unwrap());
            now.targets.push(Arc::new(Target {
                id,
                base_url: format!("https://h{n}.example/v1"),
                ..Target::clone(&first.targets[0])
            }));
            now.retired.targets.insert(id);
        }
        assert_eq!(now.targets.len(), MOST_IDS);
        assert!(succeed(&now, policy(&[("a", "hx")], &[("r", "a")])).is_err());
        assert!(succeed(&now, policy(&[("a", "h0")], &[("r", "a")])).is_ok(), "it is known");
    }
}
