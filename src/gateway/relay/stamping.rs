//! Calls of an attempt that are handed out before they leave: what follows waits until the ledger has stamped them.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::attempt::{Attempt, Ended, Phase, Step};
use crate::policy::Policy;
use crate::router::Failure;
use crate::wire::stream::StreamInlet;
use crate::wire::{Pushed, Stamp, StreamFault, ToolCall, stamp_answer, with_member};

/// A complete answer whose calls wait for their stamps.
pub(super) enum Parked {
    Stream(Box<StreamInlet>),
    Whole(Bytes),
}

impl Attempt {
    /// Why calls that were handed out must not be delivered: the target called what it was not offered, or gave a keyed tool
    /// arguments that no key can be put into.
    pub fn refuses(&self, policy: &Policy, calls: &[ToolCall]) -> Option<Failure> {
        let withheld = |c: &ToolCall| self.plan.withhold.includes(policy.side_effects(&c.name));
        let no_place = |c: &ToolCall| {
            let key = policy.tools.get(&c.name).and_then(|tool| tool.key_argument.as_deref());
            key.is_some_and(|key| with_member(&c.arguments, key, "").is_none())
        };
        if calls.iter().any(withheld) {
            // Not counted: it may have seen the tool earlier in the conversation.
            return Some(Failure::Quality("a call of a tool that was not offered".to_owned()));
        }
        let no_place = calls.iter().any(no_place);
        no_place.then(|| Failure::Malformed("arguments of a keyed tool that are no JSON object".to_owned()))
    }

    /// As soon as the calls are stamped, if some wait for it.
    pub(super) fn put(&mut self, step: Step) {
        self.asked.as_mut().unwrap_or(&mut self.steps).push_back(step);
    }

    pub(super) fn ask(&mut self, calls: Vec<ToolCall>) {
        self.steps.push_back(Step::Calls(calls));
        self.asked = Some(VecDeque::new());
    }

    /// The calls that were handed out, as the client must see them: goes on with what follows.
    pub fn stamp(&mut self, stamps: &[Stamp]) {
        let Some(behind) = self.asked.take() else { return };
        if self.idle.at.is_some() {
            self.idle.set(Some(Instant::now() + self.plan.limits.idle));
        }
        match (self.parked.take(), &mut self.phase) {
            (Some(Parked::Stream(mut inlet)), _) => {
                let pushed = inlet.stamp(stamps);
                self.calls_delivered = inlet.state().tool_calls_delivered();
                self.stamped(pushed, behind);
            }
            (None, Phase::Stream(_, inlet)) => {
                let pushed = inlet.stamp(stamps);
                self.stamped(pushed, behind);
            }
            (Some(Parked::Whole(body)), _) => match (stamp_answer(&body, stamps), behind.into_iter().next()) {
                (Some(bytes), Some(Step::Ended(ended))) => {
                    self.steps.push_back(Step::Ended(Box::new(Ended { whole: Some(bytes), ..*ended })));
                }
                _ => self.stream_fault(StreamFault::Malformed("a tool call whose id has no place".to_owned())),
            },
            (None, _) => self.broke(Failure::Internal("calls of nothing".into()), false, None),
        }
    }

    fn stamped(&mut self, pushed: Pushed, behind: VecDeque<Step>) {
        let failed = pushed.fault.is_some();
        self.pushed(pushed);
        if !failed {
            self.steps.extend(behind);
        }
    }
}
