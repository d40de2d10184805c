//! A request's place in the core, as its task holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::{Cmd, Driver};
use crate::policy::Policy;
use crate::router::RequestId;

/// A request's place in the core. Dropping it before the request is over tells the core that the client has left.
#[derive(Debug)]
pub struct Ticket {
    pub(super) id: RequestId,
    /// The policy by which the core took it: between a look at the policy and this moment another may have come.
    pub policy: Arc<Policy>,
    pub(super) commands: mpsc::Receiver<Cmd>,
    pub(super) driver: Arc<Driver>,
    /// Set by the connection when its client has stopped reading.
    pub(super) stalled: Option<Arc<AtomicBool>>,
    pub(super) over: bool,
}

impl Ticket {
    /// The next command. `None`: the driver has given the request up.
    pub async fn next(&mut self) -> Option<Cmd> {
        self.commands.recv().await
    }

    /// The next command, polled.
    pub fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Cmd>> {
        self.commands.poll_recv(cx)
    }

    /// The flag that says that the client has stopped reading.
    pub fn watch_stall(&mut self, flag: Arc<AtomicBool>) {
        self.stalled = Some(flag);
    }

    /// The request is over in every way; there is nothing to tell the core.
    pub fn over(&mut self) {
        self.over = true;
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            let stalled = self.stalled.as_ref().is_some_and(|s| s.load(Ordering::Relaxed));
            self.driver.client_gone(self.id, stalled);
        }
    }
}
