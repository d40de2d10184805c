//! Seeds that draw policies, worlds and outages, weird ones included: what is checked must hold in all of them.
//!
//! A policy is drawn as the text of a file and read like any other, so that a failing one can be looked at, kept, and run by
//! hand.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::arrivals::Load;
use super::outages::{BrownOuts, Channel, Correlated, Flapping, Kind, Look, RateStorms, Source};
use super::report::Broken;
use super::run::Ran;
use super::setup::Setup;
use super::world::{Latency, Provider};
use crate::policy::{self, Policy};
use crate::units::Rng;

/// What a swarm came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Swarm {
    /// Seeds run.
    pub seeds: u64,
    /// Requests simulated.
    pub requests: u64,
    /// Dials simulated.
    pub dials: u64,
    /// Outages met.
    pub outages: u64,
    /// Requests per second of wall clock, with checkers.
    pub requests_per_s: Option<f64>,
    /// Seeds with a promise that was not held.
    pub failed: Vec<Failed>,
}

/// A seed that failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failed {
    /// Which.
    pub seed: u64,
    /// The command that shows it again.
    pub command: String,
    /// What was not held.
    pub violations: Vec<Broken>,
    /// The policy that was drawn.
    pub policy: String,
}

impl Swarm {
    /// Books one seed.
    pub fn add(&mut self, seed: u64, policy: &str, ran: &Ran) {
        self.seeds += 1;
        self.requests += ran.figures.requests;
        self.dials += ran.figures.dials;
        self.outages += ran.figures.outages();
        if !ran.violations.is_empty() {
            self.failed.push(Failed {
                seed,
                command: format!("llmfo simulate --swarm 1 --seed {seed}"),
                violations: ran.violations.iter().map(Broken::of).collect(),
                policy: policy.to_owned(),
            });
        }
    }

    /// In words; the verdict is the last line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for failed in &self.failed {
            for v in &failed.violations {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "seed {}, broken at {:.3} s: {}: {}", failed.seed, v.at_s, v.rule, v.what);
            }
            let _ = writeln!(out, "again: {}", failed.command);
        }
        if let [one] = self.failed.as_slice()
            && self.seeds == 1
        {
            let _ = writeln!(out, "its policy:\n{}", one.policy);
        }
        let _ = writeln!(
            out,
            "{} seeds, {} requests, {} dials, {} outages, {:.0} requests/s with checkers",
            self.seeds,
            self.requests,
            self.dials,
            self.outages,
            self.requests_per_s.unwrap_or(0.0)
        );
        out += &match self.failed.len() {
            0 => "PASS: every checked invariant of the core held\n".to_owned(),
            n => format!("FAIL: {n} seeds broke a promise\n"),
        };
        out
    }
}

struct Draw(Rng);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn chance(&mut self, share: f64) -> bool {
        self.0.unit() < share
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }

    fn seconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_secs(self.between(least, most))
    }
}

/// Draws one: the text of its policy, and the setup; `None` where the policy was refused, which is a bug of the drawing.
#[must_use]
pub fn draw(seed: u64) -> (String, Option<Setup>) {
    let mut draw = Draw(Rng::new(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x5157));
    let text = policy_text(&mut draw);
    let (policy, _) = policy::load("swarm", text.as_bytes());
    let setup = policy.map(|policy| setup(&mut draw, Arc::new(policy), seed));
    (text, setup)
}

