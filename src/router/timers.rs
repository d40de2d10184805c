//! The core's own alarm clock: at most one alarm per thing that can become due.

use std::collections::{BTreeMap, BTreeSet};

use super::io::{AttemptId, RequestId};
use crate::policy::TargetId;
use crate::units::Ts;

/// Whose alarm it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// A limit of an attempt runs out.
    Attempt(AttemptId),
    /// A request that waits: before a redial, or in the queue.
    Request(RequestId),
    /// A request's attempt has been silent for as long as its route's hedge threshold.
    Hedge(RequestId),
    /// A rate limit gives room again.
    Room,
    /// A target's availability changes by itself, or its probe is due.
    Target(TargetId),
}

/// All alarms, ordered by time and then by owner, so that the same inputs fire them in the same order.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Ts, Alarm)>,
    at: BTreeMap<Alarm, Ts>,
}

impl Timers {
    /// Sets, moves or (with `None`) removes an alarm.
    pub(super) fn set(&mut self, alarm: Alarm, at: Option<Ts>) {
        let old = match at {
            Some(at) => self.at.insert(alarm, at),
            None => self.at.remove(&alarm),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.queue.remove(&(old, alarm));
        }
        if let Some(at) = at {
            self.queue.insert((at, alarm));
        }
    }

    /// Sets an alarm, or moves it to an earlier time.
    pub(super) fn sooner(&mut self, alarm: Alarm, at: Ts) {
        if self.at.get(&alarm).is_none_or(|old| at < *old) {
            self.set(alarm, Some(at));
        }
    }

    /// The earliest alarm.
    pub(super) fn next(&self) -> Option<Ts> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes one target's alarm that is due.
    pub(super) fn pop_due_target(&mut self, now: Ts) -> Option<TargetId> {
        let mut targets = self.at.range(Alarm::Target(TargetId(0))..);
        let (alarm, _) = targets.find(|(_, at)| **at <= now)?;
        let alarm = *alarm;
        self.set(alarm, None);
        if let Alarm::Target(id) = alarm { Some(id) } else { None }
    }

    /// Takes one alarm that is due.
    pub(super) fn pop_due(&mut self, now: Ts) -> Option<Alarm> {
        let (at, alarm) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.set(alarm, None);
        Some(alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_has_one_time() {
        let mut timers = Timers::default();
        let a = Alarm::Attempt(AttemptId(1));
        timers.set(a, Some(Ts(5)));
        timers.set(a, Some(Ts(9)));
        timers.set(Alarm::Target(TargetId(0)), Some(Ts(9)));
        assert_eq!(timers.next(), Some(Ts(9)));
        assert_eq!(timers.pop_due(Ts(8)), None);
        assert_eq!(timers.pop_due(Ts(9)), Some(a), "the moved alarm, not its old time");
        assert_eq!(timers.pop_due(Ts(9)), Some(Alarm::Target(TargetId(0))));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn targets_can_be_asked_for_alone() {
        let mut timers = Timers::default();
        timers.set(Alarm::Attempt(AttemptId(1)), Some(Ts(1)));
        timers.set(Alarm::Target(TargetId(2)), Some(Ts(9)));
        timers.set(Alarm::Target(TargetId(3)), Some(Ts(7)));
        assert_eq!(timers.pop_due_target(Ts(8)), Some(TargetId(3)));
        assert_eq!(timers.pop_due_target(Ts(8)), None);
        assert_eq!(timers.next(), Some(Ts(1)), "the attempt's alarm still stands");
    }
}
