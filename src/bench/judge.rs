//! `[P]` What the figures are held to, and what may be said of them.

use serde::Serialize;

/// Medians of fewer rounds are no verdict.
pub const ROUNDS_LEAST: usize = 7;
/// A soak shorter than this says nothing about growth, minutes.
pub const SOAK_LEAST_MINUTES: f64 = 2.0;
/// Memory may differ by so much between the middle and the end of a soak, and by so many MB besides: pools and tables breathe.
const FLAT_SHARE: f64 = 1.10;
const FLAT_MB: f64 = 2.0;

/// One line that a figure is held to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Name of the figure, as in `vs_envoy` or `absolute`.
    pub name: &'static str,
    /// What it must not cross.
    pub limit: f64,
    /// It must be at least that, not at most.
    pub at_least: bool,
    /// Missing it fails the run; else it is only told.
    pub gates: bool,
    /// What was measured.
    pub got: Option<f64>,
    /// `None`: not measured.
    pub kept: Option<bool>,
}

/// (name, limit, at least, gates)
const BARS: &[(&str, f64, bool, bool)] = &[
    ("cpu_per_1k", 1.0, false, true),
    ("cpu_stream", 1.0, false, true),
    ("rps_c32", 1.0, true, false),
    ("added_p50_c1", 1.2, false, false),
    ("ttft_stream", 1.2, false, false),
    ("cpu_history", 1.5, false, false),
    ("start_to_first_answer_s", 0.1, false, false),
    ("resident_start_mb", 25.0, false, false),
    ("resident_2000_streams_mb", 150.0, false, false),
];

/// Every bar, with what was measured by that name.
#[must_use]
pub fn bars(got: impl Fn(&str) -> Option<f64>) -> Vec<Bar> {
    let bar = |(name, limit, at_least, gates): &(&'static str, f64, bool, bool)| {
        let got = got(name);
        let kept = got.map(|got| if *at_least { got >= *limit } else { got <= *limit });
        Bar { name, limit: *limit, at_least: *at_least, gates: *gates, got, kept }
    };
    BARS.iter().map(bar).collect()
}

/// What a run may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Every gating bar is kept.
    Pass,
    /// One is not, or a soak did harm.
    Fail,
    /// Too little, or the wrong thing, was measured.
    Inconclusive,
    /// Figures were asked for, without anything to hold them to.
    Figures,
}

/// What a soak has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoakFacts {
    /// It ran so long.
    pub minutes: f64,
    /// Median resident MB of its middle third.
    pub middle_mb: Option<f64>,
    /// ... and of its last.
    pub end_mb: Option<f64>,
    /// In flight when all clients had their answers.
    pub in_flight: Option<f64>,
    /// Answers that were not what the fault, or no fault, allows.
    pub wrong: u64,
}

/// What the verdict rests on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Rounds of the comparison.
    pub rounds: usize,
    /// Envoy took part.
    pub envoy: bool,
    /// This binary is built without optimisation.
    pub debug: bool,
    /// Answers of the gateway or of Envoy that were not good, outside the soak.
    pub bad_answers: u64,
    /// The soak, if there was one.
    pub soak: Option<SoakFacts>,
}

/// The verdict and its reasons, the gravest first. Harm in a soak is harm however little else was measured.
#[must_use]
pub fn verdict(bars: &[Bar], facts: &Facts) -> (Verdict, Vec<String>) {
    let (harm, doubt) = facts.soak.as_ref().map_or_else(Default::default, soak);
    if !harm.is_empty() {
        return (Verdict::Fail, harm);
    }
    let mut doubts = doubt;
    if facts.bad_answers > 0 {
        doubts.push(format!("{} answers were not good: what was measured is not the same work", facts.bad_answers));
    }
    if facts.envoy {
        if facts.debug {
            doubts.push("this binary is built without optimisation: build it with `--profile dist`".to_owned());
        }
        if facts.rounds < ROUNDS_LEAST {
            doubts.push(format!("{} rounds: a verdict needs at least {ROUNDS_LEAST}", facts.rounds));
        }
        let missing = bars.iter().filter(|b| b.gates && b.kept.is_none()).map(|b| b.name);
        doubts.extend(missing.map(|name| format!("{name} was not measured")));
    }
    if !doubts.is_empty() {
        return (Verdict::Inconclusive, doubts);
    }
    if !facts.envoy {
        let why = "without Envoy there is nothing to hold the ratios to".to_owned();
        return (Verdict::Figures, vec![why]);
    }
    let missed: Vec<String> = bars.iter().filter(|b| b.gates && b.kept == Some(false)).map(told).collect();
    if missed.is_empty() { (Verdict::Pass, Vec::new()) } else { (Verdict::Fail, missed) }
}

