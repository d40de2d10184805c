//! `host:port` texts: checked, resolved, and kept on loopback unless allowed otherwise.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use super::error::ApiError;

/// Name resolution at a listen address takes this at most.
const RESOLVE_MAX: Duration = Duration::from_millis(800);

/// Host and port of a text.
///
/// # Errors
/// In the real server's words.
pub fn split(text: &str) -> Result<(String, u16), String> {
    let shown = crate::units::printable(text, 80);
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("address {shown}: missing port in address"))?;
    let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(inner) => inner,
        None if host.contains(':') => return Err(format!("address {shown}: too many colons in address")),
        None => host,
    };
    let port = port.parse().map_err(|_| format!("address {shown}: invalid port"))?;
    Ok((host.to_owned(), port))
}

/// Resolves a listen address.
///
/// # Errors
/// 500 where the real server says so; 400 for what we alone refuse.
pub async fn resolve_listen(text: &str, anywhere: bool) -> Result<SocketAddr, ApiError> {
    let (host, port) = split(text).map_err(|why| ApiError::new(500, format!("listen tcp: {why}")))?;
    let all: Vec<SocketAddr> = if host.is_empty() {
        vec![SocketAddr::from(([0, 0, 0, 0], port))]
    } else {
        match timeout(RESOLVE_MAX, lookup_host((host.as_str(), port))).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => {
                let host = crate::units::printable(&host, 80);
                return Err(ApiError::new(500, format!("listen tcp: lookup {host}: no such host")));
            }
        }
    };
    let first = all.iter().find(|a| a.is_ipv4()).or(all.first()).copied();
    let addr = first.ok_or_else(|| ApiError::new(500, "listen tcp: no address found"))?;
    if !anywhere && !addr.ip().is_loopback() {
        return Err(ApiError::bad(format!(
            "listen address {addr} is not loopback; start the server with --listen-anywhere to allow it"
        )));
    }
    Ok(addr)
}

/// Checks an upstream; the text is kept as it is and resolved at each dial.
///
/// # Errors
/// 400 for what is no `host:port`, and for another host where only loopback is allowed.
pub fn check_upstream(text: &str, anywhere: bool) -> Result<(), ApiError> {
    if text.contains("://") || text.contains('/') {
        let shown = crate::units::printable(text, 80);
        return Err(ApiError::bad(format!("upstream must be host:port, not a URL: {shown}")));
    }
    let (host, port) = split(text).map_err(|why| ApiError::bad(format!("upstream: {why}")))?;
    if host.is_empty() || port == 0 || host.len() > 253 || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(ApiError::bad("upstream must be host:port with a host and a port above 0"));
    }
    let local =
        host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !anywhere && !local {
        let host = crate::units::printable(&host, 80);
        return Err(ApiError::bad(format!(
            "upstream host {host} is not loopback; start the server with --upstream-anywhere to allow it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!(split("[::1]:80"), Ok(("::1".to_owned(), 80)));
        assert_eq!(split("nonsense"), Err("address nonsense: missing port in address".to_owned()));
        assert!(split("::1:80").is_err() && split("a:99999").is_err());
        assert!(check_upstream("http://localhost:80", true).is_err());
        assert!(check_upstream("10.0.0.1:80", false).is_err() && check_upstream("10.0.0.1:80", true).is_ok());
        assert!(check_upstream("localhost:80", false).is_ok() && check_upstream(":80", true).is_err());
    }
}
