//! Large bodies: kept for every attempt, counted against one budget, refused before they are uploaded.

use std::io::{Read, Write};
use std::net::TcpStream;

use llmfo::gateway::listener::ListenerLimits;

use crate::gateway::{Change, Rig, body, policy};
use crate::http::{self, chat, chat_bytes, send};
use crate::mock::{self, Mock, good};

fn large(bytes: usize, stream: bool) -> String {
    let text: String = "All work and no play makes a long history. ".repeat(bytes / 43 + 1);
    let text = &text[..bytes];
    format!(r#"{{"model":"chat","stream":{stream},"messages":[{{"role":"user","content":"{text}"}}],"x" : 1.50}}"#)
}

fn budget(bytes: usize) -> Change {
    Change { limits: ListenerLimits { bodies_bytes: bytes, ..ListenerLimits::default() }, ..Change::default() }
}

/// Failover is never off because of size: the second target gets the same bytes.
#[test]
fn a_request_of_30_mib_fails_over_byte_for_byte() {
    let a = Mock::start(mock::status("503 Down", ""));
    let b = Mock::start(good("bravo"));
    let yaml = policy(&[("a", a.address), ("b", b.address)], &Change::default())
        .replace("first_token_timeout_ms: 500", "first_token_timeout_ms: 10000")
        .replace("deadline_ms: 4000", "deadline_ms: 30000");
    let rig = Rig::of(&yaml, Change::default());
    for stream in [true, false] {
        let sent = large(30 << 20, stream);
        let got = chat(rig.listen, &sent, &[]);
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{}", got.text());
        for (mock, model) in [(&a, "\"model-a\""), (&b, "\"model-b\"")] {
            let seen = mock.seen().pop().unwrap();
            assert_eq!(seen.header("content-length"), Some((sent.len() + 3).to_string().as_str()));
            assert!(seen.body == sent.replace("\"chat\"", model).into_bytes(), "not the same bytes");
        }
    }
}

#[test]
fn bodies_share_one_budget_and_nobody_waits_for_it() {
    let a = Mock::start(mock::silence);
    let rig = Rig::with(&[("a", a.address)], budget(2 << 20));
    let held = send(rig.listen, &chat_bytes(&large(1_500_000, true), &[]));
    a.wait_seen(1);
    // Before the upload: no `100 Continue` comes.
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 1500000\r\n\r\n";
    let mut stream = TcpStream::connect(rig.listen).unwrap();
    stream.set_read_timeout(Some(http::LIMIT)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 503");
    let refused = |got: http::Response| {
        assert_eq!((got.status, got.code().as_str()), (503, "request_memory"), "{}", got.text());
        assert!(got.header("retry-after").is_some());
        let error = &got.json()["error"];
        assert!(error["message"].is_string() && error["request_id"].is_string() && error["type"] == "overloaded");
    };
    refused(chat(rig.listen, &large(1_500_000, false), &[]));
    // Without a length it is noticed on the way.
    let mut chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let whole = large(1_500_000, false);
    for piece in whole.as_bytes().chunks(64 * 1024) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    refused(send(rig.listen, &chunked).whole());
    // What is small goes on, and what was held is free again once its request is over.
    a.play(good("alpha"));
    assert_eq!(chat(rig.listen, &body(false), &[]).status, 200);
    held.leave();
    rig.wait_idle();
    assert_eq!(chat(rig.listen, &large(1_500_000, false), &[]).status, 200);
    assert_eq!(send(rig.listen, &chunked).whole().status, 200);
}

/// A body in crumbs is counted by its size, not by its pieces.
#[test]
fn a_thousand_crumbs_are_no_more_than_their_sum() {
    let a = Mock::start(good("alpha"));
    let rig = Rig::with(&[("a", a.address)], budget(64 << 10));
    let mut chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in large(30_000, false).as_bytes().chunks(10) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let mut stream = TcpStream::connect(rig.listen).unwrap();
    stream.set_read_timeout(Some(http::LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    for part in chunked.chunks(97) {
        stream.write_all(part).unwrap();
    }
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(a.asked(), 1);
}
