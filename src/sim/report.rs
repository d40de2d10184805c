//! How a run is told: one summary per seed, medians over seeds, text and JSON from the same values.

mod text;

use serde::Serialize;

pub use self::text::percent;
use super::lessons::Lesson;
use super::narrow::ANSWER_S;
use super::run::Ran;
use super::verify::Violation;
use crate::units;

/// Version of the JSON.
pub const FORMAT: u32 = 1;
/// With fewer requests a share says nothing.
pub const LEAST_REQUESTS: u64 = 1_000;
/// With fewer outages a 95th percentile says nothing.
pub const LEAST_OUTAGES: u64 = 20;

/// The single channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Single {
    /// Its target.
    pub target: String,
    /// Share of time with a whole useful answer, without a router.
    pub availability: Option<f64>,
    /// Share of time it was up, by the world.
    pub up: Option<f64>,
}

/// The policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfPolicy {
    /// Share of time with a whole useful answer in time.
    pub availability: Option<f64>,
    /// Share of time with at least one legal target up, in the same run.
    pub ceiling: Option<f64>,
    /// `ceiling - availability`.
    pub loss: Option<f64>,
    /// Recovery over outages with a live stand-in; `None` with fewer than [`LEAST_OUTAGES`].
    pub recovery_p50_s: Option<f64>,
    /// Likewise.
    pub recovery_p95_s: Option<f64>,
    /// Outages that these are of.
    pub recovery_n: u64,
    /// Outages with a live stand-in that did not recover.
    pub not_recovered: u64,
    /// Outages that left no stand-in.
    pub no_stand_in: u64,
    /// Times that every target in use was down: what customers notice of those.
    #[serde(default)]
    pub nobody_up: u64,
    /// Dials per request.
    pub dials_per_request: Option<f64>,
    /// Dials to targets that were down, per outage.
    pub wasted_dials_per_outage: Option<f64>,
    /// Probes.
    pub probes: u64,
    /// Share of time of each bad end.
    pub handoffs: Option<f64>,
    /// Likewise.
    pub refused: Option<f64>,
    /// Likewise: the stream broke after commit.
    pub broken: Option<f64>,
    /// Most changes of first choice within a minute.
    pub switches_per_minute_max: usize,
    /// Wait of requests that met a failure.
    pub failure_wait_mean_s: Option<f64>,
    /// Likewise.
    pub failure_wait_p95_s: Option<f64>,
    /// Time to useful text.
    pub useful_text_p95_s: Option<f64>,
}

/// One seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Days simulated.
    pub days: f64,
    /// One channel alone.
    pub single: Single,
    /// Every channel alone, in the order of the policy.
    pub channels: Vec<Single>,
    /// All of them under the policy.
    pub policy: OfPolicy,
    /// Requests simulated.
    pub requests: u64,
    /// Real requests they stand for.
    pub real_requests: f64,
    /// Outages of all targets.
    pub outages: u64,
    /// Outages of the single channel.
    pub single_outages: u64,
    /// Hash of everything the core said, and when.
    pub trace_hash: String,
    /// Promises that were not held.
    pub violations: Vec<Broken>,
}

/// A promise that was not held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Broken {
    /// Seconds since the begin of the run.
    pub at_s: f64,
    /// Which.
    pub rule: String,
    /// What was seen.
    pub what: String,
}

impl Broken {
    /// From what a checker found.
    #[must_use]
    pub fn of(violation: &Violation) -> Broken {
        Broken {
            at_s: units::ms(violation.at.since(units::Ts::ZERO)) / 1e3,
            rule: violation.rule.to_owned(),
            what: violation.what.clone(),
        }
    }
}

impl Summary {
    /// What one run comes to.
    #[must_use]
    pub fn of(seed: u64, ran: &Ran) -> Summary {
        let f = &ran.figures;
        let enough = f.requests >= LEAST_REQUESTS;
        let share = |part: f64| (enough && f.weight_s > 0.0).then(|| part / f.weight_s);
        let availability = f.availability().filter(|_| enough);
        let ceiling = f.ceiling();
        let recovered = f.recovery.times.n() >= LEAST_OUTAGES;
        let recovery = |p: f64| f.recovery.times.percentile(p).filter(|_| recovered).map(|ms| ms / 1e3);
        let channel = |n: usize| Single {
            target: f.targets[n].name.clone(),
            availability: f.targets[n].alone().filter(|_| enough),
            up: (f.span_s > 0.0).then(|| f.targets[n].up_s / f.span_s),
        };
        let outages = f.outages();
        Summary {
            seed,
            days: f.span_s / 86_400.0,
            single: channel(f.single),
            channels: (0..f.targets.len()).map(channel).collect(),
            policy: OfPolicy {
                availability,
                ceiling,
                loss: availability.zip(ceiling).map(|(a, c)| c - a),
                recovery_p50_s: recovery(0.5),
                recovery_p95_s: recovery(0.95),
                recovery_n: f.recovery.times.n(),
                not_recovered: f.recovery.not_recovered,
                no_stand_in: f.recovery.no_stand_in,
                nobody_up: f.recovery.dark,
                dials_per_request: f.dials_per_request(),
                wasted_dials_per_outage: (outages > 0).then(|| f.wasted as f64 / outages as f64),
                probes: f.probes,
                handoffs: share(f.handoff_s),
                refused: share(f.refused_s),
                broken: share(f.broken_s),
                switches_per_minute_max: f.switches_per_minute_max,
                failure_wait_mean_s: f.failure_wait.mean().map(|ms| ms / 1e3),
                failure_wait_p95_s: f.failure_wait.percentile(0.95).map(|ms| ms / 1e3),
                useful_text_p95_s: f.useful_text.percentile(0.95).map(|ms| ms / 1e3),
            },
            requests: f.requests,
            real_requests: f.real_requests(),
            outages,
            single_outages: f.targets[f.single].outages,
            trace_hash: format!("{:016x}", ran.trace_hash),
            violations: ran.violations.iter().map(Broken::of).collect(),
        }
    }
}

