//! A small HTTP/1.1 server side, written by hand because the lab must know to the byte what it has written, and must see at
//! once that a peer has left, also while it has nothing to say.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, timeout};

/// A request head may have so many bytes.
const MAX_HEAD: usize = 64 * 1024;
/// A request body may have so many bytes: the limit that the gateway has as well.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// A kept-alive connection may be idle, and a request may take to arrive, so long.
const IDLE: Duration = Duration::from_secs(75);

/// A request, whole.
#[derive(Debug)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Body.
    pub body: Bytes,
    /// The connection stays open after the answer.
    pub keep_alive: bool,
}

/// Why there is no request.
#[derive(Debug)]
pub enum NoRequest {
    /// The peer left, or the connection broke or idled out.
    Gone,
    /// It is not HTTP as this server reads it: answer with this status and sentence, then close.
    Bad(u16, &'static str),
}

/// The peer has left (closed or reset).
#[derive(Debug)]
pub struct Gone;

/// One connection.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    /// Read and not yet used.
    buf: BytesMut,
    /// The other end.
    pub peer: SocketAddr,
}

struct Head {
    method: String,
    path: String,
    length: Body,
    keep_alive: bool,
    expects_continue: bool,
}

enum Body {
    Length(usize),
    Chunked,
}

impl Conn {
    /// Takes over an accepted connection.
    pub fn new(stream: TcpStream, peer: SocketAddr) -> Conn {
        // Without it a chunk could wait for the acknowledgement of the one before; a socket that refuses is still usable.
        let _ = stream.set_nodelay(true);
        Conn { stream, buf: BytesMut::with_capacity(8 * 1024), peer }
    }

    /// From here on the connection ends with a reset (RST), whatever is not sent yet.
    pub fn end_with_reset(&self) {
        // A socket that refuses ends with FIN: the fault is then another one, and no harm is done.
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// The next request on this connection.
    ///
    /// # Errors
    /// [`NoRequest`].
    pub async fn next_request(&mut self) -> Result<Request, NoRequest> {
        timeout(IDLE, self.read_request()).await.unwrap_or(Err(NoRequest::Gone))
    }

    async fn read_request(&mut self) -> Result<Request, NoRequest> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.buf, b"\r\n\r\n") {
                break at + 4;
            }
            if self.buf.len() > MAX_HEAD {
                return Err(NoRequest::Bad(431, "request head too large"));
            }
            self.fill().await?;
        };
        let head = parse_head(&self.buf.split_to(end))?;
        if head.expects_continue {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await.map_err(|Gone| NoRequest::Gone)?;
        }
        let body = match head.length {
            Body::Length(n) if n > MAX_BODY => return Err(NoRequest::Bad(413, "request body too large")),
            Body::Length(n) => self.take(n).await?,
            Body::Chunked => self.read_chunked().await?,
        };
        Ok(Request { method: head.method, path: head.path, body, keep_alive: head.keep_alive })
    }

    async fn fill(&mut self) -> Result<(), NoRequest> {
        match self.stream.read_buf(&mut self.buf).await {
            Ok(n) if n > 0 => Ok(()),
            _ => Err(NoRequest::Gone),
        }
    }

    async fn take(&mut self, n: usize) -> Result<Bytes, NoRequest> {
        while self.buf.len() < n {
            self.fill().await?;
        }
        Ok(self.buf.split_to(n).freeze())
    }

    async fn line(&mut self) -> Result<Bytes, NoRequest> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buf, b"\r\n") {
                let line = self.buf.split_to(at).freeze();
                self.buf.advance(2);
                return Ok(line);
            }
            if self.buf.len() > MAX_HEAD {
                return Err(NoRequest::Bad(400, "chunk line too long"));
            }
            self.fill().await?;
        }
    }

    async fn read_chunked(&mut self) -> Result<Bytes, NoRequest> {
        let mut body = BytesMut::new();
        loop {
            let line = self.line().await?;
            let size = std::str::from_utf8(&line)
                .ok()
                .and_then(|l| usize::from_str_radix(l.split(';').next().unwrap_or("").trim(), 16).ok())
                .ok_or(NoRequest::Bad(400, "bad chunk size"))?;
            if size == 0 {
                // Trailers, if any, end with an empty line.
                while !self.line().await?.is_empty() {}
                return Ok(body.freeze());
            }
            if size > MAX_BODY || body.len() + size > MAX_BODY {
                return Err(NoRequest::Bad(413, "request body too large"));
            }
            body.extend_from_slice(&self.take(size).await?);
            if !self.line().await?.is_empty() {
                return Err(NoRequest::Bad(400, "bad chunk end"));
            }
        }
    }

    /// Writes all of it, while watching whether the peer is still there.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        let (mut from, mut to) = self.stream.split();
        while !bytes.is_empty() {
            tokio::select! {
                biased;
                read = from.read_buf(&mut self.buf) => still_there(read, &self.buf)?,
                // Cancel-safe: either nothing was written, or the count says how much.
                wrote = to.write(bytes) => match wrote {
                    Ok(n) if n > 0 => bytes = &bytes[n..],
                    _ => return Err(Gone),
                },
            }
        }
        Ok(())
    }

    /// Waits, while watching whether the peer is still there.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn wait_until(&mut self, deadline: Instant) -> Result<(), Gone> {
        let alarm = tokio::time::sleep_until(deadline);
        tokio::pin!(alarm);
        loop {
            tokio::select! {
                read = self.stream.read_buf(&mut self.buf) => still_there(read, &self.buf)?,
                () = &mut alarm => return Ok(()),
            }
        }
    }
}

