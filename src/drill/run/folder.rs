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

/// Runs that may want the same folder in one second.
const SAME_SECOND: usize = 100;

/// Makes a folder that is nobody else's for a run whose report was given no place: `wanted`, or with `-2`, `-3` ... behind it
/// where another run took that in the same second. With it the folders that were made, and the one of the logs that
/// [`open`] will make, innermost first.
///
/// # Errors
/// It cannot be made (exit 2).
pub fn claim(wanted: &Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let unusable = |e: std::io::Error| {
        Expected::usage(format!("{}: {e}", wanted.display()), "give --report a folder that can be written")
    };
    for n in 1..=SAME_SECOND {
        let mut name = wanted.as_os_str().to_owned();
        if n > 1 {
            name.push(format!("-{n}"));
        }
        let report = PathBuf::from(name);
        let made = to_be_made(&report);
        if let Some(above) = report.parent() {
            std::fs::create_dir_all(above).map_err(unusable)?;
        }
        match std::fs::create_dir(&report) {
            Ok(()) => return Ok((report, made)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(unusable(e)),
        }
    }
    Err(Expected::could_not(format!("{}: too many runs have begun in this second", wanted.display()), "try again"))
}

/// Removes what [`open`] and [`claim`] made: a run that never began has nothing to report. What its processes said last
/// stands in its error.
pub fn discard(made: &[PathBuf]) {
    let Some(logs) = made.first() else { return };
    for file in std::fs::read_dir(logs).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(file.path());
    }
    for folder in made {
        // The logs may not have been begun.
        if std::fs::remove_dir(folder).is_err() && folder.exists() {
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
        std::fs::write(logs.join("lab.log"), "llmfo: it is refused\n  next: look at it\n").unwrap();
        std::fs::write(logs.join("gateway-region-1.log"), "").unwrap();
        std::fs::write(logs.join("ledger-region-1.redb"), "x").unwrap();
        discard(&made);
        assert!(!dir.path().join("reports").exists() && dir.path().exists());

        // What a killed run has left is no report, and still not this run's.
        std::fs::write(open(&report).unwrap().join("lab.log"), "why").unwrap();
        assert!(to_be_made(&report).is_empty());
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
    /// Two runs of one drill in one second, of which the first never begins.
    #[test]
    fn each_run_without_a_place_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("reports/x-20261130-093012");
        let (first, made) = claim(&wanted).unwrap();
        let (second, of_second) = claim(&wanted).unwrap();
        assert_eq!((&first, &second), (&wanted, &dir.path().join("reports/x-20261130-093012-2")));
        open(&first).unwrap();
        open(&second).unwrap();
        discard(&made);
        assert!(!first.exists() && second.join("logs").exists());
        discard(&of_second);
        assert!(!second.exists());
        // One that failed before it had any logs leaves nothing either.
        std::fs::remove_dir(dir.path().join("reports")).unwrap();
        let (_, made) = claim(&wanted).unwrap();
        discard(&made);
        assert!(!dir.path().join("reports").exists());
    }
}
