//! `llmfo simulate` as its user meets it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.current_dir(dir).arg("simulate").args(args).env_remove("LLMFO_POLICY").env_remove("NO_COLOR");
    command.output().unwrap()
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

/// April has 30 days: 720 h. x is down for 36 h of them (5 %), y for 7.2 h (1 %), of which 3.6 h (0.5 %) together with x.
const HISTORY: &str = "target,from,to,impact\n\
    x,2024-04-01T00:00:00Z,2024-04-01T00:00:00Z,none\n\
    x,2024-04-10T00:00:00Z,2024-04-11T00:00:00Z,minor\n\
    x,2024-04-10T20:00:00Z,2024-04-11T12:00:00Z,major\n\
    y,2024-04-11T08:24:00Z,2024-04-11T15:36:00Z,minor\n\
    y,2024-04-20T00:00:00Z,2024-04-20T10:00:00Z,none\n";

#[test]
fn a_history_gives_the_shares_that_it_has() {
    let dir = temp();
    fs::write(dir.path().join("h.csv"), HISTORY).unwrap();
    let args = ["dual-channel", "--trace", "h.csv", "--down", "minor", "--no-lessons", "--format", "json"];
    let done = run(dir.path(), &args);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(err(&done).is_empty(), "no progress where nobody watches: {}", err(&done));
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let share = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}"));
    assert!((share("/policy/ceiling") - 0.995).abs() < 1e-6);
    assert!((share("/single/up") - 0.95).abs() < 1e-6);
    assert!((share("/single/availability") - 0.95).abs() < 1e-4);
    assert!((share("/runs/0/channels/1/availability") - 0.99).abs() < 1e-4);
    assert!((0.0..0.000_2).contains(&share("/policy/loss")));
    assert!(share("/requests_per_s") > 0.0);
    assert_eq!(json["policy"]["recovery_p95_s"], Value::Null, "two outages are no sample");
    assert_eq!(json["trace_hash"].as_str().unwrap().len(), 16);

    let again: Value = serde_json::from_slice(&run(dir.path(), &args).stdout).unwrap();
    assert_eq!(again["trace_hash"], json["trace_hash"]);

    // A target's own name stands for that target, wherever it appears.
    fs::write(dir.path().join("own.csv"), HISTORY.replace("\ny,", "\nchannel-a,")).unwrap();
    let own =
        run(dir.path(), &["dual-channel", "--trace", "own.csv", "--down", "minor", "--no-lessons", "--format", "json"]);
    let own: Value = serde_json::from_slice(&own.stdout).unwrap();
    assert!((own["single"]["up"].as_f64().unwrap() - 0.99).abs() < 1e-6, "channel-a is the first target");

    // The other way round, y is the single channel.
    let mapped = run(dir.path(), &[&args[..], &["--map", "y=channel-a"]].concat());
    let mapped: Value = serde_json::from_slice(&mapped.stdout).unwrap();
    assert!((mapped["single"]["up"].as_f64().unwrap() - 0.99).abs() < 1e-6);
}

/// Two names for one thing (a model and its API, an old name and a new one) are down together as long as either is: x 36 h and y
/// 7.2 h with 3.6 h in common are 39.6 h of 720 (5.5 %).
#[test]
fn names_of_one_target_are_merged() {
    let dir = temp();
    fs::write(dir.path().join("h.csv"), HISTORY).unwrap();
    fs::write(dir.path().join("own.csv"), HISTORY.replace("\ny,", "\nchannel-b,")).unwrap();
    let args = ["dual-channel", "--down", "minor", "--no-lessons", "--format", "json", "--trace"];
    for more in [
        &["h.csv", "--map", "x=channel-b", "--map", "y=channel-b"][..],
        // A name that is a target's own stands for it also where another name is laid beside it.
        &["own.csv", "--map", "x=channel-b"],
    ] {
        let done = run(dir.path(), &[&args[..], more].concat());
        assert_eq!(done.status.code(), Some(0), "{}", err(&done));
        let json: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert!((json["runs"][0]["channels"][1]["up"].as_f64().unwrap() - 0.945).abs() < 1e-6, "{more:?}: {json}");
        assert!((json["single"]["up"].as_f64().unwrap() - 1.0).abs() < 1e-9, "channel-a has no history");
        let notes = json["notes"].to_string();
        assert!(notes.contains(" = channel-b (merged)"), "{notes}");
    }
}

