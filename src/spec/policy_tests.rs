//! Tests of a policy: a short history of its targets' health, and questions that it must answer as written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::document::{Limits, SpannedDoc, load};
use super::named::Named;
use super::numbers::Seconds;
use crate::diag::Diagnostic;

/// Version of policy tests. Keys are only added.
pub const POLICY_TESTS_FORMAT: u32 = 1;

/// Longest history, in steps.
pub const MAX_STEPS: u32 = 10_000;

// Keys that must be there are demanded by the schema; the type does without them, so that a file that lacks one is still looked
// at as a whole.

/// A file of policy tests.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "llmfo policy tests")]
pub struct PolicyTestsFile {
    /// Version of this format.
    #[serde(default)]
    #[schemars(!default, range(min = 1, max = 1))]
    pub format: u32,
    /// The policy, by its path beside this file.
    #[serde(default)]
    #[schemars(!default)]
    pub policy: String,
    /// The tests.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 1000))]
    pub tests: Vec<PolicyTest>,
}

/// One history with its questions.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTest {
    /// What it shows.
    #[serde(default)]
    #[schemars(!default)]
    pub name: String,
    /// Route of the traffic and of the questions.
    #[serde(default)]
    #[schemars(!default)]
    pub route: String,
    /// Length of one step of a series.
    #[serde(default = "a_minute")]
    pub step_s: Seconds,
    /// Requests per second that flow all the time, so that the core sees what happens; informational, without tools.
    #[serde(default = "one")]
    pub requests_per_s: f64,
    /// Intent of that traffic.
    #[serde(default)]
    pub traffic_intent: Option<String>,
    /// By target: `up x20, slow x5, down x10`. What is not named is up; the last word holds on.
    #[serde(default)]
    pub health: Option<Named<String>>,
    /// The questions, in any order.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 1000))]
    pub ask: Vec<Question>,
}

fn a_minute() -> Seconds {
    Seconds(60.0)
}

fn one() -> f64 {
    1.0
}

/// One request at one moment, and what must become of it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// When: `12m`, `90s`, `1h30m`, `250ms`.
    #[serde(default)]
    #[schemars(!default, example = "12m")]
    pub at: String,
    /// Its intent.
    #[serde(default)]
    pub intent: Option<String>,
    /// Its task.
    #[serde(default)]
    pub task: Option<String>,
    /// It carries personal data; absent: as the route says.
    #[serde(default)]
    pub personal: Option<bool>,
    /// Tools that it offers.
    #[serde(default)]
    pub tools: Vec<String>,
    /// It demands a strict JSON schema.
    #[serde(default)]
    pub strict_schema: bool,
    /// It has images.
    #[serde(default)]
    pub vision: bool,
    /// Tokens of its messages.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Not streamed.
    #[serde(default)]
    pub whole: bool,
    /// The policy has expired by then.
    #[serde(default)]
    pub expired: bool,
    /// Who answers, by name; or `handoff`, `refused`, `unavailable`, `too_long`.
    #[serde(default)]
    #[schemars(!default)]
    pub expect: String,
    /// A named reason that the decision record must hold: why a target was skipped (`open`), how an attempt failed
    /// (`first_token_timeout`), what led to the handoff (`intent`). As `TARGET: REASON` or alone.
    #[serde(default)]
    pub because: Option<String>,
}

/// How a target is in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// It answers.
    Up,
    /// It answers late: at 90 % of its tier's first-token limit.
    Slow,
    /// Connections are refused.
    Down,
    /// It takes connections and says nothing.
    Silent,
    /// It answers 429.
    Limited,
    /// It answers 503.
    Error,
    /// It breaks its answers off.
    Cut,
    /// It refuses the credential.
    Unauthorized,
}

/// All words with their spelling.
pub const WORDS: [(&str, Word); 8] = [
    ("up", Word::Up),
    ("slow", Word::Slow),
    ("down", Word::Down),
    ("silent", Word::Silent),
    ("limited", Word::Limited),
    ("error", Word::Error),
    ("cut", Word::Cut),
    ("unauthorized", Word::Unauthorized),
];

/// Reads `up x20, slow x5, down`: one word per step.
///
/// # Errors
/// A sentence that says which part cannot be read.
pub fn series(text: &str) -> Result<Vec<Word>, String> {
    let mut steps = Vec::new();
    for part in text.split(',').map(str::trim) {
        let mut words = part.split_whitespace();
        let name = words.next().unwrap_or_default();
        let Some((_, word)) = WORDS.iter().find(|(n, _)| *n == name) else {
            let known: Vec<&str> = WORDS.iter().map(|(n, _)| *n).collect();
            let near = crate::spec::names::nearest(name, known.iter().copied());
            let near = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
            return Err(format!("`{}` is none of {}{near}", crate::units::printable(name, 40), known.join(", ")));
        };
        let times = match (words.next(), words.next()) {
            (None, _) => 1,
            (Some(times), None) => times
                .strip_prefix('x')
                .and_then(|n| n.parse::<u32>().ok())
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("`{}` is no count such as x20", crate::units::printable(times, 40)))?,
            (_, Some(more)) => {
                return Err(format!("a comma is missing before `{}`", crate::units::printable(more, 40)));
            }
        };
        if steps.len() + times as usize > MAX_STEPS as usize {
            return Err(format!("more than {MAX_STEPS} steps"));
        }
        steps.extend(std::iter::repeat_n(*word, times as usize));
    }
    Ok(steps)
}

/// Reads `1h30m`, `12m`, `90s`, `250ms`: milliseconds.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn moment_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is no time such as 12m, 90s or 1h30m", crate::units::printable(text, 40));
    let mut rest = text.trim();
    let mut total = 0u64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest.get(..digits).and_then(|d| d.parse().ok()).ok_or_else(wrong)?;
        let after = rest.get(digits..).unwrap_or_default();
        let (unit, ms) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
            .into_iter()
            .find(|(unit, _)| after.starts_with(unit))
            .ok_or_else(wrong)?;
        total = number.checked_mul(ms).and_then(|n| total.checked_add(n)).ok_or_else(wrong)?;
        rest = after.get(unit.len()..).unwrap_or_default();
    }
    Ok(total)
}

/// Reads a file of policy tests. What is wrong in it is left out of it, or empty, and may be looked at but not run.
#[must_use]
pub fn read(name: &str, bytes: &[u8]) -> (Option<PolicyTestsFile>, Vec<Diagnostic>, SpannedDoc) {
    load::<PolicyTestsFile>(name, bytes, &Limits::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_words_with_counts() {
        use Word::{Down, Slow, Up};
        assert_eq!(series("up x2, slow, down x1"), Ok(vec![Up, Up, Slow, Down]));
        for bad in ["", "up x0", "up 3", "upp", "up x2 down", "up x99999999"] {
            assert!(series(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_word_that_is_nearly_one_is_named() {
        assert!(series("up, dwon x3").unwrap_err().ends_with("did you mean `down`?"));
        assert!(!series("up, qqqqqq").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn moments_have_units() {
        assert_eq!(moment_ms("12m"), Ok(720_000));
        assert_eq!(moment_ms("1h30m"), Ok(5_400_000));
        assert_eq!(moment_ms("250ms"), Ok(250));
        for bad in ["", "12", "m", "12 m", "5d", "-1s", "99999999999999999999h"] {
            assert!(moment_ms(bad).is_err(), "{bad}");
        }
    }
}
