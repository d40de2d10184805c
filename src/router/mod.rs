//! `[P]` The core: a pure state machine in the manner of quinn-proto. It decides who answers a request and when another
//! one does; it reads no clock, opens no socket and draws randomness only from its seed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod classify;
pub mod decision;
pub mod io;

pub use io::*;