/// Of a policy that declares no `peak` nobody knows the load: the bill says what it rests on.
#[test]
fn a_bill_says_which_load_it_assumes() {
    let dir = temp();
    let text = include_str!("../../policies/dual-channel.yaml");
    let without: String =
        text.lines().filter(|l| !l.trim_start().starts_with("peak:")).map(|l| format!("{l}\n")).collect();
    assert_ne!(text.lines().count(), without.lines().count());
    fs::write(dir.path().join("with.yaml"), text).unwrap();
    fs::write(dir.path().join("p.yaml"), without).unwrap();
    let args = ["--months", "1", "--policy"];
    let json = |policy: &str| -> Value {
        serde_json::from_slice(&run(dir.path(), &[&args[..], &[policy, "--format", "json"]].concat()).stdout).unwrap()
    };
    let (assumed, declared) = (json("p.yaml"), json("with.yaml"));
    assert_eq!((&assumed["cost"]["requests_per_s"], &assumed["cost"]["load"]), (&5.0.into(), &"assumed".into()));
    assert_eq!(declared["cost"]["load"], "policy");
    assert!(assumed["notes"].to_string().contains("5 requests/s are assumed"), "{}", assumed["notes"]);
    let said = out(&run(dir.path(), &[&args[..], &["p.yaml"]].concat()));
    let bill = said.split("one channel").last().unwrap();
    assert!(bill.contains("5 requests/s are assumed: no route declares `peak`"), "{said}");
    let said = out(&run(dir.path(), &[&args[..], &["with.yaml"]].concat()));
    assert!(!said.contains("are assumed"), "{said}");
}

#[test]
fn what_is_wrong_with_a_history_has_its_exit_code() {
    let dir = temp();
    fs::write(dir.path().join("h.csv"), HISTORY).unwrap();
    fs::write(dir.path().join("bad.csv"), HISTORY.replace("major", "awful")).unwrap();
    let code = |args: &[&str]| {
        let done = run(dir.path(), &[&["dual-channel"], args].concat());
        (done.status.code().unwrap(), err(&done))
    };
    assert_eq!(code(&["--trace", "h.csv", "--down", "critical"]).0, 4);
    assert_eq!(code(&["--trace", "nowhere.csv"]).0, 2);
    let (exit, said) = code(&["--trace", "bad.csv"]);
    assert!(exit == 2 && said.contains("line 4") && said.contains("awful"), "{said}");
    fs::write(dir.path().join("worse.csv"), HISTORY.replace("major", "awful").replace("minor", "smal")).unwrap();
    let (exit, said) = code(&["--trace", "worse.csv"]);
    let wrong = HISTORY.lines().filter(|l| l.contains("major") || l.contains("minor")).count();
    assert!(wrong > 1 && exit == 2, "{said}");
    assert_eq!(said.matches("worse.csv, line ").count(), wrong, "{said}");
    let (exit, said) = code(&["--trace", "h.csv", "--map", "x=chanel-a"]);
    assert!(exit == 2 && said.contains("did you mean channel-a?"), "{said}");
    let (exit, said) = code(&["--trace", "h.csv", "--map", "z=channel-a"]);
    assert!(exit == 2 && said.contains("x, y"), "{said}");
    let (exit, said) = code(&["--trace", "h.csv", "--map", "x=channel-a", "--map", "x=channel-b"]);
    assert!(exit == 2 && said.contains("--map says twice what x stands for"), "{said}");
    assert_eq!(code(&["--months", "0"]).0, 2);
    assert_eq!(code(&["--channel-availability", "97"]).0, 2);
}

