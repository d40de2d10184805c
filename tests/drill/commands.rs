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

#[test]
fn show_and_clean_speak_json() {
    let out = llmfo(&["drill", "show", "region-outage", "--format", "json"]);
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (out.status.code(), shown["format"].as_u64(), shown["name"].as_str()),
        (Some(0), Some(1), Some("region-outage"))
    );
    assert_eq!(
        shown["text"],
        text(&llmfo(&["drill", "show", "region-outage"]).stdout).trim_end_matches('\n').to_owned() + "\n"
    );
    assert_eq!(shown["drill"]["route"], "support-chat");
    assert!(shown["drill"]["rounds"][0]["faults"].as_array().is_some_and(|f| !f.is_empty()), "{shown}");
    let out = llmfo(&["drill", "clean", "--format", "json"]);
    let clean: Value = serde_json::from_slice(&out.stdout).unwrap();
    let nothing = serde_json::json!({"format": 1, "cleanup": "clean", "said": [], "running": [], "unreadable": [], "dirty_servers": [], "next": []});
    assert_eq!((out.status.code(), clean), (Some(0), nothing));
}

/// What cannot be read, or not be locked, may hide a fault: it is said and is not "nothing". A folder in the place of a file
/// stands for what another user may not open; root may open everything.
#[test]
fn clean_says_what_it_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("llmfo");
    let clean = || {
        let mut c = Command::new(LLMFO);
        let out = c.args(["drill", "clean", "--format", "json"]).env("XDG_STATE_HOME", dir.path()).output().unwrap();
        let said: Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), said)
    };
    std::fs::create_dir_all(state.join("drills")).unwrap();
    // A run that has broken one path, was killed, and whose log was cut in the middle of its last line.
    let log = concat!(
        r#"{"begin":{"at":{"mono_ms":1,"wall_ms":1},"begin":{"format":1,"run":"1-2","drill":"outage","pid":2,"server":"http://127.0.0.1:9","embedded":false,"snapshot":{}}}}"#,
        "\n",
        r#"{"intent":{"at":{"mono_ms":2,"wall_ms":2},"n":1,"change":{"set_enabled":{"proxy":"p","enabled":false}}}}"#,
        "\n",
        r#"{"answer":{"at":{"mono_ms":3"#
    );
    std::fs::write(state.join("drills/1-2.jsonl"), log).unwrap();
    let lock = state.join("locks/http---127-0-0-1-9.lock");
    std::fs::create_dir_all(&lock).unwrap();
    let (exit, said) = clean();
    assert_eq!((exit, said["cleanup"].as_str()), (Some(6), Some("dirty")), "{said}");
    let text = said["said"][0].as_str().unwrap();
    assert!(text.contains("drill outage (process 2, run 1-2)") && text.contains("9.lock"), "{text}");
    assert_eq!(said["dirty_servers"], serde_json::json!(["http://127.0.0.1:9"]));
    assert_eq!(std::fs::read_to_string(state.join("drills/1-2.jsonl")).unwrap(), log, "it was left as it is");

    // Cut so early that not even its server is known.
    std::fs::remove_dir(&lock).unwrap();
    std::fs::write(state.join("drills/1-2.jsonl"), &log[..60]).unwrap();
    let (exit, said) = clean();
    assert_eq!(exit, Some(6), "{said}");
    assert!(said["unreadable"][0].as_str().unwrap().contains("its first line is torn"), "{said}");

    // The list of what a lab has made.
    std::fs::remove_file(state.join("drills/1-2.jsonl")).unwrap();
    assert_eq!(clean().0, Some(0));
    std::fs::create_dir(state.join("lab-http___127.0.0.1_9.json")).unwrap();
    let (exit, said) = clean();
    assert_eq!(exit, Some(6), "{said}");
    assert!(said["unreadable"][0].as_str().unwrap().contains("lab-http___127.0.0.1_9.json"), "{said}");
}
