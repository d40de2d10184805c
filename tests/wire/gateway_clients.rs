//! Clients with keys: who is let in, for what, how much, and where their keys do not go.

use std::time::Duration;

use llmfo::gateway::clients::hash_of;
use serde_json::Value;

use crate::gateway::{Change, Rig, body};
use crate::http::{self, Response};
use crate::mock::{Mock, Then, good, text_chunk};

const KEY: &str = "sk-llmfo-test-of-the-shop-0123456789";
const OTHER: &str = "sk-llmfo-test-of-the-batch-0123456789";

/// A file with the clients `shop` and `batch`.
fn file(shop: &str, batch: &str) -> String {
    format!(
        "clients:\n  shop: {{ sha256: [{}]{shop} }}\n  batch: {{ sha256: [{}]{batch} }}\n",
        hash_of(KEY),
        hash_of(OTHER)
    )
}

fn rig(mock: &Mock, clients: String) -> Rig {
    Rig::with(&[("a", mock.address)], Change { clients: Some(clients), ..Change::default() })
}

fn ask(rig: &Rig, key: &str, stream: bool) -> Response {
    http::chat(rig.listen, &body(stream), &[("authorization", &format!("Bearer {key}"))])
}

fn get(rig: &Rig, path: &str, key: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    http::send(rig.listen, request.as_bytes()).whole()
}

fn counted(rig: &Rig, client: &str, outcome: &str, n: u32) {
    let line = format!("llmfo_client_requests_total{{client=\"{client}\",outcome=\"{outcome}\"}} {n}");
    rig.eventually(&line, || rig.metrics().contains(&line).then_some(()));
}

#[test]
fn who_has_no_key_or_a_wrong_one_is_told_so_and_nobody_is_asked() {
    let mock = Mock::start(good("a"));
    let expired = file("", ", expires: 2001-01-01T00:00:00Z");
    let rig = rig(&mock, expired);
    for (headers, says) in [
        (vec![("authorization", "Bearer sk-llmfo-test-of-the-shop-012345678X")], "not one of this gateway's clients"),
        (vec![("authorization", "Basic c2hvcDo=")], "holds no key"),
        (vec![("authorization", "Bearer sk-llmfo-test-of-the-batch-0123456789")], "The key of batch has expired"),
    ] {
        let answer = http::chat(rig.listen, &body(false), &headers);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{}", answer.text());
        assert_eq!(
            (&error["type"], answer.header("www-authenticate")),
            (&"invalid_request_error".into(), Some("Bearer"))
        );
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert_eq!(error["request_id"].as_str(), answer.header("x-llmfo-request-id"));
    }
    let bare = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    let answer = http::send(rig.listen, bare.as_bytes()).whole();
    assert!(answer.status == 401 && answer.text().contains("There is no key"), "{}", answer.text());
    // Nothing else of it either; only that it lives.
    for path in ["/v1/models", "/v1/models/chat", "/elsewhere"] {
        assert_eq!(http::get(rig.listen, path).status, 401, "{path}");
    }
    assert_eq!(http::get(rig.listen, "/healthz").status, 200);
    assert_eq!(mock.seen().len(), 0);
    counted(&rig, "unknown", "no_key", 4 + 1);
    counted(&rig, "unknown", "unknown_key", 1);
    counted(&rig, "batch", "expired_key", 1);
}

/// Bug case B152: whatever is sent in place of a key is answered alike, and repeated nowhere.
#[test]
fn b152_odd_keys_are_answered_alike_and_repeated_nowhere() {
    let mock = Mock::start(good("a"));
    let rig = rig(&mock, file("", ""));
    let long = format!("Bearer sk-llmfo-{}", "CANARYKEY".repeat(900));
    for key in [
        &b"Bearer "[..],
        b"Bearer  ",
        b"Bearer CANARYKEY\xc3\xa9\xff",
        b"Bearer CANARYKEY CANARYKEY",
        long.as_bytes(),
        b"CANARYKEY",
    ] {
        let mut head =
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nauthorization: ".to_vec();
        head.extend_from_slice(key);
        head.extend_from_slice(b"\r\n\r\n{}");
        let answer = http::send(rig.listen, &head).whole();
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{}", answer.text());
        assert!(!answer.text().contains("CANARYKEY") && !answer.text().contains("shop"), "{}", answer.text());
    }
    assert_eq!(mock.asked(), 0);
    assert!(!rig.metrics().contains("CANARYKEY"));
}

