//! What a customer gets when the first target fails in every known way and the second is well, streamed and not: one row a
//! failure. `cargo test --test wire failover_table -- --nocapture` prints the table of docs/measurements/failover-table.md.

use std::time::{Duration, Instant};

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{self, End, Response};
use crate::mock::{self, Mock, Seen, Then, Wire, finish_chunk, good, role_chunk, text_chunk, whole};

type Script = Box<dyn Fn(&Seen, &mut Wire) -> Then + Send + Sync>;

/// What the client must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// The whole answer of the stand-in, after one call to each.
    StandIn,
    /// The text that was delivered before the break, then one error event, no `[DONE]` and no finish.
    ErrorAfter(&'static str),
    /// The first target's own answer, after one call to it and none to the other.
    AsItIs(u16),
    /// The first target's answer, which it had cut off for its policy.
    Filtered,
}

/// How soon the stand-in must be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Soon {
    /// The failure is known at once: no clock is waited for.
    AtOnce,
    /// Found out by a clock of the policy: first token 500 ms, idle 500 ms, whole answer 700 ms.
    ByClock,
}

struct Row {
    name: &'static str,
    script: Script,
    stream: Option<Right>,
    plain: Option<Right>,
    soon: Soon,
}

fn row(
    name: &'static str,
    (stream, plain): (Option<Right>, Option<Right>),
    soon: Soon,
    script: impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static,
) -> Row {
    Row { name, script: Box::new(script), stream, plain, soon }
}

fn streamed(seen: &Seen) -> bool {
    seen.json()["stream"] == true
}

const FIVE: &str = "alpha one two three four";

/// Head, role and five chunks of text.
fn five(w: &mut Wire) {
    w.stream_head();
    w.event(role_chunk());
    for word in ["alpha", " one", " two", " three", " four"] {
        w.event(text_chunk(word));
    }
}

fn half_a_document(w: &mut Wire) {
    w.raw(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"id\":\"w1\",\"choices\":[{",
    );
}

