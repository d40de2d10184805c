//! Findings in several texts, counted and sorted.

use std::collections::BTreeMap;

use super::{Diagnostic, FileName, Severity, Source};

/// How many of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Errors.
    pub error: usize,
    /// Warnings.
    pub warning: usize,
    /// Infos.
    pub info: usize,
}

/// Findings with the texts they point into.
#[derive(Clone, Debug, Default)]
pub struct Report {
    sources: BTreeMap<FileName, Source>,
    diagnostics: Vec<Diagnostic>,
    hides_info: bool,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new() -> Report {
        Report::default()
    }

    /// Adds a text and its findings.
    pub fn add(&mut self, source: Source, diagnostics: impl IntoIterator<Item = Diagnostic>) {
        self.sources.insert(source.name().clone(), source);
        self.diagnostics.extend(diagnostics);
        self.diagnostics.sort_by(|a, b| {
            (&a.place.file, a.place.start, a.severity, a.rule.code, &a.message).cmp(&(
                &b.place.file,
                b.place.start,
                b.severity,
                b.rule.code,
                &b.message,
            ))
        });
    }

    /// For people only errors and warnings are shown; the rest is counted.
    #[must_use]
    pub fn hide_info(self, hide: bool) -> Report {
        Report { hides_info: hide, ..self }
    }

    /// The findings that people are shown.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| !(self.hides_info && d.severity == Severity::Info))
    }

    /// The text of this name.
    #[must_use]
    pub fn source(&self, name: &FileName) -> Option<&Source> {
        self.sources.get(name)
    }

    /// Names of the texts, sorted.
    pub fn files(&self) -> impl Iterator<Item = &FileName> {
        self.sources.keys()
    }

    /// The findings by file and place.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// How many of each severity.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |s| self.diagnostics.iter().filter(|d| d.severity == s).count();
        Counts { error: of(Severity::Error), warning: of(Severity::Warning), info: of(Severity::Info) }
    }

    /// No errors; with `deny_warnings` no warnings either.
    #[must_use]
    pub fn valid(&self, deny_warnings: bool) -> bool {
        let counts = self.counts();
        counts.error == 0 && !(deny_warnings && counts.warning > 0)
    }
}
