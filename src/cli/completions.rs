//! `llmfo completions`

use clap::CommandFactory;

use super::{Cli, Global};
use crate::error::Result;
use crate::exit::Exit;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  llmfo completions bash > ~/.local/share/bash-completion/completions/llmfo")]
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
    clap_complete::generate(args.shell, &mut Cli::command(), "llmfo", &mut text);
    global.term.out(&String::from_utf8_lossy(&text));
    Ok(Exit::Good)
}
