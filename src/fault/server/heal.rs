//! What ends by itself: toxics that expire, and everything done under a lease that is no longer kept alive. The rule is
//! stateless (whatever hangs on a lease that does not exist is undone), so it can be applied any number of times.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lease::Leases;
use super::proxy::Proxy;
use super::table::Table;
use crate::fault::api::Healed;
use crate::fault::clock::monotonic_ms;

/// While something has an end, it is looked at no later than this (timers do not count while a machine is suspended).
const LOOK_MAX: Duration = Duration::from_secs(1);
/// What could not be undone is tried again that often.
const RETRY: Duration = Duration::from_millis(250);

/// Why something hangs on nothing any more.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    /// No heartbeat in time.
    RanOut,
    /// Its owner ended it.
    Deleted,
}

impl Why {
    fn text(self) -> String {
        match self {
            Why::RanOut => "lease_ran_out".to_owned(),
            Why::Deleted => "lease_deleted".to_owned(),
        }
    }
}

/// Runs for ever.
pub async fn run(table: Arc<Table>) {
    loop {
        match next(&table) {
            None => table.wake.notified().await,
            Some(wait) => tokio::select! {
                () = table.wake.notified() => {}
                () = sleep(wait) => {}
            },
        }
        table.leases().ran_out();
        sweep(&table, Why::RanOut).await;
    }
}

/// How long nothing can end.
fn next(table: &Table) -> Option<Duration> {
    let now = Instant::now();
    let leases = table.leases();
    let lease = leases.next_ms().map(Duration::from_millis);
    let mut ends: Vec<Duration> = lease.into_iter().collect();
    let orphan = |lease: &Option<String>| lease.as_ref().is_some_and(|id| !leases.has(id));
    for proxy in table.all() {
        let state = proxy.state();
        let over = |at: Instant| if at > now { at - now } else { RETRY };
        ends.extend(state.toxics.iter().filter_map(|t| t.expires).map(over));
        // What has ended and is still there: undoing it failed, or it ended a moment ago.
        if orphan(&state.disabled_by) || state.toxics.iter().any(|t| orphan(&t.lease)) {
            ends.push(RETRY);
        }
    }
    // A millisecond more, so that what ends then has ended.
    ends.into_iter().min().map(|wait| wait.min(LOOK_MAX) + Duration::from_millis(1))
}

/// Undoes whatever has ended.
pub async fn sweep(table: &Table, why: Why) {
    let _one = table.changes.lock().await;
    for proxy in table.all() {
        toxics(table, &proxy, why).await;
        enabled(table, &proxy, why).await;
    }
}

async fn toxics(table: &Table, proxy: &Proxy, why: Why) {
    let now = Instant::now();
    let over: Vec<(u64, Healed)> = {
        let leases = table.leases();
        let state = proxy.state();
        let ended = state.toxics.iter().filter_map(|t| {
            let orphan = t.lease.as_ref().is_some_and(|id| !leases.has(id));
            let why = if orphan {
                why.text()
            } else if t.expires.is_some_and(|at| at <= now) {
                "expired".to_owned()
            } else {
                return None;
            };
            let (lease, name) = (t.lease.clone(), t.name.clone());
            Some((t.id, healed(why, lease, proxy, Some(name), None)))
        });
        ended.collect()
    };
    if over.is_empty() {
        return;
    }
    let result = proxy.change_toxics(|toxics| toxics.retain(|t| over.iter().all(|(id, _)| *id != t.id))).await;
    let failed = result.err().map(|e| e.text);
    let mut leases = table.leases();
    for (_, entry) in over {
        record(&mut leases, Healed { failed: failed.clone(), ..entry });
    }
}

async fn enabled(table: &Table, proxy: &Proxy, why: Why) {
    let lease = proxy.state().disabled_by.clone();
    let Some(lease) = lease.filter(|id| !table.leases().has(id)) else { return };
    if proxy.state().enabled {
        proxy.state().disabled_by = None;
        return;
    }
    let failed = table.enable_again(proxy).await.err().map(|e| e.text);
    let entry = healed(why.text(), Some(lease), proxy, None, failed);
    record(&mut table.leases(), entry);
}

/// A failure that repeats is one entry.
fn record(leases: &mut Leases, entry: Healed) {
    let same = |old: &Healed| Healed { at_ms: entry.at_ms, ..old.clone() } == entry;
    if entry.failed.is_none() || !leases.history().iter().any(same) {
        leases.record(entry);
    }
}

fn healed(why: String, lease: Option<String>, proxy: &Proxy, toxic: Option<String>, failed: Option<String>) -> Healed {
    Healed { at_ms: monotonic_ms(), why, lease, proxy: proxy.name.clone(), toxic, failed }
}
