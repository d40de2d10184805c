//! What stands between the `data` lines of a stream: comments, names, ids, unknown fields. They carry nothing that a client
//! acts on, so a line of them that holds a secret or a character that steers a terminal is left out (rule R7); every other
//! one is relayed as it came.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use crate::units::printable;
use crate::wire::sse::{SseEvent, read_block};
use crate::wire::{Secrets, json};

/// In the place of a comment that could not be relayed: the connection is still seen to live.
const SIGN_OF_LIFE: &[u8] = b":\n\n";

/// The event without such lines.
pub(super) fn tidy(event: SseEvent, secrets: &Secrets) -> SseEvent {
    if !event.more_lines {
        return event;
    }
    let raw = &event.raw;
    let mut kept = BytesMut::with_capacity(raw.len());
    let mut at = 0;
    let mut something = false;
    while at < raw.len() {
        let rest = &raw[at..];
        let line_bytes = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..line_bytes];
        let crlf = rest[line_bytes..].starts_with(b"\r\n");
        let end = at + line_bytes + if crlf { 2 } else { 1 };
        let end = end.min(raw.len());
        if line.is_empty() || is_data(line) || is_clean(line, secrets) {
            something |= !line.is_empty();
            kept.extend_from_slice(&raw[at..end]);
        }
        at = end;
    }
    if kept.len() == raw.len() {
        return event;
    }
    let raw = if something { kept.freeze() } else { Bytes::from_static(SIGN_OF_LIFE) };
    SseEvent { named_error: event.named_error, ..read_block(raw) }
}

fn is_data(line: &[u8]) -> bool {
    line.strip_prefix(b"data").is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
}

fn is_clean(line: &[u8], secrets: &Secrets) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| is_harmless(text, secrets))
}

/// No secret and nothing that steers a terminal is in it.
fn is_harmless(text: &str, secrets: &Secrets) -> bool {
    printable(text, usize::MAX) == text && secrets.scrub(text) == text
}

/// Data that is no part of an answer may be relayed: no secret is in it, however it is escaped.
pub(super) fn may_pass(data: &[u8], secrets: &Secrets) -> bool {
    let text = String::from_utf8_lossy(data);
    let plain = json::unescaped(&text);
    secrets.scrub(&text) == text && secrets.scrub(&plain) == plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sse::SseKind;

    fn tidied(raw: &'static [u8]) -> (Vec<u8>, Vec<u8>, SseKind) {
        let event = tidy(read_block(Bytes::from_static(raw)), &Secrets::new(["operator-key-123456"]));
        if let Some(at) = event.data_at {
            assert_eq!(&event.raw[at..at + event.data.len()], &event.data[..]);
        }
        (event.raw.to_vec(), event.data.to_vec(), event.kind)
    }

    #[test]
    fn lines_that_hold_nothing_bad_stay_as_they_came() {
        for raw in [
            &b": ping\nevent: chunk\nid: 7\nx: y\ndata: {}\n\n"[..],
            b": ping\r\ndata: {}\r\n\r\n",
            b"\n: ping\n\n",
            b":\n\n",
            b"data: {\"text\":\"operator-key-123456\"}\n\n",
        ] {
            assert_eq!(tidied(raw).0, raw, "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn bad_lines_go_with_their_ends_and_the_event_stays_one() {
        for (raw, right) in [
            (&b": operator-key-123456\r\ndata: {}\r\n\r\n"[..], &b"data: {}\r\n\r\n"[..]),
            (b"data: 1\r\nevent: \x1b[2J\r\ndata: 2\r\n\r\n", b"data: 1\r\ndata: 2\r\n\r\n"),
            (b"id: operator-key-123456\rdata: {}\r\r", b"data: {}\r\r"),
            (b"x: operator-key-123456\n: good\ndata: {}\n\n", b": good\ndata: {}\n\n"),
            (b": \xff\xfe\ndata: {}\n\n", b"data: {}\n\n"),
            (b": operator-key-123456\n\n", b":\n\n"),
            (b": \x1b[2J\r\n\r\n", b":\n\n"),
        ] {
            assert_eq!(tidied(raw).0, right, "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn a_secret_is_found_under_escapes() {
        let secrets = Secrets::new(["operator-key-123456"]);
        assert!(may_pass(br#"{"type":"ping","n":1}"#, &secrets));
        assert!(!may_pass(br#"{"x":"operator-key-123456"}"#, &secrets));
        assert!(!may_pass(br#"{"x":"\u006fperator-key-12345\u0036"}"#, &secrets));
    }
}
