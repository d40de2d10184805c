//! What one input costs the core, per kind of input, with 20, 200 and 2,000 targets: `cargo bench --bench core`.
//!
//! Every call of `handle` is timed by itself together with the draining of its outputs; the clock's own cost is measured in the
//! same run and taken off. Printed: the median and the 99th percentile in nanoseconds. Figures of one machine; the ratios
//! between the columns are what carries over.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a bench prints its table, and one that cannot go on may stop"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llmfo::policy::{DataClass, Policy, RouteId};
use llmfo::router::{Engine, Facts, Failure, Input, Machine, Output, RequestId, Sign};
use llmfo::units::Ts;

const ROUNDS: u64 = 20_000;

fn policy(targets: usize) -> Arc<Policy> {
    let mut text = String::from("version: bench\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n");
    for n in 0..targets {
        text.push_str(&format!(
            "  t{n}: {{ base_url: \"http://10.0.{}.{}:8000/v1\", model: m, residency: [kz], domains: {{ quota: q{n} }}, \
             capabilities: {{ tools: true, json_schema: strict, vision: false, context_tokens: 32768 }}, \
             capacity: {{ slots: 1000 }} }}\n",
            n / 250,
            n % 250
        ));
    }
    let names: Vec<String> = (0..targets).map(|n| format!("t{n}")).collect();
    text.push_str(&format!("pools:\n  all: {{ targets: [{}], select: priority }}\n", names.join(", ")));
    text.push_str(
        "routes:\n  - { route: chat, data: none, residency_required: [kz], deadline_ms: 8000, reserve_ms: 1000, max_attempts: 3, \
         connect_timeout_ms: 1000, idle_timeout_ms: 5000, queue: { max_depth: 64, max_wait_ms: 1500 }, \
         attempts: [{ pool: all, first_token_timeout_ms: 2000 }] }\n",
    );
    let (policy, found) = llmfo::policy::load("bench.yaml", text.as_bytes());
    Arc::new(policy.unwrap_or_else(|| panic!("{found:#?}")))
}

fn facts() -> Facts {
    Facts {
        intent: Some("shipping".into()),
        tools: true,
        body_bytes: 2_000,
        max_output_tokens: Some(400),
        open_conversation: true,
        ..Facts::plain(RouteId(0), DataClass::None)
    }
}

struct Bench {
    engine: Engine,
    now: Ts,
    next: u64,
    times: BTreeMap<&'static str, Vec<u64>>,
    out: Vec<Output>,
}

impl Bench {
    fn handle(&mut self, kind: &'static str, input: Input) {
        self.out.clear();
        self.now = self.now + Duration::from_micros(50);
        let start = Instant::now();
        self.engine.handle(self.now, input);
        while let Some(output) = self.engine.poll_output() {
            self.out.push(output);
        }
        let took = start.elapsed();
        self.times.entry(kind).or_default().push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn dialled(&self) -> llmfo::router::AttemptId {
        let dial = |o: &Output| match o {
            Output::Dial { attempt, .. } => Some(*attempt),
            _ => None,
        };
        self.out.iter().find_map(dial).expect("a dial")
    }

    fn arrive(&mut self, stream: bool) -> RequestId {
        self.next += 1;
        let request = RequestId(self.next);
        let kind = if stream { "arrive" } else { "arrive, unstreamed" };
        self.handle(kind, Input::Arrive { request, facts: Facts { stream, ..facts() } });
        request
    }

    fn round(&mut self, n: u64) {
        let request = self.arrive(n % 10 != 3);
        let mut attempt = self.dialled();
        self.handle("connected", Input::Connected { attempt });
        match n % 50 {
            // One in fifty fails over, one client in fifty leaves: rarely enough that no breaker trips.
            7 => {
                self.handle("broke, next dial", Input::Broke { attempt, failure: Failure::Reset, reused: false });
                attempt = self.dialled();
            }
            9 => return self.handle("client gone", Input::ClientGone { request, stalled: false }),
            _ => {}
        }
        self.handle("first token", Input::FirstToken { attempt, sign: Sign::Life });
        self.handle("committed", Input::Committed { attempt });
        self.handle("ended, record", Input::Ended { attempt, usage: None });
        self.handle("tick, nothing due", Input::Tick);
    }
}

fn quantile(times: &mut [u64], q: f64, clock: u64) -> u64 {
    times.sort_unstable();
    let rank = ((times.len() as f64 * q).ceil() as usize).clamp(1, times.len()) - 1;
    times[rank].saturating_sub(clock)
}

fn clock_cost() -> u64 {
    let mut costs: Vec<u64> = (0..100_000)
        .map(|_| {
            let start = Instant::now();
            u64::try_from(black_box(start.elapsed()).as_nanos()).unwrap_or(0)
        })
        .collect();
    quantile(&mut costs, 0.5, 0)
}

fn main() {
    // `cargo test --benches` and `cargo bench` both start this; only the second measures.
    let rounds = if std::env::args().any(|a| a == "--bench") { ROUNDS } else { 200 };
    let clock = clock_cost();
    println!("the clock itself costs {clock} ns, taken off; {rounds} requests per column, the first tenth not counted");
    let sizes = [20usize, 200, 2_000];
    let mut table: BTreeMap<&'static str, Vec<(u64, u64)>> = BTreeMap::new();
    for size in sizes {
        let engine = Engine::new(policy(size), 1);
        let mut bench = Bench { engine, now: Ts::from_s(1), next: 0, times: BTreeMap::new(), out: Vec::new() };
        for n in 0..rounds {
            if n == rounds / 10 {
                bench.times.clear();
            }
            bench.round(n);
        }
        for (kind, times) in &mut bench.times {
            let figures = (quantile(times, 0.5, clock), quantile(times, 0.99, clock));
            table.entry(kind).or_default().push(figures);
        }
    }
    println!(
        "{:<20} {:>22} {:>22} {:>22} {:>12}",
        "median / p99, ns", "20 targets", "200 targets", "2,000 targets", "2,000 : 20"
    );
    for (kind, figures) in table {
        let cell = |n: usize| figures.get(n).map_or(String::new(), |(m, p)| format!("{m} / {p}"));
        let ratio = figures.first().zip(figures.get(2)).map_or(0.0, |(a, b)| b.0 as f64 / (a.0.max(1)) as f64);
        println!("{kind:<20} {:>22} {:>22} {:>22} {ratio:>12.1}", cell(0), cell(1), cell(2));
    }
}
