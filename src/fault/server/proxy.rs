//! One proxy: its configuration, its listener, and what it tells its connections. Changes are made one at a time (the
//! server's `changes` lock) and each step is bounded, so that no call can hang.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::conn::{Control, ToxicSet};
use super::error::ApiError;
use super::listener::{self, Accept, BACKLOG, Command};
use super::live::Live;
use super::waiting::Waiting;
use crate::fault::api::Stream;
use crate::fault::toxic::Spec;
use crate::fault::toxic::chain::Active;

/// How long a call waits for the connections and the listener to have followed.
const FOLLOW_MAX: Duration = Duration::from_millis(800);

/// A toxic on a proxy.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Never used twice in a server.
    pub id: u64,
    /// Unique in the proxy.
    pub name: String,
    /// Direction.
    pub stream: Stream,
    /// Direction as it was written.
    pub stream_text: String,
    /// Share of connections.
    pub toxicity: f32,
    /// What it does.
    pub spec: Spec,
    /// Removed when this lease ends.
    pub lease: Option<String>,
    /// Removed then.
    pub expires: Option<Instant>,
}

impl Entry {
    /// As the API shows it.
    #[must_use]
    pub fn json(&self) -> Value {
        // Through decimal text, so that 0.3 stays 0.3 and does not become 0.30000001192092896.
        let toxicity = self.toxicity.to_string().parse::<f64>().unwrap_or(1.0);
        let toxicity = if toxicity.fract() == 0.0 { json!(toxicity as u64) } else { json!(toxicity) };
        json!({
            "attributes": self.spec.attributes(),
            "name": self.name,
            "type": self.spec.kind(),
            "stream": self.stream_text,
            "toxicity": toxicity,
        })
    }
}

/// A listener: its address and the way to tell it something.
pub type Listening = (SocketAddr, mpsc::Sender<Command>);

/// The changeable part of a proxy.
#[derive(Debug)]
pub struct State {
    /// As shown: resolved once it has been bound.
    pub listen: String,
    /// Accepting.
    pub enabled: bool,
    /// In order of creation.
    pub toxics: Vec<Entry>,
    /// The lease under which it was disabled.
    pub disabled_by: Option<String>,
    listener: Option<Listening>,
    epoch: u64,
    /// Ends when no connection uses the present toxics any more.
    alive: mpsc::Receiver<()>,
}

/// What all proxies of a server share.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Where the data path runs.
    pub data: Handle,
    /// Seed of the server.
    pub seed: u64,
    /// Number of the next connection.
    pub next_conn: Arc<AtomicU64>,
    /// Who waits in front of black holes.
    pub waiting: Arc<Waiting>,
    /// Connections per proxy.
    pub connections_max: usize,
}

/// A proxy.
#[derive(Debug)]
pub struct Proxy {
    /// Unique.
    pub name: String,
    /// Live counters.
    pub live: Arc<Live>,
    state: Mutex<State>,
    upstream: Arc<Mutex<String>>,
    control: watch::Sender<Control>,
    permits: Arc<Semaphore>,
    ground: Ground,
}

fn toxic_set(toxics: &[Entry]) -> (Arc<ToxicSet>, mpsc::Receiver<()>) {
    let (sender, alive) = mpsc::channel(1);
    let of = |stream: Stream| {
        let wanted = toxics.iter().filter(move |t| t.stream == stream);
        wanted.map(|t| Active { id: t.id, spec: t.spec, toxicity: t.toxicity }).collect()
    };
    let armed = toxics.iter().any(|t| matches!(t.spec, Spec::ResetPeer { .. }));
    (Arc::new(ToxicSet { up: of(Stream::Upstream), down: of(Stream::Downstream), armed, alive: sender }), alive)
}

impl Proxy {
    /// A disabled one.
    #[must_use]
    pub fn new(name: String, listen: String, upstream: String, ground: Ground) -> Proxy {
        let (set, alive) = toxic_set(&[]);
        let state =
            State { listen, enabled: false, toxics: Vec::new(), disabled_by: None, listener: None, epoch: 0, alive };
        Proxy {
            name,
            live: Arc::default(),
            state: Mutex::new(state),
            upstream: Arc::new(Mutex::new(upstream)),
            control: watch::channel(Control { epoch: 0, set }).0,
            permits: Arc::new(Semaphore::new(ground.connections_max)),
            ground,
        }
    }

