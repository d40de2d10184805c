//! `llmfo validate --tests FILE`: runs the tests of a policy.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Global;
use super::policy_file::{self, Content, Kind};
use super::validate::Format;
use crate::diag::{Diagnostic, Report, list, quoted, render_human, render_json};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::policy::Policy;
use crate::sim::policy_tests::{Answer, Ready, run as run_test};
use crate::spec::SpannedDoc;
use crate::spec::policy_tests::{PolicyTest, PolicyTestsFile, WORDS, moment_ms, read, series};
use crate::units::printable;

/// Words of `expect` that are no target.
const NO_TARGET: [&str; 4] = ["handoff", "refused", "unavailable", "too_long"];

/// What a question says about its request, for the reader of a failure.
fn asked(q: &crate::spec::policy_tests::Question) -> String {
    let tools = q.tools.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let tools = if tools.is_empty() { String::new() } else { format!(", tools {}", printable(&tools, 100)) };
    let intent = q.intent.as_ref().map_or(String::new(), |i| format!(", intent {}", printable(i, 60)));
    format!("{intent}{tools}")
}

/// Requests of one test.
const MOST_REQUESTS: f64 = 5e6;

/// Runs the tests of a file.
///
/// # Errors
/// The file or its policy cannot be read.
pub fn run(global: &Global, path: &Path, format: Format) -> Result<Exit> {
    let bytes = bytes_of(path)?;
    let name = printable(&path.display().to_string(), 300);
    let (file, mut found, doc) = read(&name, &bytes);
    policy_file::of_kind(Kind::Tests, &doc, &name)?;
    let mut report = Report::new();
    let Some(file) = file else {
        report.add(doc.into_source(), found);
        return Ok(broken(global, format, &report));
    };
    if file.policy.is_empty() {
        // Nothing can be looked up; the finding says that it is missing.
        if !found.iter().any(Diagnostic::is_error) {
            found.push(
                doc.at(&crate::spec::rules::EMPTY, "/policy", "`policy` is empty").help("name the policy's file"),
            );
        }
        report.add(doc.into_source(), found);
        return Ok(broken(global, format, &report));
    }
    let policy_path = path.parent().unwrap_or_else(|| Path::new(".")).join(&file.policy);
    let shown = printable(&policy_path.display().to_string(), 300);
    let loaded = policy_file::read(&policy_path).map_err(|e| Expected {
        what: format!("{name}:{}: {}", doc.place("/policy").line, e.what),
        hint: "`policy` names the policy's file, as seen from the folder of the file of tests".to_owned(),
        ..e
    })?;
    let loaded = loaded.policy(&shown);
    policy_file::of_kind(Kind::Policy, &loaded.doc, &shown)?;
    let Some(policy) = loaded.policy else {
        report.add(loaded.doc.into_source(), loaded.diagnostics);
        return Ok(broken(global, format, &report));
    };
    let policy = Arc::new(policy);
    let mut ready = Vec::new();
    // What is missing or of a wrong type is empty in `file`: one finding per mistake.
    let form: Vec<String> = found.iter().filter(|d| d.is_error()).map(|d| d.place.pointer.clone()).collect();
    let absent = |d: &Diagnostic| {
        let pointer = &d.place.pointer;
        form.iter().any(|f| f == pointer) || doc.get(pointer).is_none()
    };
    for (n, test) in file.tests.iter().enumerate() {
        match prepare(&policy, &doc, n, test) {
            Ok(test) => ready.push(test),
            Err(problems) => found.extend(problems.into_iter().filter(|d| !absent(d))),
        }
    }
    if found.iter().any(Diagnostic::is_error) {
        report.add(doc.into_source(), found);
        return Ok(broken(global, format, &report));
    }
    let answers: Vec<(&PolicyTest, Vec<Answer>)> = ready.iter().map(|t| (t.test, run_test(&policy, t))).collect();
    let line = |test: &PolicyTest, question: usize| {
        let n = file.tests.iter().position(|t| std::ptr::eq(t, test)).unwrap_or(0);
        doc.place(&format!("/tests/{n}/ask/{question}")).line
    };
    Ok(tell(global, format, &file, &answers, &|test, question| format!("{name}:{}", line(test, question))))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    match policy_file::read(path)? {
        Content::Bytes(bytes) => Ok(bytes),
        Content::TooLong(_) => Err(Expected::usage(
            format!("{} is longer than any file of tests", printable(&path.display().to_string(), 300)),
            "at most 16 MiB are read",
        )),
    }
}

