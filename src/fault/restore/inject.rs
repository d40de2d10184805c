//! Injection: intent on disk, call, answer on disk, one change after the other.

use super::plan::{Act, Step};
use super::{PREFIX, See};
use crate::error::{Expected, Result};
use crate::fault::client::{Client, NewToxic, ProxyChange};
use crate::fault::clock::monotonic_ms;
use crate::fault::error::FaultError;
use crate::fault::wal::{Change, Entry, Stamp, Wal, next_number};

/// What keeps a fault alive on a server of ours. A real server ignores neither: leave both empty there, and run a guard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// A lease that lives.
    pub lease: Option<String>,
    /// Toxics end by themselves after that, whatever happens to the lease.
    pub expires_in_ms: Option<u64>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Toxics by proxy and name.
    pub toxics: Vec<(String, String)>,
    /// Proxies that were disabled.
    pub disabled: Vec<String>,
    /// When the server acknowledged the last change: monotonic clock, milliseconds.
    pub acknowledged_ms: u64,
}

/// Makes the changes. The log has to hold the beginning of the run already.
///
/// # Errors
/// The log cannot be written (nothing is sent then), or a call failed. Whatever was done until then is in the log:
/// [`super::restore`] undoes it.
pub async fn inject(client: &Client, steps: &[Step], hold: &Hold, wal: &mut dyn Wal) -> Result<Injected> {
    let run = wal.entries().iter().rev().find_map(|e| match e {
        Entry::Begin { begin, .. } => Some(begin.run.clone()),
        _ => None,
    });
    let run =
        run.ok_or_else(|| Expected::could_not("the log of this run has no beginning, so nothing is injected", ""))?;
    let mut done = Injected::default();
    for step in steps {
        let n = next_number(wal.entries());
        let name = format!("{PREFIX}{run}.{n}");
        let change = match &step.act {
            Act::Toxic(stream, spec) => {
                let toxic = NewToxic {
                    lease: hold.lease.clone(),
                    expires_in_ms: hold.expires_in_ms,
                    ..NewToxic::new(name.clone(), *stream, *spec)
                };
                Change::AddToxic { proxy: step.proxy.clone(), toxic }
            }
            Act::Disable => Change::SetEnabled { proxy: step.proxy.clone(), enabled: false },
        };
        let result = logged(client, change, n, hold.lease.as_deref(), wal).await?;
        result.map_err(Expected::from)?;
        done.acknowledged_ms = monotonic_ms();
        match step.act {
            Act::Toxic(..) => done.toxics.push((step.proxy.clone(), name)),
            Act::Disable => done.disabled.push(step.proxy.clone()),
        }
    }
    Ok(done)
}

/// Intent, call, answer. The outer error is the log's.
async fn logged(
    client: &Client,
    change: Change,
    n: u64,
    lease: Option<&str>,
    wal: &mut dyn Wal,
) -> Result<std::result::Result<(), FaultError>> {
    wal.append(Entry::Intent { at: Stamp::now(), n, change: change.clone() })?;
    let result = match &change {
        Change::AddToxic { proxy, toxic } => client.add_toxic(proxy, toxic).await.map(|_| ()),
        Change::SetEnabled { proxy, enabled } => {
            let change = ProxyChange { lease: lease.map(str::to_owned), ..ProxyChange::enabled(*enabled) };
            client.update_proxy(proxy, &change).await.map(|_| ())
        }
        Change::RemoveToxic { proxy, name } => client.remove_toxic(proxy, name).await,
        Change::DeleteProxy { proxy } => client.delete_proxy(proxy).await,
        Change::CreateProxy { .. } => Ok(()),
    };
    let text = match &result {
        Ok(()) => "done and read back".to_owned(),
        Err(e) => e.to_string(),
    };
    wal.append(Entry::Answer { at: Stamp::now(), n, ok: result.is_ok(), text })?;
    Ok(result)
}

/// Removes the toxics of an earlier injection of this run before its end, for faults that come and go.
impl Injected {
    /// Undoes this injection alone: its toxics are removed and its proxies enabled. What the rest of the run did stays.
    ///
    /// # Errors
    /// As [`inject`]; [`super::restore`] copes with whatever is left.
    pub async fn lift(&self, client: &Client, wal: &mut dyn Wal) -> Result<()> {
        let removals =
            self.toxics.iter().map(|(proxy, name)| Change::RemoveToxic { proxy: proxy.clone(), name: name.clone() });
        let enables = self.disabled.iter().map(|proxy| Change::SetEnabled { proxy: proxy.clone(), enabled: true });
        for change in removals.chain(enables) {
            let n = next_number(wal.entries());
            match logged(client, change, n, None, wal).await? {
                Ok(()) => {}
                Err(e) if e.kind == crate::fault::error::FaultKind::NotFound => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl See {
    /// As drill files name it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            See::Refused => "refused",
            See::ConnectTimeout => "connect_timeout",
            See::Silence => "silence",
            See::Reset => "reset",
            See::Fin => "fin",
            See::Slow { .. } => "slow",
            See::CutAfter { .. } => "cut_after",
        }
    }
}
