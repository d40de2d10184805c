//! Errors as the API shows them. The texts are those of the real server where it has one.

use serde_json::json;

use crate::fault::toxic::spec::Refused;

/// Status and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// `error` in the body.
    pub text: String,
}

impl ApiError {
    /// Any.
    pub fn new(status: u16, text: impl Into<String>) -> ApiError {
        ApiError { status, text: text.into() }
    }

    /// 400.
    pub fn bad(text: impl Into<String>) -> ApiError {
        ApiError::new(400, text)
    }

    /// 400 for a body that could not be read.
    #[must_use]
    pub fn body(why: &str) -> ApiError {
        ApiError::bad(format!("bad request body: {why}"))
    }

    /// 404.
    #[must_use]
    pub fn no_proxy() -> ApiError {
        ApiError::new(404, "proxy not found")
    }

    /// 404.
    #[must_use]
    pub fn no_toxic() -> ApiError {
        ApiError::new(404, "toxic not found")
    }

    /// 404, ours.
    #[must_use]
    pub fn no_lease() -> ApiError {
        ApiError::new(404, "lease not found")
    }

    /// The body, newline included.
    #[must_use]
    pub fn json(&self) -> String {
        format!("{}\n", json!({ "error": self.text, "status": self.status }))
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::UnknownKind => ApiError::bad("invalid toxic type"),
            Refused::BadJson(why) => ApiError::body(&why),
            Refused::BadValue(why) => ApiError::bad(why),
        }
    }
}
