//! One endpoint's client and its pool.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use super::decode::Decoder;
use super::dial::{self, Tls};
use super::endpoint::Endpoint;
use super::fault::{Fault, FaultKind};
use super::pieces::Pieces;
use super::secret::Secret;
use super::stream::Counted;
use crate::error::{Expected, Result};

/// What is read of a body that nobody wants, to keep its connection.
const RECYCLE_BYTES_MAX: usize = 64 * 1024;
/// How long its end is awaited.
const RECYCLE_WAIT: Duration = Duration::from_secs(1);

/// How idle connections are kept.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Idle connections kept; more are closed.
    pub idle_max: usize,
    /// An idle connection is not used after this. Below the 60 s after which common servers close one.
    pub idle: Duration,
    /// A connection is not used again after this, so that a name that has moved is noticed.
    pub age: Duration,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        PoolLimits { idle_max: 64, idle: Duration::from_secs(30), age: Duration::from_secs(300) }
    }
}

/// The client of one endpoint under one credential. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    host: HeaderValue,
    bearer: Option<HeaderValue>,
    tls: Option<Tls>,
    limits: PoolLimits,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    wire: Wire,
    since: Instant,
}

/// A connection. Dropping it closes the socket at once.
struct Wire {
    sender: SendRequest<Pieces>,
    task: AbortHandle,
    born: Instant,
    read: Arc<AtomicU64>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One call.
#[derive(Clone)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path below the base URL, with a leading slash.
    pub path: String,
    /// Headers to send; `Host`, `User-Agent` and `Authorization` are set by the client and cannot be given here.
    pub headers: HeaderMap,
    /// Body, in pieces, sent with a `Content-Length`.
    pub body: Vec<Bytes>,
}

/// Says where it goes, and nothing of what is sent.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("method", &self.method).field("path", &self.path).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.inner.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    /// A client for this endpoint. `tls` is needed for `https`.
    ///
    /// # Errors
    /// If the endpoint is `https` and no TLS settings are given, or a header cannot hold the host or the secret.
    pub fn new(endpoint: Endpoint, secret: Option<&Secret>, tls: Option<Tls>, limits: PoolLimits) -> Result<Client> {
        if endpoint.tls && tls.is_none() {
            return Err(Expected::usage(format!("{} wants TLS and there is none", endpoint.authority), ""));
        }
        let host = HeaderValue::from_str(&endpoint.authority)
            .map_err(|_| Expected::usage("the host cannot be a header", "write a plain host name"))?;
        let bearer = match secret {
            None => None,
            Some(secret) => {
                Some(secret.bearer().ok_or_else(|| Expected::usage("a credential cannot be a header", ""))?)
            }
        };
        let idle = Mutex::new(Vec::new());
        Ok(Client { inner: Arc::new(Inner { endpoint, host, bearer, tls, limits, idle }) })
    }

    /// Where it dials.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// A connection: an idle one, or a new one. `fresh` demands a new one and closes the idle ones (one of them has just
    /// failed; its siblings are as old). There is no limit of time in here: drop the future to give up.
    ///
    /// # Errors
    /// Why it could not be made.
    pub async fn connect(&self, fresh: bool) -> std::result::Result<Link, Fault> {
        if let Some(wire) = self.inner.checkout(fresh) {
            return Ok(Link { wire, home: Arc::clone(&self.inner), reused: true });
        }
        let stream = dial::dial(&self.inner.endpoint, self.inner.tls.as_ref()).await?;
        let read = Arc::new(AtomicU64::new(0));
        let io = TokioIo::new(Counted { inner: stream, read: Arc::clone(&read) });
        let (sender, connection) = Builder::new().handshake(io).await.map_err(|e| Fault::new(FaultKind::Connect, e))?;
        // The task's end is seen by everyone who needs to: the sender turns closed, the body fails.
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let wire = Wire { sender, task, born: Instant::now(), read };
        Ok(Link { wire, home: Arc::clone(&self.inner), reused: false })
    }

    /// Closes the idle connections: the path to the endpoint has just proved silent, and they are on it too. The next connect
    /// finds out within its own, shorter limit.
    pub fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.inner.lock());
        drop(idle);
    }

    /// Idle connections right now (for tests and the snapshot).
    #[must_use]
    pub fn idle(&self) -> usize {
        self.inner.lock().len()
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checkout(&self, fresh: bool) -> Option<Wire> {
        let mut idle = self.lock();
        if fresh {
            idle.clear();
            return None;
        }
        while let Some(Idle { wire, since }) = idle.pop() {
            if wire.sender.is_ready() && since.elapsed() < self.limits.idle && wire.born.elapsed() < self.limits.age {
                return Some(wire);
            }
        }
        None
    }

    /// Takes a connection back once it is ready for the next request.
    fn give_back(self: &Arc<Self>, mut wire: Wire) {
        if wire.sender.is_closed() || wire.born.elapsed() >= self.limits.age {
            return;
        }
        if wire.sender.is_ready() {
            return self.keep(wire);
        }
        // The connection task has not yet noticed that the answer is over; this takes microseconds.
        let home = Arc::clone(self);
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                if let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(1), wire.sender.ready()).await {
                    home.keep(wire);
                }
            });
        }
    }

    fn keep(&self, wire: Wire) {
        let mut idle = self.lock();
        idle.retain(|i| !i.wire.sender.is_closed() && i.since.elapsed() < self.limits.idle);
        if idle.len() < self.limits.idle_max {
            idle.push(Idle { wire, since: Instant::now() });
        }
    }
}

