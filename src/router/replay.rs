//! The input journal: everything that went into a core, so that the same core can be made to do the same again.
//!
//! One JSON document per line. The first says for which policy and seed; each other one is a moment and an input. Neither
//! bodies nor secrets are inputs, so none is in it. Replayed into a fresh core, the outputs are the same byte for byte.

use serde::{Deserialize, Serialize};

use super::io::{Input, Machine, Output};
use crate::units::Ts;

/// Version of the journal. Fields are only added.
pub const JOURNAL_FORMAT: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`JOURNAL_FORMAT`].
    pub format: u32,
    /// SHA-256 of the policy's bytes: another policy would decide otherwise.
    pub policy_sha256: String,
    /// The core's seed.
    pub seed: u64,
    /// The core runs hedges.
    pub hedges: bool,
}

/// Every other line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Which input of this core, from zero: one that is missing or there twice is noticed.
    pub seq: u64,
    /// When, in nanoseconds since the core began.
    pub at: Ts,
    /// What.
    pub input: Input,
}

/// One line of the journal, with its newline.
///
/// # Errors
/// Never for the types of this module; the serializer's word for it all the same.
pub fn line<T: Serialize>(entry: &T) -> Result<String, serde_json::Error> {
    serde_json::to_string(entry).map(|text| text + "\n")
}

/// Feeds a journal's inputs to a core; every output goes to `each`, in order.
pub fn replay(core: &mut impl Machine, entries: impl IntoIterator<Item = Entry>, mut each: impl FnMut(Ts, &Output)) {
    for Entry { at, input, .. } in entries {
        core.handle(at, input);
        while let Some(output) = core.poll_output() {
            each(at, &output);
        }
    }
}
