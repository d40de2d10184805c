//! Exit codes, in one place. They are part of the interface: CI and runbooks read them.

/// What the process says when it ends. When several apply, the one that comes first in [`Exit::RANK`] wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Good. Warnings included, unless `--deny warnings`.
    Good,
    /// A negative verdict: findings, a failed drill.
    Verdict,
    /// Usage or configuration.
    Usage,
    /// Could not run: a peer that cannot be reached, a file that cannot be written.
    CouldNotRun,
    /// Nothing matched what was asked for.
    Nothing,
    /// Inconclusive: an invalid or aborted drill, too little data.
    Inconclusive,
    /// Something may still be broken.
    Dirty,
    /// Drift only.
    Drift,
    /// A bug in llmfo.
    Bug,
    /// Ended by SIGINT.
    Interrupted,
    /// Ended by SIGTERM.
    Terminated,
}

impl Exit {
    /// From the gravest to the mildest.
    pub const RANK: [Exit; 11] = [
        Exit::Dirty,
        Exit::Bug,
        Exit::Interrupted,
        Exit::Terminated,
        Exit::Usage,
        Exit::Verdict,
        Exit::CouldNotRun,
        Exit::Inconclusive,
        Exit::Nothing,
        Exit::Drift,
        Exit::Good,
    ];

    /// The number the shell sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Exit::Good => 0,
            Exit::Verdict => 1,
            Exit::Usage => 2,
            Exit::CouldNotRun => 3,
            Exit::Nothing => 4,
            Exit::Inconclusive => 5,
            Exit::Dirty => 6,
            Exit::Drift => 7,
            Exit::Bug => 70,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        }
    }

    /// The graver of two.
    #[must_use]
    pub fn and(self, other: Exit) -> Exit {
        let place = |e: Exit| Exit::RANK.iter().position(|r| *r == e).unwrap_or(usize::MAX);
        if place(self) <= place(other) { self } else { other }
    }
}

/// The table shown in `--help`.
pub const HELP: &str = "\
Exit codes:
  0    good (warnings included, unless --deny warnings)
  1    negative verdict: findings, or a failed drill
  2    usage or configuration
  3    could not run
  4    nothing matched
  5    inconclusive: invalid or aborted drill, too little data
  6    dirty: something may still be broken
  7    drift only
  70   a bug in llmfo
  130  interrupted (143: terminated)
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_wins() {
        assert_eq!(Exit::Verdict.and(Exit::Dirty), Exit::Dirty);
        assert_eq!(Exit::Verdict.and(Exit::Inconclusive), Exit::Verdict);
        assert_eq!(Exit::Good.and(Exit::Drift), Exit::Drift);
        assert_eq!(Exit::Usage.and(Exit::Verdict), Exit::Usage);
    }
}
