//! Real peers: where one is absent the test says SKIPPED and why; with `LLMFO_REQUIRE_REAL=1` a missing one fails.

use std::path::PathBuf;

/// The program of a real peer, from an environment variable; `None` after saying why the test is skipped.
pub fn program(what: &str, variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from).filter(|p| p.exists());
    if found.is_none() {
        let why = format!("{what} is absent: set {variable} to its program (.ci/run installs it)");
        assert!(std::env::var("LLMFO_REQUIRE_REAL").as_deref() != Ok("1"), "{why}");
        println!("SKIPPED: {why}");
    }
    found
}
