//! `llmfo toxiproxy` as its user meets it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fault::suite::net::{echo, http, upstream};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.arg("toxiproxy").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Started, with its first line.
fn started(args: &[&str]) -> (Child, Value) {
    let mut child = command(args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let first = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    (child, first)
}

fn ended(mut child: Child) -> (Option<i32>, String) {
    let until = Instant::now() + Duration::from_secs(10);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
fn it_says_where_it_listens_and_ends_with_0_on_a_signal() {
    for kind in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let (child, first) = started(&["--port", "0", "--format", "json"]);
        assert_eq!((&first["format"], &first["pid"]), (&json!(1), &json!(child.id())));
        let api = first["api"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        assert_eq!(http(api, "GET", "/version", &[], "").json()["server"], "llmfo");
        let since = Instant::now();
        signal(&child, kind);
        assert_eq!(ended(child).0, Some(0));
        assert!(since.elapsed() < Duration::from_secs(3));
    }
}

#[test]
fn c13_a_busy_port_is_exit_3_with_a_reason() {
    let (first, said) = started(&["--port", "0", "--format", "json"]);
    let port = said["api"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let (code, said) = ended(command(&["--port", &port]).spawn().unwrap());
    assert_eq!(code, Some(3));
    assert!(said.contains("Address already in use") && said.contains("next: "), "{said}");
    signal(&first, rustix::process::Signal::TERM);
    ended(first);
}

#[test]
fn c14_a_list_of_proxies_is_taken_or_refused_as_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxies.json");
    let path = file.to_str().unwrap();
    let up = upstream(echo);
    let list = json!([{"name": "llm", "listen": "127.0.0.1:0", "upstream": up.addr.to_string()}]);
    std::fs::write(&file, list.to_string()).unwrap();
    let (child, first) = started(&["--port", "0", "--format", "json", "--config", path]);
    assert_eq!(first["proxies"], 1);
    signal(&child, rustix::process::Signal::TERM);
    ended(child);
    for broken in ["{oops", "[{\"name\":\"llm\"}]"] {
        std::fs::write(&file, broken).unwrap();
        let (code, said) = ended(command(&["--port", "0", "--config", path]).spawn().unwrap());
        assert_eq!(code, Some(2), "{broken}: {said}");
    }
}

#[test]
fn other_addresses_than_loopback_need_a_flag() {
    let (code, said) = ended(command(&["--host", "0.0.0.0", "--port", "0"]).spawn().unwrap());
    assert_eq!(code, Some(2));
    assert!(said.contains("--api-anywhere"), "{said}");
}
