//! The customer application: an open-loop, seeded driver of conversations.

pub mod clock;
pub mod marker;
pub mod plan;
pub mod received;

pub use clock::monotonic_ms;
