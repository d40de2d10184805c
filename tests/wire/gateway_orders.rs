//! Orders of operators, and faults that are forced for a test. The first four are the tests that any failover layer must keep.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use llmfo::gateway::orders::Forced;

use crate::gateway::{Change, Rig, body};
use crate::http::{self, Response};
use crate::mock::{Mock, Seen, good, is_probe, status};

fn forcing(targets: &[(&str, SocketAddr)], faults: &[(&str, Forced)], breaker: &'static str) -> Rig {
    let forced = Some(faults.iter().map(|(name, forced)| ((*name).to_owned(), *forced)).collect());
    Rig::with(targets, Change { forced, breaker, ..Change::default() })
}

/// An order over the admin listener.
fn order(rig: &Rig, method: &str, path: &str, reason: Option<&str>) -> Response {
    let reason = reason.map_or_else(String::new, |r| format!("x-llmfo-reason: {r}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{reason}content-length: 0\r\nconnection: close\r\n\r\n"
    );
    http::send(rig.admin, request.as_bytes()).whole()
}

fn customers(mock: &Mock) -> usize {
    mock.seen().iter().filter(|s: &&Seen| !is_probe(s)).count()
}

#[test]
fn test_fails_over_when_primary_times_out() {
    let (primary, second) = (Mock::start(good("primary")), Mock::start(good("second")));
    let rig = forcing(
        &[("primary", primary.address), ("second", second.address)],
        &[("primary", Forced::Timeout)],
        "{ base_cooldown_s: 60 }",
    );
    let answer = rig.stream();
    assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("second")), "traffic has moved");
    assert!(answer.content().contains("second") && answer.done(), "and a real answer came back: {}", answer.text());
    let first = &rig.decision(&answer)["attempts"][0];
    assert_eq!((&first["target"], &first["reason"]), (&"primary".into(), &"first_token_timeout".into()));
    assert_eq!(customers(&primary), 0, "nobody was dialled for it");
}

#[test]
fn test_caller_error_does_not_trip_the_breaker() {
    let refuse = status(
        "400 Bad Request",
        r#"{"error":{"message":"content is null","type":"invalid_request_error","param":"messages","code":null}}"#,
    );
    let (primary, second) = (Mock::start(refuse), Mock::start(good("second")));
    let rig = Rig::new(&[("primary", primary.address), ("second", second.address)]);
    for _ in 0..10 {
        let answer = rig.stream();
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    assert_eq!(rig.target("primary")["state"], "serving");
    assert_eq!((customers(&primary), customers(&second)), (10, 0), "sent once each, and to nobody else");
}

#[test]
fn test_breaker_opens_then_recovers() {
    let (primary, second) = (Mock::start(good("primary")), Mock::start(good("second")));
    let rig = forcing(
        &[("primary", primary.address), ("second", second.address)],
        &[("primary", Forced::Unavailable)],
        "{ base_cooldown_s: 0.5, max_cooldown_s: 1 }",
    );
    for _ in 0..3 {
        assert_eq!(rig.stream().header("x-llmfo-target"), Some("second"));
    }
    assert_ne!(rig.target("primary")["state"], "serving", "open");
    let answer = rig.stream();
    assert_eq!(rig.decision(&answer)["attempts"].as_array().unwrap().len(), 1, "no request leaves for it");
    assert_eq!(order(&rig, "DELETE", "/orders/fault/primary", Some("healed")).status, 200);
    rig.eventually("two probes", || (rig.target("primary")["state"] == "serving").then_some(()));
    assert_eq!(customers(&primary), 0, "no customer paid for finding out");
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("primary"));
}

#[test]
fn test_all_providers_down_degrades_gracefully() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let rig = forcing(
        &[("a", a.address), ("b", b.address)],
        &[("a", Forced::Unavailable), ("b", Forced::Unavailable)],
        "{ base_cooldown_s: 60 }",
    );
    for n in 0..5 {
        let answer = rig.stream();
        let error = &answer.json()["error"];
        // First they are tried; once both are out nobody is.
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(error["code"], if n < 3 { "handoff" } else { "no_target_available" }, "{n}: {}", answer.text());
        assert!(error["correlation_id"].is_string(), "{}", answer.text());
    }
}

#[test]
fn every_forced_fault_is_what_it_says() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    for (forced, reason) in [
        (Forced::RateLimited, "rate_limited"),
        (Forced::Unavailable, "status_503"),
        (Forced::Reset, "reset"),
        (Forced::Timeout, "first_token_timeout"),
    ] {
        let rig = forcing(&[("a", a.address), ("b", b.address)], &[("a", forced)], "{ base_cooldown_s: 60 }");
        let answer = rig.stream();
        assert_eq!(answer.header("x-llmfo-target"), Some("b"), "{forced:?}: {}", answer.text());
        assert_eq!(rig.decision(&answer)["attempts"][0]["reason"], reason, "{forced:?}");
    }
    let rig = forcing(&[("a", a.address), ("b", b.address)], &[("a", Forced::Cut)], "{ base_cooldown_s: 60 }");
    let cut = rig.stream();
    assert_eq!((cut.status, cut.header("x-llmfo-target"), cut.done()), (200, Some("a"), false));
    assert!(!cut.content().is_empty(), "something had reached the client");
    assert_eq!(
        cut.text().matches("event: error").count() + cut.text().matches("\"error\"").count().min(1),
        1,
        "{}",
        cut.text()
    );
    let whole = rig.plain();
    assert_eq!((whole.status, whole.header("x-llmfo-target")), (200, Some("b")), "before commit nobody notices");
}

