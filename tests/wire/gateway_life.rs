//! Clients that leave, stall and misbehave; slots, shutdown, breaker and probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use llmfo::gateway::listener::ListenerLimits;

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{self, End, chat_bytes, send};
use crate::mock::{self, Mock, Then, good, is_probe, role_chunk, text_chunk};

/// How soon a client's leaving must be seen by the provider. Milliseconds on a quiet machine; this bound is for a busy one, and
/// still far below any limit that would end the attempt by itself in this test.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn a_client_that_leaves_is_seen_by_the_provider_at_once_in_every_phase() {
    for phase in ["before the head", "after the role", "after text", "not streamed"] {
        let a = Mock::start(move |_, w| {
            if phase == "after the role" || phase == "after text" {
                w.stream_head();
                w.event(role_chunk());
            }
            if phase == "after text" {
                w.event(text_chunk("hello"));
            }
            w.wait_gone();
            Then::Fin
        });
        let b = Mock::start(good("bravo"));
        let change = Change::default();
        let yaml = policy(&[("a", a.address), ("b", b.address)], &change)
            .replace("first_token_timeout_ms: 500", "first_token_timeout_ms: 10000")
            .replace("idle_timeout_ms: 500", "idle_timeout_ms: 10000")
            .replace("deadline_ms: 4000", "deadline_ms: 30000");
        let rig = Rig::of(&yaml, change);
        let mut client = send(rig.listen, &chat_bytes(&body(phase != "not streamed"), &[]));
        a.wait_seen(1);
        if phase == "after text" {
            client.until("hello");
        }
        let left = Instant::now();
        client.leave();
        let seen = a.wait_cancelled(1);
        assert!(seen.saturating_duration_since(left) < SOON, "{phase}: {:?}", seen - left);
        rig.wait_idle();
        assert_eq!(b.asked(), 0, "{phase}: no further attempt for nobody");
        let snapshot = rig.snapshot();
        assert_eq!(snapshot["requests"]["by_outcome"]["client_gone"], 1, "{phase}: {snapshot}");
        assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "{phase}: neutral for the breaker");
    }
}

#[test]
fn nothing_is_left_in_flight_after_a_mixed_load() {
    let a = Mock::start(|seen, w| match seen.nth % 6 {
        0 => mock::silence(seen, w),
        1 => mock::status("502 Bad", "")(seen, w),
        2 => {
            w.stream_head();
            w.event(text_chunk("a"));
            w.sleep(10);
            Then::Rst
        }
        3 => Then::Fin,
        _ => good("alpha")(seen, w),
    });
    let b = Mock::start(good("bravo"));
    // The breaker must not hide the bad provider.
    let change = Change { breaker: "{ consecutive_failures: 1000, failures_in_window: 100000 }", ..Change::default() };
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], change);
    std::thread::scope(|scope| {
        for n in 0..12 {
            let rig = &rig;
            scope.spawn(move || {
                for m in 0..8 {
                    let request = chat_bytes(&body((n + m) % 3 != 0), &[]);
                    let client = send(rig.listen, &request);
                    if (n + m) % 4 == 0 {
                        std::thread::sleep(Duration::from_millis(5 * (m as u64)));
                        client.leave();
                        continue;
                    }
                    let got = client.whole();
                    assert_eq!(got.end, End::Proper);
                    assert_eq!(got.status, 200, "{}", got.text());
                    if got.header("content-type") == Some("text/event-stream") {
                        let error = got.text().contains("\"error\"");
                        assert!(got.done() != error, "either whole or honestly broken: {}", got.text());
                        let content = got.content();
                        assert!(["alpha one two", "bravo one two", "a"].contains(&content.as_str()), "{content}");
                    }
                }
            });
        }
    });
    rig.wait_idle();
    a.wait_quiet();
    let got = rig.plain();
    assert_eq!(got.status, 200);
}

#[test]
fn the_breaker_opens_is_probed_in_the_background_and_closes() {
    let healed = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&healed);
    let a = Mock::start(move |seen, w| {
        if well.load(Ordering::SeqCst) { good("alpha")(seen, w) } else { mock::status("500 Down", "{}")(seen, w) }
    });
    let b = Mock::start(good("bravo"));
    let change = Change {
        breaker: "{ consecutive_failures: 3, base_cooldown_s: 0.3, max_cooldown_s: 0.6, half_open_successes: 2 }",
        ..Change::default()
    };
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], change);
    for _ in 0..3 {
        assert_eq!(rig.stream().content(), "bravo one two");
    }
    assert_ne!(rig.target("a")["state"], "serving");
    let asked = a.asked();
    for _ in 0..20 {
        let got = rig.stream();
        assert_eq!((got.content().as_str(), got.header("x-llmfo-attempts")), ("bravo one two", Some("1")));
    }
    assert_eq!(a.asked(), asked, "an open target gets nothing but its probe");
    rig.eventually("a failed probe", || a.seen().iter().any(is_probe).then_some(()));
    healed.store(true, Ordering::SeqCst);
    rig.eventually("the breaker to close", || (rig.target("a")["state"] == "serving").then_some(()));
    assert_eq!(rig.stream().content(), "alpha one two");
    let probe = a.seen().into_iter().find(is_probe).unwrap().json();
    assert_eq!((&probe["model"], &probe["stream"]), (&"model-a".into(), &true.into()));
    assert!(probe["max_tokens"].as_u64().unwrap() <= 16, "a probe is cheap");
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_breaker_state{target=\"a\",state=\"serving\"} 1"), "{metrics}");
    assert!(metrics.contains("llmfo_probes_total{target=\"a\",kind=\"passed\"}"), "{metrics}");
    rig.wait_idle();
}

