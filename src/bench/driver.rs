//! The closed loop: so many connections, each with one request at a time, for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::asked::Asked;
use super::cells::{Cell, Request, Way};
use super::client::{Client, End, Took};
use super::figures::Sample;
use super::proc;
use crate::measure::percentile;

/// After a bad answer, so that a side which refuses is not asked a million times.
const AFTER_BAD: Duration = Duration::from_millis(20);

/// One measured while.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Before it.
    pub warm: Duration,
    /// Its length.
    pub measured: Duration,
}

/// Numbers requests through a whole run: a conversation is never met twice.
pub type Numbers = Arc<AtomicU64>;

/// Runs one cell against one way. `pid`: whose CPU time is told.
pub async fn closed(way: &Way, cell: &Cell, window: Window, pid: Option<u32>, numbers: &Numbers) -> Sample {
    let asked = Asked { gap_ms: cell.gap_ms, ..Asked::default() };
    let request = Request::new(way, cell.stream, cell.history, &asked);
    let from = Instant::now() + window.warm;
    let to = from + window.measured;
    let mut workers = JoinSet::new();
    for _ in 0..cell.connections {
        workers.spawn(worker(way.to, request.clone(), cell.stream, (from, to), Arc::clone(numbers)));
    }
    sleep_until(from).await;
    let before = pid.and_then(proc::cpu_s);
    sleep_until(to).await;
    let after = pid.and_then(proc::cpu_s);
    let mut sample = Sample { seconds: window.measured.as_secs_f64(), ..Sample::default() };
    let (mut totals, mut firsts) = (Vec::new(), Vec::new());
    // Each ends by itself: its last exchange has a limit.
    while let Some(seen) = workers.join_next().await {
        let Ok(seen) = seen else { continue };
        for took in seen {
            if took.end == End::Whole {
                sample.good += 1;
                totals.push(crate::units::ms(took.total));
                firsts.extend(took.first.map(crate::units::ms));
            } else {
                sample.bad += 1;
            }
        }
    }
    sample.cpu_s = before.zip(after).map(|(before, after)| after - before);
    sample.p50_ms = percentile(&totals, 0.5);
    sample.p99_ms = percentile(&totals, 0.99);
    sample.first_ms = percentile(&firsts, 0.5);
    sample
}

async fn worker(
    to: std::net::SocketAddr,
    mut request: Request,
    streamed: bool,
    (from, until): (Instant, Instant),
    numbers: Numbers,
) -> Vec<Took> {
    let mut client = Client::new(to);
    let mut seen = Vec::new();
    while Instant::now() < until {
        request.number(numbers.fetch_add(1, Ordering::Relaxed));
        let took = client.ask(&request.bytes, streamed).await;
        let now = Instant::now();
        // What ends in the window is counted, whenever it began: at both of its edges as much is under way.
        if now >= from && now <= until {
            seen.push(took);
        }
        if took.end != End::Whole {
            sleep(AFTER_BAD).await;
        }
    }
    seen
}