#[test]
fn a_benched_target_gets_nothing_until_its_time_is_over_or_it_is_let_in() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let journal = tempfile::tempdir().unwrap();
    let path = journal.path().join("j.jsonl");
    let rig =
        Rig::with(&[("a", a.address), ("b", b.address)], Change { journal: Some(path.clone()), ..Change::default() });
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    let listed = order(&rig, "POST", "/orders/bench/a?for_s=600", Some("driver update"));
    assert_eq!(listed.status, 200, "{}", listed.text());
    let row = &listed.json()["orders"][0];
    assert_eq!(
        (&row["order"], &row["target"], &row["reason"]),
        (&"bench".into(), &"a".into(), &"driver update".into())
    );
    assert!((590_000..=600_000).contains(&row["ends_in_ms"].as_u64().unwrap()), "{row}");
    assert_eq!(
        (rig.stream().header("x-llmfo-target"), rig.target("a")["state"].as_str()),
        (Some("b"), Some("benched"))
    );
    assert_eq!(order(&rig, "DELETE", "/orders/bench/a", Some("done")).status, 200);
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    assert_eq!(order(&rig, "DELETE", "/orders/bench/a", Some("again")).status, 404);
    let start = Instant::now();
    assert_eq!(order(&rig, "POST", "/orders/bench/a?for_s=1", Some("short")).status, 200);
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("b"));
    rig.eventually("the end of the order", || (rig.stream().header("x-llmfo-target") == Some("a")).then_some(()));
    assert!(start.elapsed() >= Duration::from_secs(1));
    let lines = rig.eventually("the journal", || {
        let text = std::fs::read_to_string(&path).unwrap();
        let orders: Vec<serde_json::Value> = text
            .lines()
            .filter_map(|l| serde_json::from_str(l).ok())
            .filter(|v: &serde_json::Value| v["event"] == "order")
            .collect();
        (orders.len() == 4).then_some(orders)
    });
    let told: Vec<(&str, &str)> =
        lines.iter().map(|v| (v["state"].as_str().unwrap(), v["reason"].as_str().unwrap())).collect();
    assert_eq!(told, [("given", "driver update"), ("ended", "done"), ("given", "short"), ("ended", "it has run out")]);
}

#[test]
fn a_route_whose_last_target_is_benched_says_so_and_when_to_come_back() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let journal = tempfile::tempdir().unwrap();
    let path = journal.path().join("j.jsonl");
    let rig =
        Rig::with(&[("a", a.address), ("b", b.address)], Change { journal: Some(path.clone()), ..Change::default() });
    let given = order(&rig, "POST", "/orders/bench/a?for_s=600", Some("r"));
    assert_eq!(given.json()["notes"], serde_json::json!([]), "b is still there");
    let given = order(&rig, "POST", "/orders/bench/b?for_s=30", Some("r"));
    assert_eq!(given.json()["notes"], serde_json::json!(["route chat has nobody now who serves"]));
    let refused = rig.stream();
    assert_eq!((refused.status, refused.code().as_str()), (503, "no_target_available"), "{}", refused.text());
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((25..=30).contains(&wait), "b is let in first: {}", refused.text());
    assert!(refused.text().contains("an operator took it out, for another"), "{}", refused.text());
    assert_eq!(order(&rig, "DELETE", "/orders/bench/a", Some("r")).status, 200);
    let told = rig.eventually("both alerts", || {
        let text = std::fs::read_to_string(&path).unwrap();
        let all = text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
        let of: Vec<String> = all
            .filter(|v| v["event"] == "alert")
            .filter_map(|v| v["reason"].as_str().map(str::to_owned))
            .filter(|r| r.ends_with("body_serves"))
            .collect();
        (of.len() == 2).then_some(of)
    });
    assert_eq!(told, ["nobody_serves", "somebody_serves"]);
    let emergency = order(&rig, "POST", "/orders/emergency?for_s=60", Some("r"));
    assert!(emergency.text().contains("this changes nothing"), "{}", emergency.text());
}

