//! Live progress on stderr: one line that renews itself on a terminal, a plain line every few seconds otherwise.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Term;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(3);
/// The same of what is over in seconds as a rule: whoever collects its output wants to know only that a long one lives.
const SLOW_EVERY: Duration = Duration::from_secs(10);
/// Between two redraws of the line on a terminal.
const TICK: Duration = Duration::from_millis(120);

/// Where progress goes.
pub struct Progress {
    term: Term,
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Option<Instant>,
    every: Duration,
    noted: bool,
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
        Progress { term, bar, quiet, last: None, every: PLAIN_EVERY, noted: true }
    }

    /// The same for what is over in seconds as a rule: where stderr is no terminal, the first line comes after ten seconds, and
    /// with it, once, how to do without.
    #[must_use]
    pub fn slow(term: Term, quiet: bool) -> Progress {
        let mut progress = Progress::new(term, quiet);
        (progress.last, progress.every, progress.noted) = (Some(Instant::now()), SLOW_EVERY, false);
        progress
    }

    /// A plain line that is due at this moment.
    fn plain(&mut self, line: &str, now: Instant) -> Option<String> {
        if self.quiet || self.last.is_some_and(|at| now.saturating_duration_since(at) < self.every) {
            return None;
        }
        self.last = Some(now);
        let note = if self.noted { "" } else { " (a line every 10 s; --quiet leaves them out)" };
        self.noted = true;
        Some(format!("{line}{note}"))
    }

    /// The present state, in one line. On a terminal it replaces the one before; elsewhere it is printed every few seconds.
    pub fn state(&mut self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(line.to_string());
        } else if let Some(line) = self.plain(line, Instant::now()) {
            self.term.err(&line);
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

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { out_tty: false, err_tty: false, out_color: false, err_color: false, width: None };

    #[test]
    fn a_long_run_without_a_terminal_says_every_ten_seconds_that_it_lives() {
        let mut progress = Progress::slow(TERM, false);
        let begun = progress.last.unwrap();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(progress.plain("1 %", at(9_999)), None);
        let first = progress.plain("2 %", at(10_000));
        assert_eq!(first.as_deref(), Some("2 % (a line every 10 s; --quiet leaves them out)"));
        assert_eq!(progress.plain("3 %", at(19_999)), None);
        assert_eq!(progress.plain("4 %", at(20_000)).as_deref(), Some("4 %"));
        assert_eq!(Progress::slow(TERM, true).plain("2 %", at(60_000)), None);
    }
}
