//! What goes in and what comes out: bodies, headers, secrets, errors, admin.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{self, chat, chat_bytes, get, send};
use crate::mock::{self, Mock, Then, good};

#[test]
fn the_body_is_relayed_byte_for_byte_but_for_the_model() {
    let a = Mock::start(good("alpha"));
    let b = Mock::start(good("bravo"));
    a.play(mock::status("500 Down", ""));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let odd = r#"{ "zz":[1.0, 1e2,	-0.0,"\u00e9\/"],"model" : "chat", "temperature":0.70, "messages":[{"role":"user","content":"ü \ud83d\ude00"}],
        "stream":false,"unknown_field":{"b":1,"a":2}, "seed":12345678901234567890 }"#;
    let got = chat(rig.listen, odd, &[]);
    assert_eq!(got.status, 200, "{}", got.text());
    assert_eq!(String::from_utf8(a.seen()[0].body.clone()).unwrap(), odd.replace("\"chat\"", "\"model-a\""));
    assert_eq!(String::from_utf8(b.seen()[0].body.clone()).unwrap(), odd.replace("\"chat\"", "\"model-b\""));
}

#[test]
fn a_client_s_credentials_and_headers_stay_here() {
    let a = Mock::start(mock::status("500 Down", ""));
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let headers = [
        ("authorization", "Bearer client-token"),
        ("x-api-key", "client-key"),
        ("cookie", "session=1"),
        ("openai-organization", "org-1"),
        ("x-forwarded-for", "10.0.0.9"),
        ("accept-encoding", "gzip, br"),
        ("x-llmfo-intent", "shipping"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    assert_eq!(chat(rig.listen, &body(true), &headers).status, 200);
    for mock in [&a, &b] {
        let seen = mock.seen();
        let head = &seen[0].head;
        for secret in ["client-token", "client-key", "session", "org-1", "10.0.0.9", "gzip", "x-llmfo"] {
            assert!(!head.contains(secret), "{secret} in {head}");
        }
        assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
        assert_eq!(seen[0].header("accept"), Some("text/event-stream"));
        assert!(seen[0].header("user-agent").unwrap().starts_with("llmfo/"));
        assert!(seen[0].header("traceparent").is_some());
    }
}

#[test]
fn secrets_go_to_their_own_target_and_are_echoed_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let key = "sk-proj-Zx81LkQp77YtRw20";
    let path = folder.path().join("key");
    std::fs::write(&path, format!("{key}\n")).unwrap();
    let journal = folder.path().join("journal.jsonl");
    let a = Mock::start(move |_, w| {
        let body = format!(
            r#"{{"error":{{"message":"Incorrect API key provided: {key}. Also sk-proj-Zx8***tRw20 and {}","code":"invalid_api_key"}}}}"#,
            &key[..12]
        );
        w.answer("400 Bad Request", "application/json", body.replace("invalid_api_key", "odd_request"));
        Then::KeepAlive
    });
    let change = Change { journal: Some(journal.clone()), ..Change::default() };
    let yaml = policy(&[("a", a.address)], &change)
        .replace(&crate::canary::key_file("a").display().to_string(), &path.display().to_string());
    let mut rig = Rig::of(&yaml, change);
    let got = rig.stream();
    assert_eq!(a.seen()[0].header("authorization"), Some(format!("bearer {}", key.to_lowercase()).as_str()));
    let record = rig.decision(&got).to_string();
    let mut events = send(rig.admin, b"GET /events?since=0 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let events = events.until("\"event\":\"decision\"");
    let everything = [
        got.text(),
        format!("{:?}", got.headers),
        record,
        rig.metrics(),
        rig.snapshot().to_string(),
        get(rig.admin, "/readyz").text(),
        events,
    ];
    rig.stop(Duration::ZERO);
    let journal = std::fs::read_to_string(journal).unwrap();
    assert!(journal.contains("\"event\":\"started\"") && journal.contains("\"event\":\"stopped\""), "{journal}");
    for text in everything.iter().chain([&journal]) {
        for part in [key, &key[..12], "tRw20"] {
            assert!(!text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn an_unknown_route_is_told_what_there_is() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    for n in 0..50 {
        let model = format!("nope-{n}\\\"\\n{}", "x".repeat(n * 10));
        let got = chat(rig.listen, &format!(r#"{{"model":"{model}","messages":[]}}"#), &[]);
        assert_eq!((got.status, got.code().as_str()), (404, "model_not_found"));
        assert!(got.json()["error"]["message"].as_str().unwrap().contains("known: chat"));
    }
    assert!(!rig.metrics().contains("nope"), "no label from outside");
    // The header names the route too, and wins.
    let got = chat(rig.listen, r#"{"model":"nope","messages":[]}"#, &[("x-llmfo-route", "chat")]);
    assert_eq!(got.status, 200);
    let models = get(rig.listen, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "chat");
    assert_eq!(get(rig.listen, "/v1/models/chat").json()["object"], "model");
    assert_eq!(get(rig.listen, "/v1/models/nope").status, 404);
}

#[test]
fn bad_requests_are_refused_in_openai_shape() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    for bad in ["", "{", "[]", "nonsense", r#"{"messages":[]}"#, r#"{"model":5}"#, "\u{0}"] {
        let got = chat(rig.listen, bad, &[]);
        assert_eq!(got.status, 400, "{bad:?}: {}", got.text());
        assert_eq!(got.json()["error"]["type"], "invalid_request_error");
        assert!(got.header("x-llmfo-request-id").is_some());
    }
    let got = chat(rig.listen, &body(true), &[("x-llmfo-data", "secret")]);
    assert_eq!((got.status, got.code().as_str()), (400, "invalid_label"));
    let got = chat(rig.listen, &body(true), &[("content-encoding", "gzip")]);
    assert_eq!(got.status, 415);
    assert_eq!(get(rig.listen, "/v1/chat/completions").status, 405);
    assert_eq!(get(rig.listen, "/nowhere").json()["error"]["code"], "unknown_url");
    // Garbage instead of HTTP ends the connection and nothing else.
    let mut garbage = TcpStream::connect(rig.listen).unwrap();
    garbage.write_all(b"\x16\x03\x01\x02\x00\x01\r\n\r\n").unwrap();
    garbage.set_read_timeout(Some(http::LIMIT)).unwrap();
    let mut rest = Vec::new();
    let _ = garbage.read_to_end(&mut rest);
    assert_eq!(rig.plain().status, 200);
    assert_eq!(a.asked(), 1);
}

#[test]
fn large_bodies_pass_and_too_large_ones_are_refused_in_shape() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    let image = |bytes: usize| {
        format!(
            r#"{{"model":"chat","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}]}}]}}"#,
            "A".repeat(bytes)
        )
    };
    for bytes in [1_900_000, 2_200_000, 12_000_000] {
        let got = chat(rig.listen, &image(bytes), &[]);
        assert_eq!(got.status, 200, "{bytes}: {}", got.text());
        assert!(a.seen().last().unwrap().body.len() > bytes);
    }
    let check = |got: http::Response| {
        assert_eq!((got.status, got.code().as_str()), (413, "request_too_large"), "{}", got.text());
        assert_eq!(got.json()["error"]["type"], "invalid_request_error");
    };
    // With a length: refused before the upload, which Expect makes visible.
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 41943040\r\n\r\n";
    let got = send(rig.listen, head.as_bytes()).whole();
    check(got);
    // Expect on a body that is welcome: 100, then the answer.
    let small = body(false);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        small.len()
    );
    let mut stream = TcpStream::connect(rig.listen).unwrap();
    stream.set_read_timeout(Some(http::LIMIT)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 100");
    drop(stream);
    // Without a length: read, counted, thrown away, refused.
    let mut chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let piece = "B".repeat(1 << 20);
    for _ in 0..40 {
        chunked.extend_from_slice(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    check(send(rig.listen, &chunked).whole());
}

#[test]
fn the_admin_side_tells_what_happened() {
    let a = Mock::start(mock::status("500 Down", ""));
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let mut live = send(rig.admin, b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n");
    live.until("llmfo events");
    let got = chat(rig.listen, &body(true), &[("x-llmfo-conversation", "c-1"), ("x-llmfo-intent", "shipping")]);
    let events = live.until("\"event\":\"decision\"");
    assert!(events.contains("\"event\":\"attempt_failed\""), "{events}");
    let id = got.header("x-llmfo-request-id").unwrap();
    assert!(events.contains(&format!("\"request\":\"{id}\"")));
    let decision = get(rig.admin, &format!("/decisions/{id}")).json();
    assert_eq!((&decision["conversation"], &decision["turn"]), (&"c-1".into(), &1.into()));
    assert_eq!(decision["record"]["intent"], "shipping");
    assert_eq!(get(rig.admin, "/decisions/req-0-0").status, 404);
    rig.wait_idle();
    let metrics = rig.metrics();
    for line in [
        "llmfo_requests_total{route=\"chat\",outcome=\"answered\"} 1",
        "llmfo_attempts_total{route=\"chat\",target=\"a\",outcome=\"provider\",error_type=\"status_500\"} 1",
        "llmfo_attempts_total{route=\"chat\",target=\"b\",outcome=\"success\",error_type=\"none\"} 1",
        "llmfo_failovers_total{route=\"chat\",from=\"a\",to=\"b\",reason=\"status_500\",phase=\"pre_commit\"} 1",
        "llmfo_time_to_first_token_seconds_count{route=\"chat\",target=\"b\"} 1",
        "llmfo_inflight_requests{target=\"a\"} 0",
        "llmfo_requests_open 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let snapshot = rig.snapshot();
    assert_eq!(snapshot["requests"]["by_outcome"]["answered"], 1);
    assert_eq!(snapshot["policy"]["version"], "test-1");
    assert_eq!(got.header("x-llmfo-policy"), Some("test-1"));
    let put = send(rig.admin, b"POST /snapshot HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").whole();
    assert_eq!(put.status, 405);
}

#[test]
fn too_many_connections_are_told_so() {
    let a = Mock::start(good("alpha"));
    let limits = llmfo::gateway::listener::ListenerLimits { connections_max: 2, ..Default::default() };
    let rig = Rig::with(&[("a", a.address)], Change { limits, ..Change::default() });
    let held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(rig.listen).unwrap()).collect();
    rig.eventually("two open connections", || rig.metrics().contains("llmfo_client_connections_open 2").then_some(()));
    let got = send(rig.listen, b"").whole();
    assert_eq!((got.status, got.code().as_str()), (503, "too_busy"));
    drop(held);
    rig.eventually("room", || (send(rig.listen, &chat_bytes(&body(false), &[])).whole().status == 200).then_some(()));
}

#[test]
fn a_redirect_is_never_followed() {
    let trap = Mock::start(good("trap"));
    let to = format!("location: http://{}/v1/chat/completions\r\n", trap.address);
    let a = Mock::start(move |_, w| {
        w.answer_with("307 Temporary Redirect", "text/html", &to, "");
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    assert_eq!(rig.stream().status, 503);
    assert_eq!(trap.asked(), 0);
}

#[test]
fn one_keep_alive_connection_serves_many_requests() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    let rig = Arc::new(rig);
    for _ in 0..20 {
        assert_eq!(rig.stream().content(), "alpha one two");
        // The connection goes back a moment after the answer.
        rig.eventually("the pool", || (rig.target("a")["idle_connections"].as_u64() >= Some(1)).then_some(()));
    }
    // One that only looked whether the target is there, and one or two that did the work.
    assert!(a.connections() <= 3, "{}", a.connections());
}

#[test]
fn after_its_expiry_a_policy_answers_listed_intents_without_tools_and_hands_the_rest_off() {
    let a = Mock::start(good("alpha"));
    let change = Change::default();
    let yaml = policy(&[("a", a.address)], &change).replace(
        "expires: 2100-01-01T00:00:00Z\n",
        "expires: 2020-01-01T00:00:00Z\non_expired: { intents: [shipping] }\n",
    );
    let rig = Rig::of(&yaml, change);
    let asked = r#"{"model":"chat","tools":[{"type":"function","function":{"name":"get_order"}}],"tool_choice":"auto","messages":[{"role":"user","content":"hi"}]}"#;
    let got = chat(rig.listen, asked, &[("x-llmfo-intent", "shipping")]);
    assert_eq!(got.status, 200, "{}", got.text());
    let sent = a.seen()[0].json();
    assert!(sent.get("tools").is_none() && sent.get("tool_choice").is_none(), "{sent}");
    for intent in [&[("x-llmfo-intent", "refund")][..], &[]] {
        let got = chat(rig.listen, asked, intent);
        assert_eq!((got.status, got.header("x-llmfo-outcome")), (503, Some("handoff")), "{}", got.text());
    }
    assert_eq!(a.asked(), 1);
}

#[test]
fn connect_to_changes_only_where_it_dials() {
    let a = Mock::start(good("alpha"));
    let change = Change::default();
    let yaml = policy(&[("a", a.address)], &change).replace(
        &format!("base_url: http://{}/v1", a.address),
        &format!("base_url: http://models.example:8000/base/v1/\n    connect_to: {}", a.address),
    );
    let rig = Rig::of(&yaml, change);
    assert_eq!(rig.stream().content(), "alpha one two");
    let seen = &a.seen()[0];
    assert_eq!(seen.header("host"), Some("models.example:8000"));
    assert!(seen.head.starts_with("post /base/v1/chat/completions http/1.1"), "{}", seen.head);
}
