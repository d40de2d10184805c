//! What was seen on the wire, in the core's words.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode};

use crate::router::classify::classify;
use crate::router::{Failure, StatusFailure};
use crate::upstream::{Fault, FaultKind};
use crate::wire::retry_after::retry_after;
use crate::wire::{ErrorObject, Secrets, StreamFault};

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

/// How the body of an error answer came to its end.
#[derive(Clone, Copy, Debug)]
pub enum BodyEnd<'a> {
    /// As HTTP says.
    Proper,
    /// It is longer than what is read of one.
    Enough,
    /// It broke off.
    Broken(&'a Fault),
}

/// An error answer, once its body is over. One that did not arrive whole is evidence against nobody but whoever sent it,
/// whatever its status: it is the provider's failure, as silence in its middle is (which the core's limits end). Nothing has
/// been delivered, so another target may answer. What the gateway itself cut off is no such case.
///
/// `body` is `None` where a codec hides it that was not asked for: then the status alone speaks, and it may not blame the
/// caller, whose mistake nobody can read (case B041).
#[must_use]
pub fn of_error_answer(
    status: StatusCode,
    headers: &HeaderMap,
    body: Option<&[u8]>,
    end: BodyEnd<'_>,
    secrets: &Secrets,
) -> (Failure, Option<ErrorObject>) {
    if let BodyEnd::Broken(fault) = end {
        return (of_fault(fault), None);
    }
    let Some(body) = body else {
        let failure = of_error(&ErrorObject { status: status.as_u16(), ..ErrorObject::default() }, headers);
        let hidden = classify(&failure).class.returned_as_it_is();
        return (if hidden { coded(headers) } else { failure }, None);
    };
    match end {
        BodyEnd::Proper if torn(headers, body) => return (Failure::Truncated, None),
        BodyEnd::Proper | BodyEnd::Enough | BodyEnd::Broken(_) => {}
    }
    let mut error = ErrorObject::read(status.as_u16(), body, secrets);
    let failure = of_error(&error, headers);
    if let Failure::Status(told) = &failure {
        // Whoever gets the error as it is gets this too.
        error.retry_after_hint = told.retry_after;
    }
    (failure, Some(error))
}

/// The body can be read as it is.
#[must_use]
pub fn plain(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().all(|v| {
        v.to_str().is_ok_and(|v| v.split(',').all(|c| c.trim().is_empty() || c.trim().eq_ignore_ascii_case("identity")))
    })
}

/// A body under a codec that was not asked for and is not decoded.
#[must_use]
pub fn coded(headers: &HeaderMap) -> Failure {
    let what = headers.get(CONTENT_ENCODING).map(|v| String::from_utf8_lossy(v.as_bytes())).unwrap_or_default();
    Failure::Malformed(format!("content-encoding {}, which was not asked for", crate::units::printable(&what, 40)))
}

/// Without a length and without chunks the end of the connection is the end of the body, whoever brought it about. JSON that
/// ends before it is whole was cut off then.
fn torn(headers: &HeaderMap, body: &[u8]) -> bool {
    let framed = headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING);
    let begins_as_json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    let cut = || serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err_and(|e| e.is_eof());
    !framed && begins_as_json && cut()
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
