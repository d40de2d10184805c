//! `[P]` Files that are compiled in, so that an installed binary works in an empty folder.

/// A compiled-in file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its path in the repository, with `/`.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
}

impl Asset {
    /// Its name without folder and ending: `lab` for `policies/lab.yaml`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let file = self.path.rsplit('/').next().unwrap_or(self.path);
        file.split('.').next().unwrap_or(file)
    }
}

macro_rules! assets {
    ($($path:literal),* $(,)?) => {
        /// Every compiled-in file. A test holds this list to the folders.
        pub static ALL: &[Asset] = &[$(Asset { path: $path, text: include_str!(concat!("../", $path)) }),*];
    };
}

assets![
    "drills/midstream-break.yaml",
    "drills/region-outage-gateway.yaml",
    "drills/region-outage.yaml",
    "goldensets/support-v3.yaml",
    "policies/dual-channel.yaml",
    "policies/lab.yaml",
    "policies/support.yaml"
];

/// The policy of the embedded lab.
pub static LAB_POLICY: &str = include_str!("../policies/lab.yaml");

/// Unit prices for `llmfo simulate`, as an example.
pub static PRICES: &str = include_str!("../examples/prices.yaml");

/// The compiled-in file at this path.
#[must_use]
pub fn get(path: &str) -> Option<&'static Asset> {
    ALL.iter().find(|a| a.path == path)
}

/// The compiled-in files of a folder (`drills`, `policies`), sorted by path.
pub fn in_folder(folder: &str) -> impl Iterator<Item = &'static Asset> {
    ALL.iter().filter(move |a| a.path.rsplit_once('/').is_some_and(|(dir, _)| dir == folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ships is what the folders hold, in the order that a listing shows.
    #[test]
    fn every_shipped_file_is_compiled_in() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut on_disk = Vec::new();
        for folder in ["drills", "goldensets", "policies"] {
            for entry in std::fs::read_dir(root.join(folder)).into_iter().flatten() {
                let entry = entry.unwrap();
                // `policies/tests` is of the repository alone.
                if entry.file_type().unwrap().is_file() {
                    on_disk.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        on_disk.sort();
        assert_eq!(ALL.iter().map(|a| a.path).collect::<Vec<_>>(), on_disk);
        assert_eq!(in_folder("policies").map(Asset::name).collect::<Vec<_>>(), ["dual-channel", "lab", "support"]);
        assert_eq!(get("policies/lab.yaml").unwrap().text, LAB_POLICY);
    }
}
