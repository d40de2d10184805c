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
    /// The request may be sent once more on a new connection, and nobody is blamed: it happened on a reused connection before any
    /// byte of the answer (the peer had most likely closed it while idle), or the peer says that it has not taken the request.
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
        if let Some(h2) = cause::<h2::Error>(error)
            && !h2.is_io()
            && !h2.is_remote()
        {
            // What was read is not the HTTP/2 that it claims to be.
            return Fault::new(FaultKind::Protocol, chain(error));
        }
        // A broken chunk header is an io::Error of kind InvalidInput or InvalidData inside hyper's body error.
        if cause::<io::Error>(error)
            .is_some_and(|io| matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
        {
            return Fault::new(FaultKind::Protocol, chain(error));
        }
        Fault::new(FaultKind::Reset, chain(error))
    }

    /// Nobody has worked on the request: it never left, or the peer says so. RFC 9113, 8.7: a stream that was refused, or that
    /// is above the last one of a GOAWAY, has not been processed and may be sent again.
    pub(super) fn went_to_nobody(error: &hyper::Error) -> bool {
        let told = cause::<h2::Error>(error).is_some_and(|h2| {
            h2.is_remote() && (h2.is_go_away() || (h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM)))
        });
        told || error.is_canceled()
    }
}

/// The first cause of this kind.
fn cause<T: std::error::Error + 'static>(error: &hyper::Error) -> Option<&T> {
    std::iter::successors(error.source(), |&cause| cause.source()).find_map(|cause| cause.downcast_ref())
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
