//! A correct gateway passes, for good reasons.

use crate::stage::{LLMFO, Proc, codes, drill, last_word, turn};

fn passes(name: &str) -> serde_json::Value {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (exit, text, summary, out) = drill(&[name, "--seed", "3"], dir.path());
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(exit, 0, "{text}\n{errors}");
    assert_eq!(last_word(&text), "PASS");
    assert_eq!((summary["verdict"].as_str(), summary["cleanup"].as_str()), (Some("PASS"), Some("clean")));
    assert_eq!(codes(&summary), Vec::<&str>::new());
    for file in ["requests.jsonl", "journal.jsonl", "report.md", "wal.jsonl"] {
        assert!(std::fs::metadata(dir.path().join("report").join(file)).unwrap().len() > 0, "{file}");
    }
    summary
}

fn row<'a>(summary: &'a serde_json::Value, promise: &str, name: &str) -> &'a serde_json::Value {
    let rows = summary["promises"][promise]["rows"].as_array().unwrap();
    rows.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn region_outage() {
    let s = passes("region-outage");
    assert_eq!(row(&s, "recovery", "failed_before_commit")["measured"], "0");
    assert_eq!(row(&s, "recovery", "within_bound")["verdict"], "pass");
    assert_eq!(row(&s, "independence", "bytes_from_broken_region")["measured"], "0");
    assert_eq!(row(&s, "independence", "requests_to_broken_region")["measured"], "0");
    assert_eq!(row(&s, "independence", "dials_into_broken_region")["verdict"], "pass");
    for promise in ["recovery", "compatibility", "capacity", "independence"] {
        assert_eq!(s["promises"][promise]["verdict"], "pass", "{promise}");
    }
    // The parts of the recovery time add up.
    let part = |name: &str| s["rto_ms"][name].as_f64().unwrap();
    let sum = part("detection") + part("decision") + part("dial") + part("generation");
    assert!((sum - part("total")).abs() < 1.0, "{}", s["rto_ms"]);
}

#[test]
fn region_outage_with_its_gateway() {
    passes("region-outage-gateway");
}

#[test]
fn midstream_break() {
    let s = passes("midstream-break");
    let cut = |point: &str, what: &str| s["cut_streams_by_point"][point][what].as_u64().unwrap();
    assert!(cut("before_content", "n") >= 3 && cut("after_content", "n") >= 3);
    assert!(cut("inside_call", "n") + cut("after_call", "n") >= 1);
    assert_eq!(cut("before_content", "n"), cut("before_content", "answered_whole"));
    assert_eq!(cut("after_content", "n"), cut("after_content", "one_error_event"));
    assert_eq!(cut("inside_call", "n"), cut("inside_call", "answered_whole"));
    assert_eq!(s["duplicate_effects"], 0);
}

/// Each sabotage of the stand-in turns exactly its row of the report red.
#[test]
fn each_sabotage_turns_exactly_its_row_red() {
    for what in ["schema", "handoff", "context"] {
        let _turn = turn();
        let dir = tempfile::tempdir().unwrap();
        let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
        let policy = up["policy"].as_str().unwrap();
        let listen = up["entries"]["region-1"]["listen"].as_str().unwrap();
        let serve = ["serve", "--policy", policy, "--listen", listen, "--format", "json", "--exit-with-stdin"];
        let (_gateway, _) = Proc::start(LLMFO, &serve, dir.path());
        sabotage(up["admin"].as_str().unwrap(), what);
        let url = up["entries"]["region-1"]["url"].as_str().unwrap();
        let (exit, text, s, _) =
            drill(&["region-outage", "--lab", up["admin"].as_str().unwrap(), "--target", url], dir.path());
        assert_eq!((exit, text.lines().last()), (1, Some("FAIL")), "{text}");
        let promises = s["promises"].as_object().unwrap().values();
        let rows: Vec<&serde_json::Value> = promises.flat_map(|p| p["rows"].as_array().unwrap()).collect();
        let red: Vec<&str> =
            rows.iter().filter(|r| r["verdict"] == "fail").map(|r| r["name"].as_str().unwrap()).collect();
        assert_eq!(red, [what], "{text}");
    }
}

fn sabotage(admin: &str, what: &str) {
    use std::io::{Read, Write};
    let address = admin.trim_start_matches("http://");
    let body = format!(r#"{{"provider":"local-b","break":"{what}"}}"#);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /sabotage HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