fn rows() -> Vec<Row> {
    use Right::{AsItIs, ErrorAfter, Filtered, StandIn};
    use Soon::{AtOnce, ByClock};
    let both = |r| (Some(r), Some(r));
    let stream_only = |r| (Some(r), None);
    let error_json = r#"{"error":{"message":"boom","type":"server_error"}}"#;
    let status = |line: &'static str, headers: &'static str| {
        move |_: &Seen, w: &mut Wire| {
            w.answer_with(line, "application/json", headers, r#"{"error":{"message":"as the provider says"}}"#);
            Then::KeepAlive
        }
    };
    let after_five = |then: fn(&mut Wire) -> Then| {
        move |_: &Seen, w: &mut Wire| {
            five(w);
            then(w)
        }
    };
    vec![
        row("503", both(StandIn), AtOnce, status("503 Service Unavailable", "")),
        row("529", both(StandIn), AtOnce, status("529 Overloaded", "")),
        row("429, Retry-After 1", both(StandIn), AtOnce, status("429 Too Many Requests", "retry-after: 1\r\n")),
        row("429, Retry-After 60", both(StandIn), AtOnce, status("429 Too Many Requests", "retry-after: 60\r\n")),
        row("400", both(AsItIs(400)), AtOnce, status("400 Bad Request", "")),
        row("401", both(StandIn), AtOnce, status("401 Unauthorized", "")),
        row("hang", both(StandIn), ByClock, mock::silence),
        row("first token after 10 s, headers late", both(StandIn), ByClock, |_, w| {
            w.wait_gone();
            Then::Fin
        }),
        row("first token after 10 s, headers at once", both(StandIn), ByClock, |seen, w| {
            if streamed(seen) {
                w.stream_head();
            } else {
                half_a_document(w);
            }
            w.wait_gone();
            Then::Fin
        }),
        row("RST before headers", both(StandIn), AtOnce, |_, _| Then::Rst),
        row("FIN before headers", both(StandIn), AtOnce, |_, _| Then::Fin),
        row("RST in mid body", both(StandIn), AtOnce, |seen, w| {
            if streamed(seen) {
                w.stream_head();
                w.event(role_chunk());
            } else {
                half_a_document(w);
            }
            w.sleep(20);
            Then::Rst
        }),
        row(
            "cut after 5 chunks, RST",
            stream_only(ErrorAfter(FIVE)),
            AtOnce,
            after_five(|w| {
                w.sleep(20);
                Then::Rst
            }),
        ),
        row("cut after 5 chunks, FIN", stream_only(ErrorAfter(FIVE)), AtOnce, after_five(|_| Then::Fin)),
        row(
            "cut after 5 chunks, clean end without finish",
            stream_only(ErrorAfter(FIVE)),
            AtOnce,
            after_five(|w| {
                w.end();
                Then::KeepAlive
            }),
        ),
        row(
            "stall after 5 chunks",
            stream_only(ErrorAfter(FIVE)),
            ByClock,
            after_five(|w| {
                w.wait_gone();
                Then::Fin
            }),
        ),
        row("error event first", stream_only(StandIn), AtOnce, move |_, w| {
            w.stream_head();
            w.event(error_json);
            w.end();
            Then::KeepAlive
        }),
        row("error event after 5", stream_only(ErrorAfter(FIVE)), AtOnce, move |_, w| {
            five(w);
            w.event(error_json);
            w.end();
            Then::KeepAlive
        }),
        row("200 with an error object", both(StandIn), AtOnce, move |_, w| {
            w.answer("200 OK", "application/json", error_json);
            Then::KeepAlive
        }),
        row("200 with an HTML page", both(StandIn), AtOnce, |_, w| {
            w.answer("200 OK", "text/html", "<!doctype html><p>maintenance</p>");
            Then::KeepAlive
        }),
        row("malformed from the start", both(StandIn), AtOnce, |seen, w| {
            if streamed(seen) {
                w.stream_head();
                w.event("{\"choices\":[{\"delta\":");
                w.end();
            } else {
                w.answer("200 OK", "application/json", "{\"choices\":[{\"message\":");
            }
            Then::KeepAlive
        }),
        row("malformed after 5", stream_only(ErrorAfter(FIVE)), AtOnce, |_, w| {
            five(w);
            w.event("{\"choices\":[{\"delta\":");
            w.end();
            Then::KeepAlive
        }),
        row("only [DONE]", stream_only(StandIn), AtOnce, |_, w| {
            w.stream_head();
            w.chunk("data: [DONE]\n\n");
            w.end();
            Then::KeepAlive
        }),
        row("empty body", both(StandIn), AtOnce, |_, w| {
            w.answer("200 OK", "application/json", "");
            Then::KeepAlive
        }),
        row("content filter", both(Filtered), AtOnce, |seen, w| {
            if streamed(seen) {
                five(w);
                w.event(finish_chunk("content_filter"));
                w.chunk("data: [DONE]\n\n");
                w.end();
            } else {
                let filtered = whole(FIVE).replace("\"stop\"", "\"content_filter\"");
                w.answer("200 OK", "application/json", filtered);
            }
            Then::KeepAlive
        }),
        row("400 of the content filter", both(AsItIs(400)), AtOnce, |_, w| {
            let says = r#"{"error":{"message":"filtered","code":"content_filter","type":"invalid_request_error"}}"#;
            w.answer("400 Bad Request", "application/json", says);
            Then::KeepAlive
        }),
    ]
}

/// The rig of the table: JSON rows have a limit for the whole answer.
fn rig(a: std::net::SocketAddr, b: std::net::SocketAddr, change: Change) -> Rig {
    let yaml = policy(&[("a", a), ("b", b)], &change)
        .replace("first_token_timeout_ms: 500,", "first_token_timeout_ms: 500, answer_timeout_ms: 700,");
    Rig::of(&yaml, change)
}

fn answered(what: &str, got: &Response, stream: bool, text: &str, finish: &str) {
    assert_eq!((got.status, got.end), (200, End::Proper), "{what}: {}", got.text());
    if stream {
        assert_eq!(got.content(), text, "{what}");
        assert!(got.done(), "{what}");
        assert!(got.text().contains(&format!("\"finish_reason\":\"{finish}\"")), "{what}: {}", got.text());
    } else {
        assert_eq!(got.json()["choices"][0]["message"]["content"], text, "{what}");
        assert_eq!(got.json()["choices"][0]["finish_reason"], finish, "{what}");
    }
}

/// Holds one row, and says what was seen.
fn hold(name: &str, stream: bool, right: Right, script: Script) -> (String, f64, (usize, usize)) {
    let what = format!("{name}, {}", if stream { "streamed" } else { "JSON" });
    // On new connections: a kept one that is reset before a byte of an answer is tried once more on a new one, which is
    // `a_stale_pooled_connection_is_retried_once_and_not_counted`.
    let (a, b) = (Mock::start(script), Mock::start(good("bravo")));
    let rig = rig(a.address, b.address, Change::default());
    let began = Instant::now();
    let got = http::chat(rig.listen, &body(stream), &[]);
    let took = began.elapsed();
    // The second call, where there is one, is over before the client has its answer.
    let calls = (a.asked(), b.asked());
    let seen = match right {
        Right::StandIn => {
            answered(&what, &got, stream, "bravo one two", "stop");
            assert_eq!(calls, (1, 1), "{what}");
            "the stand-in's answer, whole".to_owned()
        }
        Right::ErrorAfter(text) => {
            assert_eq!((got.status, got.content().as_str()), (200, text), "{what}");
            let events = got.events();
            let last: serde_json::Value = serde_json::from_str(events.last().unwrap()).unwrap();
            assert!(last["error"]["message"].is_string(), "{what}: {last}");
            assert_eq!(got.text().matches("\"error\"").count(), 1, "{what}: one error");
            assert!(!got.text().contains("[DONE]"), "{what}: {}", got.text());
            assert!(!got.text().contains("\"finish_reason\":\""), "{what}: a forged end");
            assert_eq!(calls, (1, 0), "{what}: nobody may go on with another's text");
            format!("{} words, then one error event, no [DONE]", text.split(' ').count())
        }
        Right::AsItIs(status) => {
            assert_eq!(got.status, status, "{what}: {}", got.text());
            assert!(got.json()["error"]["message"].is_string(), "{what}");
            assert_eq!(calls, (1, 0), "{what}: a caller's error sent twice");
            format!("the {status}, in OpenAI shape")
        }
        Right::Filtered => {
            answered(&what, &got, stream, FIVE, "content_filter");
            assert_eq!(calls, (1, 0), "{what}");
            "the answer with finish_reason content_filter".to_owned()
        }
    };
    rig.wait_idle();
    a.wait_quiet();
    assert!((a.asked(), b.asked()) == calls, "{what}: a call after the client was served");
    (seen, took.as_secs_f64() * 1e3, calls)
}

#[test]
fn the_failover_table_has_no_silent_and_no_forged_end() {
    println!("| first target | asked for | the client got | ms | calls (first, stand-in) |\n|---|---|---|---|---|");
    let mut instant = Vec::new();
    for (n, r) in rows().into_iter().enumerate() {
        for (stream, right) in [(true, r.stream), (false, r.plain)] {
            let Some(right) = right else { continue };
            // A script is made anew for each use: it is cheap, and scripts cannot be cloned.
            let script = rows().swap_remove(n).script;
            let (got, ms, (a, b)) = hold(r.name, stream, right, script);
            let asked = if stream { "stream" } else { "JSON" };
            println!("| {} | {asked} | {got} | {ms:.1} | {a}, {b} |", r.name);
            // Far above what it costs and far below every clock: an instant failure has waited for none.
            let most = if r.soon == Soon::AtOnce { 400.0 } else { 2500.0 };
            assert!(ms < most, "{}, {asked}: {ms} ms", r.name);
            if r.soon == Soon::AtOnce && right == Right::StandIn {
                instant.push(ms);
            }
        }
    }
    instant.sort_by(f64::total_cmp);
    println!("instant failures with a stand-in: median {:.1} ms of {}", instant[instant.len() / 2], instant.len());
}

#[test]
fn the_failover_table_for_a_refused_connection() {
    let b = Mock::start(good("bravo"));
    // A port that nobody listens on: bound, and given up.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for stream in [true, false] {
        let rig = rig(nobody, b.address, Change::default());
        let before = b.asked();
        let began = Instant::now();
        let got = http::chat(rig.listen, &body(stream), &[]);
        answered("refused", &got, stream, "bravo one two", "stop");
        assert_eq!(b.asked() - before, 1);
        assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    }
}

