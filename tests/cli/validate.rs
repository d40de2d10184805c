//! `llmfo validate` and `llmfo explain` as their user meets them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const SUPPORT: &str = include_str!("fixtures/support.yaml");
/// Before the example policy expires.
const NOW: &str = "2026-12-01T00:00:00Z";

fn llmfo(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.current_dir(dir).args(args).env_remove("LLMFO_POLICY").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    llmfo(dir, args).output().unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// Findings of a text as `code line:column`, info left out; the report's own order.
fn found(text: &str) -> Vec<String> {
    let dir = temp();
    file(&dir, "p.yaml", text);
    let o = run(dir.path(), &["validate", "p.yaml", "--format", "json", "--now", NOW]);
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    v["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["severity"] == "error")
        .map(|d| format!("{} {}:{}", d["code"].as_str().unwrap(), d["line"], d["column"]))
        .collect()
}

/// Replaces a piece that is in the example once, and says on which line it is.
fn change(text: &mut String, good: &str, bad: &str) -> usize {
    assert_eq!(text.matches(good).count(), 1, "{good:?}");
    let line = text[..text.find(good).unwrap()].matches('\n').count() + 1;
    *text = text.replacen(good, bad, 1);
    line
}

/// One run tells what is wrong with a drill: an unknown key hides neither a role nor a region that is none.
#[test]
fn a_drill_is_told_everything_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("../../drills/region-outage.yaml")
        .replacen("roles: [provider]", "roles: [provder]", 1)
        .replacen("region: region-1", "region: region-9", 1)
        .replacen("description:", "descripton:", 1);
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_llmfo"));
    let o = command.current_dir(dir.path()).args(["validate", "d.yaml", "--format", "json"]).output().unwrap();
    let v: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    let codes: Vec<&str> = v["diagnostics"].as_array().unwrap().iter().filter_map(|d| d["code"].as_str()).collect();
    assert_eq!(o.status.code(), Some(1));
    assert!(codes.contains(&"LF004") && codes.iter().filter(|c| **c == "LF602").count() == 2, "{codes:?}");
}

/// Where nothing is there yet, the next step is a command that makes something.
#[test]
fn in_an_empty_folder_the_way_to_a_policy_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_llmfo"));
        command.current_dir(dir.path()).args(args).env_remove("LLMFO_POLICY").output().unwrap()
    };
    for command in ["validate", "serve"] {
        let o = run(&[command]);
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!(o.status.code(), Some(2), "{said}");
        assert!(said.contains("`llmfo lab up --dir lab`") && said.contains("lab/policies/lab.yaml"), "{said}");
    }
    assert!(String::from_utf8_lossy(&run(&["--help"]).stdout).contains("llmfo lab up --dir lab"));
    // What it promises is so.
    let o = std::process::Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .current_dir(dir.path())
        .args(["lab", "up", "--dir", "lab", "--exit-with-stdin"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", String::from_utf8_lossy(&o.stderr));
    assert_eq!(run(&["validate", "lab/policies/lab.yaml"]).status.code(), Some(0));
}

#[test]
fn the_example_validates_without_errors() {
    let dir = temp();
    file(&dir, "support.yaml", SUPPORT);
    let o = run(dir.path(), &["validate", "support.yaml", "--now", NOW]);
    assert_eq!(o.status.code(), Some(0), "{}{}", out(&o), err(&o));
    assert!(out(&o).ends_with("6 warnings, 3 info\n"), "{}", out(&o));
    assert_eq!(err(&o), "checking support.yaml\n");
    // Its golden set and its adapter's text are not in this folder: findings, never load errors.
    assert_eq!(out(&o).matches("LF114 missing-file").count(), 2);
    let o = run(dir.path(), &["validate", "support.yaml", "--now", NOW, "--deny", "warnings"]);
    assert_eq!(o.status.code(), Some(1));
    // A slip is one finding more, and hides none of another route: docs/validate.md shows this end (with the golden set).
    file(&dir, "slip.yaml", &SUPPORT.replace("    idle_timeout_ms: 5000", "    idle_timeout_s: 5"));
    let o = run(dir.path(), &["validate", "slip.yaml", "--now", NOW]);
    assert!(out(&o).ends_with("1 error, 5 warnings, 3 info\n"), "{}", out(&o));
    // With the files in place, the keys, and a limit for answers that are not streamed, nothing is left.
    file(&dir, "goldensets/support-v3.yaml", include_str!("../../goldensets/support-v3.yaml"));
    file(&dir, "adapters/x-json-prompt.md", "x");
    let text = SUPPORT
        .replace("file:/run/secrets/vendor-x", "env:VENDOR_X")
        .replace("- pool: local-reserved\n", "- pool: local-reserved\n        answer_timeout_ms: 3500\n")
        .replace("idle_timeout_ms: 5000", "idle_timeout_ms: 3500")
        .replace("idle_timeout_ms: 4000", "idle_timeout_ms: 1400")
        .replace("- { pool: local-reserved,", "- { pool: local-reserved, answer_timeout_ms: 2200,");
    file(&dir, "policies/support.yaml", &text);
    let o = llmfo(dir.path(), &["validate", "policies/support.yaml", "--now", NOW, "--deny", "warnings"])
        .envs([("LOCAL_A_KEY", "a"), ("LOCAL_B_KEY", "b"), ("VENDOR_X", "c\n")])
        .output()
        .unwrap();
    assert_eq!((o.status.code(), out(&o).as_str()), (Some(0), "no findings\n"));
    // A gateway would not start with this one.
    file(&dir, "goldensets/support-v3.yaml", "version: 1\nset: s\ncases: []\n");
    let o = run(dir.path(), &["validate", "policies/support.yaml", "--now", NOW]);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("goldensets/support-v3.yaml:3:8"), "{}", out(&o));
}

