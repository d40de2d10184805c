//! Errors: those of providers that do not arrive whole, and those that the gateway makes itself.

use std::net::SocketAddr;

use serde_json::Value;

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{End, Response, chat, chat_bytes, send};
use crate::mock::{self, Mock, Then, Wire, good};

/// A 400 that blames the caller, as far as it goes.
const TORN: &str = r#"{"error":{"message":"You sent a bad request","type":"invalid_request_error","code":"bad_re"#;

/// How a body breaks off, and what the attempt's reason must be.
type Break = (&'static str, fn(&str, &mut Wire) -> Then, &'static str);

fn with_length(status: &str, w: &mut Wire) {
    w.raw(format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 200\r\n\r\n{TORN}"));
}

const BREAKS: [Break; 5] = [
    (
        "a reset",
        |status, w| {
            with_length(status, w);
            w.sleep(100);
            Then::Rst
        },
        "reset",
    ),
    (
        "a close before its length",
        |status, w| {
            with_length(status, w);
            Then::Fin
        },
        "reset",
    ),
    (
        "a close inside a chunk",
        |status, w| {
            let head = "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            w.raw(format!("HTTP/1.1 {status}\r\n{head}200\r\n{TORN}"));
            Then::Fin
        },
        "reset",
    ),
    (
        "a close inside JSON without a length",
        |status, w| {
            w.raw(format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{TORN}"));
            Then::Fin
        },
        "truncated",
    ),
    (
        "silence",
        |status, w| {
            with_length(status, w);
            w.wait_gone();
            Then::Fin
        },
        "first_token_timeout",
    ),
];

#[test]
fn an_error_answer_that_breaks_off_is_the_providers_failure() {
    for status in ["400 Bad Request", "401 Unauthorized", "429 Too Many Requests"] {
        for (how, break_off, reason) in BREAKS {
            let a = Mock::start(move |_, w| break_off(status, w));
            let b = Mock::start(good("bravo"));
            let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
            let got = rig.stream();
            assert_eq!((got.status, got.content().as_str()), (200, "bravo one two"), "{status}, {how}");
            let first = &rig.decision(&got)["attempts"][0];
            assert_eq!((&first["class"], &first["reason"]), (&"provider".into(), &reason.into()), "{status}, {how}");
            assert_eq!(rig.target("a")["counters"]["failed_counted"], 1, "{status}, {how}");
        }
    }
}

#[test]
fn an_error_answer_that_is_whole_is_judged_by_what_it_says() {
    // Also the one whose end is the end of its connection.
    let a = Mock::start(|_, w| {
        w.raw(
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"bad\",\"code\":\"odd\"}}",
        );
        Then::Fin
    });
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let got = rig.stream();
    assert_eq!((got.status, got.code().as_str(), b.asked()), (400, "odd", 0), "{}", got.text());
    assert_eq!(got.json()["error"]["request_id"], got.header("x-llmfo-request-id").unwrap());
}

/// An OpenAI error with its id in header and body, and a sentence that says what to do.
fn is_our_error(what: &str, got: &Response) {
    assert_eq!(got.header("content-type"), Some("application/json"), "{what}");
    let id = got.header("x-llmfo-request-id").unwrap_or_else(|| panic!("{what}: no id"));
    let error = &got.json()["error"];
    assert_eq!(error["request_id"], id, "{what}: {error}");
    for member in ["message", "type", "code"] {
        assert!(error[member].as_str().is_some_and(|s| !s.is_empty()), "{what}: {member} in {error}");
    }
    assert!(error.get("param").is_some(), "{what}: {error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with('.') && message.len() > 30, "{what}: {message}");
}

#[test]
fn every_error_of_the_gateway_has_openai_shape_and_its_request_id() {
    let a = Mock::start(mock::status("500 Down", "{}"));
    let rig = Rig::new(&[("a", a.address)]);
    let plain = |line: &str| format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").into_bytes();
    let post = |more: &str, body: &str| {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";
        format!("{head}{more}\r\n{body}").into_bytes()
    };
    let wrapped = "unsupported_transfer_encoding";
    let cases: [(SocketAddr, Vec<u8>, u16, &str); 22] = [
        (rig.listen, plain("GET /nope"), 404, "unknown_url"),
        (rig.listen, plain("POST /healthz"), 404, "unknown_url"),
        (rig.listen, plain("GET /v1/chat/completions"), 405, "method_not_allowed"),
        (rig.listen, plain("POST /v1/models"), 405, "method_not_allowed"),
        (rig.listen, plain("DELETE /v1/models/chat"), 405, "method_not_allowed"),
        (rig.listen, plain("GET /v1/models/nope"), 404, "model_not_found"),
        (rig.listen, chat_bytes(r#"{"model":"nope","messages":[]}"#, &[]), 404, "model_not_found"),
        (rig.listen, chat_bytes("{", &[]), 400, "invalid_request"),
        (rig.listen, chat_bytes("[]", &[]), 400, "invalid_request"),
        (rig.listen, chat_bytes("{}", &[]), 400, "invalid_request"),
        (rig.listen, chat_bytes(&body(true), &[("x-llmfo-data", "publik")]), 400, "invalid_label"),
        (rig.listen, chat_bytes(&body(true), &[("content-encoding", "gzip")]), 415, "unsupported_content_encoding"),
        (rig.listen, post("content-length: 40000000\r\n", ""), 413, "request_too_large"),
        (rig.listen, post("transfer-encoding: chunked\r\n", "5\r\n{\"mod\r\nzz\r\n"), 400, "invalid_body_framing"),
        (rig.listen, post("transfer-encoding: chunked\r\n", "\u{1}\u{2}garbage\r\n"), 400, "invalid_body_framing"),
        // What else the body was wrapped in is unknown: as plain chunks it would be another body.
        (rig.listen, post("transfer-encoding: gzip, chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 501, wrapped),
        (rig.listen, post("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"), 501, wrapped),
        // Only the word `chunked` itself, in any case, is taken.
        (rig.listen, post("transfer-encoding: Chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 400, "invalid_request"),
        (rig.listen, chat_bytes(&body(true), &[]), 503, "handoff"),
        (rig.admin, plain("GET /nope"), 404, "unknown_url"),
        (rig.admin, plain("POST /readyz"), 405, "method_not_allowed"),
        (rig.admin, plain("GET /decisions/req-0"), 404, "unknown_request"),
    ];
    for (to, request, status, code) in cases {
        let what = String::from_utf8_lossy(&request).chars().take(120).collect::<String>();
        let got = send(to, &request).whole();
        assert_eq!((got.status, got.code().as_str(), got.end), (status, code, End::Proper), "{what}: {}", got.text());
        is_our_error(&what, &got);
    }
    let named = send(rig.listen, &chat_bytes(r#"{"messages":[]}"#, &[])).whole();
    assert_eq!(named.json()["error"]["param"], "model");
    let wrong = send(rig.listen, &plain("GET /v1/chat/completions")).whole();
    assert_eq!(wrong.header("allow"), Some("POST"));
}

#[test]
fn a_request_that_is_no_http_is_refused_and_the_connection_closed_in_order() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    let large = format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n", "x".repeat(3 << 20));
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(70_000));
    let many: String = (0..300).map(|n| format!("x-{n}: 1\r\n")).collect();
    let many = format!("GET /v1/models HTTP/1.1\r\n{many}\r\n");
    for (request, status) in [
        ("NONSENSE\r\n\r\n", "400"),
        ("GET /v1/models HTTP/7.1\r\n\r\n", "400"),
        ("\u{16}\u{3}\u{1} a TLS greeting\r\n\r\n", "400"),
        ("GET /v1/models HTTP/1.1\r\nno colon\r\n\r\n", "400"),
        (long.as_str(), "414"),
        (large.as_str(), "431"),
        (many.as_str(), "431"),
    ] {
        let what = &request[..request.len().min(60)];
        // `until_closed` does not accept a reset.
        let all = send(rig.listen, request.as_bytes()).until_closed();
        assert!(all.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {all}");
    }
}

#[test]
fn an_upload_refused_by_its_length_can_read_why() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    let got = send(rig.listen, &chat_bytes(&"x".repeat(40 << 20), &[])).until_closed();
    assert!(got.starts_with("HTTP/1.1 413 ") && got.contains("request_too_large"), "{got}");
}

#[test]
fn a_finish_reason_of_a_wrong_type_is_no_answer() {
    for streamed in [true, false] {
        for value in ["5", "true", "{}", "[\"stop\"]"] {
            let a = Mock::start(move |_, w| {
                if streamed {
                    w.stream_head();
                    w.event(format!(r#"{{"choices":[{{"delta":{{"content":"hello"}},"finish_reason":{value}}}]}}"#));
                    w.chunk("data: [DONE]\n\n");
                    w.end();
                } else {
                    let text = mock::whole("hello").replace("\"stop\"", value);
                    w.answer("200 OK", "application/json", text);
                }
                Then::KeepAlive
            });
            let b = Mock::start(good("bravo"));
            let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
            let got = if streamed { rig.stream() } else { rig.plain() };
            assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{value}: {}", got.text());
            let first = &rig.decision(&got)["attempts"][0];
            assert_eq!((&first["class"], &first["reason"]), (&"provider".into(), &"malformed".into()), "{value}");
        }
    }
}

#[test]
fn a_whole_document_without_a_finish_reason_is_an_answer() {
    for with in ["\"finish_reason\":null", "\"other\":1"] {
        let a = Mock::start(move |_, w| {
            let text = mock::whole("hello").replace("\"finish_reason\":\"stop\"", with);
            w.answer("200 OK", "application/json", text);
            Then::KeepAlive
        });
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.plain();
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("a")), "{with}: {}", got.text());
        let metrics = rig.metrics();
        assert!(
            metrics.contains(r#"llmfo_stream_anomalies_total{target="a",kind="done_without_finish"} 1"#),
            "{metrics}"
        );
    }
}

#[test]
fn health_says_no_more_than_was_seen() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    rig.eventually("a connection", || (rig.target("a")["evidence"]["last_good"]["what"] == "reachable").then_some(()));
    let of = |rig: &Rig| -> Value { crate::http::get(rig.admin, "/readyz").json()["targets"][0]["health"].clone() };
    assert_eq!((a.asked(), of(&rig)), (0, "reachable".into()), "nothing was asked yet");
    assert_eq!(rig.stream().status, 200);
    rig.eventually("an answer", || (of(&rig) == "healthy").then_some(()));
}

/// A route with personal data: the request's `none` does not make it laxer. The refusal says what to write, and nobody is dialled.
#[test]
fn a_request_cannot_be_laxer_than_its_route_and_is_told_what_to_write() {
    let a = Mock::start(good("alpha"));
    let text = policy(&[("a", a.address)], &Change::default());
    let text = text.replace("data: none", "data: personal").replace(", pii: allowed", "");
    let rig = Rig::of(&text, Change::default());
    let got = chat(rig.listen, &body(true), &[("x-llmfo-data", "none")]);
    assert_eq!((got.status, got.code().as_str()), (503, "nobody_may_answer"), "{}", got.text());
    assert_eq!((got.header("x-should-retry"), got.header("x-llmfo-attempts")), (Some("false"), Some("0")));
    let json = got.json();
    let message = json["error"]["message"].as_str().unwrap();
    for part in
        ["a: pii", "write `pii: allowed`", "`residency_required`", "send `x-llmfo-data: none`: both must say it"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(a.asked(), 0);
}

/// Nobody was dialled, so nothing may say that somebody was tried.
#[test]
fn a_handoff_without_a_dial_does_not_claim_one() {
    let a = Mock::start(good("alpha"));
    let text = policy(&[("a", a.address)], &Change::default()).replace("tools: true", "tools: false");
    let rig = Rig::of(&text, Change::default());
    let with_tools = body(true).replacen('{', r#"{"tools":[{"type":"function","function":{"name":"get_order"}}],"#, 1);
    let got = chat(rig.listen, &with_tools, &[]);
    assert_eq!((got.status, got.code().as_str()), (503, "handoff"), "{}", got.text());
    let json = got.json();
    let message = json["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("No model was asked; hand this conversation to a human. a: capability_tools"),
        "{message}"
    );
    assert_eq!((a.asked(), got.header("x-llmfo-attempts")), (0, Some("0")));
}
