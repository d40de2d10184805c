//! The project's own side-by-side measurements: the gateway, a real Envoy and no gateway at all in front of one neutral
//! provider, in interleaved rounds of one run; and a soak.
//!
//! ```text
//! run: stage (mock provider, gateway, Envoy: a process each) -> rounds of cells -> figures -> judge -> report
//! ```
//!
//! `figures`, `judge` and `asked` are pure: what is measured is handed to them. `docs/bench.md` says what each figure is.

pub mod asked;
pub mod cells;
pub mod client;
pub mod config;
pub mod driver;
pub mod figures;
pub mod idle;
pub mod judge;
pub mod mock;
pub mod proc;
pub mod report;
pub mod run;
pub mod soak;
pub mod stage;