#[test]
fn a_golden_set_is_known_by_its_cases_and_checked() {
    let dir = temp();
    let good = include_str!("../../goldensets/support-v3.yaml");
    file(&dir, "g.yaml", good);
    let o = run(dir.path(), &["validate", "g.yaml", "--deny", "warnings"]);
    assert_eq!((o.status.code(), out(&o).as_str()), (Some(0), "no findings\n"));
    for (from, to, says) in [
        (
            "    expect:\n      schema: decision\n      tools: { may: [] }\n",
            "    expect: {}\n",
            "LF701 case-without-check",
        ),
        ("must_not: [issue_refund]", "must_not: [isue_refund]", "did you mean `issue_refund`?"),
        ("expect:\n      schema: decision", "expects:\n      schema: decision", "did you mean `expect`?"),
        (
            "    type: object\n    properties:\n      intent:",
            "    type: objekt\n    properties:\n      intent:",
            "LF703 schema-that-is-none",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        file(&dir, "g.yaml", &good.replacen(from, to, 1));
        let o = run(dir.path(), &["validate", "g.yaml"]);
        assert_eq!(o.status.code(), Some(1), "{to}");
        assert!(out(&o).contains(says), "{}", out(&o));
    }
    let o = run(dir.path(), &["validate", "--print-schema", "golden-set"]);
    assert!(out(&o).contains("\"title\": \"llmfo golden set\""), "{}", out(&o));
}

#[test]
fn five_mistakes_on_five_lines_give_five_findings_where_they_are() {
    let mut text = SUPPORT.to_owned();
    let expected = vec![
        // `    tier: standard` of local-a becomes an unknown key, at column 5.
        format!(
            "LF004 {}:5",
            change(
                &mut text,
                "    model: support-8b\n    credentials: env:LOCAL_A_KEY",
                "    modl: support-8b\n    credentials: env:LOCAL_A_KEY"
            )
        ),
        // A pool that names a target nobody declared: the name is at column 40.
        format!(
            "LF101 {}:40",
            change(
                &mut text,
                "{ targets: [local-a, local-b], select: health }",
                "{ targets: [local-a, local-c], select: health }"
            )
        ),
        // Seconds for milliseconds: the key at column 5.
        format!("LF004 {}:5", change(&mut text, "    idle_timeout_ms: 5000", "    idle_timeout_s: 5")),
        // A word that is none of the choices: the value at column 21.
        format!(
            "LF008 {}:16",
            change(
                &mut text,
                "    commit_at: first_token               #",
                "    commit_at: first_tokn               #"
            )
        ),
        // A share written in percent: the value at column 18.
        format!("LF007 {}:18", change(&mut text, "  failure_ratio: 0.2", "  failure_ratio: 20")),
    ];
    let got = found(&text);
    assert_eq!(got, expected);
    let dir = temp();
    file(&dir, "p.yaml", &text);
    let o = run(dir.path(), &["validate", "p.yaml", "--now", NOW]);
    assert_eq!(o.status.code(), Some(1));
    let text = out(&o);
    for line in [
        "did you mean `model`?",
        "did you mean `local-a`?",
        "did you mean `idle_timeout_ms`, milliseconds?",
        "next: write `idle_timeout_ms: 5000` (5000 milliseconds)",
        "did you mean `first_token`?",
        "shares are written from 0 to 1: 20 % is `failure_ratio: 0.2`",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(text.contains("--> p.yaml:15:5\n"), "{text}");
    assert!(text.contains("15 |     modl: support-8b\n   |     ^^^^ did you mean `model`?\n"), "{text}");
}

#[test]
fn keys_written_twice_are_found_at_the_second_place() {
    let mut text = SUPPORT.to_owned();
    let line = change(&mut text, "    reserve_ms: 500\n", "    reserve_ms: 500\n    reserve_ms: 600\n");
    assert_eq!(found(&text), [format!("LF003 {}:5", line + 1)]);
}

/// Runs under a limit of memory that can be written to (100 MiB), and says how long the best of three took.
fn hostile(text: &str) -> (Output, Duration) {
    let dir = temp();
    file(&dir, "p.yaml", text);
    let mut best = Duration::MAX;
    let mut last = None;
    for _ in 0..3 {
        let started = Instant::now();
        let o = Command::new("sh")
            .current_dir(dir.path())
            .args(["-c", "ulimit -d 102400 && exec \"$0\" validate p.yaml --format json", env!("CARGO_BIN_EXE_llmfo")])
            .output()
            .unwrap();
        best = best.min(started.elapsed());
        last = Some(o);
    }
    (last.unwrap(), best)
}

#[test]
fn hostile_files_are_refused_soon_and_in_little_memory() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", ")));
    }
    let product = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(2000), "*a,".repeat(2000));
    let merges: String = (0..2000).map(|n| format!("k{n}: &k{n}\n  <<: [*k{}]\n  x{n}: 1\n", n.max(1) - 1)).collect();
    for (name, text) in [
        ("alias bomb", bomb),
        ("alias product", product),
        ("merge chain", merges),
        ("100,000 nested [", "[".repeat(100_000)),
        ("100,000 nested {", "{a: ".repeat(100_000)),
        ("20,000 nested - ", "- ".repeat(20_000)),
    ] {
        let (o, took) = hostile(&text);
        assert_eq!(o.status.code(), Some(1), "{name}: {}", err(&o));
        let v: Value = serde_json::from_str(&out(&o)).unwrap();
        let code = v["diagnostics"][0]["code"].as_str().unwrap();
        assert!(code == "LF002" || (name == "merge chain" && code == "LF001"), "{name}: {v}");
        // Generous: what grows with the square of such a text takes minutes.
        assert!(took < Duration::from_secs(15), "{name} took {took:?}");
    }
}

