//! For machines: everything, sorted, in a versioned format whose fields are only added.

use serde::Serialize;

use super::{Diagnostic, Place, Report, secrets};
use crate::units::printable;

/// Version of the JSON output.
pub const FORMAT_VERSION: u32 = 1;

/// Longest text of a field, in characters.
const TEXT_CHARS: usize = 2000;

#[derive(Serialize)]
struct Out<'a> {
    format_version: u32,
    valid: bool,
    counts: CountsOut,
    files: Vec<&'a str>,
    diagnostics: Vec<DiagnosticOut<'a>>,
}

#[derive(Serialize)]
struct CountsOut {
    error: usize,
    warning: usize,
    info: usize,
}

#[derive(Serialize)]
struct DiagnosticOut<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    message: String,
    #[serde(flatten)]
    place: PlaceOut<'a>,
    labels: Vec<LabelOut<'a>>,
    expected: Option<String>,
    nearest: Option<String>,
    help: Option<String>,
}

#[derive(Serialize)]
struct PlaceOut<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    pointer: String,
}

#[derive(Serialize)]
struct LabelOut<'a> {
    #[serde(flatten)]
    place: PlaceOut<'a>,
    text: String,
}

/// The report as JSON, with a line end. `valid` follows `deny_warnings` as the exit code does.
#[must_use]
pub fn render(report: &Report, deny_warnings: bool) -> String {
    let counts = report.counts();
    let out = Out {
        format_version: FORMAT_VERSION,
        valid: report.valid(deny_warnings),
        counts: CountsOut { error: counts.error, warning: counts.warning, info: counts.info },
        files: report.files().map(|f| &**f).collect(),
        diagnostics: report.diagnostics().iter().map(|d| one(report, d)).collect(),
    };
    // Strings, numbers and lists only: nothing in it can fail to be written.
    serde_json::to_string_pretty(&out).unwrap_or_default() + "\n"
}

fn one<'a>(report: &Report, d: &'a Diagnostic) -> DiagnosticOut<'a> {
    let safe = |text: &String| printable(&secrets::mask_words(text), TEXT_CHARS);
    DiagnosticOut {
        code: d.rule.code,
        name: d.rule.name,
        severity: d.severity.word(),
        message: safe(&d.message),
        place: place(report, &d.place),
        labels: d.labels.iter().map(|l| LabelOut { place: place(report, &l.place), text: safe(&l.text) }).collect(),
        expected: d.expected.as_ref().map(safe),
        nearest: d.nearest.as_ref().map(safe),
        help: d.help.as_ref().map(safe),
    }
}

fn place<'a>(report: &Report, p: &'a Place) -> PlaceOut<'a> {
    let end = report.source(&p.file).map(|s| s.place(p.end..p.end, ""));
    PlaceOut {
        file: &p.file,
        line: p.line,
        column: p.column,
        end_line: end.as_ref().map_or(p.line, |e| e.line),
        end_column: end.as_ref().map_or(p.column, |e| e.column),
        pointer: printable(&secrets::mask_words(&p.pointer), TEXT_CHARS),
    }
}
