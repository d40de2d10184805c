//! What can go wrong between us and a fault server.

use std::fmt;

use crate::error::Expected;
use crate::units::printable;

/// What kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// 404: no such proxy, toxic or lease.
    NotFound,
    /// 409: the name is taken.
    Conflict,
    /// No answer within the limit of a call, or the server gave up on it (503). What it did is unknown: read back.
    Timeout,
    /// No connection.
    Unreachable,
    /// The server refused what was asked.
    Rejected,
    /// The server agreed, and then showed something else.
    NotAsAsked,
    /// The answer is not that of such a server.
    BadAnswer,
    /// Refused here, before anything was sent.
    Invalid,
}

/// A failed call: what was called, what happened, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultError {
    /// For example `POST http://127.0.0.1:8474/proxies`.
    pub call: String,
    /// What happened.
    pub what: String,
    /// What kind.
    pub kind: FaultKind,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
}

impl FaultError {
    /// A failure of a call. Text from outside is made printable and bounded.
    pub fn new(call: &str, kind: FaultKind, what: impl AsRef<str>) -> FaultError {
        FaultError { call: call.to_owned(), what: printable(what.as_ref(), 300), kind, status: None }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.kind {
            FaultKind::Unreachable => {
                "check that the fault server runs and that the URL is its API (default port 8474)"
            }
            FaultKind::Timeout => {
                "the fault server hangs on this proxy; deleting the proxy frees it (llmfo drill clean does so)"
            }
            FaultKind::BadAnswer => "something else answers on this port; check the URL of the fault server",
            FaultKind::NotFound => "list what is there: GET /proxies",
            FaultKind::Conflict => "another run or an earlier one left it there: llmfo drill clean",
            FaultKind::NotAsAsked => "somebody else may be changing the same server; look at GET /proxies",
            FaultKind::Rejected | FaultKind::Invalid => "correct the values and run it again",
        }
    }

    /// The call is over and did nothing, for certain.
    #[must_use]
    pub fn did_nothing(&self) -> bool {
        matches!(self.kind, FaultKind::NotFound | FaultKind::Conflict | FaultKind::Rejected | FaultKind::Invalid)
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.what)
    }
}

impl std::error::Error for FaultError {}

impl From<FaultError> for Expected {
    fn from(error: FaultError) -> Expected {
        let text = error.to_string();
        match error.kind {
            FaultKind::Invalid => Expected::usage(text, error.hint()),
            _ => Expected::could_not(text, error.hint()),
        }
    }
}