/// What never ends is refused before it begins: devices, outages of no length.
#[test]
fn what_would_not_end_is_refused() {
    let dir = temp();
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/dual-channel.yaml");
    for args in [
        &["dual-channel", "--trace", "/dev/zero"][..],
        &["dual-channel", "--prices", "/dev/zero"],
        &["--policy", policy, "--inputs", "/dev/zero"],
    ] {
        let done = run(dir.path(), args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", err(&done));
        assert!(err(&done).contains("cannot read /dev/zero: it is no file"), "{args:?}: {}", err(&done));
    }
    for (flag, value) in [("--mean-outage-min", "1e-300"), ("--mean-outage-min", "0.0099"), ("--months", "1e-9")] {
        let done = run(dir.path(), &["dual-channel", flag, value, "--no-lessons"]);
        assert_eq!(done.status.code(), Some(2), "{flag} {value}: {}", err(&done));
        assert!(err(&done).contains(flag) && err(&done).contains("name a number from "), "{}", err(&done));
    }
    let least = run(dir.path(), &["dual-channel", "--mean-outage-min", "0.01", "--months", "0.001", "--no-lessons"]);
    assert!([0, 5].contains(&least.status.code().unwrap()), "{}", err(&least));
}

#[test]
fn a_pipe_is_a_history_as_well() {
    let dir = temp();
    fs::write(dir.path().join("h.csv"), HISTORY).unwrap();
    let script = format!(
        "'{}' simulate dual-channel --trace <(cat h.csv) --down minor --no-lessons -q",
        env!("CARGO_BIN_EXE_llmfo")
    );
    let done = Command::new("bash").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
}

/// Seeds go round: after the largest comes 0, for the words as for the run.
#[test]
fn the_largest_seed_is_one_like_any_other() {
    let last = u64::MAX.to_string();
    let args = ["dual-channel", "--seed", &last, "--seeds", "2", "--months", "0.05", "--no-lessons"];
    let done = run(temp().path(), &args);
    assert!(out(&done).contains(&format!("seeds {last} to 0, medians")), "{}{}", out(&done), err(&done));
}

#[test]
fn an_unknown_scenario_names_the_nearest() {
    let done = run(temp().path(), &["dual-chanel"]);
    assert_eq!(done.status.code(), Some(4));
    assert!(err(&done).contains("did you mean dual-channel?"), "{}", err(&done));
    let list = run(temp().path(), &["--list"]);
    assert!(out(&list).starts_with("dual-channel "), "{}", out(&list));
}

#[test]
fn a_tiny_sample_says_so() {
    let done = run(temp().path(), &["dual-channel", "--months", "0.001", "--no-lessons"]);
    assert_eq!(done.status.code(), Some(5), "{}", out(&done));
    assert!(out(&done).trim_end().ends_with("INCONCLUSIVE: the sample is too small"), "{}", out(&done));
    assert!(out(&done).contains("inconclusive (n = 0)"));
}

#[test]
fn a_months_run_is_told_in_words() {
    let done = run(temp().path(), &["dual-channel", "--months", "1", "--seed", "3", "--no-lessons"]);
    let text = out(&done);
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(text.contains("99.81 %") && text.contains("ceiling by hand, from what was asked for: 99.9100 %"), "{text}");
    assert!(
        text.trim_end().ends_with("PASS: every checked invariant of the core held; objectives are not judged"),
        "{text}"
    );
}

#[test]
fn the_bill_takes_prices_from_a_file() {
    let dir = temp();
    let prices = include_str!("../../examples/prices.yaml");
    fs::write(dir.path().join("p.yaml"), prices.replace("state_copy: 40.0", "state_copy: 77.0")).unwrap();
    fs::write(dir.path().join("bad.yaml"), prices.replace("state_copy", "state_copies")).unwrap();
    let args = ["dual-channel", "--months", "1", "--no-lessons", "--format", "json", "--prices"];
    let done = run(dir.path(), &[&args[..], &["p.yaml"]].concat());
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let lines = json["cost"]["lines"].as_array().unwrap();
    let copies = lines.iter().find(|l| l["item"] == "further copies of state").unwrap();
    assert_eq!((copies["single"].as_f64(), copies["policy"].as_f64()), (Some(0.0), Some(77.0)));
    let done = run(dir.path(), &[&args[..], &["bad.yaml"]].concat());
    assert_eq!(done.status.code(), Some(2));
    assert!(err(&done).contains("state_copies"), "{}", err(&done));
}

#[test]
fn a_policy_of_ones_own_is_tried() {
    let dir = temp();
    // A third of the load: as it stands, the first target is crowded all the time.
    let policy = include_str!("fixtures/six-targets.yaml").replace("requests_per_s: 12", "requests_per_s: 4");
    fs::write(dir.path().join("six.yaml"), policy).unwrap();
    let done = run(dir.path(), &["--policy", "six.yaml", "--months", "0.1", "--format", "json"]);
    assert_eq!(done.status.code(), Some(0), "{}{}", out(&done), err(&done));
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&json["scenario"], &json["published"]), (&Value::from("six.yaml"), &Value::Null));
    assert_eq!(json["runs"][0]["channels"].as_array().unwrap().len(), 6);
    assert!(json["lessons"].as_array().unwrap().is_empty(), "lessons belong to dual-channel");
    let none = run(dir.path(), &[]);
    assert_eq!(none.status.code(), Some(2), "neither a scenario nor a policy");
}

