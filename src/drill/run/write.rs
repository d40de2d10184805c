//! Writes a report. The summary comes last and by rename: where there is one, the whole report is there.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::drill::evidence::Evidence;
use crate::drill::judge::Judgement;
use crate::drill::report::{RunFacts, markdown, summary};
use crate::error::{Expected, Result};

/// The summary until the whole report is on the disk. It says nothing by its name to who looks for a verdict.
pub const UNFINISHED: &str = "summary.json.unfinished";

/// Writes all files of a report into a folder that is there.
///
/// # Errors
/// One of them cannot be written whole; then there is no `summary.json`.
pub fn report(
    dir: &Path,
    evidence: &Evidence,
    judgement: &Judgement,
    facts: &RunFacts,
    journal: String,
    log: Option<&Path>,
) -> Result<()> {
    let failed = |path: &Path, why: &dyn std::fmt::Display| {
        Expected::could_not(
            format!("{}: {why}", path.display()),
            "the drill is over and restored, and its report is not whole: give --report another folder",
        )
    };
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        durable(&path, text.as_bytes()).map_err(|e| failed(&path, &e))
    };
    write("requests.jsonl", &lines(&evidence.requests).map_err(|e| failed(dir, &e))?)?;
    write("providers.jsonl", &lines(&evidence.providers).map_err(|e| failed(dir, &e))?)?;
    write("effects.jsonl", &lines(&evidence.effects).map_err(|e| failed(dir, &e))?)?;
    write("journal.jsonl", &journal)?;
    write("report.md", &markdown(evidence, judgement, facts))?;
    write("wal.jsonl", &log.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default())?;
    let summary = serde_json::to_string_pretty(&summary(evidence, judgement, facts)).map_err(|e| failed(dir, &e))?;
    let (unfinished, finished) = (dir.join(UNFINISHED), dir.join("summary.json"));
    write(UNFINISHED, &(summary + "\n")).inspect_err(|_| drop(std::fs::remove_file(&unfinished)))?;
    std::fs::rename(&unfinished, &finished).map_err(|e| failed(&finished, &e))?;
    // The name is there after a crash as well.
    File::open(dir).and_then(|folder| folder.sync_all()).map_err(|e| failed(dir, &e))
}

fn lines<T: serde::Serialize>(rows: &[T]) -> serde_json::Result<String> {
    let mut out = String::new();
    for row in rows {
        let mut row = serde_json::to_value(row)?;
        crate::units::told_durations(&mut row);
        out.push_str(&row.to_string());
        out.push('\n');
    }
    Ok(out)
}

/// A disk that is full may say so only when what was written leaves the memory.
fn durable(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::judge::judge;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Each file in turn cannot be written: a folder of its name is in the way, as a full disk would be.
    #[test]
    fn a_summary_is_there_only_when_the_whole_report_is() {
        let ev = Evidence::default();
        let j = judge(&ev);
        let write = |dir: &Path| report(dir, &ev, &j, &RunFacts::default(), "{}\n".into(), None);
        let good = tempfile::tempdir().unwrap();
        write(good.path()).unwrap();
        let all = [
            "effects.jsonl",
            "journal.jsonl",
            "providers.jsonl",
            "report.md",
            "requests.jsonl",
            "summary.json",
            "wal.jsonl",
        ];
        assert_eq!(names(good.path()), all);
        for name in all.iter().filter(|n| **n != "summary.json").chain(&[UNFINISHED]) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join(name)).unwrap();
            let error = write(dir.path()).unwrap_err();
            assert_eq!(error.exit.code(), 3, "{name}");
            assert!(error.what.contains(name), "{name}: {error}");
            assert!(!dir.path().join("summary.json").exists(), "{name}");
        }
    }

    /// `/dev/full` takes nothing, as a full disk does.
    #[test]
    fn a_full_disk_is_noticed() {
        assert_eq!(durable(Path::new("/dev/full"), b"x").unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }
}
