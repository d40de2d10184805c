//! Tables for the terminal: aligned columns, no frames to copy by accident, wrapped to the width of the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// A line under the head and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Width used when the terminal's is not known: a report pasted into a ticket stays readable.
const DEFAULT_WIDTH: u16 = 140;
/// Narrower than this a table is unreadable however it is wrapped.
const LEAST_WIDTH: u16 = 60;

/// A table as text. Columns named in `right` are aligned to the right.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>], right: &[&str], width: Option<u16>) -> String {
    let mut t = Table::new();
    t.load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.unwrap_or(DEFAULT_WIDTH).max(LEAST_WIDTH))
        .set_header(head.iter().map(Cell::new));
    for row in rows {
        t.add_row(row.iter().map(|c| Cell::new(crate::units::printable(c, 400))));
    }
    for (i, name) in head.iter().enumerate() {
        if right.contains(name)
            && let Some(column) = t.column_mut(i)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    t.lines().map(|l| l.trim_end().to_string()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_display_width() {
        let rows = vec![vec!["漢字".into(), "1".into()], vec!["abcd".into(), "22".into()]];
        let got = table(&["a", "n"], &rows, &["n"], Some(80));
        let lines: Vec<&str> = got.lines().collect();
        assert!(lines.iter().any(|l| l.contains("漢字")) && lines.iter().any(|l| l.ends_with("22")), "{got}");
    }

    #[test]
    fn a_cell_cannot_steer_the_terminal() {
        let got = table(&["a"], &[vec!["\u{1b}[2J".into()]], &[], None);
        assert!(!got.contains('\u{1b}'), "{got}");
    }
}
