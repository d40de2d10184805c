//! Admission records: the written proof that a target may stand in for another. One file per group, target and prompt
//! version: `evidence/<group>/<target>@<prompt_version>.json`. The format is fixed; fields are only added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::printable;

/// Version of [`AdmissionRecord`].
pub const FORMAT: u32 = 1;

/// Largest record that is read, in bytes. An honest one has a few kilobytes.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Who was tested, with what, when, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdmissionRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// The compatibility group.
    pub group: String,
    /// The target by name.
    pub target: String,
    /// The model it resolved to.
    pub model: String,
    /// The provider's fingerprint of that model, where it gives one.
    pub fingerprint: Option<String>,
    /// The prompt version it was tested with.
    pub prompt_version: String,
    /// SHA-256 in hex of the system prompt it was tested with. Records made before this member lack it: then any prompt counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_sha256: Option<String>,
    /// The adapter it was tested with.
    pub adapter: Option<RecordAdapter>,
    /// What it was tested on.
    pub golden_set: RecordGoldenSet,
    /// When: RFC 3339 with a zone.
    pub date: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Counts by invariant.
    pub invariants: BTreeMap<String, InvariantCounts>,
    /// What it was measured to be able to do.
    pub capabilities: RecordCapabilities,
    /// 95th percentile of its latency while tested, in milliseconds.
    pub baseline_p95_ms: Option<f64>,
}

/// The adapter of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordAdapter {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
}

/// The golden set of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordGoldenSet {
    /// Its path as the policy names it.
    pub path: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// Whether a target may stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may.
    Eligible,
    /// It may not.
    Excluded,
}

/// How often an invariant held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvariantCounts {
    /// Held.
    pub passed: u64,
    /// Broken.
    pub failed: u64,
    /// Could not be decided.
    pub inconclusive: u64,
    /// All of them.
    pub n: u64,
}

/// Measured capabilities. Absent: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCapabilities {
    /// Tool calls.
    pub tools: Option<bool>,
    /// JSON schema followed without repair.
    pub json_schema: Option<bool>,
    /// Images.
    pub vision: Option<bool>,
    /// Usable window in tokens.
    pub context_tokens: Option<u64>,
}

/// What a record has to speak about to count.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted<'a> {
    /// The group.
    pub group: &'a str,
    /// The target.
    pub target: &'a str,
    /// The prompt version, where the policy names one.
    pub prompt_version: Option<&'a str>,
    /// The adapter by name and version.
    pub adapter: Option<(&'a str, u32)>,
    /// SHA-256 of the golden set as it is now, in hex, where it is there.
    pub golden_sha256: Option<&'a str>,
    /// Unix seconds.
    pub now_unix_s: i64,
    /// Older is stale.
    pub max_age_s: Option<f64>,
}

/// What a record is worth.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// It speaks about this target and says that it may stand in.
    Eligible {
        /// Its age as a share of the age allowed; from 0.75 on it is worth an alert. Zero where no age is set.
        age_share: f64,
    },
    /// It says that it may not.
    Excluded,
    /// It is too old, or from the future.
    Stale,
    /// It speaks about something else; the reason is given.
    Mismatch(String),
}

impl AdmissionRecord {
    /// Path of the record below the evidence folder.
    #[must_use]
    pub fn path(group: &str, target: &str, prompt_version: &str) -> String {
        let plain = |s: &str| s.replace(['/', '\\'], "_");
        format!("{}/{}@{}.json", plain(group), plain(target), plain(prompt_version))
    }

