//! `serve --observe` over sockets: one target is asked, nobody else hears anything, and what failover would have done is told.

use std::time::Duration;

use crate::gateway::{Change, Rig};
use crate::mock::{self, Mock, good};

fn observing(a: &Mock, b: &Mock, change: Change) -> Rig {
    Rig::with(&[("a", a.address), ("b", b.address)], Change { observe: true, ..change })
}

#[test]
fn the_primarys_failure_reaches_the_client_and_the_stand_in_hears_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    let (a, b) = (Mock::start(good("alpha")), Mock::start(good("bravo")));
    let change = Change { journal: Some(journal.clone()), ..Change::default() };
    let mut rig = observing(&a, &b, change);
    assert_eq!(rig.stream().content(), "alpha one two");

    a.play(mock::status("503 Down", r#"{"error":{"message":"down for a while","type":"server_error","code":"busy"}}"#));
    for response in [rig.stream(), rig.plain()] {
        assert_eq!(response.status, 503);
        let error = &response.json()["error"];
        assert_eq!((&error["message"], &error["type"]), (&"down for a while".into(), &"server_error".into()));
        let record = rig.decision(&response);
        assert_eq!(record["outcome"], "returned_as_it_is");
        let observed = &record["observed"][0];
        assert_eq!((&observed["from"], &observed["to"]), (&"a".into(), &"b".into()));
        assert_eq!(observed["why"], "after a: status_503");
    }
    // The third failure in a row would open the breaker. Requests go on to arrive.
    assert_eq!(rig.stream().status, 503);
    a.play(good("alpha"));
    let response = rig.stream();
    assert_eq!(response.content(), "alpha one two", "an observer refuses nobody");
    assert_eq!(rig.decision(&response)["observed"][0]["why"], "instead of a: open");
    assert_eq!(rig.target("a")["state"], "cooling");
    assert_eq!(crate::http::get(rig.admin, "/readyz").status, 200, "a balancer must not take it out either");
    assert_eq!(rig.snapshot()["observe"], true);

    let metrics = rig.metrics();
    let counted = |labels: &str, n: u32| {
        let line = format!("llmfo_observed_failovers_total{{{labels}}} {n}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    };
    counted(r#"route="chat",from="a",to="b",reason="status_503""#, 3);
    counted(r#"route="chat",from="a",to="b",reason="open""#, 1);
    assert!(!metrics.contains("llmfo_failovers_total{"), "nothing failed over");

    let id = response.header("x-llmfo-request-id").unwrap().to_owned();
    rig.stop(Duration::from_secs(1));
    assert_eq!((b.asked(), b.connections()), (0, 0), "not even a connection");
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .args(["trace", &id, "--journal"])
        .arg(&journal)
        .env("COLUMNS", "200")
        .output()
        .unwrap();
    let told = String::from_utf8(run.stdout).unwrap();
    assert!(told.contains("failover would have dialled b, instead of a: open"), "{told}");
    assert!(told.contains("over: answered by a, 1 dial\n"), "{told}");
}

#[test]
fn a_rate_limit_comes_with_its_time_to_wait() {
    let a = Mock::start(|_: &mock::Seen, wire: &mut mock::Wire| {
        let body = r#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#;
        wire.answer_with("429 Too Many Requests", "application/json", "retry-after: 7\r\n", body);
        mock::Then::KeepAlive
    });
    let b = Mock::start(good("bravo"));
    let rig = observing(&a, &b, Change::default());
    for _ in 0..2 {
        let response = rig.plain();
        assert_eq!((response.status, response.header("retry-after")), (429, Some("7")), "{}", response.text());
    }
    assert_eq!((a.asked(), b.asked()), (2, 0), "a cooldown keeps nobody away either");
}

#[test]
fn a_slow_primary_is_waited_for() {
    // Its tier allows 500 ms to the first token, the route 4 s.
    let a = Mock::start(|seen: &mock::Seen, wire: &mut mock::Wire| {
        wire.sleep(800);
        good("alpha")(seen, wire)
    });
    let b = Mock::start(good("bravo"));
    let rig = observing(&a, &b, Change::default());
    let response = rig.stream();
    assert_eq!(response.content(), "alpha one two");
    let observed = rig.decision(&response)["observed"][0].clone();
    assert_eq!((&observed["why"], &observed["to"]), (&"after a: first_token_timeout".into(), &"b".into()));
    let at = observed["at_ms"].as_f64().unwrap();
    assert!((500.0..800.0).contains(&at), "{at} ms");
    assert_eq!(b.asked(), 0);
    rig.wait_idle();
}
