//! `[P]` A diagnostic is data: which rule, where, what is wrong, what was expected, what to do. Renderers turn a
//! [`Report`] into text for people or into JSON for machines, one file each.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod human;
mod json;
mod report;
mod rule;
mod secrets;
mod source;

use std::sync::Arc;

pub use human::render as render_human;
pub use json::{FORMAT_VERSION, render as render_json};
pub use report::{Counts, Report};
pub use rule::{Example, Rule, Severity};
pub use secrets::{is_secret_name, mask as masked};
pub use source::{Place, Source};

use crate::units::printable;

/// Longest piece of outside text that a message repeats, in characters.
const QUOTE_CHARS: usize = 60;

/// One finding.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Which rule it breaks.
    pub rule: &'static Rule,
    /// How grave it is; the rule's own unless changed.
    pub severity: Severity,
    /// The fact, in one sentence.
    pub message: String,
    /// Where to look, and to mend.
    pub place: Place,
    /// Short text at the place itself.
    pub label: String,
    /// Other places that matter: "first written here".
    pub labels: Vec<Label>,
    /// What would have been right.
    pub expected: Option<String>,
    /// The nearest known name, where a name was wrong.
    pub nearest: Option<String>,
    /// The next step.
    pub help: Option<String>,
}

/// A second place with a short text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Where.
    pub place: Place,
    /// What is there.
    pub text: String,
}

impl Diagnostic {
    /// A finding with the rule's own severity.
    #[must_use]
    pub fn new(rule: &'static Rule, place: Place, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            rule,
            severity: rule.severity,
            message: message.into(),
            place,
            label: String::new(),
            labels: Vec::new(),
            expected: None,
            nearest: None,
            help: None,
        }
    }

    /// Sets the short text at the place.
    #[must_use]
    pub fn label(mut self, text: impl Into<String>) -> Diagnostic {
        self.label = text.into();
        self
    }

    /// Adds a second place.
    #[must_use]
    pub fn and(mut self, place: Place, text: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { place, text: text.into() });
        self
    }

    /// Says what would have been right.
    #[must_use]
    pub fn expected(mut self, text: impl Into<String>) -> Diagnostic {
        self.expected = Some(text.into());
        self
    }

    /// Names the nearest known name.
    #[must_use]
    pub fn nearest(mut self, name: impl Into<String>) -> Diagnostic {
        self.nearest = Some(name.into());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Diagnostic {
        self.help = Some(text.into());
        self
    }

    /// Changes the severity.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Diagnostic {
        self.severity = severity;
        self
    }

    /// True for an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// True if `llmfo serve` must not start on this: an error of the families 0 (shape), 1 (routing) or 5 (data and
    /// secrets). Errors of other families are reported and the policy still runs.
    #[must_use]
    pub fn blocks_serving(&self) -> bool {
        self.is_error() && matches!(self.rule.family(), 0 | 1 | 5)
    }
}

/// Outside text in backticks, safe for a terminal and bounded; what could be a secret in it is `****`.
#[must_use]
pub fn quoted(text: &str) -> String {
    // Bounded before it is searched, but far enough that no secret is cut to a part that is none any more.
    let some: String = text.chars().take(QUOTE_CHARS * 8).collect();
    format!("`{}`", printable(&secrets::mask(&some), QUOTE_CHARS))
}

/// Names in backticks, separated by commas, at most `max` of them.
#[must_use]
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>, max: usize) -> String {
    let all: Vec<&str> = names.into_iter().collect();
    let mut text = all.iter().take(max).map(|n| quoted(n)).collect::<Vec<_>>().join(", ");
    if all.len() > max {
        text.push_str(&format!(" and {} more", all.len() - max));
    }
    text
}

/// A shared file name.
pub type FileName = Arc<str>;
