//! A fault server without leases, as a real Toxiproxy is one: what a run relies on there is its guard and its lock.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::stage::{LLMFO, Proc, Running, codes, descendants, last_word, short_drill, turn, until};

/// A fault server of ours behind a relay that hides that it is one. Returns the relay's URL.
fn plain(dir: &Path) -> (Proc, String) {
    let (server, said) = Proc::start(LLMFO, &["toxiproxy", "--port", "0", "--format", "json"], dir);
    let address: SocketAddr = said["api"].as_str().unwrap().trim_start_matches("http://").parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let Some(request) = request(&mut stream) else { return };
                let mut behind = TcpStream::connect(address).unwrap();
                behind.write_all(&request).unwrap();
                let mut answer = Vec::new();
                let _ = behind.read_to_end(&mut answer);
                let text = String::from_utf8_lossy(&answer).replace("\"server\":\"llmfo\"", "\"_erver\":\"llmfo\"");
                let _ = stream.write_all(text.as_bytes());
            });
        }
    });
    (server, url)
}

/// One request, as it is to be sent on: with `connection: close`.
fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = |l: &str| l.to_ascii_lowercase().strip_prefix("content-length:").and_then(|n| n.trim().parse().ok());
    let mut body = vec![0; head.lines().find_map(length).unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let mut all = head.trim_end().to_owned().into_bytes();
    all.extend(b"\r\nconnection: close\r\n\r\n");
    all.extend(body);
    Some(all)
}

fn guard_of(run: &Running) -> Option<i32> {
    let is_guard = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.windows(11).any(|w| w == b"drill\0guard"))
    };
    descendants(run.child.id()).into_iter().find(is_guard)
}

/// Without its guard nobody would restore for a runner that dies: such a run stops, restores by itself and is no PASS.
#[test]
fn a_guard_that_is_killed_ends_the_drill_and_the_runner_restores() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = plain(dir.path());
    let file = short_drill(dir.path(), 8_000);
    let mut run = Running::start(&[file.to_str().unwrap(), "--toxiproxy", &url], dir.path());
    run.wait_for("outage: ");
    let guard = guard_of(&run).expect("a server without leases has a guard beside the run");
    rustix::process::kill_process(rustix::process::Pid::from_raw(guard).unwrap(), Signal::KILL).unwrap();
    let (exit, text, summary, out) = run.finish();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}\n{errors}");
    assert_eq!(codes(&summary), ["guard_lost"], "{text}");
    assert_eq!(summary["cleanup"], "clean", "{text}");
    assert!(text.contains(&format!("process {guard}")), "which one: {text}");
    // It ended at once, long before the outage of 8 s was over.
    let window = &summary["windows"][0];
    let lasted = window["restoring_ms"].as_f64().unwrap() - window["injected_ms"].as_f64().unwrap();
    assert!(lasted < 5_000.0, "{lasted}");
    assert_eq!(summary["proposals"], serde_json::json!([]));
}

/// A guard that is only stopped restores no more than one that is dead, and its process must not outlive the run.
#[test]
fn a_guard_that_is_stopped_is_missed_and_ended_with_the_run() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = plain(dir.path());
    let file = short_drill(dir.path(), 9_000);
    let mut run = Running::start(&[file.to_str().unwrap(), "--toxiproxy", &url], dir.path());
    run.wait_for("outage: ");
    let guard = guard_of(&run).expect("a server without leases has a guard beside the run");
    let pid = rustix::process::Pid::from_raw(guard).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let (exit, text, summary, out) = run.finish();
    // Whatever the run made of it, this test leaves no stopped process.
    let left = std::path::Path::new(&format!("/proc/{guard}")).exists();
    if left {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, last_word(&text)), (5, "INVALID"), "{text}\n{errors}");
    assert_eq!(codes(&summary), ["guard_lost"], "{text}");
    assert_eq!(summary["cleanup"], "clean", "{text}");
    assert!(text.contains(&format!("the guard (process {guard}) gave no sign of life for 3 s")), "{text}");
    assert!(!left, "its process was left behind");
    // Noticed within the bound of 3 s and a beat, long before the outage of 9 s was over.
    let window = &summary["windows"][0];
    let lasted = window["restoring_ms"].as_f64().unwrap() - window["injected_ms"].as_f64().unwrap();
    assert!(lasted < 7_500.0, "{lasted}");
}

