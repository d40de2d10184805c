//! The client's end of a connection: its bytes for hyper, and beside hyper a watch for its leaving.
//!
//! hyper looks for the end of a connection by reading on. It does not while bytes are unread (a stray line end behind the
//! body, a pipelined request): a client that left then would be served to the end, at a provider's cost. So the socket is
//! shared, and whoever serves the connection waits for [`Peer::left`] as well.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// What [`Peer::left`] waits for. On Linux this one wakes for the peer's close and, as urgent data is not asked for at the
/// socket, for nothing else: unread bytes do not make a busy loop of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOSE: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOSE: Interest = Interest::READABLE;
/// Distance of two looks where the wait cannot tell a close from unread bytes.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long a close is hyper's to find.
const HYPER_FIRST: Duration = Duration::from_millis(200);
/// What is still read (and thrown away) of a client after the last answer, and how long, so that it reads that answer: an
/// upload that was refused by its length is the largest case.
const LINGER_BYTES_MAX: usize = 64 << 20;
const LINGER: Duration = Duration::from_secs(1);

/// An accepted connection, shared between hyper's half and whoever watches it.
#[derive(Clone, Debug)]
pub(super) struct Peer(Arc<TcpStream>);

impl Peer {
    pub(super) fn new(stream: TcpStream) -> Peer {
        Peer(Arc::new(stream))
    }

    /// What hyper reads and writes. It fails when the client takes nothing for `write_stall`, and sets `stalled` then.
    pub(super) fn io(&self, write_stall: Duration, stalled: Arc<AtomicBool>) -> PeerIo {
        PeerIo { stream: Arc::clone(&self.0), limit: write_stall, stalled, since: None }
    }

    /// Waits until the client has closed its sending direction, or the connection is gone, whatever is still unread. A close
    /// and a half-close look the same from here; hyper takes both as a client that has left, and so does this, but a moment
    /// later: where hyper sees it too, its way to end stays the one that counts.
    pub(super) async fn left(&self) {
        loop {
            match self.0.ready(CLOSE).await {
                Ok(ready) if !ready.is_read_closed() && !ready.is_error() => tokio::time::sleep(LOOK_AGAIN).await,
                Ok(_) | Err(_) => return tokio::time::sleep(HYPER_FIRST).await,
            }
        }
    }

    /// Closes the direction to the client and reads on for a moment: a socket closed over unread bytes is reset, and a reset
    /// may destroy an answer that is still on its way. `failed`: the connection ended in an error, after which more is to be
    /// expected than what is here already.
    pub(super) async fn linger(&self, failed: bool) {
        let mut scratch = vec![0; 16 * 1024];
        let mut read = match self.0.try_read(&mut scratch) {
            Ok(0) => return,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && failed => 0,
            Err(_) => return,
        };
        let _ = SockRef::from(&*self.0).shutdown(Shutdown::Write);
        let drain = async {
            while read < LINGER_BYTES_MAX && self.0.readable().await.is_ok() {
                match self.0.try_read(&mut scratch) {
                    Ok(0) => return,
                    Ok(n) => read += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(LINGER, drain).await;
    }
}

/// hyper's half of a [`Peer`]. It fails when the client takes nothing for too long. Nothing else would notice: a body that is
/// not polled cannot keep time.
pub(super) struct PeerIo {
    stream: Arc<TcpStream>,
    limit: Duration,
    stalled: Arc<AtomicBool>,
    since: Option<Pin<Box<Sleep>>>,
}

impl PeerIo {
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let limit = self.limit;
        let since = self.since.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if since.as_mut().poll(cx).is_ready() {
            self.stalled.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
        }
        Poll::Pending
    }
}

/// Writes as soon as the socket takes something.
fn write_when_ready(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match write(stream) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

impl AsyncRead for PeerIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for PeerIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = write_when_ready(&self.stream, cx, |s| s.try_write(buf));
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = write_when_ready(&self.stream, cx, |s| s.try_write_vectored(bufs));
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match SockRef::from(&*self.stream).shutdown(Shutdown::Write) {
            // Already gone.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// The moments at which a wait was looked at.
    async fn counting(polls: &AtomicUsize, wait: impl Future<Output = ()>) {
        let mut wait = std::pin::pin!(wait);
        std::future::poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            wait.as_mut().poll(cx)
        })
        .await;
    }

    #[tokio::test]
    async fn unread_bytes_are_neither_a_close_nor_a_busy_loop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let peer = Peer::new(listener.accept().await.unwrap().0);
        client.write_all(&[b'x'; 20_000]).await.unwrap();
        peer.0.readable().await.unwrap();
        let polls = AtomicUsize::new(0);
        let mut left = std::pin::pin!(counting(&polls, peer.left()));
        assert!(tokio::time::timeout(Duration::from_millis(300), left.as_mut()).await.is_err(), "nobody has left");
        // Its begin, the limit of this test, and on other systems a look every quarter of a second.
        assert!(polls.load(Ordering::Relaxed) <= 5, "{polls:?}");
        drop(client);
        tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
    }
}