/// A standing connection, not yet used for this call. Dropping it closes it.
pub struct Link {
    wire: Wire,
    home: Arc<Inner>,
    reused: bool,
}

impl Link {
    /// It had been idle in the pool.
    #[must_use]
    pub fn reused(&self) -> bool {
        self.reused
    }

    /// Sends the call and waits for the head of the answer. Dropping the future closes the connection.
    ///
    /// # Errors
    /// What broke. [`Fault::stale`] says that it was a reused connection and no byte of an answer had come.
    pub async fn send(mut self, call: Call) -> std::result::Result<Reply, Fault> {
        let uri = self.home.endpoint.target(&call.path).map_err(|e| Fault::new(FaultKind::Protocol, e.what))?;
        let mut request = Request::new(Pieces::new(call.body));
        *request.method_mut() = call.method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        *headers = call.headers;
        headers.insert(HOST, self.home.host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(super::USER_AGENT));
        headers.remove(AUTHORIZATION);
        if let Some(bearer) = &self.home.bearer {
            headers.insert(AUTHORIZATION, bearer.clone());
        }
        let before = self.wire.read.load(Ordering::Relaxed);
        match self.wire.sender.send_request(request).await {
            Ok(answer) => {
                let (mut head, incoming) = answer.into_parts();
                let decoder = Decoder::of(&head.headers).map(Box::new);
                if decoder.is_some() {
                    // They spoke about the bytes on the wire.
                    head.headers.remove(CONTENT_ENCODING);
                    head.headers.remove(CONTENT_LENGTH);
                }
                let body = Body { incoming, link: Some(self), ended: false, decoder };
                Ok(Reply { status: head.status, headers: head.headers, body })
            }
            Err(e) => {
                let mut fault = Fault::exchange(&e);
                fault.stale =
                    self.reused && fault.kind == FaultKind::Reset && self.wire.read.load(Ordering::Relaxed) == before;
                Err(fault)
            }
        }
    }
}

/// The head of an answer, and its body to be read.
#[derive(Debug)]
pub struct Reply {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Body,
}

