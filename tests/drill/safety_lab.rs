//! What others do to the lab or its fault server while a drill runs is not the gateway's doing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::{LLMFO, Proc, Running, codes, drill, last_word, short_drill, turn, until};

/// A call over HTTP/1.1: status and body.
fn http(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let address = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// A lab with a gateway in region 1, apart from any drill.
struct Apart {
    _lab: Proc,
    _gateway: Proc,
    up: Value,
}

impl Apart {
    fn start(dir: &Path) -> Apart {
        let (lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir);
        let (policy, listen) = (up["policy"].as_str().unwrap(), up["entries"]["region-1"]["listen"].as_str().unwrap());
        let serve = ["serve", "--policy", policy, "--listen", listen, "--format", "json", "--exit-with-stdin"];
        let (gateway, _) = Proc::start(LLMFO, &serve, dir);
        Apart { _lab: lab, _gateway: gateway, up }
    }

    fn admin(&self) -> &str {
        self.up["admin"].as_str().unwrap()
    }

    fn url(&self) -> &str {
        self.up["entries"]["region-1"]["url"].as_str().unwrap()
    }

    fn toxiproxy(&self) -> &str {
        self.up["toxiproxy"].as_str().unwrap()
    }
}

/// A stand-in for the lab's admin interface that gives each log as it was a second ago, as a busy one does. Returns its URL
/// and the paths that were asked for.
fn slow_logs(admin: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let admin: SocketAddr = admin.trim_start_matches("http://").parse().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, kept) = (stream.unwrap(), Arc::clone(&kept));
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap().to_owned();
                let path = line.split(' ').nth(1).unwrap().to_owned();
                let mut lab = TcpStream::connect(admin).unwrap();
                write!(lab, "{line}\r\nhost: lab\r\nconnection: close\r\n\r\n").unwrap();
                let mut answer = Vec::new();
                lab.read_to_end(&mut answer).unwrap();
                if path.contains("/log") {
                    std::thread::sleep(Duration::from_secs(1));
                }
                kept.lock().unwrap().push(path);
                let _ = stream.write_all(&answer);
            });
        }
    });
    (url, asked)
}

/// A request that ended after the log was written is not held against anybody, and only rows of this run are fetched.
#[test]
fn a_log_that_comes_late_is_no_missing_steady_state() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let (admin, asked) = slow_logs(apart.admin());
    let file = short_drill(dir.path(), 4000);
    let (exit, text, summary, out) =
        drill(&[file.to_str().unwrap(), "--lab", &admin, "--target", apart.url()], dir.path());
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, last_word(&text)), (0, "PASS"), "{text}\n{errors}");
    assert_eq!(codes(&summary), Vec::<&str>::new());
    let asked = asked.lock().unwrap();
    let logs: Vec<&String> = asked.iter().filter(|p| p.contains("/log") || p.contains("/tickets")).collect();
    assert!(logs.len() > 3 && logs.iter().all(|p| p.contains("?since=")), "{logs:?}");
}

/// Only what came since then is in a log that is asked for with a time.
#[test]
fn the_lab_gives_rows_since_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let provider = apart.up["providers"]["local-a"].as_str().unwrap().trim_start_matches("http://");
    let address = provider.trim_end_matches("/v1");
    let ask = |text: &str| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
        assert_eq!(http(address, "POST", "/v1/chat/completions", &body).0, 200);
    };
    let log = |query: &str| -> Value {
        let (status, body) = http(apart.admin(), "GET", &format!("/providers/local-a/log{query}"), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    ask("one");
    let between = log("")["now_ms"].as_f64().unwrap();
    ask("two");
    assert_eq!(log("")["rows"].as_array().unwrap().len(), 2);
    assert_eq!(log(&format!("?since={between}"))["rows"].as_array().unwrap().len(), 1);
    assert_eq!(http(apart.admin(), "GET", "/providers/local-a/log?since=soon", "").0, 400);
    assert_eq!(http(apart.admin(), "GET", &format!("/tickets?since={between}"), "").0, 200);
}

/// Somebody lifts a fault in mid-outage: nothing was measured, and the gateway is not to blame.
#[test]
fn a_fault_that_is_lifted_by_somebody_else_makes_the_run_invalid() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let file = short_drill(dir.path(), 20_000);
    let mut run =
        Running::start(&[file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()], dir.path());
    run.wait_for("outage: ");
    let (status, said) = http(apart.toxiproxy(), "POST", "/proxies/region-1.local-a", r#"{"enabled":true}"#);
    assert_eq!(status, 200, "{said}");
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}");
    assert_eq!(codes(&summary), ["fault_lifted"], "{text}");
    let why = summary["findings"][0]["examples"][0].as_str().unwrap();
    assert!(why.contains("the fault did not stay: region-1.local-a") && why.contains("somebody else"), "{why}");
    assert_eq!(summary["cleanup"], "clean");
}

