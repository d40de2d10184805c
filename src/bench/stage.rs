//! The processes of a run and the folder that they write into. All of them end with the run, however it ends.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::asked::Asked;
use super::cells::{Request, Way};
use super::client::{Client, End};
use super::{config, proc};
use crate::error::{Expected, Result};
use crate::lab::home::Home;
use crate::lab::listen::Ports;
use crate::units::printable;

/// A process must answer within this.
const READY: Duration = Duration::from_secs(30);
/// ... and is asked so often until it does.
const EVERY: Duration = Duration::from_millis(1);
/// One whose pipe has closed must be gone within this.
const GONE: Duration = Duration::from_secs(5);
/// Longest first line.
const LINE_BYTES: u64 = 64 * 1024;

/// Everything that a run has started.
#[derive(Debug)]
pub struct Stage {
    home: Home,
    ports: Ports,
    processes: Vec<Process>,
    started: usize,
}

/// One process.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    out: Option<BufReader<tokio::io::Take<ChildStdout>>>,
    log: PathBuf,
}

/// One that answers.
#[derive(Clone, Debug)]
pub struct Running {
    /// Process id.
    pub pid: u32,
    /// How to ask it.
    pub way: Way,
    /// Admin address of a gateway.
    pub admin: Option<SocketAddr>,
    /// From its start to its first good answer, seconds.
    pub first_answer_s: f64,
    /// Resident then, MB.
    pub resident_mb: Option<f64>,
}

