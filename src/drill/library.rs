//! Drills by name (compiled in) or by path.

use std::path::Path;

use crate::assets::{self, Asset};
use crate::diag::{Diagnostic, Source};
use crate::error::{Expected, Result};
use crate::spec::document::Limits;
use crate::spec::drill::{DrillFile, read};
use crate::spec::names::nearest;
use crate::units::printable;

/// A drill file with where it came from.
#[derive(Clone, Debug)]
pub struct Found {
    /// `built in: drills/x.yaml`, or the path.
    pub source: String,
    /// Its text.
    pub text: String,
}

/// The drills that ship with llmfo, by name.
pub fn built_in() -> impl Iterator<Item = &'static Asset> {
    assets::in_folder("drills")
}

/// The drill of this name, or the file at this path. What has a slash, ends in `.yaml` or `.yml`, is a path.
///
/// # Errors
/// There is no such drill (exit 4); the file cannot be read (exit 2).
pub fn find(name: &str) -> Result<Found> {
    let shown = printable(name, 200);
    let is_path = name.contains('/') || name.ends_with(".yaml") || name.ends_with(".yml");
    if !is_path {
        if let Some(asset) = built_in().find(|a| a.name() == name) {
            return Ok(Found { source: format!("built in: {}", asset.path), text: asset.text.into() });
        }
        let known: Vec<&str> = built_in().map(Asset::name).collect();
        let near = nearest(name, known.iter().copied()).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
        let hint = format!("{near}there are: {}; a file is given by its path", known.join(", "));
        return Err(Expected::nothing(format!("there is no drill {shown}"), hint));
    }
    let unreadable = |why: String| Expected::usage(format!("{shown}: {why}"), "give the path of a drill file");
    let text = crate::files::text(Path::new(name), Limits::DEFAULT.max_bytes as u64).map_err(unreadable)?;
    Ok(Found { source: shown, text })
}

/// A drill that was read, or every problem in its file.
pub type Parsed = std::result::Result<DrillFile, Box<(Source, Vec<Diagnostic>)>>;

/// Reads a found drill.
///
/// # Errors
/// Every problem in the file, with its source.
pub fn parse(found: &Found) -> Parsed {
    let (file, problems, doc) = read(&found.source, found.text.as_bytes());
    match file {
        Some(file) => Ok(file),
        None => Err(Box::new((doc.into_source(), problems))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn the_built_in_drills_are_good_and_named_as_their_files() {
        let mut n = 0;
        for asset in built_in() {
            let file = parse(&find(asset.name()).unwrap()).unwrap_or_else(|e| panic!("{}: {:#?}", asset.path, e.1));
            assert_eq!(file.name, asset.name());
            assert_eq!(crate::spec::drill::contradictions(&file), []);
            n += 1;
        }
        assert_eq!(n, 3);
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_its_neighbours() {
        let e = find("region-outag").unwrap_err();
        assert_eq!(e.exit, Exit::Nothing);
        assert!(e.hint.contains("did you mean region-outage?") && e.hint.contains("midstream-break"), "{e}");
        assert_eq!(find("/nowhere/x.yaml").unwrap_err().exit, Exit::Usage);
        assert!(find("/dev/zero").unwrap_err().what.ends_with("it is no file"));
    }
}
