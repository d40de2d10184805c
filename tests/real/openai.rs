//! The official OpenAI client for Python, unmodified, against `llmfo serve` in front of the lab.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::peer;

/// A child of ours that ends when its stdin closes, and at the latest when this guard is dropped.
struct Service {
    child: Child,
    first: Value,
}

impl Service {
    fn start(args: &[&str]) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_llmfo"))
            .args(args)
            .arg("--exit-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let first = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{args:?} printed {line:?}: {e}"));
        Service { child, first }
    }

    fn text(&self, pointer: &str) -> String {
        let found = self.first.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_else(|| panic!("no {pointer} in {}", self.first)).to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn official_python_client() {
    let Some(python) = peer::program("Python with the openai package", "LLMFO_PYTHON") else { return };
    let lab = Service::start(&["lab", "up"]);
    let policy = lab.text("/policy");
    let gateway = Service::start(&[
        "serve",
        "--policy",
        &policy,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--format",
        "json",
    ]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/openai_client.py");
    let run = Command::new(python)
        .arg(script)
        .arg(format!("http://{}/v1", gateway.text("/listen")))
        .arg(lab.text("/admin"))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&run.stdout);
    println!("{out}");
    assert!(run.status.success(), "{out}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(out.contains("all checks passed"), "{out}");
}
