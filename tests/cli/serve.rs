//! `llmfo serve` as its user meets it: what it refuses, what it prints, how it ends.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub const LIMIT: Duration = Duration::from_secs(20);

pub fn policy(provider: SocketAddr, more: &str) -> String {
    format!(
        "version: cli-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a:\n    base_url: http://{provider}/v1\n    \
         model: m\n{more}pools:\n  all: {{ targets: [a], select: health }}\nroutes:\n  - route: chat\n    data: none\n    \
         deadline_ms: 60000\n    max_attempts: 1\n    attempts: [{{ pool: all, first_token_timeout_ms: 30000, pii: allowed }}]\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n"
    )
}

/// One of its settings is read and not enforced yet.
fn unenforced() -> String {
    format!("{}dependencies:\n  dns: {{ without: cached }}\n", policy(nowhere(), ""))
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

pub fn write(dir: &tempfile::TempDir, text: &str) {
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

    pub fn of(command: Command, args: &[&str]) -> Served {
        Served::with_stdin(command, args, Stdio::piped())
    }

    fn with_stdin(mut command: Command, args: &[&str], stdin: Stdio) -> Served {
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--format", "json"])
            .args(args)
            .stdin(stdin)
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

pub fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
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
    let (code, said) = refused(dir.path(), &["mine.yaml"], &[]);
    assert!(code == Some(2) && said.contains("llmfo serve --policy mine.yaml"), "{said}");
    let (code, said) = refused(dir.path(), &["--listen", ":9782"], &[]);
    assert!(code == Some(2) && said.contains("write 127.0.0.1:9782"), "{said}");
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

/// A gateway started twice: its port is what is heard of, and only who takes another port hears of the ledger.
#[test]
fn a_second_gateway_hears_of_the_port_first() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), ""));
    let first = Served::start(dir.path(), &["--ledger", "l.redb"]);
    let listen = first.address("listen").to_string();
    let (code, said) = refused(dir.path(), &["--listen", &listen, "--ledger", "l.redb", "--journal", "j.jsonl"], &[]);
    assert!(code == Some(3) && said.contains(&format!("--listen {listen} cannot be bound")), "{code:?} {said}");
    assert!(said.contains("choose another port") && !said.contains("ledger"), "{said}");
    assert!(!dir.path().join("j.jsonl").exists(), "nothing was begun");
    let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0", "--ledger", "l.redb"], &[]);
    assert!(code == Some(3) && said.contains("in use by another gateway") && said.contains("--ledger FILE"), "{said}");
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
fn a_golden_set_that_cannot_be_used_keeps_it_from_starting_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let group = "compatibility_groups:\n  g: { golden_set: g.yaml, members: [a] }\n";
    write(&dir, &format!("{}{group}", policy(nowhere(), "")));
    for (text, says) in [
        (
            "version: 1\nset: s\ncases:\n  - id: one\n    mesages: []\n",
            "g.yaml:5:5: the golden set of group g cannot be used: ",
        ),
        ("version: 1\n\tset", "g.yaml:1:10: "),
    ] {
        std::fs::write(dir.path().join("g.yaml"), text).unwrap();
        let (code, said) = refused(dir.path(), &["--listen", "127.0.0.1:0", "--ledger", "memory"], &[]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(says), "{said}");
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
    assert!(!said.contains("not enforced"), "what keeps it from starting is said alone: {said}");
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

/// What looks like a service and answers nobody must not look ready.
#[test]
fn an_expired_policy_is_said_loudly_and_is_ready_only_for_what_it_still_answers() {
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let fine = policy(provider.local_addr().unwrap(), "");
    let past = fine.replace("2100-01-01T00:00:00Z", "2025-03-01T12:00:00Z");
    let some = past.replacen("targets:\n", "on_expired: { intents: [hours, prices] }\ntargets:\n", 1);
    let none = past.replacen("targets:\n", "on_expired: { intents: [] }\ntargets:\n", 1);
    for (text, status, answered) in [
        (&past, "503", "every request is handed to a human"),
        (&none, "503", "every request is handed to a human"),
        (&some, "200", "only the intents hours, prices are answered"),
    ] {
        write(&dir, text);
        let mut served = Served::start(dir.path(), &["--exit-with-stdin", "--quiet", "--journal", "j.jsonl"]);
        let admin = served.address("admin");
        let until = Instant::now() + LIMIT;
        while !get(admin, "/snapshot").contains("\"reachable\"") {
            assert!(Instant::now() < until, "the target was not looked at");
            std::thread::sleep(Duration::from_millis(20));
        }
        let ready = get(admin, "/readyz");
        let (head, body) = ready.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{ready}");
        assert!(body["reason"].as_str().unwrap().starts_with("expired: ") && body["expired"] == true, "{body}");
        assert_eq!(
            (body["ready"].as_bool(), body["routes"][0]["ready"].as_bool()),
            (Some(status == "200"), Some(status == "200"))
        );
        drop(served.child.stdin.take());
        served.wait();
        let mut said = String::new();
        served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let line = said.lines().find(|l| l.starts_with("EXPIRED ")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("2025-03-01T12:00:00Z") && line.contains(answered), "{line}");
        let journal = std::fs::read_to_string(dir.path().join("j.jsonl")).unwrap();
        let alerts: Vec<&str> = journal.lines().filter(|l| l.contains("policy_expired")).collect();
        assert_eq!(alerts.len(), 1, "{journal}");
        std::fs::remove_file(dir.path().join("j.jsonl")).unwrap();
    }
    // It happens while it runs.
    let soon = (std::time::SystemTime::now() + Duration::from_secs(3)).duration_since(std::time::UNIX_EPOCH).unwrap();
    let soon = jiff::Timestamp::from_second(i64::try_from(soon.as_secs()).unwrap()).unwrap();
    write(&dir, &fine.replace("2100-01-01T00:00:00Z", &soon.to_string()));
    let served = Served::start(dir.path(), &["--exit-with-stdin", "--journal", "j.jsonl"]);
    let until = Instant::now() + LIMIT;
    while !std::fs::read_to_string(dir.path().join("j.jsonl")).unwrap_or_default().contains("policy_expired") {
        assert!(Instant::now() < until, "no alert");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(get(served.address("admin"), "/readyz").starts_with("HTTP/1.1 503"));
}

/// Who reads the log must see why a target fails, and not see it a thousand times.
#[test]
fn the_log_says_why_a_target_fails_and_who_is_handed_off() {
    let dir = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    write(&dir, &policy(closed, ""));
    let mut served = Served::start(dir.path(), &["--exit-with-stdin"]);
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(served.address("listen")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        let more = "x-llmfo-conversation: conv-7\r\nx-llmfo-turn: 1";
        write!(stream, "{head}\r\n{more}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with("HTTP/1.1 503"), "{all}");
        ids.extend(all.lines().find_map(|l| l.strip_prefix("x-llmfo-request-id: ")).map(str::to_owned));
    }
    drop(served.child.stdin.take());
    served.wait();
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let warned = |what: &str| -> Vec<Value> {
        let lines = said.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        lines.filter(|v| v["level"] == "WARN" && v["message"] == what).collect()
    };
    let failed = warned("attempt failed");
    assert_eq!(failed.len(), 1, "{said}");
    assert!(failed[0]["target"] == "a" && failed[0]["reason"] == "refused", "the target's name: {failed:?}");
    assert_eq!(warned("target takes no traffic").len(), 1, "three in a row trip its breaker: {said}");
    let handed = warned("customer handed to a human");
    assert_eq!(handed.len(), 1, "{said}");
    for line in [&failed[0], &handed[0]] {
        assert_eq!((&line["request"], &line["conversation"]), (&ids[0].as_str().into(), &"conv-7".into()), "{line}");
    }
    assert!(!said.contains("None") && !said.contains("Some("), "no line shows how a value is built: {said}");
    let lines = || said.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let told: Vec<String> = lines().filter_map(|v| v.get("total_ms").map(Value::to_string)).collect();
    assert_eq!(told.len(), 3, "{said}");
    let decimals = |n: &String| n.split_once('.').map_or(0, |(_, d)| d.len());
    assert!(told.iter().all(|n| decimals(n) <= 3), "{told:?}");
    let stopped: Vec<Value> = lines().filter(|v| v["message"] == "stopped").collect();
    assert_eq!(stopped.len(), 1, "{said}");
    assert_eq!((&stopped[0]["why"], &stopped[0]["cut"]), (&"standard input has ended".into(), &0.into()), "{said}");
}

#[test]
fn verbose_names_every_setting_that_is_not_enforced() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &unenforced());
    let mut served = Served::start(dir.path(), &["--exit-with-stdin", "-v"]);
    drop(served.child.stdin.take());
    served.wait();
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("not enforced yet: dependencies"), "{said}");
}

