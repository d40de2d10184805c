//! A client on a raw socket, so that what really arrives is seen: status, headers, chunks and how it ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As HTTP says: its length is reached, or the last chunk has come.
    Proper,
    /// The connection ended before.
    Cut,
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub end: End,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Data of the events, in order.
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter_map(|e| e.trim().strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// All content, joined.
    pub fn content(&self) -> String {
        let of = |e: &String| {
            let v: serde_json::Value = serde_json::from_str(e).ok()?;
            Some(v["choices"][0]["delta"]["content"].as_str()?.to_owned())
        };
        self.events().iter().filter_map(of).collect()
    }

    pub fn done(&self) -> bool {
        self.events().last().is_some_and(|e| e == "[DONE]")
    }

    /// `error.code` of the JSON body.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A response being read.
pub struct Reading {
    stream: TcpStream,
    got: Vec<u8>,
}

pub const LIMIT: Duration = Duration::from_secs(20);

/// Sends raw bytes.
pub fn send(to: SocketAddr, bytes: &[u8]) -> Reading {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // The peer may answer and close before all is sent.
    let _ = stream.write_all(bytes);
    Reading { stream, got: Vec::new() }
}

/// A POST of JSON to the chat endpoint.
pub fn chat_bytes(body: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut headers = headers.to_vec();
    let key = format!("Bearer {}", crate::canary::APPLICATION);
    if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("authorization")) {
        headers.push(("authorization", &key));
    }
    let more: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub fn chat(to: SocketAddr, body: &str, headers: &[(&str, &str)]) -> Response {
    send(to, &chat_bytes(body, headers)).whole()
}

/// As [`get`], the body alone, for whoever can do without.
pub fn try_get(to: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

pub fn get(to: SocketAddr, path: &str) -> Response {
    send(to, format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).whole()
}

impl Reading {
    /// Reads until this text has come.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let all = String::from_utf8_lossy(&self.got).into_owned();
            if all.contains(text) {
                return all;
            }
            assert!(self.more(), "the connection ended before {text:?}: {all}");
        }
    }

    fn more(&mut self) -> bool {
        let mut buf = [0; 64 * 1024];
        match self.stream.read(&mut buf) {
            Ok(0) => false,
            Ok(n) => {
                self.got.extend_from_slice(&buf[..n]);
                true
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("no answer within {LIMIT:?}; so far {}", String::from_utf8_lossy(&self.got))
            }
            Err(_) => false,
        }
    }

    /// Closes without reading further.
    pub fn leave(self) {
        drop(self);
    }

    /// Closes with a reset.
    pub fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Closes the direction to the gateway only, as `nc -N` does.
    pub fn half_close(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Reads until the connection has ended; all that has come. It must end with a close, not with a reset.
    pub fn until_closed(mut self) -> String {
        loop {
            let mut buf = [0; 16 * 1024];
            match self.stream.read(&mut buf) {
                Ok(0) => return String::from_utf8_lossy(&self.got).into_owned(),
                Ok(n) => self.got.extend_from_slice(&buf[..n]),
                Err(e) => panic!("{e}; so far {}", String::from_utf8_lossy(&self.got)),
            }
        }
    }

    /// Reads it to its end.
    pub fn whole(mut self) -> Response {
        let at = loop {
            if let Some(at) = self.got.windows(4).position(|w| w == b"\r\n\r\n") {
                if self.got.starts_with(b"HTTP/1.1 100") {
                    self.got.drain(..at + 4);
                    continue;
                }
                break at;
            }
            assert!(self.more(), "no head; so far {:?}", String::from_utf8_lossy(&self.got));
        };
        let head = String::from_utf8(self.got[..at].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> =
            lines.map(|l| l.split_once(':').unwrap()).map(|(n, v)| (n.to_lowercase(), v.trim().to_owned())).collect();
        let of = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let mut rest = at + 4;
        let (body, end) = if let Some(length) = of("content-length") {
            let length: usize = length.parse().unwrap();
            while self.got.len() < rest + length && self.more() {}
            let body = self.got[rest..self.got.len().min(rest + length)].to_vec();
            let end = if body.len() == length { End::Proper } else { End::Cut };
            (body, end)
        } else {
            let mut body = Vec::new();
            loop {
                let line = self.got[rest..].windows(2).position(|w| w == b"\r\n");
                let size = line.map(|n| {
                    let text = String::from_utf8_lossy(&self.got[rest..rest + n]).into_owned();
                    (n, usize::from_str_radix(text.trim(), 16).unwrap())
                });
                match size {
                    Some((n, size)) if self.got.len() >= rest + n + 2 + size + 2 => {
                        body.extend_from_slice(&self.got[rest + n + 2..rest + n + 2 + size]);
                        rest += n + 2 + size + 2;
                        if size == 0 {
                            break (body, End::Proper);
                        }
                    }
                    _ => {
                        if !self.more() {
                            break (body, End::Cut);
                        }
                    }
                }
            }
        };
        Response { status, headers, body, end }
    }
}
