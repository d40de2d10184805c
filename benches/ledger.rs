//! What it costs that a tool call is on disk before it leaves: `cargo bench --bench ledger [-- FOLDER]`.
//!
//! So many requests at once each write one call after the other and wait until it is durable. Printed per call: median and 99th
//! percentile of the wait, calls a second, and how many calls shared one wait for the disk. First the disk itself: an append of 512
//! bytes and an fsync. At the end: how long a start takes with a ledger that is full. Figures of one machine and one disk.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its figures, and one that cannot go on may stop"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use llmfo::gateway::ledger::disk::Disk;
use llmfo::gateway::ledger::row::{CallRow, Change, ConversationRow};
use llmfo::gateway::ledger::store::Store;
use llmfo::gateway::ledger::{Ledger, Place};
use llmfo::policy::SideEffects;
use llmfo::router::ledger::CallState;

const SPAN: Duration = Duration::from_secs(3);

fn row(n: u64) -> CallRow {
    CallRow {
        call_id: format!("call_{n:024x}"),
        operation_key: format!("op_{n:032x}"),
        client: "key-0123456789abcdef".into(),
        route: "support-chat".into(),
        conversation: format!("conversation-{n}"),
        turn: 3,
        ordinal: 0,
        tool: "create_ticket".into(),
        side_effects: SideEffects::Keyed,
        arguments: format!("{{\"operation_id\":\"op_{n:032x}\",\"subject\":\"{}\"}}", "x".repeat(200)),
        state: CallState::Delivered,
        since_unix_ms: 1_790_000_000_000 + n,
        changed_unix_ms: 1_790_000_000_000 + n,
    }
}

fn told(mut waits: Vec<f64>, took: Duration) -> String {
    waits.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    format!(
        "p50 {:>7.2} ms  p99 {:>7.2} ms  {:>7.0} a second",
        at(0.5),
        at(0.99),
        waits.len() as f64 / took.as_secs_f64()
    )
}

fn main() {
    let folder = std::env::args().skip(1).find(|a| !a.starts_with('-')).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(folder).unwrap();
    let mut file = std::fs::File::create(dir.path().join("plain")).unwrap();
    let (start, mut waits) = (Instant::now(), Vec::new());
    while start.elapsed() < SPAN {
        let began = Instant::now();
        file.write_all(&[7; 512]).unwrap();
        file.sync_data().unwrap();
        waits.push(began.elapsed().as_secs_f64() * 1e3);
    }
    println!("append and fsync alone     {}", told(waits, start.elapsed()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for at_once in [1u64, 8, 32, 128] {
        let place = Place::File(dir.path().join(format!("{at_once}.redb")));
        let ledger = Arc::new(Ledger::start(&place).unwrap());
        let start = Instant::now();
        let tasks: Vec<_> = (0..at_once)
            .map(|t| {
                let ledger = Arc::clone(&ledger);
                runtime.spawn(async move {
                    let mut waits = Vec::new();
                    let mut n = t << 32;
                    while start.elapsed() < SPAN {
                        let began = Instant::now();
                        let mut written = ledger.write(vec![row(n)], true);
                        assert!(std::future::poll_fn(|cx| written.poll(cx)).await);
                        waits.push(began.elapsed().as_secs_f64() * 1e3);
                        n += 1;
                    }
                    waits
                })
            })
            .collect();
        let waits: Vec<f64> = tasks.into_iter().flat_map(|t| runtime.block_on(t).unwrap()).collect();
        let took = start.elapsed();
        let shown = ledger.shown();
        let group = waits.len() as f64 / shown.groups.load(Ordering::Relaxed) as f64;
        println!("{at_once:>4} requests at once      {}  {group:.1} calls a wait", told(waits, took));
    }
    full(dir.path());
}

/// A start with a ledger as full as it may be.
fn full(folder: &Path) {
    let path = folder.join("full.redb");
    let mut disk = Disk::open(&path).unwrap();
    for group in 0..100u64 {
        let changes: Vec<Change> = (group * 1_000..(group + 1) * 1_000)
            .flat_map(|n| {
                let call = row(n);
                let mut seen = ConversationRow {
                    client: call.client.clone(),
                    route: call.route.clone(),
                    conversation: call.conversation.clone(),
                    ..ConversationRow::default()
                };
                seen.see(3, None, call.since_unix_ms);
                [Change::Seen(seen), Change::Call(call)]
            })
            .collect();
        disk.apply(&changes).unwrap();
    }
    drop(disk);
    let start = Instant::now();
    let ledger = Ledger::start(&Place::File(path.clone())).unwrap();
    let known = ledger.load().unwrap();
    println!(
        "start with {} conversations and {} calls: {:.2} s; file {} MiB",
        known.len(),
        known.iter().map(|k| k.calls.len()).sum::<usize>(),
        start.elapsed().as_secs_f64(),
        path.metadata().unwrap().len() >> 20
    );
}
