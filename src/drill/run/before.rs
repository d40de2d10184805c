//! What can be said of a drill before anything is started for it: what is refused then costs nobody a lab.

use std::path::Path;

use super::{Options, dials};
use crate::drill::plan::{Plan, compile};
use crate::error::{Expected, Result};
use crate::lab::topology::Topology;
use crate::policy::{Loaded, Policy};
use crate::spec::drill::DrillFile;

/// Looks whether this drill fits its policy and the embedded lab. A lab that is up says itself what it has.
///
/// # Errors
/// It does not fit: a route, a name or an objective that is not there, or a target that is no provider of the lab.
pub(super) fn fits(options: &Options, file: &DrillFile) -> Result<()> {
    if options.lab.is_some() {
        return Ok(());
    }
    let lab = Topology::names();
    let policy = match &options.policy {
        Some(path) => {
            let (_, policy) = read(path)?;
            dials::names_the_lab_s(path, &policy, &lab)?;
            policy
        }
        None => match crate::policy::load("policies/lab.yaml", crate::assets::LAB_POLICY.as_bytes()).0 {
            Some(policy) => policy,
            None => return Ok(()),
        },
    };
    can_pass(&compile(file, &lab, &policy, options.see)?)
}

/// Reads a policy, with where everything stands in it.
pub(super) fn read(path: &Path) -> Result<(Loaded, Policy)> {
    let most = crate::spec::document::Limits::DEFAULT.max_bytes as u64;
    let bytes = crate::files::bytes(path, most)
        .map_err(|e| Expected::usage(format!("{}: {e}", path.display()), "give --policy a file that can be read"))?;
    let loaded = crate::policy::load_with_places(&path.display().to_string(), &bytes);
    match loaded.policy.clone() {
        Some(policy) => Ok((loaded, policy)),
        None => {
            let first = loaded.diagnostics.first();
            let first = first.map(|d| format!(": line {}: {}", d.place.line, d.message)).unwrap_or_default();
            let what = format!("{} cannot be used{first}", path.display());
            Err(Expected::usage(what, "llmfo validate shows every finding"))
        }
    }
}

/// A drill about recovery, of a route that promises none, could have no verdict.
pub(super) fn can_pass(plan: &Plan) -> Result<()> {
    if plan.declared.recovery_ms.is_some() || !plan.cuts_off() {
        return Ok(());
    }
    let route = &plan.declared.route;
    Err(Expected::usage(
        format!(
            "this can be no PASS: the drill is about recovery, and objectives.recovery_ms of route {route} is not declared"
        ),
        format!(
            "declare it on route {route} of the policy (`objectives: {{ recovery_ms: ... }}`), or as `declare: {{ recovery_ms: ... }}` in a copy of the drill file"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::library::{find, parse};

    fn of(change: impl Fn(String) -> String) -> (u8, String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.yaml");
        std::fs::write(&path, change(crate::assets::LAB_POLICY.to_owned())).unwrap();
        let options = Options {
            seed: 1,
            targets: Vec::new(),
            target_key: None,
            lab: None,
            toxiproxy: None,
            policy: Some(path),
            see: None,
            report: dir.path().join("report"),
            claimed: Vec::new(),
            state: dir.path().join("state"),
        };
        match fits(&options, &parse(&find("region-outage").unwrap()).unwrap()) {
            Ok(()) => (0, String::new(), String::new()),
            Err(e) => (e.exit.code(), e.what, e.hint),
        }
    }

    /// Nothing has been started here: no lab, no gateway, no folder.
    #[test]
    fn what_does_not_fit_is_told_without_a_lab() {
        assert_eq!(of(|p| p).0, 0);
        let (exit, what, hint) = of(|p| p.replace("route: support-chat", "route: chat"));
        assert_eq!((exit, what.ends_with("the policy has no route support-chat")), (4, true), "{what}");
        assert!(hint.contains("llmfo drill show region-outage > my-drill.yaml") && hint.contains("`route:`"), "{hint}");
        let (exit, what, _) = of(|p| p.replace("local-b", "vendor"));
        assert_eq!((exit, what.contains("dials more than the lab: vendor")), (2, true), "{what}");
        let without = |p: String| p.lines().filter(|l| !l.contains("recovery_ms:")).map(|l| format!("{l}\n")).collect();
        let (exit, what, _) = of(without);
        assert_eq!((exit, what.contains("this can be no PASS")), (2, true), "{what}");
    }
}