/// What arrives during an answer is the next request of a peer that does not wait; it is kept within bounds.
fn still_there(read: io::Result<usize>, buf: &BytesMut) -> Result<(), Gone> {
    match read {
        Ok(n) if n > 0 && buf.len() <= MAX_HEAD + MAX_BODY => Ok(()),
        _ => Err(Gone),
    }
}

fn parse_head(bytes: &[u8]) -> Result<Head, NoRequest> {
    let text = std::str::from_utf8(bytes).map_err(|_| NoRequest::Bad(400, "request head is not text"))?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or("").split(' ');
    let (Some(method), Some(target), Some(version)) = (first.next(), first.next(), first.next()) else {
        return Err(NoRequest::Bad(400, "bad request line"));
    };
    if !version.starts_with("HTTP/1.") {
        return Err(NoRequest::Bad(505, "HTTP/1.1 only"));
    }
    let path = target.split('?').next().unwrap_or("").to_string();
    let mut head = Head {
        method: method.to_string(),
        path,
        length: Body::Length(0),
        keep_alive: version == "HTTP/1.1",
        expects_continue: false,
    };
    for line in lines.filter(|l| !l.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(NoRequest::Bad(400, "bad header line"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" if !matches!(head.length, Body::Chunked) => {
                let n = value.parse().map_err(|_| NoRequest::Bad(400, "bad content-length"))?;
                head.length = Body::Length(n);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => head.length = Body::Chunked,
            "transfer-encoding" => return Err(NoRequest::Bad(501, "unknown transfer-encoding")),
            "connection" if value.eq_ignore_ascii_case("close") => head.keep_alive = false,
            "connection" if value.eq_ignore_ascii_case("keep-alive") => head.keep_alive = true,
            "expect" if value.eq_ignore_ascii_case("100-continue") => head.expects_continue = true,
            _ => {}
        }
    }
    Ok(head)
}

/// The head of an answer with a whole body.
#[must_use]
pub fn whole_head(status: u16, length: usize, keep_alive: bool) -> String {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: {connection}\r\n\r\n",
        reason(status)
    )
}

/// The head of an event stream in chunks.
#[must_use]
pub fn stream_head(keep_alive: bool) -> String {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
         transfer-encoding: chunked\r\nconnection: {connection}\r\n\r\n"
    )
}

/// One chunk of a chunked body: size in hex, CR LF, the bytes, CR LF.
#[must_use]
pub fn chunk(payload: &str) -> String {
    format!("{:x}\r\n{payload}\r\n", payload.len())
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("Status")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Conn) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        (client, Conn::new(server, peer))
    }

    #[tokio::test]
    async fn bodies_by_length_and_in_chunks_are_read_and_the_next_request_is_kept() {
        let (mut client, mut conn) = pair().await;
        client
            .write_all(
                b"POST /a?x=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2;ext=1\r\nde\r\n1\r\nf\r\n0\r\nt: 1\r\n\r\nGET /c HTTP/1.0\r\n\r\n",
            )
            .await
            .unwrap();
        let a = conn.next_request().await.unwrap();
        assert_eq!((a.path.as_str(), &a.body[..], a.keep_alive), ("/a", &b"abc"[..], true));
        let b = conn.next_request().await.unwrap();
        assert_eq!((b.path.as_str(), &b.body[..]), ("/b", &b"def"[..]));
        let c = conn.next_request().await.unwrap();
        assert_eq!((c.path.as_str(), c.keep_alive), ("/c", false));
    }

    #[tokio::test]
    async fn nonsense_gets_a_status() {
        for (text, status) in [
            ("GET\r\n\r\n", 400),
            ("GET / HTTP/2\r\n\r\n", 505),
            ("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413),
        ] {
            let (mut client, mut conn) = pair().await;
            client.write_all(text.as_bytes()).await.unwrap();
            match conn.next_request().await {
                Err(NoRequest::Bad(got, _)) => assert_eq!(got, status, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_peer_that_leaves_is_seen_while_nothing_is_written() {
        let (client, mut conn) = pair().await;
        let wait = conn.wait_until(Instant::now() + Duration::from_secs(30));
        let (gone, ()) = tokio::join!(timeout(Duration::from_secs(5), wait), async move { drop(client) });
        assert!(matches!(gone, Ok(Err(Gone))));
    }
}
