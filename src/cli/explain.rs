//! `llmfo explain`

use serde::Serialize;

use super::Global;
use super::validate::Format;
use crate::diag::{Example, Rule};
use crate::drill::codes::{self, Code};
use crate::drill::verdict::Weight;
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::lint::{catalog, pages};
use crate::term::table::{DEFAULT_WIDTH, wrap};

const EXAMPLES: &str = "\
Examples:
  llmfo explain LF201
  llmfo explain unreachable-tier
  llmfo explain no_failover
  llmfo explain --list
  llmfo explain --list --format json";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A code or a name, as `llmfo validate` prints them, or a code that a drill printed.
    #[arg(value_name = "CODE", conflicts_with = "list")]
    pub code: Option<String>,
    /// Every rule and every code of a drill, a line each.
    #[arg(long)]
    pub list: bool,
    /// How to print it.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// A rule, or a code of a drill: the same names where they mean the same. Listed, told and written as JSON from here alone.
#[derive(Serialize)]
struct Entry {
    code: &'static str,
    name: &'static str,
    severity: &'static str,
    family: &'static str,
    what: &'static str,
    why: &'static str,
    fix: &'static str,
    #[serde(flatten)]
    more: More,
}

/// What only one of the two has.
#[derive(Serialize)]
#[serde(untagged)]
enum More {
    Rule { good: Option<&'static str>, bad: Option<&'static str> },
    Drill { cause: &'static str },
}

impl Entry {
    fn of_rule(rule: &'static Rule) -> Entry {
        let (good, bad) = match rule.example {
            Example::Policy { good, bad } | Example::Drill { good, bad } => (Some(good), Some(bad)),
            Example::Words(_) => (None, None),
        };
        Entry {
            code: rule.code,
            name: rule.name,
            severity: rule.severity.word(),
            family: rule.family_name(),
            what: rule.what,
            why: rule.why,
            fix: rule.fix,
            more: More::Rule { good, bad },
        }
    }

    fn of_code(code: &'static Code) -> Entry {
        Entry {
            code: code.name,
            name: code.name,
            severity: severity(code),
            family: "drills",
            what: code.text,
            why: code.customer,
            fix: code.next,
            more: More::Drill { cause: code.cause },
        }
    }

    fn all() -> Vec<Entry> {
        catalog::all().into_iter().map(Entry::of_rule).chain(codes::all().map(Entry::of_code)).collect()
    }

    /// Its line of the list. A code of a drill is its own name: it is not written twice.
    fn line(&self) -> String {
        let name = if self.name == self.code { String::new() } else { format!("{}: ", self.name) };
        format!("{:<21} {:<8} {name}{}", self.code, self.severity, self.what)
    }
}

fn severity(code: &Code) -> &'static str {
    match code.weight {
        Weight::Harm => "harm",
        Weight::Failure => "failure",
        Weight::Invalid => "invalid",
        Weight::Note => "ending",
    }
}

/// What its verdict is, for people.
fn verdict(code: &Code) -> &'static str {
    match code.weight {
        Weight::Harm => "harm: FAIL in any run",
        Weight::Failure => "failure: FAIL in a valid run",
        Weight::Invalid => "makes a drill INVALID",
        Weight::Note => "ends a drill: ABORTED",
    }
}

fn code_text(code: &Code, width: usize) -> String {
    let parts = [
        ("What was found", code.text),
        ("What it means for the customer", code.customer),
        ("What usually causes it", code.cause),
        ("What to look at next", code.next),
    ];
    pages::told(&format!("{} ({})", code.name, verdict(code)), &parts, width)
}

/// The code of a drill with this name, in any case, and with `-` for `_`.
fn drill_code(name: &str) -> Option<&'static Code> {
    let name = name.replace('-', "_");
    codes::all().find(|c| c.name.eq_ignore_ascii_case(&name))
}

/// What was asked for is neither: the nearest of either kind, by its letters. Of a code that is written as one there is no
/// nearest, a number is no slip of the finger: its family is named, if there is one.
fn unknown(asked: &str) -> Expected {
    let list = "`llmfo explain --list` shows every rule and code";
    let hint = if let Some(digits) = catalog::number(asked) {
        let family: Vec<&Rule> = catalog::all().into_iter().filter(|r| u32::from(r.family()) == digits / 100).collect();
        match (family.first(), family.last()) {
            (Some(first), Some(last)) => format!(
                "its family ({}) has {} rules, {} to {}; {list}",
                first.family_name(),
                family.len(),
                first.code,
                last.code
            ),
            _ => list.to_owned(),
        }
    } else {
        let like = crate::spec::names::nearest(&asked.replace('-', "_"), codes::all().map(|c| c.name));
        let like = like.or_else(|| same_beginning(asked));
        let near =
            like.map(str::to_owned).or_else(|| catalog::nearest(asked).map(|r| format!("{} ({})", r.code, r.name)));
        near.map_or_else(|| list.to_owned(), |near| format!("did you mean {near}? {list}"))
    };
    Expected::new(Exit::Nothing, format!("there is no rule or code {}", crate::units::printable(asked, 60)), hint)
}

/// The code that begins with the same word, if there is one alone.
fn same_beginning(asked: &str) -> Option<&'static str> {
    let word = asked.split(['_', '-']).next().filter(|w| w.len() > 3 && w.len() < asked.len())?;
    let mut like = codes::all().map(|c| c.name).filter(|n| n.split('_').next() == Some(word));
    let first = like.next()?;
    like.next().is_none().then_some(first)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Runs it.
///
/// # Errors
/// An unknown code: exit 4.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    if args.code.is_none() && !args.list {
        return Err(Expected::usage(
            "no rule is named",
            "`llmfo explain LF201`; `llmfo explain --list` names every rule and every code of a drill",
        ));
    }
    let Some(code) = args.code else {
        let entries = Entry::all();
        global.term.out(&match args.format {
            Format::Json => json(&entries),
            Format::Human => {
                let lines: Vec<String> = entries.iter().map(Entry::line).collect();
                // Without a terminal somebody searches it: a line each, however long.
                match global.term.width {
                    Some(_) => wrap(&lines.join("\n"), global.term.width),
                    None => lines.join("\n"),
                }
            }
        });
        return Ok(Exit::Good);
    };
    let width = usize::from(global.term.width.unwrap_or(DEFAULT_WIDTH));
    let (entry, text) = if let Some(code) = drill_code(&code) {
        (Entry::of_code(code), code_text(code, width))
    } else {
        let Some(rule) = catalog::find(&code) else { return Err(unknown(&code)) };
        (Entry::of_rule(rule), pages::text(rule, width))
    };
    global.term.out(&match args.format {
        Format::Json => json(&entry),
        Format::Human => text,
    });
    Ok(Exit::Good)
}