impl Stage {
    /// A folder and ports; no process yet.
    ///
    /// # Errors
    /// Neither is to be had.
    pub async fn new() -> Result<Stage> {
        let home = Home::open(None)?;
        let ports = Ports::take(u64::from(std::process::id())).await?;
        Ok(Stage { home, ports, processes: Vec::new(), started: 0 })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Starts the mock provider; where primary and stand-in listen.
    ///
    /// # Errors
    /// It does not start.
    pub async fn mock(&mut self, listen: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
        let arguments = ["bench", "mock", "--listen", &listen.to_string()].map(str::to_owned);
        let n = self.spawn("the mock provider", this_binary()?, &arguments, true)?;
        let line = self.first_line(n).await?;
        let at = |name: &str| line.get(name).and_then(Value::as_str).and_then(|a| a.parse().ok());
        at("primary").zip(at("stand_in")).ok_or_else(|| self.failed(n, "its first line is not as agreed"))
    }

    /// Starts a gateway of this binary with this policy and waits for its first answer.
    ///
    /// # Errors
    /// It does not start, or does not answer.
    pub async fn gateway(&mut self, policy: &str) -> Result<Running> {
        let n = self.started;
        let policy = self.home.write(&format!("gateway-{n}.yaml"), policy)?;
        let listen = self.ports.free().await?;
        let file = |name: &str| self.home.path().join(format!("gateway-{n}.{name}")).display().to_string();
        let arguments = [
            "serve",
            "--policy",
            &policy.display().to_string(),
            "--listen",
            &listen.to_string(),
            "--admin",
            "127.0.0.1:0",
            "--journal",
            &file("journal.jsonl"),
            "--ledger",
            &file("ledger"),
            "--seed",
            "1",
            "--format",
            "json",
            "--quiet",
            "--exit-with-stdin",
        ]
        .map(str::to_owned);
        let began = Instant::now();
        let n = self.spawn("the gateway", this_binary()?, &arguments, true)?;
        let mut running = self.answers(n, listen, began).await?;
        let line = self.first_line(n).await?;
        running.admin = line.get("admin").and_then(Value::as_str).and_then(|a| a.parse().ok());
        Ok(running)
    }

    /// Starts Envoy in front of these providers and waits for its first answer.
    ///
    /// # Errors
    /// It does not start, or does not answer.
    pub async fn envoy(&mut self, program: &Path, primary: SocketAddr, stand_in: SocketAddr) -> Result<Running> {
        let n = self.started;
        let listen = self.ports.free().await?;
        let log = self.home.path().join(format!("envoy-{n}.access.jsonl"));
        let file = self.home.write(&format!("envoy-{n}.yaml"), &config::envoy(listen, primary, stand_in, &log))?;
        let file = file.display().to_string();
        // By way of this binary, which sees to it that Envoy ends with us; it becomes Envoy, under the same number.
        let program = program.display().to_string();
        let arguments = [
            "bench",
            "child",
            "--",
            &program,
            "-c",
            &file,
            "--concurrency",
            "2",
            "--disable-hot-restart",
            "--log-level",
            "error",
        ]
        .map(str::to_owned);
        let began = Instant::now();
        let n = self.spawn("Envoy", this_binary()?, &arguments, false)?;
        self.answers(n, listen, began).await
    }

    fn spawn(&mut self, name: &str, program: PathBuf, arguments: &[String], speaks: bool) -> Result<usize> {
        let failed = |why: String| Expected::could_not(format!("{name} did not start: {why}"), "");
        let log = self.home.path().join(format!("process-{}.log", self.started));
        self.started += 1;
        let errors = File::create(&log).map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_remove("LLMFO_ADMIN_KEY")
            .env_remove("LLMFO_POLICY")
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(if speaks { Stdio::piped() } else { Stdio::null() })
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let out = child.stdout.take().map(|out| BufReader::new(out.take(LINE_BYTES)));
        self.processes.push(Process { name: name.to_owned(), child, out, log });
        Ok(self.processes.len() - 1)
    }

    async fn first_line(&mut self, n: usize) -> Result<Value> {
        let mut line = String::new();
        let read = match self.processes.get_mut(n).and_then(|p| p.out.as_mut()) {
            Some(out) => timeout(READY, out.read_line(&mut line)).await,
            None => return Err(self.failed(n, "it says nothing")),
        };
        match read {
            Ok(Ok(bytes)) if bytes > 0 => {
                serde_json::from_str(&line).map_err(|_| self.failed(n, "its first line is not as agreed"))
            }
            Ok(_) => Err(self.failed(n, "it ended at once")),
            Err(_) => Err(self.failed(n, "not ready in time")),
        }
    }

    /// Asks until it answers.
    async fn answers(&mut self, n: usize, to: SocketAddr, began: Instant) -> Result<Running> {
        let way = way(to);
        let request = Request::new(&way, false, false, &Asked::default());
        let mut client = Client::new(to);
        loop {
            let took = client.ask(&request.bytes, false).await;
            if took.end == End::Whole {
                break;
            }
            let process = self.processes.get_mut(n);
            if process.is_none_or(|p| !matches!(p.child.try_wait(), Ok(None))) {
                return Err(self.failed(n, "it ended at once"));
            }
            if began.elapsed() > READY {
                return Err(self.failed(n, &format!("no good answer in time (the last: {:?})", took.end)));
            }
            sleep(EVERY).await;
        }
        let first_answer_s = began.elapsed().as_secs_f64();
        let pid = self.processes.get(n).and_then(|p| p.child.id()).ok_or_else(|| self.failed(n, "it has ended"))?;
        Ok(Running { pid, way, admin: None, first_answer_s, resident_mb: proc::resident_mb(pid) })
    }

    fn failed(&self, n: usize, why: &str) -> Expected {
        let (name, said) = match self.processes.get(n) {
            Some(process) => (process.name.as_str(), std::fs::read(&process.log).unwrap_or_default()),
            None => ("a process", Vec::new()),
        };
        let said =
            String::from_utf8_lossy(said.get(said.len().saturating_sub(2_000)..).unwrap_or_default()).into_owned();
        let said = printable(&said, 1_000);
        let said = if said.is_empty() { "it said nothing".to_owned() } else { said };
        Expected::could_not(format!("{name}: {why}: {said}"), "start it by hand to see all that it says")
    }

    /// Ends one of them and waits for it.
    pub async fn end(&mut self, pid: u32) {
        if let Some(at) = self.processes.iter().position(|p| p.child.id() == Some(pid)) {
            end(self.processes.remove(at)).await;
        }
    }

    /// Forgets what has been written about requests so far, so that a long run does not fill the disk.
    pub fn empty_logs(&self) {
        for entry in std::fs::read_dir(self.home.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.to_str().is_some_and(|p| p.ends_with(".access.jsonl")) {
                // Envoy appends: it goes on at the new end. One that cannot be emptied only takes room.
                let _ = File::options().write(true).truncate(true).open(path);
            }
        }
    }

    /// Ends all of them, then removes the folder.
    pub async fn down(self) {
        for process in self.processes {
            end(process).await;
        }
    }
}

/// Those that read their pipe drain; the others, and who takes too long, are killed.
async fn end(mut process: Process) {
    let speaks = process.out.is_some();
    drop(process.child.stdin.take());
    if !speaks || timeout(GONE, process.child.wait()).await.is_err() {
        // It may have ended meanwhile.
        let _ = process.child.kill().await;
    }
}

/// How a gateway of this run, or the provider itself, is asked.
#[must_use]
pub fn way(to: SocketAddr) -> Way {
    Way { to, path: "/v1".to_owned(), model: config::MODEL.to_owned(), key: "bench".to_owned() }
}

fn this_binary() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Expected::could_not(format!("this program cannot be found: {e}"), ""))
}
