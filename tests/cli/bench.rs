//! `llmfo bench gateway`, in small: it measures, it says what it cannot do, and nothing of it stays behind.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.args(["bench", "gateway"]).env("TMPDIR", temporary).env_remove("LLMFO_ENVOY").stdin(Stdio::null());
    command
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn without_envoy_it_cannot_run_and_says_what_to_do() {
    let temporary = tempfile::tempdir().unwrap();
    let told = |command: &mut Command| {
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(3));
        assert!(out.stdout.is_empty());
        String::from_utf8(out.stderr).unwrap()
    };
    let absent = told(&mut bench(temporary.path()));
    for way in ["--envoy", "LLMFO_ENVOY", "--without-envoy"] {
        assert!(absent.contains(way), "{absent}");
    }
    let wrong = told(bench(temporary.path()).args(["--envoy", "/no/such/envoy"]));
    assert!(wrong.contains("there is no Envoy at /no/such/envoy"), "{wrong}");
    let other = told(bench(temporary.path()).args(["--envoy", env!("CARGO_BIN_EXE_llmfo")]));
    assert!(other.contains("its version is not Envoy's"), "{other}");
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_small_run_measures_every_cell_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    // The provider itself stands for a gateway that runs already.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let provider = format!("127.0.0.1:{port}");
    let out = bench(temporary.path())
        .args(["--without-envoy", "--rounds", "1", "--seconds", "1", "--idle-streams", "70", "--soak", "0.05"])
        .args(["--provider", &provider, "--peer", &format!("same=http://{provider}/v1"), "--format", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    // Three seconds of soak are too little to be a verdict.
    assert_eq!(out.status.code(), Some(5), "{said}");
    let got: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&got["format"], &got["verdict"], &got["envoy"]), (&1.into(), &"INCONCLUSIVE".into(), &Value::Null));
    for cell in ["json_c32", "json_c1", "stream_c32", "burst_c32", "history_c32"] {
        for side in ["direct", "gateway", "same"] {
            let told = &got["absolute"][cell][side];
            assert!(told["answers"].as_u64().unwrap() > 0 && told["bad"] == 0, "{cell} {side}: {told}");
            assert!(told["rps"]["median"].as_f64().unwrap() > 0.0, "{cell} {side}: {told}");
            assert_eq!(
                told["first_word_ms"].is_null(),
                !cell.contains("stream") && cell != "burst_c32",
                "{cell} {side}"
            );
        }
        assert!(got["absolute"][cell]["gateway"]["cpu_s_per_1k"].is_object(), "{cell}");
        assert!(got["absolute"][cell]["direct"]["cpu_s_per_1k"].is_null(), "{cell}");
    }
    // Fifty chunks, 49 of them 5 ms after the one before: a stream takes 245 ms at least.
    assert!(got["absolute"]["stream_c32"]["direct"]["p50_ms"]["median"].as_f64().unwrap() >= 245.0);
    assert!(got["vs_peer"]["same"]["rps_c32"].as_f64().unwrap() > 0.0);
    let start = &got["start"]["gateway"];
    assert_eq!((&start["start_to_first_answer_s"]["n"], &start["resident_mb"]["n"]), (&5.into(), &5.into()));
    assert_eq!((&got["idle_streams"]["wanted"], &got["idle_streams"]["open"]), (&70.into(), &70.into()));
    let soak = &got["soak"];
    assert_eq!((&soak["in_flight_end"], &soak["wrong"]), (&0.0.into(), &serde_json::json!({})), "{soak}");
    assert_eq!(soak["requests"], soak["whole"].as_u64().unwrap() + soak["error_events"].as_u64().unwrap());
    assert!(got["policy"].as_str().unwrap().contains(&format!("http://{provider}/v1")));
    assert!(is_empty(temporary.path()), "something is left in the folder for temporary files");
}

/// Processes whose parent is this one.
fn children_of(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        behind.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    pids.filter(is_child).collect()
}

#[test]
fn ctrl_c_ends_all_of_it() {
    let temporary = tempfile::tempdir().unwrap();
    let mut run = bench(temporary.path())
        .args(["--without-envoy", "--rounds", "101", "--seconds", "5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("round 1") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before the first round");
    }
    let children = children_of(run.id());
    assert_eq!(children.len(), 2, "the provider and the gateway");
    kill_process(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let began = Instant::now();
    let status = run.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(status.code(), Some(130));
    let mut out = String::new();
    run.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "", "half a measurement is none");
    for child in children {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "{child} is left");
    }
    assert!(is_empty(temporary.path()));
}