    /// Reads a record.
    ///
    /// # Errors
    /// One sentence that says what is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<AdmissionRecord, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("the admission record has {} bytes; at most {MAX_BYTES} are read", bytes.len()));
        }
        let mut de = serde_json::Deserializer::from_slice(bytes);
        let record: AdmissionRecord = serde_path_to_error::deserialize(&mut de).map_err(|e| {
            format!("not an admission record: {}: {}", e.path(), printable(&e.inner().to_string(), 200))
        })?;
        de.end().map_err(|_| "not an admission record: text follows its end".to_owned())?;
        record.check().map(|()| record)
    }

    /// The record as it is written to its file.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether it makes sense in itself.
    ///
    /// # Errors
    /// One sentence that says what does not.
    pub fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("admission record of format {}; this llmfo reads format {FORMAT}", self.format));
        }
        if self.date_unix_s().is_none() {
            return Err(format!("`date` is no point in time (RFC 3339): {}", printable(&self.date, 60)));
        }
        let hex = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !hex(&self.golden_set.sha256) {
            return Err("`golden_set.sha256` is not 64 hex digits".to_owned());
        }
        if self.system_sha256.as_deref().is_some_and(|text| !hex(text)) {
            return Err("`system_sha256` is not 64 hex digits".to_owned());
        }
        for (name, c) in &self.invariants {
            let sum = c.passed.checked_add(c.failed).and_then(|s| s.checked_add(c.inconclusive));
            if sum != Some(c.n) {
                return Err(format!("the counts of {} do not add up to its n", printable(name, 60)));
            }
        }
        if self.baseline_p95_ms.is_some_and(|v| !(v.is_finite() && v > 0.0)) {
            return Err("`baseline_p95_ms` is not above zero".to_owned());
        }
        Ok(())
    }

    /// Its date in Unix seconds.
    #[must_use]
    pub fn date_unix_s(&self) -> Option<i64> {
        super::values::expiry(&self.date)
    }

    /// What it is worth for this target now.
    #[must_use]
    pub fn standing(&self, wanted: &Wanted<'_>) -> Standing {
        let differs = |what: &str, has: &str, wants: &str| {
            Standing::Mismatch(format!("{what} is {}, wanted {}", printable(has, 60), printable(wants, 60)))
        };
        if self.group != wanted.group {
            return differs("group", &self.group, wanted.group);
        }
        if self.target != wanted.target {
            return differs("target", &self.target, wanted.target);
        }
        if let Some(prompt) = wanted.prompt_version.filter(|p| *p != self.prompt_version) {
            return differs("prompt version", &self.prompt_version, prompt);
        }
        let adapter = self.adapter.as_ref().map(|a| (a.name.as_str(), a.version));
        if adapter != wanted.adapter {
            let word =
                |a: Option<(&str, u32)>| a.map_or_else(|| "none".to_owned(), |(n, v)| format!("{n} version {v}"));
            return differs("adapter", &word(adapter), &word(wanted.adapter));
        }
        if self.verdict == Verdict::Excluded {
            return Standing::Excluded;
        }
        if let Some(sha256) = wanted.golden_sha256.filter(|s| !s.eq_ignore_ascii_case(&self.golden_set.sha256)) {
            let short = |hex: &str| hex.get(..12).unwrap_or(hex).to_owned();
            return differs("golden set (sha256)", &short(&self.golden_set.sha256), &short(sha256));
        }
        // Ages fit a float exactly: seconds of any calendar date stay below 2^53.
        let age_s = self.date_unix_s().map_or(f64::INFINITY, |d| (wanted.now_unix_s - d) as f64);
        match wanted.max_age_s {
            _ if age_s < -300.0 => Standing::Stale,
            Some(max) if age_s > max => Standing::Stale,
            Some(max) => Standing::Eligible { age_share: (age_s / max).max(0.0) },
            None => Standing::Eligible { age_share: 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        r#"{"format":1,"group":"g","target":"t","model":"m","fingerprint":null,"prompt_version":"p1","adapter":{"name":"a","version":3},
        "golden_set":{"path":"goldensets/g.yaml","sha256":"SHA"},"date":"2026-11-30T00:00:00Z","verdict":"eligible",
        "invariants":{"schema":{"passed":9,"failed":0,"inconclusive":1,"n":10}},
        "capabilities":{"tools":true,"json_schema":true,"vision":null,"context_tokens":32768},"baseline_p95_ms":800.5}"#
            .replace("SHA", &"ab".repeat(32))
    }

    fn wanted() -> Wanted<'static> {
        // 2026-11-30T00:00:00Z is 1,795,996,800 s after the epoch (20,787 days of 86,400 s).
        Wanted {
            group: "g",
            target: "t",
            prompt_version: Some("p1"),
            adapter: Some(("a", 3)),
            golden_sha256: None,
            now_unix_s: 1_795_996_800 + 75,
            max_age_s: Some(100.0),
        }
    }

    #[test]
    fn a_record_survives_writing_and_reading() {
        let record = AdmissionRecord::read(text().as_bytes()).unwrap();
        assert_eq!(AdmissionRecord::read(record.to_json().as_bytes()).unwrap(), record);
        assert_eq!(record.standing(&wanted()), Standing::Eligible { age_share: 0.75 });
        assert_eq!(AdmissionRecord::path("g", "v/x", "p1"), "g/v_x@p1.json");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_sentence() {
        for (from, to, says) in [
            ("\"format\":1", "\"format\":2", "format 2"),
            ("\"n\":10", "\"n\":11", "schema do not add up"),
            ("2026-11-30T00:00:00Z", "yesterday", "no point in time"),
            ("abab", "zz", "64 hex digits"),
            ("\"eligible\"", "\"fine\"", "verdict"),
            ("\"adapter\"", "\"system_sha256\":\"ab\",\"adapter\"", "`system_sha256` is not"),
            ("800.5}", "800.5} x", "text follows"),
            ("800.5", "-1", "above zero"),
        ] {
            let error = AdmissionRecord::read(text().replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(AdmissionRecord::read(&vec![b' '; MAX_BYTES + 1]).unwrap_err().contains("at most"));
    }

    #[test]
    fn a_record_about_something_else_or_too_old_does_not_count() {
        let record = AdmissionRecord::read(text().as_bytes()).unwrap();
        let stands = |w: Wanted<'_>| record.standing(&w);
        assert_eq!(stands(Wanted { now_unix_s: wanted().now_unix_s + 26, ..wanted() }), Standing::Stale);
        assert_eq!(stands(Wanted { now_unix_s: wanted().now_unix_s - 86_400, ..wanted() }), Standing::Stale);
        assert!(matches!(stands(Wanted { prompt_version: Some("p2"), ..wanted() }), Standing::Mismatch(_)));
        assert!(matches!(stands(Wanted { adapter: None, ..wanted() }), Standing::Mismatch(_)));
        assert!(matches!(stands(Wanted { adapter: Some(("a", 4)), ..wanted() }), Standing::Mismatch(_)));
        let same = "AB".repeat(32);
        assert!(matches!(stands(Wanted { golden_sha256: Some(&same), ..wanted() }), Standing::Eligible { .. }));
        let other = "cd".repeat(32);
        let Standing::Mismatch(why) = stands(Wanted { golden_sha256: Some(&other), ..wanted() }) else { panic!() };
        assert_eq!(why, "golden set (sha256) is abababababab, wanted cdcdcdcdcdcd");
        let excluded = AdmissionRecord { verdict: Verdict::Excluded, ..record.clone() };
        assert_eq!(excluded.standing(&wanted()), Standing::Excluded);
    }
}
