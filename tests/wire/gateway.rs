//! A gateway in this process, over real sockets, in front of scripted providers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llmfo::gateway::clients::AdminKey;
use llmfo::gateway::clients::book::{self, Client};
use llmfo::gateway::ledger::{Ledger, Place};
use llmfo::gateway::listener::ListenerLimits;
use llmfo::gateway::{Gateway, Settings};
use serde_json::Value;

use crate::canary;
use crate::http::{self, Response};

pub struct Rig {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    gateway: Option<Gateway>,
    /// Journals, to be searched at the end.
    written: Vec<PathBuf>,
    runtime: tokio::runtime::Runtime,
}

/// What a test may change.
pub struct Change {
    /// More lines of each target.
    pub target: &'static str,
    /// More lines of the route.
    pub route: &'static str,
    /// Replaces `{ base_cooldown_s: 60 }`.
    pub breaker: &'static str,
    pub limits: ListenerLimits,
    pub journal: Option<PathBuf>,
    /// The input journal.
    pub inputs: Option<PathBuf>,
    /// Faults forced from the start; `None`: none may be forced.
    pub forced: Option<Vec<(String, llmfo::gateway::orders::Forced)>>,
    /// The policy's folder: `evidence/` is beside it.
    pub folder: PathBuf,
    /// The ledger; in memory if none is given.
    pub ledger: Option<Arc<Ledger>>,
    /// Text of a file of client keys.
    pub clients: Option<String>,
    pub admin_key: Option<&'static str>,
    /// Failover is only observed.
    pub observe: bool,
}

impl Default for Change {
    fn default() -> Change {
        Change {
            target: "",
            route: "",
            breaker: "{ base_cooldown_s: 60 }",
            limits: ListenerLimits::default(),
            journal: None,
            inputs: None,
            forced: None,
            folder: PathBuf::from("."),
            ledger: None,
            clients: None,
            admin_key: None,
            observe: false,
        }
    }
}

/// The clients of a file that is right.
pub fn clients(text: &str) -> Vec<Client> {
    let (file, found, _) = llmfo::spec::client_keys::read("keys.yaml", text.as_bytes());
    assert!(found.is_empty(), "{found:#?}");
    book::clients(&file.unwrap())
}

/// A policy with one route `chat` over these providers, in order: deadline 4 s, connect 300 ms, first token 500 ms, idle 500 ms.
pub fn policy(targets: &[(&str, SocketAddr)], change: &Change) -> String {
    let mut text = String::from("version: test-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n");
    for (name, address) in targets {
        let credentials = if change.target.contains("credentials:") {
            String::new()
        } else {
            format!("    credentials: file:{}\n", canary::key_file(name).display())
        };
        text.push_str(&format!(
            "  {name}:\n    base_url: http://{address}/v1\n    model: model-{name}\n{credentials}    \
             capabilities: {{ tools: true, json_schema: strict, vision: true }}\n{}",
            change.target
        ));
    }
    let names: Vec<&str> = targets.iter().map(|(n, _)| *n).collect();
    text.push_str(&format!("pools:\n  all: {{ targets: [{}], select: priority }}\n", names.join(", ")));
    text.push_str("tools:\n  get_order: { side_effects: none }\n");
    text.push_str(&format!(
        "routes:\n  - route: chat\n    data: none\n    tools: [get_order]\n    deadline_ms: 4000\n    reserve_ms: 200\n    \
         max_attempts: 3\n    connect_timeout_ms: 300\n    idle_timeout_ms: 500\n{}    attempts:\n      \
         - {{ pool: all, first_token_timeout_ms: 500, pii: allowed }}\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n",
        change.route
    ));
    text.push_str(&format!("breaker: {}\n", change.breaker));
    text
}

impl Rig {
    pub fn new(targets: &[(&str, SocketAddr)]) -> Rig {
        Rig::with(targets, Change::default())
    }

    pub fn with(targets: &[(&str, SocketAddr)], change: Change) -> Rig {
        Rig::of(&policy(targets, &change), change)
    }