#[test]
fn the_first_line_tells_where_it_is_and_the_end_of_stdin_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &unenforced());
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
pub fn ask(served: &Served) -> TcpStream {
    let mut client = TcpStream::connect(served.address("listen")).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let start = Instant::now();
    while !get(served.address("admin"), "/snapshot").contains("\"requests\":{\"open\":1") {
        assert!(start.elapsed() < LIMIT);
    }
    client
}

/// Takes connections and says nothing.
pub fn silent() -> SocketAddr {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let provider = silent.local_addr().unwrap();
    std::thread::spawn(move || silent.incoming().collect::<Vec<_>>());
    provider
}

fn is_ignored(signal: rustix::process::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map_or("0", str::trim).to_owned();
    u64::from_str_radix(&mask, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn a_closed_terminal_and_a_quit_drain_too_and_nohup_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(silent(), ""));
    for signal in [rustix::process::Signal::HUP, rustix::process::Signal::QUIT] {
        use rustix::pty::OpenptFlags;
        // Whoever began these tests in the background of a shell has some signals ignored, and so has all that they begin.
        if is_ignored(signal) {
            eprintln!("SKIPPED {signal:?}: it is ignored by whatever started the tests");
            continue;
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&terminal).unwrap();
        rustix::pty::unlockpt(&terminal).unwrap();
        let name = rustix::pty::ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let stdin = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
        let ours = stdin.try_clone().unwrap();
        let mut drained = Served::with_stdin(serve(dir.path(), &[]), &["--drain-s", "1"], stdin.into());
        // The terminal is gone; whoever opened it tells with SIGHUP. A process that another test is just starting may hold it
        // open for a moment more.
        drop(terminal);
        let closing = Instant::now();
        while ours.is_terminal() {
            assert!(closing.elapsed() < LIMIT, "the terminal does not go");
            std::thread::sleep(Duration::from_millis(5));
        }
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
fn sighup_reads_the_policy_again_and_what_cannot_be_used_is_refused() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    let version = |serial: u32| {
        policy(nowhere(), "")
            .replace("cli-1", &format!("cli-{serial}"))
            .replace("serial: 1", &format!("serial: {serial}"))
    };
    write(&dir, &version(5));
    let journal = dir.path().join("journal.jsonl");
    let mut served = Served::start(dir.path(), &["--journal", journal.to_str().unwrap()]);
    let admin = served.address("admin");
    let count = |result: &str| {
        let text = get(admin, "/metrics");
        let name = format!("llmfo_policy_reloads_total{{result=\"{result}\"}} ");
        text.lines().find_map(|l| l.strip_prefix(&name)).map_or(0, |n| n.parse::<u32>().unwrap())
    };
    let holds = || get(admin, "/snapshot").contains("\"version\":\"cli-6\"");
    let until = |what: &str, ok: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !ok() {
            assert!(start.elapsed() < LIMIT, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    write(&dir, &version(6));
    served.signal(Signal::HUP);
    until("the sixth holds", &holds);
    for (n, (text, why)) in [
        ("version: [\n".to_owned(), "must not be served"),
        (version(4), "serial 4 is lower than 6"),
        (version(7).replace("serial: 7\n", ""), "it has no serial, and 6 holds"),
        (version(7).replace("targets: [a]", "targets: [b]"), "must not be served"),
    ]
    .into_iter()
    .enumerate()
    {
        write(&dir, &text);
        served.signal(Signal::HUP);
        until(why, &|| count("refused") == u32::try_from(n).unwrap() + 1);
        assert!(holds(), "the one before goes on");
        until("an alert", &|| std::fs::read_to_string(&journal).unwrap_or_default().contains(why));
    }
    // The same file is no other policy, though keys and records are read again.
    write(&dir, &version(6));
    served.signal(Signal::HUP);
    until("it is as before", &|| count("unchanged") == 1);
    assert_eq!(count("taken"), 1);
    served.signal(Signal::TERM);
    assert_eq!(served.wait().0, Some(0));
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("nothing changed") && !said.contains("None"), "{said}");
    // Each of the four is one line of the log, with the next step in it.
    let refused: Vec<&str> = said.lines().filter(|l| l.contains("the policy was not replaced")).collect();
    assert_eq!(refused.len(), 4, "{said}");
    assert!(refused.iter().all(|l| l.contains("the one before goes on") && l.contains("next: ")), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&journal).unwrap().matches("\"policy_replaced\"").count(), 1);
    write(&dir, &version(6));
    let mut served = Served::start(dir.path(), &["--allow-rollback"]);
    let admin = served.address("admin");
    write(&dir, &version(4));
    served.signal(Signal::HUP);
    until("a rollback that is allowed", &|| get(admin, "/snapshot").contains("\"version\":\"cli-4\""));
    served.signal(Signal::TERM);
    assert_eq!(served.wait().0, Some(0));
}

#[test]
fn orders_are_given_by_command_and_faults_by_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), ""));
    let (code, said) = refused(dir.path(), &["--forced-faults"], &[("FAULT__a", "flood")]);
    assert!(code == Some(2) && said.contains("FAULT__a=flood") && said.contains("timeout, 503, 429"), "{said}");
    let (code, said) = refused(dir.path(), &["--forced-faults"], &[("FAULT__b", "503")]);
    assert!(code == Some(2) && said.contains("FAULT__b names no target"), "{said}");
    let mut command = serve(dir.path(), &[]);
    command.env("FAULT__a", "503");
    let mut served = Served::of(command, &["--forced-faults"]);
    let admin = served.first["admin"].as_str().unwrap().to_owned();
    let ctl = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
        let out = command.arg("ctl").args(args).args(["--admin", &admin]).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        (out.status.code(), text)
    };
    let (code, said) = ctl(&["list"]);
    assert!(code == Some(0) && said.contains("503") && said.contains("never"), "{said}");
    let (code, said) = ctl(&["bench", "a", "--for", "90s", "--reason", "INC-1"]);
    assert!(code == Some(0) && said.contains("taken") && said.contains("INC-1"), "{said}");
    let (code, said) = ctl(&["bench", "z", "--reason", "INC-1"]);
    assert!(code == Some(2) && said.contains("known: a"), "{said}");
    // Each refusal is followed by the step that helps it.
    assert!(said.contains("next: write one of the names that are known"), "{said}");
    let (code, said) = ctl(&["emergency", "--off", "--reason", "over"]);
    assert!(code == Some(2) && said.contains("these stand: bench a, fault a"), "{said}");
    let (code, said) = ctl(&["bench", "a", "--for", "2d", "--reason", "INC-1"]);
    assert!(code == Some(2) && said.contains("next:"), "{said}");
    let (code, said) = ctl(&["fault", "a", "off", "--reason", "healed"]);
    assert!(code == Some(0) && !said.contains("503"), "{said}");
    let (code, said) = ctl(&["unbench", "a", "--reason", "done", "--format", "json"]);
    assert!(code == Some(0) && said.contains("\"orders\": []"), "{said}");
    served.signal(rustix::process::Signal::TERM);
    served.wait();
    let (code, said) = ctl(&["list"]);
    assert!(code == Some(3) && said.contains("LLMFO_ADMIN"), "{said}");
}

