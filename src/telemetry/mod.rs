//! What the gateway tells about itself: metrics in Prometheus' text format and a journal of events as JSON Lines. Neither
//! can fail or slow traffic: metrics are counters in memory, and the journal drops lines (and counts them) rather than wait.

pub mod journal;
pub mod log;
pub mod metrics;

pub use journal::{Journal, JournalSettings};
pub use metrics::Metrics;
