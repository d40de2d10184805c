//! `[P]` Invariants on one answer: used alike by drills, probes, evals and live sampling, so that an answer is not good in one
//! of them and bad in another.
//!
//! A check judges an answer that is complete. An attempt that failed has no answer to judge: that is an *error*, which whoever
//! made the request counts apart, in its own column, never as a failed check and never in its denominator.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod context;
mod finish;
pub mod golden;
mod handoff;
mod schema;

pub use crate::wire::ToolCall;
pub use context::context;
pub use finish::finish;
pub use handoff::{Handoff, HandoffVerdicts, handoff};
pub use schema::{Schema, json};

/// What a check says about one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The invariant holds.
    Pass,
    /// It is broken; says how, in one sentence that is safe to print.
    Fail(String),
    /// It could not be decided; says why.
    Inconclusive(String),
    /// It does not apply to this answer.
    Skipped,
}

impl Verdict {
    /// The invariant holds.
    #[must_use]
    pub fn passed(&self) -> bool {
        *self == Verdict::Pass
    }

    /// The invariant is broken.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self, Verdict::Fail(_))
    }

    /// It belongs into the denominator: it was decided, one way or the other.
    #[must_use]
    pub fn decided(&self) -> bool {
        self.passed() || self.failed()
    }

    /// Why it failed or could not be decided.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match self {
            Verdict::Fail(why) | Verdict::Inconclusive(why) => Some(why),
            Verdict::Pass | Verdict::Skipped => None,
        }
    }
}
