//! A gateway takes as many connections as the system lets it, whatever its shell was content with.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn serve_raises_the_soft_limit_of_open_files_to_the_hard_one() {
    let lab = tempfile::tempdir().unwrap();
    let policy = lab.path().join("p.yaml");
    let text = "version: v1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a: { base_url: \"http://127.0.0.1:9/v1\", model: m }\n\
                pools:\n  all: { targets: [a], select: priority }\nroutes:\n  - route: chat\n    data: none\n    deadline_ms: 4000\n    \
                reserve_ms: 200\n    max_attempts: 1\n    connect_timeout_ms: 300\n    idle_timeout_ms: 500\n    attempts:\n      \
                - { pool: all, first_token_timeout_ms: 500, pii: allowed }\n    \
                after_stream_started: return_controlled_error\n    on_all_failed: { handoff: human, correlation_id: true }\n";
    std::fs::write(&policy, text).unwrap();
    let serve = "ulimit -Sn 200; exec \"$0\" serve --policy \"$1\" --listen 127.0.0.1:0 --ledger memory --format json --exit-with-stdin";
    let mut gateway = Command::new("sh")
        .args(["-c", serve, env!("CARGO_BIN_EXE_llmfo"), policy.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(gateway.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.id())).unwrap();
    drop(gateway.stdin.take());
    assert!(gateway.wait().unwrap().success(), "{line}");
    let row = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[3], columns[4], "soft and hard: {row}");
    assert_ne!(columns[3], "200");
}
