//! The proxies of a server and what can be done with them. Reading never waits for a change under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::address::{check_upstream, resolve_listen};
use super::body::Body;
use super::error::ApiError;
use super::lease::Leases;
use super::proxy::{Entry, Ground, Proxy};
use crate::fault::api::{Counters, Stream};
use crate::fault::toxic::Spec;
use crate::fault::toxic::spec::attribute_names;

const PROXIES_MAX: usize = 1000;
const TOXICS_MAX: usize = 64;
const NAME_MAX_BYTES: usize = 256;
const STREAM_ERROR: &str = "stream was invalid, can be either upstream or downstream";

/// What is allowed beyond loopback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    /// Proxies may listen on any address.
    pub listen_anywhere: bool,
    /// Proxies may dial any host.
    pub upstream_anywhere: bool,
}

/// The state behind the API.
#[derive(Debug)]
pub struct Table {
    proxies: Mutex<BTreeMap<String, Arc<Proxy>>>,
    /// One change at a time.
    pub(super) changes: tokio::sync::Mutex<()>,
    leases: Mutex<Leases>,
    /// Something with an end was added.
    pub(super) wake: Notify,
    ground: Ground,
    reach: Reach,
    next_toxic: AtomicU64,
}

impl Table {
    /// An empty one.
    #[must_use]
    pub fn new(ground: Ground, reach: Reach) -> Table {
        Table {
            proxies: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
            leases: Mutex::default(),
            wake: Notify::new(),
            ground,
            reach,
            next_toxic: AtomicU64::new(1),
        }
    }

