//! The fault layer: an async client for Toxiproxy-compatible servers, and an embedded server of our own.

pub mod api;
pub mod server;
pub mod toxic;
