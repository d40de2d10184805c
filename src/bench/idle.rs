//! What open streams cost that say nothing: resident memory of the gateway, a long answer each.

use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use super::asked::Asked;
use super::cells::Request;
use super::client::Client;
use super::driver::Numbers;
use super::proc;
use super::stage::Running;

/// So many are being opened at one moment.
const AT_ONCE: usize = 64;
/// Once they stand, the process has this long to settle.
const SETTLE: Duration = Duration::from_secs(1);

/// The figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IdleStreams {
    /// Wanted.
    pub wanted: usize,
    /// Open, each with its first word.
    pub open: usize,
    /// Resident MB before the first.
    pub resident_before_mb: Option<f64>,
    /// ... and with all of them open.
    pub resident_mb: Option<f64>,
}

/// Opens so many streams, and closes them again.
pub async fn hold(gateway: &Running, wanted: usize, numbers: &Numbers) -> IdleStreams {
    let request = Request::new(&gateway.way, true, false, &Asked { hold: true, ..Asked::default() });
    let resident_before_mb = proc::resident_mb(gateway.pid);
    let mut held = Vec::with_capacity(wanted);
    let mut opening = JoinSet::new();
    for n in 0..wanted {
        if n >= AT_ONCE {
            held.extend(opening.join_next().await.and_then(Result::ok).flatten());
        }
        let mut request = request.clone();
        request.number(numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let mut client = Client::new(gateway.way.to);
        opening.spawn(async move { client.begin(&request.bytes).await.then_some(client) });
    }
    while let Some(one) = opening.join_next().await {
        held.extend(one.ok().flatten());
    }
    tokio::time::sleep(SETTLE).await;
    IdleStreams { wanted, open: held.len(), resident_before_mb, resident_mb: proc::resident_mb(gateway.pid) }
}
