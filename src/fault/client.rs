//! The client for Toxiproxy-compatible servers, real or ours. It believes nothing: the status, the body and the effect of
//! every change are checked, the effect by reading back. Values are checked before they are sent, since some of them crash a
//! real server. Control traffic goes its own way: no proxy from the environment, no redirects, no pooled connection, a limit
//! per call.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::api::{Counters, Healed, Lease, Proxy, Toxic, Version};
use super::error::{FaultError, FaultKind};
pub use super::wanted::{NewToxic, ProxyChange};
use super::wanted::{check_attributes, check_name};

/// Limit of a call. A real server that has locked up answers after 25 s at best.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// An answer larger than this is not read.
const ANSWER_MAX_BYTES: usize = 8 << 20;

type Result<T> = std::result::Result<T, FaultError>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    host: String,
}

struct Answer {
    call: String,
    status: u16,
    body: Vec<u8>,
}

impl Client {
    /// A client for a server on this machine.
    ///
    /// # Errors
    /// [`FaultKind::Invalid`] for a URL that is not `http://` on loopback: the API has no authentication.
    pub fn new(base_url: &str) -> Result<Client> {
        let client = Client::anywhere(base_url)?;
        let local = client.host.eq_ignore_ascii_case("localhost")
            || client.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if local {
            Ok(client)
        } else {
            let what = "this is not a loopback address, and the API of a fault server has no authentication";
            Err(FaultError::new(base_url, FaultKind::Invalid, what))
        }
    }

