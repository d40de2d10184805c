//! For people: the line, a caret, what was expected, what to do.

use std::fmt::Write as _;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

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
/// Narrower than this nothing is cut further.
const LEAST_WIDTH: usize = 60;
/// Columns of a quoted line before the place that is pointed at, where the line has to be cut.
const BEFORE: usize = 20;
/// Columns of the text of a note that begins with `  = `.
const NOTE_INDENT: usize = 6;
/// Width in columns where the terminal's is unknown.
const WIDTH: u16 = 140;

/// Every finding as a snippet of its file, and a last line that counts them.
#[must_use]
pub fn render(report: &Report, color: bool, width: Option<u16>) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let columns = usize::from(width.unwrap_or(WIDTH)).max(LEAST_WIDTH);
    // What is too long is cut here, around the place: the renderer's own cuts count columns otherwise than a terminal does.
    let renderer = renderer.decor_style(DecorStyle::Ascii).term_width(10 * LINE_BYTES);
    // Without a terminal whoever reads it looks for whole lines.
    let fold_at = width.map(|_| columns);
    let mut out = String::new();
    for diagnostic in report.shown().take(SHOWN) {
        out.push_str(&one(report, diagnostic, &renderer, columns, fold_at));
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

fn one(report: &Report, d: &Diagnostic, renderer: &Renderer, columns: usize, fold_at: Option<usize>) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Info => Level::INFO,
    };
    let id = format!("{} {}", d.rule.code, d.rule.name);
    let fold =
        |text: String, used: usize| fold_at.map_or(text.clone(), |width| folded(&text, width.saturating_sub(used)));
    let message = fold(safe(&d.message), id.len() + "warning[]: ".len());
    let file = printable(&d.place.file, MESSAGE_CHARS);
    let mut notes = Vec::new();
    let (window, cut);
    let mut moved = None;
    let mut group = Group::with_title(level.primary_title(message).id(id));
    let near: Vec<&super::Label> = d
        .labels
        .iter()
        .filter(|l| {
            let close = l.place.file == d.place.file
                && l.place.line.abs_diff(d.place.line) < SNIPPET_LINES
                && fits(report, d, l, columns)
                && fold_at.is_none_or(|room| label_fits(report, l, d.place.line, room));
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
        let room = columns.saturating_sub(gutter(d.place.line));
        let label = safe(&d.label);
        if near.is_empty() && too_wide(source, d.place.start, columns, d.place.line) {
            // A line that is longer than the terminal: show what is around the place, and say so.
            let (text, at) = around(source, &d.place, start, end, room);
            cut = text;
            // The renderer would count the column in what is left of the line.
            let column = cut.get(..at.start).map_or(0, |before| before.chars().count()) + 1;
            moved =
                Some((format!("{file}:{first_line}:{column}"), format!("{file}:{}:{}", d.place.line, d.place.column)));
            let used = column + cut.get(at.clone()).map_or(0, |it| it.chars().count()) + 1;
            let fits = used + label.chars().count() <= room;
            if !fits && !label.is_empty() {
                notes.insert(0, format!("here: {label}"));
            }
            let annotation = AnnotationKind::Primary.span(at);
            let annotation = if fits { annotation.label(label) } else { annotation };
            group =
                group.element(Snippet::source(cut.as_str()).path(file).line_start(first_line).annotation(annotation));
        } else {
            window = source.shown(start..end);
            let own = super::Label { place: d.place.clone(), text: d.label.clone() };
            let last = near.iter().map(|l| l.place.line).max().unwrap_or(0);
            let mut annotation = AnnotationKind::Primary.span(clip(source, &d.place, start, end));
            if fold_at.is_none_or(|room| label_fits(report, &own, last, room)) {
                annotation = annotation.label(label);
            } else {
                notes.insert(0, format!("here: {label}"));
            }
            let mut snippet = Snippet::source(window.as_str()).path(file).line_start(first_line).annotation(annotation);
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
        group =
            group.element(Level::NOTE.no_name().message(fold(format!("expected: {}", safe(expected)), NOTE_INDENT)));
    }
    for note in notes {
        group = group.element(Level::NOTE.no_name().message(fold(safe(&note), NOTE_INDENT)));
    }
    if let Some(help) = &d.help {
        group = group.element(Level::NOTE.no_name().message(fold(format!("next: {}", safe(help)), NOTE_INDENT)));
    }
    let out = renderer.render(&[group]);
    match moved {
        Some((counted, right)) => out.replacen(&counted, &right, 1),
        None => out,
    }
}

/// Columns before a quoted line: the number of the line, a bar and blanks.
fn gutter(line: usize) -> usize {
    line.to_string().len() + 3
}

/// True if the line of this place does not fit.
fn too_wide(source: &Source, at: usize, columns: usize, line: usize) -> bool {
    let (start, end) = (source.line_start(at), source.line_end(at));
    let text = source.shown(start..end);
    text.len() > LINE_BYTES || text.chars().count() + gutter(line) > columns
}

/// True if a second place can be shown in the snippet of the first one: no line of it would have to be cut.
fn fits(report: &Report, d: &Diagnostic, label: &super::Label, columns: usize) -> bool {
    let Some(source) = report.source(&d.place.file) else { return true };
    let last = d.place.line.max(label.place.line);
    [d.place.start, label.place.start].iter().all(|at| !too_wide(source, *at, columns, last))
}

/// True if the text beside the carets of a place ends within so many columns. `line`: the last one that is shown, for the
/// width of its number.
fn label_fits(report: &Report, label: &super::Label, line: usize, columns: usize) -> bool {
    let Some(source) = report.source(&label.place.file) else { return true };
    let place = &label.place;
    let (start, end) = (source.line_start(place.start), source.line_end(place.start));
    let at = clip(source, place, start, end);
    let text = source.shown(start..end);
    let carets = text.get(at).map_or(1, |it| it.chars().count().max(1));
    let before = gutter(place.line.max(line)) + place.column.saturating_sub(1);
    before + carets + 1 + safe(&label.text).chars().count() <= columns
}

/// The part of a line around a place, with `…` where it was cut, and where in it the place is.
fn around(source: &Source, place: &Place, start: usize, end: usize, room: usize) -> (String, std::ops::Range<usize>) {
    let at = clip(source, place, start, end);
    let text = source.shown(start..end);
    let line: Vec<char> = text.chars().collect();
    let count = |to: usize| text.get(..to).map_or(line.len(), |before| before.chars().count());
    let (from, to) = (count(at.start), count(at.end));
    // Two columns are for the marks.
    let room = room.saturating_sub(2).max(BEFORE);
    let first = from.saturating_sub(BEFORE).min(line.len().saturating_sub(room));
    let last = (first + room).min(line.len());
    let mut out = String::new();
    if first > 0 {
        out.push('…');
    }
    let head = out.len() + line.iter().skip(first).take(from - first).map(|c| c.len_utf8()).sum::<usize>();
    let shown = to.min(last).saturating_sub(from);
    let span = head..head + line.iter().skip(from).take(shown).map(|c| c.len_utf8()).sum::<usize>();
    out.extend(line.iter().skip(first).take(last - first));
    if last < line.len() {
        out.push('…');
    }
    (out, span)
}

/// Broken at blanks into lines of at most so many columns; the renderer sets them below each other.
fn folded(text: &str, room: usize) -> String {
    let room = room.max(BEFORE);
    let mut out = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
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

    /// Eighty columns: no line is longer, the caret stands under what it points at, and the place is that of the file.
    #[test]
    fn in_a_narrow_terminal_every_line_fits_and_carets_stand_right() {
        let long = format!("  - {{ pool: near, {}target: wrong-name, {} }}", "a: 1, ".repeat(12), "b: 2, ".repeat(12));
        let text = format!("one: 1\n{long}\n");
        let start = text.find("wrong-name").unwrap();
        let source = Source::new("p.yaml", &text);
        let d = Diagnostic::new(&RULE, source.place(start..start + 10, "/x"), "word ".repeat(30).trim_end())
            .label("not one of the names that are known here and elsewhere, and this label is much too long as well")
            .and(source.place(0..3, "/one"), "declared here")
            .expected("word ".repeat(30).trim_end())
            .help("word ".repeat(30).trim_end());
        let mut report = Report::new();
        report.add(source, [d]);
        let text = render(&report, false, Some(80));
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let caret = lines.iter().position(|l| l.contains("^^^")).unwrap();
        let column = |line: &str, what: &str| line.find(what).map(|at| line[..at].chars().count()).unwrap();
        assert_eq!(column(lines[caret], "^^^^^^^^^^"), column(lines[caret - 1], "wrong-name"), "{text}");
        assert!(lines[caret - 1].contains('…') && lines[caret - 1].ends_with('…'), "{text}");
        assert!(text.contains(&format!("--> p.yaml:2:{}\n", start - 7 + 1)), "{text}");
        assert!(text.contains("p.yaml:1:1: declared here") && !text.contains(":::"), "{text}");
        // A line that fits, and what is said of it does not: it stands below.
        let source = Source::new("p.yaml", "    capabilities: { tools: true, json_schema: promptonly }\n");
        let place = source.place(46..56, "/x");
        let d = Diagnostic::new(&RULE, place, "word").label("did you mean `prompt_only`?").help("write it");
        let mut one = Report::new();
        one.add(source, [d]);
        let fits =
            |width| render(&one, false, width).lines().any(|l| l.ends_with("^^^^^^^^^^ did you mean `prompt_only`?"));
        // Four columns of the number and its bar, 46, the ten carets, a blank and 27: 88.
        assert!(fits(None) && fits(Some(88)) && !fits(Some(87)));
        assert!(render(&one, false, Some(80)).lines().all(|l| l.chars().count() <= 80));
        assert!(render(&one, false, Some(80)).contains("  = here: did you mean `prompt_only`?\n"));
        // Where it is no terminal, lines stay whole.
        assert!(render(&report, false, None).contains(&format!("next: {}", "word ".repeat(30).trim_end())));
    }
}
