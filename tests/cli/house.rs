//! The rules of the house, held to the code: who may use whom, pure modules stay pure, files stay small.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which module may use which (besides itself). `units`, `error` and `assets` are open to every module.
const MAY_USE: &[(&str, &[&str])] = &[
    ("exit", &["units", "error", "assets"]),
    ("error", &["exit"]),
    ("units", &["exit"]),
    ("assets", &["exit"]),
    ("files", &[]),
    ("diag", &[]),
    ("term", &["exit"]),
    ("spec", &["diag"]),
    ("policy", &["spec", "diag"]),
    ("lint", &["policy", "spec", "diag"]),
    ("router", &["policy"]),
    ("wire", &[]),
    ("check", &["wire", "spec"]),
    ("measure", &[]),
    ("event", &[]),
    ("telemetry", &["event", "measure"]),
    ("upstream", &["files", "wire", "policy"]),
    (
        "gateway",
        &["files", "router", "wire", "check", "event", "telemetry", "upstream", "policy", "spec", "lint", "diag"],
    ),
    ("fault", &["wire"]),
    ("load", &["wire", "upstream", "spec", "measure"]),
    ("lab", &["wire", "fault", "load", "policy", "spec", "measure"]),
    (
        "drill",
        &["files", "spec", "policy", "fault", "lab", "load", "sim", "check", "measure", "event", "diag", "report"],
    ),
    ("bench", &["files", "lab", "load", "upstream", "measure", "report"]),
    ("report", &["measure", "event"]),
    ("sim", &["router", "event", "measure", "check", "spec", "policy", "report"]),
    (
        "cli",
        &[
            "exit",
            "files",
            "diag",
            "term",
            "spec",
            "policy",
            "lint",
            "router",
            "wire",
            "check",
            "measure",
            "event",
            "telemetry",
            "upstream",
            "gateway",
            "fault",
            "load",
            "lab",
            "drill",
            "report",
            "sim",
            "bench",
        ],
    ),
    ("main", &["cli", "exit", "term"]),
];

const OPEN_TO_ALL: &[&str] = &["units", "error", "assets"];

/// Modules that decide and therefore touch nothing: no clock, input, output, async, environment or global randomness.
const PURE: &[&str] = &["diag", "spec", "policy", "lint", "router", "wire", "check", "measure", "event", "sim"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The module a source file belongs to: the first part of its path below `src/`.
fn module_of(path: &Path) -> String {
    let below = path.strip_prefix(root().join("src")).unwrap();
    below.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// The code of a file without comments and without what stands behind `#[cfg(test)]` (by convention the end of a file).
fn code_of(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        lines.push(line.split("//").next().unwrap_or_default());
    }
    lines.join("\n")
}

/// Modules named by `crate::x` (or, in the binary, `llmfo::x`), also inside `use crate::{a, b::c}`.
fn uses(code: &str, krate: &str) -> Vec<String> {
    let mut found = Vec::new();
    let needle = format!("{krate}::");
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    for (at, _) in code.match_indices(&needle) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + needle.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 1;
            let mut start = true;
            for (i, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => start = true,
                    c if start && depth == 1 && c.is_alphabetic() => {
                        found.push(word(&group[i..]));
                        start = false;
                    }
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
        } else {
            found.push(word(rest));
        }
    }
    found.retain(|m| m.chars().next().is_some_and(char::is_lowercase));
    found
}

#[test]
fn the_reader_of_imports_finds_what_it_should_find() {
    let code = "use crate::{units::Ts, policy::{A, b}, wire};\nfn f() { crate::router::go(); mycrate::no(); }";
    assert_eq!(uses(code, "crate"), ["units", "policy", "wire", "router"]);
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut wrong = Vec::new();
    for path in files {
        let module = module_of(&path);
        if module == "lib" {
            continue;
        }
        let Some(may) = allowed.get(module.as_str()) else {
            wrong.push(format!(
                "{module}: not in the table (add it to tests/cli/house.rs, with its reason in the crate doc)"
            ));
            continue;
        };
        let code = code_of(&fs::read_to_string(&path).unwrap());
        let krate = if module == "main" { "llmfo" } else { "crate" };
        for used in uses(&code, krate) {
            if used != module && !may.contains(&used.as_str()) && !OPEN_TO_ALL.contains(&used.as_str()) {
                wrong.push(format!("{}: {module} may not use {used}", path.display()));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn pure_modules_deny_clocks_and_io_at_their_head() {
    for module in PURE {
        let dir = root().join("src").join(module);
        if !dir.exists() {
            continue;
        }
        let head = fs::read_to_string(dir.join("mod.rs")).unwrap();
        assert!(
            head.contains("#![deny(clippy::disallowed_methods, clippy::disallowed_types)]"),
            "src/{module}/mod.rs lacks the deny line that keeps it pure"
        );
    }
}

#[test]
fn nothing_unfinished_is_left_in_the_sources() {
    let mut files = Vec::new();
    for dir in ["src", "tests", "examples", "benches"] {
        if root().join(dir).exists() {
            sources(&root().join(dir), &mut files);
        }
    }
    let marks = ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "XX".to_owned() + "X"];
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for mark in &marks {
            assert!(!text.contains(mark.as_str()), "{} still says {mark}", path.display());
        }
    }
}

#[test]
fn every_direct_dependency_has_its_line_in_the_docs() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let docs = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let mut inside = false;
    let mut missing = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]" || line == "[dev-dependencies]";
        } else if inside
            && let Some((name, _)) = line.split_once(" =")
            && !docs.contains(&format!("`{}`", name.trim()))
        {
            missing.push(name.trim().to_owned());
        }
    }
    assert!(missing.is_empty(), "docs/dependencies.md says nothing of {missing:?}");
}
