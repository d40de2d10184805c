//! A reader that has seen enough ends a command quietly, and makes no verdict a better one.

use std::process::{Command, Stdio};

/// Runs it with a stdout that nobody reads any more.
fn unread(args: &[&str], dir: &std::path::Path) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    let out = run.args(args).current_dir(dir).stdin(Stdio::null()).stdout(writer).output().unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn b138_a_closed_pipe_is_quiet_and_keeps_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.yaml"), "version: v\nserial: 0\n").unwrap();
    for (args, exit) in [
        (&["validate", "bad.yaml"][..], 1),
        (&["validate", "bad.yaml", "--format", "json"], 1),
        (&["explain", "LF101"], 0),
        (&["explain", "--list"], 0),
        (&["completions", "bash"], 0),
        (&["validate", "--print-schema", "policy"], 0),
    ] {
        let (code, said) = unread(args, dir.path());
        assert_eq!(code, Some(exit), "{args:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("roken pipe"), "{args:?}: {said}");
    }
}
