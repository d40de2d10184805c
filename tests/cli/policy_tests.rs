//! `llmfo validate --tests` as its user meets it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SUPPORT: &str = include_str!("fixtures/support.yaml");

fn run(dir: &Path, tests: &str, more: &[&str]) -> Output {
    std::fs::write(dir.join("support.yaml"), SUPPORT).unwrap();
    std::fs::write(dir.join("t.yaml"), tests).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.current_dir(dir).args(["validate", "--tests", "t.yaml"]).args(more).env_remove("CLICOLOR_FORCE");
    command.output().unwrap()
}

fn said(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

/// One test with this health and these questions.
fn file(health: &str, ask: &str) -> String {
    format!(
        "format: 1\npolicy: support.yaml\ntests:\n  - name: n\n    route: support-chat\n    health:\n      {health}\n    ask: [{ask}]\n"
    )
}

#[test]
fn what_ships_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    let o = command.current_dir(root).args(["validate", "--tests", "policies/tests/support.yaml"]).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", said(&o));
    assert!(said(&o).contains("10 of 10 questions"), "{}", said(&o));
}

/// The file of tests is what its writer has open: the line in it is named, not only the file that is missing.
#[test]
fn a_policy_that_is_not_there_is_told_with_the_line_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let tests =
        file("local-a: up x5", "{ at: 2m, expect: local-a }").replace("policy: support.yaml", "policy: gone.yaml");
    let o = run(dir.path(), &tests, &[]);
    assert_eq!(o.status.code(), Some(2), "{}", said(&o));
    assert!(
        said(&o).contains("t.yaml:2: cannot read ./gone.yaml") || said(&o).contains("t.yaml:2: cannot read gone.yaml"),
        "{}",
        said(&o)
    );
}

/// The state of a target and the reason why it is passed over have two words.
#[test]
fn the_word_for_a_state_is_answered_with_the_word_for_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let ask = "{ at: 12m, intent: refund, tools: [issue_refund], expect: local-b, because: \"local-a: cooling\" }";
    let o = run(dir.path(), &file("local-a: up x5, down x10", ask), &[]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    assert!(said(&o).contains("is passed over as `open`"), "{}", said(&o));
}

#[test]
fn a_wrong_expectation_fails_with_what_happened_instead() {
    let dir = tempfile::tempdir().unwrap();
    let tests = file("local-a: up x5, down x10", "{ at: 12m, intent: refund, tools: [issue_refund], expect: local-a }");
    let line = tests.lines().position(|l| l.contains("at: 12m")).unwrap() + 1;
    let o = run(dir.path(), &tests, &[]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    let place = format!(":{line})");
    for words in [
        "FAIL  n",
        &place,
        "at 12m, intent refund, tools issue_refund: expected local-a",
        "got local-b",
        "local-a: open",
        "0 of 1",
    ] {
        assert!(said(&o).contains(words), "{words}: {}", said(&o));
    }
    let o = run(dir.path(), &tests, &["--format", "json"]);
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!((&v["asked"], &v["held"], &v["questions"][0]["got"]), (&1.into(), &0.into(), &"local-b".into()));
}

#[test]
fn the_reason_is_part_of_the_expectation() {
    let dir = tempfile::tempdir().unwrap();
    for (because, code) in [("open", 0), ("\"local-a: open\"", 0), ("cooling", 1), ("\"local-b: open\"", 1)] {
        let ask = format!("{{ at: 12m, expect: local-b, because: {because} }}");
        let o = run(dir.path(), &file("local-a: up x5, down x10", &ask), &[]);
        assert_eq!(o.status.code(), Some(code), "{because}: {}", said(&o));
    }
}

#[test]
fn every_word_does_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    for (word, reason) in [
        ("down", "open"),
        ("silent", "open"),
        ("error", "open"),
        ("cut", "open"),
        ("limited", "cooling"),
        ("unauthorized", "benched"),
    ] {
        let ask = format!("{{ at: 8m, expect: local-b, because: \"local-a: {reason}\" }}");
        let o = run(dir.path(), &file(&format!("local-a: up x5, {word} x10"), &ask), &[]);
        assert_eq!(o.status.code(), Some(0), "{word}: {}", said(&o));
    }
}

#[test]
fn mistakes_are_found_at_their_place_all_together() {
    let dir = tempfile::tempdir().unwrap();
    let tests = file("local-x: up x5, dwn", "{ at: 5 minutes, expect: local-bb }");
    let o = run(dir.path(), &tests, &[]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    for words in ["local-x", "`dwn` is none of", "5 minutes", "local-bb", "t.yaml:7:7", "4 errors"] {
        assert!(said(&o).contains(words), "{words}: {}", said(&o));
    }
    assert_eq!(said(&o).matches("next:").count(), 4, "each says what to do: {}", said(&o));
    let o = run(dir.path(), "format: 1\npolicy: support.yaml\ntests: []\n", &[]);
    assert_eq!(o.status.code(), Some(1), "no test is no silent green: {}", said(&o));
}

#[test]
fn a_time_without_its_unit_is_told_how_to_write_it_and_hides_no_other_mistake() {
    let dir = tempfile::tempdir().unwrap();
    for at in ["30", "\"30\""] {
        let ask = format!("{{ at: {at}, expect: local-bb }}, {{ at: 1m, expect: local-cc }}");
        let o = run(dir.path(), &file("local-x: up x5", &ask), &[]);
        assert_eq!(o.status.code(), Some(1), "{}", said(&o));
        for words in ["`at: 30s` or `at: 30m`", "local-bb", "local-cc", "local-x", "4 errors"] {
            assert!(said(&o).contains(words), "{words}: {}", said(&o));
        }
    }
    // What is missing, or of a wrong type, is one finding, and hides none either.
    let tests =
        file("local-a: 5", "{ at: 1m, expect: 3 }, { expect: local-bb }").replace("    route: support-chat\n", "");
    let o = run(dir.path(), &tests, &[]);
    for words in
        ["`tests[0].health.local-a`", "`tests[0].ask[0].expect`", "key `route`", "key `at`", "local-bb", "5 errors"]
    {
        assert!(said(&o).contains(words), "{words}: {}", said(&o));
    }
}

#[test]
fn a_file_of_tests_given_as_a_policy_is_known_as_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.yaml"), file("local-a: up", "{ at: 5m, expect: local-a }")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    let o = command.current_dir(dir.path()).args(["validate", "t.yaml"]).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", said(&o));
    assert!(said(&o).contains("`llmfo validate --tests FILE` runs them"), "{}", said(&o));
}

#[test]
fn nothing_of_a_file_reaches_the_terminal_raw() {
    let dir = tempfile::tempdir().unwrap();
    let ask = r#"{ at: 1m, expect: local-b, because: "x\e[31m" }"#;
    let o = run(dir.path(), &file("local-a: up", ask), &[]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    assert!(!o.stdout.contains(&0x1b) && !o.stderr.contains(&0x1b), "{}", said(&o));
}

#[test]
fn a_missing_policy_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let o =
        run(dir.path(), &file("local-a: up", "{ at: 1m, expect: local-a }").replace("support.yaml", "no.yaml"), &[]);
    assert_eq!(o.status.code(), Some(2), "{}", said(&o));
    assert!(said(&o).contains("no.yaml"), "{}", said(&o));
}
