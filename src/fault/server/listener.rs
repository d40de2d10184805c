//! The accept loop of one proxy. It only accepts: every connection dials for itself, so that an upstream which hangs keeps
//! nobody else waiting. It also makes the black hole for new connects.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::sleep;

use super::blackhole::BlackHole;
use super::conn::{self, Conn, Control};
use super::live::Live;
use super::waiting::Waiting;

/// Pending connects of a live listener.
pub const BACKLOG: i32 = 1024;
/// After a failed accept (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the API tells the loop.
#[derive(Debug)]
pub enum Command {
    /// Let new connects time out, or in again. The answer says whether it works here.
    BlackHole(bool, oneshot::Sender<Result<(), String>>),
    /// Close the listener. Open connections are ended by [`Control`].
    Stop(oneshot::Sender<()>),
}

/// What the loop needs.
#[derive(Debug)]
pub struct Accept {
    /// Bound and listening.
    pub listener: TcpListener,
    /// Its address.
    pub addr: SocketAddr,
    /// Where to dial; may change while it runs.
    pub upstream: Arc<Mutex<String>>,
    /// From the API, for the connections.
    pub control: watch::Receiver<Control>,
    /// Counters.
    pub live: Arc<Live>,
    /// Connections at most; further ones wait in the backlog.
    pub permits: Arc<Semaphore>,
    /// Seed of the server.
    pub seed: u64,
    /// Number of the next connection in the server.
    pub next_conn: Arc<AtomicU64>,
    /// Who waits in front of black holes.
    pub waiting: Arc<Waiting>,
}

/// Runs until told to stop, or until the API is gone.
pub async fn run(accept: Accept, mut commands: mpsc::Receiver<Command>) {
    let mut hole: Option<BlackHole> = None;
    loop {
        let open = hole.is_none();
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                None => return,
                Some(Command::Stop(done)) => {
                    if let Some(hole) = &hole {
                        accept.waiting.forget(hole.addr);
                    }
                    drop((hole, accept));
                    let _ = done.send(());
                    return;
                }
                Some(Command::BlackHole(on, done)) => {
                    let _ = done.send(set_hole(&accept, &mut hole, on).await);
                }
            },
            accepted = next(&accept), if open => match accepted {
                Ok(client) => spawn(&accept, client),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

type Accepted = (TcpStream, tokio::sync::OwnedSemaphorePermit);

async fn next(accept: &Accept) -> std::io::Result<Accepted> {
    let permit = accept.permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (client, _) = accept.listener.accept().await?;
    Ok((client, permit))
}

fn spawn(accept: &Accept, (client, permit): Accepted) {
    accept.live.accepted.fetch_add(1, Relaxed);
    let number = accept.next_conn.fetch_add(1, Relaxed);
    let conn = Conn {
        client,
        upstream: accept.upstream.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        control: accept.control.clone(),
        live: accept.live.clone(),
        seed: crate::units::Rng::new(accept.seed ^ number).next_u64(),
    };
    tokio::spawn(async move {
        conn::run(conn).await;
        drop(permit);
    });
}

async fn set_hole(accept: &Accept, hole: &mut Option<BlackHole>, on: bool) -> Result<(), String> {
    match (hole.take(), on) {
        (None, true) => {
            // Whoever has connected already is served.
            while let Ok(Ok(accepted)) = tokio::time::timeout(Duration::from_millis(1), next(accept)).await {
                spawn(accept, accepted);
            }
            match BlackHole::open(&accept.listener, accept.addr).await {
                Ok(made) => {
                    accept.waiting.watch(made.addr, &accept.live);
                    *hole = Some(made);
                }
                Err(why) => {
                    let _ = rustix::net::listen(&accept.listener, BACKLOG);
                    return Err(why);
                }
            }
        }
        (Some(made), false) => {
            accept.waiting.forget(made.addr);
            let waited = made.close(&accept.listener, BACKLOG).await;
            for client in waited {
                if let Ok(permit) = accept.permits.clone().try_acquire_owned() {
                    spawn(accept, (client, permit));
                }
            }
        }
        (same, _) => *hole = same,
    }
    Ok(())
}
