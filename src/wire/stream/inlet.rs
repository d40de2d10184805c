//! A reader and a machine in one, so that nobody has to join them by hand.

use bytes::Bytes;

use super::{Done, Pushed, Sign, StreamEnd, StreamFault, StreamSettings, StreamState};
use crate::units::Ts;
use crate::wire::{SseReader, Stamp};

/// A reader and a machine in one: chunks of the body in, what is to be done out.
#[derive(Debug)]
pub struct StreamInlet {
    reader: SseReader,
    state: StreamState,
}

impl StreamInlet {
    /// An inlet at the begin of a body.
    #[must_use]
    pub fn new(settings: StreamSettings, max_event_bytes: usize) -> StreamInlet {
        StreamInlet { reader: SseReader::new(max_event_bytes), state: StreamState::new(settings) }
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
                Ok(event) => self.state.event(event, now),
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
            all.out.extend(step.out);
            all.sign = match (all.sign, step.sign) {
                (Some(Sign::ToolCall), _) => Some(Sign::ToolCall),
                (old, new) => new.or(old),
            };
            all.commit |= step.commit;
            all.progress |= step.progress;
            all.ended |= step.ended;
            all.calls = all.calls.or(step.calls);
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
                first = self.state.event(event, now);
                self.state.finish(clean)
            }
            Some(Err(error)) => self.state.broken(error),
            None => self.state.finish(clean),
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
}
