//! The ledger as an operator meets it: kills, restarts, files that are none, `llmfo ledger list`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::{Served, refused, serve};

/// Calls `create_ticket` with other words each time; counts how often it was asked.
fn provider() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut got = Vec::new();
                let mut buf = [0; 4096];
                loop {
                    let text = String::from_utf8_lossy(&got).to_lowercase();
                    if let Some(at) = text.find("\r\n\r\n") {
                        let length: usize = text
                            .lines()
                            .find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok())
                            .unwrap_or(0);
                        if got.len() >= at + 4 + length {
                            got.drain(..at + 4 + length);
                            let n = count.fetch_add(1, Ordering::SeqCst);
                            let call = json!({"id": "x", "type": "function", "function": {
                                "name": "create_ticket", "arguments": format!("{{\"subject\":\"wording {n}\"}}")}});
                            let body = json!({"choices": [{"index": 0, "finish_reason": "tool_calls",
                                "message": {"role": "assistant", "content": null, "tool_calls": [call]}}]})
                            .to_string();
                            let head = format!(
                                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                                body.len()
                            );
                            if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
                                return;
                            }
                            continue;
                        }
                    }
                    match stream.read(&mut buf) {
                        Ok(n) if n > 0 => got.extend_from_slice(&buf[..n]),
                        _ => return,
                    }
                }
            });
        }
    });
    (address, asked)
}

fn policy(provider: SocketAddr) -> String {
    format!(
        "version: cli-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a:\n    base_url: http://{provider}/v1\n    \
         model: m\n    capabilities: {{ tools: true }}\npools:\n  all: {{ targets: [a], select: priority }}\ntools:\n  \
         create_ticket: {{ side_effects: keyed, key_argument: operation_id }}\nroutes:\n  - route: chat\n    data: none\n    \
         tools: [create_ticket]\n    deadline_ms: 10000\n    max_attempts: 2\n    attempts: [{{ pool: all, \
         first_token_timeout_ms: 5000, pii: allowed }}]\n    after_stream_started: return_controlled_error\n    \
         on_all_failed: {{ handoff: human, correlation_id: true }}\n"
    )
}

fn folder(provider: SocketAddr) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("policies")).unwrap();
    std::fs::write(dir.path().join("policies/p.yaml"), policy(provider)).unwrap();
    dir
}