#[test]
fn a_fault_that_may_not_be_forced_is_refused_with_the_flag_that_allows_it() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(nowhere(), ""));
    let mut served = Served::of(serve(dir.path(), &[]), &[]);
    let admin = served.first["admin"].as_str().unwrap().to_owned();
    let ctl = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
        let out = command.arg("ctl").args(args).args(["--admin", &admin]).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = ctl(&["fault", "a", "503", "--reason", "test"]);
    assert!(code == Some(2) && said.contains("next: start the gateway with `llmfo serve --forced-faults`"), "{said}");
    let (code, said) = ctl(&["unbench", "a", "--reason", "done"]);
    assert!(code == Some(2) && said.contains("There is no such order; none stands."), "{said}");
    served.signal(rustix::process::Signal::TERM);
    served.wait();
}

/// Two gateways of one user: which ones there are is said, with their addresses.
#[test]
fn of_several_gateways_the_addresses_are_listed() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("llmfo/ledger");
    std::fs::create_dir_all(&folder).unwrap();
    for port in [2, 1] {
        let note = format!("{{\"pid\":{},\"admin\":\"127.0.0.1:{port}\"}}", std::process::id());
        std::fs::write(folder.join(format!("{port}.redb.gateway")), note).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    let out = command.args(["ctl", "list"]).env("XDG_STATE_HOME", state.path()).env_remove("LLMFO_ADMIN").output();
    let out = out.unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("2 gateways run: 127.0.0.1:1, 127.0.0.1:2"), "{said}");
    assert!(said.contains("next: name one of them: --admin 127.0.0.1:1"), "{said}");
}

/// A proxy in the environment would see prompts and keys, and its failures would look like a provider's.
#[test]
fn b120_a_proxy_in_the_environment_is_not_used() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(provider.local_addr().unwrap(), ""));
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let mut command = serve(dir.path(), &[]);
    command.envs(names.map(|name| (name, url.as_str()))).env_remove("NO_PROXY").env_remove("no_proxy");
    let served = Served::of(command, &["--policy", "policies/p.yaml"]);
    let _asked = ask(&served);
    // The provider is dialled itself.
    provider.accept().unwrap();
    // And commands that talk to the gateway do it themselves too.
    let admin = served.address("admin").to_string();
    let mut list = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    list.args(["ctl", "list", "--admin", &admin]).envs(names.map(|name| (name, url.as_str())));
    let out = list.output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(proxy.accept().is_err(), "somebody dialled the proxy");
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
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length:";
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
