//! The embedded Toxiproxy-compatible server. The API has a thread and a runtime of its own, so that a saturated data path
//! never keeps anybody from healing.

pub mod address;
pub mod blackhole;
pub mod body;
pub mod conn;
pub mod error;
pub mod handlers;
pub mod heal;
pub mod lease;
pub mod listener;
pub mod live;
pub mod proxy;
pub mod syn_sent;
pub mod table;
pub mod waiting;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::error::{Expected, Result};
use proxy::Ground;
use table::{Reach, Table};

/// How long an orderly end may take.
const END_MAX: Duration = Duration::from_secs(2);

/// Settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is allowed beyond loopback.
    pub reach: Reach,
    /// For everything drawn: jitter, which connections a toxicity below 1 affects.
    pub seed: u64,
    /// Connections per proxy; further ones wait in the backlog.
    pub connections_max: usize,
    /// Threads of the data path.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { reach: Reach::default(), seed: 0, connections_max: 8192, threads: 2 }
    }
}

/// A running server. Dropping it stops it as well, without waiting.
#[derive(Debug)]
pub struct Running {
    /// Where the API listens.
    pub addr: SocketAddr,
    stop: watch::Sender<bool>,
    ended: Mutex<Receiver<()>>,
    table: Arc<Table>,
    api: tokio::runtime::Handle,
}

/// Starts a server; it is reachable when this returns. May be called inside or outside a runtime.
///
/// # Errors
/// The address cannot be bound, or threads cannot be started.
pub fn start(listen: SocketAddr, options: Options) -> Result<Running> {
    let could_not = |what: &str, e: std::io::Error| {
        let hint = match e.kind() {
            std::io::ErrorKind::AddrInUse => "choose another --port, or end what listens there (ss -ltnp)",
            _ => "",
        };
        Expected::could_not(format!("{what}: {e}"), hint)
    };
    let at = format!("the fault server cannot listen on {listen}");
    let listener = TcpListener::bind(listen).map_err(|e| could_not(&at, e))?;
    listener.set_nonblocking(true).map_err(|e| could_not(&at, e))?;
    let addr = listener.local_addr().map_err(|e| could_not(&at, e))?;

    let data = Builder::new_multi_thread()
        .worker_threads(options.threads.clamp(1, 16))
        .thread_name("fault-data")
        .enable_all()
        .build()
        .map_err(|e| could_not("the threads of the fault server cannot be started", e))?;
    let api = match Builder::new_current_thread().enable_all().build() {
        Ok(api) => api,
        Err(e) => {
            data.shutdown_background();
            return Err(could_not("the threads of the fault server cannot be started", e));
        }
    };
    let ground = Ground {
        data: data.handle().clone(),
        seed: options.seed,
        next_conn: Arc::new(AtomicU64::new(1)),
        waiting: Arc::default(),
        connections_max: options.connections_max.max(1),
    };
    let table = Arc::new(Table::new(ground, options.reach));
    let (stop, mut stopped) = watch::channel(false);
    let (end, ended) = channel();
    let handle = api.handle().clone();
    let shared = table.clone();
    let body = move || {
        api.block_on(async move {
            let healing = tokio::spawn(heal::run(shared.clone()));
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                let app = axum::Router::new().fallback(handlers::handle).with_state(shared);
                tokio::select! {
                    _ = axum::serve(listener, app).into_future() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            }
            healing.abort();
        });
        api.shutdown_timeout(END_MAX / 4);
        data.shutdown_timeout(END_MAX / 4);
        let _ = end.send(());
    };
    let thread = std::thread::Builder::new().name("fault-api".to_owned());
    thread.spawn(body).map_err(|e| could_not("the threads of the fault server cannot be started", e))?;
    Ok(Running { addr, stop, ended: Mutex::new(ended), table, api: handle })
}

impl Running {
    /// `http://ip:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Makes the proxies of a list, as `POST /populate` does. Not to be called inside a runtime.
    ///
    /// # Errors
    /// What the API would say.
    pub fn populate(&self, list: Value) -> Result<usize> {
        let table = self.table.clone();
        let (sender, receiver) = channel();
        self.api.spawn(async move {
            let _ = sender.send(table.populate(list).await.map(|made| made.len()).map_err(|(error, _)| error.text));
        });
        match receiver.recv_timeout(Duration::from_secs(10)) {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(why)) => Err(Expected::usage(format!("the list of proxies was refused: {why}"), "mend the file")),
            Err(_) => Err(Expected::could_not("the fault server did not answer in time", "")),
        }
    }

    /// Stops: listeners closed, connections ended. Waits (bounded) until the ports are free.
    pub fn shutdown(self) {
        let _ = self.stop.send(true);
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(END_MAX);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}
