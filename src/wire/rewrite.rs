//! Splicing: changing a few bytes of an event or a body and leaving every other one as it came (rule R5).

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::sse::SseEvent;

/// Replace these bytes by this text. An empty range inserts.
pub(crate) type Splice = (Range<usize>, String);

/// Where the key and the value of a member stand.
pub(crate) type Span = (Range<usize>, Range<usize>);

/// The bytes with all splices done. Splices that overlap or lie outside are left out.
pub(crate) fn splice(bytes: &[u8], splices: &[Splice]) -> Bytes {
    let mut order: Vec<&Splice> = splices.iter().collect();
    order.sort_by_key(|(at, _)| (at.start, at.end));
    let added: usize = splices.iter().map(|(_, text)| text.len()).sum();
    let mut out = BytesMut::with_capacity(bytes.len() + added);
    let mut from = 0;
    for (at, text) in order {
        if at.start < from || at.end < at.start || at.end > bytes.len() {
            continue;
        }
        out.extend_from_slice(&bytes[from..at.start]);
        out.extend_from_slice(text.as_bytes());
        from = at.end;
    }
    out.extend_from_slice(&bytes[from..]);
    out.freeze()
}

/// Below this a body is copied into one piece: cheaper than several.
const ONE_PIECE_BYTES: usize = 64 * 1024;

/// The bytes with all splices done, in pieces: what stays is not copied, but shared. Small ones are one piece.
pub(crate) fn rope(bytes: &Bytes, splices: &[Splice]) -> Vec<Bytes> {
    if splices.is_empty() {
        return vec![bytes.clone()];
    }
    if bytes.len() < ONE_PIECE_BYTES {
        return vec![splice(bytes, splices)];
    }
    let mut order: Vec<&Splice> = splices.iter().collect();
    order.sort_by_key(|(at, _)| (at.start, at.end));
    let mut out = Vec::new();
    // Short pieces are joined: a body with many splices is no list of crumbs.
    let mut crumbs = BytesMut::new();
    let mut put = |piece: Bytes, crumbs: &mut BytesMut| {
        if piece.len() < CRUMB_BYTES {
            crumbs.extend_from_slice(&piece);
            return;
        }
        if !crumbs.is_empty() {
            out.push(std::mem::take(crumbs).freeze());
        }
        out.push(piece);
    };
    let mut from = 0;
    for (at, text) in order {
        if at.start < from || at.end < at.start || at.end > bytes.len() {
            continue;
        }
        put(bytes.slice(from..at.start), &mut crumbs);
        crumbs.extend_from_slice(text.as_bytes());
        from = at.end;
    }
    put(bytes.slice(from..), &mut crumbs);
    if !crumbs.is_empty() {
        out.push(crumbs.freeze());
    }
    out
}

/// A shorter piece is copied to its neighbours.
const CRUMB_BYTES: usize = 4096;

/// The raw bytes of an event whose data is changed at these places.
pub(crate) fn splice_event(event: &SseEvent, splices: &[Splice]) -> Bytes {
    if let Some(data_at) = event.data_at {
        let moved: Vec<Splice> =
            splices.iter().map(|(at, text)| (at.start + data_at..at.end + data_at, text.clone())).collect();
        return splice(&event.raw, &moved);
    }
    // The data was joined from several lines: write it anew, line by line.
    let data = splice(&event.data, splices);
    let mut out = BytesMut::with_capacity(data.len() + 32);
    for line in data.split(|b| *b == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"\n");
    out.freeze()
}

/// What to cut from an object so that some members are gone, commas included. `spans` are the members' keys and values.
pub(crate) fn cuts(spans: &[Span], drop: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut kept_end: Option<usize> = None;
    for (n, (key, value)) in spans.iter().enumerate() {
        if !drop(n) {
            kept_end = Some(value.end);
            continue;
        }
        let next_kept = (n + 1..spans.len()).find(|&m| !drop(m));
        match (next_kept, kept_end) {
            // Up to the next member's key: the comma after goes too.
            (Some(_), _) => out.push(key.start..spans[n + 1].0.start),
            // The last ones: from the end of what is kept, so that the comma before goes too. Once is enough.
            (None, Some(end)) => {
                out.push(end..spans[spans.len() - 1].1.end);
                break;
            }
            (None, None) => {
                out.push(key.start..spans[spans.len() - 1].1.end);
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_body_is_shared_and_small_pieces_are_joined() {
        let body = Bytes::from(vec![b'a'; 200_000]);
        let splices: Vec<Splice> = vec![
            (10..12, "xx".into()),
            (100..100, "y".into()),
            (150_000..150_001, String::new()),
            (150_000..150_001, "no".into()),
        ];
        let pieces = rope(&body, &splices);
        assert_eq!(pieces.concat(), splice(&body, &splices));
        let shared = |piece: &&Bytes| body.as_ptr_range().contains(&piece.as_ptr());
        assert_eq!(pieces.iter().filter(shared).map(Bytes::len).collect::<Vec<_>>(), [149_900, 49_999]);
        assert_eq!(pieces.len(), 3);
        assert_eq!(rope(&body, &[]).concat(), body);
        assert_eq!(rope(&body.slice(..100), &splices[..1]).len(), 1);
    }
}
