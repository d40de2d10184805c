//! What was seen on the wire, in the core's words.

use http::HeaderMap;

use crate::router::{Failure, StatusFailure};
use crate::upstream::{Fault, FaultKind};
use crate::wire::retry_after::retry_after;
use crate::wire::{ErrorObject, StreamFault};

/// A failure below HTTP.
#[must_use]
pub fn of_fault(fault: &Fault) -> Failure {
    match fault.kind {
        FaultKind::Dns => Failure::Dns,
        FaultKind::Refused => Failure::Refused,
        FaultKind::ConnectTimeout => Failure::ConnectTimeout,
        FaultKind::Connect => Failure::Connect(fault.detail.clone()),
        FaultKind::Tls => Failure::Tls(fault.detail.clone()),
        FaultKind::Reset => Failure::Reset,
        FaultKind::Protocol => Failure::Malformed(fault.detail.clone()),
    }
}

/// An error answer, or an error object inside a success.
#[must_use]
pub fn of_error(error: &ErrorObject, headers: &HeaderMap) -> Failure {
    let now = i64::try_from(super::super::bus::unix_ms() / 1000).unwrap_or(i64::MAX);
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    Failure::Status(StatusFailure {
        status: error.status,
        openai_shape: error.openai_shape,
        kind: error.kind.clone(),
        code: error.code.clone(),
        param: error.param.clone(),
        message: error.message.clone(),
        retry_after: retry_after(header, now).or(error.retry_after_hint),
    })
}

/// An answer that is none.
#[must_use]
pub fn of_stream(fault: StreamFault, headers: &HeaderMap) -> Failure {
    match fault {
        StreamFault::Empty => Failure::Empty,
        StreamFault::Truncated => Failure::Truncated,
        StreamFault::Cut => Failure::Reset,
        StreamFault::Malformed(what) => Failure::Malformed(what),
        StreamFault::BadFinish(reason) => Failure::BadFinish(reason),
        StreamFault::TooLarge => Failure::TooLarge,
        StreamFault::Error(error) => of_error(&error, headers),
    }
}