/// Everything that is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Scenario or file.
    pub scenario: String,
    /// Version of the policy.
    pub policy_version: String,
    /// Median over seeds.
    pub single: Single,
    /// Median over seeds.
    pub policy: OfPolicy,
    /// The ceiling worked out by hand from what was asked for, where it can be.
    pub ceiling_by_hand: Option<f64>,
    /// Simulated requests per second of wall clock, with checkers if they were on.
    pub requests_per_s: Option<f64>,
    /// The checkers watched.
    pub checks: bool,
    /// Of one seed its hash; of several the hash over theirs.
    pub trace_hash: String,
    /// What was published of a production system like this, for comparison.
    pub published: Option<Published>,
    /// Variants, switched on and off on the same outages.
    pub lessons: Vec<Lesson>,
    /// What the emergency outcome costs.
    pub cost: Option<super::cost::Bill>,
    /// What the routes declare, beside what was measured.
    pub objectives: Vec<Beside>,
    /// One per seed.
    pub runs: Vec<Summary>,
    /// Declared capacities that the load of this run is above.
    pub narrow: Vec<super::narrow::Narrow>,
    /// What a reader must know to read the figures.
    pub notes: Vec<String>,
}

/// An objective of a route beside the figure of this run. It is not judged: the model's first tokens and load are assumptions,
/// and the figure is over all routes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The route.
    pub route: String,
    /// `recovery_ms` or `useful_text_p95_ms`.
    pub objective: &'static str,
    /// What is declared.
    pub declared_ms: f64,
    /// What was measured, 95th percentile; `None` is inconclusive.
    pub measured_ms: Option<f64>,
}

impl Beside {
    /// `support-chat recovery_ms 8000 declared, p95 3093 here: above`
    #[must_use]
    pub fn text(&self) -> String {
        let measured = self.measured_ms.map_or("inconclusive".to_owned(), |ms| {
            format!("p95 {ms:.0} here{}", if ms > self.declared_ms { ": ABOVE" } else { "" })
        });
        format!("{} {} {:.0} declared, {measured}", self.route, self.objective, self.declared_ms)
    }
}

/// Figures that somebody else published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// One channel.
    pub single: f64,
    /// Two channels.
    pub policy: f64,
    /// 95th percentile of recovery, in seconds.
    pub recovery_p95_s: f64,
}

/// What the text on dual-channel isolation reports of its production: 97.0 % with one channel, 99.81 % with two, failover p95
/// 8 s.
pub const PUBLISHED: Published = Published { single: 0.97, policy: 0.9981, recovery_p95_s: 8.0 };

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => values.get(n / 2).copied(),
        _ => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

