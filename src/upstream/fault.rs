//! How an exchange with a provider fails below HTTP.

use std::error::Error as _;
use std::fmt;
use std::io;

use crate::units::printable;

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The name could not be resolved.
    Dns,
    /// The connect was refused.
    Refused,
    /// The kernel gave up connecting.
    ConnectTimeout,
    /// Another connect error: unreachable, no route, reset while connecting.
    Connect,
    /// TLS handshake or certificate.
    Tls,
    /// Reset or closed before or inside the answer.
    Reset,
    /// The bytes are not the HTTP that they claim to be.
    Protocol,
}

/// A failure below HTTP, with enough known to book it rightly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What failed.
    pub kind: FaultKind,
    /// More, safe to print, bounded.
    pub detail: String,
    /// It happened on a reused connection before any byte of the answer: the peer had most likely closed it while idle.
    pub stale: bool,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, detail: impl fmt::Display) -> Fault {
        Fault { kind, detail: printable(&detail.to_string(), 200), stale: false }
    }

    pub(super) fn connect(error: &io::Error) -> Fault {
        let kind = match error.kind() {
            io::ErrorKind::ConnectionRefused => FaultKind::Refused,
            io::ErrorKind::TimedOut => FaultKind::ConnectTimeout,
            _ => FaultKind::Connect,
        };
        Fault::new(kind, error)
    }

    /// From hyper, after the connection stood.
    pub(super) fn exchange(error: &hyper::Error) -> Fault {
        if error.is_parse() {
            return Fault::new(FaultKind::Protocol, chain(error));
        }
        // A broken chunk header is an io::Error of kind InvalidInput or InvalidData inside hyper's body error.
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(io) = cause.downcast_ref::<io::Error>()
                && matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
            {
                return Fault::new(FaultKind::Protocol, chain(error));
            }
            source = cause.source();
        }
        Fault::new(FaultKind::Reset, chain(error))
    }
}

fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Dns => "name resolution failed",
            FaultKind::Refused => "connection refused",
            FaultKind::ConnectTimeout => "connect timed out",
            FaultKind::Connect => "connect failed",
            FaultKind::Tls => "TLS failed",
            FaultKind::Reset => "connection broken",
            FaultKind::Protocol => "not valid HTTP",
        };
        write!(f, "{kind} ({})", self.detail)
    }
}

impl std::error::Error for Fault {}