#[test]
fn a_hung_probe_ends_and_is_not_piled_up() {
    let a = Mock::start(mock::silence);
    let b = Mock::start(good("bravo"));
    let change = Change { breaker: "{ consecutive_failures: 1, base_cooldown_s: 0.2 }", ..Change::default() };
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], change);
    assert_eq!(rig.stream().content(), "bravo one two");
    rig.eventually("two probes", || (a.seen().iter().filter(|s| is_probe(s)).count() >= 2).then_some(()));
    let in_flight = rig.target("a")["counters"]["in_flight"].as_u64().unwrap();
    assert!(in_flight <= 1, "{in_flight}");
}

#[test]
fn everything_open_is_an_immediate_503_with_a_time() {
    let a = Mock::start(mock::status("500 Down", "{}"));
    let rig = Rig::new(&[("a", a.address)]);
    for _ in 0..3 {
        assert_eq!(rig.stream().status, 503);
    }
    let start = Instant::now();
    let got = rig.stream();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!((got.status, got.code().as_str()), (503, "no_target_available"), "{}", got.text());
    let wait: u64 = got.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=90).contains(&wait), "{wait}");
    assert!(got.json()["error"]["message"].as_str().unwrap().contains("a: "), "{}", got.text());
    assert_eq!(got.header("x-llmfo-attempts"), Some("0"));
    let ready = http::get(rig.admin, "/readyz");
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["routes"][0]["ready"], false);
}

#[test]
fn readiness_does_not_rest_on_hope() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", closed), ("b", closed)]);
    rig.eventually("evidence", || (rig.target("a")["health"] == "unreachable").then_some(()));
    let ready = http::get(rig.admin, "/readyz");
    assert_eq!((ready.status, http::get(rig.admin, "/healthz").status), (503, 200));
    let entry = &ready.json()["targets"][0];
    assert!(entry["evidence"]["last_bad"]["age_ms"].is_number() && entry["evidence"]["last_good"].is_null(), "{entry}");
    // One of two is enough.
    let rig = Rig::new(&[("a", closed), ("b", a.address)]);
    rig.eventually("readiness", || (http::get(rig.admin, "/readyz").status == 200).then_some(()));
}

#[test]
fn b153_a_client_that_does_not_read_bounds_its_memory_and_is_given_up() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        let event = format!("data: {}\n\n", text_chunk(&"x".repeat(16 * 1024)));
        // 64 MiB, as fast as the gateway takes it.
        for _ in 0..4096 {
            w.chunk(&event);
        }
        w.wait_gone();
        Then::Fin
    });
    let limits = ListenerLimits { write_stall: Duration::from_millis(700), ..ListenerLimits::default() };
    let rig = Rig::with(&[("a", a.address)], Change { limits, ..Change::default() });
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    client.until("xxxx");
    rig.eventually("the stalled client to be given up", || {
        (rig.snapshot()["requests"]["by_outcome"]["client_gone"] == 1).then_some(())
    });
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "that counts against the client");
    rig.wait_idle();
}

