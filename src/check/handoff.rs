//! Was the customer handed to a human when that was due, and only then? Two invariants with two rates: a missed handoff and a
//! needless one are different harms, and one number would let them cancel out.

use super::Verdict;

/// What is right for this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handoff {
    /// It must hand over.
    Due,
    /// It must not.
    NotDue,
    /// Nobody said.
    Unknown,
}

/// The two verdicts. Exactly one of them is decided, if it is known what is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffVerdicts {
    /// A handoff that was due and did not come.
    pub missed: Verdict,
    /// A handoff that came and was not due.
    pub needless: Verdict,
}

/// Judges one answer. `called` are the names of the tools it calls, `handoff_tools` those whose call hands over (`handoff: true`
/// in the policy).
pub fn handoff<'a>(
    expected: Handoff,
    called: impl IntoIterator<Item = &'a str>,
    handoff_tools: &[&str],
) -> HandoffVerdicts {
    let undecided = |why: &str| HandoffVerdicts {
        missed: Verdict::Inconclusive(why.to_owned()),
        needless: Verdict::Inconclusive(why.to_owned()),
    };
    let came = called.into_iter().find(|name| handoff_tools.contains(name));
    match (expected, came) {
        (Handoff::Unknown, _) => HandoffVerdicts { missed: Verdict::Skipped, needless: Verdict::Skipped },
        // Without such a tool nothing can be missed or needless; a pass here would be a silent green.
        _ if handoff_tools.is_empty() => undecided("no tool is declared that hands over"),
        (Handoff::Due, Some(_)) => HandoffVerdicts { missed: Verdict::Pass, needless: Verdict::Skipped },
        (Handoff::Due, None) => HandoffVerdicts {
            missed: Verdict::Fail(format!("`{}` was not called", handoff_tools.join("` or `"))),
            needless: Verdict::Skipped,
        },
        (Handoff::NotDue, None) => HandoffVerdicts { missed: Verdict::Skipped, needless: Verdict::Pass },
        (Handoff::NotDue, Some(name)) => HandoffVerdicts {
            missed: Verdict::Skipped,
            needless: Verdict::Fail(format!("`{name}` was called without need")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: [&str; 1] = ["transfer_to_human"];

    #[test]
    fn missed_and_needless_are_apart() {
        let judge = |expected, called: &[&str]| handoff(expected, called.iter().copied(), &TOOLS);
        let both = |missed, needless| HandoffVerdicts { missed, needless };
        assert_eq!(judge(Handoff::Due, &["transfer_to_human"]), both(Verdict::Pass, Verdict::Skipped));
        assert_eq!(judge(Handoff::NotDue, &["get_order"]), both(Verdict::Skipped, Verdict::Pass));
        assert_eq!(judge(Handoff::Due, &["get_order"]).missed.why(), Some("`transfer_to_human` was not called"));
        assert!(judge(Handoff::Due, &[]).missed.failed());
        let needless = judge(Handoff::NotDue, &["get_order", "transfer_to_human"]);
        assert!(needless.needless.failed() && !needless.missed.decided());
        assert_eq!(judge(Handoff::Unknown, &[]), both(Verdict::Skipped, Verdict::Skipped));
        assert!(matches!(handoff(Handoff::Due, [], &[]).missed, Verdict::Inconclusive(_)));
    }
}
