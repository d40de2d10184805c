//! `llmfo completions`

use clap::CommandFactory;
use clap::builder::PossibleValuesParser;

use super::{Cli, Global};
use crate::assets;
use crate::error::Result;
use crate::exit::Exit;
use crate::lint::catalog;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  llmfo completions bash > ~/.local/share/bash-completion/completions/llmfo

Built-in drills and codes of rules are offered by bash and zsh; other shells complete commands and flags.")]
pub struct Args {
    /// For which shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Prints the completion script.
///
/// # Errors
/// None today.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut with_names(), "llmfo", &mut text);
    global.term.out(&String::from_utf8_lossy(&text));
    Ok(Exit::Good)
}

/// The command line as the shell is told of it: drills that are built in and codes of rules are offered. The command itself
/// takes more (the path of a drill, the name of a rule), so that they are no limit there, and the script is renewed with the
/// binary.
fn with_names() -> clap::Command {
    let drills = || PossibleValuesParser::new(assets::in_folder("drills").map(|a| a.name()));
    let of_drills = crate::drill::codes::all().map(|c| c.name);
    let codes = PossibleValuesParser::new(catalog::all().into_iter().map(|r| r.code).chain(of_drills));
    Cli::command()
        .mut_subcommand("drill", |drill| {
            ["run", "show"].into_iter().fold(drill, |drill, name| {
                drill.mut_subcommand(name, |c| c.mut_arg("name", |arg| arg.value_parser(drills())))
            })
        })
        .mut_subcommand("explain", |explain| explain.mut_arg("code", |arg| arg.value_parser(codes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also: what is hung onto other commands' arguments is there (`mut_arg` makes an argument that is not).
    #[test]
    fn drills_and_codes_are_offered_and_no_argument_is_made_up() {
        let command = with_names();
        command.clone().debug_assert();
        let offered = |path: &[&str], arg: &str| {
            let at = path.iter().fold(&command, |c, name| c.find_subcommand(name).unwrap());
            let plain = Cli::command();
            let real = path.iter().fold(&plain, |c, name| c.find_subcommand(name).unwrap());
            assert_eq!(at.get_arguments().count(), real.get_arguments().count());
            let arg = at.get_arguments().find(|a| a.get_id() == arg).unwrap();
            arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect::<Vec<_>>()
        };
        for path in [["drill", "run"], ["drill", "show"]] {
            let mut names = offered(&path, "name");
            names.sort_unstable();
            assert_eq!(names, ["midstream-break", "region-outage", "region-outage-gateway"]);
        }
        let codes = offered(&["explain"], "code");
        assert!(codes.contains(&"LF504".to_owned()) && codes.contains(&"no_failover".to_owned()));
    }
}
