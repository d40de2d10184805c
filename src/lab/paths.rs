//! The fault proxies of the lab: on the embedded fault server, or on a Toxiproxy that somebody else runs.

use super::alone::Alone;
use super::home::Claim;
use crate::error::{Expected, Result};
use crate::fault::client::Client;
use crate::fault::error::FaultKind;

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
    client: Client,
    made: Vec<Path>,
    /// The fault server outlives this process, so what was made is written down.
    outside: bool,
    /// No other lab works there meanwhile.
    _alone: Option<Alone>,
}

impl Paths {
    /// Makes the proxies. On somebody else's server a proxy of the same name is refused, unless a lab that is gone has left
    /// it behind.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or holds such a proxy.
    pub async fn open(toxiproxy: &str, outside: bool, paths: Vec<Path>) -> Result<Paths> {
        let client = Client::new(toxiproxy)?;
        let mut alone = None;
        if outside {
            // Before anything is looked at: of two that find the same leftovers the later one would remove what the first has made.
            alone = Some(Alone::take(client.base_url()).await?);
            Paths::claim(&client, &paths).await?;
        }
        let mut open = Paths { client, made: Vec::new(), outside, _alone: alone };
        for path in paths {
            if let Err(error) = open.client.create_proxy(&path.name, &path.listen, &path.upstream, true).await {
                let name = path.name.clone();
                if !error.did_nothing() {
                    open.made.push(path);
                }
                // The first error is the one to tell.
                let _ = open.close().await;
                return Err(match error.kind {
                    // Not there a moment ago: somebody with another state folder, whose name nobody here knows.
                    FaultKind::Conflict if outside => Expected::could_not(
                        format!("somebody else has just made a proxy named {name} on {toxiproxy}"),
                        "stop the lab that uses it, or use another Toxiproxy",
                    ),
                    _ => error.into(),
                });
            }
            open.made.push(path);
        }
        Ok(open)
    }

    /// Removes what a dead lab has left, refuses what somebody else has there, and writes down what will be made.
    async fn claim(client: &Client, paths: &[Path]) -> Result<()> {
        let url = client.base_url();
        let there = client.proxies().await?;
        let earlier = Claim::read(url).filter(Claim::is_dead);
        for proxy in there.values().filter(|p| paths.iter().any(|path| path.name == p.name)) {
            let ours = earlier.as_ref().is_some_and(|c| c.holds(&proxy.name, &proxy.listen, &proxy.upstream));
            if !ours {
                return Err(Expected::could_not(
                    format!("{url} already has a proxy named {} that no dead lab has left there", proxy.name),
                    "stop the lab that uses it, or delete it, or use another Toxiproxy",
                ));
            }
            client.delete_proxy(&proxy.name).await?;
        }
        let claimed = paths.iter().map(|p| (p.name.clone(), p.listen.clone(), p.upstream.clone())).collect();
        // On disk before the first proxy is made, so that a lab that is killed leaves nothing unexplained.
        Claim::ours(url, claimed).write(url)
    }

    /// Deletes the proxies, and with them every toxic.
    ///
    /// # Errors
    /// Exit 6 with the names of those that may still be there.
    pub async fn close(&mut self) -> Result<()> {
        let mut left = Vec::new();
        let mut why = String::new();
        let mut silent = false;
        for path in self.made.drain(..) {
            if silent {
                left.push(path.name);
                continue;
            }
            match self.client.delete_proxy(&path.name).await {
                Ok(()) => {}
                Err(error) if error.kind == FaultKind::NotFound => {}
                Err(error) => {
                    // A server that stands still is not told more: it would do that at some later time.
                    silent |= error.kind == FaultKind::Timeout && self.client.version().await.is_err();
                    left.push(path.name);
                    why = error.to_string();
                }
            }
        }
        if left.is_empty() {
            if self.outside {
                Claim::remove(self.client.base_url());
            }
            return Ok(());
        }
        Err(Expected::dirty(
            format!("proxies may be left on {}: {} ({why})", self.client.base_url(), left.join(", ")),
            "`llmfo drill clean` finds and removes them when the server answers",
        ))
    }
}

/// Removes what labs that are gone have left on fault servers outside, as far as it stands there exactly as they made it.
/// For each server: what was removed, in a sentence, or why that may not be all. `silent`: servers that are known to answer
/// nothing; they are not asked again.
pub async fn remove_dead(
    state: &std::path::Path,
    silent: &[String],
) -> Vec<(String, std::result::Result<Option<String>, String>)> {
    let mut out = Vec::new();
    for (file, claim) in Claim::dead(state) {
        if silent.contains(&claim.server) {
            let why = format!("the lab of process {} is gone, and its proxies may be left there", claim.pid);
            out.push((claim.server, Err(why)));
            continue;
        }
        // A lab that begins there just now does this itself, and then the claim is its own. Held until the claim is gone.
        let alone = Alone::beside(&file);
        let removed = match &alone {
            Ok(None) => continue,
            Ok(Some(_)) if !Claim::dead(state).contains(&(file.clone(), claim.clone())) => continue,
            Ok(Some(_)) => removed(&claim).await,
            Err(e) => Err(format!("its lock cannot be taken: {e}")),
        };
        if removed.is_ok() {
            // A stale claim of a dead process does no harm.
            let _ = std::fs::remove_file(file);
        }
        let at = crate::units::printable(&claim.server, 100);
        let said = match removed {
            Ok(0) => Ok(None),
            Ok(n) => Ok(Some(format!("the lab of process {} is gone; removed its {n} proxies on {at}", claim.pid))),
            Err(why) => {
                Err(format!("the lab of process {} is gone, and its proxies may be left on {at}: {why}", claim.pid))
            }
        };
        out.push((claim.server, said));
    }
    out
}

async fn removed(claim: &Claim) -> std::result::Result<usize, String> {
    let client = Client::new(&claim.server).map_err(|e| e.to_string())?;
    let there = match client.proxies().await {
        Ok(there) => there,
        // A server that is gone has taken them along.
        Err(e) if e.kind == FaultKind::Unreachable => return Ok(0),
        Err(e) => return Err(e.to_string()),
    };
    let mut n = 0;
    for proxy in there.values().filter(|p| claim.holds(&p.name, &p.listen, &p.upstream)) {
        match client.delete_proxy(&proxy.name).await {
            Err(e) if e.kind != FaultKind::NotFound => return Err(e.to_string()),
            _ => n += 1,
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a dead lab has left is the business of the lab that begins there now: its claim lies in the same file.
    #[tokio::test]
    async fn a_lab_that_begins_keeps_others_from_its_claim() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("lab-x.json");
        // No process has this number: the largest that Linux gives is 4194304. Nobody listens on port 9.
        let claim = Claim { pid: 4_194_305, ..Claim::ours("http://127.0.0.1:9", Vec::new()) };
        std::fs::write(&file, serde_json::to_vec(&claim).unwrap()).unwrap();
        let begins = Alone::beside(&file).unwrap().unwrap();
        assert_eq!(remove_dead(state.path(), &[]).await, []);
        assert!(file.exists());
        drop(begins);
        assert_eq!(remove_dead(state.path(), &[]).await, [("http://127.0.0.1:9".to_owned(), Ok(None))]);
        assert!(!file.exists());
    }
}
