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

/// Removes what [`open`] made, as far as it is empty: a run that never began has nothing to report. A log with a line in
/// it stays.
pub fn discard(made: &[PathBuf]) {
    if let Some(logs) = made.first() {
        for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|m| m.is_file() && m.len() == 0) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    for folder in made {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
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
        std::fs::write(logs.join("lab.log"), "").unwrap();
        discard(&made);
        assert!(!dir.path().join("reports").exists() && dir.path().exists());

        let made = to_be_made(&report);
        std::fs::write(open(&report).unwrap().join("lab.log"), "why").unwrap();
        discard(&made);
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
