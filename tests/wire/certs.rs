//! Certificates of authorities that nobody knows, and a provider that speaks TLS with them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::mock::whole;

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// TLS as the owner of a certificate for this name speaks it.
    pub fn server(&self, name: &str, until_year: i32, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(cert.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
        Arc::new(config)
    }
}

/// A request as it came: the name that was asked for in the handshake, and the head.
#[derive(Clone, Debug)]
pub struct Asked {
    pub sni: Option<String>,
    pub head: String,
}

/// A provider that answers everything with `secure one two`, under TLS and HTTP/1.1. Its threads end with the test process.
pub struct Secure {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Secure {
    pub fn start(config: Arc<ServerConfig>) -> Secure {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, log) = (Arc::clone(&config), Arc::clone(&log));
                std::thread::spawn(move || {
                    let tls = rustls::ServerConnection::new(config).unwrap();
                    let mut tls = rustls::StreamOwned::new(tls, stream.unwrap());
                    let (mut got, mut buf) = (Vec::new(), [0; 4096]);
                    while !got.ends_with(b"]}") {
                        match tls.read(&mut buf) {
                            Ok(n) if n > 0 => got.extend_from_slice(&buf[..n]),
                            _ => return,
                        }
                    }
                    let text = String::from_utf8_lossy(&got).to_lowercase();
                    let head = text.split("\r\n\r\n").next().unwrap_or_default().to_owned();
                    let sni = tls.conn.server_name().map(str::to_owned);
                    log.lock().unwrap().push(Asked { sni, head });
                    let body = whole("secure one two");
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                    let _ = write!(tls, "{head}content-length: {}\r\n\r\n{body}", body.len());
                    tls.conn.send_close_notify();
                    let _ = tls.flush();
                });
            }
        });
        Secure { address, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}
