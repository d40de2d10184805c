//! A file of another type than is needed is said so in one line, whoever is given it.

use std::path::Path;
use std::process::Command;

fn said(args: &[&str]) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .current_dir(root)
        .args(args)
        .env_remove("LLMFO_POLICY")
        .env("XDG_STATE_HOME", std::env::temp_dir().join("llmfo-kinds-nothing"))
        .output()
        .unwrap();
    assert!(out.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&out.stdout));
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

/// What people give by mistake: one sentence what it is and one what reads it, not a list of the keys that it lacks.
#[test]
fn what_is_no_policy_at_all_is_known_too() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let summary = put(
        "summary.json",
        r#"{"format":1,"drill":"region-outage","verdict":"PASS","findings":[],"promises":{},"rounds":[]}"#,
    );
    let record = put(
        "b@p1.json",
        r#"{"format":1,"group":"g","target":"b","model":"m","prompt_version":"p1","verdict":"eligible"}"#,
    );
    let golden = put("golden.yaml", "name: support\ncases:\n  - { ask: hi, expect: hello }\n");
    let result = put("result.json", r#"{"format":1,"scenario":"dual-channel","trace_hash":"00","policy":{}}"#);
    let lab = put(
        "lab.json",
        r#"{"format":1,"pid":7,"admin":"http://127.0.0.1:1","policy":"p.yaml","providers":{},"entries":{}}"#,
    );
    let prices = "examples/prices.yaml";
    for (args, is, step) in [
        (
            vec!["validate", prices],
            "is a list of prices; a policy is needed",
            "llmfo simulate --prices examples/prices.yaml",
        ),
        (vec!["drill", "run", &summary], "is the summary of a drill; a drill is needed", "report.md"),
        (vec!["validate", &summary], "is the summary of a drill; a policy is needed", "report.md"),
        (
            vec!["validate", &record],
            "is an admission record; a policy is needed",
            "`llmfo serve` reads it from evidence/",
        ),
        (
            vec!["validate", &lab],
            "is what a lab printed at its start; a policy is needed",
            "the policy that the lab wrote",
        ),
        (vec!["serve", "--policy", &golden], "is a golden set; a policy is needed", "`golden_set` of a group"),
        (vec!["validate", &result], "is the result of a simulation", "llmfo simulate --format json"),
        (vec!["validate", "--tests", prices], "is a list of prices; a file of tests", "simulate --prices"),
        (vec!["serve", "--policy", &record], "is an admission record; a policy is needed", "evidence/"),
        (vec!["drill", "run", prices], "is a list of prices; a drill is needed", "simulate --prices"),
        (
            vec!["simulate", "dual-channel", "--prices", "policies/support.yaml"],
            "is a policy; a list of prices is needed",
            "llmfo serve --policy",
        ),
    ] {
        let (code, said) = said(&args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(is) && said.contains(step), "{args:?}: {said}");
        assert!(said.lines().filter(|l| !l.starts_with("checking ")).count() <= 2, "{args:?}: {said}");
    }
}

#[test]
fn every_command_knows_the_type_that_it_was_given() {
    let (policy, drill, tests) = ("policies/support.yaml", "drills/region-outage.yaml", "policies/tests/support.yaml");
    for (args, is, step) in [
        (
            vec!["serve", "--policy", drill],
            "is a drill; a policy is needed",
            "llmfo drill run drills/region-outage.yaml",
        ),
        (vec!["serve", "--policy", tests], "is a file of tests of a policy; a policy is needed", "validate --tests"),
        (vec!["simulate", "--policy", drill], "is a drill; a policy is needed", "llmfo drill run"),
        (
            vec!["simulate", "--policy", tests],
            "is a file of tests of a policy",
            "validate --tests policies/tests/support",
        ),
        (vec!["drill", "run", policy], "is a policy; a drill is needed", "llmfo serve --policy policies/support.yaml"),
        (vec!["drill", "run", tests], "is a file of tests of a policy; a drill is needed", "validate --tests"),
        (vec!["drill", "run", "region-outage", "--policy", drill], "is a drill; a policy is needed", "llmfo drill run"),
        (
            vec!["serve", "--policy", policy, "--client-keys", policy],
            "is a policy; a file of client keys",
            "llmfo serve",
        ),
        (vec!["validate", "--tests", policy], "is a policy; a file of tests", "llmfo validate policies/support.yaml"),
        (vec!["validate", "--tests", drill], "is a drill; a file of tests", "llmfo drill run"),
    ] {
        let (code, said) = said(&args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(is) && said.contains(step), "{args:?}: {said}");
        // The fact and the step, and nothing of what its keys would be wrong for.
        assert!(said.lines().count() <= 2, "{args:?}: {said}");
    }
}
