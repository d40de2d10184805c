//! `[P]` Months of outages in seconds: the same core as the gateway's, driven from an event heap instead of sockets.
//!
//! | file | answers |
//! |---|---|
//! | [`setup`] | what one run is made of |
//! | [`mod@run`] | the loop: the earliest event moves the clock, the core and the world |
//! | [`world`] | how a provider behaves when it is dialled |
//! | [`outages`] | when providers fail, and how: one file per kind |
//! | [`trace`] | an outage history from a CSV file |
//! | [`arrivals`] | when requests come, and how many real ones each stands for |
//! | [`verify`] | what must hold whatever happens, judged outside the core |
//! | [`figures`], [`recovery`] | what is counted |
//! | [`scenario`], [`lessons`] | what ships: the scenario and its variants |
//! | [`swarm`] | seeds that draw policies, worlds and outages |
//! | [`policy_tests`] | whether a policy answers questions as its authors wrote |
//! | [`limits`] | limits of a policy below the models' own figures |
//! | [`cost`] | what the emergency outcome costs |
//! | [`report`] | how it is told |
//!
//! Nothing here reads a clock or a file: `cli/simulate.rs` does.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arrivals;
pub mod cost;
pub mod figures;
pub mod lessons;
pub mod limits;
pub mod narrow;
pub mod outages;
pub mod policy_tests;
pub mod recovery;
pub mod report;
mod ring;
pub mod run;
pub mod scenario;
pub mod setup;
pub mod swarm;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod verify;
pub mod world;

pub use run::{Core, Progress, run};
pub use setup::Setup;
