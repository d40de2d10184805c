//! The customer application: an open-loop, seeded driver of conversations.

pub mod clock;

pub use clock::monotonic_ms;
