//! A gateway that the drill did not start: what the page says must be enough, and what cannot be known of it is said.

use std::path::PathBuf;

use serde_json::Value;

use crate::stage::{LLMFO, Proc, codes, drill, last_word, short_drill, turn};

/// The policy on the page about drills, with the addresses of this lab in it.
fn policy_of_the_page(up: &Value) -> String {
    let page = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/drill.md")).unwrap();
    let begin = page.find("# mine.yaml").expect("the page has the policy");
    let text = &page[begin..begin + page[begin..].find("```").unwrap()];
    let url = |name: &str| up["providers"][name].as_str().unwrap();
    text.replace("http://127.0.0.1:1/v1", url("local-a")).replace("http://127.0.0.1:2/v1", url("local-b"))
}

/// Lab and `llmfo serve` of this policy: both, the admin URL and the gateway's.
fn up(dir: &std::path::Path, change: impl Fn(String) -> String) -> (Proc, Proc, String, String, PathBuf) {
    up_with(dir, change, &[])
}

fn up_with(
    dir: &std::path::Path,
    change: impl Fn(String) -> String,
    more: &[&str],
) -> (Proc, Proc, String, String, PathBuf) {
    let (lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir);
    let path = dir.join("mine.yaml");
    std::fs::write(&path, change(policy_of_the_page(&up))).unwrap();
    let policy = path.to_str().unwrap();
    let serve = ["serve", "--policy", policy, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--format", "json"];
    let (gateway, said) = Proc::start(LLMFO, &[&serve[..], &["--exit-with-stdin"], more].concat(), dir);
    let url = format!("http://{}/v1", said["listen"].as_str().unwrap());
    (lab, gateway, up["admin"].as_str().unwrap().into(), url, path)
}

fn row<'a>(summary: &'a Value, promise: &str, name: &str) -> &'a Value {
    summary["promises"][promise]["rows"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap()
}

#[test]
fn the_policy_of_the_page_is_enough_and_what_is_not_known_of_a_foreign_gateway_is_not_judged() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // A gateway that lets in only who shows a key: so do the drill's customers.
    let key = std::process::Command::new(LLMFO).args(["keys", "new", "shop", "--format", "json"]).output().unwrap();
    let key: Value = serde_json::from_slice(&key.stdout).unwrap();
    let of = |member: &str| key[member].as_str().unwrap().to_owned();
    let (keys, shown) = (dir.path().join("keys.yaml"), dir.path().join("key.txt"));
    std::fs::write(&keys, format!("clients:\n  shop: {{ sha256: [{}] }}\n", of("sha256"))).unwrap();
    std::fs::write(&shown, of("key") + "\n").unwrap();
    let (_lab, _gateway, admin, url, policy) = up_with(dir.path(), |p| p, &["--client-keys", keys.to_str().unwrap()]);
    let file = short_drill(dir.path(), 4000);
    let mut args =
        vec![file.to_str().unwrap(), "--lab", &admin, "--target", &url, "--policy", policy.to_str().unwrap()];
    args.extend(["--target-key-file", shown.to_str().unwrap()]);
    let (exit, text, s, out) = drill(&args, dir.path());
    assert_eq!((exit, last_word(&text)), (0, "PASS"), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let within = row(&s, "recovery", "within_bound");
    assert_eq!((within["verdict"].as_str(), within["n"].as_u64()), (Some("not_judged"), Some(0)), "{within}");
    assert!(within["why"].as_str().unwrap().contains("not seen from outside"), "{within}");
    assert_eq!(row(&s, "independence", "dependencies_cut")["verdict"], "not_judged");
    let dials = row(&s, "independence", "dials_into_broken_region");
    assert_eq!((dials["declared"].as_str(), dials["measured"].as_str()), (Some("not known"), Some("not known")));
    for line in s["proposals"].as_array().unwrap() {
        assert!(line.as_str().unwrap().ends_with("not for a real model)"), "{line}");
    }
}

