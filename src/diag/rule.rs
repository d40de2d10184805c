//! What a rule is: everything `llmfo explain` says about one kind of finding.

use std::fmt;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// It is wrong and must be mended.
    Error,
    /// It is allowed and probably not meant.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How a rule is shown by example. A test breaks the good file in exactly this way and expects exactly this rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// A piece of the example policy, and what it must not be turned into.
    Policy {
        /// Found word for word in the example policy.
        good: &'static str,
        /// Put in its place, gives this finding and no other.
        bad: &'static str,
    },
    /// The same for the example drill.
    Drill {
        /// Found word for word in the example drill.
        good: &'static str,
        /// Put in its place, gives this finding and no other.
        bad: &'static str,
    },
    /// Cannot be shown in a few lines, for the reason given.
    Words(&'static str),
}

/// One kind of finding. Codes are never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `LF` and three digits; the first one is the family.
    pub code: &'static str,
    /// Its name, in kebab case.
    pub name: &'static str,
    /// How grave it is unless the finding says otherwise.
    pub severity: Severity,
    /// What it finds, in one sentence.
    pub what: &'static str,
    /// Which outage or surprise it prevents.
    pub why: &'static str,
    /// How to mend it.
    pub fix: &'static str,
    /// Shown by example.
    pub example: Example,
}

impl Rule {
    /// The family, from the code's first digit: 0 shape, 1 routing, 2 time-outs and attempts, 3 health and breaker,
    /// 4 capacity and cost, 5 data and secrets, 6 drills, 7 golden sets, 8 release.
    #[must_use]
    pub fn family(&self) -> u8 {
        self.code.as_bytes().get(2).map_or(9, |d| d.wrapping_sub(b'0'))
    }

    /// The family in words.
    #[must_use]
    pub fn family_name(&self) -> &'static str {
        match self.family() {
            0 => "shape of the file",
            1 => "routing and references",
            2 => "time-outs and attempts",
            3 => "health and breaker",
            4 => "capacity and cost",
            5 => "data and secrets",
            6 => "drills",
            7 => "golden sets",
            8 => "release",
            _ => "other",
        }
    }
}
