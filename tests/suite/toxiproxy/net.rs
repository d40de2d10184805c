//! Raw sockets: a small HTTP call, and upstreams that do one thing each.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing here waits longer.
pub const LONG: Duration = Duration::from_secs(20);

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
    pub took: Duration,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|l| l.split_once(':'));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim()).next()
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}

/// One HTTP call on a connection of its own.
pub fn http(api: SocketAddr, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let started = Instant::now();
    let mut stream = TcpStream::connect(api).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    // In one piece: a server that answers without reading the body resets the connection when the body comes behind.
    stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
    let mut bytes = Vec::new();
    if let Err(e) = stream.read_to_end(&mut bytes) {
        assert!(!bytes.is_empty(), "{method} {path}: {e}");
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body =
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body, took: started.elapsed() }
}

fn unchunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    out
}

/// What an upstream does with each connection.
pub type Behaviour = fn(TcpStream, &Upstream);

/// A server that runs until the test ends.
#[derive(Clone)]
pub struct Upstream {
    pub addr: SocketAddr,
    /// Connections so far.
    pub accepted: Arc<AtomicUsize>,
    /// What came in, all connections together.
    pub received: Arc<Mutex<Vec<u8>>>,
    /// How connections ended, in the order of their ends.
    pub ends: Arc<Mutex<Vec<Ended>>>,
    /// Connections kept by `hold`.
    pub held: Arc<Mutex<Vec<TcpStream>>>,
}

/// How a stream ended for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Fin,
    Rst,
    /// Not within the time.
    Open,
}

pub fn upstream(behaviour: Behaviour) -> Upstream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    // Room for a burst: with the usual 128 the kernel answers by cookies, and a connection may be lost on one side only.
    socket.listen(4096).unwrap();
    let listener = TcpListener::from(socket);
    let up = Upstream {
        addr: listener.local_addr().unwrap(),
        accepted: Arc::default(),
        received: Arc::default(),
        ends: Arc::default(),
        held: Arc::default(),
    };
    let shared = up.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            shared.accepted.fetch_add(1, Ordering::SeqCst);
            let shared = shared.clone();
            std::thread::spawn(move || behaviour(stream, &shared));
        }
    });
    up
}

/// Sends back what it gets.
pub fn echo(mut stream: TcpStream, up: &Upstream) {
    let mut buf = vec![0; 65536];
    let end = loop {
        match stream.read(&mut buf) {
            Ok(0) => break Ended::Fin,
            Ok(n) => {
                if stream.write_all(&buf[..n]).is_err() {
                    break Ended::Rst;
                }
            }
            Err(_) => break Ended::Rst,
        }
    };
    up.ends.lock().unwrap().push(end);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Keeps what it gets.
pub fn sink(mut stream: TcpStream, up: &Upstream) {
    let mut buf = vec![0; 65536];
    let end = loop {
        match stream.read(&mut buf) {
            Ok(0) => break Ended::Fin,
            Ok(n) => up.received.lock().unwrap().extend_from_slice(&buf[..n]),
            Err(_) => break Ended::Rst,
        }
    };
    up.ends.lock().unwrap().push(end);
}

/// Keeps the connection for the test to use.
pub fn hold(stream: TcpStream, up: &Upstream) {
    up.held.lock().unwrap().push(stream);
}

impl Upstream {
    /// The nth held connection.
    pub fn take(&self, n: usize) -> TcpStream {
        wait_for("the upstream connection", || self.held.lock().unwrap().len() > n);
        self.held.lock().unwrap()[n].try_clone().unwrap()
    }
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads exactly so many bytes, or panics.
pub fn read_exact(stream: &mut TcpStream, n: usize) -> Vec<u8> {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut buf = vec![0; n];
    stream.read_exact(&mut buf).unwrap();
    buf
}

/// Reads until the end or until nothing more comes within `limit`.
pub fn read_end(stream: &mut TcpStream, limit: Duration) -> (Vec<u8>, Ended) {
    let mut out = Vec::new();
    let mut buf = vec![0; 65536];
    stream.set_read_timeout(Some(limit)).unwrap();
    loop {
        match stream.read(&mut buf) {
            Ok(0) => return (out, Ended::Fin),
            Ok(n) => out.extend_from_slice(&buf[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return (out, Ended::Open),
            Err(_) => return (out, Ended::Rst),
        }
    }
}

/// Nothing comes for so long, and the connection stays.
pub fn assert_silent(stream: &mut TcpStream, how_long: Duration) {
    let (bytes, end) = read_end(stream, how_long);
    assert!(bytes.is_empty() && end == Ended::Open, "{} bytes, {end:?}", bytes.len());
}

/// A new connection is refused.
pub fn assert_refused(addr: SocketAddr) {
    match TcpStream::connect_timeout(&addr, Duration::from_secs(2)) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
        other => panic!("expected a refused connection to {addr}, got {other:?}"),
    }
}

/// Bytes that tell their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31) ^ (n >> 8)) as u8).collect()
}
