//! What these tests share: one drill at a time, children that never outlive a test, a short drill.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits for its turn.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

pub const LLMFO: &str = env!("CARGO_BIN_EXE_llmfo");

/// A child that ends with the test.
pub struct Proc {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
}

impl Proc {
    /// Starts it and reads the JSON on its first line.
    pub fn start(program: impl AsRef<Path>, args: &[&str], state: &Path) -> (Proc, Value) {
        let mut child = Command::new(program.as_ref())
            .args(args)
            .env("XDG_STATE_HOME", state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        let stdin = child.stdin.take();
        (Proc { child, stdin }, said)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A short drill: region 1's provider and history are cut for `outage_ms`.
pub fn short_drill(dir: &Path, outage_ms: u32) -> PathBuf {
    let path = dir.join("short.yaml");
    let text = format!(
        "format: 1\nname: short\ndescription: Short.\nroute: support-chat\nsteady_state: {{ for_ms: 2500, min_turns: 5 }}\n\
         rounds:\n  - name: outage\n    faults:\n      - {{ select: {{ region: region-1, roles: [provider, history_store] }}, see: refused }}\n    \
         outage_ms: {outage_ms}\n    recovery_ms: 6000\n    recovery_min_ms: 1000\nneeds: {{ outage_turns: 5 }}\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A drill run, under way.
pub struct Running {
    pub child: Child,
    pub report: PathBuf,
}

impl Running {
    pub fn start(args: &[&str], dir: &Path) -> Running {
        // A folder with anything in it is refused, so each further run in the same place has its own.
        let mut names = std::iter::once("report".to_owned()).chain((2..).map(|n| format!("report-{n}")));
        let report = names.find(|n| !dir.join(n).exists()).map(|n| dir.join(n)).unwrap();
        let child = Command::new(LLMFO)
            .args(["drill", "run"])
            .args(args)
            .arg("--report")
            .arg(&report)
            .env("XDG_STATE_HOME", dir.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running { child, report }
    }

    /// Waits until its stderr says this.
    pub fn wait_for(&mut self, what: &str) {
        let stderr = self.child.stderr.as_mut().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = String::new();
        let mut bytes = [0_u8; 256];
        while !seen.contains(what) {
            assert!(Instant::now() < until, "{what:?} was not said: {seen}");
            let n = stderr.read(&mut bytes).unwrap();
            assert!(n > 0, "ended without {what:?}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn finish(self) -> (i32, String, Value, Output) {
        let report = self.report.clone();
        let out = self.child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let summary = std::fs::read_to_string(report.join("summary.json")).unwrap_or_default();
        let summary = serde_json::from_str(&summary).unwrap_or(Value::Null);
        (out.status.code().unwrap_or(-1), text, summary, out)
    }
}

/// Runs a drill to its end: exit code, stdout, summary, all output.
pub fn drill(args: &[&str], dir: &Path) -> (i32, String, Value, Output) {
    Running::start(args, dir).finish()
}

/// The verdict: the first word of the last line.
pub fn last_word(text: &str) -> &str {
    text.lines().last().and_then(|l| l.split(' ').next()).unwrap_or_default()
}

/// The codes of the findings.
pub fn codes(summary: &Value) -> Vec<&str> {
    summary["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect()
}

/// Waits for a condition, with a generous bound.
pub fn until(what: &str, limit: Duration, mut ok: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !ok() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Children of a process, and their children.
pub fn descendants(pid: u32) -> Vec<i32> {
    let mut out = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in text.split_ascii_whitespace().filter_map(|c| c.parse::<i32>().ok()) {
            out.push(child);
            out.extend(descendants(u32::try_from(child).unwrap()));
        }
    }
    out
}

/// True if this process is there and not a zombie.
pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}
