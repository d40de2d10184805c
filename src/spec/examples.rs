//! Small whole files that the rules are shown on.

/// A policy without a single finding. Rules quote pieces of it and what must not be written in their place.
pub const POLICY: &str = include_str!("examples/policy.yaml");

/// A drill without a single finding.
pub const DRILL: &str = include_str!("examples/drill.yaml");
