//! `[P]` The resolved policy: names are looked up, defaults filled in, illegal states cannot be written.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod model;

pub use model::*;
