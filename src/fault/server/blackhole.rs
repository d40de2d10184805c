//! The black hole for new connects. A proxy in user space cannot drop a SYN, but it can make the kernel do so: with a backlog
//! of zero and an accept queue that is full, Linux ignores further SYNs, and the client's connect runs into its own limit as
//! it does against a dead region. Connections that are open go on. When the backlog is back and the queue drained, a client
//! still trying gets in with its next SYN (about one second apart at first).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Own connections that may be needed to fill the queue. Linux takes one with a backlog of zero.
const FILLERS_MAX: usize = 16;
/// A connect to loopback that has not succeeded by then has been ignored.
const IGNORED_AFTER: Duration = Duration::from_millis(60);

/// A black hole in force.
#[derive(Debug)]
pub struct BlackHole {
    /// Where clients run into it.
    pub addr: SocketAddr,
    /// Fill the accept queue.
    fillers: Vec<TcpStream>,
}

impl BlackHole {
    /// Makes the listener's connects time out.
    ///
    /// # Errors
    /// The kernel goes on accepting.
    pub async fn open(listener: &TcpListener, bound: SocketAddr) -> Result<BlackHole, String> {
        let addr = reachable(bound);
        rustix::net::listen(listener, 0).map_err(|e| format!("listen with backlog 0: {e}"))?;
        let mut fillers = Vec::new();
        while fillers.len() < FILLERS_MAX {
            match timeout(IGNORED_AFTER, TcpStream::connect(addr)).await {
                Err(_) => return Ok(BlackHole { addr, fillers }),
                Ok(Ok(stream)) => fillers.push(stream),
                Ok(Err(e)) => return Err(format!("filling the accept queue: {e}")),
            }
        }
        Err("this kernel keeps accepting with a backlog of zero".to_owned())
    }

    /// Lets connects in again. Returns clients that got into the queue meanwhile.
    pub async fn close(self, listener: &TcpListener, backlog: i32) -> Vec<TcpStream> {
        let _ = rustix::net::listen(listener, backlog);
        let own: BTreeSet<SocketAddr> = self.fillers.iter().filter_map(|f| f.local_addr().ok()).collect();
        let mut clients = Vec::new();
        let mut left = own.len();
        // The queue is short: it holds the fillers and whoever slipped in.
        while let Ok(Ok((stream, peer))) = timeout(Duration::from_millis(20), listener.accept()).await {
            if own.contains(&peer) {
                left = left.saturating_sub(1);
            } else {
                clients.push(stream);
            }
            if left == 0 || clients.len() > FILLERS_MAX {
                break;
            }
        }
        clients
    }
}

/// An address at which a wildcard listener can be reached from here.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}
