//! The accept loop of both listeners: bounded connections, a limit for slow heads, a limit for clients that do not read,
//! graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;

use super::http::{Answer, refuse};

/// How a listener treats its clients.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Connections at one moment; more are told to come back and closed.
    pub connections_max: usize,
    /// Time for the head of a request; also how long an idle connection is kept. Longer than client libraries keep theirs
    /// (Go's default is 90 s), so that it is the client who closes and no request runs into a closing connection.
    pub head: Duration,
    /// A client that takes nothing of what is written to it for so long is given up.
    pub write_stall: Duration,
    /// Bytes buffered per connection before the provider is no longer read.
    pub buffer_bytes: usize,
}

impl Default for ListenerLimits {
    fn default() -> ListenerLimits {
        ListenerLimits {
            connections_max: 8192,
            head: Duration::from_secs(100),
            write_stall: Duration::from_secs(30),
            buffer_bytes: 128 * 1024,
        }
    }
}

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 128\r\n\r\n\
{\"error\":{\"message\":\"Too many connections are open; try again in a moment.\",\
\"type\":\"overloaded\",\"param\":null,\"code\":\"too_busy\"}}";

/// Serves until `stop` turns true, then lets open connections finish their current answer. Returns when all are closed.
pub async fn serve<F, Fut>(
    listener: TcpListener,
    limits: ListenerLimits,
    mut stop: watch::Receiver<bool>,
    open: Gauge,
    handler: F,
) where
    F: Fn(Request<Incoming>, Arc<AtomicBool>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(limits.buffer_bytes);
    let mut complained = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of descriptors, most likely: existing connections go on, and closing ones make room.
                if !complained {
                    complained = true;
                    tracing::error!(error = %e, "cannot accept connections");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        complained = false;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            let _ = stream.try_write(BUSY);
            continue;
        };
        // Small writes (one event each) must not wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let stalled = Arc::new(AtomicBool::new(false));
        let io = TokioIo::new(StallGuard::new(stream, limits.write_stall, Arc::clone(&stalled)));
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let answer = AssertUnwindSafe(handler(request, Arc::clone(&stalled))).catch_unwind();
            async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|_| own_fault())) }
        });
        let connection = builder.serve_connection(io, service);
        let mut stop = stop.clone();
        let open = open.clone();
        tokio::spawn(async move {
            open.inc();
            let mut connection = std::pin::pin!(connection);
            // An error here is the client's connection failing; whoever was served has been told by a dropped body.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            open.dec();
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

/// A bug: the handler panicked. Its client hears so; everything it held has been released by dropping it.
fn own_fault() -> Answer {
    tracing::error!("a handler panicked");
    refuse(
        StatusCode::INTERNAL_SERVER_ERROR,
        "gateway_error",
        "gateway_fault",
        "The gateway lost this request through a fault of its own.",
    )
}

/// Waits for the stop; also if whoever could give it is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|s| *s).await;
}

/// Binds a listener.
///
/// # Errors
/// As the system says.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// A connection that fails when its client takes nothing for too long. Nothing else would notice: a body that is not polled
/// cannot keep time.
struct StallGuard {
    inner: TcpStream,
    limit: Duration,
    stalled: Arc<AtomicBool>,
    since: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    fn new(inner: TcpStream, limit: Duration, stalled: Arc<AtomicBool>) -> StallGuard {
        StallGuard { inner, limit, stalled, since: None }
    }

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

impl AsyncRead for StallGuard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_answers_honestly_and_the_listener_goes_on() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let panics = |_: Request<Incoming>, _| async { panic!("as the test wants it") };
        tokio::spawn(serve(listener, ListenerLimits::default(), stopped, Gauge::default(), panics));
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).await.unwrap();
            assert!(said.starts_with("HTTP/1.1 500") && said.contains("gateway_fault"), "{said}");
        }
    }

    #[test]
    fn the_busy_answer_counts_its_own_bytes() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
