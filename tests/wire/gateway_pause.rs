//! The gateway's own pauses: whoever stood still may not blame the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::gateway::{Rig, body};
use crate::http::{chat_bytes, send};
use crate::mock::{Mock, Then, finish_chunk, text_chunk, whole};

/// Three times the idle and first-token limits of the rig.
const PAUSE: Duration = Duration::from_millis(1500);
/// Requests under way when it stands still: which of two ready things is seen first is a matter of luck.
const MANY: usize = 8;

#[test]
fn streams_that_went_on_meanwhile_are_not_silent() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        for n in 0..50 {
            w.event(text_chunk(&format!(" w{n}")));
            w.sleep(50);
        }
        w.event(finish_chunk("stop"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    });
    let rig = Rig::new(&[("a", a.address)]);
    let mut clients: Vec<_> = (0..MANY).map(|_| send(rig.listen, &chat_bytes(&body(true), &[]))).collect();
    for client in &mut clients {
        client.until(" w3");
    }
    rig.freeze(PAUSE);
    for client in clients {
        let got = client.whole();
        assert!(got.done() && got.content().ends_with(" w49"), "{}", got.text());
    }
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0);
}

#[test]
fn answers_that_came_meanwhile_are_read_before_a_limit_counts() {
    for stream in [false, true] {
        // Each answers while the gateway stands still.
        let begun = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&begun);
        let a = Mock::start(move |_, w| {
            heard.fetch_add(1, Ordering::SeqCst);
            w.sleep(300);
            if stream {
                w.stream_head();
                w.event(text_chunk("hello"));
                w.event(finish_chunk("stop"));
                w.chunk("data: [DONE]\n\n");
                w.end();
            } else {
                w.answer("200 OK", "application/json", whole("hello"));
            }
            Then::KeepAlive
        });
        let yaml = crate::gateway::policy(&[("a", a.address)], &crate::gateway::Change::default())
            .replace("deadline_ms: 4000", "deadline_ms: 1000");
        let rig = Rig::of(&yaml, crate::gateway::Change::default());
        let clients: Vec<_> = (0..MANY).map(|_| send(rig.listen, &chat_bytes(&body(stream), &[]))).collect();
        a.wait_seen(MANY);
        rig.freeze(PAUSE);
        // New requests come while it stands still: they may not bring the limits forward.
        let late: Vec<_> = (0..2).map(|_| send(rig.listen, &chat_bytes(&body(stream), &[]))).collect();
        for client in clients.into_iter().chain(late) {
            let got = client.whole();
            assert!(got.status == 200 && got.text().contains("hello"), "{stream}: {}", got.text());
            assert_eq!(got.header("x-llmfo-attempts"), Some("1"), "{stream}");
        }
        assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "{stream}");
        assert_eq!(begun.load(Ordering::SeqCst), MANY + 2, "{stream}");
    }
}

#[test]
fn real_silence_still_ends_in_time() {
    let a = Mock::start(|_, w| {
        w.stream_head();
        w.event(text_chunk("hello"));
        w.wait_gone();
        Then::Fin
    });
    let rig = Rig::new(&[("a", a.address)]);
    let mut client = send(rig.listen, &chat_bytes(&body(true), &[]));
    client.until("hello");
    let begun = Instant::now();
    let got = client.whole();
    assert!(got.text().contains("idle_timeout"), "{}", got.text());
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
