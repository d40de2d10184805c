//! Markdown pieces. Text from outside is made safe first: no control characters, no table or HTML syntax.

use crate::units::printable;

/// Longest cell, in characters.
const CELL_CHARS: usize = 300;

/// Text that stands for itself inside a table cell or a paragraph.
#[must_use]
pub fn text(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in printable(raw, CELL_CHARS).chars() {
        match c {
            '|' | '`' | '*' | '_' | '[' | ']' | '#' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(c),
        }
    }
    out
}

/// A table. Cells are made safe; rows shorter than the head are filled up.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&head.iter().map(|h| text(h)).collect::<Vec<_>>());
    out.push_str(&format!("|{}\n", " --- |".repeat(head.len())));
    for row in rows {
        let mut cells: Vec<String> = row.iter().map(|c| text(c)).collect();
        cells.resize(head.len(), String::new());
        out.push_str(&line(&cells));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_cannot_break_out_of_its_cell() {
        let got = table(&["a", "b"], &[vec!["x|y <b>".into()], vec!["1".into(), "2\u{1b}[2J".into()]]);
        assert_eq!(got, "| a | b |\n| --- | --- |\n| x\\|y &lt;b&gt; |  |\n| 1 | 2\\\\u{1b}\\[2J |\n");
    }
}
