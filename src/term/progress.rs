//! Live progress on stderr: one line that renews itself on a terminal, a plain line every few seconds otherwise.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Term;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(3);
/// Between two redraws of the line on a terminal.
const TICK: Duration = Duration::from_millis(120);

/// Where progress goes.
pub struct Progress {
    term: Term,
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Option<Instant>,
}

impl Progress {
    /// Progress for this terminal; silent with `quiet`.
    #[must_use]
    pub fn new(term: Term, quiet: bool) -> Progress {
        let bar = (term.err_tty && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        Progress { term, bar, quiet, last: None }
    }

    /// The present state, in one line. On a terminal it replaces the one before; elsewhere it is printed every few seconds.
    pub fn state(&mut self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(line.to_string());
        } else if !self.quiet && self.last.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            self.last = Some(Instant::now());
            self.term.err(line);
        }
    }

    /// Something that must stay readable: printed above the line, and always, even when quiet if `important`.
    pub fn say(&mut self, line: &str, important: bool) {
        if self.quiet && !important {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| self.term.err(&self.term.wrapped_err(line))),
            None => self.term.err(line),
        }
    }

    /// Takes the line away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
