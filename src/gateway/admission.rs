//! Reads the admission records beside the policy and tells the core what each is worth. Once, at start: a record that becomes
//! stale later is the core's own business, by its time.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::admitted::{Admissions, Identity};
use super::golden::Sets;
use crate::event::Event;
use crate::policy::evidence::{AdmissionRecord, MAX_BYTES, Standing as Worth, Wanted};
use crate::policy::{Group, Policy, TargetId};
use crate::router::{Evidence, Standing};
use crate::units::{Ts, printable};

/// From this part of the age allowed on, a record is worth an alert (design, section 3).
const AGEING: f64 = 0.75;

/// What the records say, and what a person should hear about them.
pub struct Read {
    /// For the core.
    pub records: Vec<Evidence>,
    /// For people.
    pub alerts: Vec<Event>,
    /// Against which answers and prompts are held.
    pub admitted: Admissions,
}

/// Reads them. `sets`: the golden sets as they are now; a record about another one is evidence of nothing.
pub fn read(policy: &Policy, folder: &Path, now: Ts, sets: &Sets) -> Read {
    let (mut records, mut alerts, mut admitted) = (Vec::new(), Vec::new(), Admissions::default());
    for (name, group) in &policy.groups {
        for target in &group.members {
            let (record, why, identity) = one(policy, folder, now, (name, group, sets), *target);
            if let Some(hash) = &record.prompt_sha256 {
                admitted.prompts.insert((name.clone(), *target), hash.clone());
            }
            if let Some(identity) = identity {
                admitted.identities.entry(*target).or_default().push(identity);
            }
            // In a first tier these do not keep it out, so a person must look.
            if let Some(why) = why {
                let target_name = policy.target(*target).name.clone();
                let text = format!(
                    "{}: its admission record for the group {}: {why}",
                    printable(&target_name, 60),
                    printable(name, 60)
                );
                alerts.push(Event::Alert {
                    target: Some(target_name),
                    client: None,
                    route: None,
                    reason: "evidence".to_owned(),
                    text,
                });
            }
            records.push(record);
        }
    }
    Read { records, alerts, admitted }
}

fn one(
    policy: &Policy,
    folder: &Path,
    now: Ts,
    (group_name, group, sets): (&str, &Group, &Sets),
    target: TargetId,
) -> (Evidence, Option<String>, Option<Identity>) {
    let t = policy.target(target);
    let verdict = |standing, stale_at, baseline_p95_ms| Evidence {
        group: group_name.to_owned(),
        target,
        standing,
        stale_at,
        baseline_p95_ms,
        prompt_sha256: None,
    };
    let path = AdmissionRecord::path(group_name, &t.name, policy.prompt_version.as_deref().unwrap_or(""));
    let Some(file) = find(folder, &path) else {
        return (verdict(Standing::Missing, None, None), Some(format!("evidence/{path} is not there")), None);
    };
    let record = match read_bounded(&file).and_then(|bytes| AdmissionRecord::read(&bytes)) {
        Ok(record) => record,
        // What it says is not known: it admits nobody to a later tier.
        Err(why) => return (verdict(Standing::Mismatch, None, None), Some(why), None),
    };
    let max_age_s = group.evidence_max_age.map(|d| d.as_secs_f64());
    let wanted = Wanted {
        group: group_name,
        target: &t.name,
        prompt_version: policy.prompt_version.as_deref(),
        adapter: t.adapter.as_ref().map(|a| (a.name.as_str(), a.version)),
        golden_sha256: sets.get(group_name).map(|set| set.sha256.as_str()),
        now_unix_s: unix_s(),
        max_age_s,
    };
    let baseline = record.baseline_p95_ms.map(|ms| ms.round().clamp(1.0, 3_600_000.0) as u64);
    let (evidence, why) = match record.standing(&wanted) {
        Worth::Eligible { age_share } => {
            let stale_at =
                max_age_s.map(|max| now + Duration::from_secs_f64((max * (1.0 - age_share)).clamp(0.0, 1e9)));
            let failed: u64 = record.invariants.values().map(|c| c.failed).sum();
            let broken = (failed > 0).then(|| format!("it says eligible with {failed} cases failed"));
            let why = (age_share >= AGEING).then(|| format!("{:.0} % of its age is used up", age_share * 100.0));
            (verdict(Standing::Eligible, stale_at, baseline), broken.or(why))
        }
        Worth::Excluded => (verdict(Standing::Excluded, None, baseline), Some("it excludes the target".to_owned())),
        Worth::Stale => (verdict(Standing::Stale, None, baseline), Some("it is too old".to_owned())),
        Worth::Mismatch(why) => (verdict(Standing::Mismatch, None, None), Some(why)),
    };
    let identity = Identity { model: record.model, fingerprint: record.fingerprint };
    let prompt_sha256 = record.system_sha256.map(|hex| hex.to_ascii_lowercase());
    (Evidence { prompt_sha256, ..evidence }, why, Some(identity))
}

/// Below the policy's folder, then its parent.
fn find(folder: &Path, path: &str) -> Option<PathBuf> {
    let here = folder.join("evidence").join(path);
    let above = folder.join("..").join("evidence").join(path);
    [here, above].into_iter().find(|p| p.is_file())
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    // One byte more than is read, so that a longer file is refused for its length.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    Ok(bytes)
}

fn unix_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}