/// One request; `None` if the gateway went away before it was answered whole.
fn ask(to: SocketAddr, conversation: &str) -> Option<(u16, Value)> {
    let body = json!({"model": "chat", "messages": [{"role": "user", "content": "It is broken."}],
                      "tools": [{"type": "function", "function": {"name": "create_ticket"}}]})
    .to_string();
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         x-llmfo-conversation: {conversation}\r\nx-llmfo-turn: 1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut all = String::new();
    stream.read_to_string(&mut all).ok()?;
    let (head, body) = all.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

fn call(answer: &(u16, Value)) -> (String, String) {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let call = &answer.1["choices"][0]["message"]["tool_calls"][0];
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    (text(&call["id"]), text(&call["function"]["arguments"]))
}

fn list(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .current_dir(dir)
        .args(["ledger", "list"])
        .args(args)
        .env("XDG_STATE_HOME", dir.join("state"))
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn listed(dir: &Path, args: &[&str]) -> Vec<Value> {
    let (code, out, said) = list(dir, &[args, &["--format", "json"]].concat());
    assert!(matches!(code, Some(0 | 4)), "{code:?} {said}");
    let listing: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listing["format"], 1);
    listing["calls"].as_array().unwrap().clone()
}

#[test]
fn a_killed_gateway_has_lost_no_call_that_a_client_has() {
    let (address, asked) = provider();
    let dir = folder(address);
    let mut have: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut number = 0;
    for round in 0..6u64 {
        let mut served = Served::start(dir.path(), &[]);
        let to = served.address("listen");
        // Whatever a client has seen before, it gets again, and nobody is asked for it.
        let before = asked.load(Ordering::SeqCst);
        for (conversation, right) in &have {
            assert_eq!(call(&ask(to, conversation).unwrap()), *right, "{conversation} in round {round}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), before);
        let got = Arc::new(Mutex::new(BTreeMap::new()));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (got, first) = (Arc::clone(&got), number + 1_000 * t);
                std::thread::spawn(move || {
                    for n in first.. {
                        let conversation = format!("c{n}");
                        let Some(answer) = ask(to, &conversation) else { return };
                        got.lock().unwrap().insert(conversation, call(&answer));
                    }
                })
            })
            .collect();
        // At another moment in each round, in full traffic.
        let start = Instant::now();
        while got.lock().unwrap().len() < 20 {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        threads.into_iter().for_each(|t| t.join().unwrap());
        number += 10_000;
        have.extend(Arc::try_unwrap(got).unwrap().into_inner().unwrap());
    }
    assert!(have.len() >= 120, "{}", have.len());
    // The list works on what the kill has left, and knows all of them.
    let all = listed(dir.path(), &["--state", "delivered"]);
    let ids: std::collections::BTreeSet<&str> = all.iter().map(|c| c["call_id"].as_str().unwrap()).collect();
    assert!(have.values().all(|(id, _)| ids.contains(id.as_str())));
}

#[test]
fn the_list_names_what_must_be_checked_beside_a_gateway_and_without_one() {
    let (address, _) = provider();
    let dir = folder(address);
    let (code, out, said) = list(dir.path(), &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{said}");
    assert!(said.contains("there is no ledger in"), "{said}");

    let mut served = Served::start(dir.path(), &["--admin", "127.0.0.1:0"]);
    let file = served.first["ledger"].as_str().unwrap().to_owned();
    assert!(file.starts_with(dir.path().join("state/llmfo/ledger/policy-").to_str().unwrap()), "{file}");
    let (code, _, said) = list(dir.path(), &[]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("no call is unconfirmed"), "{said}");
    let (id, arguments) = call(&ask(served.address("listen"), "c1").unwrap());
    let key = serde_json::from_str::<Value>(&arguments).unwrap()["operation_id"].as_str().unwrap().to_owned();
    // A running gateway has the file: its admin listener is asked.
    let beside = list(dir.path(), &[]);
    assert_eq!(beside.0, Some(0), "{}", beside.2);
    assert!(beside.2.contains(&format!("gateway with pid {}", served.child.id())), "{}", beside.2);
    for part in ["delivered", "c1", "create_ticket", &key] {
        assert!(beside.1.contains(part), "{part}: {}", beside.1);
    }
    assert!(!beside.1.contains("wording"), "no arguments: {}", beside.1);
    let rows = listed(dir.path(), &["--ledger", &file]);
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["call_id"], &rows[0]["key"], &rows[0]["turn"]), (&json!(id), &json!(key), &json!(1)));
    assert_eq!(rows[0]["arguments"], Value::Null);
    assert_eq!(listed(dir.path(), &["--with-arguments"])[0]["arguments"], json!(arguments));
    let admin = served.address("admin").to_string();
    assert_eq!(listed(dir.path(), &["--admin", &admin]), rows);
    assert_eq!(listed(dir.path(), &["--since", "1h"]), rows);
    assert!(listed(dir.path(), &["--since", "2100-01-01T00:00:00Z"]).is_empty());
    assert!(listed(dir.path(), &["--state", "confirmed"]).is_empty());
    served.signal(rustix::process::Signal::TERM);
    served.wait();
    // And when it has stopped the file itself is read.
    let after = list(dir.path(), &[]);
    assert_eq!((after.0, after.1.as_str()), (Some(0), beside.1.as_str()), "{}", after.2);
    assert!(!after.2.contains("gateway with pid"), "{}", after.2);
    assert_eq!(listed(dir.path(), &[]), rows);
    let (code, _, said) = list(dir.path(), &["--since", "yesterday"]);
    assert_eq!(code, Some(2), "{said}");
    // Several: which one is for people to say.
    std::fs::copy(&file, Path::new(&file).with_file_name("other.redb")).unwrap();
    let (code, _, said) = list(dir.path(), &[]);
    assert!(code == Some(2) && said.contains("other.redb") && said.contains("--ledger FILE"), "{said}");
}

#[test]
fn nothing_that_steers_a_terminal_is_printed() {
    use llmfo::gateway::ledger::disk::Disk;
    use llmfo::gateway::ledger::row::{CallRow, Change};
    use llmfo::gateway::ledger::store::Store;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l.redb");
    let row = json!({"call_id": "\u{1b}[1m", "operation_key": "op\u{7}", "client": "k\u{9b}", "route": "r\r", "conversation": "c\u{1b}[2J",
        "turn": 1, "ordinal": 0, "tool": "t\u{202e}", "side_effects": "unkeyed", "arguments": "", "state": "delivered",
        "since_unix_ms": 0, "changed_unix_ms": 0});
    let row: CallRow = serde_json::from_value(row).unwrap();
    Disk::open(&path).unwrap().apply(&[Change::Call(row)]).unwrap();
    let (code, out, said) = list(dir.path(), &["--ledger", "l.redb"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(out.contains("c\\u{1b}[2J"), "{out}");
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!out.chars().any(steers) && !said.chars().any(steers), "{out:?} {said:?}");
}

#[test]
fn a_file_that_is_no_ledger_or_in_use_stops_the_start_with_a_next_step() {
    let (address, _) = provider();
    let dir = folder(address);
    let args = |ledger: &'static str| vec!["--listen", "127.0.0.1:0", "--ledger", ledger];
    std::fs::write(dir.path().join("notes.txt"), "buy milk\n").unwrap();
    let (code, said) = refused(dir.path(), &args("notes.txt"), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("notes.txt is no ledger") && said.contains("--ledger FILE"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.path().join("notes.txt")).unwrap(), "buy milk\n");
    let (code, said) = refused(dir.path(), &args("/proc/no/ledger"), &[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("--ledger memory"), "{said}");

    let _served = Served::start(dir.path(), &["--ledger", "l.redb"]);
    let (code, said) = refused(dir.path(), &args("l.redb"), &[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("l.redb is in use by another gateway") && said.contains("--ledger FILE"), "{said}");
    // In memory only for whoever says so, and it is said again.
    let mut memory = serve(dir.path(), &["--listen", "127.0.0.1:0", "--ledger", "memory"]);
    memory.arg("--exit-with-stdin").stdin(std::process::Stdio::null());
    let out = String::from_utf8(memory.output().unwrap().stdout).unwrap();
    assert!(out.contains("memory: a restart forgets which calls were delivered"), "{out}");
    let mut nowhere = serve(dir.path(), &["--listen", "127.0.0.1:0"]);
    let Output { status, stderr, .. } = nowhere.env_remove("XDG_STATE_HOME").env_remove("HOME").output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("--ledger FILE") && said.contains("--ledger memory"), "{said}");
}