/// Somebody breaks the stand-in's own path for a while, or a path again that the drill has restored: neither is the gateway's
/// doing, however well all is at the end.
#[test]
fn a_path_that_somebody_else_breaks_makes_the_run_invalid_in_every_phase() {
    let _turn = turn();
    for (phase, path) in [("outage: ", "region-2.local-b"), ("restored", "region-1.local-a")] {
        let dir = tempfile::tempdir().unwrap();
        let apart = Apart::start(dir.path());
        let file = short_drill(dir.path(), 6_000);
        let mut run =
            Running::start(&[file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()], dir.path());
        run.wait_for(phase);
        let set = |enabled: bool| {
            let body = format!(r#"{{"enabled":{enabled}}}"#);
            let (status, said) = http(apart.toxiproxy(), "POST", &format!("/proxies/{path}"), &body);
            assert_eq!(status, 200, "{said}");
        };
        set(false);
        let (exit, text, summary, _) = run.finish();
        assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{phase}: {text}");
        assert_eq!(codes(&summary), ["fault_lifted"], "{phase}: {text}");
        let why = summary["findings"][0]["examples"][0].as_str().unwrap();
        assert!(why.contains(path) && why.contains("changed by somebody else"), "{why}");
    }
}

/// Switched off and on again between two looks: all is as it was set, and customers met what was between.
#[test]
fn a_path_that_somebody_else_breaks_and_mends_at_once_makes_the_run_invalid() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let file = short_drill(dir.path(), 6_000);
    let mut run =
        Running::start(&[file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()], dir.path());
    run.wait_for("outage: ");
    for body in [r#"{"enabled":false}"#, r#"{"enabled":true}"#] {
        let (status, said) = http(apart.toxiproxy(), "POST", "/proxies/region-2.local-b", body);
        assert_eq!(status, 200, "{said}");
    }
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}");
    assert_eq!(codes(&summary), ["fault_lifted"], "{text}");
    let why = summary["findings"][0]["examples"][0].as_str().unwrap();
    // A look may fall between the two.
    assert!(why.contains("region-2.local-b was changed") && why.contains("by somebody else"), "{why}");
}

/// The same short drill with another fault.
fn seeing(dir: &Path, see: &str) -> std::path::PathBuf {
    let file = short_drill(dir, 6_000);
    let text = std::fs::read_to_string(&file).unwrap().replace("see: refused", see);
    std::fs::write(&file, text.replace("[provider, history_store]", "[provider]")).unwrap();
    file
}

/// A path that answers with resets lets no request through, so nobody has gone around it.
#[test]
fn a_path_that_is_reset_is_not_gone_around() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = seeing(dir.path(), "see: reset");
    let (exit, text, summary, _) = drill(&[file.to_str().unwrap()], dir.path());
    assert!(!codes(&summary).contains(&"fault_bypassed"), "{text}");
    assert_ne!(exit, 1, "{text}");
}

