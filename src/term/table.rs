//! Tables for the terminal: aligned columns, no frames to copy by accident, wrapped to the width of the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// A line under the head and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Width used when the terminal's is not known: a report pasted into a ticket stays readable.
pub const DEFAULT_WIDTH: u16 = 100;
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

/// Lines that are longer than the terminal is wide, broken at blanks and indented two columns further; a word that is longer
/// than that (a path) stays whole.
#[must_use]
pub fn wrap(text: &str, width: Option<u16>) -> String {
    let width = usize::from(width.unwrap_or(DEFAULT_WIDTH).max(LEAST_WIDTH));
    let mut out = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut now = " ".repeat(indent);
        let mut filled = false;
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            if filled && now.trim_end().chars().count() + gap_of(&now) + word.chars().count() > width {
                now.truncate(now.trim_end().len());
                out.push(std::mem::replace(&mut now, " ".repeat(indent + 2)));
            }
            now.push_str(word);
            filled = true;
            rest = behind.trim_start();
            // Runs of blanks inside a line stay, as columns do.
            now.push_str(&behind[..behind.len() - rest.len()]);
        }
        now.truncate(now.trim_end().len());
        let whole = line.chars().count() <= width;
        out.push(if whole { line.to_owned() } else { now });
    }
    out.join("\n")
}

/// Blanks at the end.
fn gap_of(text: &str) -> usize {
    text.chars().rev().take_while(|c| c.is_whitespace()).count()
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
    fn long_lines_are_broken_at_blanks_and_short_ones_are_left_alone() {
        let long = format!("  {} end", "word ".repeat(20).trim_end());
        let got = wrap(&format!("a  b\n{long}\n{}", "x".repeat(90)), Some(60));
        let lines: Vec<&str> = got.lines().collect();
        assert_eq!(lines[0], "a  b");
        assert_eq!(lines[1], format!("  {}", "word ".repeat(11).trim_end()));
        assert_eq!(lines[2], format!("    {}end", "word ".repeat(9)));
        assert_eq!(lines[3], "x".repeat(90));
        // What stands in columns keeps its distance also in a line that is broken.
        let at = wrap(&format!("  6.27 s  outage: {}", "word ".repeat(20).trim_end()), Some(60));
        assert!(
            at.starts_with("  6.27 s  outage: word") && at.lines().all(|l| l.len() <= 60 && !l.ends_with(' ')),
            "{at}"
        );
    }

    #[test]
    fn a_cell_cannot_steer_the_terminal() {
        let got = table(&["a"], &[vec!["\u{1b}[2J".into()]], &[], None);
        assert!(!got.contains('\u{1b}'), "{got}");
    }
}
