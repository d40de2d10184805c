//! Connections that are kept for the next request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::wire::{Many, One, Wire};

/// How idle connections are kept.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Idle connections kept; more are closed.
    pub idle_max: usize,
    /// An idle connection is not used after this. Below the 60 s after which common servers close one.
    pub idle: Duration,
    /// A connection is not used again after this, so that a name that has moved is noticed.
    pub age: Duration,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        PoolLimits { idle_max: 64, idle: Duration::from_secs(30), age: Duration::from_secs(300) }
    }
}

struct Idle {
    wire: One,
    since: Instant,
}

/// The pool of one client.
pub(super) struct Pool {
    pub(super) limits: PoolLimits,
    ones: Mutex<Vec<Idle>>,
    /// Connections that carry many requests, in use or not.
    many: Mutex<Vec<Arc<Many>>>,
}

impl Pool {
    pub(super) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, ones: Mutex::default(), many: Mutex::default() }
    }

    fn ones(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.ones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn many(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Many>>> {
        self.many.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that stands. `fresh`: none, and those that are here are let go.
    pub(super) fn checkout(&self, fresh: bool) -> Option<Wire> {
        if fresh {
            self.clear();
            return None;
        }
        {
            let mut many = self.many();
            many.retain(|m| self.holds(m, Duration::ZERO));
            if let Some(place) = many.iter().find_map(Many::place) {
                return Some(Wire::Many(place));
            }
        }
        let mut ones = self.ones();
        loop {
            // The one used last; first of those that this thread has.
            let near = ones.iter().rposition(|idle| idle.wire.at_home()).or(ones.len().checked_sub(1))?;
            let Idle { wire, since } = ones.remove(near);
            let young = wire.born.elapsed() < self.limits.age;
            if wire.sender.is_ready() && since.elapsed() < self.limits.idle && young {
                return Some(Wire::One(wire));
            }
        }
    }

    /// It may be used, also after so much more time.
    fn holds(&self, many: &Many, more: Duration) -> bool {
        let fresh = many.idle().is_none_or(|idle| idle + more < self.limits.idle);
        !many.closed() && fresh && many.born.elapsed() + more < self.limits.age
    }

    /// Lets all go. What is in use ends as it would.
    pub(super) fn clear(&self) {
        // Dropped outside the locks.
        let (ones, many) = (std::mem::take(&mut *self.ones()), std::mem::take(&mut *self.many()));
        drop((ones, many));
    }

    /// Takes a connection back once it is ready for the next request.
    pub(super) fn give_back(self: &Arc<Self>, mut wire: One) {
        if wire.sender.is_closed() || wire.born.elapsed() >= self.limits.age {
            return;
        }
        if wire.sender.is_ready() {
            return self.keep(wire);
        }
        // The connection task has not yet noticed that the answer is over; this takes microseconds.
        let home = Arc::clone(self);
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                if let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(1), wire.sender.ready()).await {
                    home.keep(wire);
                }
            });
        }
    }

    pub(super) fn keep(&self, wire: One) {
        let mut ones = self.ones();
        ones.retain(|i| !i.wire.sender.is_closed() && i.since.elapsed() < self.limits.idle);
        if ones.len() < self.limits.idle_max {
            ones.push(Idle { wire, since: Instant::now() });
        }
    }

    /// One that others may use as well.
    pub(super) fn share(&self, wire: &Arc<Many>) {
        let mut many = self.many();
        many.retain(|m| self.holds(m, Duration::ZERO));
        if many.len() < self.limits.idle_max {
            many.push(Arc::clone(wire));
        }
    }

    /// Closes what is too old, or will be after so much more time, and says how many requests at least could begin at once on what
    /// is left.
    pub(super) fn tidy(&self, more: Duration) -> usize {
        let mut old = Vec::new();
        let mut ones = self.ones();
        for idle in std::mem::take(&mut *ones) {
            let holds = idle.since.elapsed() + more < self.limits.idle
                && idle.wire.born.elapsed() + more < self.limits.age
                && idle.wire.sender.is_ready();
            if holds { ones.push(idle) } else { old.push(idle) }
        }
        let left = ones.len();
        drop(ones);
        drop(old);
        let mut many = self.many();
        many.retain(|m| self.holds(m, more));
        left + many.iter().map(|m| m.room()).sum::<usize>()
    }

    /// Connections that nobody uses right now.
    pub(super) fn idle(&self) -> usize {
        let many = self.many().iter().filter(|m| m.idle().is_some()).count();
        self.ones().len() + many
    }
}