#[test]
fn a_slow_reader_is_not_the_providers_silence() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        let event = format!("data: {}\n\n", text_chunk(&"x".repeat(16 * 1024)));
        for _ in 0..512 {
            w.chunk(&event);
        }
        w.event(mock::finish_chunk("stop"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    client.until("xxxx");
    // Longer than the idle limit of 500 ms, with 8 MiB still to come.
    std::thread::sleep(Duration::from_millis(900));
    let got = client.whole();
    assert!(got.done(), "{}", got.events().last().unwrap());
    assert_eq!(got.content().len(), 512 * 16 * 1024);
}

#[test]
fn chunks_are_forwarded_as_they_come() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        for n in 0..5 {
            w.event(text_chunk(&format!("word{n} ")));
            w.sleep(200);
        }
        w.event(mock::finish_chunk("stop"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    let start = Instant::now();
    client.until("word0");
    let first = start.elapsed();
    client.until("word2");
    let third = start.elapsed();
    assert!(third - first > Duration::from_millis(300), "held back: {first:?} {third:?}");
    assert!(third - first < Duration::from_millis(1500), "late: {first:?} {third:?}");
    let got = client.whole();
    assert_eq!(got.header("content-type"), Some("text/event-stream"));
    assert_eq!(got.header("cache-control"), Some("no-cache"));
    assert_eq!(got.header("x-accel-buffering"), Some("no"));
    assert_eq!(got.header("content-length"), None);
}

#[test]
fn b157_stopping_lets_open_streams_finish() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        w.event(text_chunk("first"));
        w.sleep(400);
        w.event(text_chunk(" last"));
        w.event(mock::finish_chunk("stop"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    });
    let mut rig = Rig::new(&[("a", a.address)]);
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    client.until("first");
    let (listen, admin) = (rig.listen, rig.admin);
    let stopping = rig.begin_stop(Duration::from_secs(10));
    let start = Instant::now();
    while http::get(admin, "/readyz").status != 503 {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    while std::net::TcpStream::connect(listen).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "new connections are refused");
    }
    let got = client.whole();
    assert!(got.done() && got.content() == "first last", "{}", got.text());
    let start = Instant::now();
    while !stopping.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(5), "stops when the last one is done");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn b157_stopping_cuts_what_does_not_end_with_an_error_event() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        for _ in 0..200 {
            w.event(text_chunk("word "));
            w.sleep(50);
        }
        Then::Fin
    });
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.jsonl");
    let change = Change { journal: Some(journal.clone()), ..Change::default() };
    let mut rig = Rig::with(&[("a", a.address)], change);
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    client.until("word");
    let cut = rig.stop(Duration::from_millis(300));
    assert_eq!(cut, 1);
    // It was not the client who left.
    let journal = std::fs::read_to_string(journal).unwrap();
    let decision = journal.lines().find(|line| line.contains(r#""event":"decision""#)).unwrap();
    let record = &serde_json::from_str::<serde_json::Value>(decision).unwrap()["record"];
    assert_eq!((&record["outcome"], &record["attempts"][0]["reason"]), (&"broken_after_commit".into(), &"shutting_down".into()), "{record}");
    let got = client.whole();
    assert_eq!(got.end, End::Proper);
    let error: serde_json::Value = serde_json::from_str(got.events().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "shutting_down", "{}", got.text());
    assert!(!got.done());
}

#[test]
fn a_probe_finds_the_name_of_the_output_limit_by_itself() {
    let down = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&down);
    let a = Mock::start(move |seen, w| {
        if still.load(Ordering::SeqCst) {
            return mock::status("500 Down", "{}")(seen, w);
        }
        if seen.json()["max_tokens"].is_number() {
            let error = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#;
            return mock::status("400 Bad Request", error)(seen, w);
        }
        good("alpha")(seen, w)
    });
    let change = Change { breaker: "{ consecutive_failures: 1, base_cooldown_s: 0.2 }", ..Change::default() };
    let rig = Rig::with(&[("a", a.address)], change);
    assert_eq!(rig.stream().status, 503);
    down.store(false, Ordering::SeqCst);
    rig.eventually("the breaker to close", || (rig.target("a")["state"] == "serving").then_some(()));
    let refused = a.seen().iter().filter(|s| is_probe(s) && s.json()["max_tokens"].is_number()).count();
    assert!(refused <= 2, "it is remembered: {refused}");
    assert_eq!(rig.stream().content(), "alpha one two");
}

/// Every member that `/snapshot` has of a target and `/decisions` of a request, and every state and word of health, is on the
/// page. Written in backticks, as the page writes them.
#[test]
fn the_page_has_every_member_that_admin_prints() {
    const PAGE: &str = include_str!("../../docs/serve.md");
    let a = Mock::start(mock::status("503 Down", r#"{"error":{"message":"down"}}"#));
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let got = rig.stream();
    assert_eq!(got.status, 200, "{}", got.text());
    let target = rig.snapshot()["targets"][1].clone();
    // Waited for: the client may be told of the end before the record is there.
    rig.decision(&got);
    let decision = http::get(rig.admin, &format!("/decisions/{}", got.header("x-llmfo-request-id").unwrap())).json();
    let record = &decision["record"];
    let mut names: Vec<String> = [
        "cooling",
        "probing",
        "benched",
        "serving",
        "unknown",
        "reachable",
        "healthy",
        "failing",
        "unreachable",
        "open",
    ]
    .map(str::to_owned)
    .to_vec();
    for map in [
        &target,
        &target["counters"],
        &target["evidence"],
        &decision,
        record,
        &record["attempts"][0],
        &record["timings"],
    ] {
        names.extend(map.as_object().unwrap().keys().cloned());
    }
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
}
