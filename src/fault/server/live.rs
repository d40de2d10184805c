//! Live counters of one proxy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::fault::api::Counters;

/// Counters that the data path adds to.
#[derive(Debug, Default)]
pub struct Live {
    /// See [`Counters`], as all of these.
    pub accepted: AtomicU64,
    /// Open now.
    pub open: AtomicU64,
    /// Failed dials.
    pub dial_failures: AtomicU64,
    /// Black-holed connects seen.
    pub blackholed: AtomicU64,
    /// From clients.
    pub up_received: AtomicU64,
    /// To the upstream.
    pub up_sent: AtomicU64,
    /// From the upstream.
    pub down_received: AtomicU64,
    /// To clients.
    pub down_sent: AtomicU64,
    /// Ended by a toxic.
    pub ended_by_toxic: AtomicU64,
    /// See [`Live::changed`].
    pub revision: AtomicU64,
}

/// Numbers of changes: one sequence for all proxies, so that one that is deleted and made again never has an old number.
static REVISIONS: AtomicU64 = AtomicU64::new(1);

impl Live {
    /// What they show now.
    #[must_use]
    pub fn read(&self) -> Counters {
        Counters {
            accepted: self.accepted.load(Relaxed),
            open: self.open.load(Relaxed),
            dial_failures: self.dial_failures.load(Relaxed),
            blackholed: self.blackholed.load(Relaxed),
            up_received: self.up_received.load(Relaxed),
            up_sent: self.up_sent.load(Relaxed),
            down_received: self.down_received.load(Relaxed),
            down_sent: self.down_sent.load(Relaxed),
            ended_by_toxic: self.ended_by_toxic.load(Relaxed),
            revision: self.revision.load(Relaxed),
        }
    }

    /// The proxy was switched, led elsewhere, or its toxics were changed: who looks only now and then sees that too.
    pub fn changed(&self) {
        self.revision.store(REVISIONS.fetch_add(1, Relaxed), Relaxed);
    }
}

/// Counts one connection as open while it lives.
#[derive(Debug)]
pub struct OpenGuard(std::sync::Arc<Live>);

impl OpenGuard {
    /// One more.
    #[must_use]
    pub fn new(live: &std::sync::Arc<Live>) -> OpenGuard {
        live.open.fetch_add(1, Relaxed);
        OpenGuard(live.clone())
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