#[test]
fn without_a_key_a_body_is_not_uploaded() {
    let mock = Mock::start(good("a"));
    let rig = rig(&mock, file("", ""));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 30000000\r\n\r\n";
    let said = http::send(rig.listen, head.as_bytes()).until("\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 401"), "{said}");
}

#[test]
fn the_clients_name_is_everywhere_and_its_key_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.jsonl");
    let mock = Mock::start(good("a"));
    let change = Change { clients: Some(file("", "")), journal: Some(journal.clone()), ..Change::default() };
    let mut rig = Rig::with(&[("a", mock.address)], change);
    for stream in [true, false] {
        let answer = ask(&rig, KEY, stream);
        assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("a")), "{}", answer.text());
        assert!(!format!("{:?}{}", answer.headers, answer.text()).contains(KEY));
        let id = answer.header("x-llmfo-request-id").unwrap().to_owned();
        rig.decision(&answer);
        let decision = http::get(rig.admin, &format!("/decisions/{id}")).json();
        assert_eq!(decision["client"], "shop", "{decision}");
    }
    counted(&rig, "shop", "answered", 2);
    for seen in mock.seen() {
        // The target's own key, and nothing of the client's.
        assert_ne!(seen.header("authorization"), Some(format!("bearer {KEY}").as_str()), "{}", seen.head);
        assert!(!seen.head.contains(KEY) && !String::from_utf8_lossy(&seen.body).contains(KEY));
    }
    let everywhere = rig.metrics() + &rig.snapshot().to_string();
    rig.stop(Duration::from_secs(5));
    let journal = std::fs::read_to_string(journal).unwrap();
    let decisions: Vec<Value> = journal
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .filter(|e: &Value| e["event"] == "decision")
        .collect();
    assert!(decisions.len() == 2 && decisions.iter().all(|d| d["client"] == "shop"), "{journal}");
    for text in [everywhere, journal] {
        assert!(!text.contains(KEY) && !text.contains(&hash_of(KEY)));
    }
}

#[test]
fn a_key_opens_only_its_routes() {
    let mock = Mock::start(good("a"));
    let rig = rig(&mock, file(", routes: [chat]", ", routes: [other]"));
    assert_eq!(ask(&rig, KEY, true).status, 200);
    let refused = ask(&rig, OTHER, true);
    assert_eq!((refused.status, refused.code().as_str()), (403, "route_not_allowed"), "{}", refused.text());
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("batch") && message.contains("it is for: other"), "{message}");
    // It does not learn what others may ask for.
    let models = |key| get(&rig, "/v1/models", key).json()["data"].as_array().unwrap().len();
    assert_eq!((models(KEY), models(OTHER)), (1, 0));
    assert_eq!((get(&rig, "/v1/models/chat", KEY).status, get(&rig, "/v1/models/chat", OTHER).status), (200, 404));
    assert!(!get(&rig, "/v1/models/x", OTHER).text().contains("chat"));
    assert_eq!(mock.seen().len(), 1);
    counted(&rig, "batch", "route", 1);
}

#[test]
fn a_quota_of_requests_is_a_clients_own_and_says_when_to_come_again() {
    let mock = Mock::start(good("a"));
    let rig = rig(&mock, file(", requests_per_minute: 2", ""));
    assert_eq!((ask(&rig, KEY, true).status, ask(&rig, KEY, false).status), (200, 200));
    let refused = ask(&rig, KEY, true);
    assert_eq!((refused.status, refused.code().as_str()), (429, "client_quota"), "{}", refused.text());
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((30..=60).contains(&wait), "the two were sent within moments: {wait}");
    assert_eq!(ask(&rig, OTHER, true).status, 200, "nobody else's");
    assert_eq!(get(&rig, "/v1/models", KEY).status, 200, "a list costs nothing");
    assert_eq!(mock.seen().len(), 3);
    counted(&rig, "shop", "requests", 1);
}

