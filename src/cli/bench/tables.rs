//! The result for people: a table for each cell, what the figures are held to, the verdict last.

use super::Global;
use crate::bench::cells::CELLS;
use crate::bench::judge::{Bar, Verdict};
use crate::bench::report::{HEAD, Report, number, rows, told};
use crate::bench::run::{Measured, Options};
use crate::term::table::table;

pub(super) fn print(global: &Global, report: &Report, measured: &Measured, options: &Options, envoy: Option<&str>) {
    let mut out = Vec::new();
    let build = if cfg!(debug_assertions) { "not optimised" } else { "optimised" };
    let beside = envoy.map_or_else(|| "no Envoy".to_owned(), |version| format!("Envoy {version}"));
    out.push(format!(
        "llmfo {} ({build}), {beside}; {}; {} rounds of {} s",
        env!("CARGO_PKG_VERSION"),
        crate::bench::proc::machine(),
        options.rounds,
        options.seconds
    ));
    let width = global.term.width;
    for cell in CELLS.iter().filter(|_| options.rounds > 0) {
        out.push(format!("\n{}, median (smallest-largest)", cell.what));
        out.push(table(&HEAD, &rows(measured, cell), &HEAD[1..], width));
    }
    for (name, start) in &measured.starts {
        let (first, resident) = (told(start.first_answer_s), told(start.resident_mb));
        out.push(format!("\n{name}: {first} s from its start to its first answer, {resident} MB resident then"));
    }
    if let Some(idle) = &measured.idle {
        let mb = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
        out.push(format!(
            "{} of {} silent streams open: {} MB resident, {} before",
            idle.open,
            idle.wanted,
            mb(idle.resident_mb),
            mb(idle.resident_before_mb)
        ));
    }
    if let Some(soak) = &measured.soak {
        let mb = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
        out.push(format!(
            "soak of {} minutes at {} requests/s ({} wanted): {} answers in full, {} broken off honestly, {} wrong; resident MB at \
             begin, middle, end: {}, {}, {}; in flight at the end: {}",
            soak.minutes,
            number(soak.rate),
            number(soak.rate_wanted),
            soak.whole,
            soak.error_events,
            soak.wrong.values().sum::<u64>(),
            mb(soak.resident_begin_mb),
            mb(soak.resident_middle_mb),
            mb(soak.resident_end_mb),
            soak.in_flight_end.map_or_else(|| "not told".to_owned(), |n| n.to_string()),
        ));
        out.extend(soak.wrong.iter().map(|(what, n)| format!("  {what}: {n}")));
    }
    for (name, ratios) in &report.vs_peer {
        let all: Vec<String> =
            ratios.iter().filter(|(_, f)| f.is_some()).map(|(what, f)| format!("{what} {}", told(*f))).collect();
        out.push(format!("the gateway as a multiple of {name}: {}", all.join(", ")));
    }
    let limits: Vec<Vec<String>> = report.bars.iter().map(|bar| limit(report, bar)).collect();
    out.push("\nHeld to (the first five and cpu_history: as a multiple of Envoy, round by round)".to_owned());
    out.push(table(&["figure", "got", "wanted", ""], &limits, &["got"], width));
    out.push(format!("\nThe gateway's policy:\n{}", measured.policy));
    out.extend(report.why.iter().map(|why| format!("  {why}")));
    out.push(match report.verdict {
        Verdict::Pass => "PASS".to_owned(),
        Verdict::Fail => "FAIL".to_owned(),
        Verdict::Inconclusive => "INCONCLUSIVE".to_owned(),
        Verdict::Figures => "no verdict was asked for".to_owned(),
    });
    global.term.out(&out.join("\n"));
}

fn limit(report: &Report, bar: &Bar) -> Vec<String> {
    let spread = report.vs_envoy.iter().find(|(name, _)| *name == bar.name).and_then(|(_, f)| *f);
    let got = match (spread, bar.got) {
        (Some(figure), _) => told(Some(figure)),
        (None, Some(got)) => number(got),
        (None, None) => "-".to_owned(),
    };
    let most = if bar.at_least { "at least" } else { "at most" };
    let kept = match (bar.kept, bar.gates) {
        (None, _) => "not measured",
        (Some(true), _) => "kept",
        (Some(false), true) => "MISSED",
        (Some(false), false) => "missed (does not gate)",
    };
    vec![bar.name.to_owned(), got, format!("{most} {}", bar.limit), kept.to_owned()]
}
