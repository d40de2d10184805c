//! `llmfo keys new`, and a gateway that takes its keys.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::serve::{Served, policy, refused, serve};

fn llmfo(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.args(args).env_remove("LLMFO_ADMIN_KEY").env_remove("LLMFO_ADMIN").envs(env.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn get(to: &Value, path: &str, key: &str) -> u16 {
    let to: SocketAddr = to.as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A provider that nobody asks.
fn provider() -> (TcpListener, String) {
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = policy(provider.local_addr().unwrap(), "");
    (provider, text)
}

#[test]
fn a_new_key_is_shown_once_and_its_line_holds_only_its_hash() {
    let (code, key, line) = llmfo(&["keys", "new", "shop"], &[]);
    let key = key.trim_end();
    assert_eq!(code, Some(0));
    assert!(key.starts_with("sk-llmfo-") && key.len() == 9 + 64, "{key}");
    let hash = llmfo::gateway::clients::hash_of(key);
    assert_eq!(line, format!("  shop: {{ sha256: [{hash}] }}\n"));
    let (_, again, _) = llmfo(&["keys", "new", "shop"], &[]);
    assert_ne!(again.trim_end(), key);
    let (_, json, _) = llmfo(&["keys", "new", "shop", "--format", "json"], &[]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["sha256"], llmfo::gateway::clients::hash_of(json["key"].as_str().unwrap()));
    let (code, out, why) = llmfo(&["keys", "new", "a b"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{why}");
}

#[test]
fn what_can_be_reached_from_elsewhere_needs_keys_and_says_how() {
    let dir = tempfile::tempdir().unwrap();
    let (_provider, text) = provider();
    std::fs::write(dir.path().join("p.yaml"), text).unwrap();
    let (code, why) = refused(dir.path(), &["--policy", "p.yaml", "--listen", "0.0.0.0:0"], &[]);
    assert_eq!(code, Some(2));
    assert!(why.contains("clients have no keys") && why.contains("llmfo keys new NAME"), "{why}");
    let (code, why) =
        refused(dir.path(), &["--policy", "p.yaml", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"], &[]);
    assert_eq!(code, Some(2));
    assert!(why.contains("there is no key for it") && why.contains("--admin-key-file"), "{why}");
    let (code, why) = refused(dir.path(), &["--policy", "p.yaml", "--client-keys", "nowhere.yaml"], &[]);
    assert_eq!(code, Some(2));
    assert!(why.contains("cannot read the client keys nowhere.yaml"), "{why}");
    std::fs::write(dir.path().join("k.yaml"), "clients:\n  shop: { sha256: [sk-live-0123456789abcdef] }\n").unwrap();
    let (code, why) = refused(dir.path(), &["--policy", "p.yaml", "--client-keys", "k.yaml"], &[]);
    assert_eq!(code, Some(2));
    assert!(why.contains("k.yaml") && !why.contains("sk-live-0123456789abcdef"), "{why}");
    let (code, out, _) = llmfo(&["validate", &dir.path().join("k.yaml").display().to_string()], &[]);
    assert!(code == Some(1) && out.contains("LF0") && !out.contains("sk-live"), "{out}");
}

#[test]
fn keys_made_here_open_the_gateway_also_after_a_reload_and_a_broken_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (_provider, text) = provider();
    std::fs::write(at("p.yaml"), text).unwrap();
    let make = |name: &str| {
        let (_, key, line) = llmfo(&["keys", "new", name], &[]);
        (key.trim_end().to_owned(), line)
    };
    let ((shop, shop_line), (batch, batch_line), (admin, _)) = (make("shop"), make("batch"), make("admin"));
    std::fs::write(at("k.yaml"), format!("clients:\n{shop_line}")).unwrap();
    std::fs::write(at("admin.key"), format!("{admin}\n")).unwrap();
    let args =
        ["--policy", "p.yaml", "--client-keys", "k.yaml", "--admin", "0.0.0.0:0", "--admin-key-file", "admin.key"];
    let mut gateway = Served::of(serve(dir.path(), &[]), &args);
    let listen = &gateway.first["listen"].clone();
    let admin_at = gateway.first["admin"].as_str().unwrap().replace("0.0.0.0", "127.0.0.1");
    assert_eq!((get(listen, "/v1/models", &shop), get(listen, "/v1/models", &batch)), (200, 401));

    let ctl = |env: &[(&str, &str)], more: &[&str]| {
        let mut args = vec!["ctl", "list", "--admin", &admin_at];
        args.extend(more);
        llmfo(&args, env)
    };
    let (code, _, why) = ctl(&[], &[]);
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("LLMFO_ADMIN_KEY"), "{why}");
    assert_eq!(ctl(&[("LLMFO_ADMIN_KEY", &admin)], &[]).0, Some(0));
    let key_file = at("admin.key").display().to_string();
    assert_eq!(ctl(&[], &["--admin-key-file", &key_file]).0, Some(0));
    let list = ["ledger", "list", "--admin", &admin_at, "--admin-key-file", &key_file];
    let (code, _, why) = llmfo(&list, &[]);
    assert_eq!(code, Some(4), "it was read, and nothing is in it: {why}");

    let pid = rustix::process::Pid::from_child(&gateway.child);
    let reload = |until: &str| {
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        let start = Instant::now();
        loop {
            let mut stream = TcpStream::connect(&admin_at).unwrap();
            write!(
                stream,
                "GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {admin}\r\nconnection: close\r\n\r\n"
            )
            .unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            if said.contains(until) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{until} did not come: {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::fs::write(at("k.yaml"), format!("clients:\n{batch_line}")).unwrap();
    reload("llmfo_client_keys_reloads_total{result=\"taken\"} 1");
    assert_eq!((get(listen, "/v1/models", &shop), get(listen, "/v1/models", &batch)), (401, 200));
    std::fs::write(at("k.yaml"), "clients: {").unwrap();
    reload("llmfo_client_keys_reloads_total{result=\"refused\"} 1");
    assert_eq!((get(listen, "/v1/models", &shop), get(listen, "/v1/models", &batch)), (401, 200));
    // A policy that cannot be used holds up no key.
    std::fs::write(at("k.yaml"), format!("clients:\n{shop_line}")).unwrap();
    std::fs::write(at("p.yaml"), "version: [").unwrap();
    reload("llmfo_client_keys_reloads_total{result=\"taken\"} 2");
    assert_eq!((get(listen, "/v1/models", &shop), get(listen, "/v1/models", &batch)), (200, 401));
    gateway.signal(rustix::process::Signal::TERM);
    gateway.wait();
    let mut log = String::new();
    gateway.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("request not taken"), "{log}");
    let refused: Vec<&str> = log.lines().filter(|l| l.contains("the client keys were not replaced")).collect();
    assert!(refused.len() == 1 && refused[0].contains("next: "), "{log}");
    for key in [&shop, &batch, &admin] {
        assert!(!log.contains(key.as_str()), "{log}");
    }
}