    pub fn of(yaml: &str, change: Change) -> Rig {
        canary::watch_log();
        let written = change.journal.iter().chain(&change.inputs).cloned().collect();
        let (policy, found) = llmfo::policy::load("test.yaml", yaml.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}\n{yaml}"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let settings = Settings {
            policy: Arc::new(policy),
            folder: change.folder,
            listen: loopback,
            admin: loopback,
            seed: 1,
            journal: change.journal.map(llmfo::telemetry::JournalSettings::at),
            inputs: change.inputs,
            forced: change.forced,
            ledger: change.ledger.unwrap_or_else(|| Arc::new(Ledger::start(&Place::Memory).unwrap())),
            limits: change.limits,
            clients: change.clients.as_deref().map(clients),
            observe: change.observe,
            admin_key: change.admin_key.map(AdminKey::new),
        };
        let gateway = runtime.block_on(Gateway::start(settings)).unwrap();
        Rig { listen: gateway.listen, admin: gateway.admin, gateway: Some(gateway), written, runtime }
    }

    /// A streamed request with one user message.
    pub fn stream(&self) -> Response {
        http::chat(self.listen, &body(true), &[])
    }

    /// The same, not streamed.
    pub fn plain(&self) -> Response {
        http::chat(self.listen, &body(false), &[])
    }

    pub fn snapshot(&self) -> Value {
        http::get(self.admin, "/snapshot").json()
    }

    pub fn metrics(&self) -> String {
        http::get(self.admin, "/metrics").text()
    }

    /// The decision record of a response.
    pub fn decision(&self, response: &Response) -> Value {
        let id = response.header("x-llmfo-request-id").unwrap();
        // The record is published when the request is over, which the client may notice first.
        self.eventually("the decision", || {
            let found = http::get(self.admin, &format!("/decisions/{id}"));
            (found.status == 200).then(|| found.json()["record"].clone())
        })
    }

    pub fn target(&self, name: &str) -> Value {
        let snapshot = self.snapshot();
        snapshot["targets"].as_array().unwrap().iter().find(|t| t["target"] == name).unwrap().clone()
    }

    /// Waits for a condition with a generous bound.
    pub fn eventually<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = found() {
                return value;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come; {}", self.snapshot());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing is under way any more, in the core and on the sockets.
    pub fn wait_idle(&self) {
        self.eventually("idleness", || {
            let s = self.snapshot();
            let core = s["requests"]["open"] == 0 && s["attempts"]["in_flight"] == 0;
            let metrics = self.metrics();
            let zero = |name: &str| {
                metrics.lines().filter(|l| l.starts_with(name) && !l.starts_with('#')).all(|l| l.ends_with(" 0"))
            };
            (core && zero("llmfo_inflight_requests") && zero("llmfo_requests_open")).then_some(())
        });
    }

    /// The gateway stands still for this long: each of its two threads is held up.
    pub fn freeze(&self, span: Duration) {
        let all = Arc::new(std::sync::Barrier::new(3));
        for _ in 0..2 {
            let all = Arc::clone(&all);
            self.runtime.spawn(async move {
                all.wait();
                std::thread::sleep(span);
            });
        }
        all.wait();
    }

    /// Another policy, as a signal to read it again brings one.
    pub fn reload(&mut self, yaml: &str) -> Result<(), String> {
        let (policy, found) = llmfo::policy::load("test.yaml", yaml.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}\n{yaml}"));
        let _within = self.runtime.enter();
        self.gateway.as_mut().unwrap().reload(policy).map_err(|e| e.what)
    }

    /// Another file of client keys.
    pub fn hold_clients(&self, text: &str) {
        self.gateway.as_ref().unwrap().hold_clients(clients(text));
    }

    /// What the admin side shows of all that was.
    fn pages(&self) -> std::io::Result<Vec<(&'static str, String)>> {
        ["/metrics", "/snapshot"].into_iter().map(|page| Ok((page, http::try_get(self.admin, page)?))).collect()
    }

    /// Stops the gateway as a signal would.
    pub fn stop(&mut self, drain: Duration) -> usize {
        let gateway = self.gateway.take().unwrap();
        self.runtime.block_on(gateway.stop(drain))
    }

    /// Begins to stop it and returns at once.
    pub fn begin_stop(&mut self, drain: Duration) -> tokio::task::JoinHandle<usize> {
        let gateway = self.gateway.take().unwrap();
        self.runtime.spawn(gateway.stop(drain))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let searched = !std::thread::panicking();
        if let Some(gateway) = self.gateway.take() {
            // One that was frozen or has no room says nothing more.
            if searched && let Ok(pages) = self.pages() {
                pages.iter().for_each(|(page, text)| canary::search(page, text));
            }
            self.runtime.block_on(gateway.stop(Duration::ZERO));
        }
        if searched {
            for path in &self.written {
                let text = std::fs::read(path).unwrap_or_default();
                canary::search(&path.display().to_string(), &String::from_utf8_lossy(&text));
            }
        }
    }
}

pub fn body(stream: bool) -> String {
    format!(
        r#"{{"model":"chat","stream":{stream},"messages":[{{"role":"user","content":"hello, I am {}"}}]}}"#,
        canary::PERSON
    )
}
