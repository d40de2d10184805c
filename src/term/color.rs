//! `[P]` Whether to use colour: `--color` > `NO_COLOR` (non-empty) > `CLICOLOR_FORCE` > `TERM=dumb` > is a terminal.

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// Decide from the environment.
    #[default]
    Auto,
    /// Colour.
    Always,
    /// No colour.
    Never,
}

/// What the decision rests on.
#[derive(Clone, Debug, Default)]
pub struct ColorFacts {
    /// The flag.
    pub choice: ColorChoice,
    /// `NO_COLOR`.
    pub no_color: Option<String>,
    /// `CLICOLOR_FORCE`.
    pub clicolor_force: Option<String>,
    /// `TERM`.
    pub term: Option<String>,
    /// The stream is a terminal.
    pub tty: bool,
}

/// The decision.
#[must_use]
pub fn use_color(facts: &ColorFacts) -> bool {
    match facts.choice {
        ColorChoice::Always => return true,
        ColorChoice::Never => return false,
        ColorChoice::Auto => {}
    }
    if facts.no_color.as_deref().is_some_and(|v| !v.is_empty()) {
        return false;
    }
    if facts.clicolor_force.as_deref().is_some_and(|v| !v.is_empty() && v != "0") {
        return true;
    }
    if facts.term.as_deref() == Some("dumb") {
        return false;
    }
    facts.tty
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_table() {
        let f = |choice, no: Option<&str>, force: Option<&str>, term: Option<&str>, tty| {
            use_color(&ColorFacts {
                choice,
                no_color: no.map(Into::into),
                clicolor_force: force.map(Into::into),
                term: term.map(Into::into),
                tty,
            })
        };
        assert!(f(ColorChoice::Always, Some("1"), None, Some("dumb"), false));
        assert!(!f(ColorChoice::Never, None, Some("1"), None, true));
        assert!(!f(ColorChoice::Auto, Some("1"), Some("1"), None, true));
        assert!(f(ColorChoice::Auto, Some(""), None, Some("xterm"), true));
        assert!(f(ColorChoice::Auto, None, Some("1"), Some("dumb"), false));
        assert!(!f(ColorChoice::Auto, None, Some("0"), Some("xterm"), false));
        assert!(!f(ColorChoice::Auto, None, None, Some("dumb"), true));
        assert!(f(ColorChoice::Auto, None, None, None, true));
    }
}