impl Report {
    /// A report over these seeds.
    #[must_use]
    pub fn of(scenario: &str, policy_version: &str, checks: bool, runs: Vec<Summary>) -> Report {
        let of = |value: &dyn Fn(&Summary) -> Option<f64>| {
            let values: Vec<Option<f64>> = runs.iter().map(value).collect();
            // A seed that says nothing is not left out of a median: the median says nothing then.
            if values.iter().any(Option::is_none) { None } else { median(values.into_iter().flatten().collect()) }
        };
        let policy = OfPolicy {
            availability: of(&|s| s.policy.availability),
            ceiling: of(&|s| s.policy.ceiling),
            loss: of(&|s| s.policy.loss),
            recovery_p50_s: of(&|s| s.policy.recovery_p50_s),
            recovery_p95_s: of(&|s| s.policy.recovery_p95_s),
            recovery_n: runs.iter().map(|s| s.policy.recovery_n).sum(),
            not_recovered: runs.iter().map(|s| s.policy.not_recovered).sum(),
            no_stand_in: runs.iter().map(|s| s.policy.no_stand_in).sum(),
            nobody_up: runs.iter().map(|s| s.policy.nobody_up).sum(),
            dials_per_request: of(&|s| s.policy.dials_per_request),
            wasted_dials_per_outage: of(&|s| s.policy.wasted_dials_per_outage),
            probes: runs.iter().map(|s| s.policy.probes).sum(),
            handoffs: of(&|s| s.policy.handoffs),
            refused: of(&|s| s.policy.refused),
            broken: of(&|s| s.policy.broken),
            switches_per_minute_max: runs.iter().map(|s| s.policy.switches_per_minute_max).max().unwrap_or(0),
            failure_wait_mean_s: of(&|s| s.policy.failure_wait_mean_s),
            failure_wait_p95_s: of(&|s| s.policy.failure_wait_p95_s),
            useful_text_p95_s: of(&|s| s.policy.useful_text_p95_s),
        };
        let single = Single {
            target: runs.first().map(|s| s.single.target.clone()).unwrap_or_default(),
            availability: of(&|s| s.single.availability),
            up: of(&|s| s.single.up),
        };
        let trace_hash = match runs.as_slice() {
            [one] => one.trace_hash.clone(),
            several => several.iter().fold(String::new(), |hash, run| {
                let seed = u64::from_str_radix(hash.get(..16).unwrap_or("0"), 16).unwrap_or(0);
                let own = u64::from_str_radix(&run.trace_hash, 16).unwrap_or(0);
                format!("{:016x}", units::Rng::new(seed.rotate_left(1) ^ own).next_u64())
            }),
        };
        Report {
            format: FORMAT,
            scenario: scenario.to_owned(),
            policy_version: units::printable(policy_version, 100),
            single,
            policy,
            checks,
            trace_hash,
            runs,
            ..Report::default()
        }
    }

    /// Lays what the routes declare beside what was measured.
    pub fn lay_beside(&mut self, policy: &crate::policy::Policy) {
        for route in &policy.routes {
            let o = &route.objectives;
            for (objective, declared, seconds) in [
                ("recovery_ms", o.recovery_ms, self.policy.recovery_p95_s),
                ("useful_text_p95_ms", o.useful_text_p95_ms, self.policy.useful_text_p95_s),
            ] {
                let Some(declared) = declared else { continue };
                self.objectives.push(Beside {
                    route: units::printable(&route.name, 100),
                    objective,
                    declared_ms: declared as f64,
                    measured_ms: seconds.map(|s| s * 1e3),
                });
            }
        }
    }

    /// Why a figure is above what was declared, where the declared slots explain it: in the model everything that a target
    /// answers beyond its `capacity.slots` at one moment takes longer in proportion.
    #[must_use]
    pub fn slots_note(&self, policy: &crate::policy::Policy, per_second: f64) -> Option<String> {
        self.objectives.iter().find(|o| o.measured_ms.is_some_and(|ms| ms > o.declared_ms))?;
        let needed = per_second * ANSWER_S;
        let few = |slots: &u32| f64::from(*slots) < needed;
        let narrow =
            policy.targets.iter().filter_map(|t| t.capacity.slots.filter(few).map(|n| format!("{} {n}", t.name)));
        let narrow: Vec<String> = narrow.map(|t| units::printable(&t, 100)).collect();
        (!narrow.is_empty()).then(|| {
            format!(
                "ABOVE because of `capacity.slots` ({}): {per_second} requests/s of about {ANSWER_S} s each need {:.0} slots at whoever answers alone, and what is beyond its slots answers slower in proportion; declare `peak` on the routes and the slots that there are",
                narrow.join(", "),
                needed.ceil()
            )
        })
    }

    /// Violations of all seeds.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.runs.iter().map(|r| r.violations.len()).sum()
    }

    /// True if the sample is too small for its main figure.
    #[must_use]
    pub fn inconclusive(&self) -> bool {
        self.policy.availability.is_none()
    }

    /// As JSON, with a line end.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five requests a second of 2.6 s each are 13 at one moment: four slots explain a slow answer, thirteen do not.
    #[test]
    fn declared_slots_that_explain_a_figure_are_named() {
        let with = |slots: u32| {
            let text = crate::spec::examples::POLICY.replacen(
                "slots: 56, failure_unit_slots: 8, reserve_slots: 8,",
                &format!("slots: {slots},"),
                1,
            );
            crate::policy::load("p", text.as_bytes()).0.unwrap()
        };
        let beside = |measured_ms| Report {
            objectives: vec![Beside { route: "r".into(), objective: "recovery_ms", declared_ms: 8000.0, measured_ms }],
            ..Report::default()
        };
        let said = beside(Some(60_000.0)).slots_note(&with(4), 5.0).unwrap();
        assert!(said.starts_with("ABOVE because of `capacity.slots` (") && said.contains("need 13 slots"), "{said}");
        assert!(said.contains(" 4)"), "{said}");
        assert_eq!(beside(Some(60_000.0)).slots_note(&with(13), 5.0), None);
        assert_eq!(beside(Some(3_000.0)).slots_note(&with(4), 5.0), None);
        assert_eq!(beside(None).slots_note(&with(4), 5.0), None);
    }
}
