//! Nothing stays broken, however a drill ends.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{LLMFO, Proc, Running, alive, codes, descendants, drill, last_word, short_drill, turn, until};

/// The ports that the children of an embedded run listen on, from the log of the run.
fn proxied_ports(report: &std::path::Path, state: &std::path::Path) -> Vec<u16> {
    let wal = std::fs::read_to_string(report.join("wal.jsonl")).ok().or_else(|| {
        let logs = std::fs::read_dir(state.join("llmfo/drills")).ok()?;
        logs.flatten().find_map(|e| std::fs::read_to_string(e.path()).ok())
    });
    let first: Value = serde_json::from_str(wal.unwrap().lines().next().unwrap()).unwrap();
    let proxies = first["begin"]["begin"]["snapshot"].as_object().unwrap();
    proxies.values().map(|p| p["listen"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn ctrl_c_in_mid_outage_restores_reports_and_leaves_nothing() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = short_drill(dir.path(), 60_000);
    let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
    run.wait_for("outage: ");
    let children = descendants(run.child.id());
    assert!(children.len() >= 3, "lab and two gateways: {children:?}");
    run.signal(Signal::INT);
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, text.lines().last()), (130, Some("ABORTED")), "{text}");
    assert_eq!((summary["verdict"].as_str(), summary["cleanup"].as_str()), (Some("ABORTED"), Some("clean")));
    assert_eq!(summary["aborted"]["by"], "interrupted");
    // What was restored, where the report is and what to do next; no rows of half a run.
    assert!(text.lines().count() <= 10, "{text}");
    for words in [
        "restored: region-1.",
        "clean-up clean",
        "report: ",
        "again: llmfo drill run",
        "why: interrupted: Ctrl-C",
        "next: ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(
        (summary["proposals"].as_array().map(Vec::len), summary["why"].as_array().map(Vec::len)),
        (Some(0), Some(2))
    );
    let wal = std::fs::read_to_string(dir.path().join("report/wal.jsonl")).unwrap();
    assert!(wal.lines().last().unwrap().contains("restored"), "{wal}");
    until("its children are gone", Duration::from_secs(10), || children.iter().all(|c| !alive(*c)));
    for port in proxied_ports(&dir.path().join("report"), &dir.path().join("state")) {
        drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
    }
}

#[test]
fn a_killed_runner_takes_its_children_and_faults_with_it_and_the_next_one_says_so() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = short_drill(dir.path(), 60_000);
    let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
    run.wait_for("outage: ");
    let children = descendants(run.child.id());
    run.signal(Signal::KILL);
    let _ = run.child.wait();
    until("its children are gone", Duration::from_secs(10), || children.iter().all(|c| !alive(*c)));
    for port in proxied_ports(&dir.path().join("none"), &dir.path().join("state")) {
        until("its ports are free", Duration::from_secs(10), || TcpListener::bind(("127.0.0.1", port)).is_ok());
    }
    let clean = std::process::Command::new(LLMFO)
        .args(["drill", "clean"])
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&clean.stdout).into_owned();
    assert_eq!(clean.status.code(), Some(0), "{said}");
    assert!(said.contains("ended without restoring") && said.contains("is gone"), "{said}");
    let again = std::process::Command::new(LLMFO)
        .args(["drill", "clean"])
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing was left behind"));
}

