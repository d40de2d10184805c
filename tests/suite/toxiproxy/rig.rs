//! A server under test and short words for its API.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::net::{Answer, Upstream, http};

/// Which behaviour is expected where the two differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A real Toxiproxy 2.12.
    Stock,
    /// Ours.
    Strict,
}

/// A server under test.
pub struct Rig {
    pub api: SocketAddr,
    pub profile: Profile,
    /// Ends with the test.
    _keep: Box<dyn std::any::Any>,
}

/// A proxy of it.
pub struct Path<'a> {
    pub rig: &'a Rig,
    pub name: String,
    pub listen: SocketAddr,
}

impl Rig {
    /// The server at `api`; `keep` ends with the test. Ours says that it is ours.
    pub fn new(api: SocketAddr, keep: impl std::any::Any) -> Rig {
        let version = http(api, "GET", "/version", &[], "").json();
        let profile = if version["server"] == "llmfo" { Profile::Strict } else { Profile::Stock };
        Rig { api, profile, _keep: Box::new(keep) }
    }

    pub fn strict(&self) -> bool {
        self.profile == Profile::Strict
    }

    pub fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        http(self.api, method, path, &[], &text)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &Value::Null)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, body)
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, &Value::Null)
    }

    pub fn raw(&self, method: &str, path: &str, body: &str) -> Answer {
        http(self.api, method, path, &[], body)
    }

    /// Makes a proxy on a free port.
    pub fn path(&self, name: &str, up: &Upstream) -> Path<'_> {
        self.path_to(name, &up.addr.to_string())
    }

    pub fn path_to(&self, name: &str, upstream: &str) -> Path<'_> {
        let made = self.post("/proxies", &json!({"name": name, "listen": "127.0.0.1:0", "upstream": upstream}));
        assert_eq!(made.status, 201, "{made:?}");
        let listen = made.json()["listen"].as_str().unwrap().parse().unwrap();
        Path { rig: self, name: name.to_owned(), listen }
    }
}

impl Path<'_> {
    pub fn url(&self, rest: &str) -> String {
        format!("/proxies/{}{rest}", self.name)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.listen, Duration::from_secs(5)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Adds a toxic; its name is its type unless given.
    pub fn toxic(&self, kind: &str, stream: &str, attributes: Value) -> Answer {
        self.add(&json!({"name": kind, "type": kind, "stream": stream, "attributes": attributes}))
    }

    pub fn add(&self, toxic: &Value) -> Answer {
        let added = self.rig.post(&self.url("/toxics"), toxic);
        assert_eq!(added.status, 200, "{toxic} -> {added:?}");
        added
    }

    pub fn patch(&self, toxic: &str, change: &Value) -> Answer {
        self.rig.call("PATCH", &self.url(&format!("/toxics/{toxic}")), change)
    }

    pub fn remove(&self, toxic: &str) -> Answer {
        let removed = self.rig.delete(&self.url(&format!("/toxics/{toxic}")));
        assert_eq!(removed.status, 204, "{removed:?}");
        removed
    }

    pub fn change(&self, change: &Value) -> Answer {
        self.rig.post(&self.url(""), change)
    }

    pub fn shown(&self) -> Value {
        self.rig.get(&self.url("")).json()
    }
}
