//! `llmfo serve` as its user meets it: what it refuses, what it prints, how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

fn policy(provider: SocketAddr, more: &str) -> String {
    format!(
        "version: cli-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a:\n    base_url: http://{provider}/v1\n    \
         model: m\n{more}pools:\n  all: {{ targets: [a], select: health }}\nroutes:\n  - route: chat\n    data: none\n    \
         deadline_ms: 60000\n    max_attempts: 1\n    attempts: [{{ pool: all, first_token_timeout_ms: 30000, pii: allowed }}]\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n"
    )
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

pub fn serve(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.current_dir(dir).arg("serve").args(args).env_remove("LLMFO_POLICY").env_remove("RUST_LOG");
    // Where the ledger is kept if nobody says otherwise.
    command.env("XDG_STATE_HOME", dir.join("state"));
    command
}

pub fn refused(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let Output { status, stderr, stdout, .. } = serve(dir, args).envs(env.iter().copied()).output().unwrap();
    assert!(stdout.is_empty(), "nothing but the result goes to stdout");
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn write(dir: &tempfile::TempDir, text: &str) {
    std::fs::create_dir_all(dir.path().join("policies")).unwrap();
    std::fs::write(dir.path().join("policies/p.yaml"), text).unwrap();
}

pub struct Served {
    pub child: Child,
    pub first: Value,
}

impl Served {
    pub fn start(dir: &Path, args: &[&str]) -> Served {
        Served::of(serve(dir, &[]), args)
    }

    pub fn of(mut command: Command, args: &[&str]) -> Served {
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--format", "json"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let first = serde_json::from_str(&line).unwrap_or_else(|e| {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("{line:?}: {e}; {said}")
        });
        Served { child, first }
    }

    pub fn address(&self, key: &str) -> SocketAddr {
        self.first[key].as_str().unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(&mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), start.elapsed());
            }
            assert!(start.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn what_must_not_be_served_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (code, said) = refused(dir.path(), &[], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no policy is named"), "{said}");

    write(&dir, &policy(nowhere(), ""));
    let (code, said) = refused(dir.path(), &["--listen", "0.0.0.0:0"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--listen 0.0.0.0:0 is not a loopback address"), "{said}");
    let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0", "--admin", "[::]:0"], &[]);
    assert!(code == Some(2) && said.contains("--admin [::]:0"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = refused(dir.path(), &["--listen", &taken.local_addr().unwrap().to_string()], &[]);
    assert!(code == Some(3) && said.contains("cannot be bound"), "{code:?} {said}");

    write(&dir, &policy(nowhere(), "    fallbcak: b\n"));
    let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("fallbcak") && said.contains("p.yaml:8"), "{said}");
}

#[test]
fn an_unusable_credential_stops_it_at_start_by_name_only() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), "    credentials: env:LLMFO_TEST_KEY\n"));
    for (value, why) in [
        (None, "is not set"),
        (Some(""), "is empty"),
        (Some("${NOPE}"), "cannot have"),
        (Some("sk-secret value"), "cannot have"),
    ] {
        let env: Vec<_> = value.map(|v| ("LLMFO_TEST_KEY", v)).into_iter().collect();
        let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0"], &env);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("target a") && said.contains("LLMFO_TEST_KEY") && said.contains(why), "{said}");
        assert!(!said.contains("sk-secret"), "{said}");
    }
}

#[test]
fn every_unusable_credential_is_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let more = "    credentials: env:LLMFO_TEST_ONE\n  b:\n    base_url: http://127.0.0.1:9/v1\n    model: m\n    credentials: \
                file:keys/none\n  c:\n    base_url: http://127.0.0.1:9/v1\n    model: m\n    credentials: env:LLMFO_TEST_TWO\n";
    write(&dir, &policy(nowhere(), more).replace("targets: [a]", "targets: [a, b, c]"));
    let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0"], &[("LLMFO_TEST_TWO", "${X}")]);
    assert_eq!(code, Some(2), "{said}");
    for name in ["3 credentials", "target a", "LLMFO_TEST_ONE", "target b", "keys/none", "target c", "LLMFO_TEST_TWO"] {
        assert!(said.contains(name), "{name}: {said}");
    }
}

/// Without `data`, `pii` and `residency_required` every request would be refused: it does not start, and says what to write.
#[test]
fn a_policy_that_lets_nobody_answer_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let dead = policy(nowhere(), "").replace("    data: none\n", "").replace(", pii: allowed", "");
    write(&dir, &dead);
    let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0"], &[]);
    assert_eq!(code, Some(2), "{said}");
    for part in ["LF504", "`pii: allowed`", "`residency_required: [eu]`", "`data: none`"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn verbose_names_every_setting_that_is_not_enforced() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), ""));
    let mut served = Served::start(dir.path(), &["--exit-with-stdin", "-v"]);
    drop(served.child.stdin.take());
    served.wait();
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("not enforced yet: serial"), "{said}");
}

