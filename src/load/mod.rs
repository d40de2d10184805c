//! The customer application: an open-loop, seeded driver of conversations, and what its regions do in the background.
//!
//! ```text
//! plan (pure) -> run -> app: conversation, turns, tools, entries -> client: one request and how it ended -> RequestRow
//! regional: copies of policy, secrets and history kept fresh beside it
//! ```

pub mod app;
pub mod client;
pub mod clock;
pub mod http;
pub mod marker;
pub mod plan;
pub mod received;
pub mod regional;
pub mod run;

pub use app::{Entry, Key, Settings};
pub use clock::monotonic_ms;
pub use marker::{Kind, Marker};
pub use plan::{Plan, PlanSettings};
pub use run::{Load, Progress, run};
