//! The processes of an embedded run: this same binary as the lab and as each region's gateway, each in its own process
//! group, so that a terminal's Ctrl-C reaches the runner alone. They heal and exit when their pipe to the runner closes,
//! whatever ended the runner.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::time::timeout;

use crate::error::{Expected, Result};
use crate::units::printable;

/// A child must have said that it is ready within this.
const READY: Duration = Duration::from_secs(20);
/// A child whose pipe has closed must be gone within this; then it is killed.
const GONE: Duration = Duration::from_secs(8);
/// Longest first line that is read.
const LINE_BYTES: u64 = 64 * 1024;

/// A running child.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    stdin: Option<ChildStdin>,
    log: std::path::PathBuf,
}

impl Child {
    /// Starts this binary with `arguments` and reads its first line, which must be JSON of the wanted shape. Its stderr
    /// goes to `log`.
    ///
    /// # Errors
    /// It does not start, ends at once, or is not ready in time.
    pub async fn start<T: DeserializeOwned>(name: &str, arguments: &[String], log: &Path) -> Result<(Child, T)> {
        let failed = |why: String| {
            Expected::could_not(format!("{name} did not start: {why}"), format!("what it said is in {}", log.display()))
        };
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let errors = std::fs::File::create(log).map_err(|e| failed(format!("{}: {e}", log.display())))?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let stdin = process.stdin.take();
        let Some(stdout) = process.stdout.take() else { return Err(failed("no stdout".into())) };
        let mut child = Child { name: name.into(), process, stdin, log: log.into() };
        let mut lines = BufReader::new(tokio::io::AsyncReadExt::take(stdout, LINE_BYTES));
        let mut line = String::new();
        let said = match timeout(READY, lines.read_line(&mut line)).await {
            Err(_) => Err("not ready in time".to_string()),
            Ok(Err(e)) => Err(e.to_string()),
            Ok(Ok(0)) => Err("it ended at once".to_string()),
            Ok(Ok(_)) => serde_json::from_str(&line).map_err(|e| format!("its first line is not as agreed: {e}")),
        };
        match said {
            Ok(said) => Ok((child, said)),
            Err(why) => {
                child.kill().await;
                let more = child.last_words();
                Err(failed(if more.is_empty() { why } else { format!("{why}: {more}") }))
            }
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.process.try_wait() {
            Ok(Some(status)) => Some(format!("{} ended: {status}", self.name)),
            Ok(None) => None,
            Err(e) => Some(format!("{}: {e}", self.name)),
        }
    }

    /// The last line that it wrote to its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().rfind(|l| !l.trim().is_empty()).map(|l| printable(l, 300)).unwrap_or_default()
    }

    async fn kill(&mut self) {
        // The process may have ended meanwhile.
        let _ = self.process.kill().await;
    }

    /// Closes its pipe and waits until it is gone. `Some` says what was out of the ordinary.
    pub async fn stop(mut self) -> Option<String> {
        drop(self.stdin.take());
        match timeout(GONE, self.process.wait()).await {
            Ok(Ok(status)) if status.success() => None,
            Ok(Ok(status)) => Some(format!("{} ended with {status}: {}", self.name, self.last_words())),
            Ok(Err(e)) => Some(format!("{}: {e}", self.name)),
            Err(_) => {
                self.kill().await;
                Some(format!(
                    "{} did not end within {} s of its pipe closing and was killed",
                    self.name,
                    GONE.as_secs()
                ))
            }
        }
    }
}
