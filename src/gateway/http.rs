//! Bodies and error replies of both listeners.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

use crate::wire::error::error_body;

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
/// Every answer.
pub type Answer = Response<Body>;

/// A body that is already whole.
#[must_use]
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer with a content type and a whole body.
#[must_use]
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(whole(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// A JSON answer that no cache may keep.
#[must_use]
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = answer(status, "application/json", body);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An error in OpenAI shape.
#[must_use]
pub fn refuse(status: StatusCode, kind: &str, code: &str, message: &str) -> Answer {
    json(status, error_body(kind, Some(code), message, None, &[]))
}

/// Nothing is at this path.
#[must_use]
pub fn not_found(path: &str) -> Answer {
    let path = crate::units::printable(path, 100);
    refuse(StatusCode::NOT_FOUND, "invalid_request_error", "unknown_url", &format!("Unknown request URL: {path}."))
}

/// The path is right, the method is not.
#[must_use]
pub fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid_request_error",
        "method_not_allowed",
        &format!("This URL takes {allowed} only."),
    );
    answer.headers_mut().insert(http::header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// Whole seconds, rounded up, at least one: a `Retry-After` of zero invites a storm.
pub fn retry_after(headers: &mut HeaderMap, wait: Duration) {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
}

/// Sets a header from text of our own, if a header can hold it.
pub fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_after_is_never_too_early() {
        for (ms, want) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2"), (47_000, "47")] {
            let mut headers = HeaderMap::new();
            retry_after(&mut headers, Duration::from_millis(ms));
            assert_eq!(headers["retry-after"], want);
        }
    }
}
