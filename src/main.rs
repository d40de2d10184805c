//! Parse, run, map to an exit code.

use std::process::ExitCode;

use clap::Parser;
use llmfo::cli::{self, Cli};
use llmfo::exit::Exit;

/// A request leaves some hundred small pieces behind, and half of them on another thread than the one that made them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => return ExitCode::from(cli::told(&told).code()),
    };
    let code = match std::panic::catch_unwind(|| cli::run(cli)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            let term = llmfo::term::Term::detect(llmfo::term::ColorChoice::Auto);
            term.err(&format!("llmfo: {error}"));
            error.exit
        }
        Err(_) => Exit::Bug,
    };
    ExitCode::from(code.code())
}
