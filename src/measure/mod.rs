//! `[P]` What is measured and how: rows of evidence, recovery time, percentiles. One definition for drills, simulation
//! and the dashboard.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod percentiles;
pub mod queue;
pub mod rows;
pub mod rto;
pub mod trace;

pub use percentiles::{Spread, percentile};
pub use queue::queue_max;
pub use rows::*;
pub use rto::{Rto, TurnFacts, rto};
pub use trace::{Trace, Turn};
