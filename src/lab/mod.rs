//! The laboratory: scripted providers, regional dependencies, a ticket system and a fault layer, all on loopback.
//!
//! It speaks the same protocols as the real things: OpenAI-compatible HTTP and the Toxiproxy API. `docs/lab.md` says how
//! to use it.

pub mod script;
