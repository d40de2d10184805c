//! Providers that compress although nobody asked them to.

use std::io::Write;
use std::sync::{Mutex, mpsc};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use crate::gateway::Rig;
use crate::http::{self, End, chat_bytes, send};
use crate::mock::{self, Mock, Then, Wire, finish_chunk, good, role_chunk, text_chunk};

/// One meta-block that is not compressed (RFC 7932): all that a decoder must know is there.
fn brotli(text: &[u8]) -> Vec<u8> {
    let n = text.len() - 1;
    assert!(n < 1 << 16);
    let head = [0x0b | ((n & 1) << 7) as u8, (n >> 1) as u8, 0x80 | (n >> 9) as u8];
    [&head, text, &[3]].concat()
}

fn coded(coding: &str, text: &[u8]) -> Vec<u8> {
    let level = Compression::default();
    match coding {
        "br" => brotli(text),
        "deflate" => {
            let mut out = ZlibEncoder::new(Vec::new(), level);
            out.write_all(text).unwrap();
            out.finish().unwrap()
        }
        "raw" => {
            let mut out = DeflateEncoder::new(Vec::new(), level);
            out.write_all(text).unwrap();
            out.finish().unwrap()
        }
        _ => {
            let mut out = GzEncoder::new(Vec::new(), level);
            out.write_all(text).unwrap();
            out.finish().unwrap()
        }
    }
}

fn events(texts: &[&str], end: bool) -> Vec<u8> {
    let mut all = format!("data: {}\n\n", role_chunk());
    for text in texts {
        all.push_str(&format!("data: {}\n\n", text_chunk(text)));
    }
    if end {
        all.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", finish_chunk("stop")));
    }
    all.into_bytes()
}

fn head(coding: &str) -> String {
    let coding = if coding == "raw" { "deflate" } else { coding };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
}

fn plain(got: &http::Response) {
    for name in ["content-encoding", "transfer-coding"] {
        assert!(got.header(name).is_none(), "{name}");
    }
    assert_eq!(got.end, End::Proper);
}

