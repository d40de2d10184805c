//! `keep_alive_ms`: comments while there is no answer yet, and what that costs.

use std::time::Duration;

use crate::gateway::{Change, Rig, body};
use crate::http::{self, End};
use crate::mock::{self, Mock, Then, good, role_chunk};

fn rig(a: &Mock, b: &Mock) -> Rig {
    let change = Change { route: "    keep_alive_ms: 100\n", ..Change::default() };
    Rig::with(&[("a", a.address), ("b", b.address)], change)
}

/// Comments at its beginning, and the rest.
fn parted(text: &str) -> (usize, String) {
    let comments = text.split("\n\n").take_while(|e| *e == ": keep-alive").count();
    (comments, text.split("\n\n").skip(comments).collect::<Vec<_>>().join("\n\n"))
}

#[test]
fn comments_come_while_targets_are_tried_and_the_answer_is_whole() {
    let (a, b) = (Mock::start(mock::silence), Mock::start(good("bravo")));
    let got = rig(&a, &b).stream();
    assert_eq!((got.status, got.end), (200, End::Proper));
    assert_eq!(got.header("content-type"), Some("text/event-stream"));
    let (comments, rest) = parted(&got.text());
    // 500 ms of silence, one each 100 ms.
    assert!((2..=8).contains(&comments), "{comments}");
    assert!(!rest.contains("keep-alive"), "none once there is an answer: {rest}");
    assert_eq!(got.content(), "bravo one two");
    assert!(got.done());
}

#[test]
fn a_failure_after_the_first_comment_is_the_one_error_event() {
    let (a, b) = (Mock::start(mock::silence), Mock::start(mock::status("503 Down", "{}")));
    let got = rig(&a, &b).stream();
    assert_eq!((got.status, got.end), (200, End::Proper));
    let (comments, rest) = parted(&got.text());
    assert!(comments >= 2, "{}", got.text());
    assert_eq!(rest.matches("data: ").count(), 1, "{rest}");
    let said: serde_json::Value = serde_json::from_str(rest.trim().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(said["error"]["type"], "handoff");
    // As the plain answer of the same kind says: `x-should-retry: false`.
    assert_eq!((&said["error"]["retry_safe"], &said["error"]["tool_calls_delivered"]), (&false.into(), &false.into()));
    assert_eq!(said["error"]["request_id"].as_str(), got.header("x-llmfo-request-id"));
    assert!(!got.text().contains("[DONE]"));
}

#[test]
fn what_is_settled_at_once_has_its_own_status_and_json_is_never_begun() {
    let (a, b) = (Mock::start(mock::status("503 Down", "{}")), Mock::start(mock::status("503 Down", "{}")));
    let got = rig(&a, &b).stream();
    assert_eq!((got.status, got.header("x-should-retry")), (503, Some("false")), "{}", got.text());
    let (a, b) = (Mock::start(mock::silence), Mock::start(mock::status("503 Down", "{}")));
    let got = http::chat(rig(&a, &b).listen, &body(false), &[]);
    assert_eq!(got.status, 503, "{}", got.text());
}

#[test]
fn a_client_that_leaves_between_comments_is_seen() {
    let role_only = |_: &mock::Seen, w: &mut mock::Wire| {
        w.stream_head();
        w.event(role_chunk());
        w.wait_gone();
        Then::Fin
    };
    let (a, b) = (Mock::start(role_only), Mock::start(good("bravo")));
    let rig = rig(&a, &b);
    let mut reading = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    reading.until(": keep-alive");
    let left = std::time::Instant::now();
    reading.leave();
    let seen = a.wait_cancelled(1);
    assert!(seen.duration_since(left) < Duration::from_millis(450), "before its own limit of 500 ms");
    rig.wait_idle();
    assert_eq!(b.asked(), 0, "nobody is asked for a client that has left");
}
