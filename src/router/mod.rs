//! `[P]` The core: a pure state machine in the manner of quinn-proto. It decides who answers a request and when another
//! one does; it reads no clock, opens no socket and draws randomness only from its seed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod availability;
mod budget;
pub mod classify;
pub mod decision;
pub mod engine;
pub mod io;
mod probe;
mod refuse;
mod request;
mod select;
mod skip;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod timers;

pub use engine::Engine;
pub use io::*;