fn policy_text(draw: &mut Draw) -> String {
    let targets = draw.between(1, 6);
    let mut out =
        String::from("version: swarm\nserial: 1\nprompt_version: p1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n");
    for n in 0..targets {
        let place = draw.pick(&["kz", "kz", "eu", "us"]);
        let tier = draw.pick(&["standard", "standard", "standard", "economy"]);
        let key = draw.between(1, 3);
        let tools = draw.chance(0.85);
        let quota = if draw.chance(0.3) { "quota: shared".to_owned() } else { format!("quota: t{n}") };
        let context = draw.pick(&["", ", context_tokens: 1500", ", context_tokens: 32768", ", context_tokens: 128000"]);
        let mut capacity = String::new();
        if draw.chance(0.5) {
            let _ = write!(capacity, "slots: {}, ", draw.between(2, 64));
        }
        if draw.chance(0.2) {
            let _ = write!(capacity, "requests_per_minute: {}, ", draw.between(20, 600));
        }
        if draw.chance(0.5) {
            let mean = draw.between(500, 3_000);
            let _ = write!(capacity, "mean_service_ms: {mean}, p95_service_ms: {}, ", mean * 2);
        }
        let _ = writeln!(
            out,
            "  t{n}:\n    base_url: https://t{n}.example/v1\n    model: m{n}\n    credentials: env:KEY{key}\n    tier: {tier}\n    \
             domains: {{ region: r{n}, {quota} }}\n    \
             capabilities: {{ tools: {tools}, json_schema: strict, vision: false{context} }}\n    \
             capacity: {{ {capacity}basis: assumed }}\n    residency: [{place}]"
        );
    }
    out += "pools:\n";
    let pools = draw.between(1, 3);
    for n in 0..pools {
        let mut members: Vec<String> = Vec::new();
        for _ in 0..draw.between(1, 3) {
            let name = format!("t{}", draw.below(targets));
            if !members.contains(&name) {
                members.push(name);
            }
        }
        let select = draw.pick(&["priority", "priority", "health", "latency"]);
        let _ = writeln!(out, "  p{n}: {{ targets: [{}], select: {select} }}", members.join(", "));
    }
    out += "tools:\n  look_up: { side_effects: none }\nroutes:\n";
    for n in 0..draw.between(1, 3) {
        route_text(draw, n, pools, &mut out);
    }
    let base = draw.pick(&[0.5, 1.0, 5.0]);
    let _ = writeln!(
        out,
        "breaker:\n  consecutive_failures: {}\n  failures_in_window: {}\n  failure_ratio: {}\n  window_s: {}\n  base_cooldown_s: {base}\n  \
         max_cooldown_s: {}\n  half_open_successes: {}\n  probe: {}",
        draw.between(1, 5),
        draw.between(2, 8),
        draw.pick(&[0.1, 0.2, 0.5]),
        draw.between(10, 60),
        draw.pick(&[5, 20, 120]),
        draw.between(1, 3),
        draw.pick(&["golden", "golden", "live"])
    );
    out
}

fn route_text(draw: &mut Draw, n: u64, pools: u64, out: &mut String) {
    let deadline = draw.between(2_000, 12_000);
    let reserve = draw.between(100, deadline / 4);
    let _ = writeln!(
        out,
        "  - route: r{n}\n    channel: chat\n    peak: {{ requests_per_s: {} }}\n    data: {}\n    tools: [look_up]\n    \
         deadline_ms: {deadline}\n    reserve_ms: {reserve}\n    max_attempts: {}\n    connect_timeout_ms: {}\n    \
         idle_timeout_ms: {}\n    same_target_retries: {}",
        draw.between(1, 4),
        draw.pick(&["personal", "none"]),
        draw.between(1, 5),
        draw.between(100, 1_500),
        draw.between(500, 5_000),
        draw.between(0, 2)
    );
    if draw.chance(0.6) {
        let places = draw.pick(&["kz", "kz, eu", "kz, eu, us"]);
        let _ = writeln!(out, "    residency_required: [{places}]");
    }
    if draw.chance(0.3) {
        out.push_str("    degrade: allowed\n");
    }
    if draw.chance(0.1) {
        out.push_str("    failover: none\n    failover_reason: \"the regulator says so\"\n");
    }
    if draw.chance(0.3) {
        let (depth, wait) = (draw.between(1, 64), draw.between(200, 1_500));
        let _ = writeln!(out, "    queue: {{ max_depth: {depth}, max_wait_ms: {wait} }}");
    }
    if draw.chance(0.3) {
        let hold = draw.between(2, 30);
        let _ =
            writeln!(out, "    ramp: {{ steps: [0.05, 0.25, 0.5, 1.0], hold_s: {hold}, step_back_error_rate: 0.1 }}");
    }
    if draw.chance(0.2) {
        let _ = writeln!(out, "    hedge: {{ after_ms: {} }}", draw.between(300, 1_500));
    }
    out.push_str("    attempts:\n");
    let mut used = Vec::new();
    for _ in 0..draw.between(1, 3) {
        let pool = draw.below(pools);
        if used.contains(&pool) {
            continue;
        }
        used.push(pool);
        let _ = write!(out, "      - {{ pool: p{pool}, first_token_timeout_ms: {}", draw.between(500, 3_000));
        if draw.chance(0.3) {
            let _ = write!(out, ", answer_timeout_ms: {}", draw.between(1_500, 6_000));
        }
        if draw.chance(0.4) {
            let _ = write!(out, ", pii: {}", draw.pick(&["allowed", "masked", "forbidden"]));
        }
        if draw.chance(0.2) {
            out.push_str(", intents: [shipping, order_status], otherwise: skip");
        }
        out.push_str(" }\n");
    }
    out.push_str("    on_all_failed: { handoff: human, correlation_id: true }\n");
}

