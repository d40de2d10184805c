//! Expected errors: something outside llmfo is wrong and the reader can act. Bugs are panics, not values of this type.

use std::fmt;

use crate::exit::Exit;

/// An expected error: what happened, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The code the process ends with.
    pub exit: Exit,
    /// What happened, and where. One sentence without a full stop.
    pub what: String,
    /// What to do next. May be empty only where nothing can be done.
    pub hint: String,
}

impl Expected {
    /// An error with a next step.
    pub fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Expected {
        Expected { exit, what: what.into(), hint: hint.into() }
    }

    /// Usage or configuration is wrong (exit 2).
    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Expected {
        Expected::new(Exit::Usage, what, hint)
    }

    /// Nothing matched what was asked for (exit 4).
    pub fn nothing(what: impl Into<String>, hint: impl Into<String>) -> Expected {
        Expected::new(Exit::Nothing, what, hint)
    }

    /// Something may still be broken (exit 6).
    pub fn dirty(what: impl Into<String>, hint: impl Into<String>) -> Expected {
        Expected::new(Exit::Dirty, what, hint)
    }

    /// The same error, and something may still be broken.
    #[must_use]
    pub fn and_dirty(self) -> Expected {
        Expected { exit: self.exit.and(Exit::Dirty), ..self }
    }

    /// It could not run (exit 3).
    pub fn could_not(what: impl Into<String>, hint: impl Into<String>) -> Expected {
        Expected::new(Exit::CouldNotRun, what, hint)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.hint.is_empty() {
            write!(f, "\n  next: {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Expected {}

/// The usual result of thin code.
pub type Result<T> = std::result::Result<T, Expected>;
