//! Where an endpoint is and what it is called.

use http::uri::{Authority, PathAndQuery, Scheme, Uri};

use crate::error::{Expected, Result};
use crate::units::printable;

/// A base URL taken apart, and where to dial for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https`.
    pub tls: bool,
    /// As it stands in the URL: the `Host` header.
    pub authority: String,
    /// Host name or address of the URL, without brackets: SNI and certificate checks.
    pub host: String,
    /// Path prefix without a trailing slash; may be empty.
    pub path: String,
    /// What is dialled: host, or that of `connect_to`.
    pub dial_host: String,
    /// What is dialled.
    pub dial_port: u16,
}

impl Endpoint {
    /// Takes a base URL apart. `connect_to` (`host:port`) changes only what is dialled.
    ///
    /// # Errors
    /// If it is not `http(s)://host[:port][/path]`, or carries a query, a fragment or user information (a key in a URL
    /// ends up in logs). The message never shows what came after `?` or before `@`.
    pub fn new(base_url: &str, connect_to: Option<&str>) -> Result<Endpoint> {
        let shown = printable(base_url.split(['?', '#']).next().unwrap_or_default(), 200);
        let shown = shown.rsplit_once('@').map_or(shown.clone(), |(_, host)| format!("...@{host}"));
        let bad = |why: &str| Expected::usage(format!("base URL {shown}: {why}"), "write http(s)://host[:port][/path]");
        if base_url.contains('#') {
            return Err(bad("a fragment has no meaning here"));
        }
        let uri: Uri = base_url.parse().map_err(|_| bad("cannot be read"))?;
        let tls = match uri.scheme() {
            Some(s) if *s == Scheme::HTTP => false,
            Some(s) if *s == Scheme::HTTPS => true,
            _ => return Err(bad("the scheme must be http or https")),
        };
        let authority = uri.authority().ok_or_else(|| bad("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(bad("user information in a URL is refused; use `credentials`"));
        }
        if uri.query().is_some() {
            return Err(bad("a query is refused; a key belongs under `credentials`"));
        }
        let host = bare(authority.host());
        if host.is_empty() {
            return Err(bad("the host is missing"));
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path().trim_end_matches('/').to_owned();
        let (dial_host, dial_port) = match connect_to {
            None => (host.clone(), port),
            Some(text) => {
                let wrong = || {
                    Expected::usage(format!("connect_to {}: not host:port", printable(text, 100)), "write host:port")
                };
                let to: Authority = text.parse().map_err(|_| wrong())?;
                let port = to.port_u16().filter(|_| !text.contains('@')).ok_or_else(wrong)?;
                (bare(to.host()), port)
            }
        };
        Ok(Endpoint { tls, authority: authority.as_str().to_owned(), host, path, dial_host, dial_port })
    }

    /// The whole address of a path below the base, as HTTP/2 wants it.
    ///
    /// # Errors
    /// If `below` is not a path.
    pub fn whole(&self, below: &str) -> Result<Uri> {
        let mut parts = self.target(below)?.into_parts();
        parts.scheme = Some(if self.tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = self.authority.parse::<Authority>().ok();
        Uri::from_parts(parts).map_err(|e| Expected::usage(format!("no address for {}: {e}", self.authority), ""))
    }

    /// The request target for a path below the base, for example `/chat/completions`.
    ///
    /// # Errors
    /// If `below` is not a path.
    pub fn target(&self, below: &str) -> Result<Uri> {
        let text = format!("{}{below}", self.path);
        let path: PathAndQuery =
            text.parse().map_err(|_| Expected::usage(format!("{} is not a path", printable(&text, 100)), ""))?;
        Ok(Uri::from(path))
    }
}

fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_url() {
        let e = Endpoint::new("http://10.20.0.11:8000/v1/", Some("127.0.0.1:18101")).unwrap();
        assert_eq!((e.tls, e.authority.as_str(), e.host.as_str()), (false, "10.20.0.11:8000", "10.20.0.11"));
        assert_eq!((e.dial_host.as_str(), e.dial_port), ("127.0.0.1", 18101));
        assert_eq!(e.target("/chat/completions").unwrap().to_string(), "/v1/chat/completions");
        let e = Endpoint::new("https://api.vendor-x.example", None).unwrap();
        assert_eq!((e.tls, e.dial_port, e.path.as_str()), (true, 443, ""));
        let e = Endpoint::new("http://[::1]:9/v1", None).unwrap();
        assert_eq!((e.authority.as_str(), e.dial_host.as_str(), e.dial_port), ("[::1]:9", "::1", 9));
    }

    #[test]
    fn keys_in_a_url_are_refused_and_not_shown() {
        for url in ["http://h/v1?key=SECRET", "http://SECRET:SECRET@h/v1", "http://h/#SECRET"] {
            let e = Endpoint::new(url, None).unwrap_err();
            assert!(!e.to_string().contains("SECRET"), "{e}");
        }
        for url in ["ftp://h", "h:1", "", "http://", "https:///v1"] {
            assert!(Endpoint::new(url, None).is_err(), "{url}");
        }
        for to in ["h", "h:0x", "a@h:1", ""] {
            assert!(Endpoint::new("http://h", Some(to)).is_err(), "{to}");
        }
    }
}
