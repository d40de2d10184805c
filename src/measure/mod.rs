//! `[P]` What is measured and how: rows of evidence, recovery time, percentiles. One definition for drills, simulation
//! and the dashboard.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod rows;

pub use rows::*;
