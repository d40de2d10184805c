//! Whose fault an outcome is: one exhaustive table (rule R3), no catch-all "retryable".

use serde::{Deserialize, Serialize};

/// The class of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A completed answer.
    Success,
    /// The caller's own mistake: returned as it is.
    Caller,
    /// A content filter: returned as it is.
    PolicyBlock,
    /// This target lacks a parameter, role or feature.
    Mismatch,
    /// The context is longer than this target's window.
    TooLong,
    /// Credential, quota or billing.
    Account,
    /// The place of the request is not allowed there.
    Place,
    /// Rate limit or overload.
    Capacity,
    /// The provider, the network, or the answer itself.
    Provider,
    /// The client left.
    ClientGone,
}
