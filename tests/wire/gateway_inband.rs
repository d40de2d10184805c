//! Errors and noise inside a stream: what is a failure, what goes on, and that no secret passes.

use crate::gateway::{Change, Rig};
use crate::mock::{Mock, Then, Wire, finish_chunk, good, role_chunk, text_chunk};

const KEY: &str = "sk-SECRETKEY0123456789abcdef";

/// Errors that are no `error` object, each one whole event.
fn errors() -> Vec<(&'static str, String)> {
    vec![
        ("named, bare message", format!("event: error\ndata: {{\"message\":\"boom {KEY}\"}}\n\n")),
        ("named, text", format!("event: error\ndata: boom {KEY}\n\n")),
        ("named, CRLF", format!("event:error\r\ndata: {{\"note\":\"boom {KEY}\"}}\r\n\r\n")),
        ("named, a chunk", format!("event: error\ndata: {}\n\n", text_chunk(KEY))),
        ("named, no data", "event: error\n\n".to_owned()),
        ("code and message", format!("data: {{\"code\":500,\"message\":\"boom {KEY}\"}}\n\n")),
        ("type and message", format!("data: {{\"type\":\"server_error\",\"message\":\"boom {KEY}\"}}\n\n")),
        ("status and message", format!("data: {{\"status\":\"INTERNAL\",\"message\":\"boom {KEY}\"}}\n\n")),
        ("message alone", format!("data: {{\"message\":\"boom {KEY}\"}}\n\n")),
        ("detail", format!("data: {{\"detail\":\"boom {KEY}\"}}\n\n")),
        ("a list of details", format!("data: {{\"detail\":[{{\"msg\":\"boom {KEY}\"}}]}}\n\n")),
        ("text under error", format!("data: {{\"error\":\"boom {KEY}\"}}\n\n")),
        ("a list of errors", format!("data: {{\"errors\":[{{\"message\":\"boom {KEY}\"}}]}}\n\n")),
        ("no choices in it", format!("data: {{\"choices\":[],\"code\":500,\"message\":\"boom {KEY}\"}}\n\n")),
    ]
}

fn begin(w: &mut Wire, text: &str) {
    w.stream_head();
    w.event(role_chunk());
    if !text.is_empty() {
        w.event(text_chunk(text));
        w.sleep(50);
    }
}

fn end(w: &mut Wire) {
    w.chunk("data: [DONE]\n\n");
    w.end();
}

#[test]
fn b015_b148_an_error_of_any_shape_after_commit_is_one_scrubbed_event_and_no_done() {
    for (name, bad) in errors() {
        let a = Mock::start(move |_, w| {
            begin(w, "Your refund is");
            w.chunk(&bad);
            end(w);
            Then::KeepAlive
        });
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        let text = got.text();
        assert!(!text.contains("SECRETKEY"), "{name}: {text}");
        assert_eq!((got.content().as_str(), got.done(), b.asked()), ("Your refund is", false, 0), "{name}: {text}");
        assert_eq!(text.matches("\"error\":{").count(), 1, "{name}: {text}");
        assert!(got.events().last().unwrap().contains("\"type\":\"stream_broken\""), "{name}: {text}");
        let record = rig.decision(&got);
        assert_eq!(record["outcome"], "broken_after_commit", "{name}: {record}");
        assert_eq!(record["attempts"][0]["class"], "provider", "{name}: {record}");
        assert!(!record.to_string().contains("SECRETKEY"), "{name}: {record}");
        assert_eq!(rig.target("a")["counters"]["failed_counted"], 1, "{name}");
    }
}

#[test]
fn an_error_of_any_shape_before_commit_fails_over() {
    for (name, bad) in errors() {
        let a = Mock::start(move |_, w| {
            begin(w, "");
            w.chunk(&bad);
            end(w);
            Then::KeepAlive
        });
        let b = Mock::start(good("bravo"));
        let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
        let got = rig.stream();
        assert_eq!((got.content().as_str(), got.done()), ("bravo one two", true), "{name}: {}", got.text());
        assert!(!got.text().contains("SECRETKEY"), "{name}: {}", got.text());
        assert_eq!(rig.decision(&got)["attempts"][0]["class"], "provider", "{name}");
    }
}

/// What a stream has between two words of an answer, as it reaches the client. The answer must be whole.
fn relayed(between: &str) -> String {
    let bytes = between.to_owned();
    let a = Mock::start(move |_, w| {
        begin(w, "one");
        w.chunk(&bytes);
        w.event(text_chunk(" two"));
        w.event(finish_chunk("stop"));
        end(w);
        Then::KeepAlive
    });
    let rig = Rig::with(&[("a", a.address)], Change::default());
    let got = rig.stream();
    let text = got.text();
    assert!(got.done() && text.contains("\"content\":\" two\""), "{between:?}: {text}");
    assert!(!text.contains("SECRETKEY") && !text.contains('\u{1b}'), "{text:?}");
    let from = text.find("\"one\"").unwrap();
    text[from..text.find("\" two\"").unwrap()].to_owned()
}

#[test]
fn harmless_shapes_and_comments_are_relayed_as_they_came() {
    for between in [
        "data: {\"type\":\"ping\"}\n\n",
        "event: chunk\nid: 7\ndata: {\"status\":\"ok\",\"code\":0}\n\n",
        "data: {\"object\":\"chat.completion.chunk\",\"message\":\"a note\"}\n\n",
        "data: {\"message\":{\"role\":\"assistant\"}}\n\n",
        "data: {\"detail\":null, \"errors\":[]}\n\n",
        ": processing\n\n",
    ] {
        let between_events = relayed(between);
        assert!(between_events.contains(between), "{between:?}: {between_events:?}");
    }
}

#[test]
fn noise_with_a_secret_or_a_control_character_does_not_pass() {
    for between in [
        format!(": debug key {KEY}\n\n"),
        format!("data: {{\"type\":\"ping\",\"debug\":\"{KEY}\"}}\n\n"),
        "data: {\"type\":\"ping\",\"debug\":\"\\u0073k-SECRETKEY0123456789abcdef\"}\n\n".to_owned(),
        format!("id: {KEY}\n\n"),
    ] {
        relayed(&between);
    }
    assert!(relayed(": \u{1b}[2J\n\n").contains(":\n\n"), "the sign of life remains");
    for line in [format!(": {KEY}"), format!("event: {KEY}"), format!("x-debug: {KEY}"), ": \u{1b}]0;x\u{7}".to_owned()]
    {
        for end in ["\n", "\r\n"] {
            let more = text_chunk(" and");
            let got = relayed(&format!("{line}{end}data: {more}{end}{end}"));
            assert!(got.contains(&format!("data: {more}{end}{end}")), "{line:?}: {got:?}");
        }
    }
}
