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

/// As much of the end of a child's log is looked at.
const LAST_BYTES: usize = 8 * 1024;
/// As much of these is repeated, in characters.
const LAST_CHARS: usize = 2000;
/// Lines of it that are repeated.
const LAST_LINES: usize = 12;

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
            Expected::could_not(
                format!("{name} did not start: {why}"),
                "start it by hand to see all that it says: `llmfo lab up`, `llmfo serve`",
            )
        };
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let errors = std::fs::File::create(log).map_err(|e| failed(format!("{}: {e}", log.display())))?;
        let mut process = Command::new(program)
            .args(arguments)
            // Theirs is on loopback without a key, whatever the operator's own gateway has.
            .env_remove("LLMFO_ADMIN_KEY")
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
                // One that has closed its output is about to end by itself, and its status says how.
                let status = match timeout(Duration::from_secs(1), child.process.wait()).await {
                    Ok(Ok(status)) => format!(" ({status})"),
                    _ => String::new(),
                };
                child.kill().await;
                let (more, hint) = child.last_words();
                let more = if more.is_empty() { "it said nothing".to_owned() } else { more };
                let e = failed(format!("{why}{status}: {more}"));
                Err(match hint {
                    Some(hint) => Expected { hint, ..e },
                    None => e,
                })
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

    /// What it wrote to its log last, in one line and without what could be a secret; its own advice apart.
    #[must_use]
    pub fn last_words(&self) -> (String, Option<String>) {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let tail = text.get(text.len().saturating_sub(LAST_BYTES)..).unwrap_or_default();
        words_of(&String::from_utf8_lossy(tail))
    }

    /// Ends it at once.
    pub async fn kill(&mut self) {
        // The process may have ended meanwhile.
        let _ = self.process.kill().await;
    }

    /// Closes its pipe and waits until it is gone. `Some` says what was out of the ordinary.
    pub async fn stop(mut self) -> Option<String> {
        drop(self.stdin.take());
        match timeout(GONE, self.process.wait()).await {
            Ok(Ok(status)) if status.success() => None,
            Ok(Ok(status)) => Some(format!("{} ended with {status}: {}", self.name, self.last_words().0)),
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

/// The last lines of a log as one, and the advice in it.
fn words_of(log: &str) -> (String, Option<String>) {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let (advice, said): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(|l| l.starts_with("next: "));
    let last = said.len().saturating_sub(LAST_LINES);
    let said: Vec<&str> = said[last..].iter().map(|l| l.strip_prefix("llmfo: ").unwrap_or(l)).collect();
    // Of what is too long the end says why.
    let safe = |text: &str| {
        let text = printable(&crate::diag::masked(text), 10 * LAST_CHARS);
        match text.chars().count().checked_sub(LAST_CHARS) {
            None | Some(0) => text,
            Some(more) => format!("…{}", text.chars().skip(more).collect::<String>()),
        }
    };
    (safe(&said.join("; ")), advice.last().and_then(|l| l.strip_prefix("next: ")).map(safe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_cause_and_the_advice_stands_apart() {
        let log = "old\nllmfo: GET http://127.0.0.1:1/proxies: refused\n  next: look at the port\n";
        let (said, hint) = words_of(log);
        assert_eq!(said, "old; GET http://127.0.0.1:1/proxies: refused");
        assert_eq!(hint.as_deref(), Some("look at the port"));
        assert_eq!(words_of(""), (String::new(), None));
        let (said, _) = words_of("key sk-live-12345678 of http://me:pw@h/v1\u{1b}[2J\n");
        assert!(!said.contains("12345678") && !said.contains("pw") && !said.contains('\u{1b}'), "{said}");
        let long = words_of(&format!("{}the cause", "x".repeat(9000))).0;
        assert!(long.chars().count() <= LAST_CHARS + 1 && long.ends_with("the cause"), "{long}");
    }
}
