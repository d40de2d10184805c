//! The customer's HTTP: every request on a connection of its own, so that how it ended is never blurred by a pool. It sends
//! nothing twice, follows no redirect and takes no proxy from the environment.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::error::{Expected, Result};
use crate::units::printable;

/// A base URL taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `host:port`.
    authority: String,
    host: String,
    port: u16,
    /// Path without a trailing slash.
    path: String,
}

impl Base {
    /// Takes `http://host[:port][/path]` apart.
    ///
    /// # Errors
    /// It is not such a URL.
    pub fn new(url: &str) -> Result<Base> {
        let shown = printable(url, 200);
        let bad = |why: &str| Expected::usage(format!("{shown}: {why}"), "write http://host[:port][/path]");
        let uri: http::Uri = url.parse().map_err(|_| bad("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(bad("the customer application of the load speaks plain http only"));
        }
        let authority = uri.authority().filter(|a| !a.as_str().contains('@')).ok_or_else(|| bad("no host"))?;
        if uri.query().is_some() {
            return Err(bad("a query has no place in a base URL"));
        }
        Ok(Base {
            authority: authority.as_str().to_string(),
            host: authority.host().trim_matches(['[', ']']).to_string(),
            port: authority.port_u16().unwrap_or(80),
            path: uri.path().trim_end_matches('/').to_string(),
        })
    }

    /// The port that is dialled.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// An open connection; dropping it closes the socket at once.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    task: AbortHandle,
    authority: String,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a connection.
///
/// # Errors
/// Why not, in words.
pub async fn connect(base: &Base, limit: Duration) -> std::result::Result<Connection, String> {
    let stream = match timeout(limit, TcpStream::connect((base.host.as_str(), base.port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(connect_error(&error)),
        Err(_) => return Err("connect timed out".to_string()),
    };
    // Best effort: only delays small writes where it fails.
    let _ = stream.set_nodelay(true);
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| printable(&e.to_string(), 200))?;
    // Errors of the connection reach the caller through the request and the body.
    let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender, task, authority: base.authority.clone() })
}

fn connect_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect refused".to_string(),
        io::ErrorKind::TimedOut => "connect timed out".to_string(),
        io::ErrorKind::ConnectionReset => "connect reset".to_string(),
        _ => printable(&error.to_string(), 200),
    }
}

impl Connection {
    /// Sends the one request and waits for the head of the answer.
    ///
    /// # Errors
    /// Why not, in words.
    pub async fn send(
        &mut self,
        method: Method,
        base: &Base,
        below: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> std::result::Result<Response<Incoming>, String> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() =
            format!("{}{below}", base.path).parse().map_err(|_| "the path cannot be written".to_string())?;
        *request.headers_mut() = headers;
        let host = self.authority.parse().map_err(|_| "the host cannot be written".to_string())?;
        request.headers_mut().insert(http::header::HOST, host);
        self.sender.send_request(request).await.map_err(|e| exchange_error(&e))
    }
}

/// How an exchange broke: `reset by peer`, `closed in mid-answer`, or what the error says.
#[must_use]
pub fn exchange_error(error: &hyper::Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(now) = cause {
        if let Some(io) = now.downcast_ref::<io::Error>() {
            match io.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return "reset by peer".to_string(),
                io::ErrorKind::UnexpectedEof => return "closed in mid-answer".to_string(),
                _ => {}
            }
        }
        cause = now.source();
    }
    if error.is_incomplete_message() {
        return "closed in mid-answer".to_string();
    }
    let source = error.source().map_or_else(String::new, |s| format!(": {s}"));
    printable(&format!("{error}{source}"), 200)
}

/// One small JSON exchange with a part of the lab, within `limit`: for tools and for background work.
///
/// # Errors
/// Why not, in words; also for any status but 2xx.
pub async fn json_call(
    method: Method,
    base: &Base,
    below: &str,
    body: Option<&Value>,
    limit: Duration,
) -> std::result::Result<Value, String> {
    let exchange = async {
        let mut connection = connect(base, limit).await?;
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        let bytes = body.map_or_else(Bytes::new, |b| Bytes::from(b.to_string()));
        let answer = connection.send(method, base, below, headers, bytes).await?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), 1024 * 1024)
            .collect()
            .await
            .map_err(|e| printable(&e.to_string(), 200))?
            .to_bytes();
        if !status.is_success() {
            return Err(format!("status {}", status.as_u16()));
        }
        serde_json::from_slice(&bytes).map_err(|_| "the answer is not JSON".to_string())
    };
    timeout(limit, exchange).await.unwrap_or_else(|_| Err("timed out".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_taken_apart_or_refused() {
        let base = Base::new("http://127.0.0.1:8080/v1/").unwrap();
        assert_eq!((base.host.as_str(), base.port, base.path.as_str()), ("127.0.0.1", 8080, "/v1"));
        assert_eq!(Base::new("http://[::1]/x").unwrap().host, "::1");
        for bad in ["", "ftp://x", "http://u:p@x/v1", "http://x/?a=1", "x:1", "https://x/v1"] {
            assert!(Base::new(bad).is_err(), "{bad}");
        }
    }
}
