//! Listening on loopback: accept loops that end with their owner, and ports that stay free.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{Expected, Result};
use crate::units::Rng;

/// One server of the lab holds so many connections; further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 2_048;
/// Ports are taken from here: below the range from which Linux draws the ports of outgoing connections (32768 and up), so
/// that a port which is free for a moment (a disabled proxy, a gateway not yet started) is not lost to one of those.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// A running accept loop; it and its connections end when this is dropped.
#[derive(Debug)]
pub struct Server {
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Wraps a task that ends with this value.
    #[must_use]
    pub fn of(task: AbortHandle) -> Server {
        Server { task }
    }
}

/// Accepts connections and hands each to `handler`.
pub fn serve_connections<F, Fut>(listener: TcpListener, handler: F) -> Server
where
    F: Fn(TcpStream, SocketAddr) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let accept = async move {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(permit) = room.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let work = handler(stream, peer);
                    connections.spawn(async move {
                        work.await;
                        drop(permit);
                    });
                }
                // Out of file descriptors, most likely: give connections time to end.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    Server::of(tokio::spawn(accept).abort_handle())
}

/// Serves an axum router; ends when the returned value is dropped.
#[must_use]
pub fn serve_router(listener: TcpListener, router: axum::Router) -> Server {
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|stream| {
        // Best effort, see `Conn::new`.
        let _ = stream.set_nodelay(true);
    });
    let task = tokio::spawn(async move {
        // Ends only with its task.
        let _ = axum::serve(listener, router).await;
    });
    Server::of(task.abort_handle())
}

/// Ports of one lab: a block of its own, so that labs that run at the same time never take a port from each other while it
/// is free for a moment. Whoever listens on the first port of a block owns the block; that ends with the process, however it
/// ends.
#[derive(Debug)]
pub struct Ports {
    rest: std::ops::Range<u16>,
    _owner: TcpListener,
}

/// Ports in a block; a lab uses 36.
const BLOCK: u16 = 64;

impl Ports {
    /// Takes a block. `seed` says where the search begins.
    ///
    /// # Errors
    /// Every block is taken.
    pub async fn take(seed: u64) -> Result<Ports> {
        let blocks = (PORTS.end - PORTS.start) / BLOCK;
        let start = Rng::new(seed).below(u64::from(blocks)) as u16;
        for n in 0..blocks {
            let first = PORTS.start + (start + n) % blocks * BLOCK;
            if let Ok(owner) = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).await {
                return Ok(Ports { rest: first + 1..first + BLOCK, _owner: owner });
            }
        }
        Err(no_port("all blocks are taken"))
    }

    /// A listener on a port of the block.
    ///
    /// # Errors
    /// No port is left.
    pub async fn listener(&mut self) -> Result<TcpListener> {
        for port in self.rest.by_ref() {
            // Another program may sit on it.
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                return Ok(listener);
            }
        }
        Err(no_port("the block of this lab is used up"))
    }

    /// A port that is free now, for somebody else to listen on.
    ///
    /// # Errors
    /// No port is left.
    pub async fn free(&mut self) -> Result<SocketAddr> {
        address(&self.listener().await?)
    }
}

fn no_port(why: &str) -> Expected {
    Expected::could_not(
        format!("no free port on 127.0.0.1 between {} and {}: {why}", PORTS.start, PORTS.end),
        "end programs that hold many ports, or other labs, then try again",
    )
}

/// Where a listener listens.
///
/// # Errors
/// The system does not say.
pub fn address(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|e| Expected::could_not(format!("the address of a listener is not known: {e}"), ""))
}
