//! `[P]` The core: a pure state machine in the manner of quinn-proto. It decides who answers a request and when another
//! one does; it reads no clock, opens no socket and draws randomness only from its seed.
//!
//! | file | answers |
//! |---|---|
//! | [`io`] | what goes in and what comes out: the whole contract |
//! | [`engine`] | what an input or an alarm does |
//! | `outcome` | what the end of an attempt does to its request |
//! | `waiting`, `admission` | who waits when no place is free, and what an emergency refuses |
//! | `hedge` | when a second attempt runs beside a slow one |
//! | [`ledger`], `tools` | which tool calls were handed out, so that none is made twice |
//! | `request` | where one request and its dials stand |
//! | [`classify`] | whose fault an outcome is |
//! | `availability` | what each target can do now, from one file per signal |
//! | `select`, `order`, `skip` | who may, who can, who is there and has room; in which order; and why the others are not dialled |
//! | `budget` | how long one dial may take |
//! | [`observe`] | what is asked and written down where failover is only observed |
//! | `probe` | how a target that is out proves that it is well |
//! | `refuse` | what the client hears when nobody answers |
//! | [`decision`] | what is written down about all this |
//! | [`replay`] | how a core is made to do the same again |
//! | `timers` | when something happens by itself |
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod admission;
mod availability;
mod budget;
pub mod classify;
pub mod decision;
pub mod engine;
mod hedge;
pub mod io;
pub mod ledger;
pub mod observe;
mod order;
mod outcome;
mod probe;
mod refuse;
pub mod replay;
mod request;
mod select;
mod skip;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod timers;
mod tools;
mod waiting;

pub(crate) use availability::rate::Rate;
pub use engine::Engine;
pub use io::*;