fn broken(global: &Global, format: Format, report: &Report) -> Exit {
    let exit = global.term.decided(Exit::Verdict);
    match format {
        Format::Human => global.term.out(&render_human(report, global.term.out_color, global.term.width)),
        Format::Json => global.term.out(&render_json(report, false)),
    }
    exit
}

/// Looks names up and reads series and times.
fn prepare<'a>(
    policy: &Policy,
    doc: &SpannedDoc,
    n: usize,
    test: &'a PolicyTest,
) -> std::result::Result<Ready<'a>, Vec<Diagnostic>> {
    let mut found = Vec::new();
    let at = |tail: &str| format!("/tests/{n}{tail}");
    let unknown = |pointer: &str, what: &str, name: &str, known: &mut dyn Iterator<Item = &str>| {
        let known: Vec<&str> = known.collect();
        let message = format!("no {what} is called {}", quoted(name));
        let rule = &crate::spec::rules::UNKNOWN_WORD;
        // A name that is a key is underlined itself, not what stands behind it.
        let key = pointer.contains("/health/");
        let said = if key { doc.at_key(rule, pointer, message) } else { doc.at(rule, pointer, message) };
        match crate::spec::names::nearest(name, known.iter().copied()) {
            Some(near) => said
                .label(format!("did you mean {}?", quoted(near)))
                .nearest(near)
                .help(format!("write {}", quoted(near))),
            None => said
                .label("not in the policy")
                .expected(format!("one of {}", list(known.iter().copied(), 12)))
                .help("correct the name, or test another policy"),
        }
    };
    let route = policy.route_named(&test.route).cloned();
    if route.is_none() {
        found.push(unknown(&at("/route"), "route", &test.route, &mut policy.routes.iter().map(|r| r.name.as_str())));
    }
    let mut all = BTreeMap::new();
    for (name, text) in test.health.iter().flat_map(|h| h.iter()) {
        let pointer = at(&format!("/health/{}", crate::spec::document::escape(name)));
        let target = policy.target_named(name);
        if target.is_none() {
            found.push(unknown(&pointer, "target", name, &mut policy.targets.iter().map(|t| t.name.as_str())));
        }
        match (series(text), target) {
            (Ok(steps), Some(target)) => {
                all.insert(target.id, steps);
            }
            (Ok(_), None) => {}
            (Err(why), _) => found.push(
                doc.at(&crate::spec::rules::WRONG_FORM, &pointer, why)
                    .label("not a series")
                    .expected("steps such as `up x20, slow x5, down x10`, each x one step long")
                    .help(format!("use the words {}", list(WORDS.iter().map(|(word, _)| *word), WORDS.len()))),
            ),
        }
    }
    let mut at_ms = Vec::new();
    for (q, question) in test.ask.iter().enumerate() {
        match moment_ms(&question.at) {
            Ok(ms) if ms <= 31 * 86_400_000 => at_ms.push(ms),
            Ok(_) => {
                let why = "more than 31 days after the beginning";
                let said = doc.at(&crate::spec::rules::OUT_OF_RANGE, &at(&format!("/ask/{q}/at")), why);
                found.push(said.label("too late").help("ask sooner"));
            }
            Err(why) => found.push(
                doc.at(&crate::spec::rules::WRONG_FORM, &at(&format!("/ask/{q}/at")), why)
                    .label("not a time")
                    .help(at_help(&question.at)),
            ),
        }
        let known = || policy.targets.iter().map(|t| t.name.as_str()).chain(NO_TARGET);
        if !known().any(|name| name == question.expect) {
            found.push(unknown(&at(&format!("/ask/{q}/expect")), "target", &question.expect, &mut known()));
        }
    }
    if !(test.requests_per_s >= 0.0 && test.requests_per_s <= 1_000.0) {
        let why = "between 0 and 1000 requests per second are played";
        let said = doc.at(&crate::spec::rules::OUT_OF_RANGE, &at("/requests_per_s"), why);
        found.push(said.label("outside").help("write a number from 0 to 1000"));
    }
    let last_ms = at_ms.iter().copied().max().unwrap_or(0);
    if test.requests_per_s * (last_ms as f64 / 1e3) > MOST_REQUESTS {
        let why = "more than five million requests until the last question: ask sooner, or let fewer flow";
        let said = doc.at(&crate::spec::rules::OUT_OF_RANGE, &at("/ask"), why);
        found.push(said.label("too many requests").help("lower `requests_per_s`, or ask sooner"));
    }
    match route {
        Some(route) if found.is_empty() => Ok(Ready { test, route, series: all, at_ms }),
        _ => Err(found),
    }
}

