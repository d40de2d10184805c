//! Streams that were cut: where, and what became of them for the client. Which bytes a gateway had when its upstream died
//! is not seen from outside; the fault server's cut point says it where events are counted, else what the provider had
//! written is the upper bound and what the client received the lower one.

use serde::{Deserialize, Serialize};

use super::Case;
use super::answers::Truth;
use crate::drill::evidence::{CutPoint, Window};
use crate::measure::{End, ProviderRow, RequestRow};

/// Answers that were under way at the broken provider when their path broke.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CutStreams {
    /// All of them.
    pub n: usize,
    /// Cut before content: by what the client got.
    pub before_content: CutKind,
    /// Cut after content.
    pub after_content: CutKind,
    /// Cut inside a tool call that had not been delivered.
    pub inside_call: CutKind,
    /// Cut after a call's arguments, before its finish.
    pub after_call: CutKind,
}

/// What became of the streams that were cut at one kind of point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutKind {
    /// How many.
    pub n: usize,
    /// Answered whole by another attempt.
    pub answered_whole: usize,
    /// Ended with exactly one error event, no `[DONE]` and no finish, after the customer had begun to read.
    pub one_error_event: usize,
    /// Anything else: cut without an error event, or ended by one although nothing of use had been delivered.
    pub other: usize,
}

impl CutStreams {
    /// The counts at one point.
    #[must_use]
    pub fn at(&self, point: CutPoint) -> &CutKind {
        match point {
            CutPoint::BeforeContent => &self.before_content,
            CutPoint::AfterContent => &self.after_content,
            CutPoint::InsideCall => &self.inside_call,
            CutPoint::AfterCall => &self.after_call,
        }
    }

    fn at_mut(&mut self, point: CutPoint) -> &mut CutKind {
        match point {
            CutPoint::BeforeContent => &mut self.before_content,
            CutPoint::AfterContent => &mut self.after_content,
            CutPoint::InsideCall => &mut self.inside_call,
            CutPoint::AfterCall => &mut self.after_call,
        }
    }
}

/// Events that stand before the first content of a stream: the role chunk.
const ROLE_EVENTS: u32 = 1;

/// What the client's side tells about a stream that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivered {
    /// Some of its text reached the client.
    Text,
    /// The client got another attempt's answer, whole: nothing of this one was delivered.
    Nothing,
    /// Neither is sure.
    Unknown,
}

/// Where a provider's stream was cut inside this window.
fn point_of(row: &ProviderRow, window: &Window, delivered: Delivered) -> CutPoint {
    let planned = window
        .faults
        .iter()
        .filter(|f| f.provider.as_deref() == Some(row.provider.as_str()))
        .find_map(|f| f.cut_events)
        .unwrap_or(u32::MAX);
    let events = planned.min(row.events_sent);
    let is_call = !row.tool_calls.is_empty();
    let content = match delivered {
        Delivered::Text => true,
        Delivered::Nothing => false,
        Delivered::Unknown => events > ROLE_EVENTS,
    };
    if !is_call && content {
        CutPoint::AfterContent
    } else if !is_call || events <= ROLE_EVENTS {
        CutPoint::BeforeContent
    } else if row.events_to_last_token > 0 && events >= row.events_to_last_token {
        CutPoint::AfterCall
    } else {
        CutPoint::InsideCall
    }
}

/// True if this answer was under way when the path broke, or was cut by the fault. `repeated`: the same request reached
/// another provider afterwards. What a provider has written says little: the last events leave it in one go, so that it may
/// believe that an answer was whole which was cut before its finish.
fn was_cut(row: &ProviderRow, window: &Window, repeated: bool) -> bool {
    if !row.stream || row.probe {
        return false;
    }
    if window.dead() {
        return row.arrived_ms < window.injected_ms && row.ended_ms.is_none_or(|e| e >= window.injected_ms);
    }
    let fault = window.faults.iter().find(|f| f.provider.as_deref() == Some(row.provider.as_str()));
    let beyond = fault.and_then(|f| f.cut_events).is_some_and(|n| row.events_sent > n);
    window.holds(row.arrived_ms) && (!row.completed || beyond || repeated)
}

/// The customer's side alone says that this answer was cut: a part of it came and no more, or it ended as whole with nothing in it.
/// Its provider may have written all of it before the cut, into the buffers on the way, and believe that it was whole; and one
/// that was asked for a whole answer by a gateway that streams it on knows of no stream at all.
fn cut_by_what_came(case: &Case<'_>, i: usize, p: usize) -> bool {
    let r = &case.ev.requests[i];
    let as_whole = matches!(r.end, End::Complete | End::CleanWithoutFinish);
    match case.truths[i] {
        Truth::Part(q) => q == p,
        Truth::Nothing => as_whole && case.trace.seen_by[i].last() == Some(&p),
        _ => false,
    }
}

/// The request was open in this outage, and its provider had been asked before the restore.
fn under_way(r: &RequestRow, row: &ProviderRow, window: &Window) -> bool {
    let stream = (r.stream || row.stream) && !row.probe;
    stream
        && row.arrived_ms < window.restoring_ms
        && r.ended_ms >= window.injecting_ms
        && r.started_ms < window.restoring_ms
}

/// An error event is the right end of what a customer had begun to use, and of nothing else: before that the stand-in can
/// answer, and fragments of a call are nothing to use.
fn ended_as_it_must(r: &RequestRow) -> bool {
    let one_error = r.end == End::ErrorEvent && r.error_events == 1;
    one_error && r.committed_ms.is_some() && !r.done_marker && r.finish_reason.is_none()
}

pub(super) fn check(case: &mut Case<'_>) -> CutStreams {
    let mut out = CutStreams::default();
    for (p, row) in case.ev.providers.iter().enumerate().filter(|(_, r)| case.is_broken(&r.provider)) {
        let Some(i) = case.trace.caused_by[p] else { continue };
        let repeated = case.trace.seen_by[i].last().is_some_and(|q| case.ev.providers[*q].arrived_ms > row.arrived_ms);
        let r = &case.ev.requests[i];
        let proven = cut_by_what_came(case, i, p);
        let cut_in = |w: &&Window| was_cut(row, w, repeated) || (proven && under_way(r, row, w));
        let Some(window) = case.ev.windows.iter().find(cut_in) else { continue };
        let delivered = match case.truths[i] {
            Truth::Part(q) | Truth::Whole(q) if q == p && r.committed_ms.is_some() => Delivered::Text,
            Truth::Spliced => Delivered::Text,
            Truth::Whole(_) => Delivered::Nothing,
            _ => Delivered::Unknown,
        };
        if r.end == End::Complete && case.truths[i] == Truth::Whole(p) {
            // It reached the client whole: the cut came behind its finish, or behind all of it.
            continue;
        }
        if r.ended_ms < window.injected_ms {
            continue;
        }
        let kind = out.at_mut(point_of(row, window, delivered));
        kind.n += 1;
        let whole_from_another = matches!(case.truths[i], Truth::Whole(q) if q != p);
        if r.end == End::Complete && whole_from_another {
            kind.answered_whole += 1;
        } else if ended_as_it_must(r) {
            kind.one_error_event += 1;
        } else {
            kind.other += 1;
        }
    }
    out.n = out.before_content.n + out.after_content.n + out.inside_call.n + out.after_call.n;
    out
}
