//! From a name to a standing connection: resolve, connect, TLS.

use std::future::Ready;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Uri;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use super::endpoint::Endpoint;
use super::fault::{Fault, FaultKind};
use super::stream::Stream;
use crate::error::{Expected, Result};

/// TLS settings, shared by every client of the process.
#[derive(Clone)]
pub struct Tls(Arc<rustls::ClientConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Certificates that the operating system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured), TLS 1.2 and 1.3.
    ///
    /// # Errors
    /// If there are none.
    pub fn system() -> Result<Tls> {
        let no = |why: String| {
            Expected::could_not(
                format!("TLS cannot be set up: {why}"),
                "install the system's CA certificates, or point SSL_CERT_FILE at a bundle",
            )
        };
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| no(e.to_string()))?
            .with_native_roots()
            .map_err(|e| no(e.to_string()))?
            .with_no_client_auth();
        Ok(Tls(Arc::new(config)))
    }

    /// These settings exactly (tests with a certificate of their own). No ALPN may be set: HTTP/1.1 is spoken.
    #[must_use]
    pub fn with_config(config: Arc<rustls::ClientConfig>) -> Tls {
        Tls(config)
    }
}

/// A later address is tried when the one before it has not connected for so long (RFC 8305 recommends 250 ms).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

pub(super) async fn dial(endpoint: &Endpoint, tls: Option<&Tls>) -> std::result::Result<Stream, Fault> {
    let addresses = resolve(&endpoint.dial_host, endpoint.dial_port).await?;
    let tcp = connect(&addresses).await?;
    // Small writes (one event each) must not wait for an acknowledgement.
    tcp.set_nodelay(true).map_err(|e| Fault::connect(&e))?;
    if !endpoint.tls {
        return Ok(Stream::Plain(tcp));
    }
    let tls = tls.ok_or_else(|| Fault::new(FaultKind::Tls, "no TLS settings"))?;
    let uri = endpoint.tls_uri().ok_or_else(|| Fault::new(FaultKind::Tls, "the name cannot be checked"))?;
    let mut connector = HttpsConnector::from((Standing(Some(TokioIo::new(tcp))), Arc::clone(&tls.0)));
    let stream = connector.call(uri).await.map_err(|e| Fault::new(FaultKind::Tls, e))?;
    Ok(Stream::Tls(Box::new(TokioIo::new(stream))))
}

async fn resolve(host: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, Fault> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = tokio::net::lookup_host((host, port)).await.map_err(|e| Fault::new(FaultKind::Dns, e))?;
    let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    if addresses.is_empty() { Err(Fault::new(FaultKind::Dns, "the name has no address")) } else { Ok(addresses) }
}

/// Connects to the first address that answers; a slow one does not hold up the next.
async fn connect(addresses: &[SocketAddr]) -> std::result::Result<TcpStream, Fault> {
    let mut rest = addresses.iter();
    let mut trying = FuturesUnordered::new();
    let mut last = Fault::new(FaultKind::Dns, "the name has no address");
    loop {
        match rest.next() {
            Some(address) => trying.push(TcpStream::connect(*address)),
            None if trying.is_empty() => return Err(last),
            None => {}
        }
        let more = rest.len() > 0;
        loop {
            tokio::select! {
                biased;
                done = trying.next() => match done {
                    Some(Ok(stream)) => return Ok(stream),
                    Some(Err(e)) => {
                        last = Fault::connect(&e);
                        if more || trying.is_empty() { break; }
                    }
                    None => break,
                },
                () = tokio::time::sleep(NEXT_ADDRESS_AFTER), if more => break,
            }
        }
    }
}

/// Hands an already connected stream to the TLS layer, so that every error it reports is TLS's own.
struct Standing(Option<TokioIo<TcpStream>>);

impl Service<Uri> for Standing {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Ready<std::io::Result<TokioIo<TcpStream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(self.0.take().ok_or_else(|| std::io::Error::other("used twice")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refused_and_unknown_names_are_told_apart() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let e = Endpoint::new(&format!("http://{closed}"), None).unwrap();
        assert_eq!(dial(&e, None).await.unwrap_err().kind, FaultKind::Refused);
        let e = Endpoint::new("http://no-such-host.invalid", None).unwrap();
        assert_eq!(dial(&e, None).await.unwrap_err().kind, FaultKind::Dns);
    }

    #[tokio::test]
    async fn the_second_address_is_tried() {
        let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(connect(&[closed, open.local_addr().unwrap()]).await.is_ok());
        assert_eq!(connect(&[closed, closed]).await.unwrap_err().kind, FaultKind::Refused);
    }
}