/// Requests that pay before the target is left alone: each is answered whole by the stand-in all the same.
#[test]
fn few_requests_pay_before_a_failing_target_is_left_alone() {
    // Three failures in a row are the limit that the policy sets here; what is certain at once costs one request.
    let kinds: Vec<(&str, Script, usize)> = vec![
        ("503", Box::new(mock::status("503 Service Unavailable", "{}")), 3),
        ("hang", Box::new(mock::silence), 3),
        ("429", Box::new(mock::status("429 Too Many Requests", "{}")), 1),
        ("401", Box::new(mock::status("401 Unauthorized", r#"{"error":{"code":"invalid_api_key"}}"#)), 1),
        ("200 with an error", Box::new(mock::status("200 OK", r#"{"error":{"message":"boom"}}"#)), 3),
    ];
    for (name, script, most) in kinds {
        let (a, b) = (Mock::start(script), Mock::start(good("bravo")));
        let breaker = "{ consecutive_failures: 3, base_cooldown_s: 60 }";
        let rig = rig(a.address, b.address, Change { breaker, ..Change::default() });
        for _ in 0..8 {
            answered(name, &rig.plain(), false, "bravo one two", "stop");
        }
        assert_eq!(a.asked(), most, "{name}: requests that paid");
        assert_eq!(b.asked(), 8, "{name}");
        println!("{name}: {} requests paid before the target was left alone", a.asked());
    }
}

/// All customers of one moment are answered when it fails under them, and none of them is a probe.
#[test]
fn a_burst_at_the_moment_of_failure_is_answered_whole_and_nobody_pays_for_a_probe() {
    let (a, b) = (Mock::start(good("alpha")), Mock::start(good("bravo")));
    let breaker = "{ consecutive_failures: 3, base_cooldown_s: 1 }";
    let rig = rig(a.address, b.address, Change { breaker, ..Change::default() });
    answered("before", &rig.stream(), true, "alpha one two", "stop");
    a.play(|_, _| Then::Rst);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..16).map(|_| s.spawn(|| rig.stream())).collect();
        for one in all {
            answered("burst", &one.join().unwrap(), true, "bravo one two", "stop");
        }
    });
    // While it cools down and is probed, no customer meets it.
    rig.eventually("a probe", || a.seen().iter().any(mock::is_probe).then_some(()));
    let paid = a.asked();
    for _ in 0..5 {
        answered("while open", &rig.stream(), true, "bravo one two", "stop");
    }
    assert_eq!(a.asked(), paid, "only probes went there");
    // Healed: within its present cooldown and two probes customers are back.
    a.play(good("alpha"));
    let healed = Instant::now();
    rig.eventually("the first answer of the primary after healing", || {
        (rig.stream().content() == "alpha one two").then_some(())
    });
    println!("first primary answer {:.1} s after healing", healed.elapsed().as_secs_f64());
    let records = rig.snapshot();
    assert_eq!(records["requests"]["open"], 0, "{records}");
}

/// A primary that takes everything and says nothing: nobody gets an error, for as long as it lasts.
#[test]
fn sixteen_connections_against_a_hanging_primary_see_no_error() {
    let (a, b) = (Mock::start(mock::silence), Mock::start(good("bravo")));
    let breaker = "{ consecutive_failures: 3, base_cooldown_s: 1 }";
    let rig = rig(a.address, b.address, Change { breaker, ..Change::default() });
    let until = Instant::now() + Duration::from_secs(12);
    let answers: usize = std::thread::scope(|s| {
        let run = || {
            let mut n = 0;
            while Instant::now() < until {
                answered("hanging", &rig.stream(), true, "bravo one two", "stop");
                n += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            n
        };
        let all: Vec<_> = (0..16).map(|_| s.spawn(run)).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    // At most the 16 of the first moment and those of its threshold met it; no later one.
    assert!(a.asked() <= 16 + 3, "{} of {answers} requests waited for the silence", a.asked());
    println!("{answers} answers, {} of them after a wait for the hanging one", a.asked());
}
