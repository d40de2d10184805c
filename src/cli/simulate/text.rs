//! The result in words and tables; the verdict is the last line.

use super::{Args, exit_of};
use crate::cli::Global;
use crate::exit::Exit;
use crate::sim::cost;
use crate::sim::lessons::Lesson;
use crate::sim::report::{Report, percent};
use crate::term::table::{table, wrap};

/// All of it.
pub(super) fn text(global: &Global, args: &Args, report: &Report) -> String {
    let width = global.term.width;
    let mut out = String::new();
    let days = report.runs.first().map_or(0.0, |r| r.days);
    let seeds = if args.seeds == 1 {
        format!("seed {}", args.seed)
    } else {
        format!("seeds {} to {}, medians", args.seed, args.seed.wrapping_add(args.seeds - 1))
    };
    let requests: u64 = report.runs.iter().map(|r| r.requests).sum();
    let real: f64 = report.runs.iter().map(|r| r.real_requests).sum();
    out += &format!(
        "{}: policy {}, {days:.0} days, {seeds}; {requests} requests simulated stand for {real:.0}\n\n",
        report.scenario, report.policy_version
    );
    let head = ["", "one channel", "policy", "published"];
    let head = if report.published.is_some() { &head[..] } else { &head[..3] };
    let rows: Vec<Vec<String>> = report.table().into_iter().map(|r| r[..head.len()].to_vec()).collect();
    out += &table(head, &rows, &["one channel", "policy", "published"], global.term.width);
    out += "\n\n";
    if let Some(first) = report.runs.first() {
        let alone =
            first.channels.iter().map(|c| format!("{} {} (up {})", c.target, percent(c.availability), percent(c.up)));
        out += &format!("each channel alone: {}\n", alone.collect::<Vec<_>>().join(", "));
    }
    if let Some(ceiling) = report.ceiling_by_hand {
        out += &format!("ceiling by hand, from what was asked for: {:.4} %\n", ceiling * 100.0);
    }
    out += &report.details();
    if !report.lessons.is_empty() {
        let head = ["lesson", "measured", "without", "with", "change", "published"];
        let rows: Vec<Vec<String>> = report.lessons.iter().map(lesson_row).collect();
        out += &format!("\n{}\n\n", table(&head, &rows, &["without", "with", "change"], global.term.width));
    }
    if let Some(bill) = &report.cost {
        out += &bill_table(global, args, bill);
    }
    out += &format!(
        "simulated at {:.0} requests a second of this machine's time ({}); trace {}\n",
        report.requests_per_s.unwrap_or(0.0),
        if report.checks { "with checkers" } else { "without checkers" },
        report.trace_hash
    );
    out = wrap(&out, width) + "\n";
    out += &verdict(global, args, report);
    out
}

fn bill_table(global: &Global, args: &Args, bill: &cost::Bill) -> String {
    let row =
        |item: &str, single: f64, policy: f64| vec![item.to_owned(), format!("{single:.0}"), format!("{policy:.0}")];
    let mut rows: Vec<Vec<String>> = bill.lines.iter().map(|l| row(&l.item, l.single, l.policy)).collect();
    rows.push(row("sum", bill.single, bill.policy));
    let head = format!("{} a month", bill.currency);
    let head = [head.as_str(), "one channel", "policy"];
    let from = if args.prices.is_some() { "" } else { "prices are examples: put in your own with --prices\n" };
    let load = load_note(bill.requests_per_s, bill.load == "policy").map_or(String::new(), |note| note + "\n");
    format!("\n{}\n{from}{load}\n", table(&head, &rows, &["one channel", "policy"], global.term.width))
}

/// What the figures in requests and money rest on, where the policy does not say.
pub(super) fn load_note(requests_per_s: f64, declared: bool) -> Option<String> {
    (!declared).then(|| {
        format!("{requests_per_s} requests/s are assumed: no route declares `peak`, and lost conversations and corrections grow with it")
    })
}

fn lesson_row(lesson: &Lesson) -> Vec<String> {
    let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let change = lesson.change().map_or("-".to_owned(), |c| format!("{:+.1} %", c * 100.0));
    vec![
        lesson.name.clone(),
        lesson.measure.clone(),
        value(lesson.without),
        value(lesson.with),
        change,
        lesson.published.clone(),
    ]
}

/// Broken promises and the closing words.
pub(super) fn verdict(global: &Global, args: &Args, report: &Report) -> String {
    let mut out = String::new();
    for run in report.runs.iter().filter(|r| !r.violations.is_empty()) {
        for v in &run.violations {
            let line = format!("broken at {:.3} s, seed {}: {}: {}", v.at_s, run.seed, v.rule, v.what);
            out += &(wrap(&line, global.term.width) + "\n");
        }
        out += &format!("again: {}\n", again(args, run.seed));
    }
    out += match exit_of(report) {
        Exit::Verdict => "FAIL: an invariant of the core was not held\n",
        Exit::Inconclusive => "INCONCLUSIVE: the sample is too small\n",
        _ if report.checks => "PASS: every checked invariant of the core held; objectives are not judged\n",
        _ => "DONE: nothing was checked\n",
    };
    out
}

/// The exact command that shows one seed again.
fn again(args: &Args, seed: u64) -> String {
    let mut out = "llmfo simulate".to_owned();
    if let Some(name) = &args.scenario {
        out += &format!(" {name}");
    }
    if let Some(policy) = &args.policy {
        out += &format!(" --policy {}", policy.display());
    }
    match &args.trace {
        Some(trace) => {
            let down = format!("{:?}", args.down).to_lowercase();
            out += &format!(" --trace {} --down {down}", trace.display());
            out += &args.map.iter().map(|m| format!(" --map {m}")).collect::<String>();
        }
        None => {
            out += &format!(
                " --months {} --channel-availability {} --mean-outage-min {} --shared-domain {}",
                args.months, args.channel_availability, args.mean_outage_min, args.shared_domain
            );
        }
    }
    out + &format!(" --seed {seed}")
}
