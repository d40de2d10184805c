//! `llmfo serve` in front of a provider that speaks TLS: the certificate is checked against the name in the URL, also when
//! another address is dialled.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

const CERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/fixtures/tls/cert.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/fixtures/tls/key.pem");
const ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"over tls"},"finish_reason":"stop"}]}"#;

/// Answers one request per connection.
fn provider() -> SocketAddr {
    let certs = CertificateDer::pem_file_iter(CERT).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(KEY).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let tls = rustls::ServerConnection::new(config).unwrap();
                let mut tls = rustls::StreamOwned::new(tls, stream.unwrap());
                let mut got = Vec::new();
                let mut buf = [0; 4096];
                while !got.ends_with(b"]}") {
                    match tls.read(&mut buf) {
                        Ok(n) if n > 0 => got.extend_from_slice(&buf[..n]),
                        _ => return,
                    }
                }
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let _ = write!(tls, "{head}content-length: {}\r\n\r\n{ANSWER}", ANSWER.len());
                let _ = tls.flush();
            });
        }
    });
    address
}

fn ask(host: &str, roots: &str) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let to = provider();
    let policy = format!(
        "version: tls-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  a:\n    base_url: https://{host}/v1\n    \
         connect_to: {to}\n    model: m\npools:\n  all: {{ targets: [a], select: priority }}\nroutes:\n  - route: chat\n    \
         data: none\n    deadline_ms: 15000\n    max_attempts: 1\n    connect_timeout_ms: 5000\n    \
         attempts: [{{ pool: all, first_token_timeout_ms: 5000, pii: allowed }}]\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n"
    );
    let path = dir.path().join("p.yaml");
    std::fs::write(&path, policy).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .args(["serve", "--listen", "127.0.0.1:0", "--format", "json", "--exit-with-stdin", "--quiet", "--policy"])
        .arg(&path)
        .env("SSL_CERT_FILE", roots)
        .env_remove("SSL_CERT_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let first: Value = serde_json::from_str(&line).unwrap();
    let mut client = TcpStream::connect(first["listen"].as_str().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_good_certificate_for_the_name_in_the_url_is_accepted() {
    let (head, body) = ask("models.example", CERT);
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {body}");
    assert_eq!(body["choices"][0]["message"]["content"], "over tls");
}

#[test]
fn a_certificate_for_another_name_is_a_tls_fault() {
    let (head, body) = ask("other.example", CERT);
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(body["error"]["message"].as_str().unwrap().contains("a: tls"), "{body}");
}
