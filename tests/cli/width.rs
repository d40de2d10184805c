//! No printed line is longer than the terminal is wide.

use std::process::Command;

fn said(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_llmfo")).args(args).env("COLUMNS", "80").output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn fits(args: &[&str], text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{args:?}: {} columns: {line}", line.chars().count());
    }
}

#[test]
fn texts_fit_a_terminal_of_eighty_columns() {
    let root = env!("CARGO_MANIFEST_DIR");
    let support = format!("{root}/policies/support.yaml");
    for args in [
        &["explain", "--list"][..],
        &["simulate", "--list"],
        &["simulate", "dual-channel", "--months", "1"],
        &["simulate", "--policy", &support, "--months", "1"],
        &["simulate", "--swarm", "2"],
        &["drill", "list"],
    ] {
        fits(args, &said(args));
    }
    let codes = said(&["explain", "--list"]);
    let codes: Vec<&str> = codes.lines().filter(|l| l.starts_with("LF")).filter_map(|l| l.get(..5)).collect();
    assert!(codes.len() > 40, "{codes:?}");
    for code in codes {
        // Pieces of a file stay as they are to be written.
        let text = said(&["explain", code]);
        fits(&["explain", code], text.split("\nGood\n").next().unwrap());
    }
}

#[test]
fn without_a_terminal_every_rule_is_a_line() {
    let out =
        Command::new(env!("CARGO_BIN_EXE_llmfo")).args(["explain", "--list"]).env_remove("COLUMNS").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let first = |l: &str| l.split(' ').next().unwrap_or_default().to_owned();
    let known = |l: &str| l.starts_with("LF") || llmfo::drill::codes::all().any(|c| c.name == first(l));
    assert!(text.lines().all(known), "{text}");
}