#[test]
fn a_model_that_is_not_there_is_quoted_with_all_its_cases() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, _gateway, admin, url, _) = up(dir.path(), |p| p.replace("route: support-chat", "route: other-name"));
    let file = short_drill(dir.path(), 4000);
    let (exit, text, s, _) = drill(&[file.to_str().unwrap(), "--lab", &admin, "--target", &url], dir.path());
    assert_eq!((exit, last_word(&text), codes(&s)[0]), (5, "INVALID", "steady_state_not_met"), "{text}");
    let finding = &s["findings"][0];
    let example = finding["examples"][0].as_str().unwrap();
    assert!(example.contains("other-name") && example.contains("asked for model support-chat"), "{example}");
    let requests = std::fs::read_to_string(dir.path().join("report/requests.jsonl")).unwrap();
    let n = finding["n"].as_u64().unwrap() as usize;
    // Requests go on until the customers are stopped; those that ended before the verdict were counted, all of them failed.
    assert!(n > 3 && n <= requests.lines().count(), "{n} of {}", requests.lines().count());
    // The lab's policy is not this gateway's: no times and no proposals are put in its mouth.
    assert_eq!((s["policy_of"].as_str(), s["proposals"].as_array().map(Vec::len)), (Some("lab"), Some(0)));
    assert!(text.contains("times of the lab's policy, not of this gateway"), "{text}");
    // The cause and the step stand beside the verdict, and each row that was not judged once.
    let last: Vec<&str> = text.lines().rev().take(8).collect();
    let near = |what: &str| last.iter().any(|l| l.contains(what));
    assert!(near("why: steady_state_not_met") && near("next: call the route"), "{text}");
    assert_eq!(
        text.matches("nothing was broken: ").count() + text.matches("no such case came up: ").count(),
        2,
        "{text}"
    );
    // Lines are broken where the terminal ends.
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(flat.matches("business actions done twice").count(), 1, "{text}");
    for promise in s["promises"].as_object().unwrap().values() {
        assert!(promise["rows"].as_array().unwrap().iter().all(|r| r["verdict"] != "pass"), "{promise}");
    }
}

/// The line of the policy that lets nobody stand in is the proposal, and none beside it.
#[test]
fn a_route_without_failover_fails_and_is_told_so() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let none = |p: String| {
        let line = "    failover: none\n    failover_reason: one contract\n    deadline_ms: 5000\n";
        p.replacen("    deadline_ms: 5000\n", line, 1)
    };
    let (_lab, _gateway, admin, url, policy) = up(dir.path(), none);
    let file = short_drill(dir.path(), 4000);
    let args = [file.to_str().unwrap(), "--lab", &admin, "--target", &url, "--policy", policy.to_str().unwrap()];
    let (exit, text, s, _) = drill(&args, dir.path());
    assert_eq!((exit, last_word(&text)), (1, "FAIL"), "{text}");
    let proposals = s["proposals"].as_array().unwrap();
    assert_eq!(proposals.len(), 1, "{proposals:?}");
    assert!(proposals[0].as_str().unwrap().contains("`failover: none`"), "{proposals:?}");
    assert!(s["why"][1].as_str().unwrap().contains("`failover: none`"), "{}", s["why"]);
    assert!(
        text.lines().rev().take(6).any(|l| l.starts_with("next: route support-chat says `failover: none`")),
        "{text}"
    );
    // The figure and its unit are two things, and what customers wanted is no fault.
    let recovery = &s["promises"]["recovery"];
    assert_eq!((recovery["figure"].as_str(), recovery["unit"].as_str()), (Some("rto_ms"), Some("ms")));
    let handoffs = &s["handoffs"];
    let share = handoffs["forced"].as_f64().unwrap() / handoffs["turns"].as_f64().unwrap();
    assert!((s["forced_handoff_rate"].as_f64().unwrap() - share).abs() < 1e-9, "{handoffs}");
}

/// Without --target the lab's own entries are driven, behind which nobody listens yet.
#[test]
fn an_entry_that_nobody_serves_is_told_where_to_listen() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let (exit, text, _, out) = drill(&["region-outage", "--lab", up["admin"].as_str().unwrap()], dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, text.as_str()), (3, ""), "{said}");
    let listen = up["entries"]["region-1"]["listen"].as_str().unwrap();
    assert!(said.contains(&format!("--listen {listen}")) && said.contains("--target"), "{said}");
}

/// Without an objective for what the drill is about there is no verdict, however well it went: that is said before it begins.
#[test]
fn a_policy_without_objectives_is_told_before_anything_is_broken() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let without = |p: String| p.lines().filter(|l| !l.contains("objectives:")).map(|l| format!("{l}\n")).collect();
    let (_lab, _gateway, admin, url, policy) = up(dir.path(), without);
    let file = short_drill(dir.path(), 4000);
    let args = [file.to_str().unwrap(), "--lab", &admin, "--target", &url, "--policy", policy.to_str().unwrap()];
    let (exit, text, _, out) = drill(&args, dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, text.as_str()), (2, ""), "{said}");
    assert!(said.contains("objectives.recovery_ms of route support-chat is not declared"), "{said}");
    assert!(said.contains("this can be no PASS") && said.contains("`declare: { recovery_ms: ... }`"), "{said}");
    assert!(!dir.path().join("report").exists());
}

/// A base URL without its `/v1` gets a 404 for everything: nothing is learnt from a load of those.
#[test]
fn a_target_without_its_path_is_refused_before_the_load() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, _gateway, admin, url, policy) = up(dir.path(), |p| p);
    let file = short_drill(dir.path(), 4000);
    let short = url.trim_end_matches("/v1");
    let args = [file.to_str().unwrap(), "--lab", &admin, "--target", short, "--policy", policy.to_str().unwrap()];
    let (exit, text, _, out) = drill(&args, dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, text.as_str()), (2, ""), "{said}");
    assert!(said.contains(&format!("next: --target {url}")), "{said}");
    assert!(!dir.path().join("report").exists());
}
