//! `[P]` The words of a judgement: verdict, findings, promises.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The verdict of a drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Everything that was declared was kept, and enough was seen to say so.
    Pass,
    /// Something that was declared was not kept, or harm was observed.
    Fail,
    /// The run says nothing: no steady state, the fault did not bite, the load came late, too little was seen.
    Invalid,
    /// It ended before its time.
    Aborted,
}

impl Verdict {
    /// As it is printed.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "PASS",
            Verdict::Fail => "FAIL",
            Verdict::Invalid => "INVALID",
            Verdict::Aborted => "ABORTED",
        }
    }
}

/// How the clean-up went: a field of its own, whatever the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cleanup {
    /// Everything is as it was found, read back.
    #[default]
    Clean,
    /// As found, but it took longer than its limit.
    RestoredLate,
    /// A path had to be deleted and made again from the snapshot.
    Recreated,
    /// Something may still be broken.
    Dirty,
}

impl Cleanup {
    /// As it is written in the summary.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Cleanup::Clean => "clean",
            Cleanup::RestoredLate => "restored_late",
            Cleanup::Recreated => "recreated",
            Cleanup::Dirty => "dirty",
        }
    }
}

/// What a finding does to the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Harm to a customer was observed: FAIL, even where the run is otherwise INVALID.
    Harm,
    /// The run says nothing: INVALID.
    Invalid,
    /// Something declared was not kept: FAIL.
    Failure,
    /// Worth knowing; changes nothing.
    Note,
}

impl Weight {
    /// As it is printed beside this verdict: what was seen in a run that says nothing is held against nobody.
    #[must_use]
    pub fn word(self, verdict: Verdict) -> &'static str {
        match (self, verdict) {
            (Weight::Harm, _) => "harm",
            (Weight::Invalid, _) => "makes the run invalid",
            (Weight::Failure, Verdict::Invalid | Verdict::Aborted) => "seen, not judged",
            (Weight::Failure, _) => "failure",
            (Weight::Note, _) => "note",
        }
    }
}

/// Every finding code, what it weighs and what it means. Codes are fixed; they are only added.
pub const CODES: &[(&str, Weight, &str)] = &[
    (
        "no_failover",
        Weight::Failure,
        "a request that started after the cut failed before any useful byte, though the stand-in was well",
    ),
    ("truncated_as_success", Weight::Harm, "an answer that was cut off reached the client looking like a whole one"),
    ("spliced_answer", Weight::Harm, "one answer holds text of two attempts"),
    ("duplicate_effect", Weight::Harm, "the same business action is in the system of record twice"),
    ("deadline_missed", Weight::Failure, "no useful text and no tool call within the deadline"),
    ("fault_bypassed", Weight::Invalid, "the broken provider was reached around the broken path"),
    ("forged_end", Weight::Harm, "a broken answer carries an end that no provider sent"),
    ("invented_text", Weight::Failure, "the client received text that no provider wrote"),
    ("altered_call", Weight::Failure, "a tool call reached the client with arguments that no provider wrote"),
    ("uncontrolled_break", Weight::Failure, "a stream broken after its first text did not end with one error event"),
    (
        "lost_in_flight",
        Weight::Failure,
        "a request that was under way at the cut, nothing of it delivered, was not answered by the stand-in",
    ),
    ("failed_after_restore", Weight::Failure, "a request failed although the path had been restored"),
    ("recovery_exceeded", Weight::Failure, "useful answers were not back within the declared time"),
    ("failback_missed", Weight::Failure, "the primary did not answer again within the declared time after the restore"),
    (
        "slow_failover",
        Weight::Failure,
        "too many requests took longer than their limits and the stand-in's own time explain",
    ),
    ("useful_text_slow", Weight::Failure, "the time to useful text is above what was declared"),
    ("schema_broken", Weight::Failure, "an answer broke its JSON schema"),
    (
        "handoff_missed",
        Weight::Failure,
        "a customer who must reach a human did not, or one was handed off who must not be",
    ),
    ("context_broken", Weight::Failure, "an answer forgot what the conversation had said"),
    ("finish_broken", Weight::Failure, "an answer ended with the wrong finish"),
    ("context_lost", Weight::Failure, "turns or tool results that the client knew did not reach the next provider"),
    ("handoff_rate", Weight::Failure, "more turns were handed off without being asked for than declared"),
    ("queue_exceeded", Weight::Failure, "more requests waited at once than declared"),
    ("attempts_exceeded", Weight::Failure, "a request was sent to providers more often than the route allows"),
    ("not_independent", Weight::Failure, "the stand-in's path used the broken region"),
    (
        "excess_dials",
        Weight::Failure,
        "the broken region was dialled more often than the breaker, what was under way and the probes explain",
    ),
    ("steady_state_not_met", Weight::Invalid, "the path was not well before anything was broken"),
    ("fault_not_seen", Weight::Invalid, "the fault was set but nobody felt it"),
    ("stand_in_down", Weight::Invalid, "the stand-in itself was not well: its answers say nothing about failing over"),
    ("generator_late", Weight::Invalid, "the load came late, so the times say nothing"),
    ("sample_too_small", Weight::Invalid, "too little was seen for a verdict"),
    ("promise_not_judged", Weight::Invalid, "what this drill is for could not be judged, so the rest is no pass"),
    (
        "lab_lost",
        Weight::Invalid,
        "the lab ended or did not answer, so nothing in this run can be held against the gateway",
    ),
    (
        "fault_lifted",
        Weight::Invalid,
        "a fault did not stay as it was set, so nothing can be said about how it was survived",
    ),
    (
        "fault_server_lost",
        Weight::Invalid,
        "the fault server did not answer, so nothing in this run can be held against the gateway",
    ),
    (
        "lease_lost",
        Weight::Invalid,
        "the drill was not heard for too long and its faults were lifted, so nothing can be said about how they were survived",
    ),
    (
        "guard_lost",
        Weight::Invalid,
        "the guard process ended in the middle of the drill, which ended it and restored: unguarded faults are not kept up",
    ),
    ("evidence_lost", Weight::Invalid, "a bounded log had to drop rows that the judgement needs"),
];

