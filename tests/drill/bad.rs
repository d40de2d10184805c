//! A bad gateway does not pass, and is told why; the exit code says so too (bug case B139).

use crate::stage::{LLMFO, Proc, codes, drill, turn};

fn judged(mode: &str, name: &str, exit: i32, verdict: &str, code: &str) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let admin = up["admin"].as_str().unwrap();
    let (_bad, said) = Proc::start(crate::example::bad_gateway(), &["--mode", mode, "--lab", admin], dir.path());
    let url = format!("http://{}/v1", said["listen"].as_str().unwrap());
    let (got, text, summary, out) = drill(&[name, "--lab", admin, "--target", &url], dir.path());
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(summary["verdict"], verdict, "{text}\n{errors}");
    assert_eq!((got, text.lines().last()), (exit, Some(verdict)));
    assert!(codes(&summary).contains(&code), "{:?}", codes(&summary));
    assert_eq!(summary["cleanup"], "clean");
    // No promise reads well beside a finding of its kind.
    if let Some((promise, row)) = llmfo::drill::judge::held::row_of(code) {
        let promise = &summary["promises"][promise];
        let rows = promise["rows"].as_array().unwrap();
        let row = rows.iter().find(|r| r["name"] == row).unwrap();
        assert_eq!((promise["verdict"].as_str(), row["verdict"].as_str()), (Some("fail"), Some("fail")), "{promise}");
    }
    // This gateway keeps no journal that anybody could look into.
    for line in summary["why"].as_array().unwrap() {
        assert!(!line.as_str().unwrap().contains("journal"), "{line}");
    }
}

#[test]
fn no_failover() {
    judged("no-failover", "region-outage", 1, "FAIL", "no_failover");
}

#[test]
fn hang() {
    judged("hang", "region-outage", 1, "FAIL", "deadline_missed");
}

#[test]
fn b131_bypass() {
    judged("bypass", "region-outage", 5, "INVALID", "fault_bypassed");
}

#[test]
fn truncate() {
    judged("truncate", "midstream-break", 1, "FAIL", "truncated_as_success");
}

#[test]
fn splice() {
    judged("splice", "midstream-break", 1, "FAIL", "spliced_answer");
}

#[test]
fn replay() {
    judged("replay", "midstream-break", 1, "FAIL", "duplicate_effect");
}
