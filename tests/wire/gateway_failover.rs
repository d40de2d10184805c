//! Before the commit point the client never sees a failed attempt; after it, never anything but that attempt.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::gateway::{Change, Rig, body};
use crate::http::{self, End};
use crate::mock::{self, Mock, Seen, Then, Wire, call_chunk, finish_chunk, good, role_chunk, text_chunk, whole};

type BreakOff = Box<dyn Fn(&mut Wire) -> Then + Send + Sync>;
type Script = Box<dyn Fn(&Seen, &mut Wire) -> Then + Send + Sync>;

/// Every way to fail before the commit point, with the reason that the decision record must give.
fn failures_before_commit() -> Vec<(&'static str, Script, &'static str, &'static str)> {
    fn on(f: impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static) -> Script {
        Box::new(f)
    }
    let stream = |f: fn(&mut Wire) -> Then| {
        on(move |_, w| {
            w.stream_head();
            f(w)
        })
    };
    let html = "<html><body>maintenance</body></html>";
    vec![
        (
            "503",
            on(mock::status("503 Service Unavailable", r#"{"error":{"message":"down"}}"#)),
            "status_503",
            "provider",
        ),
        (
            "502 with a page",
            on(move |_, w| {
                w.answer("502 Bad Gateway", "text/html", html);
                Then::KeepAlive
            }),
            "status_502",
            "provider",
        ),
        ("529", on(mock::status("529 Overloaded", "")), "", "capacity"),
        (
            "429",
            on(mock::status("429 Too Many Requests", r#"{"error":{"message":"slow down","type":"rate_limit"}}"#)),
            "",
            "capacity",
        ),
        (
            "401",
            on(mock::status("401 Unauthorized", r#"{"error":{"message":"bad key","code":"invalid_api_key"}}"#)),
            "",
            "account",
        ),
        (
            "302",
            on(|_, w| {
                w.answer_with("302 Found", "text/html", "location: http://127.0.0.1:1/v1\r\n", "");
                Then::KeepAlive
            }),
            "",
            "provider",
        ),
        (
            "204",
            on(|_, w| {
                w.raw("HTTP/1.1 204 No Content\r\n\r\n");
                Then::KeepAlive
            }),
            "",
            "provider",
        ),
        ("hang before the head", on(mock::silence), "first_token_timeout", "provider"),
        (
            "head, then nothing",
            stream(|w| {
                w.wait_gone();
                Then::Fin
            }),
            "first_token_timeout",
            "provider",
        ),
        (
            "role, pings, then nothing",
            stream(|w| {
                w.event(role_chunk());
                for _ in 0..3 {
                    w.chunk(": ping\n\n");
                    w.sleep(100);
                }
                w.wait_gone();
                Then::Fin
            }),
            "first_token_timeout",
            "provider",
        ),
        ("rst before the head", on(|_, _| Then::Rst), "reset", "provider"),
        ("fin before the head", on(|_, _| Then::Fin), "reset", "provider"),
        (
            "no http",
            on(|_, w| {
                w.raw("SSH-2.0-OpenSSH_9\r\n\r\n");
                Then::Fin
            }),
            "malformed",
            "provider",
        ),
        (
            "rst after role",
            stream(|w| {
                w.event(role_chunk());
                w.sleep(20);
                Then::Rst
            }),
            "reset",
            "provider",
        ),
        (
            "end after role",
            stream(|w| {
                w.event(role_chunk());
                w.end();
                Then::KeepAlive
            }),
            "",
            "provider",
        ),
        (
            "empty stream",
            stream(|w| {
                w.end();
                Then::KeepAlive
            }),
            "empty",
            "provider",
        ),
        (
            "only done",
            stream(|w| {
                w.chunk("data: [DONE]\n\n");
                w.end();
                Then::KeepAlive
            }),
            "empty",
            "provider",
        ),
        (
            "stop with nothing",
            stream(|w| {
                w.event(role_chunk());
                w.event(finish_chunk("stop"));
                w.chunk("data: [DONE]\n\n");
                w.end();
                Then::KeepAlive
            }),
            "empty",
            "provider",
        ),
        (
            "error event first",
            stream(|w| {
                w.chunk(": hello\n\n");
                w.event(
                    r#"{"error":{"type":"service_unavailable_error","code":"server_is_overloaded","message":"later"}}"#,
                );
                w.chunk("data: [DONE]\n\n");
                w.end();
                Then::KeepAlive
            }),
            "",
            "capacity",
        ),
        (
            "200 with an error object",
            on(|_, w| {
                w.answer("200 OK", "application/json", r#"{"error":{"message":"boom","type":"server_error"}}"#);
                Then::KeepAlive
            }),
            "",
            "provider",
        ),
        (
            "200 with a page",
            on(move |_, w| {
                w.answer("200 OK", "text/html", html);
                Then::KeepAlive
            }),
            "malformed",
            "provider",
        ),
        (
            "200 with nothing",
            on(|_, w| {
                w.answer("200 OK", "text/event-stream", "");
                Then::KeepAlive
            }),
            "empty",
            "provider",
        ),
        (
            "json lines",
            on(|_, w| {
                w.answer("200 OK", "text/plain", format!("{}\n{}\n", text_chunk("a"), text_chunk("b")));
                Then::KeepAlive
            }),
            "malformed",
            "provider",
        ),
        (
            "gzip unasked",
            on(|_, w| {
                w.answer_with("200 OK", "text/event-stream", "content-encoding: gzip\r\n", b"\x1f\x8b\x09rubbish");
                Then::KeepAlive
            }),
            "malformed",
            "provider",
        ),
        (
            "tool call fragments, then rst",
            stream(|w| {
                w.event(call_chunk(Some("get_order"), ""));
                w.event(call_chunk(None, "{\"order_id\":\"A1\",\"amo"));
                w.sleep(20);
                Then::Rst
            }),
            "reset",
            "provider",
        ),
        (
            "tool call fragments, then end",
            stream(|w| {
                w.event(call_chunk(Some("get_order"), "{\"order"));
                w.end();
                Then::KeepAlive
            }),
            "truncated",
            "provider",
        ),
        (
            "reasoning, then silence",
            stream(|w| {
                w.event(r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}"#);
                w.wait_gone();
                Then::Fin
            }),
            "idle_timeout",
            "provider",
        ),
        (
            "bad finish",
            stream(|w| {
                w.event(finish_chunk("error"));
                w.end();
                Then::KeepAlive
            }),
            "bad_finish",
            "provider",
        ),
        (
            "broken chunk framing",
            stream(|w| {
                w.raw("zz\r\nrubbish");
                Then::Fin
            }),
            "malformed",
            "provider",
        ),
    ]
}

#[test]
fn every_failure_before_commit_is_answered_whole_by_the_next() {
    for (name, script, reason, class) in failures_before_commit() {
        let a = Mock::start(script);
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        assert_eq!((got.status, got.end), (200, End::Proper), "{name}: {}", got.text());
        assert_eq!(got.content(), "bravo one two", "{name}");
        assert!(got.done(), "{name}");
        assert_eq!(got.header("x-llmfo-target"), Some("b"), "{name}");
        assert_eq!(got.header("x-llmfo-attempts"), Some("2"), "{name}");
        assert_eq!(got.header("x-llmfo-outcome"), Some("answered"), "{name}");
        let record = rig.decision(&got);
        assert_eq!(record["attempts"][0]["target"], "a", "{name}");
        assert_eq!(record["attempts"][0]["class"], class, "{name}: {record}");
        if !reason.is_empty() {
            assert_eq!(record["attempts"][0]["reason"], reason, "{name}: {record}");
        }
        assert_eq!(record["attempts"][1]["class"], "success", "{name}");
        assert_eq!((a.asked(), b.asked()), (1, 1), "{name}");
        rig.wait_idle();
        a.wait_quiet();
    }
}

#[test]
fn a_request_that_is_not_streamed_fails_over_too() {
    let scripts: Vec<(&str, Script)> = vec![
        ("500", Box::new(mock::status("500 Oops", "{}"))),
        (
            "cut json",
            Box::new(|_, w| {
                w.raw(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"choices\":[",
                );
                Then::Fin
            }),
        ),
        (
            "sse for json",
            Box::new(|_, w| {
                w.answer("200 OK", "text/event-stream", format!("data: {}\n\ndata: [DONE]\n\n", text_chunk("x")));
                Then::KeepAlive
            }),
        ),
        (
            "empty answer",
            Box::new(|_, w| {
                w.answer("200 OK", "application/json", whole(""));
                Then::KeepAlive
            }),
        ),
        (
            "no choices",
            Box::new(|_, w| {
                w.answer("200 OK", "application/json", "{}");
                Then::KeepAlive
            }),
        ),
        (
            "page",
            Box::new(|_, w| {
                w.answer("200 OK", "text/html", "<!doctype html><p>login");
                Then::KeepAlive
            }),
        ),
    ];
    for (name, script) in scripts {
        let a = Mock::start(script);
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.plain();
        assert_eq!(got.status, 200, "{name}: {}", got.text());
        // Byte for byte what the provider sent.
        assert_eq!(got.text(), whole("bravo one two"), "{name}");
        assert_eq!(got.header("content-type"), Some("application/json"));
        assert_eq!((got.header("x-llmfo-target"), got.header("x-llmfo-attempts")), (Some("b"), Some("2")), "{name}");
        rig.wait_idle();
    }
}

#[test]
fn a_refused_connection_is_noticed_at_once() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", closed), ("b", b.address)]);
    let got = rig.stream();
    assert_eq!(got.content(), "bravo one two");
    let failed = &rig.decision(&got)["attempts"][0];
    assert_eq!(failed["reason"], "refused");
    let noticed = failed["ended_ms"].as_f64().unwrap() - failed["dialled_ms"].as_f64().unwrap();
    assert!(noticed < 250.0, "below the connect limit: {noticed} ms");
}

/// Breaks after text was delivered.
#[test]
fn after_commit_a_break_is_one_error_event_and_nothing_else() {
    let text = |w: &mut Wire| {
        w.stream_head();
        w.event(role_chunk());
        w.event(text_chunk("Your refund"));
        w.event(text_chunk(" is "));
        w.sleep(50);
    };
    let breaks: Vec<(&str, BreakOff, &str)> = vec![
        ("rst", Box::new(|_| Then::Rst), "reset"),
        ("fin", Box::new(|_| Then::Fin), "reset"),
        (
            "clean end without finish",
            Box::new(|w| {
                w.end();
                Then::KeepAlive
            }),
            "truncated",
        ),
        (
            "silence",
            Box::new(|w| {
                w.wait_gone();
                Then::Fin
            }),
            "idle_timeout",
        ),
        (
            "pings only",
            Box::new(|w| {
                for _ in 0..15 {
                    w.chunk(": ping\n\n");
                    w.sleep(100);
                }
                w.wait_gone();
                Then::Fin
            }),
            "idle_timeout",
        ),
        (
            "error event",
            Box::new(|w| {
                w.event(r#"{"error":{"message":"boom","type":"server_error"}}"#);
                w.chunk("data: [DONE]\n\n");
                w.end();
                Then::KeepAlive
            }),
            "",
        ),
        (
            "error with finish reason",
            Box::new(|w| {
                w.event(r#"{"error":{"message":"boom","code":502},"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#);
                w.end();
                Then::KeepAlive
            }),
            "",
        ),
        (
            "bad framing",
            Box::new(|w| {
                w.raw("zz\r\n");
                Then::Fin
            }),
            "malformed",
        ),
    ];
    for (name, break_off, code) in breaks {
        let a = Mock::start(move |_, w| {
            text(w);
            break_off(w)
        });
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        assert_eq!((got.status, got.end), (200, End::Proper), "{name}");
        assert_eq!(got.content(), "Your refund is ", "{name}");
        assert!(!got.text().contains("[DONE]"), "{name}: {}", got.text());
        assert!(!got.text().contains("bravo"), "{name}: spliced");
        let events = got.events();
        let error: serde_json::Value = serde_json::from_str(events.last().unwrap()).unwrap();
        let error = &error["error"];
        assert_eq!(events.iter().filter(|e| e.contains("\"error\"")).count(), 1, "{name}: {}", got.text());
        if !code.is_empty() {
            assert_eq!(error["code"], code, "{name}");
        }
        assert_eq!(error["request_id"].as_str(), got.header("x-llmfo-request-id"), "{name}");
        assert_eq!((&error["retry_safe"], &error["tool_calls_delivered"]), (&true.into(), &false.into()), "{name}");
        assert_eq!(b.asked(), 0, "{name}: no second model after commit");
        let record = rig.decision(&got);
        assert_eq!(record["outcome"], "broken_after_commit", "{name}");
        rig.wait_idle();
        let metrics = rig.metrics();
        assert!(
            metrics.contains("llmfo_requests_total{route=\"chat\",outcome=\"broken_after_commit\"} 1"),
            "{metrics}"
        );
        assert!(metrics.contains("llmfo_stream_interruptions_total{target=\"a\""), "{metrics}");
    }
}

#[test]
fn a_break_after_tool_calls_were_delivered_says_so() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        w.event(call_chunk(Some("get_order"), "{\"order_id\":\"A1\"}"));
        w.event(finish_chunk("tool_calls"));
        // A second choice is announced and never finished.
        w.event(r#"{"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":null}]}"#);
        w.sleep(50);
        Then::Rst
    });
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let body = r#"{"model":"chat","stream":true,"n":2,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"get_order"}}]}"#;
    let got = http::chat(rig.listen, body, &[]);
    assert!(got.text().contains("order_id"), "{}", got.text());
    let error: serde_json::Value = serde_json::from_str(got.events().last().unwrap()).unwrap();
    assert_eq!(error["error"]["tool_calls_delivered"], true);
    assert_eq!(error["error"]["retry_safe"], false);
    assert_eq!(b.asked(), 0);
}

#[test]
fn an_end_that_is_good_stays_good() {
    // No [DONE], but a finish reason: a success, and the gateway adds its own.
    let a = Mock::start(|_, w| {
        w.stream_head();
        w.event(text_chunk("fine"));
        w.event(finish_chunk("stop"));
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let got = rig.stream();
    assert!(got.done() && got.content() == "fine", "{}", got.text());
    assert_eq!(rig.decision(&got)["outcome"], "answered");
    // [DONE] without a finish reason: a success, and none is invented.
    a.play(|_, w| {
        w.stream_head();
        w.event(text_chunk("fine"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    });
    let got = rig.stream();
    assert!(got.done() && !got.text().contains("\"stop\""), "{}", got.text());
    assert_eq!(rig.decision(&got)["outcome"], "answered");
    assert!(rig.metrics().contains("llmfo_stream_anomalies_total{target=\"a\",kind=\"done_without_finish\"} 1"));
}

#[test]
fn when_all_fail_the_reply_is_an_honest_handoff() {
    let a = Mock::start(mock::status("503 Down", r#"{"error":{"message":"down"}}"#));
    let b = Mock::start(mock::status(
        "400 Bad",
        r#"{"error":{"message":"Unsupported parameter: 'x'","code":"unsupported_parameter","param":"x"}}"#,
    ));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    for stream in [true, false] {
        let got = http::chat(rig.listen, &body(stream), &[("x-llmfo-conversation", "c-9"), ("x-llmfo-turn", "4")]);
        assert_eq!(got.status, 503, "{}", got.text());
        let error = &got.json()["error"];
        assert_eq!(error["type"], "handoff");
        assert_eq!(error["correlation_id"], "c-9/4");
        assert_eq!(error["request_id"].as_str(), got.header("x-llmfo-request-id"));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("a: status_503") && message.contains("b: "), "{message}");
        assert_eq!(got.header("x-should-retry"), Some("false"));
        assert_eq!(got.header("x-llmfo-outcome"), Some("handoff"));
        assert_eq!(got.header("x-llmfo-attempts"), Some("2"));
        assert!(got.header("content-type").unwrap().starts_with("application/json"));
    }
}

#[test]
fn b049_nothing_is_sent_before_an_attempt_is_accepted() {
    let errors = [
        ("429 Too Many Requests", r#"{"error":{"message":"slow down","type":"rate_limit"}}"#),
        ("401 Unauthorized", r#"{"error":{"message":"bad key","code":"invalid_api_key"}}"#),
        ("500 Oops", r#"{"error":{"message":"boom"}}"#),
    ];
    for (line, says) in errors {
        let (a, b) = (Mock::start(mock::status(line, says)), Mock::start(good("bravo")));
        let alone = Rig::new(&[("a", a.address)]);
        let got = alone.stream();
        assert_eq!((got.status, got.end), (503, End::Proper), "{line}: {}", got.text());
        assert!(got.header("content-type").unwrap().starts_with("application/json"), "{line}");
        assert_eq!(got.json()["error"]["type"], "handoff", "{line}");
        assert_eq!(a.asked(), 1, "{line}");
        let both = Rig::new(&[("a", a.address), ("b", b.address)]);
        assert_eq!(both.stream().content(), "bravo one two", "{line}");
    }
}

#[test]
fn b108_one_target_that_is_down_does_not_make_the_gateway_unready() {
    let (a, b) = (Mock::start(good("alpha")), Mock::start(good("bravo")));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rig = Rig::new(&[("a", a.address), ("b", b.address), ("c", nobody)]);
    rig.eventually("readiness", || (http::get(rig.admin, "/readyz").status == 200).then_some(()));
    a.play(mock::status("503 Down", "{}"));
    assert_eq!(rig.stream().content(), "bravo one two");
    let ready = http::get(rig.admin, "/readyz");
    assert_eq!(ready.status, 200, "{}", ready.text());
}

#[test]
fn a_mistake_of_the_caller_is_returned_and_tried_nowhere_else() {
    let a = Mock::start(mock::status(
        "422 Unprocessable",
        r#"{"error":{"message":"messages must not be empty","type":"invalid_request_error","param":"messages","code":"x"}}"#,
    ));
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    for _ in 0..6 {
        let got = rig.stream();
        assert_eq!(got.status, 422);
        assert_eq!(got.json()["error"]["message"], "messages must not be empty");
    }
    assert_eq!(b.asked(), 0);
    assert_eq!(rig.target("a")["state"], "serving", "the caller's mistakes open no breaker");
}

/// Bug case B145: what the name led to fails by now, and answers so on the connections that were kept; elsewhere all is well.
#[test]
fn b145_what_fails_at_an_old_address_is_not_asked_there_again() {
    let old = Arc::new(Mutex::new(BTreeSet::new()));
    let moved = Arc::new(AtomicBool::new(false));
    let (known, gone) = (Arc::clone(&old), Arc::clone(&moved));
    let a = Mock::start(move |seen, w| {
        if gone.load(Ordering::SeqCst) {
            if known.lock().unwrap().contains(&w.peer()) {
                return mock::status("503 Service Unavailable", r#"{"error":{"message":"moved"}}"#)(seen, w);
            }
        } else {
            known.lock().unwrap().insert(w.peer());
            // Until the other one is here as well, on a connection of its own.
            while known.lock().unwrap().len() < 2 {
                std::thread::yield_now();
            }
        }
        good("alpha")(seen, w)
    });
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    std::thread::scope(|s| {
        let two = [s.spawn(|| rig.stream()), s.spawn(|| rig.stream())];
        two.into_iter().for_each(|one| assert_eq!(one.join().unwrap().content(), "alpha one two"));
    });
    rig.eventually("two kept", || (rig.target("a")["idle_connections"].as_u64() == Some(2)).then_some(()));
    moved.store(true, Ordering::SeqCst);
    // Each kept connection fails once, and its customer is answered all the same; two failures open no breaker.
    let said: Vec<String> = (0..4).map(|_| rig.stream().content()).collect();
    assert_eq!(said, ["bravo one two", "bravo one two", "alpha one two", "alpha one two"]);
    assert_eq!(old.lock().unwrap().len(), 2);
}

#[test]
fn a_stale_pooled_connection_is_retried_once_and_not_counted() {
    let a = Mock::start(|seen, w| {
        if seen.nth == 1 {
            return Then::Rst;
        }
        good("alpha")(seen, w)
    });
    let rig = Rig::new(&[("a", a.address)]);
    assert_eq!(rig.stream().content(), "alpha one two");
    rig.eventually("a pooled connection", || (rig.target("a")["idle_connections"].as_u64() >= Some(1)).then_some(()));
    let got = rig.stream();
    assert_eq!(got.content(), "alpha one two");
    let record = rig.decision(&got);
    assert_eq!(record["attempts"].as_array().unwrap().len(), 2, "{record}");
    let counters = &rig.target("a")["counters"];
    assert_eq!(counters["failed_counted"], 0, "{counters}");
}

#[test]
fn commit_at_complete_holds_everything_back() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        w.event(text_chunk("half an e-mail"));
        w.sleep(50);
        Then::Rst
    });
    let b = Mock::start(good("bravo"));
    let change = Change { route: "    commit_at: complete\n", ..Change::default() };
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], change);
    let got = rig.stream();
    assert_eq!(got.content(), "bravo one two", "{}", got.text());
}

#[test]
fn a_silent_pooled_connection_is_not_waited_for_twice() {
    // The first answer comes; then everything that was open goes silent, and new connections are refused nothing but an answer.
    let a = Mock::start(|seen, w| if seen.nth < 2 { good("alpha")(seen, w) } else { mock::silence(seen, w) });
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let (first, second) = std::thread::scope(|s| {
        let (one, two) = (s.spawn(|| rig.stream()), s.spawn(|| rig.stream()));
        (one.join().unwrap(), two.join().unwrap())
    });
    assert_eq!((first.content(), second.content()), ("alpha one two".to_owned(), "alpha one two".to_owned()));
    rig.eventually("a pooled connection", || (rig.target("a")["idle_connections"].as_u64() >= Some(1)).then_some(()));
    assert_eq!(rig.stream().content(), "bravo one two");
    assert_eq!(rig.target("a")["idle_connections"], 0, "its siblings are on the same dead path");
}
