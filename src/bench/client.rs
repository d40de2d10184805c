//! The driver's HTTP: one connection that is kept, one request at a time, as cheap as can be, because driver, provider and
//! gateway share the cores. It reads no JSON: the provider's first and last word say whether an answer is whole.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memmem::find;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::mock::{FIRST, LAST};

/// One exchange may take so long.
const LIMIT: Duration = Duration::from_secs(30);
/// An answer may have so many bytes.
const MOST: usize = 4 << 20;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A 200 with the whole answer.
    Whole,
    /// A stream that was broken off with an error event, and says so.
    ErrorEvent,
    /// Another status.
    Status(u16),
    /// A clean end of an answer that is not whole, and no word about it.
    Silent,
    /// The connection broke.
    Cut,
    /// Nobody could be dialled.
    Refused,
    /// It took too long.
    Late,
}

/// One exchange.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// How it ended.
    pub end: End,
    /// Until the first word, if there was one.
    pub first: Option<Duration>,
    /// Until the end.
    pub total: Duration,
}

/// A connection, dialled when it is needed.
#[derive(Debug)]
pub struct Client {
    to: SocketAddr,
    stream: Option<TcpStream>,
    buf: Vec<u8>,
}

struct Head {
    status: u16,
    length: Option<usize>,
    chunked: bool,
    close: bool,
    /// Where the body begins.
    body: usize,
}

impl Client {
    /// Dials nobody yet.
    #[must_use]
    pub fn new(to: SocketAddr) -> Client {
        Client { to, stream: None, buf: Vec::with_capacity(16 * 1024) }
    }

    /// Sends the request and reads the answer to its end.
    pub async fn ask(&mut self, request: &[u8], streamed: bool) -> Took {
        let began = Instant::now();
        let mut first = None;
        let end = timeout(LIMIT, self.exchange(request, streamed, began, &mut first)).await;
        let end = end.unwrap_or(End::Late);
        if !matches!(end, End::Whole | End::ErrorEvent | End::Status(_) | End::Silent) {
            self.stream = None;
        }
        Took { end, first, total: began.elapsed() }
    }

    /// Sends the request and reads until the first word; the answer stays open as long as this client lives.
    pub async fn begin(&mut self, request: &[u8]) -> bool {
        let reading = async {
            let Ok(mut stream) = TcpStream::connect(self.to).await else { return false };
            if stream.write_all(request).await.is_err() {
                return false;
            }
            self.buf.clear();
            while find(&self.buf, FIRST.as_bytes()).is_none() {
                if self.buf.len() > MOST || !matches!(stream.read_buf(&mut self.buf).await, Ok(n) if n > 0) {
                    return false;
                }
            }
            self.stream = Some(stream);
            true
        };
        timeout(LIMIT, reading).await.unwrap_or(false)
    }

    async fn exchange(&mut self, request: &[u8], streamed: bool, began: Instant, first: &mut Option<Duration>) -> End {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(self.to).await {
                Ok(stream) => {
                    // Best effort: requests are written in one piece.
                    let _ = stream.set_nodelay(true);
                    stream
                }
                Err(_) => return End::Refused,
            },
        };
        if stream.write_all(request).await.is_err() {
            return End::Cut;
        }
        self.buf.clear();
        let head = loop {
            if !self.more(&mut stream).await {
                return End::Cut;
            }
            match head_of(&self.buf) {
                Ok(Some(head)) => break head,
                Ok(None) => {}
                Err(()) => return End::Cut,
            }
        };
        let mut chunks = Chunks { at: head.body };
        let mut scanned = head.body;
        loop {
            if streamed && first.is_none() && self.has(FIRST, scanned) {
                *first = Some(began.elapsed());
            }
            scanned = self.buf.len();
            let over = match (head.chunked, head.length) {
                (true, _) => chunks.over(&self.buf),
                (false, Some(length)) => Ok(self.buf.len() >= head.body + length),
                (false, None) => Ok(false),
            };
            match over {
                Ok(true) => break,
                Ok(false) if self.more(&mut stream).await => {}
                // Without a length the end of the connection is the end of the answer.
                _ if !head.chunked && head.length.is_none() => return self.judged(&head, streamed),
                _ => return End::Cut,
            }
        }
        if !head.close {
            self.stream = Some(stream);
        }
        self.judged(&head, streamed)
    }

    async fn more(&mut self, stream: &mut TcpStream) -> bool {
        self.buf.len() <= MOST && matches!(stream.read_buf(&mut self.buf).await, Ok(n) if n > 0)
    }

    /// The word stands in what came since `from`, or across that place.
    fn has(&self, word: &str, from: usize) -> bool {
        let from = from.saturating_sub(word.len());
        find(self.buf.get(from..).unwrap_or_default(), word.as_bytes()).is_some()
    }

    fn judged(&self, head: &Head, streamed: bool) -> End {
        if head.status != 200 {
            return End::Status(head.status);
        }
        let body = self.buf.get(head.body..).unwrap_or_default();
        let has = |what: &str| find(body, what.as_bytes()).is_some();
        match (has(FIRST) && has(LAST), streamed, has("[DONE]")) {
            (true, true, true) | (true, false, _) => End::Whole,
            (false, true, false) if has("\"error\"") => End::ErrorEvent,
            _ => End::Silent,
        }
    }
}

