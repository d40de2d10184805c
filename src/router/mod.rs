//! `[P]` The core: a pure state machine in the manner of quinn-proto. It decides who answers a request and when another
//! one does; it reads no clock, opens no socket and draws randomness only from its seed.
//!
//! | file | answers |
//! |---|---|
//! | [`io`] | what goes in and what comes out: the whole contract |
//! | [`engine`] | what an input or an alarm does |
//! | `request` | where one request and its dials stand |
//! | [`classify`] | whose fault an outcome is |
//! | `availability` | what each target can do now, from one file per signal |
//! | `select`, `skip` | who may, who can, who is there; and why the others are not dialled |
//! | `budget` | how long one dial may take |
//! | `probe` | how a target that is out proves that it is well |
//! | `refuse` | what the client hears when nobody answers |
//! | [`decision`] | what is written down about all this |
//! | `timers` | when something happens by itself |
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