/// 0.9 s are longer than a right gateway's limits, and shorter than what is late for the load.
#[test]
fn a_runner_that_stood_still_just_after_the_injection_accuses_nobody() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = seeing(dir.path(), "see: connect_timeout, existing: silence");
    let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
    run.wait_for("breaking");
    std::thread::sleep(Duration::from_millis(200));
    run.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(900));
    run.signal(Signal::CONT);
    let (exit, text, summary, _) = run.finish();
    assert_ne!(exit, 1, "{text}");
    // A gateway that did well all the same did well.
    assert!(exit == 0 || !codes(&summary).is_empty(), "{text}");
}

/// The load of a runner that stood still for a while came in one burst, so it measured something else.
#[test]
fn a_runner_that_stood_still_for_a_while_makes_the_run_invalid() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let file = short_drill(dir.path(), 9000);
    let mut run =
        Running::start(&[file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()], dir.path());
    run.wait_for("outage: ");
    run.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(2500));
    run.signal(Signal::CONT);
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}");
    assert!(codes(&summary).contains(&"generator_late"), "{text}");
}

/// The faults of a runner that stood still are lifted by their lease: what came after it is nobody's doing.
#[test]
fn a_runner_whose_lease_ran_out_accuses_nobody_and_proposes_nothing() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let file = short_drill(dir.path(), 20_000);
    let mut run =
        Running::start(&[file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()], dir.path());
    run.wait_for("outage: ");
    run.signal(Signal::STOP);
    until("the lease has healed", Duration::from_secs(30), || {
        http(apart.toxiproxy(), "GET", "/llmfo/v1/history", "").1.contains("region-1.local-a")
    });
    run.signal(Signal::CONT);
    let (exit, text, summary, _) = run.finish();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}");
    assert_eq!(codes(&summary), ["lease_lost"], "{text}");
    assert!(!text.contains("FAIL"), "{text}");
    assert_eq!(summary["proposals"], json!([]), "{text}");
    assert_eq!(summary["cleanup"], "clean");
}

/// Another user with another state folder shares nothing but the fault server.
#[test]
fn two_drills_on_one_server_do_not_overlap_whatever_their_state_folders() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let apart = Apart::start(dir.path());
    let file = short_drill(dir.path(), 60_000);
    let args = [file.to_str().unwrap(), "--lab", apart.admin(), "--target", apart.url()];
    let mut first = Running::start(&args, dir.path());
    first.wait_for("steady state");
    let pid = first.child.id();
    let (exit, _, _, out) = drill(&args, other.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(exit, 3, "{said}");
    assert!(said.contains("another drill works with") && said.contains(&format!("process {pid}")), "{said}");
    first.signal(Signal::TERM);
    assert_eq!(first.finish().0, 143);
    let proxies = http(apart.toxiproxy(), "GET", "/proxies", "").1;
    assert!(!proxies.contains("llmfo-drill-lock"), "{proxies}");
    // The marker of a killed runner is taken over.
    let third = tempfile::tempdir().unwrap();
    let mut killed = Running::start(&args, third.path());
    killed.wait_for("steady state");
    killed.signal(Signal::KILL);
    killed.child.wait().unwrap();
    assert!(http(apart.toxiproxy(), "GET", "/proxies", "").1.contains("llmfo-drill-lock"));
    let mut next = Running::start(&args, other.path());
    next.wait_for("outage: ");
    next.signal(Signal::TERM);
    assert_eq!(next.finish().0, 143);
}

#[test]
fn clean_says_that_a_drill_is_running() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = short_drill(dir.path(), 60_000);
    let mut run = Running::start(&[file.to_str().unwrap()], dir.path());
    let clean = || {
        let mut clean = std::process::Command::new(LLMFO);
        let out = clean.args(["drill", "clean"]).env("XDG_STATE_HOME", dir.path().join("state")).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    until("it is at work", Duration::from_secs(30), || clean().1.contains("is running"));
    run.wait_for("outage: ");
    let (exit, said) = clean();
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains(&format!("is running (process {}, run ", run.child.id())), "{said}");
    assert!(!said.contains("nothing was left behind"), "{said}");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().0, 143);
    until("nothing is left", Duration::from_secs(10), || clean().1.contains("nothing was left behind"));
}
