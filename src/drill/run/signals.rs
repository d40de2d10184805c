//! Signals: the first one stops the drill, which restores, reports and ends; a second one skips waiting, never the restore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Expected, Result};

/// Why the drill must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// `interrupted`, `terminated`, or the stop condition by name.
    pub by: String,
    /// In one sentence.
    pub text: String,
}

/// Who may ask the drill to stop, and who hears it.
#[derive(Clone, Debug)]
pub struct Stops {
    sender: Arc<watch::Sender<Option<Stop>>>,
    hurry: Arc<AtomicBool>,
}

impl Stops {
    /// Listens for SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn listen() -> Result<Stops> {
        let stops = Stops { sender: Arc::new(watch::Sender::new(None)), hurry: Arc::default() };
        for (kind, by, text) in [
            (SignalKind::interrupt(), "interrupted", "Ctrl-C"),
            (SignalKind::terminate(), "terminated", "SIGTERM"),
            (SignalKind::quit(), "terminated", "SIGQUIT"),
            (SignalKind::hangup(), "terminated", "the terminal went away"),
        ] {
            let mut heard =
                signal(kind).map_err(|e| Expected::could_not(format!("signals cannot be watched: {e}"), ""))?;
            let stops = stops.clone();
            tokio::spawn(async move {
                while heard.recv().await.is_some() {
                    stops.ask(by, text);
                }
            });
        }
        Ok(stops)
    }

    /// Asks the drill to stop. The first reason stays; a further call means: do not wait.
    pub fn ask(&self, by: &str, text: &str) {
        let first = self.sender.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(Stop { by: by.into(), text: text.into() });
            }
            first
        });
        if !first {
            self.hurry.store(true, Ordering::Relaxed);
            // Wakes those who wait although the reason stays the same.
            self.sender.send_modify(|_| ());
        }
    }

    /// The reason, if there is one.
    #[must_use]
    pub fn asked(&self) -> Option<Stop> {
        self.sender.borrow().clone()
    }

    /// A second request came: skip waiting.
    #[must_use]
    pub fn in_a_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// Resolves when the drill must stop.
    pub async fn wait(&self) {
        let mut receiver = self.sender.subscribe();
        // The sender lives as long as this value.
        let _ = receiver.wait_for(Option::is_some).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_stays_and_the_second_means_hurry() {
        let stops = Stops::listen().unwrap();
        assert!(stops.asked().is_none());
        stops.ask("interrupted", "Ctrl-C");
        stops.wait().await;
        assert!(!stops.in_a_hurry());
        stops.ask("terminated", "SIGTERM");
        assert_eq!(stops.asked().unwrap().by, "interrupted");
        assert!(stops.in_a_hurry());
    }
}
