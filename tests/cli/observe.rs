//! `serve --observe` as its operator meets it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

fn policy(folder: &Path, targets: &str) -> std::path::PathBuf {
    let path = folder.join("p.yaml");
    let text = format!(
        "version: v1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a: {{ base_url: \"http://127.0.0.1:9/v1\", model: m }}\n  \
         b: {{ base_url: \"http://127.0.0.1:9/v1\", model: n }}\npools:\n  all: {{ targets: [{targets}], select: priority }}\n\
         routes:\n  - route: chat\n    data: none\n    deadline_ms: 4000\n    reserve_ms: 200\n    max_attempts: 2\n    \
         connect_timeout_ms: 300\n    idle_timeout_ms: 500\n    attempts:\n      \
         - {{ pool: all, first_token_timeout_ms: 500, pii: allowed }}\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn serve(policy: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.args(["serve", "--observe", "--listen", "127.0.0.1:0", "--ledger", "memory", "--policy"]).arg(policy);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn its_first_line_says_that_it_only_observes() {
    let dir = tempfile::tempdir().unwrap();
    let policy = policy(dir.path(), "a, b");
    let first = |more: &[&str]| {
        let mut gateway = serve(&policy).arg("--exit-with-stdin").args(more).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(gateway.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        drop(gateway.stdin.take());
        assert!(gateway.wait().unwrap().success(), "{line}");
        line
    };
    let said = first(&[]);
    assert!(said.starts_with("OBSERVE only the first target of a route is asked"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&first(&["--format", "json"])).unwrap();
    assert_eq!(json["observe"], true);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |command: &mut Command| {
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(2), "{said}");
        said
    };
    let alone = policy(dir.path(), "a");
    let said = refused(&mut serve(&alone));
    assert!(said.contains("there is nothing to observe"), "{said}");
    // What goes into the core is played again by a core that fails over.
    let both = policy(dir.path(), "a, b");
    let said = refused(serve(&both).arg("--record-inputs").arg(dir.path().join("i.jsonl")));
    assert!(said.contains("--record-inputs"), "{said}");
}
