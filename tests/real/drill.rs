//! Drills through a real Toxiproxy: the same verdicts, and a guard that heals when the runner is killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::toxiproxy::real;

/// One drill at a time: they measure time.
pub static TURN: Mutex<()> = Mutex::new(());

pub const LLMFO: &str = env!("CARGO_BIN_EXE_llmfo");

fn passes(name: &str) {
    let Some(rig) = real() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", rig.api);
    let report = dir.path().join("report");
    let out = Command::new(LLMFO)
        .args(["drill", "run", name, "--toxiproxy", &url, "--report"])
        .arg(&report)
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    // What this server cannot count is said beside the verdict.
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("PASS (") && last.ends_with(" not judged)"), "{last}");
    let summary: Value = serde_json::from_slice(&std::fs::read(report.join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["cleanup"], "clean");
    // What this server cannot show is said.
    assert!(!summary["run"]["not_exercised"].as_array().unwrap().is_empty());
    assert_eq!(rig.get("/proxies").json(), serde_json::json!({}), "nothing of ours is left on it");
}

#[test]
fn region_outage_gives_the_same_verdict() {
    passes("region-outage");
}

#[test]
fn midstream_break_gives_the_same_verdict() {
    passes("midstream-break");
}

#[test]
fn the_guard_heals_when_the_runner_is_killed() {
    let Some(rig) = real() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", rig.api);
    let mut run = Command::new(LLMFO)
        .args(["drill", "run", "region-outage", "--toxiproxy", &url, "--report"])
        .arg(dir.path().join("report"))
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let toxics = || {
        let all = rig.get("/proxies").json();
        let each = all.as_object().unwrap().values().map(|p| p["toxics"].as_array().unwrap().len());
        (all.as_object().unwrap().len(), each.sum::<usize>())
    };
    wait(Duration::from_secs(60), || toxics().1 >= 10);
    run.kill().unwrap();
    run.wait().unwrap();
    wait(Duration::from_secs(10), || toxics() == (0, 0));
    let folder = dir.path().join("state/llmfo/drills");
    wait(Duration::from_secs(10), || last_line(&folder).contains("\"by\":\"guard\""));
    assert!(last_line(&folder).contains("\"cleanup\":\"clean\""), "{}", last_line(&folder));
}

fn last_line(folder: &Path) -> String {
    let log = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    std::fs::read_to_string(log).unwrap().lines().last().unwrap_or_default().to_string()
}

pub fn wait(limit: Duration, mut ok: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !ok() {
        assert!(Instant::now() < end, "not within {limit:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
