//! The lab's policy file: the compiled-in text with this lab's ports and an expiry that lies ahead, and the admission
//! records that make every target of it trusted.

use std::collections::BTreeMap;

use super::provider::fingerprint;
use crate::assets;
use crate::error::{Expected, Result};
use crate::policy::evidence::{self, AdmissionRecord, RecordAdapter, RecordCapabilities, RecordGoldenSet, Verdict};
use crate::policy::{self, Policy};

/// Fills in base URLs by target name and the day of expiry. Edits the text, so that its comments stay.
///
/// # Errors
/// The text lacks one of them: it is then not the lab's policy.
pub fn fill(text: &str, base_urls: &BTreeMap<String, String>, expires: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len() + 256);
    let mut section = String::new();
    let mut target = String::new();
    let mut open: BTreeMap<&str, &String> = base_urls.iter().map(|(k, v)| (k.as_str(), v)).collect();
    let mut stamped = false;
    for line in text.lines() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let key = body.split(':').next().unwrap_or("");
        if indent == 0 && !body.is_empty() && !body.starts_with('#') {
            section = key.to_string();
        } else if section == "targets" && indent == 2 && !body.starts_with('#') {
            target = key.to_string();
        }
        if indent == 0 && key == "expires" {
            out.push_str(&format!("expires: {expires}\n"));
            stamped = true;
        } else if section == "targets"
            && let Some(at) = line.find("base_url: ")
            && let Some(url) = open.remove(target.as_str())
        {
            let (before, rest) = line.split_at(at + "base_url: ".len());
            let end = rest.find([' ', ',', '}']).unwrap_or(rest.len());
            out.push_str(&format!("{before}{url}{}\n", rest.get(end..).unwrap_or("")));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    match open.keys().next() {
        Some(name) => Err(broken(&format!("has no base_url for the target {name}"))),
        None if !stamped => Err(broken("has no expires")),
        None => Ok(out),
    }
}

/// Reads the filled-in text as the gateway will, and checks that it dials what it should.
///
/// # Errors
/// It does not.
pub fn read(text: &str, base_urls: &BTreeMap<String, String>) -> Result<Policy> {
    let (policy, findings) = policy::load("policies/lab.yaml", text.as_bytes());
    let first = || findings.first().map_or_else(String::new, |f| format!(": {}", f.message));
    let policy = policy.ok_or_else(|| broken(&format!("cannot be used{}", first())))?;
    for (name, url) in base_urls {
        if policy.target_named(name).is_none_or(|t| t.base_url != *url) {
            return Err(broken(&format!("does not dial {url} for the target {name}")));
        }
    }
    Ok(policy)
}

/// First token of a scripted provider comes within this: what its admission record gives as baseline.
const FIRST_TOKEN_P95_MS: f64 = 140.0;

/// An admission record for every member of every group, with its path below the evidence folder. It says what the script
/// can do by construction; nothing was measured, so it counts no invariant.
#[must_use]
pub fn records(policy: &Policy, date: &str) -> Vec<(String, AdmissionRecord)> {
    let prompt_version = policy.prompt_version.clone().unwrap_or_default();
    let mut records = Vec::new();
    for (group, g) in &policy.groups {
        let path = g.golden_set.clone().unwrap_or_default();
        let golden = assets::get(&path).map_or("", |a| a.text);
        for target in g.members.iter().map(|id| policy.target(*id)) {
            let record = AdmissionRecord {
                format: evidence::FORMAT,
                group: group.clone(),
                target: target.name.clone(),
                model: target.model.clone(),
                fingerprint: Some(fingerprint(&target.name)),
                prompt_version: prompt_version.clone(),
                // What a script says does not depend on the prompt.
                system_sha256: None,
                adapter: target.adapter.as_ref().map(|a| RecordAdapter { name: a.name.clone(), version: a.version }),
                golden_set: RecordGoldenSet { path: path.clone(), sha256: policy::sha256_hex(golden.as_bytes()) },
                date: date.to_string(),
                verdict: Verdict::Eligible,
                invariants: BTreeMap::new(),
                capabilities: RecordCapabilities {
                    tools: Some(true),
                    json_schema: Some(true),
                    vision: Some(false),
                    context_tokens: target.capabilities.context_tokens,
                },
                baseline_p95_ms: Some(FIRST_TOKEN_P95_MS),
            };
            records.push((AdmissionRecord::path(group, &target.name, &prompt_version), record));
        }
    }
    records
}

fn broken(why: &str) -> Expected {
    Expected::could_not(format!("the compiled-in lab policy {why}"), "this build of llmfo is damaged; build it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_expiry_are_filled_in_and_the_rest_stays() {
        let text = "# head\nversion: x\nexpires: 2000-01-01T00:00:00Z  # filled\ntargets:\n  a:\n    base_url: http://h:1/v1   # note\n    \
                    model: m\n  b: { base_url: http://h:2/v1, model: m }\nroutes:\n  - route: base_url: no\n";
        let urls = BTreeMap::from([
            ("a".to_string(), "http://127.0.0.1:5/v1".to_string()),
            ("b".to_string(), "http://127.0.0.1:6/v1".to_string()),
        ]);
        let filled = fill(text, &urls, "2026-12-01T00:00:00Z").unwrap();
        assert_eq!(
            filled,
            "# head\nversion: x\nexpires: 2026-12-01T00:00:00Z\ntargets:\n  a:\n    base_url: http://127.0.0.1:5/v1   # note\n    \
             model: m\n  b: { base_url: http://127.0.0.1:6/v1, model: m }\nroutes:\n  - route: base_url: no\n"
        );
        let urls = BTreeMap::from([("c".to_string(), "http://x/v1".to_string())]);
        assert!(fill(text, &urls, "x").is_err());
        assert!(fill("targets:\n", &BTreeMap::new(), "x").is_err());
    }

    #[test]
    fn the_compiled_in_policy_can_be_filled_and_every_member_gets_a_valid_record() {
        let urls: BTreeMap<String, String> = super::super::topology::REGIONS
            .iter()
            .map(|(_, provider)| ((*provider).to_string(), format!("http://127.0.0.1:5/{provider}/v1")))
            .collect();
        let filled = fill(crate::assets::LAB_POLICY, &urls, "2026-12-01T00:00:00Z").unwrap();
        let policy = read(&filled, &urls).unwrap();
        // 2026-12-01 is 20,788 days after the epoch.
        assert_eq!(policy.expires_unix_s, Some(20_788 * 86_400));
        let records = records(&policy, "2026-11-30T00:00:00Z");
        assert!(records.len() >= 2);
        for (path, record) in records {
            assert!(path.ends_with(".json"));
            let group = policy.groups.get(&record.group).unwrap();
            let standing = record.standing(&evidence::Wanted {
                group: &record.group,
                target: &record.target,
                prompt_version: policy.prompt_version.as_deref(),
                adapter: None,
                golden_sha256: None,
                now_unix_s: 20_787 * 86_400 + 60,
                max_age_s: group.evidence_max_age.map(|d| d.as_secs_f64()),
            });
            assert!(matches!(standing, evidence::Standing::Eligible { .. }), "{standing:?}");
            assert_eq!(AdmissionRecord::read(record.to_json().as_bytes()).unwrap(), record);
        }
    }
}
