//! `lab up` as its user meets it: the real binary, real sockets.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use llmfo::lab::topology::{Topology, UpLine};
use llmfo::load::client::{Ask, ask};
use llmfo::load::http::{Base, json_call};
use llmfo::load::received::Received;
use llmfo::load::{Kind, Marker, monotonic_ms};
use llmfo::measure::{End, ProviderRow};
use serde_json::{Value, json};

/// A lab in a process of its own; killed if the test ends early.
struct Up {
    child: Child,
    line: UpLine,
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(args: &[&str], state: Option<&std::path::Path>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.args(["lab", "up"]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(state) = state {
        command.env("XDG_STATE_HOME", state);
    }
    command.spawn().unwrap()
}

fn up_with(args: &[&str], state: Option<&std::path::Path>) -> Up {
    let mut child = spawn(args, state);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let line = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    Up { child, line }
}

fn up() -> Up {
    up_with(&["--exit-with-stdin"], None)
}

impl Up {
    async fn get(&self, below: &str) -> Value {
        call(Method::GET, &self.line.admin, below, None).await.unwrap()
    }

    async fn topology(&self) -> Topology {
        serde_json::from_value(self.get("/topology").await).unwrap()
    }

    async fn log(&self, provider: &str) -> Vec<ProviderRow> {
        serde_json::from_value(self.get(&format!("/providers/{provider}/log")).await["rows"].clone()).unwrap()
    }

    /// The answer of a provider to one turn.
    async fn say(&self, provider: &str, kind: Kind, stream: bool) -> Received {
        let url = &self.line.providers[provider];
        let (outcome, end, detail) = ask(&Ask {
            base: &Base::new(url).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from(request(kind, stream).to_string()),
            stream,
            connect_limit: Duration::from_secs(1),
            limit: Duration::from_secs(10),
        })
        .await;
        assert_eq!(end, End::Complete, "{provider} {kind:?}: {detail}");
        outcome.received
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn exit(&mut self) -> ExitStatus {
        let limit = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < limit, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

async fn call(method: Method, base: &str, below: &str, body: Option<&Value>) -> Result<Value, String> {
    json_call(method, &Base::new(base).unwrap(), below, body, Duration::from_secs(5)).await
}

fn request(kind: Kind, stream: bool) -> Value {
    let marker = Marker { conversation: "t-1".into(), turn: 2, kind };
    let mut body = json!({"model": "support-lab", "stream": stream, "tools": llmfo::load::app::tools(), "messages": [
        {"role": "user", "content": "[c:t-1 t:1 k:order] My order is ORD-123456."},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": marker.text()}]});
    if kind == Kind::Json {
        let schema = llmfo::load::app::json_schema();
        body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    }
    body
}

#[tokio::test]
async fn the_line_the_topology_and_the_parts_agree() {
    let lab = up();
    let t = lab.topology().await;
    assert_eq!((lab.line.format, lab.line.embedded, lab.line.pid), (1, true, lab.child.id()));
    assert_eq!(t.up_line(lab.line.pid, &lab.line.admin), lab.line);
    assert_eq!(t.regions, ["region-1", "region-2"]);
    let names: Vec<(&str, &str)> = t.providers.iter().map(|p| (p.name.as_str(), p.proxy.as_str())).collect();
    assert_eq!(names, [("local-a", "region-1.local-a"), ("local-b", "region-2.local-b")]);
    assert_eq!(t.dependencies.len(), 8);
    // Every path has its proxy: two providers, eight dependencies, two entries.
    let proxies = call(Method::GET, &t.toxiproxy, "/proxies", None).await.unwrap();
    assert_eq!(proxies.as_object().unwrap().len(), 12);
    for p in &t.providers {
        for url in [&p.proxied_url, &p.direct_url] {
            assert_eq!(call(Method::GET, url, "/models", None).await.unwrap()["data"][0]["id"], p.name.as_str());
        }
        assert_ne!(p.proxied_url, p.direct_url);
    }
    for d in &t.dependencies {
        for url in [&d.proxied_url, &d.direct_url] {
            let state = call(Method::GET, url, "/v1/state", None).await.unwrap();
            assert_eq!(
                (state["role"].as_str(), state["region"].as_str()),
                (Some(d.role.as_str()), Some(d.region.as_str()))
            );
            assert!(state["version"].as_u64().unwrap() >= 1 && state["now_ms"].as_f64().unwrap() > 0.0);
        }
        let entry = json!({"turn": 1});
        assert_eq!(call(Method::POST, &d.proxied_url, "/v1/append", Some(&entry)).await.unwrap()["appended"], 1);
    }
    let policy = std::fs::read_to_string(&t.policy).unwrap();
    for p in &t.providers {
        assert!(policy.contains(&p.proxied_url), "{policy}");
    }
    // The gateways' ports are free, and an entry leads to its gateway.
    for e in &t.entries {
        let gateway = std::net::TcpListener::bind(&e.listen).unwrap();
        drop(std::net::TcpListener::bind(&e.admin).unwrap());
        let address = e.url.strip_prefix("http://").and_then(|u| u.strip_suffix("/v1")).unwrap();
        let _customer = std::net::TcpStream::connect(address).unwrap();
        gateway.accept().unwrap();
    }
}

#[tokio::test]
async fn every_kind_is_answered_streamed_and_whole() {
    let lab = up();
    for provider in ["local-a", "local-b"] {
        for (name, kind) in Kind::ALL {
            let (streamed, whole) = tokio::join!(lab.say(provider, kind, true), lab.say(provider, kind, false));
            assert_eq!(streamed.text, whole.text, "{name}");
            let arguments = |r: &Received| r.tool_calls.iter().map(|c| c.arguments.clone()).collect::<Vec<_>>();
            assert_eq!(arguments(&streamed), arguments(&whole));
            assert!(streamed.done_marker && streamed.finish_reason == whole.finish_reason);
            assert_eq!(streamed.tool_calls.len(), usize::from(matches!(kind, Kind::Ticket | Kind::Human)), "{name}");
            if matches!(kind, Kind::Order | Kind::Recall | Kind::Json) {
                assert!(streamed.text.contains("ORD-123456"), "{name}: {}", streamed.text);
            }
        }
    }
    // What the log says about a stream is what was written: role, 60 or more chunks, finish, [DONE].
    let rows = lab.log("local-a").await;
    let long = rows.iter().find(|r| r.stream && r.text.split(' ').count() >= 60).unwrap();
    assert_eq!(long.events_sent as usize, long.text.split(' ').count() + 3);
    assert!(long.completed && !long.probe && long.turn == 2 && long.conversation.as_deref() == Some("t-1"));
    let first_token = long.first_token_ms.unwrap() - long.arrived_ms;
    assert!((55.0..400.0).contains(&first_token), "{first_token}");
}

#[tokio::test]
async fn the_bytes_of_a_stream_are_those_in_the_log() {
    let lab = up();
    let url = format!("{}/chat/completions", lab.topology().await.providers[0].direct_url);
    let answer = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = answer.post(url).body(request(Kind::Order, true).to_string()).send().await.unwrap();
    let body = answer.text().await.unwrap();
    let ends: Vec<u64> = body.match_indices("\n\n").map(|(at, _)| at as u64 + 2).collect();
    let row = &lab.log("local-a").await[0];
    assert_eq!(row.event_ends, ends);
    assert!(body.ends_with("data: [DONE]\n\n") && row.head_bytes > 50);
}

#[tokio::test]
async fn sabotage_changes_exactly_its_kind() {
    let lab = up();
    let all = async || {
        let mut said = Vec::new();
        for (name, kind) in Kind::ALL {
            let r = lab.say("local-a", kind, false).await;
            said.push((name, r.text, r.tool_calls.first().map(|c| c.arguments.clone())));
        }
        said
    };
    let good = all().await;
    for (what, kinds) in [("schema", vec!["json"]), ("handoff", vec!["human"]), ("context", vec!["order", "recall"])] {
        let body = json!({"provider": "local-a", "break": what});
        call(Method::POST, &lab.line.admin, "/sabotage", Some(&body)).await.unwrap();
        let changed: Vec<&str> = all().await.iter().zip(&good).filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
        assert_eq!(changed, kinds, "{what}");
        // The other provider is as it was.
        assert!(lab.say("local-b", Kind::Order, false).await.text.contains("ORD-123456"));
    }
    let none = json!({"provider": "local-a", "break": "none"});
    call(Method::POST, &lab.line.admin, "/sabotage", Some(&none)).await.unwrap();
    assert_eq!(all().await, good);
    for bad in [json!({"provider": "x", "break": "none"}), json!({"provider": "local-a", "break": "x"}), json!({})] {
        let refused = call(Method::POST, &lab.line.admin, "/sabotage", Some(&bad)).await;
        assert_eq!(refused.unwrap_err(), "status 400", "{bad}");
    }
}

#[tokio::test]
async fn an_operation_is_done_once_and_the_book_holds_every_effect() {
    let lab = up();
    let tickets = lab.topology().await.tickets.url;
    let order = |operation: Option<&str>| {
        json!({"conversation": "c", "turn": 1, "business_key": "c/1/create_ticket/ORD-1", "call_id": "call_1",
               "operation_id": operation, "arguments": {"subject": "s", "order_id": "ORD-1"}})
    };
    let run = async |base: &str, tool: &str, body: Value| {
        call(Method::POST, base, &format!("/tools/{tool}"), Some(&body)).await
    };
    let first = run(&tickets, "create_ticket", order(Some("op"))).await.unwrap();
    let again = run(&lab.line.admin, "create_ticket", order(Some("op"))).await.unwrap();
    assert_eq!((&first["repeated"], &again["repeated"]), (&json!(false), &json!(true)));
    assert_eq!(first["result"], again["result"]);
    run(&tickets, "create_ticket", order(None)).await.unwrap();
    run(&tickets, "get_order", order(None)).await.unwrap();
    assert_eq!(run(&tickets, "drop_tables", order(None)).await.unwrap_err(), "status 404");
    let page = lab.get("/tickets").await;
    assert_eq!(page["effects"].as_array().unwrap().len(), 2);
    assert_eq!((page["repeats"].as_array().unwrap().len(), &page["dropped"]), (1, &json!(0)));
    assert!(page["effects"][0]["at_ms"].as_f64().unwrap() <= page["now_ms"].as_f64().unwrap());
}

#[tokio::test]
async fn a_provider_sees_its_peer_leave_within_200_ms() {
    let lab = up();
    let address =
        lab.line.providers["local-a"].strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap().to_string();
    let body = request(Kind::Long, true).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for wait_for in ["", "\"content\":\" "] {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(wait_for) {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
        }
        // The request must have arrived, or there is nobody to leave.
        let before = wait_row(&lab, |r| r.ended_ms.is_none()).await;
        let left_ms = monotonic_ms();
        drop(stream);
        let row = wait_row(&lab, |r| r.arrived_ms == before.arrived_ms && r.cancelled).await;
        let took_ms = row.ended_ms.unwrap() - left_ms;
        assert!(took_ms < 200.0 && !row.completed, "{took_ms} ms: {row:?}");
        assert_eq!(row.first_token_ms.is_some(), !wait_for.is_empty(), "{row:?}");
    }
}

async fn wait_row(lab: &Up, wanted: impl Fn(&ProviderRow) -> bool) -> ProviderRow {
    for _ in 0..1_000 {
        if let Some(row) = lab.log("local-a").await.into_iter().find(|r| wanted(r)) {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("no such row: {:?}", lab.log("local-a").await);
}

#[tokio::test]
async fn a_fault_on_a_path_is_felt_there_and_nowhere_else() {
    let lab = up();
    let t = lab.topology().await;
    let off = json!({"enabled": false});
    call(Method::POST, &t.toxiproxy, &format!("/proxies/{}", t.providers[0].proxy), Some(&off)).await.unwrap();
    let refused = call(Method::GET, &t.providers[0].proxied_url, "/models", None).await;
    assert_eq!(refused.unwrap_err(), "connect refused");
    call(Method::GET, &t.providers[0].direct_url, "/models", None).await.unwrap();
    call(Method::GET, &t.providers[1].proxied_url, "/models", None).await.unwrap();
}

#[tokio::test]
async fn it_ends_with_0_on_a_signal_or_the_end_of_its_input_and_leaves_nothing() {
    use rustix::process::Signal;
    for how in ["term", "int", "quit", "hup", "stdin"] {
        let mut lab = up();
        let dir = lab.line.dir.clone();
        assert!(std::path::Path::new(&dir).is_dir());
        match how {
            "term" => lab.signal(Signal::TERM),
            "int" => lab.signal(Signal::INT),
            "quit" => lab.signal(Signal::QUIT),
            "hup" => lab.signal(Signal::HUP),
            _ => drop(lab.child.stdin.take()),
        }
        assert_eq!(lab.exit().code(), Some(0), "{how}");
        assert!(!std::path::Path::new(&dir).exists(), "{how}: {dir} is left");
        for url in [&lab.line.admin, &lab.line.toxiproxy, &lab.line.providers["local-a"]] {
            assert_eq!(call(Method::GET, url, "/", None).await.unwrap_err(), "connect refused", "{how}");
        }
    }
}

/// Killed, a lab cannot tidy up; the next one does, and leaves a living one alone.
#[tokio::test]
async fn the_folder_of_a_killed_lab_goes_when_the_next_one_starts() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
        command.args(["lab", "up", "--exit-with-stdin"]).env("TMPDIR", folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Up { child, line: serde_json::from_str(&line).unwrap() }
    };
    let (mut killed, living) = (start(), start());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(std::path::Path::new(&killed.line.dir).is_dir());
    let third = start();
    assert!(!std::path::Path::new(&killed.line.dir).exists());
    for up in [&living, &third] {
        assert!(std::path::Path::new(&up.line.dir).join("policies/lab.yaml").is_file());
    }
}

#[tokio::test]
async fn without_the_flag_the_end_of_its_input_means_nothing_and_a_given_folder_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut lab = up_with(&["--dir", dir.path().to_str().unwrap()], None);
    drop(lab.child.stdin.take());
    lab.get("/healthz").await;
    assert!(lab.child.try_wait().unwrap().is_none());
    lab.signal(rustix::process::Signal::TERM);
    assert_eq!(lab.exit().code(), Some(0));
    assert!(dir.path().join("policies/lab.yaml").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_server_outside_is_left_as_it_was_found() {
    let state = tempfile::tempdir().unwrap();
    let outside = llmfo::fault::server::start("127.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
    let url = outside.url();
    let names = async || {
        let all = call(Method::GET, &url, "/proxies", None).await.unwrap();
        all.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let foreign = json!({"name": "foreign", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9", "enabled": true});
    call(Method::POST, &url, "/proxies", Some(&foreign)).await.unwrap();
    let args = ["--toxiproxy", url.as_str()];
    let mut first = up_with(&args, Some(state.path()));
    assert!(!first.line.embedded && first.line.toxiproxy == url);
    assert_eq!(names().await.len(), 13);
    // While it lives, its names are taken.
    let second = spawn(&args, Some(state.path())).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let named = format!("another lab works with {url} (process {})", first.child.id());
    assert!(said.contains(&named) && said.contains("next:"), "{said}");
    assert_eq!(names().await.len(), 13);
    // Killed, it leaves its proxies; the next lab knows them for what they are, even while the killed one is a zombie.
    first.child.kill().unwrap();
    assert_eq!(names().await.len(), 13);
    let stat = format!("/proc/{}/stat", first.child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut third = up_with(&args, Some(state.path()));
    third.say("local-b", Kind::Order, true).await;
    third.signal(rustix::process::Signal::TERM);
    assert_eq!(third.exit().code(), Some(0));
    assert_eq!(names().await, ["foreign"]);
    // A proxy of that name which no lab has made is refused, and stays.
    let mut taken = foreign.clone();
    taken["name"] = json!("region-1.local-a");
    call(Method::POST, &url, "/proxies", Some(&taken)).await.unwrap();
    let refused = spawn(&args, Some(state.path())).wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(3));
    assert_eq!(names().await, ["foreign", "region-1.local-a"]);
}

/// Two that start in the same instant: one is up and whole, the other names it and takes nothing of it away. A third, killed
/// before, has left its proxies there, which both would remove.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_labs_that_start_together_the_second_names_the_first_and_breaks_nothing() {
    let state = tempfile::tempdir().unwrap();
    let outside = llmfo::fault::server::start("127.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
    let url = outside.url();
    let args = ["--toxiproxy", url.as_str()];
    let count = async || call(Method::GET, &url, "/proxies", None).await.unwrap().as_object().unwrap().len();
    for _ in 0..3 {
        let mut killed = up_with(&args, Some(state.path()));
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        assert_eq!(count().await, 12, "what the killed one has left");
        let mut both = [spawn(&args, Some(state.path())), spawn(&args, Some(state.path()))];
        let limit = Instant::now() + Duration::from_secs(20);
        let refused = loop {
            assert!(Instant::now() < limit, "nobody was refused");
            match both.iter_mut().position(|c| c.try_wait().unwrap().is_some()) {
                Some(n) => break n,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let [one, two] = both;
        let (refused, mut child) = if refused == 0 { (one, two) } else { (two, one) };
        let out = refused.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(3), "{said}");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let mut up = Up { line: serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")), child };
        assert!(said.contains(&format!("another lab works with {url} (process {})", up.child.id())), "{said}");
        up.say("local-a", Kind::Order, true).await;
        up.say("local-b", Kind::Order, true).await;
        assert_eq!(count().await, 12);
        up.signal(rustix::process::Signal::TERM);
        assert_eq!(up.exit().code(), Some(0));
        assert_eq!(count().await, 0);
    }
}
