//! Where exactly an answer is cut: found from the answers that the provider gave in steady state. A server of ours counts
//! events; a real one counts bytes on the wire, head and chunk framing included.

use crate::measure::ProviderRow;
use crate::spec::drill::CutAt;

/// The role chunk.
const ROLE: u32 = 1;
/// Pieces of content that tell whose text it is.
const TELLING: u32 = 3;
/// Events of a call stream before its arguments: the role chunk and the call's head.
const CALL_HEAD: u32 = 2;
/// Bytes past the end of an event: enough to be behind it, far less than the next one has (a chunk is over 150 bytes).
const PAST: u64 = 20;

/// A position in the answers of one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Events that pass.
    pub events: u32,
    /// Bytes that pass; `None` if nothing was measured.
    pub bytes: Option<u64>,
}

/// Bytes on the wire up to the end of event `n` (from 1): the response head, and each event as one HTTP chunk.
fn wire_end(row: &ProviderRow, n: u32) -> Option<u64> {
    let ends = row.event_ends.get(..n as usize)?;
    let mut total = row.head_bytes;
    let mut before = 0;
    for end in ends {
        let length = end - before;
        before = *end;
        // Size in hexadecimal, CRLF, the event, CRLF.
        total += u64::from(length.max(1).ilog(16)) + 1 + 2 + length + 2;
    }
    Some(total)
}

/// The position of a cut point, from the streams that this provider has completed.
#[must_use]
pub fn position(at: CutAt, rows: &[&ProviderRow]) -> Position {
    let whole: Vec<&ProviderRow> = rows.iter().copied().filter(|r| r.stream && r.completed && !r.probe).collect();
    let calls: Vec<&ProviderRow> = whole.iter().copied().filter(|r| !r.tool_calls.is_empty()).collect();
    let events = match at {
        CutAt::BeforeContent => ROLE,
        CutAt::AfterContent => ROLE + TELLING,
        CutAt::InsideCall => CALL_HEAD + TELLING,
        CutAt::AfterCall => commonest(&calls).unwrap_or(CALL_HEAD + 8),
    };
    let of_kind = match at {
        CutAt::BeforeContent | CutAt::AfterContent => &whole,
        CutAt::InsideCall | CutAt::AfterCall => &calls,
    };
    let mut ends: Vec<u64> = of_kind.iter().filter_map(|r| wire_end(r, events)).collect();
    ends.sort_unstable();
    // Texts differ in length: the largest makes sure that so many events have passed in all of them; of calls the middle one
    // is taken, because the finish follows soon.
    let bytes = match at {
        CutAt::AfterCall => ends.get(ends.len() / 2).copied(),
        _ => ends.last().copied(),
    };
    Position { events, bytes: bytes.map(|b| b + PAST) }
}

/// The commonest number of events up to the last fragment.
fn commonest(calls: &[&ProviderRow]) -> Option<u32> {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    for row in calls.iter().filter(|r| r.events_to_last_token > 0) {
        *counts.entry(row.events_to_last_token).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, n)| *n).map(|(events, _)| events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::ToolCallRow;
    use crate::measure::trace::tests::{request, seen};

    fn row(ends: &[u64], call: bool) -> ProviderRow {
        let mut row = seen("local-a", &request("c", 1, 0.0));
        row.head_bytes = 100;
        row.event_ends = ends.to_vec();
        if call {
            row.tool_calls = vec![ToolCallRow { id: "x".into(), name: "f".into(), arguments: "{}".into() }];
            row.events_to_last_token = u32::try_from(ends.len()).unwrap() - 2;
        }
        row
    }

    #[test]
    fn bytes_count_head_and_chunk_framing() {
        // Events of 200 (c8), 16 (10) and 15 (f) bytes: 100 + (2+2+200+2) + (2+2+16+2) + (1+2+15+2).
        let r = row(&[200, 216, 231], false);
        assert_eq!((wire_end(&r, 1), wire_end(&r, 2), wire_end(&r, 3)), (Some(306), Some(328), Some(348)));
        assert_eq!(wire_end(&r, 4), None);
    }

    #[test]
    fn positions_come_from_what_was_measured() {
        let text = row(&[200, 400, 600, 800, 1000, 1200], false);
        let call = row(&[200, 400, 600, 800, 1000, 1200, 1400, 1600], true);
        let rows = [&text, &call];
        assert_eq!(position(CutAt::BeforeContent, &rows), Position { events: 1, bytes: Some(306 + 20) });
        assert_eq!(position(CutAt::AfterContent, &rows).events, 4);
        assert_eq!(position(CutAt::InsideCall, &rows).bytes, Some(100 + 5 * 206 + 20));
        assert_eq!(position(CutAt::AfterCall, &rows), Position { events: 6, bytes: Some(100 + 6 * 206 + 20) });
        assert_eq!(position(CutAt::AfterCall, &[]), Position { events: 10, bytes: None });
    }
}