fn provider(draw: &mut Draw) -> Provider {
    let mut provider = Provider::default();
    if draw.chance(0.3) {
        provider.first_token = Latency::Mix(vec![
            (0.9, Latency::around_ms(draw.between(100, 900), 0.4)),
            (0.1, Latency::around_ms(draw.between(1_000, 6_000), 0.6)),
        ]);
    }
    if draw.chance(0.3) {
        provider.errors = draw.0.unit() * 0.2;
    }
    if draw.chance(0.3) {
        provider.slots = Some(u32::try_from(draw.between(1, 20)).unwrap_or(1));
    }
    if draw.chance(0.2) {
        provider.requests_per_minute = Some(draw.between(5, 300));
    }
    if draw.chance(0.2) {
        provider.cold_start = Some((draw.seconds(1, 8), draw.seconds(5, 120)));
    }
    provider
}

fn setup(draw: &mut Draw, policy: Arc<Policy>, seed: u64) -> Setup {
    let mut sources = Vec::new();
    let targets = policy.targets.len();
    for target in 0..targets {
        let mut source = |kind: Kind| sources.push(Source { targets: vec![target], kind });
        let look = match draw.below(12) {
            0 => Some(Look::Status(401)),
            1 => Some(Look::Status(429)),
            2 => Some(Look::Silence),
            _ => None,
        };
        if draw.chance(0.7) {
            let availability = 0.6 + draw.0.unit() * 0.39;
            if let Some(channel) = Channel::new(availability, draw.seconds(5, 400), look) {
                source(Kind::Channel(channel));
            }
        }
        if draw.chance(0.25) {
            let (every, lasts) = (draw.seconds(300, 2_000), draw.seconds(30, 400));
            source(Kind::Flapping(Flapping::new(every, lasts, draw.seconds(1, 10), draw.seconds(1, 20))));
        }
        if draw.chance(0.25) {
            let (every, lasts) = (draw.seconds(300, 2_000), draw.seconds(30, 600));
            let slower = 1.5 + draw.0.unit() * 8.0;
            source(Kind::BrownOuts(BrownOuts { every, lasts, slower, errors: draw.0.unit() }));
        }
        if draw.chance(0.25) {
            let (every, lasts) = (draw.seconds(300, 2_000), draw.seconds(10, 300));
            let retry_after_s = draw.pick(&[0, 1, 30, 600]);
            source(Kind::RateStorms(RateStorms { every, lasts, share: 0.2 + draw.0.unit() * 0.8, retry_after_s }));
        }
    }
    if draw.chance(0.3) {
        let (every, lasts) = (draw.seconds(600, 3_000), draw.seconds(10, 400));
        sources.push(Source { targets: (0..targets).collect(), kind: Kind::Correlated(Correlated { every, lasts }) });
    }
    let load = Load {
        per_second: 0.5 + draw.0.unit() * 8.0,
        thin: Duration::from_millis(draw.pick(&[0, 1_000, 20_000, 120_000])),
        lead: draw.seconds(0, 5),
        tail: draw.seconds(0, 20),
        whole: draw.0.unit() * 0.5,
        tools: draw.0.unit() * 0.3,
        leave: draw.pick(&[0.0, 0.02, 0.2]),
    };
    let providers = (0..targets).map(|_| provider(draw)).collect();
    let span = draw.seconds(300, 3_600);
    Setup { policy, providers, sources, load, span, seed, checks: true, useful_within: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run;

    #[test]
    fn what_is_drawn_is_a_policy() {
        for seed in 0..300 {
            let (text, setup) = draw(seed);
            assert!(setup.is_some(), "seed {seed}:\n{text}\n{:?}", policy::load("swarm", text.as_bytes()).1);
        }
    }

    #[test]
    fn promises_hold_in_a_small_swarm() {
        let mut swarm = Swarm::default();
        for seed in 0..12 {
            let (text, setup) = draw(seed);
            swarm.add(seed, &text, &run(&setup.unwrap(), &mut |_| true));
        }
        assert!(swarm.failed.is_empty(), "{}", swarm.text());
        assert!(swarm.requests > 1_000 && swarm.outages > 10);
    }
}