#[test]
fn the_first_line_tells_where_it_is_and_the_end_of_stdin_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), ""));
    let mut served = Served::start(dir.path(), &["--exit-with-stdin", "--journal", "j.jsonl", "--seed", "7"]);
    assert_eq!((&served.first["format"], &served.first["policy"]), (&1.into(), &"cli-1".into()));
    assert_eq!(served.first["pid"], served.child.id());
    assert_eq!(served.first["policy_sha256"].as_str().unwrap().len(), 64);
    assert!(get(served.address("listen"), "/v1/models").contains("\"chat\""));
    assert!(get(served.address("admin"), "/healthz").starts_with("HTTP/1.1 200"));
    drop(served.child.stdin.take());
    let (code, took) = served.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("not enforced yet: 1 setting of the policy") && said.contains("`serve -v`"), "{said}");
    assert_eq!(said.matches("not enforced yet").count(), 1, "{said}");
    let journal = std::fs::read_to_string(dir.path().join("j.jsonl")).unwrap();
    let lines: Vec<Value> = journal.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines[0]["seed"]), (&"started".into(), &7.into()));
    assert_eq!(lines.last().unwrap()["event"], "stopped");
}

/// A request at a provider that says nothing, once the gateway has it.
fn ask(served: &Served) -> TcpStream {
    let mut client = TcpStream::connect(served.address("listen")).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    write!(client, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let start = Instant::now();
    while !get(served.address("admin"), "/snapshot").contains("\"requests\":{\"open\":1") {
        assert!(start.elapsed() < LIMIT);
    }
    client
}

/// Takes connections and says nothing.
fn silent() -> SocketAddr {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let provider = silent.local_addr().unwrap();
    std::thread::spawn(move || silent.incoming().collect::<Vec<_>>());
    provider
}

#[test]
fn a_closed_terminal_and_a_quit_drain_too_and_nohup_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(silent(), ""));
    for signal in [rustix::process::Signal::HUP, rustix::process::Signal::QUIT] {
        let mut drained = Served::start(dir.path(), &["--drain-s", "1"]);
        let mut client = ask(&drained);
        drained.signal(signal);
        let (code, took) = drained.wait();
        assert_eq!(code, Some(0), "{signal:?}: a drain is a good end");
        assert!(took > Duration::from_millis(800), "{signal:?}: {took:?}");
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 503") && said.contains("shutting_down"), "{signal:?}: {said}");
    }
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_llmfo"), "serve"]);
    nohup.current_dir(dir.path()).env_remove("LLMFO_POLICY").env_remove("RUST_LOG");
    let mut served = Served::of(nohup, &["--drain-s", "1"]);
    served.signal(rustix::process::Signal::HUP);
    // Still there, and still ready to be stopped by a signal that counts.
    let _client = ask(&served);
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(served.wait().0, Some(0));
}

#[test]
fn a_pause_of_the_process_is_no_fault_of_a_provider() {
    use rustix::process::Signal;
    // Says a word every 50 ms, sixty times; the first connection is the gateway's own look.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let provider = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || talk(stream.unwrap()));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir,
        &policy(provider, "").replace("    max_attempts: 1\n", "    max_attempts: 1\n    idle_timeout_ms: 500\n"),
    );
    let served = Served::start(dir.path(), &[]);
    let body = r#"{"model":"chat","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let clients: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut client = TcpStream::connect(served.address("listen")).unwrap();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length:";
            write!(client, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
            assert!(client.read(&mut [0; 64]).unwrap() > 0, "the stream has begun");
            client
        })
        .collect();
    served.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    served.signal(Signal::CONT);
    for mut client in clients {
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert!(said.contains("[DONE]") && !said.contains("\"error\""), "{said}");
    }
    let snapshot = get(served.address("admin"), "/snapshot");
    assert!(snapshot.contains("\"failed_counted\":0"), "{snapshot}");
}

/// One streamed answer of a healthy provider that takes three seconds.
fn talk(mut stream: TcpStream) {
    let mut request = [0; 4096];
    if !matches!(stream.read(&mut request), Ok(n) if n > 0) {
        return;
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    for n in 0..60 {
        let finish = if n == 59 { "\"stop\"" } else { "null" };
        let choice = format!(r#"{{"index":0,"delta":{{"content":" w{n}"}},"finish_reason":{finish}}}"#);
        let _ = stream.write_all(format!("data: {{\"choices\":[{choice}]}}\n\n").as_bytes());
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = stream.write_all(b"data: [DONE]\n\n");
}

#[test]
fn a_signal_drains_and_a_second_one_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(silent(), ""));

    let mut idle = Served::start(dir.path(), &[]);
    idle.signal(rustix::process::Signal::TERM);
    let (code, took) = idle.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");

    let mut drained = Served::start(dir.path(), &["--drain-s", "1"]);
    let mut client = ask(&drained);
    drained.signal(rustix::process::Signal::INT);
    let (code, took) = drained.wait();
    assert_eq!(code, Some(0), "a drain is a good end");
    assert!(took > Duration::from_millis(800), "{took:?}");
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("shutting_down"), "{said}");

    let mut twice = Served::start(dir.path(), &["--drain-s", "60"]);
    let _client = ask(&twice);
    twice.signal(rustix::process::Signal::TERM);
    let start = Instant::now();
    while !get(twice.address("admin"), "/readyz").contains("shutting down") {
        assert!(start.elapsed() < LIMIT);
    }
    twice.signal(rustix::process::Signal::TERM);
    let (code, took) = twice.wait();
    assert_eq!(code, Some(143));
    assert!(took < Duration::from_secs(3), "{took:?}");
}
