//! Terminal facts and output: gathered once in `main`, passed in everywhere, so that tests own them.

pub mod color;
pub mod progress;
pub mod table;

use std::io::{IsTerminal, Write};

pub use color::{ColorChoice, ColorFacts, use_color};

/// What is known about the two output streams.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// stdout is a terminal.
    pub out_tty: bool,
    /// stderr is a terminal.
    pub err_tty: bool,
    /// Colour on stdout.
    pub out_color: bool,
    /// Colour on stderr.
    pub err_color: bool,
    /// Columns of stdout, where known.
    pub width: Option<u16>,
}

impl Term {
    /// Reads the facts of this process.
    #[must_use]
    pub fn detect(choice: ColorChoice) -> Term {
        let env = |name: &str| std::env::var(name).ok();
        let facts = |tty| ColorFacts {
            choice,
            no_color: env("NO_COLOR"),
            clicolor_force: env("CLICOLOR_FORCE"),
            term: env("TERM"),
            tty,
        };
        let out_tty = std::io::stdout().is_terminal();
        let err_tty = std::io::stderr().is_terminal();
        Term {
            out_tty,
            err_tty,
            out_color: use_color(&facts(out_tty)),
            err_color: use_color(&facts(err_tty)),
            width: env("COLUMNS").and_then(|c| c.parse().ok()),
        }
    }

    /// Writes the result to stdout. A broken pipe ends the process quietly: whoever read has seen enough.
    pub fn out(&self, text: &str) {
        write_quietly(&mut std::io::stdout().lock(), text);
    }

    /// Writes progress and hints to stderr.
    pub fn err(&self, text: &str) {
        write_quietly(&mut std::io::stderr().lock(), text);
    }
}

#[expect(clippy::exit, reason = "a closed stdout leaves nobody to tell; 0 is what `head` expects of its writer")]
fn write_quietly(to: &mut impl Write, text: &str) {
    let done =
        to.write_all(text.as_bytes()).and_then(|()| if text.ends_with('\n') { Ok(()) } else { to.write_all(b"\n") });
    if let Err(e) = done.and_then(|()| to.flush())
        && e.kind() == std::io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
