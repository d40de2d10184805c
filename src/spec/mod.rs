//! `[P]` File types: text -> tree with spans -> JSON Schema -> typed, every problem reported at its line and column.
//!
//! [`document::load`] is the way in for every file type; it needs a type with `Deserialize` and `JsonSchema`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod check;
pub mod client_keys;
pub mod document;
pub mod drill;
pub mod examples;
pub mod golden;
pub mod named;
pub mod names;
pub mod numbers;
pub mod policy;
pub mod policy_tests;
pub mod rules;
pub mod schema;
mod shape;
pub mod text;
mod tree;
mod yaml;

pub use document::{Limits, SpannedDoc, load};
pub use named::Named;

#[cfg(test)]
mod tests;
