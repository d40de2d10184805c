//! What the emergency outcome costs.

use serde::Serialize;

/// A bill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bill {}
