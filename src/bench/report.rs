//! The result as JSON, and as rows for tables.

use serde_json::{Map, Value, json};

use super::cells::{BURST_C32, CELLS, Cell, HISTORY_C32, JSON_C1, JSON_C32, STREAM_C32};
use super::figures::{Figure, Sample, added, added_ratio, figure, ratio};
use super::judge::{Bar, Facts, Verdict, bars, verdict};
use super::run::{Measured, Options, Side};

/// Version of the JSON. Members are only added.
const FORMAT: u32 = 1;

/// Ratios by name.
pub type Ratios = Vec<(&'static str, Option<Figure>)>;

/// Everything that is told.
#[derive(Clone, Debug)]
pub struct Report {
    /// Ratios to Envoy, in the order in which they are shown.
    pub vs_envoy: Ratios,
    /// Ratios of the gateway to each peer.
    pub vs_peer: Vec<(String, Ratios)>,
    /// What the figures are held to.
    pub bars: Vec<Bar>,
    /// The verdict.
    pub verdict: Verdict,
    /// Its reasons.
    pub why: Vec<String>,
}

impl Report {
    /// Judges what was measured.
    #[must_use]
    pub fn new(measured: &Measured, options: &Options) -> Report {
        let gateway = measured.side("gateway");
        let vs_envoy = measured
            .side("envoy")
            .zip(gateway)
            .map_or_else(Vec::new, |(envoy, gateway)| ratios(gateway, envoy, measured.side("direct")));
        let peers = options.peers.iter().filter_map(|p| Some((p.name.clone(), measured.side(&p.name)?)));
        let vs_peer = peers
            .zip(std::iter::repeat(gateway))
            .filter_map(|((name, side), gateway)| Some((name, ratios(gateway?, side, measured.side("direct")))))
            .collect();
        let start = measured.starts.iter().find(|(name, _)| *name == "gateway").map(|(_, start)| start);
        let bars = bars(|name| match name {
            "start_to_first_answer_s" => Some(start?.first_answer_s?.median),
            "resident_start_mb" => Some(start?.resident_mb?.median),
            "resident_2000_streams_mb" => {
                let idle = measured.idle.filter(|idle| idle.wanted == 2_000 && idle.open == idle.wanted)?;
                idle.resident_mb
            }
            name => vs_envoy.iter().find(|(n, _)| *n == name)?.1.map(|figure| figure.median),
        });
        let judged = ["gateway", "envoy"].into_iter().filter_map(|name| measured.side(name));
        let not_held = measured.idle.map_or(0, |idle| idle.wanted.saturating_sub(idle.open) as u64);
        let facts = Facts {
            rounds: options.rounds,
            envoy: options.envoy.is_some(),
            debug: cfg!(debug_assertions),
            bad_answers: not_held + judged.flat_map(|s| s.cells.iter().flatten().flatten()).map(|s| s.bad).sum::<u64>(),
            soak: measured.soak.as_ref().map(super::soak::Soak::facts),
        };
        let (verdict, why) = verdict(&bars, &facts);
        Report { vs_envoy, vs_peer, bars, verdict, why }
    }

    /// As one JSON object.
    #[must_use]
    pub fn json(&self, measured: &Measured, options: &Options, envoy: Option<&str>) -> Value {
        let mut cells = Map::new();
        for cell in CELLS.iter().filter(|_| options.rounds > 0) {
            let sides =
                measured.sides.iter().map(|side| (side.name.clone(), absolute(side.rounds(cell), cell, measured)));
            cells.insert(cell.name.to_owned(), Value::Object(sides.collect()));
        }
        let starts = measured.starts.iter().map(|(name, start)| {
            let value = json!({"start_to_first_answer_s": start.first_answer_s, "resident_mb": start.resident_mb});
            ((*name).to_owned(), value)
        });
        let of_peers = self.vs_peer.iter().map(|(name, ratios)| (name.clone(), medians(ratios)));
        json!({
            "format": FORMAT,
            "llmfo": env!("CARGO_PKG_VERSION"),
            "optimised": !cfg!(debug_assertions),
            "envoy": envoy,
            "machine": super::proc::machine(),
            "rounds": options.rounds,
            "seconds": options.seconds,
            "provider": format!("http://{}/v1", measured.provider),
            "vs_envoy": medians(&self.vs_envoy),
            "vs_envoy_spread": spreads(&self.vs_envoy),
            "vs_peer": Value::Object(of_peers.collect()),
            "absolute": cells,
            "start": Value::Object(starts.collect()),
            "idle_streams": measured.idle,
            "soak": measured.soak,
            "policy": measured.policy,
            "bars": self.bars,
            "verdict": self.verdict,
            "why": self.why,
        })
    }
}

fn ratios(ours: &Side, theirs: &Side, direct: Option<&Side>) -> Ratios {
    let of = |cell: &Cell, what: fn(&Sample) -> Option<f64>| ratio(ours.rounds(cell), theirs.rounds(cell), what);
    let p50: fn(&Sample) -> Option<f64> = |s| s.p50_ms;
    let first: fn(&Sample) -> Option<f64> = |s| s.first_ms;
    let added =
        direct.and_then(|d| added_ratio(ours.rounds(&JSON_C1), theirs.rounds(&JSON_C1), d.rounds(&JSON_C1), p50));
    vec![
        ("rps_c32", of(&JSON_C32, Sample::rps)),
        ("added_p50_c1", added),
        ("cpu_per_1k", of(&JSON_C32, Sample::cpu_per_1k)),
        ("ttft_stream", of(&STREAM_C32, first)),
        ("cpu_stream", of(&STREAM_C32, Sample::cpu_per_1k)),
        ("cpu_stream_burst", of(&BURST_C32, Sample::cpu_per_1k)),
        ("cpu_history", of(&HISTORY_C32, Sample::cpu_per_1k)),
    ]
}

fn medians(ratios: &[(&'static str, Option<Figure>)]) -> Value {
    Value::Object(ratios.iter().map(|(name, f)| ((*name).to_owned(), json!(f.map(|f| f.median)))).collect())
}

fn spreads(ratios: &[(&'static str, Option<Figure>)]) -> Value {
    Value::Object(ratios.iter().map(|(name, f)| ((*name).to_owned(), json!(f))).collect())
}

fn absolute(rounds: &[Option<Sample>], cell: &Cell, measured: &Measured) -> Value {
    let direct: &[Option<Sample>] = measured.side("direct").map_or(&[], |d| d.rounds(cell));
    json!({
        "rps": figure(rounds, Sample::rps),
        "p50_ms": figure(rounds, |s| s.p50_ms),
        "p99_ms": figure(rounds, |s| s.p99_ms),
        "added_p50_ms": added(rounds, direct, |s| s.p50_ms),
        "first_word_ms": figure(rounds, |s| s.first_ms),
        "cpu_s_per_1k": figure(rounds, Sample::cpu_per_1k),
        "answers": rounds.iter().flatten().map(|s| s.good).sum::<u64>(),
        "bad": rounds.iter().flatten().map(|s| s.bad).sum::<u64>(),
    })
}

/// Head of the rows of [`rows`].
pub const HEAD: [&str; 7] = ["side", "requests/s", "p50 ms", "p99 ms", "first word ms", "CPU s per 1,000", "bad"];

/// One cell as rows of a table.
#[must_use]
pub fn rows(measured: &Measured, cell: &Cell) -> Vec<Vec<String>> {
    let row = |side: &Side| {
        let rounds = side.rounds(cell);
        let bad: u64 = rounds.iter().flatten().map(|s| s.bad).sum();
        vec![
            side.name.clone(),
            told(figure(rounds, Sample::rps)),
            told(figure(rounds, |s| s.p50_ms)),
            told(figure(rounds, |s| s.p99_ms)),
            told(figure(rounds, |s| s.first_ms)),
            told(figure(rounds, Sample::cpu_per_1k)),
            bad.to_string(),
        ]
    };
    measured.sides.iter().map(row).collect()
}

/// `median (smallest-largest)`.
#[must_use]
pub fn told(figure: Option<Figure>) -> String {
    let Some(f) = figure else { return "-".to_owned() };
    if f.n == 1 { number(f.median) } else { format!("{} ({}-{})", number(f.median), number(f.min), number(f.max)) }
}

/// Three digits that say something.
#[must_use]
pub fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_with_their_spread() {
        let f = Figure { median: 1234.4, min: 9.94, max: 99.96, n: 3 };
        assert_eq!(told(Some(f)), "1234 (9.94-100.0)");
        assert_eq!(told(Some(Figure { n: 1, median: 0.0124, ..f })), "0.012");
        assert_eq!(told(None), "-");
    }
}