    /// Its state. Never held across a wait.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `host:port`.
    #[must_use]
    pub fn upstream(&self) -> String {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where to dial from now on.
    pub fn set_upstream(&self, text: String) {
        self.live.changed();
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// The address it is bound to now.
    #[must_use]
    pub fn bound(&self) -> Option<SocketAddr> {
        self.state().listener.as_ref().map(|(addr, _)| *addr)
    }

    /// As the API shows it.
    #[must_use]
    pub fn json(&self) -> Value {
        let upstream = self.upstream();
        let state = self.state();
        let toxics = self.ordered(&state);
        json!({
            "name": self.name,
            "listen": state.listen,
            "upstream": upstream,
            "enabled": state.enabled,
            "toxics": toxics,
        })
    }

    /// The toxics, upstream ones first.
    #[must_use]
    pub fn toxics_json(&self) -> Vec<Value> {
        let state = self.state();
        self.ordered(&state)
    }

    fn ordered(&self, state: &State) -> Vec<Value> {
        let of = |stream: Stream| state.toxics.iter().filter(move |t| t.stream == stream).map(Entry::json);
        of(Stream::Upstream).chain(of(Stream::Downstream)).collect()
    }

    /// Binds `addr` and starts to accept. A black hole among the toxics acts from the start.
    ///
    /// # Errors
    /// 500 when the address cannot be bound; nothing has changed then.
    pub async fn start(&self, addr: SocketAddr) -> Result<(), ApiError> {
        let refused = |e: std::io::Error| {
            let why = match e.kind() {
                std::io::ErrorKind::AddrInUse => "bind: address already in use".to_owned(),
                _ => e.to_string(),
            };
            ApiError::new(500, format!("listen tcp {addr}: {why}"))
        };
        let listener = bind(addr).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let _entered = self.ground.data.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused)?;
        let (commands, receiver) = mpsc::channel(4);
        let accept = Accept {
            listener,
            addr: bound,
            upstream: self.upstream.clone(),
            control: self.control.subscribe(),
            live: self.live.clone(),
            permits: self.permits.clone(),
            seed: self.ground.seed,
            next_conn: self.ground.next_conn.clone(),
            waiting: Arc::clone(&self.ground.waiting),
        };
        self.ground.data.spawn(listener::run(accept, receiver));
        let mut state = self.state();
        state.listener = Some((bound, commands));
        state.listen = bound.to_string();
        state.enabled = true;
        state.disabled_by = None;
        drop(state);
        self.live.changed();
        Ok(())
    }

    /// Closes the listener and all connections; the toxics stay.
    pub async fn stop(&self) {
        self.close_listener().await;
        self.close_connections().await;
    }

    /// Closes the listener alone.
    pub async fn close_listener(&self) {
        self.state().enabled = false;
        self.live.changed();
        Proxy::stop_listener(self.take_listener()).await;
    }

    /// Takes the listener out; it goes on accepting.
    pub fn take_listener(&self) -> Option<Listening> {
        self.state().listener.take()
    }

    /// Puts one back.
    pub fn put_listener(&self, listener: Option<Listening>) {
        self.state().listener = listener;
    }

    /// Closes a listener that was taken out.
    pub async fn stop_listener(listener: Option<Listening>) {
        if let Some((_, commands)) = listener {
            let (done, stopped) = oneshot::channel();
            let stop = async {
                let _ = commands.send(Command::Stop(done)).await;
                let _ = stopped.await;
            };
            let _ = timeout(FOLLOW_MAX, stop).await;
        }
    }

    /// Ends the connections of now; later ones are not touched.
    pub async fn close_connections(&self) {
        self.state().epoch += 1;
        self.publish().await;
    }

    /// Tells the connections what holds now, and waits (bounded) until they have followed.
    async fn publish(&self) {
        let mut before = {
            let mut state = self.state();
            let (set, alive) = toxic_set(&state.toxics);
            drop(self.control.send_replace(Control { epoch: state.epoch, set }));
            std::mem::replace(&mut state.alive, alive)
        };
        let _ = timeout(FOLLOW_MAX, before.recv()).await;
    }

    /// Puts the toxics of `change` in force, the black hole included.
    ///
    /// # Errors
    /// 500 when this kernel makes no black hole; the toxics are as before then.
    pub async fn change_toxics(&self, change: impl FnOnce(&mut Vec<Entry>)) -> Result<(), ApiError> {
        let before = {
            let mut state = self.state();
            let before = state.toxics.clone();
            change(&mut state.toxics);
            before
        };
        self.live.changed();
        if let Err(why) = self.follow_black_hole().await {
            self.state().toxics = before;
            // It may have been made after we gave up waiting.
            let _ = self.follow_black_hole().await;
            return Err(ApiError::new(500, format!("connect_blackhole does not work here: {why}")));
        }
        self.publish().await;
        Ok(())
    }

    /// Brings the listener to what the toxics say.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub async fn follow_black_hole(&self) -> Result<(), String> {
        let (on, commands) = {
            let state = self.state();
            let on = state.toxics.iter().any(|t| t.spec == Spec::ConnectBlackhole);
            let Some((_, commands)) = &state.listener else { return Ok(()) };
            (on, commands.clone())
        };
        let (done, answer) = oneshot::channel();
        let ask = async {
            commands.send(Command::BlackHole(on, done)).await.map_err(|_| "the listener is gone".to_owned())?;
            answer.await.map_err(|_| "the listener is gone".to_owned())?
        };
        timeout(FOLLOW_MAX, ask).await.unwrap_or_else(|_| Err("the listener did not answer in time".to_owned()))
    }
}

fn bind(addr: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A port whose last connections are in TIME_WAIT can be bound again: a proxy that is enabled keeps its port.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