/// The weight and the meaning of a code.
#[must_use]
pub fn code(name: &str) -> Option<(Weight, &'static str)> {
    CODES.iter().find(|(c, ..)| *c == name).map(|(_, w, text)| (*w, *text))
}

/// Examples shown with a finding.
const EXAMPLES: usize = 3;

/// One thing that was found, over all its cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Code.
    pub code: String,
    /// Weight.
    pub weight: Weight,
    /// What it means.
    pub text: String,
    /// Cases.
    pub n: usize,
    /// The first few of them, in words.
    pub examples: Vec<String>,
}

/// Findings by code, in the order in which they were first made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a case. A code that is not in [`CODES`] is a note under its own name, so that nothing is lost.
    pub fn add(&mut self, name: &str, example: String) {
        let (weight, text) = code(name).unwrap_or((Weight::Note, ""));
        let place = self.0.iter().position(|f| f.code == name).unwrap_or_else(|| {
            let n = 0;
            self.0.push(Finding { code: name.into(), weight, text: text.into(), n, examples: Vec::new() });
            self.0.len() - 1
        });
        let finding = &mut self.0[place];
        finding.n += 1;
        if finding.examples.len() < EXAMPLES {
            finding.examples.push(example);
        }
    }

    /// Adds what others found.
    pub fn add_all(&mut self, others: Vec<Finding>) {
        self.0.extend(others);
    }

    /// Adds cases of which only the first few are known in words.
    pub fn add_cases(&mut self, name: &str, examples: &[String], n: usize) {
        for example in examples {
            self.add(name, example.clone());
        }
        if let Some(finding) = self.0.iter_mut().find(|f| f.code == name) {
            finding.n += n.saturating_sub(examples.len());
        }
    }

    /// True if this code was found.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|f| f.code == name)
    }

    /// True if anything of this weight was found.
    #[must_use]
    pub fn any(&self, weight: Weight) -> bool {
        self.0.iter().any(|f| f.weight == weight)
    }

    /// All of them, gravest first.
    #[must_use]
    pub fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|f| f.weight);
        self.0
    }

    /// The verdict that these findings lead to.
    #[must_use]
    pub fn verdict(&self, aborted: bool) -> Verdict {
        let any = |w: Weight| self.any(w);
        if any(Weight::Harm) {
            Verdict::Fail
        } else if aborted {
            Verdict::Aborted
        } else if any(Weight::Invalid) {
            Verdict::Invalid
        } else if any(Weight::Failure) {
            Verdict::Fail
        } else {
            Verdict::Pass
        }
    }
}