#[test]
fn a_file_past_the_limit_is_refused_unread() {
    let dir = temp();
    let path = dir.path().join("big.yaml");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let started = Instant::now();
    let o = run(dir.path(), &["validate", "big.yaml"]);
    assert_eq!(o.status.code(), Some(1), "{}", err(&o));
    assert!(out(&o).contains("the file has 1099511627776 bytes; at most 16 MiB are read"), "{}", out(&o));
    assert!(started.elapsed() < Duration::from_secs(5));
    // A device without an end is read up to the limit only.
    let o = run(dir.path(), &["validate", "/dev/zero"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("LF002 too-big"), "{}", out(&o));
}

#[test]
fn the_policy_is_found_by_flag_variable_or_folder_and_named() {
    let dir = temp();
    let o = run(dir.path(), &["validate"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("./policies/ has none") && err(&o).contains("next: "), "{}", err(&o));
    file(&dir, "policies/one.yaml", SUPPORT);
    file(&dir, "policies/notes.txt", "not a policy");
    let o = run(dir.path(), &["validate", "--now", NOW]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert_eq!(err(&o), "checking policies/one.yaml (the only file in ./policies/)\n");
    file(&dir, "policies/two.yml", SUPPORT);
    let o = run(dir.path(), &["validate", "--now", NOW]);
    assert_eq!((o.status.code(), out(&o).as_str()), (Some(2), ""));
    assert!(err(&o).contains("policies/one.yaml, policies/two.yml"), "{}", err(&o));
    let o = llmfo(dir.path(), &["validate", "--now", NOW]).env("LLMFO_POLICY", "policies/two.yml").output().unwrap();
    assert_eq!(o.status.code(), Some(0));
    assert_eq!(err(&o), "checking policies/two.yml (from LLMFO_POLICY)\n");
    let o = llmfo(dir.path(), &["validate", "--now", NOW, "policies/one.yaml", "--quiet"])
        .env("LLMFO_POLICY", "policies/two.yml")
        .output()
        .unwrap();
    assert_eq!((o.status.code(), err(&o).as_str()), (Some(0), ""));
    for (path, why) in [("policies/three.yaml", "No such file"), ("policies", "it is a folder")] {
        let o = run(dir.path(), &["validate", path]);
        assert_eq!((o.status.code(), out(&o).as_str()), (Some(2), ""), "{path}");
        assert!(err(&o).contains(why), "{}", err(&o));
    }
    assert_eq!(run(dir.path(), &["validate", "--now", "yesterday", "policies/one.yaml"]).status.code(), Some(2));
}

#[test]
fn standard_input_is_a_policy_too() {
    let dir = temp();
    let mut child = llmfo(dir.path(), &["validate", "-", "--now", NOW])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(SUPPORT.replace("serial: 7", "serial: -7").as_bytes()).unwrap();
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("--> <stdin>:5:9"), "{}", out(&o));
}

#[test]
fn json_is_pure_versioned_sorted_and_counts() {
    let dir = temp();
    file(
        &dir,
        "p.yaml",
        &SUPPORT.replace("serial: 7", "serial: -7").replace("failure_ratio: 0.2", "failure_ratio: 20"),
    );
    let o = run(dir.path(), &["validate", "p.yaml", "--format", "json", "--now", NOW]);
    assert_eq!(o.status.code(), Some(1));
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!((&v["format_version"], &v["valid"]), (&1.into(), &false.into()));
    assert_eq!(v["counts"], serde_json::json!({"error": 2, "warning": 6, "info": 3}));
    let lines: Vec<i64> = v["diagnostics"].as_array().unwrap().iter().map(|d| d["line"].as_i64().unwrap()).collect();
    assert!(lines.is_sorted(), "{lines:?}");
    let d = &v["diagnostics"][0];
    assert_eq!(d["pointer"], "/serial");
    assert_eq!((d["line"].as_i64(), d["column"].as_i64(), d["end_column"].as_i64()), (Some(5), Some(9), Some(11)));
    // Also when nothing can be read of it, and when warnings are denied.
    file(&dir, "q.yaml", "a: [");
    let o = run(dir.path(), &["validate", "q.yaml", "--format", "json"]);
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!((o.status.code(), v["diagnostics"][0]["code"].as_str()), (Some(1), Some("LF001")));
    file(&dir, "r.yaml", SUPPORT);
    let o = run(dir.path(), &["validate", "r.yaml", "--format", "json", "--now", NOW, "--deny", "warnings"]);
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!((o.status.code(), &v["valid"]), (Some(1), &false.into()));
}

#[test]
fn secrets_and_control_characters_reach_no_output() {
    let dir = temp();
    let text = SUPPORT
        .replace("credentials: env:LOCAL_A_KEY", "credentials: canary-7f3a # \u{202e}x")
        .replace(
            "tier: standard\n    domains: { region: kz-2",
            "tier: \"canary\u{202e}2J\"\n    password: canary-9\n    domains: { region: kz-2",
        )
        .replace("https://api.vendor-x.example/v1", "https://me:canary-8@api.vendor-x.example/v1")
        .replace("http://10.30.0.11:8000/v1", "http://10.30.0.11:8000/v1?key=canary-6")
        .replace("credentials: env:LOCAL_B_KEY", "credential: canary-5\n    credentials:\n      value: canary-4");
    file(&dir, "p.yaml", &text);
    for format in ["human", "json"] {
        let o = run(dir.path(), &["validate", "p.yaml", "--format", format, "--now", NOW]);
        let all = out(&o) + &err(&o);
        assert!(all.contains("LF501"), "{all}");
        for secret in ["canary-7f3a", "canary-8", "canary-9", "canary-6", "canary-5", "canary-4"] {
            assert!(!all.contains(secret), "{secret} in {all}");
        }
        assert!(all.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}')), "{all:?}");
    }
    // Nor when the file cannot be read as YAML at all.
    for text in ["targets:\n  a: { credentials: canary-7f3a, x: [ }\n", "credentials: canary-7f3a # \u{1b}]0;x\u{7}\n"]
    {
        file(&dir, "q.yaml", text);
        let o = run(dir.path(), &["validate", "q.yaml"]);
        assert!(out(&o).contains("LF001") && !out(&o).contains("canary"), "{}", out(&o));
        assert!(out(&o).chars().all(|c| c == '\n' || !c.is_control()), "{}", out(&o));
    }
}

#[test]
fn colour_follows_the_flag_and_no_color() {
    let dir = temp();
    file(&dir, "p.yaml", "version: 7\n");
    let esc = |args: &[&str], env: &[(&str, &str)]| {
        let o = llmfo(dir.path(), args).envs(env.iter().copied()).output().unwrap();
        out(&o).contains('\u{1b}')
    };
    assert!(!esc(&["validate", "p.yaml"], &[]));
    assert!(esc(&["validate", "p.yaml"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!esc(&["validate", "p.yaml"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(esc(&["validate", "p.yaml", "--color", "always"], &[("NO_COLOR", "1")]));
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let dir = temp();
    file(&dir, "p.yaml", &format!("version: a\n{}", "x: 1\n".repeat(5000)));
    let o = Command::new("sh")
        .current_dir(dir.path())
        .args(["-c", "\"$0\" validate p.yaml --quiet | head -n 1", env!("CARGO_BIN_EXE_llmfo")])
        .output()
        .unwrap();
    assert_eq!((out(&o).lines().count(), err(&o).as_str()), (1, ""));
}

#[test]
fn expiry_is_judged_by_now() {
    let dir = temp();
    file(&dir, "p.yaml", SUPPORT);
    let at = |now: &str| run(dir.path(), &["validate", "p.yaml", "--now", now]);
    assert_eq!(at("2027-01-30T23:59:59Z").status.code(), Some(0));
    let o = at("2027-02-03T00:00:00Z");
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("the policy expired 3 days ago"), "{}", out(&o));
    assert!(out(&o).contains("only these intents are still answered"), "{}", out(&o));
}

#[test]
fn a_close_miss_names_the_pool_that_was_meant() {
    let dir = temp();
    let text = include_str!("../../src/spec/examples/policy.yaml").replace("near", "one").replace("far", "two");
    file(&dir, "p.yaml", &text.replace("{ pool: two,", "{ pool: tow,"));
    let o = run(dir.path(), &["validate", "p.yaml", "--now", NOW]);
    assert!(out(&o).contains("LF102") && out(&o).contains("did you mean `two`?"), "{}", out(&o));
}

#[test]
fn help_names_the_page_about_policies() {
    let dir = temp();
    assert!(out(&run(dir.path(), &["validate", "--help"])).contains("docs/policy.md"));
    // Nothing to check: how to begin is the next step.
    assert!(err(&run(dir.path(), &["validate"])).contains("docs/policy.md"));
}

#[test]
fn a_drill_file_is_known_by_its_rounds() {
    let dir = temp();
    let text = include_str!("../../src/spec/examples/drill.yaml");
    file(&dir, "d.yaml", text);
    let o = run(dir.path(), &["validate", "d.yaml"]);
    assert_eq!((o.status.code(), out(&o).as_str()), (Some(0), "no findings\n"));
    file(&dir, "e.yaml", &text.replace("see: connect_timeout", "see: cut_after"));
    let o = run(dir.path(), &["validate", "e.yaml"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("error[LF601 contradictory-drill]"), "{}", out(&o));
}

#[test]
fn shipped_policies_have_no_errors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["policies", "drills"] {
        for entry in fs::read_dir(root.join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let o = run(root, &["validate", path.to_str().unwrap(), "--now", NOW]);
            assert_eq!(o.status.code(), Some(0), "{}", out(&o));
        }
    }
}

/// Files of a folder by name.
fn folder(dir: &Path) -> Vec<(String, String)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(p).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn schemas_and_rule_pages_are_those_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = temp();
    let o = run(dir.path(), &["validate", "--write-schemas", "schemas", "--write-docs", "rules"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    for (fresh, kept, how) in [
        ("schemas", "schemas", "llmfo validate --write-schemas schemas"),
        ("rules", "docs/rules", "llmfo validate --write-docs docs/rules"),
    ] {
        let (fresh, kept) = (folder(&dir.path().join(fresh)), folder(&root.join(kept)));
        let names = |f: &[(String, String)]| f.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
        assert_eq!(names(&fresh), names(&kept), "run `{how}`, and delete what is not written any more");
        for ((name, new), (_, old)) in fresh.iter().zip(&kept) {
            assert!(new == old, "{name} is not what the source says: run `{how}`");
        }
    }
    let o = run(dir.path(), &["validate", "--print-schema", "policy"]);
    assert_eq!(out(&o), fs::read_to_string(root.join("schemas/policy.schema.json")).unwrap());
}

#[test]
fn explain_explains_lists_and_suggests() {
    let dir = temp();
    for code in ["LF201", "lf201", "unreachable-tier"] {
        let o = run(dir.path(), &["explain", code]);
        assert_eq!(o.status.code(), Some(0));
        assert!(out(&o).starts_with("LF201 unreachable-tier (error, time-outs and attempts)\n"), "{}", out(&o));
        for part in ["Why it matters", "How to mend it", "Good", "Bad"] {
            assert!(out(&o).contains(part));
        }
    }
    let o = run(dir.path(), &["explain", "LF2O1"]);
    assert_eq!((o.status.code(), out(&o).as_str()), (Some(4), ""));
    assert!(err(&o).contains("did you mean LF201"), "{}", err(&o));
    // A number is no slip of the finger: nothing is guessed, its family is named if there is one.
    for code in ["LF999", "LF803x", "lf9"] {
        let o = run(dir.path(), &["explain", code]);
        assert_eq!(o.status.code(), Some(4));
        assert!(err(&o).contains(&format!("there is no rule or code {code}")), "{}", err(&o));
    }
    let o = run(dir.path(), &["explain", "LF999"]);
    assert!(!err(&o).contains("did you mean") && !err(&o).contains("LF803"), "{}", err(&o));
    let o = run(dir.path(), &["explain", "LF299"]);
    let family = "its family (time-outs and attempts) has 10 rules, LF201 to LF210; `llmfo explain --list`";
    assert!(err(&o).contains(family), "{}", err(&o));
    let o = run(dir.path(), &["explain", "LF210"]);
    for figure in ["deadline_ms: 8000", "reserve_ms: 1000", "first_token_timeout_ms: 2000"] {
        assert_eq!(out(&o).matches(figure).count(), 2, "good and bad show the sum: {}", out(&o));
    }
    let o = run(dir.path(), &["explain", "weather"]);
    assert!(!err(&o).contains("did you mean") && err(&o).contains("`llmfo explain --list`"), "{}", err(&o));
    let list = out(&run(dir.path(), &["explain", "--list"]));
    let v: Value = serde_json::from_slice(&run(dir.path(), &["explain", "--list", "--format", "json"]).stdout).unwrap();
    assert_eq!(list.lines().count(), v.as_array().unwrap().len());
    assert!(v.as_array().unwrap().iter().all(|r| r["why"].as_str().is_some_and(|w| !w.is_empty())));
    // A code of a drill, and what somebody may write for one.
    for code in ["no_failover", "NO_FAILOVER", "no-failover"] {
        let o = run(dir.path(), &["explain", code]);
        assert_eq!(
            (o.status.code(), out(&o).lines().next()),
            (Some(0), Some("no_failover (failure: FAIL in a valid run)"))
        );
        for part in ["What it means for the customer", "What usually causes it", "What to look at next"] {
            assert!(out(&o).contains(part), "{}", out(&o));
        }
    }
    let o = run(dir.path(), &["explain", "truncated_as_complete"]);
    assert_eq!(o.status.code(), Some(4));
    assert!(err(&o).contains("did you mean truncated_as_success?"), "{}", err(&o));
    let o = run(dir.path(), &["explain", "guard_lost", "--format", "json"]);
    let code: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!((code["code"].as_str(), code["severity"].as_str()), (Some("guard_lost"), Some("invalid")));
    assert!(v.as_array().unwrap().contains(&code) && list.contains("\nfault_bypassed "), "{list}");
    let alone = run(dir.path(), &["explain"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(err(&alone).contains("`llmfo explain --list` names every rule"), "{}", err(&alone));
}

#[test]
fn quiet_shows_errors_and_warnings_and_counts_the_rest() {
    let dir = temp();
    file(&dir, "p.yaml", SUPPORT);
    let all = out(&run(dir.path(), &["validate", "p.yaml", "--now", NOW]));
    let quiet = out(&run(dir.path(), &["-q", "validate", "p.yaml", "--now", NOW]));
    assert!(all.contains("info[LF503"), "{all}");
    assert!(!quiet.contains("info[") && quiet.contains("warning["), "{quiet}");
    assert_eq!(all.lines().last(), quiet.lines().last());
    assert_eq!(all.matches("warning[").count(), quiet.matches("warning[").count());
    // Machines get everything.
    let json = out(&run(dir.path(), &["-q", "validate", "p.yaml", "--now", NOW, "--format", "json"]));
    assert!(json.contains("LF503"), "{json}");
}

#[test]
#[cfg(target_os = "linux")]
fn help_that_cannot_be_written_is_no_good_end() {
    let dir = temp();
    for args in [&["--help"][..], &["--version"], &["serve", "--help"], &["help"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let o = llmfo(dir.path(), args).stdout(full).output().unwrap();
        assert_eq!(o.status.code(), Some(3), "{args:?}");
        assert!(err(&o).contains("could not be written"), "{args:?}: {}", err(&o));
        let good = run(dir.path(), args);
        assert!(good.status.code() == Some(0) && good.stderr.is_empty() && !good.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(run(dir.path(), &["--nonsense"]).status.code(), Some(2));
    assert_eq!(run(dir.path(), &[]).status.code(), Some(2));
}
