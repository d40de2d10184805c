//! One endpoint's client and its pool.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;

use super::body::Body;
use super::decode::Decoder;
use super::dial::{self, Tls};
use super::endpoint::Endpoint;
use super::fault::{Fault, FaultKind};
use super::pieces::Pieces;
use super::pool::{Pool, PoolLimits};
use super::secret::Secret;
use super::wire::{Made, Wire, speak};
use crate::error::{Expected, Result};

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
    /// HTTP/2 is wanted.
    http2: bool,
    pool: Arc<Pool>,
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
        let pool = Arc::new(Pool::new(limits));
        Ok(Client { inner: Arc::new(Inner { endpoint, host, bearer, tls, http2: false, pool }) })
    }

    /// The same, speaking HTTP/2: at once over plain TCP, and over TLS if both sides agree on it there.
    #[must_use]
    pub fn http2(self) -> Client {
        let Inner { endpoint, host, bearer, tls, pool, .. } = &*self.inner;
        let (endpoint, host, bearer) = (endpoint.clone(), host.clone(), bearer.clone());
        let tls = tls.as_ref().map(Tls::offering_http2);
        let pool = Arc::new(Pool::new(pool.limits));
        Client { inner: Arc::new(Inner { endpoint, host, bearer, tls, http2: true, pool }) }
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
        let home = Arc::clone(&self.inner);
        if let Some(wire) = home.pool.checkout(fresh) {
            return Ok(Link { wire, home, reused: true, failed: false });
        }
        let wire = match self.made().await? {
            Made::One(one) => Wire::One(one),
            Made::Many(many) => {
                // Before others may have any.
                let place = many.place().ok_or_else(|| Fault::new(FaultKind::Connect, "no place on it"))?;
                home.pool.share(&many);
                Wire::Many(place)
            }
        };
        Ok(Link { wire, home, reused: false, failed: false })
    }

    async fn made(&self) -> std::result::Result<Made, Fault> {
        let Inner { endpoint, tls, http2, .. } = &*self.inner;
        let stream = dial::dial(endpoint, tls.as_ref()).await?;
        let agreed = *http2 && stream.agreed_on_http2();
        speak(stream, agreed).await
    }

    /// Closes idle connections that their other end has closed or that will not last for `lasting`, and makes new ones until so many
    /// requests can begin at once. Returns when that is so.
    ///
    /// # Errors
    /// Why one could not be made.
    pub async fn make_ready(&self, wanted: usize, lasting: Duration) -> std::result::Result<(), Fault> {
        let pool = &self.inner.pool;
        let mut there = pool.tidy(lasting);
        while there < wanted {
            there += match self.made().await? {
                Made::One(one) => {
                    pool.keep(one);
                    1
                }
                Made::Many(many) => {
                    pool.share(&many);
                    many.room()
                }
            };
        }
        Ok(())
    }

    /// Closes the idle connections: the path to the endpoint has just proved silent, and they are on it too. The next connect
    /// finds out within its own, shorter limit.
    pub fn close_idle(&self) {
        self.inner.pool.clear();
    }

    /// Idle connections right now (for tests and the snapshot).
    #[must_use]
    pub fn idle(&self) -> usize {
        self.inner.pool.idle()
    }
}

/// A standing connection, not yet used for this call. Dropping it closes it.
pub struct Link {
    wire: Wire,
    home: Arc<Inner>,
    reused: bool,
    /// Whoever is at its other end failed: the next call is not sent there again, but where the name leads to by then.
    failed: bool,
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
    /// What broke. [`Fault::stale`] says that the request may be sent once more on a new connection.
    pub async fn send(mut self, call: Call) -> std::result::Result<Reply, Fault> {
        let endpoint = &self.home.endpoint;
        let uri = match &self.wire {
            Wire::One(_) => endpoint.target(&call.path),
            Wire::Many(_) => endpoint.whole(&call.path),
        };
        let mut request = Request::new(Pieces::new(call.body));
        *request.method_mut() = call.method;
        *request.uri_mut() = uri.map_err(|e| Fault::new(FaultKind::Protocol, e.what))?;
        let headers = request.headers_mut();
        *headers = call.headers;
        // HTTP/2 has it in its `:authority`.
        if matches!(self.wire, Wire::One(_)) {
            headers.insert(HOST, self.home.host.clone());
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(super::USER_AGENT));
        headers.remove(AUTHORIZATION);
        if let Some(bearer) = &self.home.bearer {
            headers.insert(AUTHORIZATION, bearer.clone());
        }
        let answer = match &mut self.wire {
            Wire::One(one) => {
                let before = one.read.load(Ordering::Relaxed);
                one.send(request).await.map_err(|e| (one.read.load(Ordering::Relaxed) == before, e))
            }
            Wire::Many(place) => {
                let mut sender = place.sender();
                sender.send_request(request).await.map_err(|e| (place.untouched(), e))
            }
        };
        match answer {
            Ok(answer) => {
                let (mut head, incoming) = answer.into_parts();
                self.failed = head.status.is_server_error() || head.status == StatusCode::GONE;
                let decoder = Decoder::of(&head.headers).map(Box::new);
                if decoder.is_some() {
                    // They spoke about the bytes on the wire.
                    head.headers.remove(CONTENT_ENCODING);
                    head.headers.remove(CONTENT_LENGTH);
                }
                let body = Body::new(incoming, self, decoder);
                Ok(Reply { status: head.status, headers: head.headers, body })
            }
            Err((nothing_read, e)) => {
                let mut fault = Fault::exchange(&e);
                let idle_one = self.reused && fault.kind == FaultKind::Reset && nothing_read;
                fault.stale = idle_one || Fault::went_to_nobody(&e);
                Err(fault)
            }
        }
    }

    /// The next frame of the answer that comes on it.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        incoming: &mut Incoming,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut self.wire {
            Wire::One(one) => one.poll_frame(cx, incoming),
            Wire::Many(_) => Pin::new(incoming).poll_frame(cx),
        }
    }

    /// The answer is read: the connection may carry the next request.
    pub(super) fn give_back(self) {
        match self.wire {
            Wire::One(one) if !self.failed => self.home.pool.give_back(one),
            _ => {}
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
