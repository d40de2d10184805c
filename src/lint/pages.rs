//! What is said about a rule: for a terminal, and as a page of `docs/rules/`.

use std::fmt::Write as _;

use crate::diag::{Example, Rule};

/// A heading and texts under headings of their own, for a terminal of so many columns.
#[must_use]
pub fn told(heading: &str, parts: &[(&str, &str)], width: usize) -> String {
    let mut out = format!("{heading}\n");
    for (head, text) in parts {
        let _ = write!(out, "\n{head}\n{}\n", wrapped(text, width));
    }
    out
}

/// The explanation for a terminal of so many columns.
#[must_use]
pub fn text(rule: &Rule, width: usize) -> String {
    let heading = format!("{} {} ({}, {})", rule.code, rule.name, rule.severity, rule.family_name());
    let parts = [("What it finds", rule.what), ("Why it matters", rule.why), ("How to mend it", rule.fix)];
    let mut out = told(&heading, &parts, width);
    if let Some((good, bad)) = example(rule) {
        let _ = writeln!(out, "\nGood\n{}", indented(&good));
        let _ = writeln!(out, "\nBad\n{}", indented(&bad));
    }
    out
}

/// The page of a rule.
#[must_use]
pub fn page(rule: &Rule) -> String {
    let mut out = format!("# {} {}\n\n", rule.code, rule.name);
    let _ = writeln!(out, "Severity: {}. Family: {}.\n", rule.severity, rule.family_name());
    let _ = writeln!(out, "{}\n", rule.what);
    let _ = writeln!(out, "**Why it matters.** {}\n", rule.why);
    let _ = writeln!(out, "**How to mend it.** {}", rule.fix);
    match (example(rule), rule.example) {
        (Some((good, bad)), _) => {
            let _ = writeln!(out, "\nGood:\n\n```yaml\n{good}\n```\n\nBad:\n\n```yaml\n{bad}\n```");
        }
        (None, Example::Words(why)) => {
            let _ = writeln!(out, "\nNo example: {why}.");
        }
        (None, _) => {}
    }
    out
}

/// The list of all rules as a page.
#[must_use]
pub fn index(rules: &[&Rule]) -> String {
    let mut out = String::from(
        "# Rules\n\nWhat `llmfo validate` finds. `llmfo explain LFnnn` shows the same pages. They are generated from the rules in the source\n(`llmfo validate --write-docs docs/rules`) and a test compares them. The first digit is the family.\n",
    );
    let mut family = u8::MAX;
    for rule in rules {
        if rule.family() != family {
            family = rule.family();
            let _ = write!(
                out,
                "\n## {family}xx: {}\n\n| code | name | severity | finds |\n|---|---|---|---|\n",
                rule.family_name()
            );
        }
        let _ = writeln!(out, "| [{0}]({0}.md) | {1} | {2} | {3} |", rule.code, rule.name, rule.severity, rule.what);
    }
    out
}

/// The good and the bad piece with their common indentation removed.
fn example(rule: &Rule) -> Option<(String, String)> {
    let (good, bad) = match rule.example {
        Example::Policy { good, bad } | Example::Drill { good, bad } => (good, bad),
        Example::Words(_) => return None,
    };
    let bad = if bad.trim().is_empty() { "# (absent)" } else { bad };
    Some((dedented(good), dedented(bad)))
}

fn dedented(text: &str) -> String {
    let text = text.trim_matches('\n');
    // The first line may have lost its own indentation where the piece was cut out of the file.
    let indent = text.lines().skip(1).filter(|l| !l.trim().is_empty()).map(|l| l.len() - l.trim_start().len()).min();
    let first = text.lines().next().map_or(0, |l| l.len() - l.trim_start().len());
    let indent = if first > 0 { indent.unwrap_or(first).min(first) } else { indent.unwrap_or(0) };
    let cut = |l: &str| l.get(indent.min(l.len() - l.trim_start().len())..).unwrap_or(l).to_owned();
    text.lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn indented(text: &str) -> String {
    text.lines().map(|l| format!("    {l}")).collect::<Vec<_>>().join("\n")
}

/// Widest text: longer lines are hard to read.
const WIDEST: usize = 96;

/// Two blanks in, at most so many columns.
fn wrapped(text: &str, width: usize) -> String {
    let width = width.min(WIDEST);
    let mut lines = vec![String::from(" ")];
    for word in text.split(' ') {
        if lines.last().is_some_and(|l| l.chars().count() + 1 + word.chars().count() > width) {
            lines.push(String::from(" "));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n")
}
