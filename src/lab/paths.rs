//! The fault proxies of the lab: on the embedded fault server, or on a Toxiproxy that somebody else runs.

use super::home::Claim;
use crate::error::{Expected, Result};
use crate::fault::api::Proxy;

/// One region-crossing path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Name of the proxy.
    pub name: String,
    /// Where it listens.
    pub listen: String,
    /// Where it leads.
    pub upstream: String,
}

/// The proxies of a running lab.
#[derive(Debug)]
pub struct Paths {
    url: String,
    made: Vec<Path>,
    /// The fault server outlives this process, so what was made is written down.
    outside: bool,
}

impl Paths {
    /// Makes the proxies. On somebody else's server a proxy of the same name is refused, unless a lab that is gone has left
    /// it behind.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or holds such a proxy.
    pub async fn open(toxiproxy: &str, outside: bool, paths: Vec<Path>) -> Result<Paths> {
        let url = toxiproxy.trim_end_matches('/').to_string();
        if outside {
            Paths::claim(&url, &paths).await?;
        }
        let mut open = Paths { url, made: Vec::new(), outside };
        for path in paths {
            if let Err(error) = api::create(&open.url, &path).await {
                // The first error is the one to tell.
                let _ = open.close().await;
                return Err(error);
            }
            open.made.push(path);
        }
        Ok(open)
    }

    /// Removes what a dead lab has left, refuses what somebody else has there, and writes down what will be made.
    async fn claim(url: &str, paths: &[Path]) -> Result<()> {
        let there = api::list(url).await?;
        let earlier = Claim::read(url).filter(Claim::is_dead);
        for proxy in there.iter().filter(|p| paths.iter().any(|path| path.name == p.name)) {
            let ours = earlier.as_ref().is_some_and(|c| c.holds(&proxy.name, &proxy.listen, &proxy.upstream));
            if !ours {
                return Err(Expected::could_not(
                    format!("{url} already has a proxy named {} that no dead lab has left there", proxy.name),
                    "stop the lab that uses it, or delete it, or use another Toxiproxy",
                ));
            }
            api::delete(url, &proxy.name).await?;
        }
        let claimed = paths.iter().map(|p| (p.name.clone(), p.listen.clone(), p.upstream.clone())).collect();
        // On disk before the first proxy is made, so that a lab that is killed leaves nothing unexplained.
        Claim::ours(claimed).write(url)
    }

    /// Deletes the proxies, and with them every toxic.
    ///
    /// # Errors
    /// Exit 6 with the names of those that may still be there.
    pub async fn close(&mut self) -> Result<()> {
        let mut left = Vec::new();
        let mut why = String::new();
        for path in self.made.drain(..) {
            if let Err(error) = api::delete(&self.url, &path.name).await {
                left.push(path.name);
                why = error.what;
            }
        }
        if left.is_empty() {
            if self.outside {
                Claim::remove(&self.url);
            }
            return Ok(());
        }
        Err(Expected::dirty(
            format!("proxies may be left on {}: {} ({why})", self.url, left.join(", ")),
            "start `llmfo lab up` with the same --toxiproxy again: it finds and removes them",
        ))
    }
}

/// Calls of the Toxiproxy API.
mod api {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use http::Method;
    use serde_json::json;

    use super::{Expected, Path, Proxy, Result};
    use crate::load::http::{Base, json_call};

    const LIMIT: Duration = Duration::from_secs(2);

    fn failed(url: &str, what: &str, why: &str) -> Expected {
        Expected::could_not(format!("the fault server at {url}: {what}: {why}"), "check that it runs and is reachable")
    }

    pub(super) async fn list(url: &str) -> Result<Vec<Proxy>> {
        let all = json_call(Method::GET, &Base::new(url)?, "/proxies", None, LIMIT).await;
        let all = all.map_err(|why| failed(url, "list proxies", &why))?;
        let all: BTreeMap<String, Proxy> =
            serde_json::from_value(all).map_err(|e| failed(url, "list proxies", &e.to_string()))?;
        Ok(all.into_values().collect())
    }

    pub(super) async fn create(url: &str, path: &Path) -> Result<()> {
        let body = json!({"name": path.name, "listen": path.listen, "upstream": path.upstream, "enabled": true});
        let made = json_call(Method::POST, &Base::new(url)?, "/proxies", Some(&body), LIMIT).await;
        made.map(drop).map_err(|why| failed(url, &format!("create {}", path.name), &why))
    }

    pub(super) async fn delete(url: &str, name: &str) -> Result<()> {
        match json_call(Method::DELETE, &Base::new(url)?, &format!("/proxies/{name}"), None, LIMIT).await {
            // It answers 204 without a body.
            Ok(_) => Ok(()),
            Err(why) if why == "the answer is not JSON" || why == "status 404" => Ok(()),
            Err(why) => Err(failed(url, &format!("delete {name}"), &why)),
        }
    }
}
