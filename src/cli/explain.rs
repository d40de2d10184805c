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

#[derive(Serialize)]
struct RuleOut {
    code: &'static str,
    name: &'static str,
    severity: &'static str,
    family: &'static str,
    what: &'static str,
    why: &'static str,
    fix: &'static str,
    good: Option<&'static str>,
    bad: Option<&'static str>,
}

impl RuleOut {
    fn of(rule: &'static Rule) -> RuleOut {
        let (good, bad) = match rule.example {
            Example::Policy { good, bad } | Example::Drill { good, bad } => (Some(good), Some(bad)),
            Example::Words(_) => (None, None),
        };
        RuleOut {
            code: rule.code,
            name: rule.name,
            severity: rule.severity.word(),
            family: rule.family_name(),
            what: rule.what,
            why: rule.why,
            fix: rule.fix,
            good,
            bad,
        }
    }
}

/// A code of a drill by the same names as a rule, where they mean the same.
#[derive(Serialize)]
struct CodeOut {
    code: &'static str,
    name: &'static str,
    severity: &'static str,
    family: &'static str,
    what: &'static str,
    why: &'static str,
    cause: &'static str,
    fix: &'static str,
}

impl CodeOut {
    fn of(code: &'static Code) -> CodeOut {
        CodeOut {
            code: code.name,
            name: code.name,
            severity: severity(code),
            family: "drills",
            what: code.text,
            why: code.customer,
            cause: code.cause,
            fix: code.next,
        }
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

fn code_text(code: &Code, width: Option<u16>) -> String {
    let indented = |text: &str| {
        let within = width.unwrap_or(DEFAULT_WIDTH).saturating_sub(2);
        wrap(text, Some(within)).lines().map(|l| format!("  {}\n", l.trim_start())).collect::<String>()
    };
    format!(
        "{} ({})\n\nWhat was found\n{}\nWhat it means for the customer\n{}\nWhat usually causes it\n{}\nWhat to look at next\n{}",
        code.name,
        verdict(code),
        indented(code.text),
        indented(code.customer),
        indented(code.cause),
        indented(code.next)
    )
}

/// The code of a drill with this name, in any case, and with `-` for `_`.
fn drill_code(name: &str) -> Option<&'static Code> {
    let name = name.replace('-', "_");
    codes::all().find(|c| c.name.eq_ignore_ascii_case(&name))
}

/// What was asked for is neither: the nearest of either kind, by its letters.
fn unknown(asked: &str) -> Expected {
    let like = crate::spec::names::nearest(&asked.replace('-', "_"), codes::all().map(|c| c.name));
    let like = like.or_else(|| same_beginning(asked));
    let near = like.map(str::to_owned).or_else(|| catalog::nearest(asked).map(|r| format!("{} ({})", r.code, r.name)));
    let hint = near.map_or_else(
        || "`llmfo explain --list` shows every rule and code".to_owned(),
        |near| format!("did you mean {near}? `llmfo explain --list` shows every rule and code"),
    );
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
        let rules = catalog::all();
        global.term.out(&match args.format {
            Format::Json => {
                let rules = rules.into_iter().map(|r| serde_json::to_value(RuleOut::of(r)));
                let codes = codes::all().map(|c| serde_json::to_value(CodeOut::of(c)));
                json(&rules.chain(codes).filter_map(std::result::Result::ok).collect::<Vec<_>>())
            }
            Format::Human => {
                let line = |r: &&Rule| format!("{}  {:<8} {:<30} {}", r.code, r.severity.word(), r.name, r.what);
                let of = |c: &Code| format!("{:<21} {:<8} {}", c.name, severity(c), c.text);
                let lines: Vec<String> = rules.iter().map(line).chain(codes::all().map(of)).collect();
                // Without a terminal somebody searches it: a line each, however long.
                match global.term.width {
                    Some(_) => wrap(&lines.join("\n"), global.term.width),
                    None => lines.join("\n"),
                }
            }
        });
        return Ok(Exit::Good);
    };
    if let Some(code) = drill_code(&code) {
        global.term.out(&match args.format {
            Format::Json => json(&CodeOut::of(code)),
            Format::Human => code_text(code, global.term.width),
        });
        return Ok(Exit::Good);
    }
    let Some(rule) = catalog::find(&code) else { return Err(unknown(&code)) };
    global.term.out(&match args.format {
        Format::Json => json(&RuleOut::of(rule)),
        Format::Human => pages::text(rule, usize::from(global.term.width.unwrap_or(DEFAULT_WIDTH))),
    });
    Ok(Exit::Good)
}
