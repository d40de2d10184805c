//! `llmfo drill list` and `llmfo drill show`: the files of drills.

use serde_json::json;

use super::Global;
use super::drill::Format;
use super::policy_file::{self, Kind};
use crate::diag;
use crate::drill::library::{self, Found};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::spec::drill::DrillFile;
use crate::term::table::table;

/// Arguments of `drill list`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// How to write it.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Arguments of `drill show`.
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// Name of a built-in drill, or the path of a file.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How to write it: the file as it is, or one JSON value with the file and what it says.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// The drills that are built in.
///
/// # Errors
/// A broken pipe.
pub(super) fn list(global: &Global, args: &ListArgs) -> Result<Exit> {
    let mut rows = Vec::new();
    for asset in library::built_in() {
        let found = library::find(asset.name())?;
        if let Ok(file) = library::parse(&found) {
            rows.push((file.name, file.description));
        }
    }
    let text = match args.format {
        Format::Json => {
            let list: Vec<_> = rows.iter().map(|(n, d)| json!({"name": n, "description": d})).collect();
            json!(list).to_string()
        }
        Format::Human => {
            let cells: Vec<Vec<String>> = rows.into_iter().map(|(n, d)| vec![n, d]).collect();
            table(&["drill", "shows"], &cells, &[], global.term.width)
        }
    };
    global.term.out(&text);
    Ok(Exit::Good)
}

/// A file that is no good drill is shown as it is; as JSON there is nothing to say of it.
pub(super) fn show(global: &Global, args: &ShowArgs) -> Result<Exit> {
    let found = library::find(&args.name)?;
    let text = match args.format {
        Format::Human => found.text,
        Format::Json => {
            let file = read(global, &found)?;
            json!({
                "format": 1,
                "name": file.name,
                "description": file.description,
                "source": found.source,
                "drill": file,
                "text": found.text,
            })
            .to_string()
        }
    };
    global.term.out(&text);
    Ok(Exit::Good)
}

/// Reads a drill; problems are shown as `validate` shows them.
pub(super) fn read(global: &Global, found: &Found) -> Result<DrillFile> {
    library::parse(found).map_err(|problems| {
        let (doc, _) = crate::spec::document::read("", found.text.as_bytes(), &crate::spec::document::Limits::DEFAULT);
        if let Err(other) = policy_file::of_kind(Kind::Drill, &doc, &crate::units::printable(&found.source, 300)) {
            return other;
        }
        let (source, diagnostics) = *problems;
        let mut report = diag::Report::new();
        report.add(source, diagnostics);
        global.term.err(&diag::render_human(&report, global.term.err_color, global.term.width));
        Expected::usage(format!("{} cannot be used", found.source), "mend what is named above")
    })
}