#[test]
fn with_lab_and_gateway_apart_a_killed_runner_is_healed_within_ten_seconds_and_the_next_run_says_what_it_found() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let admin = up["admin"].as_str().unwrap();
    let listen = up["entries"]["region-1"]["listen"].as_str().unwrap();
    let serve = [
        "serve",
        "--policy",
        up["policy"].as_str().unwrap(),
        "--listen",
        listen,
        "--format",
        "json",
        "--exit-with-stdin",
    ];
    let (_gateway, _) = Proc::start(LLMFO, &serve, dir.path());
    let url = up["entries"]["region-1"]["url"].as_str().unwrap().to_string();
    let file = short_drill(dir.path(), 60_000);
    let attach = [file.to_str().unwrap(), "--lab", admin, "--target", &url];
    let mut run = Running::start(&attach, dir.path());
    run.wait_for("outage: ");
    // The path is broken: nothing accepts.
    let proxied = up["providers"]["local-a"].as_str().unwrap();
    let address = proxied.trim_start_matches("http://").trim_end_matches("/v1").to_string();
    assert!(TcpStream::connect(&address).is_err());
    run.signal(Signal::KILL);
    let _ = run.child.wait();
    until("the path accepts again", Duration::from_secs(10), || TcpStream::connect(&address).is_ok());

    let file = short_drill(dir.path(), 4000);
    let attach = [file.to_str().unwrap(), "--lab", admin, "--target", &url];
    let (exit, text, summary, out) = drill(&attach, dir.path());
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, last_word(&text)), (0, "PASS"), "{text}\n{errors}");
    let healed = summary["run"]["healed"][0].as_str().unwrap();
    assert!(healed.contains("drill short") && healed.contains("lease ran out"), "{healed}");
    assert!(errors.contains("before the start: drill short"), "{errors}");
}

#[test]
fn two_drills_on_one_server_do_not_overlap() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let admin = up["admin"].as_str().unwrap();
    let listen = up["entries"]["region-1"]["listen"].as_str().unwrap();
    let serve = [
        "serve",
        "--policy",
        up["policy"].as_str().unwrap(),
        "--listen",
        listen,
        "--format",
        "json",
        "--exit-with-stdin",
    ];
    let (_gateway, _) = Proc::start(LLMFO, &serve, dir.path());
    let url = up["entries"]["region-1"]["url"].as_str().unwrap().to_string();
    let file = short_drill(dir.path(), 60_000);
    let mut first = Running::start(&[file.to_str().unwrap(), "--lab", admin, "--target", &url], dir.path());
    first.wait_for("steady state");
    let (exit, _, _, out) = drill(&[file.to_str().unwrap(), "--lab", admin, "--target", &url], dir.path());
    assert_eq!(exit, 3, "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stderr).contains("another drill"));
    first.signal(Signal::TERM);
    assert_eq!(first.finish().0, 143);
}

/// Panics in mid-outage, as a bug would.
struct Panics;

impl llmfo::drill::run::Reporter for Panics {
    fn state(&mut self, line: &str) {
        assert!(!line.starts_with("outage"), "a bug in mid-outage");
    }

    fn say(&mut self, _: &str, _: bool) {}
}

#[test]
fn a_panic_in_mid_outage_restores_before_it_is_passed_on() {
    use llmfo::drill::{library, run};
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let listen = up["entries"]["region-1"]["listen"].as_str().unwrap();
    let policy = up["policy"].as_str().unwrap();
    let serve = ["serve", "--policy", policy, "--listen", listen, "--format", "json", "--exit-with-stdin"];
    let (_gateway, _) = Proc::start(LLMFO, &serve, dir.path());
    let options = run::Options {
        seed: 1,
        targets: vec![up["entries"]["region-1"]["url"].as_str().unwrap().into()],
        target_key: None,
        lab: Some(up["admin"].as_str().unwrap().into()),
        toxiproxy: None,
        policy: None,
        see: None,
        report: dir.path().join("report"),
        claimed: Vec::new(),
        state: dir.path().join("state"),
    };
    let found = library::find(short_drill(dir.path(), 60_000).to_str().unwrap()).unwrap();
    let file = library::parse(&found).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async {
            let stops = run::signals::Stops::listen().unwrap();
            run::execute(&options, &file, &found, stops, &mut Panics).await.map(|_| ())
        })
    }));
    assert!(ended.is_err(), "the panic is passed on: {ended:?}");
    let address = up["providers"]["local-a"].as_str().unwrap().trim_start_matches("http://").trim_end_matches("/v1");
    assert!(TcpStream::connect(address).is_ok(), "restored already");
    let log = std::fs::read_dir(dir.path().join("state/drills")).unwrap().next().unwrap().unwrap().path();
    let last = std::fs::read_to_string(log).unwrap().lines().last().unwrap().to_string();
    assert!(last.contains("restored") && last.contains("\"by\":\"runner\""), "{last}");
}

