//! A clock of one attempt.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use super::super::pause;

/// A deadline that may move often: the timer behind it is set anew only when it rings too early. When it rings late, this
/// process itself stood still, and it waits a moment more.
#[derive(Default)]
pub(super) struct Clock {
    pub(super) at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
    late: bool,
}

impl Clock {
    pub(super) fn set(&mut self, at: Option<Instant>) {
        (self.at, self.late) = (at, false);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(at) = self.at else { return Poll::Pending };
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
            if sleep.deadline() > at.into() {
                sleep.as_mut().reset(at.into());
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if now >= at && !self.late && now.saturating_duration_since(at) > pause::LATE {
                self.late = true;
                self.at = Some(now + pause::GRACE);
            } else if now >= at {
                self.at = None;
                self.sleep = None;
                return Poll::Ready(());
            }
            let at = self.at.unwrap_or(at);
            sleep.as_mut().reset(at.into());
        }
    }
}
