//! Clients that leave while bytes of theirs are unread: what hyper alone would not notice.

use std::time::{Duration, Instant};

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{Reading, chat_bytes, send};
use crate::mock::{Mock, Then, good, role_chunk, text_chunk};

/// How soon a client's leaving must be seen by the provider.
const SOON: Duration = Duration::from_secs(1);

/// What stands behind the body of the request when the client leaves.
fn stray(kind: &str) -> Vec<u8> {
    match kind {
        "nothing" => Vec::new(),
        "a line end" => b"\r\n".to_vec(),
        "another request" => chat_bytes(&body(true), &[]),
        // Above what hyper reads at once: the rest stays in the kernel.
        "many requests" => chat_bytes(&body(true), &[]).repeat(200),
        other => panic!("{other}"),
    }
}

/// A gateway in front of `a`, who answers up to `phase` and then waits for its client, and `b`, who would answer.
fn rig(phase: &'static str) -> (Rig, Mock, Mock) {
    let a = Mock::start(move |_, w| {
        if phase == "after text" {
            w.stream_head();
            w.event(role_chunk());
            w.event(text_chunk("hello"));
        }
        w.wait_gone();
        Then::Fin
    });
    let b = Mock::start(good("bravo"));
    let change = Change::default();
    // No limit may end the attempt within the test.
    let yaml = policy(&[("a", a.address), ("b", b.address)], &change)
        .replace("first_token_timeout_ms: 500", "first_token_timeout_ms: 10000")
        .replace("idle_timeout_ms: 500", "idle_timeout_ms: 10000")
        .replace("deadline_ms: 4000", "deadline_ms: 30000");
    (Rig::of(&yaml, change), a, b)
}

fn leaves(phase: &'static str, behind: &str, how: fn(&Rig, Reading)) {
    let (rig, a, b) = rig(phase);
    let mut request = chat_bytes(&body(phase != "not streamed"), &[]);
    request.extend(stray(behind));
    let mut client = send(rig.listen, &request);
    a.wait_seen(1);
    if phase == "after text" {
        client.until("hello");
    }
    let left = Instant::now();
    how(&rig, client);
    let seen = a.wait_cancelled(1);
    assert!(seen.saturating_duration_since(left) < SOON, "{phase}, {behind}: {:?}", seen - left);
    rig.wait_idle();
    assert_eq!((a.asked(), b.asked()), (1, 0), "{phase}, {behind}: no further dial for nobody");
    let snapshot = rig.snapshot();
    assert_eq!(snapshot["requests"]["by_outcome"]["client_gone"], 1, "{phase}, {behind}: {snapshot}");
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "{phase}, {behind}: neutral for the breaker");
}

#[test]
fn a_close_is_seen_behind_unread_bytes() {
    for phase in ["before the head", "after text", "not streamed"] {
        for behind in ["a line end", "another request", "many requests"] {
            leaves(phase, behind, |_, client| client.leave());
        }
    }
}

#[test]
fn a_reset_is_seen_behind_unread_bytes() {
    for phase in ["before the head", "after text", "not streamed"] {
        for behind in ["a line end", "another request", "many requests"] {
            leaves(phase, behind, |_, client| client.reset());
        }
    }
}

/// The end of what a client sends cannot be told from its leaving. That holds with bytes behind the request as without.
#[test]
fn a_half_close_is_a_client_that_has_left() {
    for behind in ["nothing", "a line end"] {
        leaves("before the head", behind, |_, client| {
            client.half_close();
            assert_eq!(client.until_closed(), "", "nothing is answered");
        });
    }
}

/// What hyper sees by itself goes on as it does: there is an answer where the end comes inside a body, or behind a request that
/// is answered at once.
#[test]
fn a_half_close_that_cuts_a_body_is_still_answered() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    for _ in 0..20 {
        let request = chat_bytes(&body(true), &[]);
        let client = send(rig.listen, &request[..request.len() - 7]);
        client.half_close();
        let all = client.until_closed();
        assert!(all.starts_with("HTTP/1.1 400 ") && all.contains("invalid_body_framing"), "{all}");
    }
    assert_eq!(a.asked(), 0);
}

#[test]
fn a_client_that_stays_is_served_whatever_is_unread() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::new(&[("a", a.address)]);
    let mut two = chat_bytes(&body(false), &[]);
    two.extend_from_slice(b"\r\n");
    two.extend(chat_bytes(&body(false), &[("connection", "close")]));
    let both = send(rig.listen, &two).until_closed();
    assert_eq!(both.matches("HTTP/1.1 200 OK").count(), 2, "{both}");
    assert_eq!(both.matches("alpha one two").count(), 2, "{both}");
}