fn head_of(buf: &[u8]) -> Result<Option<Head>, ()> {
    let Some(at) = find(buf, b"\r\n\r\n") else { return if buf.len() > 64 * 1024 { Err(()) } else { Ok(None) } };
    let text = std::str::from_utf8(buf.get(..at).unwrap_or_default()).map_err(|_| ())?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|l| l.get(9..12)).and_then(|s| s.parse().ok()).ok_or(())?;
    let mut head = Head { status, length: None, chunked: false, close: false, body: at + 4 };
    for (name, value) in lines.filter_map(|l| l.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.length = Some(value.parse().map_err(|_| ())?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            head.close = value.eq_ignore_ascii_case("close");
        }
    }
    Ok(Some(head))
}

/// Walks over the chunks of a body; `at` is where the next size line begins.
struct Chunks {
    at: usize,
}

impl Chunks {
    /// The body is over.
    fn over(&mut self, buf: &[u8]) -> Result<bool, ()> {
        loop {
            let rest = buf.get(self.at..).unwrap_or_default();
            let Some(line) = find(rest, b"\r\n") else { return Ok(false) };
            let size = std::str::from_utf8(rest.get(..line).unwrap_or_default()).map_err(|_| ())?;
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16).map_err(|_| ())?;
            // Size line, data, and the line end behind the data. Without trailers the last chunk is no exception.
            let next = self.at.checked_add(line + 2).and_then(|n| n.checked_add(size)).and_then(|n| n.checked_add(2));
            match next {
                Some(next) if next <= buf.len() && size == 0 => return Ok(true),
                Some(next) if next <= buf.len() => self.at = next,
                Some(next) if next < MOST => return Ok(false),
                _ => return Err(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn chunks_are_walked_over_whatever_arrives_when() {
        let body = b"3\r\na\r\n\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n";
        for cut in 0..body.len() {
            let mut chunks = Chunks { at: 0 };
            assert_eq!(chunks.over(&body[..cut]), Ok(false), "{cut}");
            assert_eq!(chunks.over(body), Ok(true), "{cut}");
        }
        assert_eq!(Chunks { at: 0 }.over(b"zz\r\n"), Err(()));
        assert_eq!(Chunks { at: 0 }.over(b"ffffffffffffffff\r\n"), Err(()));
    }

    /// What a client makes of these bytes, after which the connection closes.
    async fn told(answer: String, streamed: bool) -> End {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::new(listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = [0; 8];
            stream.read_exact(&mut got).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        tokio::join!(server, client.ask(b"request!", streamed)).1.end
    }

    #[tokio::test]
    async fn only_a_whole_answer_is_good() {
        let json =
            |status: &str, body: &str| format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let stream = |body: &str| {
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        };
        assert_eq!(told(json("200 OK", "alpha omega"), false).await, End::Whole);
        assert_eq!(told(json("200 OK", "alpha"), false).await, End::Silent);
        assert_eq!(told(json("503 No", "alpha omega"), false).await, End::Status(503));
        assert_eq!(told(stream("alpha omega [DONE]"), true).await, End::Whole);
        assert_eq!(told(stream("alpha"), true).await, End::Silent);
        assert_eq!(told(stream("alpha [DONE]"), true).await, End::Silent, "an end that is forged");
        assert_eq!(told(stream(r#"alpha {"error":{}}"#), true).await, End::ErrorEvent);
        let cut = stream("alpha omega [DONE]");
        assert_eq!(told(cut[..cut.len() - 5].to_owned(), true).await, End::Cut);
        assert_eq!(told(String::new(), false).await, End::Cut);
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(Client::new(nobody).ask(b"x", false).await.end, End::Refused);
    }
}