#[test]
fn b041_a_compressed_stream_is_decoded_while_it_comes() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let a = Mock::start(move |seen, w: &mut Wire| {
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
        w.raw(head("identity, gzip"));
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut flushed = |w: &mut Wire, text: &[u8]| {
            gzip.write_all(text).unwrap();
            gzip.flush().unwrap();
            w.chunk(std::mem::take(gzip.get_mut()));
        };
        flushed(w, &events(&["one"], false));
        // The next one comes only when the client has this one.
        wait.lock().unwrap().recv().unwrap();
        flushed(w, &events(&[" two"], true));
        w.chunk(gzip.finish().unwrap());
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let mut reading = send(rig.listen, &chat_bytes(&crate::gateway::body(true), &[("accept-encoding", "gzip, br")]));
    reading.until("one");
    go.send(()).unwrap();
    let got = reading.whole();
    assert_eq!((got.content().as_str(), got.done()), ("one two", true));
    plain(&got);
}

#[test]
fn b041_every_coding_that_is_known_is_decoded_and_every_other_is_the_provider_s_fault() {
    for coding in ["gzip", "deflate", "raw", "br"] {
        let a = Mock::start(move |_, w| {
            w.raw(head(coding));
            // Cut anywhere: the chunks of HTTP know nothing of the coding.
            for piece in coded(coding, &events(&["one", " two"], true)).chunks(7) {
                w.chunk(piece);
            }
            w.end();
            Then::KeepAlive
        });
        let rig = Rig::new(&[("a", a.address)]);
        let got = rig.stream();
        assert_eq!((got.content().as_str(), got.done()), ("one two", true), "{coding}: {}", got.text());
        plain(&got);
        // The connection is as good as any other afterwards.
        for _ in 0..9 {
            assert_eq!(rig.stream().content(), "one two");
        }
        // One to look; and a client may be back before its connection is.
        assert!(a.connections() <= 6, "{coding}: {} for ten answers", a.connections());
    }
    for coding in ["zstd", "gzip, br", "compress"] {
        let a = Mock::start(move |_, w| {
            w.raw(head(coding));
            w.chunk(b"\x28\xb5\x2f\xfd rubbish");
            w.end();
            Then::KeepAlive
        });
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        assert_eq!(got.header("x-llmfo-target"), Some("b"));
        let first = &rig.decision(&got)["attempts"][0];
        assert_eq!((&first["class"], &first["reason"]), (&"provider".into(), &"malformed".into()), "{coding}");
    }
}

#[test]
fn b042_header_and_body_agree_also_where_the_answer_is_an_error() {
    for coding in ["gzip", "deflate", "br"] {
        let a = Mock::start(move |_, w| {
            let header = format!("content-encoding: {coding}\r\n");
            w.answer_with("200 OK", "application/json", &header, coded(coding, mock::whole("hello").as_bytes()));
            Then::KeepAlive
        });
        let rig = Rig::new(&[("a", a.address)]);
        let got = rig.plain();
        assert_eq!(got.text(), mock::whole("hello"), "{coding}");
        assert_eq!(got.header("content-length"), Some(mock::whole("hello").len().to_string().as_str()));
        plain(&got);
        // An error is read as well: what it says decides, and is handed through.
        let error = |code: &str| {
            format!(r#"{{"error":{{"message":"told why","type":"invalid_request_error","code":"{code}"}}}}"#)
        };
        let bad = error("odd_value");
        a.play(move |_, w| {
            let header = format!("content-encoding: {coding}\r\n");
            w.answer_with("400 Bad Request", "application/json", &header, coded(coding, bad.as_bytes()));
            Then::KeepAlive
        });
        let got = rig.stream();
        assert_eq!((got.status, got.code().as_str()), (400, "odd_value"), "{coding}: {}", got.text());
        plain(&got);
        let busy = error("rate_limit_exceeded");
        a.play(move |_, w| {
            let header = format!("content-encoding: {coding}\r\nretry-after: 7\r\n");
            w.answer_with("429 Slow", "application/json", &header, coded(coding, busy.as_bytes()));
            Then::KeepAlive
        });
        let got = rig.plain();
        let first = &rig.decision(&got)["attempts"][0];
        assert_eq!(first["class"], "capacity", "{coding}: {first}");
    }
}

/// HTTP says that the body is complete; its coding says that it is not.
#[test]
fn a_coding_that_is_cut_is_a_cut_and_never_an_end() {
    for coding in ["gzip", "deflate", "br"] {
        let cut = move |texts: &'static [&'static str], end: bool, keep: usize| {
            move |_: &mock::Seen, w: &mut Wire| {
                w.raw(head(coding));
                let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
                gzip.write_all(&events(texts, end)).unwrap();
                gzip.flush().unwrap();
                let all = if coding == "gzip" { gzip.get_ref().clone() } else { coded(coding, &events(texts, end)) };
                w.chunk(&all[..all.len() - keep]);
                w.end();
                Then::KeepAlive
            }
        };
        // Nothing was shown: another one answers.
        let a = Mock::start(cut(&[], false, 1));
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        assert_eq!((got.header("x-llmfo-target"), got.content().as_str()), (Some("b"), "bravo one two"), "{coding}");
        assert_eq!(rig.decision(&got)["attempts"][0]["reason"], "reset", "{coding}");
    }
    // After the commit point: one error event, no end that nobody gave.
    let a = Mock::start(|_, w| {
        w.raw(head("gzip"));
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&events(&["half an"], false)).unwrap();
        gzip.flush().unwrap();
        w.chunk(gzip.get_ref());
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let got = rig.stream();
    assert_eq!((got.content().as_str(), got.done()), ("half an", false));
    assert!(got.text().contains("stream_broken") && !got.text().contains("\"stop\""), "{}", got.text());
    // An answer that is whole, and a coding that is not: it was cut.
    let whole = mock::whole("hello");
    let b = Mock::start(good("bravo"));
    let a = Mock::start(move |_, w| {
        let all = coded("gzip", whole.as_bytes());
        w.answer_with("200 OK", "application/json", "content-encoding: gzip\r\n", &all[..all.len() - 4]);
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    assert_eq!(rig.plain().header("x-llmfo-target"), Some("b"));
}

#[test]
fn a_decompression_bomb_is_a_too_large_answer() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..200 {
        bomb.write_all(&vec![b' '; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 300_000);
    let a = Mock::start(move |seen, w| {
        let kind = if seen.json()["stream"] == true { "text/event-stream" } else { "application/json" };
        w.answer_with("200 OK", kind, "content-encoding: gzip\r\n", &bomb);
        Then::KeepAlive
    });
    let b = Mock::start(good("bravo"));
    let yaml = crate::gateway::policy(&[("a", a.address), ("b", b.address)], &Default::default())
        .replace("first_token_timeout_ms: 500", "first_token_timeout_ms: 10000")
        .replace("deadline_ms: 4000", "deadline_ms: 30000")
        .replace("idle_timeout_ms: 500", "idle_timeout_ms: 8000");
    let rig = Rig::of(&yaml, Default::default());
    for got in [rig.plain(), rig.stream()] {
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{}", got.text());
        assert_eq!(rig.decision(&got)["attempts"][0]["reason"], "too_large");
    }
}
