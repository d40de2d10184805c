//! Slots, the queue and admission records, as clients of a gateway meet them.

use crate::gateway::{Change, Rig, body, policy};
use crate::http;
use crate::mock::{Mock, Seen, Then, Wire, finish_chunk, good, text_chunk};

/// Begins its answer at once and ends it after so long.
fn slow(ms: u64) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |_, w| {
        w.stream_head();
        // More often than the idle limit of 500 ms.
        for _ in 0..ms.div_ceil(100) {
            w.event(text_chunk("Hello. "));
            w.sleep(100);
        }
        w.event(finish_chunk("stop"));
        w.event("[DONE]");
        w.end();
        Then::KeepAlive
    }
}

const ONE_SLOT: &str = "    capacity: { slots: 1 }\n";

#[test]
fn a_request_waits_for_the_one_slot_and_the_record_says_how_long() {
    let a = Mock::start(slow(300));
    let rig = Rig::with(
        &[("a", a.address)],
        Change { target: ONE_SLOT, route: "    queue: { max_depth: 4, max_wait_ms: 3000 }\n", ..Change::default() },
    );
    let first = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    a.wait_seen(1);
    let second = rig.stream();
    assert_eq!(second.status, 200, "{}", second.text());
    assert!(second.done());
    let waited = rig.decision(&second)["timings"]["queued_ms"].as_f64().unwrap();
    // The first held the slot for 300 ms after it was seen; the second came after that moment.
    assert!(waited > 20.0 && waited < 3_000.0, "{waited} ms");
    assert!(first.whole().done());
    rig.wait_idle();
}

#[test]
fn a_full_queue_is_an_honest_handoff_in_openai_shape() {
    let a = Mock::start(slow(1_000));
    let rig = Rig::with(
        &[("a", a.address)],
        Change { target: ONE_SLOT, route: "    queue: { max_depth: 1, max_wait_ms: 3000 }\n", ..Change::default() },
    );
    let first = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    a.wait_seen(1);
    let second = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    rig.eventually("the second in the queue", || (rig.snapshot()["requests"]["queued"]["chat"] == 1).then_some(()));
    let third = rig.stream();
    assert_eq!((third.status, third.header("x-should-retry")), (503, Some("false")));
    let error = &third.json()["error"];
    assert_eq!((&error["type"], &error["cause"]), (&"handoff".into(), &"queue_full".into()));
    assert_eq!(a.asked(), 1, "nobody was asked for it");
    assert!(first.whole().done() && second.whole().done());
    rig.wait_idle();
}

#[test]
fn a_client_that_leaves_the_queue_gives_its_place_up() {
    let a = Mock::start(slow(1_500));
    let rig = Rig::with(
        &[("a", a.address)],
        Change { target: ONE_SLOT, route: "    queue: { max_depth: 1, max_wait_ms: 3000 }\n", ..Change::default() },
    );
    let first = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    a.wait_seen(1);
    let second = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    let queued = || rig.snapshot()["requests"]["queued"]["chat"].as_u64();
    rig.eventually("the second in the queue", || (queued() == Some(1)).then_some(()));
    second.reset();
    rig.eventually("an empty queue", || (queued() == Some(0)).then_some(()));
    assert!(first.whole().done());
    rig.wait_idle();
    assert_eq!(a.asked(), 1, "nobody was dialled for who had left");
}

/// `b` may stand in for `a` only with a record that says so.
fn grouped(a: &Mock, b: &Mock) -> String {
    let text = policy(&[("a", a.address), ("b", b.address)], &Change::default());
    text.replace("expires:", "prompt_version: p-1\nexpires:")
        .replace("all: { targets: [a, b], select: priority }", "one: { targets: [a] }\n  two: { targets: [b] }")
        .replace(
            "      - { pool: all, first_token_timeout_ms: 500, pii: allowed }\n",
            "      - { pool: one, first_token_timeout_ms: 500, pii: allowed, compatibility_group: g }\n      \
             - { pool: two, first_token_timeout_ms: 500, pii: allowed, compatibility_group: g }\n",
        )
        .replace(
            "tools:\n",
            "compatibility_groups:\n  g: { golden_set: g.yaml, members: [a, b], evidence_max_age_s: 3600 }\ntools:\n",
        )
}

fn record(target: &str, verdict: &str, date: &str) -> String {
    format!(
        r#"{{"format":1,"group":"g","target":"{target}","model":"model-{target}","fingerprint":null,"prompt_version":"p-1","adapter":null,
        "golden_set":{{"path":"g.yaml","sha256":"{}"}},"date":"{date}","verdict":"{verdict}","invariants":{{}},
        "capabilities":{{"tools":true,"json_schema":null,"vision":null,"context_tokens":null}},"baseline_p95_ms":200}}"#,
        "0".repeat(64)
    )
}

#[test]
fn only_an_admitted_target_stands_in() {
    let now = jiff::Timestamp::now();
    let long_ago = (now - jiff::SignedDuration::from_hours(2)).to_string();
    let now = now.to_string();
    let cases = [
        (None, false),
        (Some(record("b", "eligible", &now)), true),
        (Some(record("b", "excluded", &now)), false),
        (Some(record("b", "eligible", &long_ago)), false),
        (Some(record("b", "eligible", &now).replace("p-1", "p-2")), false),
        (Some("not json".to_owned()), false),
    ];
    for (n, (text, stands_in)) in cases.into_iter().enumerate() {
        let a = Mock::start(crate::mock::status("503 Service Unavailable", ""));
        let b = Mock::start(good("b"));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("evidence/g");
        std::fs::create_dir_all(&folder).unwrap();
        if let Some(text) = text {
            std::fs::write(folder.join("b@p-1.json"), text).unwrap();
        }
        let rig = Rig::of(&grouped(&a, &b), Change { folder: dir.path().to_owned(), ..Change::default() });
        let response = rig.stream();
        assert_eq!(response.status == 200, stands_in, "case {n}: {}", response.text());
        if !stands_in {
            assert_eq!(b.asked(), 0, "case {n}");
            let skipped = &rig.decision(&response)["skipped"][0];
            assert!(skipped["reason"].as_str().unwrap().starts_with("evidence_"), "case {n}: {skipped}");
        }
    }
}