fn told(bar: &Bar) -> String {
    let most = if bar.at_least { "at least" } else { "at most" };
    format!("{} is {:.2}, and {most} {} is wanted", bar.name, bar.got.unwrap_or(f64::NAN), bar.limit)
}

/// (harm, doubt)
fn soak(soak: &SoakFacts) -> (Vec<String>, Vec<String>) {
    let (mut harm, mut doubt) = (Vec::new(), Vec::new());
    if soak.wrong > 0 {
        harm.push(format!("soak: {} answers were not what their fault allows", soak.wrong));
    }
    match soak.in_flight {
        Some(left) if left > 0.0 => harm.push(format!("soak: {left} still in flight when nobody asks any more")),
        Some(_) => {}
        None => doubt.push("soak: what is in flight at its end was not told".to_owned()),
    }
    match (soak.middle_mb, soak.end_mb) {
        _ if soak.minutes < SOAK_LEAST_MINUTES => {
            doubt.push(format!("soak: shorter than {SOAK_LEAST_MINUTES} minutes, growth is not judged"));
        }
        (Some(middle), Some(end)) if end > middle * FLAT_SHARE + FLAT_MB => {
            harm.push(format!(
                "soak: resident memory grew from {middle:.1} MB in its middle to {end:.1} MB at its end"
            ));
        }
        (Some(_), Some(_)) => {}
        _ => doubt.push("soak: resident memory was not told".to_owned()),
    }
    (harm, doubt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cpu: f64) -> Vec<Bar> {
        bars(|name| match name {
            "cpu_per_1k" => Some(cpu),
            "cpu_stream" => Some(0.9),
            // Does not gate.
            "rps_c32" => Some(0.5),
            _ => None,
        })
    }

    fn whole() -> Facts {
        Facts { rounds: 7, envoy: true, ..Facts::default() }
    }

    #[test]
    fn only_gating_bars_fail_and_the_limit_itself_is_kept() {
        assert_eq!(verdict(&measured(1.0), &whole()), (Verdict::Pass, vec![]));
        let (verdict, why) = verdict(&measured(1.01), &whole());
        assert_eq!(
            (verdict, why.as_slice()),
            (Verdict::Fail, &["cpu_per_1k is 1.01, and at most 1 is wanted".into()][..])
        );
        let kept = |name: &str| measured(1.0).iter().find(|b| b.name == name).unwrap().kept;
        assert_eq!((kept("rps_c32"), kept("cpu_per_1k"), kept("cpu_history")), (Some(false), Some(true), None));
    }

    #[test]
    fn too_little_is_never_a_pass_nor_a_failure() {
        let few = Facts { rounds: 6, ..whole() };
        let debug = Facts { debug: true, ..whole() };
        let bad = Facts { bad_answers: 1, ..whole() };
        for facts in [few, debug, bad] {
            assert_eq!(verdict(&measured(5.0), &facts).0, Verdict::Inconclusive, "{facts:?}");
        }
        assert_eq!(verdict(&bars(|_| None), &whole()).0, Verdict::Inconclusive);
        assert_eq!(verdict(&measured(1.0), &Facts { envoy: false, rounds: 1, ..whole() }).0, Verdict::Figures);
    }

    #[test]
    fn a_soak_that_grows_leaks_or_lies_fails_whatever_else_is_missing() {
        let good =
            SoakFacts { minutes: 10.0, middle_mb: Some(40.0), end_mb: Some(46.0), in_flight: Some(0.0), wrong: 0 };
        let with = |soak| Facts { soak: Some(soak), envoy: false, ..Facts::default() };
        assert_eq!(verdict(&[], &with(good)).0, Verdict::Figures, "40 x 1.1 + 2 = 46");
        let grown = SoakFacts { end_mb: Some(46.1), ..good };
        let left = SoakFacts { in_flight: Some(1.0), ..good };
        let lied = SoakFacts { wrong: 1, ..good };
        for soak in [grown, left, lied] {
            assert_eq!(verdict(&[], &with(soak)).0, Verdict::Fail, "{soak:?}");
        }
        let short = SoakFacts { minutes: 1.0, ..grown };
        assert_eq!(verdict(&[], &with(short)).0, Verdict::Inconclusive);
        assert_eq!(verdict(&[], &with(SoakFacts { in_flight: None, ..good })).0, Verdict::Inconclusive);
    }
}