fn at_help(at: &str) -> String {
    if !at.is_empty() && at.bytes().all(|b| b.is_ascii_digit()) {
        return crate::spec::names::with_units("at", &printable(at, 20));
    }
    "count from the beginning of the test: `90s`, `12m`, `1h30m`".to_owned()
}

fn tell(
    global: &Global,
    format: Format,
    file: &PolicyTestsFile,
    answers: &[(&PolicyTest, Vec<Answer>)],
    place: &dyn Fn(&PolicyTest, usize) -> String,
) -> Exit {
    let all: usize = answers.iter().map(|(_, a)| a.len()).sum();
    let held: usize = answers.iter().map(|(_, a)| a.iter().filter(|a| a.held).count()).sum();
    let exit = global.term.decided(if held == all { Exit::Good } else { Exit::Verdict });
    match format {
        Format::Json => {
            let question = |test: &PolicyTest, a: &Answer| {
                let asked = test.ask.get(a.question);
                json!({
                    "test": test.name, "at": asked.map(|q| &q.at), "held": a.held, "got": a.got, "reasons": a.reasons,
                    "expect": asked.map(|q| &q.expect), "because": asked.and_then(|q| q.because.as_ref()),
                })
            };
            let rows: Vec<Value> =
                answers.iter().flat_map(|(test, a)| a.iter().map(move |a| question(test, a))).collect();
            let whole = json!({ "format": 1, "policy": file.policy, "held": held, "asked": all, "questions": rows });
            global.term.out(&format!("{whole:#}\n"));
        }
        Format::Human => {
            for (test, answers) in answers {
                for a in answers.iter().filter(|a| !a.held) {
                    let Some(q) = test.ask.get(a.question) else { continue };
                    let because =
                        q.because.as_ref().map_or(String::new(), |b| format!(", because {}", printable(b, 100)));
                    global.term.out(&format!(
                        "FAIL  {} ({})\n      at {}{}: expected {}{because}\n      got {}; {}\n",
                        printable(&test.name, 200),
                        place(test, a.question),
                        printable(&q.at, 40),
                        asked(q),
                        printable(&q.expect, 100),
                        printable(&a.got, 100),
                        printable(&a.reasons.join("; "), 500),
                    ));
                    // Two vocabularies: the state of a target, and why it was passed over.
                    if q.because.as_deref().is_some_and(|b| b.contains(": cooling")) {
                        global.term.err("next: a target whose state is `cooling` (/snapshot) is passed over as `open` or `rate_limited`: write that word");
                    }
                }
            }
            global.term.out(&format!("{held} of {all} questions answered as expected\n"));
        }
    }
    exit
}
