//! Drills: declare, steady state, inject at the network, outage, restore, recovery, judge, report.
//!
//! Judgement comes from outside the system under test: what the client received, what the providers saw, what the ticket
//! system recorded. The gateway is a black box.

pub mod checks;
pub mod codes;
#[cfg(test)]
mod codes_tests;
pub mod evidence;
pub mod judge;
mod lags;
pub mod library;
pub mod plan;
pub mod propose;
pub mod report;
pub mod run;
pub mod spoilt;
pub mod stalls;
pub mod verdict;