#[test]
fn a_bench_follows_its_target_through_another_policy_or_ends_with_it() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let yaml = crate::gateway::policy(&[("a", a.address), ("b", b.address)], &Change::default());
    let mut rig = Rig::of(&yaml, Change::default());
    assert_eq!(order(&rig, "POST", "/orders/bench/a?for_s=600", Some("r")).status, 200);
    let benched = |rig: &Rig| {
        let orders = http::get(rig.admin, "/orders").json()["orders"].clone();
        orders.as_array().unwrap().iter().map(|o| o["target"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Another model under the same name: still the one that the operator meant.
    let other = yaml.replace("model: model-a", "model: model-a2");
    rig.reload(&other).unwrap();
    assert_eq!((rig.stream().header("x-llmfo-target"), benched(&rig)), (Some("b"), vec!["a".to_owned()]));
    // Another name for the same: too.
    rig.reload(&other.replace("  a:\n", "  a1:\n").replace("[a, b]", "[a1, b]")).unwrap();
    assert_eq!((rig.stream().header("x-llmfo-target"), benched(&rig)), (Some("b"), vec!["a1".to_owned()]));
    assert_eq!(order(&rig, "DELETE", "/orders/bench/a1", Some("r")).status, 200);
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a1"));
    assert_eq!(order(&rig, "POST", "/orders/bench/a1?for_s=600", Some("r")).status, 200);
    rig.reload(&crate::gateway::policy(&[("b", b.address)], &Change::default())).unwrap();
    assert!(benched(&rig).is_empty(), "nothing is called so any more");
}

#[test]
fn a_bench_that_moved_on_leaves_nothing_behind_where_it_was() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let here = crate::gateway::policy(&[("a", a.address), ("b", b.address)], &Change::default());
    let elsewhere = here.replace("model: model-a", "model: model-a2");
    let mut rig = Rig::of(&here, Change::default());
    assert_eq!(order(&rig, "POST", "/orders/bench/a?for_s=600", Some("r")).status, 200);
    rig.reload(&elsewhere).unwrap();
    // While it stands it goes along, there and back.
    rig.reload(&here).unwrap();
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("b"));
    rig.reload(&elsewhere).unwrap();
    assert_eq!(order(&rig, "DELETE", "/orders/bench/a", Some("r")).status, 200);
    // What it was about first is back, and no order stands.
    rig.reload(&here).unwrap();
    assert_eq!(rig.target("a")["state"], "serving");
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    // The same place under another name, while an order about the old name's heir stands.
    assert_eq!(order(&rig, "POST", "/orders/bench/a?for_s=600", Some("r")).status, 200);
    rig.reload(&elsewhere).unwrap();
    let beside = here.replace("  a:\n", "  z:\n").replace("[a, b]", "[z, b]");
    rig.reload(&beside).unwrap();
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("z"));
}

#[test]
fn an_order_that_cannot_be_taken_says_why_and_changes_nothing() {
    let a = Mock::start(good("a"));
    let rig = Rig::new(&[("a", a.address)]);
    for (method, path, reason, status, code) in [
        ("POST", "/orders/bench/a?for_s=60", None, 400, "no_reason"),
        ("POST", "/orders/bench/a", Some("r"), 400, "invalid_query"),
        ("POST", "/orders/bench/a?for_s=0", Some("r"), 400, "invalid_query"),
        ("POST", "/orders/bench/a?for_s=86401", Some("r"), 400, "invalid_query"),
        ("POST", "/orders/bench/z?for_s=60", Some("r"), 404, "unknown_target"),
        ("POST", "/orders/fault/a?as=503&for_s=60", Some("r"), 403, "faults_not_allowed"),
        ("POST", "/orders/holiday?for_s=60", Some("r"), 404, "unknown_order"),
        ("POST", "/orders", Some("r"), 405, "method_not_allowed"),
        ("GET", "/orders/bench/a", Some("r"), 405, "method_not_allowed"),
    ] {
        let answer = order(&rig, method, path, reason);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{method} {path}: {}", answer.text());
    }
    assert_eq!(rig.snapshot()["orders"], serde_json::json!([]));
    assert_eq!(http::chat(rig.listen, &body(true), &[]).status, 200);
}

#[test]
fn the_emergency_mode_is_an_order_too() {
    let a = Mock::start(good("a"));
    let rig = Rig::with(
        &[("a", a.address)],
        Change {
            route: "    on_capacity_exhausted: { disable_tasks: [summary], preserve_tasks: [customer_reply] }\n",
            ..Change::default()
        },
    );
    let summary = || http::chat(rig.listen, &body(true), &[("x-llmfo-task", "summary")]).status;
    assert_eq!(summary(), 200);
    assert_eq!(order(&rig, "POST", "/orders/emergency?for_s=60", Some("region lost")).status, 200);
    assert_eq!((rig.snapshot()["emergency"].as_bool(), summary(), rig.stream().status), (Some(true), 503, 200));
    // Whoever is refused hears why, without the operator's words.
    let refused = http::chat(rig.listen, &body(true), &[("x-llmfo-task", "summary")]);
    let error = &refused.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&"overloaded".into(), &"no_target_available".into()));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("An operator has ordered the emergency mode"), "{message}");
    assert!(!message.contains("customers wait") && !refused.text().contains("region lost"), "{message}");
    assert_eq!(order(&rig, "DELETE", "/orders/emergency", Some("over")).status, 200);
    assert_eq!((rig.snapshot()["emergency"].as_bool(), summary()), (Some(false), 200));
}