    /// A client for a server anywhere.
    ///
    /// # Errors
    /// [`FaultKind::Invalid`] for what is no `http://` URL.
    pub fn anywhere(base_url: &str) -> Result<Client> {
        let invalid = |what: &str| FaultError::new(base_url, FaultKind::Invalid, what);
        let url = reqwest::Url::parse(base_url).map_err(|e| invalid(&format!("not a URL: {e}")))?;
        if url.scheme() != "http" {
            return Err(invalid("the URL of a fault server begins with http://"));
        }
        let host = url.host_str().ok_or_else(|| invalid("the URL has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let http = reqwest::Client::builder()
            .no_proxy()
            .user_agent(concat!("llmfo/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .connect_timeout(CALL_MAX)
            .timeout(CALL_MAX)
            .build()
            .map_err(|e| invalid(&format!("no HTTP client: {e}")))?;
        Ok(Client { http, base: base_url.trim_end_matches('/').to_owned(), host })
    }

    /// The URL it was made with.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base
    }

    async fn call(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Answer> {
        let mut url = self.base.clone();
        for part in path {
            url.push('/');
            url.push_str(&encode(part));
        }
        let call = format!("{method} {url}");
        let mut request = self.http.request(method, &url);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let failed = |e: reqwest::Error| {
            let kind = if e.is_timeout() { FaultKind::Timeout } else { FaultKind::Unreachable };
            let what = match kind {
                FaultKind::Timeout => format!("no answer within {} s", CALL_MAX.as_secs()),
                _ => root_cause(&e),
            };
            FaultError::new(&call, kind, what)
        };
        let mut answer = request.send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_MAX_BYTES {
                return Err(FaultError::new(&call, FaultKind::BadAnswer, "the answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { call, status, body })
    }

    /// Who answers there.
    ///
    /// # Errors
    /// [`FaultKind::BadAnswer`] for something that is no such server.
    pub async fn version(&self) -> Result<Version> {
        self.call(Method::GET, &["version"], None).await?.json(200)
    }

    /// It is ours, with leases and the toxics that a real one lacks.
    ///
    /// # Errors
    /// As [`Client::version`].
    pub async fn is_ours(&self) -> Result<bool> {
        Ok(self.version().await?.server.as_deref() == Some("llmfo"))
    }

    /// All proxies by name.
    ///
    /// # Errors
    /// Of the call.
    pub async fn proxies(&self) -> Result<BTreeMap<String, Proxy>> {
        self.call(Method::GET, &["proxies"], None).await?.json(200)
    }

    /// One proxy.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], or of the call.
    pub async fn proxy(&self, name: &str) -> Result<Proxy> {
        self.call(Method::GET, &["proxies", name], None).await?.json(200)
    }

    /// Makes a proxy (without its toxics) and reads it back. The answer says which port was chosen for port 0.
    ///
    /// # Errors
    /// [`FaultKind::Conflict`] if the name is taken, [`FaultKind::Rejected`] if the port is.
    pub async fn create_proxy(&self, name: &str, listen: &str, upstream: &str, enabled: bool) -> Result<Proxy> {
        let body = json!({ "name": name, "listen": listen, "upstream": upstream, "enabled": enabled });
        let invalid = |what: &str| FaultError::new(&format!("create proxy {name}"), FaultKind::Invalid, what);
        check_name(name).map_err(|why| invalid(&why))?;
        if listen.is_empty() {
            return Err(invalid("an empty listen address means all interfaces: write it out"));
        }
        if upstream.contains("://") || !upstream.contains(':') {
            return Err(invalid("upstream must be host:port, not a URL"));
        }
        let answer = self.call(Method::POST, &["proxies"], Some(&body)).await?;
        let call = answer.call.clone();
        let made: Proxy = answer.json(201)?;
        let seen = self.proxy(name).await?;
        let asked = made.upstream == upstream && made.enabled == enabled && same_port(&made.listen, listen);
        agree(&call, asked && seen == made, || format!("asked for {body}, it shows {}", shown(&seen)))?;
        Ok(made)
    }

    /// Changes a proxy and reads it back.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], [`FaultKind::Rejected`], or of the call.
    pub async fn update_proxy(&self, name: &str, change: &ProxyChange) -> Result<Proxy> {
        let body = serde_json::to_value(change).unwrap_or_default();
        // POST, which every version understands; PATCH came later.
        let answer = self.call(Method::POST, &["proxies", name], Some(&body)).await?;
        let call = answer.call.clone();
        let changed: Proxy = answer.json(200)?;
        let seen = self.proxy(name).await?;
        let asked = change.enabled.is_none_or(|e| seen.enabled == e)
            && change.upstream.as_ref().is_none_or(|u| seen.upstream == *u)
            && change.listen.as_ref().is_none_or(|l| same_port(&seen.listen, l));
        agree(&call, asked && seen.enabled == changed.enabled, || {
            format!("asked for {body}, it shows {}", shown(&seen))
        })?;
        Ok(seen)
    }

    /// Deletes a proxy; it is gone afterwards.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], or of the call.
    pub async fn delete_proxy(&self, name: &str) -> Result<()> {
        let answer = self.call(Method::DELETE, &["proxies", name], None).await?;
        let call = answer.call.clone();
        answer.empty(204)?;
        gone(&call, self.proxy(name).await.map(|_| ()))
    }

    /// Adds a toxic and reads it back.
    ///
    /// # Errors
    /// [`FaultKind::Invalid`] before anything is sent; [`FaultKind::Conflict`], [`FaultKind::NotFound`];
    /// [`FaultKind::NotAsAsked`] where the server took something else (it stays there: remove it).
    pub async fn add_toxic(&self, proxy: &str, toxic: &NewToxic) -> Result<Toxic> {
        let invalid = |why: String| FaultError::new(&format!("add toxic {}", toxic.name), FaultKind::Invalid, why);
        toxic.check().map_err(invalid)?;
        let body = serde_json::to_value(toxic).unwrap_or_default();
        let answer = self.call(Method::POST, &["proxies", proxy, "toxics"], Some(&body)).await?;
        let call = answer.call.clone();
        let added: Toxic = answer.json(200)?;
        let seen = self.toxic(proxy, &toxic.name).await?;
        let asked = |t: &Toxic| {
            t.kind == toxic.kind
                && t.stream == toxic.stream
                && (t.toxicity - toxic.toxicity).abs() < 1e-6
                && toxic.attributes.iter().all(|(k, v)| t.attributes.get(k) == Some(v))
        };
        agree(&call, asked(&added) && asked(&seen), || format!("asked for {body}, it shows {}", shown(&seen)))?;
        Ok(seen)
    }

    /// One toxic.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], or of the call.
    pub async fn toxic(&self, proxy: &str, name: &str) -> Result<Toxic> {
        self.call(Method::GET, &["proxies", proxy, "toxics", name], None).await?.json(200)
    }

    /// Changes attributes (those named) and toxicity, and reads back.
    ///
    /// # Errors
    /// As [`Client::add_toxic`].
    pub async fn update_toxic(
        &self,
        proxy: &str,
        name: &str,
        attributes: &BTreeMap<String, Value>,
        toxicity: Option<f32>,
    ) -> Result<Toxic> {
        let before = self.toxic(proxy, name).await?;
        let mut all: Map<String, Value> = before.attributes.into_iter().collect();
        all.extend(attributes.clone());
        let invalid = |why: String| FaultError::new(&format!("update toxic {name}"), FaultKind::Invalid, why);
        check_attributes(&before.kind, &Value::Object(all)).map_err(invalid)?;
        if toxicity.is_some_and(|t| !(0.0..=1.0).contains(&t)) {
            return Err(invalid("toxicity must be within 0..1".to_owned()));
        }
        let mut body = json!({ "attributes": attributes });
        if let (Some(toxicity), Some(map)) = (toxicity, body.as_object_mut()) {
            map.insert("toxicity".to_owned(), json!(toxicity));
        }
        let answer = self.call(Method::POST, &["proxies", proxy, "toxics", name], Some(&body)).await?;
        let call = answer.call.clone();
        let _: Toxic = answer.json(200)?;
        let seen = self.toxic(proxy, name).await?;
        let asked = attributes.iter().all(|(k, v)| seen.attributes.get(k) == Some(v))
            && toxicity.is_none_or(|t| (seen.toxicity - t).abs() < 1e-6);
        agree(&call, asked, || format!("asked for {body}, it shows {}", shown(&seen)))?;
        Ok(seen)
    }

    /// Removes a toxic; it is gone afterwards.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], or of the call.
    pub async fn remove_toxic(&self, proxy: &str, name: &str) -> Result<()> {
        let answer = self.call(Method::DELETE, &["proxies", proxy, "toxics", name], None).await?;
        let call = answer.call.clone();
        answer.empty(204)?;
        gone(&call, self.toxic(proxy, name).await.map(|_| ()))
    }

    /// Takes or refreshes a lease (ours only).
    ///
    /// # Errors
    /// [`FaultKind::NotFound`] from a real server, which has none.
    pub async fn lease(&self, id: &str, ttl_ms: u64) -> Result<Lease> {
        let body = json!({ "id": id, "ttl_ms": ttl_ms });
        let answer = self.call(Method::POST, &["llmfo", "v1", "lease"], Some(&body)).await?;
        let call = answer.call.clone();
        let lease: Lease = answer.json(200)?;
        agree(&call, lease.id == id && lease.ttl_ms == ttl_ms, || format!("asked for {body}, got {lease:?}"))?;
        Ok(lease)
    }

    /// Ends a lease: what was done under it is undone when this returns (ours only).
    ///
    /// # Errors
    /// [`FaultKind::NotFound`] if it had ended.
    pub async fn end_lease(&self, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["llmfo", "v1", "lease", id], None).await?.empty(204)
    }

    /// Leases that live (ours only).
    ///
    /// # Errors
    /// Of the call.
    pub async fn leases(&self) -> Result<Vec<Lease>> {
        #[derive(Deserialize)]
        struct Shown {
            leases: Vec<Lease>,
        }
        let shown: Shown = self.call(Method::GET, &["llmfo", "v1", "leases"], None).await?.json(200)?;
        Ok(shown.leases)
    }

    /// Live counters by proxy (ours only).
    ///
    /// # Errors
    /// Of the call.
    pub async fn counters(&self) -> Result<BTreeMap<String, Counters>> {
        self.call(Method::GET, &["llmfo", "v1", "counters"], None).await?.json(200)
    }

    /// What the server healed by itself (ours only).
    ///
    /// # Errors
    /// Of the call.
    pub async fn history(&self) -> Result<Vec<Healed>> {
        #[derive(Deserialize)]
        struct Shown {
            history: Vec<Healed>,
        }
        let shown: Shown = self.call(Method::GET, &["llmfo", "v1", "history"], None).await?.json(200)?;
        Ok(shown.history)
    }

    /// A real TCP connection to a proxy's listener succeeds.
    ///
    /// # Errors
    /// [`FaultKind::Unreachable`] or [`FaultKind::Timeout`].
    pub async fn reach(&self, proxy: &Proxy) -> Result<()> {
        let call = format!("connect to {} ({})", proxy.listen, proxy.name);
        // A wildcard is reached at the host of the API.
        let at = match proxy.listen.parse::<SocketAddr>() {
            Ok(addr) if addr.ip().is_unspecified() => format!("{}:{}", bracketed(&self.host), addr.port()),
            _ => proxy.listen.clone(),
        };
        match tokio::time::timeout(CALL_MAX, tokio::net::TcpStream::connect(&at)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(FaultError::new(&call, FaultKind::Unreachable, e.to_string())),
            Err(_) => Err(FaultError::new(&call, FaultKind::Timeout, "the connect timed out")),
        }
    }
}

impl Answer {
    fn error(&self) -> FaultError {
        let said = serde_json::from_slice::<Value>(&self.body).ok();
        let said = said.as_ref().and_then(|v| v.get("error")).and_then(Value::as_str);
        let (kind, what) = match (self.status, said) {
            // A real server gives up on a handler after 25 s, with an HTML page. It may be done later all the same.
            (503, _) => (FaultKind::Timeout, "the server gave up on the call".to_owned()),
            (404, Some(text)) => (FaultKind::NotFound, text.to_owned()),
            (409, Some(text)) => (FaultKind::Conflict, text.to_owned()),
            (_, Some(text)) => (FaultKind::Rejected, text.to_owned()),
            (404, None) => (FaultKind::BadAnswer, "status 404, and not in the manner of such a server".to_owned()),
            (status, None) => (FaultKind::BadAnswer, format!("status {status} without a reason")),
        };
        FaultError { status: Some(self.status), ..FaultError::new(&self.call, kind, what) }
    }

    fn json<T: DeserializeOwned>(self, status: u16) -> Result<T> {
        if self.status != status {
            return Err(self.error());
        }
        serde_json::from_slice(&self.body)
            .map_err(|e| FaultError::new(&self.call, FaultKind::BadAnswer, format!("the answer cannot be read: {e}")))
    }

    fn empty(self, status: u16) -> Result<()> {
        if self.status == status { Ok(()) } else { Err(self.error()) }
    }
}

fn agree(call: &str, good: bool, what: impl FnOnce() -> String) -> Result<()> {
    if good { Ok(()) } else { Err(FaultError::new(call, FaultKind::NotAsAsked, what())) }
}

fn gone(call: &str, seen: Result<()>) -> Result<()> {
    match seen {
        Err(e) if e.kind == FaultKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => Err(FaultError::new(call, FaultKind::NotAsAsked, "it is still there after it was deleted")),
    }
}

fn shown<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The same port, or any for port 0. Hosts are shown resolved, so they are not compared.
fn same_port(shown: &str, asked: &str) -> bool {
    let port = |text: &str| text.rsplit_once(':').map(|(_, p)| p.to_owned());
    port(asked).is_some_and(|p| p == "0") || port(shown) == port(asked)
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn encode(part: &str) -> String {
    let mut out = String::new();
    for b in part.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// The innermost reason: the outer ones only say that sending failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_names() {
        assert!(Client::new("http://127.0.0.1:8474/").is_ok_and(|c| c.base_url() == "http://127.0.0.1:8474"));
        assert!(Client::new("http://[::1]:8474").is_ok() && Client::new("http://localhost:8474").is_ok());
        for bad in ["http://10.0.0.1:8474", "https://localhost:8474", "localhost:8474", "http://"] {
            assert_eq!(Client::new(bad).unwrap_err().kind, FaultKind::Invalid, "{bad}");
        }
        assert_eq!(encode("a b/ü"), "a%20b%2F%C3%BC");
        assert!(same_port("127.0.0.1:81", "localhost:81") && same_port("127.0.0.1:9", "127.0.0.1:0"));
        assert!(!same_port("127.0.0.1:82", "localhost:81"));
    }
}
