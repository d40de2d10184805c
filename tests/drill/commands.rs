//! `drill list`, `show`, and what is refused before anything starts.

use std::process::{Command, Output};

use serde_json::Value;

use crate::stage::LLMFO;

fn llmfo(args: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    Command::new(LLMFO).args(args).current_dir(state.path()).env("XDG_STATE_HOME", state.path()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_list_works_in_an_empty_folder_and_every_drill_can_be_shown() {
    let out = llmfo(&["drill", "list", "--format", "json"]);
    assert_eq!(out.status.code(), Some(0));
    let list: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let names: Vec<&str> = list.iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["midstream-break", "region-outage-gateway", "region-outage"]);
    for drill in &list {
        assert!(drill["description"].as_str().unwrap().len() > 20);
        let shown = llmfo(&["drill", "show", drill["name"].as_str().unwrap()]);
        assert!(text(&shown.stdout).contains(&format!("name: {}", drill["name"].as_str().unwrap())));
    }
    assert!(text(&llmfo(&["drill", "list"]).stdout).contains("region-outage"));
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_starts() {
    let out = llmfo(&["drill", "run", "region-outag"]);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(4), 0));
    assert!(text(&out.stderr).contains("did you mean region-outage?"));
    // A target without its lab says nothing about what the providers saw.
    assert_eq!(llmfo(&["drill", "run", "region-outage", "--target", "http://127.0.0.1:1/v1"]).status.code(), Some(2));
    assert_eq!(llmfo(&["drill", "run", "region-outage", "--lab", "http://127.0.0.1:1"]).status.code(), Some(3));

    // What is no URL is a mistake of usage, whatever it stands for; so is an API that anybody can reach.
    for flags in [
        ["--toxiproxy", "127.0.0.1:8474"],
        ["--toxiproxy", "http://"],
        ["--toxiproxy", "https://127.0.0.1:8474"],
        ["--lab", "not a url"],
        ["--lab", "ftp://127.0.0.1:1"],
    ] {
        let out = llmfo(&[&["drill", "run", "region-outage"][..], &flags].concat());
        assert_eq!(out.status.code(), Some(2), "{flags:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(flags[0]), "{}", text(&out.stderr));
    }
    let out = llmfo(&["drill", "run", "region-outage", "--lab", "http://127.0.0.1:1", "--target", "127.0.0.1:1/v1"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert_eq!(llmfo(&["lab", "up", "--toxiproxy", "127.0.0.1:8474"]).status.code(), Some(2));

    // Nothing began, so nothing is left; and what is there from an earlier run is not written over.
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut c = Command::new(LLMFO);
        c.args(["drill", "run", "region-outage"]).args(args).current_dir(dir.path());
        c.env("XDG_STATE_HOME", dir.path().join("state")).output().unwrap()
    };
    assert_eq!(run(&["--lab", "http://127.0.0.1:1"]).status.code(), Some(3));
    assert!(!dir.path().join("reports").exists());
    // Also where a process of its own has said why, which the error repeats.
    let out = run(&["--toxiproxy", "http://127.0.0.1:1"]);
    assert!(out.status.code() == Some(3) && text(&out.stderr).contains("refused"), "{}", text(&out.stderr));
    assert!(!dir.path().join("reports").exists());
    // A policy that no gateway would serve: its finding, at its own line, before anything is started.
    let nowhere = include_str!("../../docs/drill.md").split("# mine.yaml").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(dir.path().join("nopii.yaml"), format!("#{}", nowhere.replace(", pii: allowed", ""))).unwrap();
    let out = run(&["--policy", "nopii.yaml"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("LF504") && said.contains("nopii.yaml:") && !said.contains("llmfo-lab"), "{said}");
    assert!(said.contains("next: mend what is said above"), "{said}");
    assert!(!dir.path().join("reports").exists());
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("out/summary.json"), "{}").unwrap();
    let out = run(&["--report", "out"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("report of an earlier run"), "{}", text(&out.stderr));
    assert_eq!(std::fs::read_to_string(dir.path().join("out/summary.json")).unwrap(), "{}");
    // So does what a killed run left behind: its journal would be taken for this run's.
    std::fs::create_dir_all(dir.path().join("killed/logs")).unwrap();
    std::fs::write(dir.path().join("killed/logs/gateway-region-1.jsonl"), "{}\n").unwrap();
    let out = run(&["--report", "killed"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("is not empty"), "{}", text(&out.stderr));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.yaml");
    let shown = text(&llmfo(&["drill", "show", "region-outage"]).stdout);
    std::fs::write(&path, shown.replace("see: silence", "see: silense")).unwrap();
    let out = llmfo(&["drill", "run", path.to_str().unwrap()]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("silense") && said.contains("silence"), "{said}");
    // A selector that matches nothing is found before anything is broken.
    std::fs::write(&path, shown.replace("roles: [telemetry]", "roles: [telemetri]")).unwrap();
    let out = llmfo(&["drill", "run", path.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
    // `validate` finds it too, and knows what was meant.
    let out = llmfo(&["validate", path.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("did you mean `telemetry`?"), "{}", text(&out.stdout));
}
