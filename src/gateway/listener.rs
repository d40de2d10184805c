//! The accept loop of both listeners: bounded connections, a limit for slow heads, a limit for clients that do not read,
//! graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::http::{Answer, REQUEST_ID, Refusal, set};
use super::lanes::Lanes;
use super::peer::Peer;

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
    /// Threads that serve, where the listener has its own.
    pub lanes: usize,
    /// Request bodies held at one moment, all requests together; a request that would exceed it is refused before its upload.
    pub bodies_bytes: usize,
}

impl Default for ListenerLimits {
    fn default() -> ListenerLimits {
        ListenerLimits {
            connections_max: 8192,
            head: Duration::from_secs(100),
            write_stall: Duration::from_secs(30),
            buffer_bytes: 128 * 1024,
            lanes: super::lanes::fitting(),
            bodies_bytes: super::intake::BODIES_BYTES,
        }
    }
}

/// The answer to a connection too many, written without reading what it wants.
fn busy(id: &str) -> Vec<u8> {
    let text = "Too many connections are open; try again in a moment.";
    let body = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "too_busy", text).body(id);
    let mut all = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n{REQUEST_ID}: {id}\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    all.extend_from_slice(&body);
    all
}

/// Serves until `stop` turns true, then lets open connections finish their current answer. Returns when all are closed.
/// `ids` names requests; every answer carries its request's id. `lanes`: the threads for its connections; none: where this runs.
pub async fn serve<F, Fut, I>(
    listener: TcpListener,
    lanes: Option<Arc<Lanes>>,
    limits: ListenerLimits,
    mut stop: watch::Receiver<bool>,
    open: Gauge,
    ids: I,
    handler: F,
) where
    F: Fn(Request<Incoming>, Arc<AtomicBool>, String) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
    I: Fn() -> String + Clone + Send + Sync + 'static,
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
            let _ = stream.try_write(&busy(&ids()));
            continue;
        };
        let served = (handler.clone(), ids.clone());
        let (builder, open, stop) = (builder.clone(), open.clone(), stop.clone());
        let lane = lanes.as_ref().and_then(|lanes| lanes.place());
        let on = lane.as_ref().map_or_else(Handle::current, |lane| lane.handle().clone());
        // The reactor of the thread that will serve it must know it.
        let Ok(stream) = stream.into_std() else { continue };
        on.spawn(async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            connection(stream, &builder, limits.write_stall, stop, Open::new(open), served).await;
            drop((lane, place));
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

/// A connection, counted as long as this lives: also if whoever serves it panics, or its thread ends.
struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Open {
        gauge.inc();
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Serves one connection to its end.
async fn connection<F, Fut, I>(
    stream: TcpStream,
    builder: &Builder,
    write_stall: Duration,
    mut stop: watch::Receiver<bool>,
    _open: Open,
    (handler, ids): (F, I),
) where
    F: Fn(Request<Incoming>, Arc<AtomicBool>, String) -> Fut,
    Fut: Future<Output = Answer>,
    I: Fn() -> String,
{
    // Small writes (one event each) must not wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let stalled = Arc::new(AtomicBool::new(false));
    let peer = Peer::new(stream);
    let io = TokioIo::new(peer.io(write_stall, Arc::clone(&stalled)));
    let service = service_fn(|request| {
        let id = ids();
        let answer = AssertUnwindSafe(handler(request, Arc::clone(&stalled), id.clone())).catch_unwind();
        async move {
            let mut answer = answer.await.unwrap_or_else(|_| own_fault(&id));
            set(answer.headers_mut(), REQUEST_ID, &id);
            Ok::<_, Infallible>(answer)
        }
    });
    // An error here is the client's connection failing; whoever was served has been told by a dropped body.
    let ended = {
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        let mut left = std::pin::pin!(peer.left());
        tokio::select! {
            biased;
            ended = connection.as_mut() => Some(ended),
            () = left.as_mut() => None,
            () = stopped(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => Some(ended),
                    () = left.as_mut() => None,
                }
            }
        }
    };
    if let Some(ended) = ended {
        peer.linger(ended.is_err()).await;
    }
}

/// A bug: the handler panicked. Its client hears so; everything it held has been released by dropping it.
fn own_fault(id: &str) -> Answer {
    tracing::error!(request = id, "a handler panicked");
    Refusal::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "gateway_error",
        "gateway_fault",
        "The gateway lost this request through a fault of its own; send it again, and report the request id.",
    )
    .answer(id)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_answers_honestly_and_the_listener_goes_on() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let panics = |_: Request<Incoming>, _, _| async { panic!("as the test wants it") };
        let ids = || "req-7".to_owned();
        tokio::spawn(serve(listener, None, ListenerLimits::default(), stopped, Gauge::default(), ids, panics));
        for _ in 0..2 {
            let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).await.unwrap();
            assert!(said.starts_with("HTTP/1.1 500") && said.contains("gateway_fault"), "{said}");
            assert!(
                said.contains("x-llmfo-request-id: req-7\r\n") && said.contains(r#""request_id":"req-7""#),
                "{said}"
            );
        }
    }

    #[test]
    fn the_busy_answer_counts_its_own_bytes() {
        let text = String::from_utf8(busy("req-7")).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["error"]["code"], &body["error"]["request_id"]), (&"too_busy".into(), &"req-7".into()));
    }
}
