//! Where customers come in: gateways of the run's own, or those that were named; each must answer before the load begins.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Reporter;
use super::lab::{Felt, feel, status};
use super::stage::{Ground, LOOK, Run, Stage, TICK};
use crate::error::{Expected, Result};
use crate::load::Entry;

/// An entry must answer within this after its gateway is up.
const ENTRY_READY: Duration = Duration::from_secs(10);

impl Run<'_> {
    /// Starts the gateways of an embedded run and waits until every entry answers.
    pub(super) async fn entries(
        &mut self,
        ground: &Ground,
        stage: &mut Stage,
        logs: &std::path::Path,
        tell: &mut dyn Reporter,
    ) -> Result<Vec<Entry>> {
        if let Some(embedded) = &mut stage.embedded
            && self.options.targets.is_empty()
        {
            tell.state("starting a gateway in each region");
            let settings = self.embedded_settings(logs);
            embedded.start_gateways(&settings, &ground.topology).await?;
        }
        let entries: Vec<Entry> = if self.options.targets.is_empty() {
            let of = |e: &crate::lab::topology::EntryAt| Entry { name: e.name.clone(), url: e.url.clone() };
            ground.topology.entries.iter().map(of).collect()
        } else {
            let named = |(n, url): (usize, &String)| {
                let name = if n == 0 { "target".to_string() } else { format!("target-{}", n + 1) };
                Entry { name, url: url.clone() }
            };
            self.options.targets.iter().enumerate().map(named).collect()
        };
        self.targets = entries.iter().map(|e| e.url.clone()).collect();
        for entry in &entries {
            let own = ground.topology.entries.iter().find(|e| e.url == entry.url && stage.embedded.is_none());
            self.answers(entry, own.map(|e| e.listen.as_str())).await?;
        }
        for url in &self.options.targets {
            with_its_path(url).await?;
        }
        self.through_what_is_cut(ground)?;
        Ok(entries)
    }

    /// An entry that is cut must be one that customers use, or nothing of it is felt.
    fn through_what_is_cut(&self, ground: &Ground) -> Result<()> {
        if self.options.targets.is_empty() {
            return Ok(());
        }
        let same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
        for path in ground.plan.rounds.iter().flat_map(|r| &r.faults).map(|f| &f.path).filter(|p| p.role == "entry") {
            if self.options.targets.iter().any(|url| same(url, &path.url)) {
                continue;
            }
            let at = ground.topology.entries.iter().find(|e| e.proxy == path.proxy).map_or("", |e| e.listen.as_str());
            return Err(Expected::usage(
                format!("this drill cuts {}, and no --target is reached through it", path.proxy),
                format!(
                    "let your gateway of {} listen on {at}, and name the lab's entry: --target {}",
                    path.region, path.url
                ),
            ));
        }
        Ok(())
    }

    async fn answers(&self, entry: &Entry, listen: Option<&str>) -> Result<()> {
        let until = Instant::now() + ENTRY_READY;
        loop {
            let met = feel(&entry.url, "/models", LOOK).await;
            match met {
                Felt::Answered => return Ok(()),
                _ if self.stopped() => return Ok(()),
                met if Instant::now() > until => {
                    let what = format!("{} ({}) does not answer: {}", entry.name, entry.url, met.text());
                    // Without a target the lab's own entry was tried, behind which nobody has to listen yet.
                    let hint = listen.map_or_else(
                        || "is the gateway up, and does its URL end in /v1?".to_owned(),
                        |at| {
                            format!(
                                "start `llmfo serve --listen {at}` of that region, or name your gateway with --target"
                            )
                        },
                    );
                    return Err(Expected::could_not(what, hint));
                }
                _ => sleep(TICK).await,
            }
        }
    }
}

/// A base URL that lacks its `/v1`: every request of the load would get the same 404. A gateway that has no `/models` at either
/// place is believed.
async fn with_its_path(url: &str) -> Result<()> {
    if status(url, "/models", LOOK).await != Some(404) {
        return Ok(());
    }
    let longer = format!("{}/v1", url.trim_end_matches('/'));
    match status(&longer, "/models", LOOK).await {
        None | Some(404) => Ok(()),
        Some(_) => Err(Expected::usage(
            format!("--target {url}: it has no /models there, but below /v1 it has"),
            format!("--target {longer}"),
        )),
    }
}
