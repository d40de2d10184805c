//! The table of codes against the page, and against the names that the source uses.

use super::codes::*;

#[test]
fn codes_are_unique_and_the_first_six_are_fixed() {
    let first: Vec<_> = CODES.iter().take(6).map(|c| c.name).collect();
    assert_eq!(
        first,
        [
            "no_failover",
            "truncated_as_success",
            "spliced_answer",
            "duplicate_effect",
            "deadline_missed",
            "fault_bypassed"
        ]
    );
    let mut names: Vec<_> = all().map(|c| c.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CODES.len() + ENDINGS.len());
}

/// Every code says what it means, and the page lists it with the words of this table.
#[test]
fn every_code_has_its_text_and_stands_in_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/drill.md")).unwrap();
    for code in all() {
        for text in [code.text, code.customer, code.cause, code.next] {
            assert!(text.len() > 10, "{}", code.name);
        }
        for (sentence, place) in [(code.customer, "customer"), (code.cause, "cause")] {
            assert!(sentence.ends_with('.'), "{} {place}", code.name);
        }
        let row = format!("| `{}` | {} |", code.name, code.text);
        assert!(page.contains(&row), "docs/drill.md lacks: {row}");
    }
}

/// What stops a drill or spoils it is in the table, so that `explain` knows it: every name that the source asks with.
#[test]
fn every_name_that_the_source_uses_is_in_the_table() {
    fn texts(dir: &std::path::Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                texts(&path, out);
            } else if path.extension().is_some_and(|x| x == "rs") && !path.ends_with("codes.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.push(text.split("#[cfg(test)]").next().unwrap().to_owned());
            }
        }
    }
    let mut sources = Vec::new();
    texts(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/drill")), &mut sources);
    let mut found = 0;
    for source in sources {
        for mark in ["findings.add(\"", "findings\n            .add(\"", "stops.ask(\"", "add_cases(\"", "by: \""] {
            for rest in source.split(mark).skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(all().any(|c| c.name == name), "{name}");
                found += 1;
            }
        }
    }
    assert!(found > 25, "{found}");
}
