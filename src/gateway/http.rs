//! Bodies and error replies of both listeners.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
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

/// The header that names a request.
pub const REQUEST_ID: &str = "x-llmfo-request-id";

/// An error of the gateway's own: what is wrong and what to do next. The one way to refuse, so that none lacks the OpenAI shape
/// or the request id.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Status.
    pub status: StatusCode,
    kind: &'static str,
    code: &'static str,
    message: String,
    param: Option<&'static str>,
    allow: Option<&'static str>,
    wait: Option<Duration>,
    close: bool,
    bearer: bool,
}

impl Refusal {
    /// With its `type`, `code` and `message`.
    #[must_use]
    pub fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            kind,
            code,
            message: message.into(),
            param: None,
            allow: None,
            wait: None,
            close: false,
            bearer: false,
        }
    }

    /// A mistake in the request: status and `code` are the caller's to act on.
    #[must_use]
    pub fn invalid(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal::new(status, "invalid_request_error", code, message)
    }

    /// The parameter that is wrong.
    #[must_use]
    pub fn param(self, param: Option<&'static str>) -> Refusal {
        Refusal { param, ..self }
    }

    /// When it is worth to come again.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Refusal {
        Refusal { wait: Some(wait), ..self }
    }

    /// The connection is not to be used again.
    #[must_use]
    pub fn closing(self) -> Refusal {
        Refusal { close: true, ..self }
    }

    /// A key is wanted.
    #[must_use]
    pub fn bearer(self) -> Refusal {
        Refusal { bearer: true, ..self }
    }

    /// The body of its answer.
    #[must_use]
    pub fn body(&self, request: &str) -> Bytes {
        let id = [("request_id", serde_json::json!(request))];
        error_body(self.kind, Some(self.code), &self.message, self.param, &id)
    }

    /// Its answer. The header with the id is the listener's.
    #[must_use]
    pub fn answer(&self, request: &str) -> Answer {
        let mut answer = json(self.status, self.body(request));
        let headers = answer.headers_mut();
        if let Some(allowed) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        if let Some(wait) = self.wait {
            retry_after(headers, wait);
        }
        if self.bearer {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Nothing is at this path; `there` says what is.
#[must_use]
pub fn not_found(path: &str, there: &str) -> Refusal {
    let path = crate::units::printable(path, 100);
    Refusal::invalid(StatusCode::NOT_FOUND, "unknown_url", format!("Unknown request URL: {path}. {there}"))
}

/// The path is right, the method is not.
#[must_use]
pub fn wrong_method(allowed: &'static str) -> Refusal {
    let message = format!("This URL takes {allowed} only; send the request with that method.");
    let refusal = Refusal::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    Refusal { allow: Some(allowed), ..refusal }
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
