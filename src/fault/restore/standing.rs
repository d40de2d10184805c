//! Whether what was broken is still broken: somebody else may have lifted it, and the server may have stopped answering.

use std::collections::BTreeMap;

use super::Injected;
use crate::fault::api::{Proxy, Toxic};
use crate::fault::client::Client;
use crate::fault::error::{FaultError, FaultKind};

/// All paths of the drill as they were left: broken where a fault was set, whole elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    paths: BTreeMap<String, Proxy>,
    /// The number of each path's last change, where the server counts them.
    revisions: BTreeMap<String, u64>,
}

/// What a look met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// All is as it was set, or this could not be told.
    AsSet,
    /// Something is not: which path, and what it is like now.
    Changed(String, &'static str),
    /// The server does not answer.
    Silent(String),
}

impl Standing {
    /// These proxies as they are now: nothing of ours is broken.
    ///
    /// # Errors
    /// Of the call.
    pub async fn whole(client: &Client, paths: &[String]) -> Result<Standing, FaultError> {
        let mut now = client.proxies().await?;
        now.retain(|name, _| paths.contains(name));
        let revisions = revisions(client).await;
        Ok(Standing { paths: now, revisions })
    }

    /// The proxies that were touched as they are now, all others as they were.
    ///
    /// # Errors
    /// Of the call.
    pub async fn with(&self, client: &Client, done: &Injected) -> Result<Standing, FaultError> {
        let mut now = client.proxies().await?;
        let touched = |name: &str| {
            done.toxics.iter().any(|(proxy, _)| proxy == name) || done.disabled.iter().any(|proxy| proxy == name)
        };
        now.retain(|name, _| touched(name));
        let mut paths = self.paths.clone();
        paths.extend(now);
        let mut all = self.revisions.clone();
        // Of those that were not touched a change since then is somebody else's.
        if !all.is_empty() {
            all.extend(revisions(client).await.into_iter().filter(|(name, _)| touched(name)));
        }
        Ok(Standing { paths, revisions: all })
    }

    /// The same paths as they were, after this run has changed some of them back itself.
    pub async fn again(&self, client: &Client) -> Standing {
        let counted = !self.revisions.is_empty();
        let revisions = if counted { revisions(client).await } else { BTreeMap::new() };
        Standing { paths: self.paths.clone(), revisions }
    }

    /// Looks.
    pub async fn look(&self, client: &Client) -> Look {
        match client.proxies().await {
            Ok(now) => match self.compare(&now) {
                Look::AsSet if !self.revisions.is_empty() => self.look_at_revisions(client).await,
                look => look,
            },
            // A real server with one path that is locked up lists none, and still says who it is.
            Err(e) if e.kind == FaultKind::Timeout => answers(client).await,
            Err(e) if e.kind == FaultKind::Unreachable => Look::Silent(e.to_string()),
            Err(_) => Look::AsSet,
        }
    }

    fn compare(&self, now: &BTreeMap<String, Proxy>) -> Look {
        for (name, then) in &self.paths {
            let changed = |what| Look::Changed(name.clone(), what);
            let Some(now) = now.get(name) else { return changed("deleted") };
            let has = |all: &[Toxic], one: &Toxic| all.iter().any(|t| t == one);
            if then.toxics.iter().any(|t| !now.toxics.iter().any(|n| n.name == t.name))
                || (now.enabled && !then.enabled)
            {
                return changed("lifted");
            }
            let same = now.enabled == then.enabled
                && now.upstream == then.upstream
                && now.listen == then.listen
                && now.toxics.len() == then.toxics.len()
                && then.toxics.iter().all(|t| has(&now.toxics, t));
            if !same {
                return changed("changed");
            }
        }
        Look::AsSet
    }

    async fn look_at_revisions(&self, client: &Client) -> Look {
        let changed = self.compare_revisions(&revisions(client).await);
        if changed == Look::AsSet {
            return changed;
        }
        // It may have been changed only after the paths were read, and not set back at all.
        match client.proxies().await.map(|now| self.compare(&now)) {
            Ok(Look::AsSet) | Err(_) => changed,
            Ok(look) => look,
        }
    }

