//! `[P]` The words of a judgement: verdict, findings, promises.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::codes;

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
    /// Adds a case. A code that is not in [`codes::CODES`] is a note under its own name, so that nothing is lost.
    pub fn add(&mut self, name: &str, example: String) {
        let (weight, text) = codes::find(name).map_or((Weight::Note, ""), |c| (c.weight, c.text));
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
