//! A reader and a machine in one, so that nobody has to join them by hand.

use std::sync::Arc;

use bytes::Bytes;

use super::{Done, Pushed, Sign, StreamEnd, StreamFault, StreamSettings, StreamState};
use crate::units::Ts;
use crate::wire::mask::{Originals, Restored, Restorer};
use crate::wire::{SseEvent, SseReader, Stamp};

/// A reader and a machine in one: chunks of the body in, what is to be done out.
#[derive(Debug)]
pub struct StreamInlet {
    reader: SseReader,
    state: StreamState,
    /// Puts back what was masked, before anything else looks at an event.
    restorer: Option<Restorer>,
}

impl StreamInlet {
    /// An inlet at the begin of a body.
    #[must_use]
    pub fn new(settings: StreamSettings, max_event_bytes: usize) -> StreamInlet {
        StreamInlet { reader: SseReader::new(max_event_bytes), state: StreamState::new(settings), restorer: None }
    }

    /// An inlet that puts back what was taken out of the request.
    #[must_use]
    pub fn restoring(self, originals: Arc<Originals>) -> StreamInlet {
        let restorer = (!originals.is_empty()).then(|| Restorer::new(originals));
        StreamInlet { restorer, ..self }
    }

    /// One event, restored if need be. Text that is all held back is a sign of life: the provider is at work, but the client has
    /// nothing yet.
    fn event(&mut self, event: SseEvent, now: Ts) -> Pushed {
        let Some(restorer) = &mut self.restorer else { return self.state.event(event, now) };
        let Restored { before, event, life } = match restorer.event(event) {
            Ok(restored) => restored,
            Err(_) if self.state.over() => return Pushed::default(),
            Err(fault) => return self.state.fail(fault, self.state.committed),
        };
        let first = before.map(|before| self.state.event(before, now)).unwrap_or_default();
        let mut pushed = joined(first, self.state.event(event, now));
        if life && pushed.fault.is_none() {
            self.state.live(&mut pushed);
        }
        pushed
    }

    /// The machine.
    #[must_use]
    pub fn state(&self) -> &StreamState {
        &self.state
    }

    /// Takes a chunk of the body. A fault in the same chunk as the commit point takes the commit back: nothing has been sent.
    pub fn bytes(&mut self, chunk: Bytes, now: Ts) -> Pushed {
        let before = self.state.committed;
        let mut all = Pushed::default();
        self.reader.push(chunk);
        while let Some(next) = self.reader.next() {
            let step = match next {
                Ok(event) => self.event(event, now),
                Err(_) if self.state.over() => break,
                Err(_) => self.state.fail(StreamFault::TooLarge, self.state.committed),
            };
            if let Some(fault) = step.fault {
                if !before {
                    self.state.take_back();
                    all = Pushed::default();
                }
                all.out.extend(step.out);
                all.fault = Some(fault);
                break;
            }
            all = joined(all, step);
        }
        all
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Ts) -> Pushed {
        self.state.tick(now)
    }

    /// When [`StreamInlet::tick`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ts> {
        self.state.poll_timeout()
    }

    /// The calls that were handed out, as the client must see them; what waited for it follows.
    pub fn stamp(&mut self, stamps: &[Stamp]) -> Pushed {
        self.state.stamp(stamps)
    }

    /// The body has ended: `clean` by itself, or else by a broken connection or a silence past its limit.
    pub fn end(&mut self, clean: bool, now: Ts) -> StreamEnd {
        let before = self.state.committed;
        let mut first = Pushed::default();
        let mut end = match self.reader.finish() {
            Some(Ok(event)) => {
                first = self.event(event, now);
                first = self.let_go(first, now);
                self.state.finish(clean)
            }
            Some(Err(error)) => {
                first = self.let_go(first, now);
                self.state.broken(error)
            }
            None => {
                first = self.let_go(first, now);
                self.state.finish(clean)
            }
        };
        if matches!(end.done, Done::Fault(_)) {
            end.calls = None;
            // After commit the last event may still be sent: it is a part of this attempt's answer.
            if before {
                end.out = first.out;
            } else {
                self.state.take_back();
            }
        } else {
            first.out.append(&mut end.out);
            end.out = first.out;
            end.commit |= first.commit;
            end.calls = first.calls.or(end.calls);
        }
        end
    }

    /// The body is over: what is still held back of a placeholder is none.
    fn let_go(&mut self, first: Pushed, now: Ts) -> Pushed {
        match self.restorer.as_mut().and_then(Restorer::rest) {
            Some(rest) => joined(first, self.state.event(rest, now)),
            None => first,
        }
    }
}

/// Two steps as one.
fn joined(mut first: Pushed, second: Pushed) -> Pushed {
    first.out.extend(second.out);
    first.sign = match (first.sign, second.sign) {
        (Some(Sign::ToolCall), _) => Some(Sign::ToolCall),
        (old, new) => new.or(old),
    };
    first.commit |= second.commit;
    first.progress |= second.progress;
    first.ended |= second.ended;
    first.calls = first.calls.or(second.calls);
    first.fault = first.fault.or(second.fault);
    first
}
