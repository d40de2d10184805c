//! From a name to a standing connection: resolve, connect, TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use super::fault::{Fault, FaultKind};
use super::stream::Stream;
use crate::error::{Expected, Result};
use crate::units::printable;

/// TLS settings, shared by every client of the process.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

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
        let no = |why: &str| {
            Expected::could_not(
                format!("TLS cannot be set up: {why}"),
                "install the system's CA certificates, or point SSL_CERT_FILE at a bundle",
            )
        };
        let mut roots = RootCertStore::empty();
        // Some of many may be odd; none at all is no way to trust anybody.
        let (good, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if good == 0 {
            return Err(no("no CA certificate of the system can be used"));
        }
        Tls::trusting(roots).map_err(|e| no(&e.to_string()))
    }

    /// Certificates that these sign, in PEM, and no others: the system's are not trusted here.
    ///
    /// # Errors
    /// If there is none among them, or one cannot be read.
    pub fn of_authorities(pem: &[u8]) -> Result<Tls> {
        let bad = |why: String| Expected::usage(why, "it is a PEM file with one or more CERTIFICATE blocks");
        let mut roots = RootCertStore::empty();
        for (n, der) in CertificateDer::pem_slice_iter(pem).enumerate() {
            let added = der.map_err(|e| e.to_string()).and_then(|der| roots.add(der).map_err(|e| e.to_string()));
            added.map_err(|why| bad(format!("certificate {} cannot be used: {}", n + 1, printable(&why, 200))))?;
        }
        if roots.is_empty() {
            return Err(bad("there is no certificate in it".to_owned()));
        }
        Tls::trusting(roots).map_err(|e| bad(e.to_string()))
    }

    fn trusting(roots: RootCertStore) -> std::result::Result<Tls, rustls::Error> {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Tls(Arc::new(config)))
    }

    /// The same, and HTTP/2 is offered before HTTP/1.1.
    pub(super) fn offering_http2(&self) -> Tls {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Tls(Arc::new(config))
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
    // SNI and what the certificate must say, wherever it is dialled.
    let name = ServerName::try_from(endpoint.host.clone());
    let name = name.map_err(|_| Fault::new(FaultKind::Tls, "the name cannot be checked"))?;
    let stream = TlsConnector::from(Arc::clone(&tls.0)).connect(name, tcp).await;
    Ok(Stream::Tls(Box::new(stream.map_err(|e| Fault::new(FaultKind::Tls, e))?)))
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