    fn proxies(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Proxy>>> {
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases and history. Never held across a wait.
    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All proxies, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Proxy>> {
        self.proxies().values().cloned().collect()
    }

    /// One proxy.
    ///
    /// # Errors
    /// 404.
    pub fn proxy(&self, name: &str) -> Result<Arc<Proxy>, ApiError> {
        self.proxies().get(name).cloned().ok_or_else(ApiError::no_proxy)
    }

    /// Counters by proxy.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, Counters> {
        self.proxies().iter().map(|(name, proxy)| (name.clone(), proxy.live.read())).collect()
    }

    /// Makes a proxy.
    ///
    /// # Errors
    /// 400, 409, 500 as the real server, and our own bounds.
    pub async fn create(&self, body: &Body) -> Result<Arc<Proxy>, ApiError> {
        let _one = self.changes.lock().await;
        let (name, upstream) = required(body, "")?;
        if self.proxies().contains_key(&name) {
            return Err(ApiError::new(409, "proxy already exists"));
        }
        self.make(name, upstream, body).await
    }

    async fn make(&self, name: String, upstream: String, body: &Body) -> Result<Arc<Proxy>, ApiError> {
        check_name(&name)?;
        check_upstream(&upstream, self.reach.upstream_anywhere)?;
        if self.proxies().len() >= PROXIES_MAX {
            return Err(ApiError::bad(format!("no more than {PROXIES_MAX} proxies")));
        }
        let listen = self.listen_text(body.text("listen")?)?;
        let enabled = body.flag("enabled")?.unwrap_or(true);
        let proxy = Arc::new(Proxy::new(name.clone(), listen.clone(), upstream, self.ground.clone()));
        if enabled {
            let addr = resolve_listen(&listen, self.reach.listen_anywhere).await?;
            proxy.start(addr).await?;
        }
        self.proxies().insert(name, proxy.clone());
        Ok(proxy)
    }

    fn listen_text(&self, given: Option<String>) -> Result<String, ApiError> {
        match given.filter(|text| !text.is_empty()) {
            Some(text) if text.len() > NAME_MAX_BYTES => Err(ApiError::bad("listen is too long")),
            Some(text) => Ok(text),
            None if self.reach.listen_anywhere => Ok(":0".to_owned()),
            None => {
                Err(ApiError::bad("missing field: listen, for example 127.0.0.1:0 (absent would mean all interfaces)"))
            }
        }
    }

    /// Changes a proxy: all or nothing.
    ///
    /// # Errors
    /// 400, 404, 500; the proxy is as before then.
    pub async fn update(&self, name: &str, body: &Body) -> Result<Arc<Proxy>, ApiError> {
        let _one = self.changes.lock().await;
        let proxy = self.proxy(name)?;
        let upstream = body.text("upstream")?.filter(|text| *text != proxy.upstream());
        if let Some(text) = &upstream {
            check_upstream(text, self.reach.upstream_anywhere)?;
        }
        let lease = self.live_lease(body)?;
        let (was, listen_was) = {
            let state = proxy.state();
            (state.enabled, state.listen.clone())
        };
        let enabled = body.flag("enabled")?.unwrap_or(was);
        let listen = body.text("listen")?.filter(|text| !text.is_empty() && *text != listen_was);
        let new_addr = match &listen {
            Some(text) => Some(resolve_listen(text, self.reach.listen_anywhere).await?),
            None => None,
        };
        let moved = new_addr.filter(|addr| proxy.bound() != Some(*addr));
        match (was, enabled) {
            (true, true) => {
                if let Some(addr) = moved {
                    self.relocate(&proxy, addr, upstream).await?;
                } else if let Some(text) = upstream {
                    proxy.set_upstream(text);
                    proxy.close_connections().await;
                }
            }
            (true, false) => {
                proxy.stop().await;
                self.set_texts(&proxy, listen, upstream);
            }
            (false, true) => {
                let addr = match new_addr {
                    Some(addr) => addr,
                    None => resolve_listen(&listen_was, self.reach.listen_anywhere).await?,
                };
                self.enable(&proxy, addr).await?;
                self.set_texts(&proxy, None, upstream);
            }
            (false, false) => self.set_texts(&proxy, listen, upstream),
        }
        if !enabled && lease.is_some() {
            proxy.state().disabled_by = lease;
            self.wake.notify_one();
        } else if !enabled && body.flag("enabled")?.is_some() {
            // Disabled on purpose, by somebody without a lease: it stays so.
            proxy.state().disabled_by = None;
        }
        Ok(proxy)
    }

    /// Starts on another address before the old one is given up, so that a failure changes nothing.
    async fn relocate(
        &self,
        proxy: &Proxy,
        addr: std::net::SocketAddr,
        upstream: Option<String>,
    ) -> Result<(), ApiError> {
        let old = proxy.take_listener();
        if let Err(error) = proxy.start(addr).await {
            proxy.put_listener(old);
            return Err(error);
        }
        Proxy::stop_listener(old).await;
        if let Some(text) = upstream {
            proxy.set_upstream(text);
        }
        proxy.close_connections().await;
        proxy.follow_black_hole().await.map_err(|why| ApiError::new(500, why))
    }

    pub(super) async fn enable(&self, proxy: &Proxy, addr: std::net::SocketAddr) -> Result<(), ApiError> {
        proxy.start(addr).await?;
        if let Err(why) = proxy.follow_black_hole().await {
            proxy.stop().await;
            return Err(ApiError::new(500, format!("connect_blackhole does not work here: {why}")));
        }
        Ok(())
    }

    /// Enables a proxy at the address it had.
    ///
    /// # Errors
    /// 500 when the port is taken.
    pub(super) async fn enable_again(&self, proxy: &Proxy) -> Result<(), ApiError> {
        let listen = proxy.state().listen.clone();
        let addr = resolve_listen(&listen, self.reach.listen_anywhere).await?;
        self.enable(proxy, addr).await
    }

    fn set_texts(&self, proxy: &Proxy, listen: Option<String>, upstream: Option<String>) {
        if let Some(text) = listen {
            proxy.state().listen = text;
        }
        if let Some(text) = upstream {
            proxy.set_upstream(text);
        }
    }

    fn live_lease(&self, body: &Body) -> Result<Option<String>, ApiError> {
        match body.text("lease")? {
            Some(id) if !self.leases().has(&id) => Err(ApiError::no_lease()),
            lease => Ok(lease),
        }
    }

    /// Deletes a proxy.
    ///
    /// # Errors
    /// 404.
    pub async fn delete(&self, name: &str) -> Result<(), ApiError> {
        let _one = self.changes.lock().await;
        let proxy = self.proxies().remove(name).ok_or_else(ApiError::no_proxy)?;
        proxy.stop().await;
        Ok(())
    }

    /// Adds a toxic.
    ///
    /// # Errors
    /// 400, 404, 409 as the real server, and our own bounds.
    pub async fn add_toxic(&self, proxy: &str, body: &Body) -> Result<Value, ApiError> {
        let _one = self.changes.lock().await;
        let proxy = self.proxy(proxy)?;
        let stream_text = body.text("stream")?.unwrap_or_else(|| "downstream".to_owned());
        let kind = body.text("type")?.unwrap_or_default();
        let name = body.text("name")?;
        let stream = Stream::try_from(stream_text.clone()).map_err(|_| ApiError::bad(STREAM_ERROR))?;
        let Some(attributes) = attribute_names(&kind) else { return Err(ApiError::bad("invalid toxic type")) };
        let name = name.filter(|n| !n.is_empty()).unwrap_or_else(|| format!("{kind}_{stream_text}"));
        check_name(&name)?;
        {
            let state = proxy.state();
            if state.toxics.iter().any(|t| t.name == name) {
                return Err(ApiError::new(409, "toxic already exists"));
            }
            if state.toxics.len() >= TOXICS_MAX {
                return Err(ApiError::bad(format!("no more than {TOXICS_MAX} toxics on a proxy")));
            }
        }
        let spec = Spec::parse(&kind, body.get("attributes"))?;
        if let Some(stray) = attributes.iter().find(|a| body.get(a).is_some()) {
            return Err(ApiError::bad(format!("{stray} belongs into \"attributes\"")));
        }
        let toxicity = body.share("toxicity")?.unwrap_or(1.0);
        check_toxic(&spec, stream, toxicity)?;
        let lease = self.live_lease(body)?;
        let expires = body.whole("expires_in_ms")?.map(|ms| Instant::now() + Duration::from_millis(ms.min(86_400_000)));
        let id = self.next_toxic.fetch_add(1, Relaxed);
        let entry = Entry { id, name, stream, stream_text, toxicity, spec, lease, expires };
        let shown = entry.json();
        proxy.change_toxics(|toxics| toxics.push(entry)).await?;
        self.wake.notify_one();
        Ok(shown)
    }

    /// Changes attributes and toxicity of a toxic: all or nothing.
    ///
    /// # Errors
    /// 400, 404.
    pub async fn update_toxic(&self, proxy: &str, toxic: &str, body: &Body) -> Result<Value, ApiError> {
        let _one = self.changes.lock().await;
        let proxy = self.proxy(proxy)?;
        let mut entry = find(&proxy, toxic)?;
        entry.spec = entry.spec.merge(body.get("attributes"))?;
        entry.toxicity = body.share("toxicity")?.unwrap_or(entry.toxicity);
        check_toxic(&entry.spec, entry.stream, entry.toxicity)?;
        if let Some(lease) = self.live_lease(body)? {
            entry.lease = Some(lease);
        }
        if let Some(ms) = body.whole("expires_in_ms")? {
            entry.expires = Some(Instant::now() + Duration::from_millis(ms.min(86_400_000)));
        }
        let shown = entry.json();
        proxy
            .change_toxics(|toxics| {
                if let Some(old) = toxics.iter_mut().find(|t| t.id == entry.id) {
                    *old = entry;
                }
            })
            .await?;
        self.wake.notify_one();
        Ok(shown)
    }

    /// Removes a toxic.
    ///
    /// # Errors
    /// 404.
    pub async fn remove_toxic(&self, proxy: &str, toxic: &str) -> Result<(), ApiError> {
        let _one = self.changes.lock().await;
        let proxy = self.proxy(proxy)?;
        let entry = find(&proxy, toxic)?;
        proxy.change_toxics(|toxics| toxics.retain(|t| t.id != entry.id)).await
    }

    /// One toxic.
    ///
    /// # Errors
    /// 404.
    pub fn toxic(&self, proxy: &str, toxic: &str) -> Result<Value, ApiError> {
        Ok(find(&*self.proxy(proxy)?, toxic)?.json())
    }

    /// Makes many proxies. What was made before a failure stays, as in the real server.
    ///
    /// # Errors
    /// With the proxies made so far.
    pub async fn populate(&self, input: Value) -> Result<Vec<Arc<Proxy>>, (ApiError, Vec<Arc<Proxy>>)> {
        let _one = self.changes.lock().await;
        let none = |error: ApiError| (error, Vec::new());
        let list = match input {
            Value::Array(list) => list,
            Value::Null => Vec::new(),
            _ => return Err(none(ApiError::body("a list was expected"))),
        };
        let mut wanted = Vec::new();
        for (n, value) in list.into_iter().enumerate() {
            let body = Body::from_value(value).map_err(none)?;
            let (name, upstream) = required(&body, &format!(" at proxy {}", n + 1)).map_err(none)?;
            wanted.push((name, upstream, body));
        }
        let mut made = Vec::new();
        for (name, upstream, body) in wanted {
            match self.put(name, upstream, &body).await {
                Ok(proxy) => made.push(proxy),
                Err(error) => return Err((error, made)),
            }
        }
        Ok(made)
    }

    /// Leaves an equal proxy alone, replaces another one of that name.
    async fn put(&self, name: String, upstream: String, body: &Body) -> Result<Arc<Proxy>, ApiError> {
        if let Ok(there) = self.proxy(&name) {
            let listen = self.listen_text(body.text("listen")?)?;
            let addr = resolve_listen(&listen, self.reach.listen_anywhere).await?;
            let same_listen = there.state().listen == listen || there.bound() == Some(addr);
            if same_listen && there.upstream() == upstream {
                return Ok(there);
            }
            there.stop().await;
            self.proxies().remove(&name);
        }
        self.make(name, upstream, body).await
    }

    /// Enables every proxy and removes every toxic.
    ///
    /// # Errors
    /// 500 with the first that could not be enabled; the others are reset all the same.
    pub async fn reset(&self) -> Result<(), ApiError> {
        let _one = self.changes.lock().await;
        let mut failed = None;
        for proxy in self.all() {
            let mut result = proxy.change_toxics(Vec::clear).await;
            if !proxy.state().enabled {
                result = result.and(self.enable_again(&proxy).await);
            }
            failed = failed.or(result.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// The proxies as the API lists them.
    #[must_use]
    pub fn json(&self) -> Value {
        Value::Object(self.all().into_iter().map(|p| (p.name.clone(), p.json())).collect())
    }

    /// The state of the leases.
    #[must_use]
    pub fn leases_json(&self) -> Value {
        json!({ "leases": self.leases().list() })
    }
}

fn find(proxy: &Proxy, toxic: &str) -> Result<Entry, ApiError> {
    proxy.state().toxics.iter().find(|t| t.name == toxic).cloned().ok_or_else(ApiError::no_toxic)
}

fn required(body: &Body, place: &str) -> Result<(String, String), ApiError> {
    // Wrong types are found before missing fields.
    body.text("listen")?;
    body.flag("enabled")?;
    let field = |name: &str| {
        let text = body.text(name)?.filter(|text| !text.is_empty());
        text.ok_or_else(|| ApiError::bad(format!("missing required field: {name}{place}")))
    };
    Ok((field("name")?, field("upstream")?))
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if name.len() > NAME_MAX_BYTES {
        return Err(ApiError::bad(format!("a name has at most {NAME_MAX_BYTES} bytes")));
    }
    if name.contains('/') || name.chars().any(char::is_control) {
        return Err(ApiError::bad("a name with a slash or a control character could never be addressed"));
    }
    Ok(())
}

fn check_toxic(spec: &Spec, stream: Stream, toxicity: f32) -> Result<(), ApiError> {
    use crate::fault::toxic::cut_after::After;
    if *spec == Spec::ConnectBlackhole && toxicity < 1.0 {
        return Err(ApiError::bad("connect_blackhole acts on all connects: toxicity must be 1"));
    }
    if matches!(spec, Spec::CutAfter { after: After::Events(_), .. }) && stream == Stream::Upstream {
        return Err(ApiError::bad("events are counted downstream only"));
    }
    Ok(())
}
