//! The deliberately bad gateway, built if need be: a test binary that runs alone does not build examples.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Where it is.
pub fn bad_gateway() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf();
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--example", "bad-gateway"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        // What cargo tells a test about itself would look like a change to build scripts, and rebuild half of everything, twice:
        // for this build and for the next that is not told the same.
        for (name, _) in std::env::vars() {
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_BIN_") || name == "CARGO_MANIFEST_DIR" {
                build.env_remove(name);
            }
        }
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        profile.join("examples/bad-gateway")
    })
}