/// Each beat is answered, so that a guard that only seems to be there is told from one that is.
#[test]
fn a_guard_answers_each_beat() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.jsonl");
    let mut guard = std::process::Command::new(LLMFO)
        .args(["drill", "guard", "--log"])
        .arg(&log)
        .args(["--longest-s", "60"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = guard.stdout.take().unwrap();
    let mut ask = guard.stdin.take().unwrap();
    for _ in 0..3 {
        ask.write_all(b"beat\n").unwrap();
        let mut answer = [0; 6];
        said.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"heard\n");
    }
    // Nobody reads any more: that is no reason to end.
    drop(said);
    ask.write_all(b"beat\nbeat\n").unwrap();
    ask.write_all(b"done\n").unwrap();
    assert_eq!(guard.wait().unwrap().code(), Some(0));
}

/// Two that begin in the same instant, whatever their state folders: at most one goes on, the other names it, and neither is
/// told of proxies that "exist already".
#[test]
fn of_two_drills_that_begin_together_on_a_toxiproxy_the_second_names_the_first() {
    let _turn = turn();
    for shared_state in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let second_dir = if shared_state { dir.path() } else { other.path() };
        let (_server, said) = Proc::start(LLMFO, &["toxiproxy", "--port", "0", "--format", "json"], dir.path());
        let url = said["api"].as_str().unwrap();
        let file = short_drill(dir.path(), 4_000);
        let args = [file.to_str().unwrap(), "--toxiproxy", url];
        let mut first = Running::start(&args, dir.path());
        std::fs::create_dir_all(second_dir.join("second")).unwrap();
        let second = std::process::Command::new(LLMFO)
            .args(["drill", "run"])
            .args(args)
            .arg("--report")
            .arg(second_dir.join("second/report"))
            .env("XDG_STATE_HOME", second_dir.join("state"))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (first_pid, second_pid) = (first.child.id(), second.id());
        let mut ended = second;
        until("one of them is refused", Duration::from_secs(60), || {
            ended.try_wait().unwrap().is_some() || first.child.try_wait().unwrap().is_some()
        });
        // Which of them comes first is the kernel's choice.
        let (refused, winner, exit) = match ended.try_wait().unwrap() {
            Some(_) => {
                let out = ended.wait_with_output().unwrap();
                let (exit, text, _, whole) = first.finish();
                assert_eq!((exit, last_word(&text)), (0, "PASS"), "{text}\n{}", String::from_utf8_lossy(&whole.stderr));
                (out, first_pid, exit)
            }
            None => {
                let (_, _, _, out) = first.finish();
                let whole = ended.wait_with_output().unwrap();
                let text = String::from_utf8_lossy(&whole.stdout).into_owned();
                assert_eq!(last_word(&text), "PASS", "{text}\n{}", String::from_utf8_lossy(&whole.stderr));
                (out, second_pid, 0)
            }
        };
        assert_eq!(exit, 0);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains("another drill works with") && said.contains(&format!("process {winner}")), "{said}");
        assert!(said.contains("since 20") && said.contains("wait until it ends"), "{said}");
        assert!(!said.contains("already has a proxy"), "{said}");
        let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
        write!(stream, "GET /proxies HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut proxies = String::new();
        stream.read_to_string(&mut proxies).unwrap();
        assert!(!proxies.contains("llmfo-drill-lock") && !proxies.contains("region-1"), "{proxies}");
    }
}
