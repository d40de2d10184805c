//! The fault layer: an async client for Toxiproxy-compatible servers, an embedded server of our own, and what makes injecting
//! safe: a write-ahead log, restore, a dead man's switch.

pub mod api;
pub mod client;
pub mod clock;
pub mod error;
pub mod guard;
pub mod restore;
pub mod server;
pub mod toxic;
pub mod wal;
pub mod wanted;
