//! Masking in the gateway: which names a request declares, whether it can be masked, and the masking itself, once per request
//! and only when a target is dialled that wants it.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::http::Refusal;
use crate::policy::{Pii, Route};
use crate::router;
use crate::wire::ChatRequest;
use crate::wire::mask::{self, Masked, Names, SURE_BYTES, Unmaskable};

/// The header that declares names: separated by commas, what is not ASCII percent-encoded.
const HEADER: &str = "x-llmfo-names";
/// Longest list, in bytes.
const LIST_BYTES_MAX: usize = 8192;

/// What is needed to mask one request. It lives as long as the request.
pub struct Masking {
    names: Names,
    made: Option<Arc<Masked>>,
}

impl Masking {
    /// Whether a request with `personal` data can be masked, if a tier of its route would want it masked. A body that is so large that only the masking
    /// itself can tell is masked here, beside the other requests; any other one when it is needed.
    pub async fn prepare(
        route: &Route,
        request: &ChatRequest,
        personal: bool,
        names: Names,
    ) -> (Masking, Option<router::Unmaskable>) {
        let wanted = personal && route.tiers.iter().any(|tier| route.pii(tier) == Pii::Masked);
        let mut masking = Masking { names, made: None };
        if !wanted {
            return (masking, None);
        }
        if let Some(why) = mask::unmaskable(request) {
            return (masking, Some(of(why)));
        }
        if request.body().len() >= SURE_BYTES {
            let (request, names) = (request.clone(), masking.names.clone());
            match tokio::task::spawn_blocking(move || mask::mask(&request, &names)).await {
                Ok(Ok(made)) => masking.made = Some(Arc::new(made)),
                Ok(Err(why)) => return (masking, Some(of(why))),
                // It panicked, a bug: nobody gets it, masked or not, who must not have it as it is.
                Err(_) => return (masking, Some(router::Unmaskable::Shape)),
            }
        }
        (masking, None)
    }

    /// The request, masked.
    ///
    /// # Errors
    /// It cannot be, though [`Masking::prepare`] said so: a bug.
    pub fn masked(&mut self, request: &ChatRequest) -> Result<Arc<Masked>, &'static str> {
        if let Some(made) = &self.made {
            return Ok(Arc::clone(made));
        }
        let made = mask::mask(request, &self.names).map_err(|_| "the request could not be masked")?;
        Ok(Arc::clone(self.made.insert(Arc::new(made))))
    }
}

fn of(why: Unmaskable) -> router::Unmaskable {
    match why {
        Unmaskable::Part => router::Unmaskable::Part,
        Unmaskable::Shape => router::Unmaskable::Shape,
        Unmaskable::Sound => router::Unmaskable::Sound,
        Unmaskable::TooMany => router::Unmaskable::TooMany,
    }
}

/// The names that a request declares: in its header and in `metadata.llmfo_names`, both together.
///
/// # Errors
/// The refusal of a list that cannot be read: a declared name is never passed over.
pub fn names(headers: &HeaderMap, request: &ChatRequest) -> Result<Names, Refusal> {
    let mut all: Vec<String> = Vec::new();
    for value in headers.get_all(HEADER) {
        let text = value.to_str().map_err(|_| bad("is not plain ASCII; percent-encode the rest"))?;
        if text.len() > LIST_BYTES_MAX {
            return Err(bad("is longer than 8 KiB"));
        }
        for name in text.split(',') {
            all.push(decoded(name.trim()).ok_or_else(|| bad("is not percent-encoded UTF-8"))?.into_owned());
        }
    }
    match request.declared_names() {
        Ok(list) => all.extend(list),
        Err(why) => return Err(bad(why)),
    }
    Names::declared(&all).map_err(|why| bad(why.why()))
}

fn bad(why: &str) -> Refusal {
    Refusal::invalid(
        StatusCode::BAD_REQUEST,
        "invalid_label",
        format!("The header {HEADER} (or its metadata member) {why}; correct it or leave it out."),
    )
}

/// `%41` and the like resolved; a `%` that begins none stays.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, code)) = rest.split_once('%') {
        out.extend_from_slice(plain.as_bytes());
        let two = code.get(..2).filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        match two.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = code.get(2..).unwrap_or_default();
            }
            None => {
                out.push(b'%');
                rest = code;
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    String::from_utf8(out).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn declared(header: Option<&str>, metadata: &str) -> Result<String, String> {
        let body = format!(r#"{{"model":"chat","metadata":{metadata},"messages":[]}}"#);
        let request = ChatRequest::parse(Bytes::from(body)).unwrap();
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(HEADER, header.parse().unwrap());
        }
        let told = |refusal: Refusal| String::from_utf8(refusal.body("r").to_vec()).unwrap();
        names(&headers, &request).map(|n| format!("{n:?}")).map_err(told)
    }

    #[test]
    fn names_come_from_both_places_and_none_is_passed_over() {
        assert!(declared(Some("Anna, J%C3%BCrgen M%C3%BCller"), "{}").unwrap().contains("names: 2"));
        assert!(declared(Some("Anna"), r#"{"llmfo_names":"Bob,王小明"}"#).unwrap().contains("names: 3"));
        assert!(declared(None, r#"{"llmfo_names":["Bob","Carl, Jr."]}"#).unwrap().contains("names: 2"));
        assert!(declared(None, "{}").unwrap().contains("names: 0"));
        for (header, metadata) in [
            (Some("A"), "{}"),
            (Some("%ff%fe"), "{}"),
            (None, r#"{"llmfo_names":5}"#),
            (None, r#"{"llmfo_names":["Bob",5]}"#),
            (None, r#"{"llmfo_names":{"a":"Bob"}}"#),
        ] {
            let told = declared(header, metadata).unwrap_err();
            assert!(told.contains("x-llmfo-names") && told.contains("invalid_label"), "{told}");
        }
        let long = format!(r#"{{"llmfo_names":"{}"}}"#, "Anna Canary,".repeat(1000));
        let told = declared(None, &long).unwrap_err();
        assert!(!told.contains("Canary"), "{told}");
    }
}