/// A body being read. Read to its end it gives the connection back; dropped before, it closes it.
pub struct Body {
    incoming: Incoming,
    link: Option<Link>,
    ended: bool,
    /// Under a content coding that is decoded here.
    decoder: Option<Box<Decoder>>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Body {
    /// The next bytes, decoded; `None` at a proper end. Trailers are passed over.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::result::Result<Bytes, Fault>>> {
        if self.decoder.is_none() {
            return self.poll_wire(cx);
        }
        loop {
            let Some(decoder) = &mut self.decoder else { return Poll::Ready(None) };
            let fault = match decoder.next() {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Err(fault) => fault,
                Ok(None) => match self.poll_wire(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(data))) => {
                        if let Some(decoder) = &mut self.decoder {
                            decoder.push(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(fault))) => fault,
                    Poll::Ready(None) => match self.decoder.take().map(|decoder| decoder.end()) {
                        None | Some(Ok(())) => return Poll::Ready(None),
                        Some(Err(fault)) => fault,
                    },
                },
            };
            // What follows could not be read.
            self.ended = true;
            self.link = None;
            self.decoder = None;
            return Poll::Ready(Some(Err(fault)));
        }
    }

    /// The next bytes as they came.
    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::result::Result<Bytes, Fault>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            return match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(e))) => {
                    self.ended = true;
                    self.link = None;
                    Poll::Ready(Some(Err(Fault::exchange(&e))))
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    if let Some(Link { wire, home, .. }) = self.link.take() {
                        home.give_back(wire);
                    }
                    Poll::Ready(None)
                }
            };
        }
    }

    /// The next bytes; `None` at a proper end.
    ///
    /// # Errors
    /// What broke.
    pub async fn data(&mut self) -> Option<std::result::Result<Bytes, Fault>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Nothing more of this body is wanted, but its end is near: reads on in the background (at most 64 KiB and one second)
    /// so that the connection can be used again.
    pub fn recycle(mut self) {
        if self.ended || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        tokio::spawn(async move {
            let rest = async {
                let mut read = 0;
                while let Some(Ok(data)) = self.data().await {
                    read += data.len();
                    if read > RECYCLE_BYTES_MAX {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(RECYCLE_WAIT, rest).await;
        });
    }

    /// The whole rest, if it is not longer than `limit` bytes.
    ///
    /// # Errors
    /// What broke; `Ok(Err(..))` holds what was read until the limit was passed, and the connection is closed.
    pub async fn whole(mut self, limit: usize) -> std::result::Result<std::result::Result<Vec<u8>, Vec<u8>>, Fault> {
        let mut all = Vec::new();
        while let Some(data) = self.data().await {
            let data = data?;
            let room = limit - all.len();
            if data.len() > room {
                all.extend_from_slice(data.get(..room).unwrap_or_default());
                return Ok(Err(all));
            }
            all.extend_from_slice(&data);
        }
        Ok(Ok(all))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    fn client(address: std::net::SocketAddr) -> Client {
        let endpoint = Endpoint::new(&format!("http://{address}/v1"), None).unwrap();
        Client::new(endpoint, Some(&Secret::new("sk-1")), None, PoolLimits::default()).unwrap()
    }

    fn call() -> Call {
        Call {
            method: Method::POST,
            path: "/x".into(),
            headers: HeaderMap::new(),
            body: vec![Bytes::from_static(b"{}")],
        }
    }

    async fn read_request(s: &mut TcpStream) -> String {
        let mut got = Vec::new();
        let mut buf = [0; 1024];
        while !got.ends_with(b"{}") {
            let n = s.read(&mut buf).await.unwrap();
            assert!(n > 0, "closed early");
            got.extend_from_slice(&buf[..n]);
        }
        String::from_utf8(got).unwrap()
    }

    /// Waits until a connection is back in the pool.
    async fn until_idle(c: &Client) {
        let back = async {
            while c.idle() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), back).await.unwrap();
    }

    #[tokio::test]
    async fn a_read_answer_gives_its_connection_back_and_fresh_does_not_take_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let c = client(listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut s, _) = listener.accept().await.unwrap();
            let first = read_request(&mut s).await;
            s.write_all(ANSWER).await.unwrap();
            read_request(&mut s).await;
            s.write_all(ANSWER).await.unwrap();
            let (mut other, _) = listener.accept().await.unwrap();
            read_request(&mut other).await;
            other.write_all(ANSWER).await.unwrap();
            // The pooled one was closed by the demand for a fresh one.
            assert_eq!(s.read(&mut [0; 8]).await.unwrap(), 0);
            // Held until the client has looked: a closed connection is no idle one.
            (first, other)
        });
        for (fresh, reused) in [(false, false), (false, true), (true, false)] {
            let link = c.connect(fresh).await.unwrap();
            assert_eq!(link.reused(), reused);
            let reply = link.send(call()).await.unwrap();
            assert_eq!(reply.body.whole(10).await.unwrap().unwrap(), b"ok");
            until_idle(&c).await;
        }
        let first = server.await.unwrap().0.to_lowercase();
        assert!(first.starts_with("post /v1/x http/1.1\r\n"), "{first}");
        assert!(first.contains("\r\nauthorization: bearer sk-1\r\n") && first.contains("\r\nuser-agent: llmfo/"));
    }

    #[tokio::test]
    async fn dropping_the_wait_for_an_answer_reaches_the_provider_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let c = client(listener.local_addr().unwrap());
        let sending = tokio::spawn(async move { c.connect(false).await.unwrap().send(call()).await.map(drop) });
        let (mut s, _) = listener.accept().await.unwrap();
        read_request(&mut s).await;
        let start = Instant::now();
        sending.abort();
        let n = tokio::time::timeout(Duration::from_secs(2), s.read(&mut [0; 8])).await.unwrap().unwrap_or(0);
        assert_eq!(n, 0);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_stale_connection_is_told_from_a_fresh_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let c = client(listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut s, _) = listener.accept().await.unwrap();
            read_request(&mut s).await;
            s.write_all(ANSWER).await.unwrap();
            read_request(&mut s).await;
            drop(s);
            let (mut s, _) = listener.accept().await.unwrap();
            read_request(&mut s).await;
            drop(s);
        });
        let reply = c.connect(false).await.unwrap().send(call()).await.unwrap();
        reply.body.whole(10).await.unwrap().unwrap();
        until_idle(&c).await;
        let e = c.connect(false).await.unwrap().send(call()).await.unwrap_err();
        assert_eq!((&e.kind, e.stale), (&FaultKind::Reset, true), "{e}");
        let e = c.connect(false).await.unwrap().send(call()).await.unwrap_err();
        assert_eq!((&e.kind, e.stale), (&FaultKind::Reset, false), "{e}");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn broken_http_is_not_a_reset() {
        for answer in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let c = client(listener.local_addr().unwrap());
            tokio::spawn(async move {
                let (mut s, _) = listener.accept().await.unwrap();
                read_request(&mut s).await;
                s.write_all(answer).await.unwrap();
                let _ = s.read(&mut [0; 8]).await;
            });
            let kind = match c.connect(false).await.unwrap().send(call()).await {
                Err(e) => e.kind,
                Ok(reply) => reply.body.whole(10).await.unwrap_err().kind,
            };
            assert_eq!(kind, FaultKind::Protocol);
        }
    }
}
