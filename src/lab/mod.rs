//! The laboratory: scripted providers, regional dependencies, a ticket system and a fault layer, all on loopback.
//!
//! It speaks the same protocols as the real things: OpenAI-compatible HTTP and the Toxiproxy API. `docs/lab.md` says how
//! to use it.

pub mod admin;
mod alone;
pub mod dependency;
pub mod home;
pub mod http;
mod leftover;
pub mod listen;
pub mod paths;
pub mod policy;
pub mod provider;
pub mod script;
pub mod tickets;
pub mod topology;
pub mod up;
