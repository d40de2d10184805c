//! For people: the line, a caret, what was expected, what to do.

use std::fmt::Write as _;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::{Counts, Diagnostic, Place, Report, Severity, Source, secrets};
use crate::units::printable;

/// Findings shown in full; the rest is counted. A person cannot use more, and JSON has them all.
const SHOWN: usize = 200;
/// Longest message, in characters.
const MESSAGE_CHARS: usize = 600;
/// Longest line of a file that is quoted, in bytes; longer ones are cut around the place.
const LINE_BYTES: usize = 400;
/// Lines between the first and the last place of one snippet; places further away are named by line instead.
const SNIPPET_LINES: usize = 2000;
/// Width in columns where the terminal's is unknown.
const WIDTH: u16 = 140;

/// Every finding as a snippet of its file, and a last line that counts them.
#[must_use]
pub fn render(report: &Report, color: bool, width: Option<u16>) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii).term_width(usize::from(width.unwrap_or(WIDTH)).max(60));
    let mut out = String::new();
    for diagnostic in report.shown().take(SHOWN) {
        out.push_str(&one(report, diagnostic, &renderer));
        out.push_str("\n\n");
    }
    if let Some(more) = report.shown().count().checked_sub(SHOWN).filter(|n| *n > 0) {
        let _ = writeln!(out, "... and {more} more findings, not shown; `--format json` has them all\n");
    }
    out.push_str(&verdict(report.counts()));
    out.push('\n');
    out
}

/// `2 errors, 1 warning`, or `no findings`.
fn verdict(counts: Counts) -> String {
    let part = |n: usize, one: &str| match n {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {one}s")),
    };
    let parts: Vec<String> = [
        part(counts.error, "error"),
        part(counts.warning, "warning"),
        counts.info.gt(&0).then(|| format!("{} info", counts.info)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "no findings".to_owned() } else { parts.join(", ") }
}

fn one(report: &Report, d: &Diagnostic, renderer: &Renderer) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Info => Level::INFO,
    };
    let id = format!("{} {}", d.rule.code, d.rule.name);
    let message = safe(&d.message);
    let file = printable(&d.place.file, MESSAGE_CHARS);
    let mut notes = Vec::new();
    let (window, cut);
    let mut group = Group::with_title(level.primary_title(message).id(id));
    let near: Vec<&super::Label> = d
        .labels
        .iter()
        .filter(|l| {
            let close = l.place.file == d.place.file && l.place.line.abs_diff(d.place.line) < SNIPPET_LINES;
            if !close {
                notes.push(format!("{}:{}:{}: {}", l.place.file, l.place.line, l.place.column, l.text));
            }
            close
        })
        .collect();
    if let Some(source) = report.source(&d.place.file) {
        let from = near.iter().map(|l| l.place.start).chain([d.place.start]).min().unwrap_or(0);
        let to = near.iter().map(|l| l.place.start).chain([d.place.start]).max().unwrap_or(0);
        let (start, end) = (source.line_start(from), source.line_end(to));
        let first_line = near.iter().map(|l| l.place.line).chain([d.place.line]).min().unwrap_or(1);
        if end - start > LINE_BYTES && source.line_start(from) == source.line_start(to) {
            // One very long line: show what is around the place, and say so.
            let p = source.place(from.saturating_sub(60)..(to + 120).min(end), "");
            let (a, b) = (p.start.max(start), p.end);
            cut = source.shown(a..b);
            let at = clip(source, &d.place, a, b);
            // The renderer would count the column in what is left of the line.
            group = group.element(Origin::path(format!("{file}:{}:{}", d.place.line, d.place.column)));
            group = group.element(
                Snippet::source(cut.as_str())
                    .line_start(first_line)
                    .annotation(AnnotationKind::Primary.span(at).label(safe(&d.label))),
            );
        } else {
            window = source.shown(start..end);
            let mut snippet = Snippet::source(window.as_str())
                .path(file)
                .line_start(first_line)
                .annotation(AnnotationKind::Primary.span(clip(source, &d.place, start, end)).label(safe(&d.label)));
            for label in &near {
                snippet = snippet.annotation(
                    AnnotationKind::Context.span(clip(source, &label.place, start, end)).label(safe(&label.text)),
                );
            }
            group = group.element(snippet);
        }
    } else {
        notes.push(format!("in {file}"));
    }
    if let Some(expected) = &d.expected {
        group = group.element(Level::NOTE.no_name().message(format!("expected: {}", safe(expected))));
    }
    for note in notes {
        group = group.element(Level::NOTE.no_name().message(safe(&note)));
    }
    if let Some(help) = &d.help {
        group = group.element(Level::NOTE.no_name().message(format!("next: {}", safe(help))));
    }
    renderer.render(&[group])
}

fn safe(text: &str) -> String {
    printable(&secrets::mask_words(text), MESSAGE_CHARS)
}

/// The place within a window of the source that starts at `from`; only its first line, and never empty.
fn clip(source: &Source, place: &Place, from: usize, to: usize) -> std::ops::Range<usize> {
    let line_end = source.line_end(place.start);
    let start = place.start.clamp(from, to);
    let end = place.end.min(line_end).clamp(start, to);
    start - from..end - from
}

#[cfg(test)]
mod tests {
    use super::super::{Example, Rule};
    use super::*;

    static RULE: Rule = Rule {
        code: "LF999",
        name: "for-tests",
        severity: Severity::Error,
        what: "",
        why: "",
        fix: "",
        example: Example::Words("a test"),
    };

    #[test]
    fn a_finding_shows_its_line_a_caret_and_the_next_step() {
        let source = Source::new("p.yaml", "a: 1\nb: two\nc: 3\n");
        let d = Diagnostic::new(&RULE, source.place(8..11, "/b"), "`b` is a text")
            .label("not a number")
            .and(source.place(0..1, "/a"), "like this")
            .expected("a number")
            .help("write a number");
        let mut report = Report::new();
        report.add(source, [d]);
        let text = render(&report, false, None);
        let want = "\
error[LF999 for-tests]: `b` is a text
 --> p.yaml:2:4
  |
1 | a: 1
  | - like this
2 | b: two
  |    ^^^ not a number
  |
  = expected: a number
  = next: write a number

1 error
";
        assert_eq!(text, want);
        assert!(render(&report, true, None).contains("\u{1b}["));
    }

    #[test]
    fn outside_text_cannot_steer_the_terminal() {
        let source = Source::new("p\u{1b}.yaml", "a: \u{1b}[2J\u{9b}\n");
        let d = Diagnostic::new(&RULE, source.place(0..1, ""), "bad \u{1b}]0;x\u{7}").label("\u{202e}x").help("\u{9b}");
        let mut report = Report::new();
        report.add(source, [d]);
        let text = render(&report, false, None);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(!text.contains('\u{202e}'));
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_place() {
        let text = format!("[{}]", "1234567890, ".repeat(5000));
        let source = Source::new("p", &text);
        let d = Diagnostic::new(&RULE, source.place(40000..40003, ""), "here");
        let mut report = Report::new();
        report.add(source, [d]);
        let text = render(&report, false, None);
        assert!(text.len() < 1000 && text.contains("p:1:40001\n"), "{text}");
    }
}
