//! Calls that wait for their stamps: handed out whole, put together anew, and then let go.

use super::{Pushed, StreamFault, StreamState};
use crate::wire::rewrite::{self, Splice};
use crate::wire::stamp::{Piece, Stamp, Stamper};
use crate::wire::{SseEvent, ToolCall};

/// An event whose calls wait for their stamps.
#[derive(Debug)]
pub(super) struct Unstamped {
    pub(super) event: SseEvent,
    pub(super) splices: Vec<Splice>,
    pub(super) pieces: Vec<Piece>,
}

/// How far the calls of an attempt are on their way to their stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stamping {
    #[default]
    NotYet,
    /// They are whole: to be handed out with this step.
    Due,
    /// Handed out.
    Asked,
    Done,
}

impl StreamState {
    /// The calls that were handed out, as the client must see them; what waited for it follows.
    pub fn stamp(&mut self, stamps: &[Stamp]) -> Pushed {
        let mut pushed = Pushed::default();
        if self.stamping != Stamping::Asked || self.fault.is_some() {
            return pushed;
        }
        let before = self.committed;
        self.stamping = Stamping::Done;
        if !self.put_together(stamps) {
            return self.fail(StreamFault::Malformed("a tool call whose id has no place".to_owned()), before);
        }
        self.release(&mut pushed.out, &mut pushed.commit, self.force);
        pushed
    }

    fn put_together(&mut self, stamps: &[Stamp]) -> bool {
        let calls = self.called();
        let pieces = self.queue.iter().filter_map(|h| h.unstamped.as_ref()).flat_map(|u| &u.pieces);
        let mut stamper = Stamper::new(stamps, &calls, pieces);
        for held in &mut self.queue {
            let Some(Unstamped { event, mut splices, pieces }) = held.unstamped.take().map(|u| *u) else { continue };
            for piece in &pieces {
                let Some(more) = stamper.piece(piece) else { return false };
                splices.extend(more);
            }
            self.held_bytes -= held.raw.len();
            held.raw = rewrite::splice_event(&event, &splices);
            self.held_bytes += held.raw.len();
        }
        stamper.complete()
    }

    /// All calls, as assembled.
    pub(super) fn called(&self) -> Vec<ToolCall> {
        self.choices.iter().flat_map(|c| c.calls.calls().iter().cloned()).collect()
    }

    /// The calls, if they are to be handed out now.
    pub(super) fn due(&mut self) -> Option<Vec<ToolCall>> {
        (self.stamping == Stamping::Due).then(|| {
            self.stamping = Stamping::Asked;
            self.called()
        })
    }

    /// Calls that are to be stamped are of one choice, and come before they are handed out.
    pub(super) fn judge_stamping(&self) -> Result<(), StreamFault> {
        let malformed = |what: &str| Err(StreamFault::Malformed(what.to_owned()));
        if self.stamping != Stamping::NotYet {
            return malformed("a tool call after the calls were complete");
        }
        if self.choices.iter().filter(|c| !c.calls.calls().is_empty()).count() > 1 {
            return malformed("tool calls in more than one choice");
        }
        Ok(())
    }
}
