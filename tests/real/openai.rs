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

/// Runs a client's script against a gateway in front of a lab of its own.
fn passes(client: &mut Command) {
    let lab = Service::start(&["lab", "up"]);
    let policy = lab.text("/policy");
    let loopback = "127.0.0.1:0";
    let gateway = Service::start(&[
        "serve", "--policy", &policy, "--listen", loopback, "--admin", loopback, "--ledger", "memory", "--format",
        "json",
    ]);
    let run = client.arg(format!("http://{}/v1", gateway.text("/listen"))).arg(lab.text("/admin")).output().unwrap();
    let out = String::from_utf8_lossy(&run.stdout);
    println!("{out}");
    assert!(run.status.success(), "{out}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(out.contains("all checks passed"), "{out}");
}

fn script(name: &str) -> String {
    format!("{}/tests/real/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn official_python_client() {
    let Some(python) = peer::program("Python with the openai package", "LLMFO_PYTHON") else { return };
    passes(Command::new(python).arg(script("openai_client.py")));
}

#[test]
fn official_javascript_client() {
    let what = "the openai package for JavaScript";
    let Some(package) = peer::program(what, "LLMFO_OPENAI_JS") else { return };
    passes(Command::new("node").arg(script("openai_client.mjs")).arg(package));
}