#[test]
fn a_second_ctrl_c_skips_waiting_and_not_the_restore() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = short_drill(dir.path(), 60_000);
    let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
    run.wait_for("outage: ");
    run.signal(Signal::INT);
    run.signal(Signal::INT);
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, text.lines().last()), (130, Some("ABORTED")), "{text}");
    assert_eq!(summary["cleanup"], "clean");
}

/// The lab among the children of a run.
fn lab_of(run: &Running) -> rustix::process::Pid {
    let is_lab =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.windows(6).any(|w| w == b"lab\0up"));
    let pid = descendants(run.child.id()).into_iter().find(is_lab).unwrap();
    rustix::process::Pid::from_raw(pid).unwrap()
}

/// A lab that is killed, or stands still, says nothing about the gateway, whenever that happens.
#[test]
fn a_lab_that_is_lost_makes_the_run_invalid_and_blames_nobody() {
    let _turn = turn();
    for (phase, signal) in [
        ("steady state", Signal::KILL),
        ("steady state", Signal::STOP),
        ("outage: ", Signal::STOP),
        ("outage: ", Signal::KILL),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = short_drill(dir.path(), 20_000);
        let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
        match phase {
            "steady state" => {
                until("lab and gateways run", Duration::from_secs(30), || descendants(run.child.id()).len() >= 3)
            }
            said => run.wait_for(said),
        }
        let children = descendants(run.child.id());
        rustix::process::kill_process(lab_of(&run), signal).unwrap();
        let (exit, text, summary, out) = run.finish();
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{phase} {signal:?}: {text}\n{errors}");
        assert_eq!(codes(&summary), ["lab_lost"], "{phase} {signal:?}: {text}");
        assert_eq!(
            (summary["verdict"].as_str(), summary["cleanup"].as_str()),
            (Some("INVALID"), Some("clean")),
            "{text}"
        );
        assert!(!text.contains("FAIL"), "{text}");
        until("its children are gone", Duration::from_secs(10), || children.iter().all(|c| !alive(*c)));
    }
}

/// What the lab said is the cause, and one piece of advice is enough.
#[test]
fn a_lab_that_does_not_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let out = std::process::Command::new(LLMFO)
        .args(["drill", "run", "region-outage", "--toxiproxy", &format!("http://127.0.0.1:{port}"), "--report"])
        .arg(dir.path().join("report"))
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("the lab did not start") && said.contains("Connection refused"), "{said}");
    assert_eq!(said.matches("next:").count(), 1, "{said}");
}

/// The guard stands alone: Ctrl-C and a closed terminal are not for it. Its log is not there, so that it could only fail if
/// it did anything but wait.
#[test]
fn the_guard_leads_its_own_session_and_outlives_ctrl_c_and_the_terminal() {
    use std::io::Write;
    let mut guard = std::process::Command::new(LLMFO)
        .args(["drill", "guard", "--log", "/nonexistent/log.jsonl", "--longest-s", "60"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&guard);
    until("it stands alone", Duration::from_secs(20), || llmfo::fault::guard::leads_a_session(pid));
    // Bits 1, 2 and 15 of the mask of caught signals: SIGHUP, SIGINT, SIGTERM.
    until("it listens for signals", Duration::from_secs(20), || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", guard.id())).unwrap();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & 0x4003 == 0x4003
    });
    let mut stdin = guard.stdin.take().unwrap();
    for signal in [Signal::INT, Signal::HUP, Signal::INT, Signal::HUP] {
        rustix::process::kill_process(pid, signal).unwrap();
        stdin.write_all(b"beat\n").unwrap();
    }
    stdin.write_all(b"done\n").unwrap();
    assert_eq!(guard.wait().unwrap().code(), Some(0));
}
