//! `llmfo explain`

use serde::Serialize;

use super::Global;
use super::validate::Format;
use crate::diag::{Example, Rule};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::lint::{catalog, pages};
use crate::term::table::{DEFAULT_WIDTH, wrap};

const EXAMPLES: &str = "\
Examples:
  llmfo explain LF201
  llmfo explain unreachable-tier
  llmfo explain --list
  llmfo explain --list --format json";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A code or a name, as `llmfo validate` prints them.
    #[arg(value_name = "CODE", conflicts_with = "list")]
    pub code: Option<String>,
    /// Every rule, a line each.
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
            "`llmfo explain LF201`; `llmfo explain --list` names every rule",
        ));
    }
    let Some(code) = args.code else {
        let rules = catalog::all();
        global.term.out(&match args.format {
            Format::Json => json(&rules.into_iter().map(RuleOut::of).collect::<Vec<_>>()),
            Format::Human => {
                let line = |r: &&Rule| format!("{}  {:<8} {:<30} {}", r.code, r.severity.word(), r.name, r.what);
                let lines: Vec<String> = rules.iter().map(line).collect();
                // Without a terminal somebody searches it: a line each, however long.
                match global.term.width {
                    Some(_) => wrap(&lines.join("\n"), global.term.width),
                    None => lines.join("\n"),
                }
            }
        });
        return Ok(Exit::Good);
    };
    let Some(rule) = catalog::find(&code) else {
        let hint = catalog::nearest(&code).map_or_else(
            || "`llmfo explain --list` shows every rule".to_owned(),
            |r| format!("did you mean {} ({})? `llmfo explain --list` shows every rule", r.code, r.name),
        );
        let code = crate::units::printable(&code, 60);
        return Err(Expected::new(Exit::Nothing, format!("there is no rule {code}"), hint));
    };
    global.term.out(&match args.format {
        Format::Json => json(&RuleOut::of(rule)),
        Format::Human => pages::text(rule, usize::from(global.term.width.unwrap_or(DEFAULT_WIDTH))),
    });
    Ok(Exit::Good)
}