#[test]
fn tokens_that_were_spent_are_counted_and_end() {
    // The answer says 8 tokens; the body is counted with a third of its bytes.
    let mock = Mock::start(good("a"));
    let estimate = body(false).len() / 3;
    let rig = rig(&mock, file(&format!(", tokens_per_minute: {}", estimate + 8), ""));
    assert_eq!(ask(&rig, KEY, false).status, 200);
    let refused = ask(&rig, KEY, false);
    assert_eq!((refused.status, refused.code().as_str()), (429, "client_quota"), "{}", refused.text());
    assert!(refused.json()["error"]["message"].to_string().contains("tokens in a minute"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(mock.seen().len(), 1);
}

#[test]
fn requests_at_once_are_given_back_however_they_end() {
    let mock = Mock::start(|_, wire| {
        wire.stream_head();
        wire.event(text_chunk("begun"));
        wire.wait_gone();
        Then::Fin
    });
    let rig = rig(&mock, file(", concurrent: 1", ""));
    let mut open =
        http::send(rig.listen, &http::chat_bytes(&body(true), &[("authorization", &format!("Bearer {KEY}"))]));
    open.until("begun");
    let refused = ask(&rig, KEY, true);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.text());
    assert!(refused.json()["error"]["message"].to_string().contains("1 requests at once"));
    open.leave();
    mock.play(good("a"));
    rig.eventually("its place", || (ask(&rig, KEY, true).status == 200).then_some(()));
}

#[test]
fn another_file_holds_from_the_next_request_on() {
    let mock = Mock::start(good("a"));
    let rig = rig(&mock, file(", requests_per_minute: 1", ""));
    assert_eq!(ask(&rig, KEY, true).status, 200);
    // `shop` has a new key beside its old one, `batch` has none any more.
    let new = "sk-llmfo-test-of-the-shop-renewed-0123456789";
    rig.hold_clients(&format!(
        "clients: {{ shop: {{ sha256: [{}, {}], requests_per_minute: 2 }} }}",
        hash_of(KEY),
        hash_of(new)
    ));
    assert_eq!(ask(&rig, new, true).status, 200);
    assert_eq!(ask(&rig, KEY, true).status, 429, "one client, one quota, whichever key it shows");
    assert_eq!(ask(&rig, OTHER, true).status, 401);
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_client_keys_reloads_total{result=\"taken\"} 1"), "{metrics}");
}

#[test]
fn the_admin_listener_with_a_key_shows_life_alone_without_it() {
    let mock = Mock::start(good("a"));
    let key = "sk-llmfo-admin-0123456789";
    let rig = Rig::with(&[("a", mock.address)], Change { admin_key: Some(key), ..Change::default() });
    let paths = [
        "/readyz",
        "/metrics",
        "/snapshot",
        "/events",
        "/ledger",
        "/orders",
        "/orders/emergency",
        "/decisions/x",
        "/x",
    ];
    for path in paths {
        let answer = http::get(rig.admin, path);
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{path}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(http::get(rig.admin, "/healthz").status, 200);
    let with = |key: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: gateway.example\r\nauthorization: Bearer {key}\r\n\r\n");
        http::send(rig.admin, request.as_bytes()).whole().status
    };
    assert_eq!((with(key, "/snapshot"), with("sk-llmfo-admin-012345678", "/snapshot")), (200, 401));
}

#[test]
fn a_page_in_a_browser_cannot_read_the_admin_listener_by_a_name_of_its_own() {
    let mock = Mock::start(good("a"));
    let rig = Rig::new(&[("a", mock.address)]);
    let with = |host: &str| {
        let request = format!("GET /snapshot HTTP/1.1\r\nhost: {host}\r\n\r\n");
        http::send(rig.admin, request.as_bytes()).whole()
    };
    let port = rig.admin.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")] {
        assert_eq!(with(&host).status, 200, "{host}");
    }
    for host in [format!("rebound.example:{port}"), "localhost.example".to_owned()] {
        let answer = with(&host);
        assert_eq!((answer.status, answer.code().as_str()), (421, "host_not_allowed"), "{host}");
    }
}