#[test]
fn a_swarm_is_clean_and_ctrl_c_ends_it() {
    use std::process::Stdio;

    let done = run(temp().path(), &["--swarm", "3", "--seed", "500"]);
    assert_eq!(done.status.code(), Some(0), "{}", out(&done));
    assert!(
        out(&done).contains("3 seeds, ") && out(&done).trim_end().ends_with("every checked invariant of the core held")
    );

    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
        command.args(["simulate", "--swarm", "10000000"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // It catches signals before it begins; the status file of the process says when.
        let caught = || {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).map(str::trim).unwrap_or("0").to_owned();
            u64::from_str_radix(&mask, 16).unwrap_or(0) & 0x4002 == 0x4002
        };
        let began = std::time::Instant::now();
        while !caught() {
            assert!(began.elapsed().as_secs() < 30, "it never listens");
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn a_policy_that_must_not_be_served_is_not_simulated_into_a_green_figure() {
    let dir = temp();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("policies/dual-channel.yaml")).unwrap();
    assert!(text.contains("    residency: [eu]\n"));
    fs::write(dir.path().join("p.yaml"), text.replace("    residency: [eu]\n", "    residency: [us]\n")).unwrap();
    let done = run(dir.path(), &["--policy", "p.yaml", "--months", "0.1"]);
    assert_eq!(done.status.code(), Some(2), "{}{}", out(&done), err(&done));
    assert!(err(&done).contains("llmfo validate p.yaml"), "{}", err(&done));
}

/// An objective that is missed by far stands beside its figure, and a PASS does not speak of it; an expired policy is noted.
#[test]
fn objectives_stand_beside_their_figures_and_are_not_judged() {
    let dir = temp();
    let text = include_str!("../../policies/dual-channel.yaml");
    let (line, _) = text.lines().enumerate().find(|(_, l)| l.trim_start().starts_with("expires:")).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[line] = "expires: 2025-03-01T12:00:00Z".into();
    let low: Vec<String> = lines
        .into_iter()
        .filter(|l| !l.trim_start().starts_with("objectives:"))
        .map(|l| match l.split_once("- route: ") {
            Some((indent, name)) => {
                format!(
                    "{indent}- route: {name}\n{indent}  objectives: {{ recovery_ms: 500, useful_text_p95_ms: 100 }}"
                )
            }
            None => l,
        })
        .collect();
    fs::write(dir.path().join("p.yaml"), low.join("\n")).unwrap();
    let done = run(dir.path(), &["--policy", "p.yaml", "--months", "3", "--format", "human"]);
    let text = out(&done);
    assert_eq!(done.status.code(), Some(0), "{text}{}", err(&done));
    for what in ["recovery_ms 500 declared, p95 ", "useful_text_p95_ms 100 declared, p95 "] {
        let line = text.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.starts_with("objective, not judged: ") && line.ends_with("here: ABOVE"), "{line}");
    }
    assert!(text.contains("note: the policy expired on 2025-03-01T12:00:00Z"), "{text}");
    assert!(text.trim_end().ends_with("objectives are not judged"), "{text}");
}

#[test]
fn an_input_journal_is_played_as_written_or_refused() {
    let dir = temp();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let policy = root.join("policies/dual-channel.yaml");
    let sha = llmfo::policy::sha256_hex(&fs::read(&policy).unwrap());
    let header = format!(r#"{{"format":1,"policy_sha256":"{sha}","seed":1,"hedges":false}}"#);
    let tick = |seq: u64, at: u64| format!(r#"{{"seq":{seq},"at":{at},"input":"tick"}}"#);
    let play = |lines: &[String]| {
        fs::write(dir.path().join("i.jsonl"), lines.join("\n") + "\n").unwrap();
        run(dir.path(), &["--policy", policy.to_str().unwrap(), "--inputs", "i.jsonl"])
    };
    let good = play(&[header.clone(), tick(0, 5), tick(1, 9)]);
    assert_eq!(good.status.code(), Some(0), "{}", err(&good));
    assert!(out(&good).contains("2 inputs"), "{}", out(&good));
    for (what, lines) in [
        ("missing", vec![header.clone(), tick(0, 5), tick(2, 9)]),
        ("twice", vec![header.clone(), tick(0, 5), tick(0, 5)]),
        ("backwards", vec![header.clone(), tick(0, 9), tick(1, 5)]),
        ("another policy", vec![header.replace(&sha, "0"), tick(0, 5)]),
        ("no header", vec![tick(0, 5)]),
    ] {
        let done = play(&lines);
        assert_eq!(done.status.code(), Some(2), "{what}: {}{}", out(&done), err(&done));
    }
    let empty = play(std::slice::from_ref(&header));
    assert_eq!(empty.status.code(), Some(4), "{}", err(&empty));
    assert!(err(&empty).contains("nothing was played"), "{}", err(&empty));
}

/// A file of another kind is named as what it is, and nobody is told to cut lines off it.
#[test]
fn an_input_journal_of_another_kind_is_named() {
    let root = env!("CARGO_MANIFEST_DIR");
    let policy = format!("{root}/policies/lab.yaml");
    let dir = temp();
    let journal = "{\"v\":1,\"seq\":0,\"at_unix_ms\":1,\"mono_ns\":1,\"event\":\"started\",\"policy\":\"p\",\
                   \"policy_sha256\":\"a\",\"seed\":1,\"pid\":2}\n";
    std::fs::write(dir.path().join("journal.jsonl"), journal).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "hello\n").unwrap();
    let (as_policy, prices) = (format!("{root}/policies/support.yaml"), format!("{root}/examples/prices.yaml"));
    for (file, is, step) in [
        ("journal.jsonl", "is the journal of a gateway; an input journal is needed", "--record-inputs"),
        (&as_policy, "is a policy; an input journal is needed", "llmfo serve --policy"),
        (&prices, "is a list of prices; an input journal is needed", "llmfo simulate --prices"),
        ("notes.txt", "is no input journal: its first line does not say", "--record-inputs"),
    ] {
        let done = run(dir.path(), &["--policy", &policy, "--inputs", file]);
        let said = err(&done);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(is) && said.contains(step) && !said.contains("half line"), "{file}: {said}");
    }
}
