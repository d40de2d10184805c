//! `llmfo trace`: a journal alone tells what became of one customer.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::gateway::{Change, Rig, body};
use crate::http;
use crate::mock::{self, Mock, good};

fn trace(id: &str, journal: &Path, more: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    run.args(["trace", id, "--journal"]).arg(journal).args(more).env("COLUMNS", "200").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn one_customers_story_is_told_without_a_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    let (a, b) = (Mock::start(mock::status("503 Down", "{}")), Mock::start(good("bravo")));
    let breaker = "{ consecutive_failures: 2, base_cooldown_s: 60 }";
    let change = Change { journal: Some(journal.clone()), breaker, ..Change::default() };
    let mut rig = Rig::with(&[("a", a.address), ("b", b.address)], change);
    let ask = |conversation: &str, turn: &str| {
        let headers = [("x-llmfo-conversation", conversation), ("x-llmfo-turn", turn)];
        let got = http::chat(rig.listen, &body(true), &headers);
        assert_eq!(got.content(), "bravo one two");
        got.header("x-llmfo-request-id").unwrap().to_owned()
    };
    let first = ask("c-1", "1");
    ask("c-2", "1");
    let third = ask("c-1", "2");
    rig.stop(Duration::from_secs(1));
    // A gateway that was killed leaves half a line.
    std::fs::OpenOptions::new().append(true).open(&journal).unwrap().write_all(b"{\"v\":1,\"se").unwrap();

    let told = trace(&first, &journal, &[]);
    let said = text(&told.stdout);
    assert_eq!((told.status.code(), text(&told.stderr).as_str()), (Some(0), ""), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("{first}  conversation c-1 turn 1"));
    assert!(lines[1].starts_with("  route chat, streamed, policy test-1 ("), "{said}");
    let in_order = [
        "arrived",
        "a: dialled, first choice (4000 ms left)",
        "a: connected",
        "a: status_503 (provider)",
        "b: dialled, after a: status_503",
        "b: first sign of life",
        "b: committed",
        "b: answer complete",
        "over: answered by b, 2 dials",
    ];
    let mut from = 0;
    for what in in_order {
        let at = said[from..].find(what).unwrap_or_else(|| panic!("{what} is missing or too early in\n{said}"));
        from += at;
    }
    assert!(!said.contains("c-2"), "another customer: {said}");

    // The breaker opened at the second failure: the third was not sent there, and since when is told.
    let said = text(&trace("c-1/2", &journal, &[]).stdout);
    assert!(said.contains(&third) && !said.contains(&first), "{said}");
    let since = said.lines().find(|l| l.contains("  a: cooling for ")).unwrap_or_else(|| panic!("{said}"));
    assert!(since.ends_with(" s (consecutive_failures)"), "{said}");
    assert!(said.contains("passed over  a (open)"), "{said}");
    assert!(said.contains("over: answered by b, 1 dial\n"), "{said}");

    let both: serde_json::Value =
        serde_json::from_slice(&trace("c-1", &journal, &["--format", "json"]).stdout).unwrap();
    let requests: Vec<&str> =
        both["requests"].as_array().unwrap().iter().map(|r| r["request"].as_str().unwrap()).collect();
    assert_eq!(requests, [first.as_str(), third.as_str()]);

    let none = trace("c-3", &journal, &[]);
    assert_eq!((none.status.code(), text(&none.stdout).as_str()), (Some(4), ""));
    assert!(text(&none.stderr).contains("nothing of c-3 is in") && text(&none.stderr).contains("next:"));
}

#[test]
fn what_is_no_journal_is_said_and_what_is_damaged_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.jsonl");
    let missing = trace("x", &path, &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("next:"), "{}", text(&missing.stderr));
    std::fs::write(&path, "version: v\nserial: 1\n").unwrap();
    let other = trace("x", &path, &[]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("is no journal"), "{}", text(&other.stderr));
    let event = r#"{"v":1,"seq":1,"at_unix_ms":1000,"mono_ns":1,"event":"decision","request":"r\u001b[2J","conversation":"c","turn":1,"record":{"outcome":7}}"#;
    let mut bytes = b"\xff\xfe not text\n{\"half\n".to_vec();
    bytes.extend_from_slice(format!("{event}\n").as_bytes());
    std::fs::write(&path, bytes).unwrap();
    let damaged = trace("c", &path, &[]);
    assert_eq!(damaged.status.code(), Some(0), "{}", text(&damaged.stderr));
    assert!(!text(&damaged.stdout).contains('\u{1b}'), "{:?}", text(&damaged.stdout));
    assert!(text(&damaged.stderr).contains("2 lines could not be read"), "{}", text(&damaged.stderr));
    // A folder of rotated files is read from the oldest on.
    std::fs::write(
        dir.path().join("j.jsonl.1"),
        format!("{}\n", event.replace("r\\u001b[2J", "r-old").replace("1000", "10")),
    )
    .unwrap();
    let both: serde_json::Value = serde_json::from_slice(&trace("c", &path, &["--format", "json"]).stdout).unwrap();
    assert_eq!(both["requests"][0]["request"], "r-old");
    assert_eq!(both["requests"].as_array().unwrap().len(), 2);
}
