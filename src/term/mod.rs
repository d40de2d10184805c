//! Terminal facts and output: gathered once in `main`, passed in everywhere, so that tests own them.

pub mod color;
pub mod progress;
pub mod table;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::exit::Exit;

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

/// Exit code for a result that nobody reads to its end.
static DECIDED: AtomicU8 = AtomicU8::new(0);

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
            width: env("COLUMNS").and_then(|c| c.parse().ok()).or_else(|| out_tty.then(columns).flatten()),
        }
    }

    /// What this process ends with is decided, whether or not somebody reads on: a verdict must not become "good" because the
    /// reader has seen enough. Returns it.
    pub fn decided(&self, exit: Exit) -> Exit {
        DECIDED.store(exit.code(), Ordering::Relaxed);
        exit
    }

    /// Writes the result to stdout. A broken pipe ends the process quietly, with what was [`Term::decided`] (else with "good"):
    /// whoever read has seen enough. Any other failure loses the result, so that the process says so and ends with the code for
    /// "could not run".
    pub fn out(&self, text: &str) {
        match write_all(&mut std::io::stdout().lock(), text) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => leave(DECIDED.load(Ordering::Relaxed)),
            Err(e) => {
                self.err(&format!("llmfo: the result could not be written: {e}\n  next: is the disk full?"));
                leave(Exit::CouldNotRun.code());
            }
        }
    }

    /// Text as it fits on the terminal that stderr is; unchanged where it is none, as what reads it there looks for whole lines.
    #[must_use]
    pub fn wrapped_err(&self, text: &str) -> String {
        let width = self.width.or_else(|| columns_of(std::io::stderr()));
        if self.err_tty { table::wrap(text, width) } else { text.to_owned() }
    }

    /// Writes progress and hints to stderr. Where that fails there is nobody to tell, and the work goes on.
    pub fn err(&self, text: &str) {
        let _ = write_all(&mut std::io::stderr().lock(), text);
    }
}

/// Columns of the terminal that stdout is; none if it does not say.
fn columns() -> Option<u16> {
    columns_of(std::io::stdout())
}

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<u16> {
    rustix::termios::tcgetwinsize(stream).ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
}

#[expect(clippy::exit, reason = "nobody can be told any more: what stdout was for is lost or no longer wanted")]
fn leave(code: u8) -> ! {
    std::process::exit(i32::from(code))
}

fn write_all(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        to.write_all(b"\n")?;
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_on_a_terminal_fits_it_and_elsewhere_keeps_its_lines() {
        let line = format!("breaking {} (outage)", ["region-1.local-a"; 12].join(", "));
        let term = |err_tty| Term { out_tty: err_tty, err_tty, out_color: false, err_color: false, width: Some(80) };
        let said = term(true).wrapped_err(&line);
        assert!(said.lines().count() > 2 && said.lines().all(|l| l.chars().count() <= 80), "{said}");
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(term(false).wrapped_err(&line), line);
    }
}
