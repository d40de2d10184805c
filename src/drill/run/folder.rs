//! The folder of a report: never over an earlier one, and gone again if there was nothing to report.

use std::path::{Path, PathBuf};

use crate::error::{Expected, Result};

/// Folders that are not there yet and that [`open`] will make, innermost first.
#[must_use]
pub fn to_be_made(report: &Path) -> Vec<PathBuf> {
    let logs = report.join("logs");
    let above = logs.ancestors().filter(|p| !p.as_os_str().is_empty());
    above.take_while(|p| !p.exists()).map(Path::to_path_buf).collect()
}

/// Makes the folder and, in it, the one of the logs, whose path is returned.
///
/// # Errors
/// There is something in it: an earlier report is not replaced, and neither its verdict nor the journals of a run that was
/// killed may be taken for this run's; or it cannot be written (exit 2).
pub fn open(report: &Path) -> Result<PathBuf> {
    let hint = "give --report another folder, or remove that one; without --report every run has its own";
    let taken = |what: &str| Expected::usage(format!("--report {}: {what}", report.display()), hint);
    let unusable = |e: std::io::Error| {
        Expected::usage(format!("{}: {e}", report.display()), "give --report a folder that can be written")
    };
    if report.join("summary.json").symlink_metadata().is_ok() {
        return Err(taken("it holds the report of an earlier run"));
    }
    std::fs::create_dir_all(report).map_err(unusable)?;
    if std::fs::read_dir(report).map_err(unusable)?.next().is_some() {
        return Err(taken(
            "it is not empty; a run that was killed leaves such a folder, and its events are not this run's",
        ));
    }
    let logs = report.join("logs");
    // Of two runs that found it empty one makes this.
    std::fs::create_dir(&logs).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => taken("another run has just begun there"),
        _ => unusable(e),
    })?;
    Ok(logs)
}

/// Removes what [`open`] made: a run that never began has nothing to report. A log with a line in it that `said`, which people
/// are told, does not repeat keeps everything: it may be the only one that says why.
pub fn discard(made: &[PathBuf], said: &str) {
    let Some(logs) = made.first() else { return };
    let files: Vec<PathBuf> = std::fs::read_dir(logs).into_iter().flatten().flatten().map(|e| e.path()).collect();
    if files.iter().filter(|f| f.extension().is_some_and(|e| e == "log")).any(|f| !repeated(f, said)) {
        return;
    }
    for file in files {
        let _ = std::fs::remove_file(file);
    }
    for folder in made {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Longest log that is looked at.
const LOG_BYTES: u64 = 64 * 1024;

fn repeated(log: &Path, said: &str) -> bool {
    let Ok(text) = crate::files::text(log, LOG_BYTES) else { return false };
    let bare = |line: &str| {
        let line = line.trim();
        line.strip_prefix("llmfo: ").or_else(|| line.strip_prefix("next: ")).unwrap_or(line).to_owned()
    };
    text.lines().map(bare).all(|line| said.contains(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_report_is_refused_and_only_what_was_made_and_is_empty_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("reports/x");
        let made = to_be_made(&report);
        assert_eq!(made, [report.join("logs"), report.clone(), dir.path().join("reports")]);
        let logs = open(&report).unwrap();
        // What the error repeats is in nobody's way, and neither is what a process began to keep.
        std::fs::write(logs.join("lab.log"), "llmfo: it is refused\n  next: look at it\n").unwrap();
        std::fs::write(logs.join("gateway-region-1.log"), "").unwrap();
        std::fs::write(logs.join("ledger-region-1.redb"), "x").unwrap();
        discard(&made, "the lab did not start: it is refused\n  next: look at it");
        assert!(!dir.path().join("reports").exists() && dir.path().exists());

        let made = to_be_made(&report);
        std::fs::write(open(&report).unwrap().join("lab.log"), "why").unwrap();
        discard(&made, "the lab did not start");
        assert!(report.join("logs/lab.log").exists());
        assert!(to_be_made(&report).is_empty());
        // What a killed run has left is no report, and still not this run's.
        let refused = open(&report).unwrap_err();
        assert_eq!(refused.exit.code(), 2);
        assert!(refused.what.contains("not empty"), "{}", refused.what);
        std::fs::write(report.join("summary.json"), "{}").unwrap();
        let refused = open(&report).unwrap_err();
        assert_eq!(refused.exit.code(), 2);
        assert!(refused.what.contains("earlier run"));
        // One that was made for it and is empty serves.
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        open(&empty).unwrap();
    }
}