/// Whether one promise, or one row of it, was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// It was.
    Pass,
    /// It was not.
    Fail,
    /// This drill could not say, or does not ask.
    NotJudged,
}

impl Kept {
    /// From a comparison.
    #[must_use]
    pub fn when(ok: bool) -> Kept {
        if ok { Kept::Pass } else { Kept::Fail }
    }

    /// The worse of two; not judged gives way.
    #[must_use]
    pub fn and(self, other: Kept) -> Kept {
        match (self, other) {
            (Kept::Fail, _) | (_, Kept::Fail) => Kept::Fail,
            (Kept::Pass, _) | (_, Kept::Pass) => Kept::Pass,
            _ => Kept::NotJudged,
        }
    }

    /// As it is printed.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kept::Pass => "pass",
            Kept::Fail => "FAIL",
            Kept::NotJudged => "not judged",
        }
    }
}

/// One row under a promise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What is measured, a stable name: `rto_ms`, `schema`, `queue_max` ...
    pub name: String,
    /// In words, for people.
    pub what: String,
    /// Declared, as text with its unit.
    pub declared: String,
    /// Measured, as text with its unit.
    pub measured: String,
    /// Cases behind it.
    pub n: usize,
    /// Kept or not.
    pub verdict: Kept,
    /// Why it could not be judged; empty where the other columns say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// One of the four promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// `recovery`, `compatibility`, `capacity`, `independence`.
    pub name: String,
    /// What the headline figure is: `rto_ms`, `violation_rate`, `queue_max`, `bytes_from_broken_region`.
    #[serde(default)]
    pub figure: String,
    /// The headline figure that was declared (null: nothing was).
    pub declared: Value,
    /// The headline figure that was measured (null: it could not be).
    pub measured: Value,
    /// Its unit: `ms`, `share` (0 to 1), `requests`, `bytes`.
    pub unit: String,
    /// Cases behind the headline figure.
    pub n: usize,
    /// Over all rows.
    pub verdict: Kept,
    /// The rows.
    pub rows: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harm_fails_even_an_invalid_or_aborted_run() {
        let mut f = Findings::default();
        assert_eq!(f.verdict(false), Verdict::Pass);
        f.add("recovery_exceeded", String::new());
        assert_eq!(f.verdict(false), Verdict::Fail);
        f.add("fault_not_seen", String::new());
        assert_eq!(f.verdict(false), Verdict::Invalid);
        assert_eq!(f.verdict(true), Verdict::Aborted);
        f.add("duplicate_effect", String::new());
        assert_eq!(f.verdict(false), Verdict::Fail);
        assert_eq!(f.verdict(true), Verdict::Fail);
    }

    #[test]
    fn codes_are_unique_and_the_first_six_are_fixed() {
        let first: Vec<_> = CODES.iter().take(6).map(|(c, ..)| *c).collect();
        assert_eq!(
            first,
            [
                "no_failover",
                "truncated_as_success",
                "spliced_answer",
                "duplicate_effect",
                "deadline_missed",
                "fault_bypassed"
            ]
        );
        let mut all: Vec<_> = CODES.iter().map(|(c, ..)| *c).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), CODES.len());
    }

    #[test]
    fn cases_are_counted_and_examples_bounded() {
        let mut f = Findings::default();
        for i in 0..5 {
            f.add("no_failover", format!("case {i}"));
        }
        f.add("generator_late", String::new());
        let all = f.sorted();
        assert_eq!(all[0].code, "generator_late");
        assert_eq!((all[1].n, all[1].examples.len()), (5, 3));
    }
}