    /// A path that was changed and set back between two looks is as it was, and customers may have met what it was between.
    fn compare_revisions(&self, now: &BTreeMap<String, u64>) -> Look {
        let known = self.paths.keys().filter_map(|name| Some((name, self.revisions.get(name)?, now.get(name)?)));
        let other = known.filter(|(_, then, now)| then != now).map(|(name, ..)| name).next();
        other.map_or(Look::AsSet, |name| Look::Changed(name.clone(), "changed and set back"))
    }
}

/// The number of the last change of each proxy; empty where the server does not count them (a real one).
async fn revisions(client: &Client) -> BTreeMap<String, u64> {
    let counters = client.counters().await.unwrap_or_default();
    counters.into_iter().filter(|(_, c)| c.revision > 0).map(|(name, c)| (name, c.revision)).collect()
}

/// The server says who it is, or it is silent.
pub async fn answers(client: &Client) -> Look {
    match client.version().await {
        Err(e) if matches!(e.kind, FaultKind::Timeout | FaultKind::Unreachable) => Look::Silent(e.to_string()),
        _ => Look::AsSet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::api::Stream;

    #[test]
    fn a_path_that_was_changed_and_set_back_is_found_by_its_number() {
        let proxy = Proxy {
            name: "p".into(),
            listen: "127.0.0.1:1".into(),
            upstream: "127.0.0.1:2".into(),
            enabled: true,
            toxics: Vec::new(),
        };
        let numbers = |p: u64| BTreeMap::from([("p".to_owned(), p), ("of-others".to_owned(), 9 + p)]);
        let standing = Standing { paths: BTreeMap::from([("p".to_owned(), proxy)]), revisions: numbers(4) };
        assert_eq!(standing.compare_revisions(&numbers(4)), Look::AsSet);
        let back = Look::Changed("p".into(), "changed and set back");
        assert_eq!(standing.compare_revisions(&numbers(5)), back);
        // A real server counts nothing.
        assert_eq!(standing.compare_revisions(&BTreeMap::new()), Look::AsSet);
    }

    #[test]
    fn lifted_changed_and_deleted_are_told_apart() {
        let toxic = Toxic {
            name: "llmfo.r.1".into(),
            kind: "timeout".into(),
            stream: Stream::Upstream,
            toxicity: 1.0,
            attributes: BTreeMap::new(),
        };
        let proxy = |enabled: bool, toxics: &[&Toxic]| Proxy {
            name: "p".into(),
            listen: "127.0.0.1:1".into(),
            upstream: "127.0.0.1:2".into(),
            enabled,
            toxics: toxics.iter().map(|t| (*t).clone()).collect(),
        };
        let all = |p: Proxy| BTreeMap::from([("p".to_owned(), p)]);
        let standing = |paths| Standing { paths, revisions: BTreeMap::new() };
        let is = |then: Proxy, now: Proxy| standing(all(then)).compare(&all(now));
        let what = |what| Look::Changed("p".into(), what);
        assert_eq!(is(proxy(true, &[&toxic]), proxy(true, &[&toxic])), Look::AsSet);
        assert_eq!(is(proxy(true, &[&toxic]), proxy(true, &[])), what("lifted"));
        assert_eq!(is(proxy(false, &[]), proxy(true, &[])), what("lifted"));
        assert_eq!(is(proxy(true, &[&toxic]), proxy(false, &[&toxic])), what("changed"));
        let weak = Toxic { toxicity: 0.1, ..toxic.clone() };
        assert_eq!(is(proxy(true, &[&toxic]), proxy(true, &[&weak])), what("changed"));
        let other = Toxic { name: "theirs".into(), ..toxic.clone() };
        assert_eq!(is(proxy(true, &[&toxic]), proxy(true, &[&toxic, &other])), what("changed"));
        assert_eq!(standing(all(proxy(true, &[&toxic]))).compare(&BTreeMap::new()), what("deleted"));
    }
}
