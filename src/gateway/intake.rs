//! Taking a request in: its body, bounded, and what it says about itself.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clients::book::Client;
use super::http::Refusal;
use crate::policy::{DataClass, Policy, Route};
use crate::router::{Conversation, Facts};
use crate::units::printable;
use crate::wire::ChatRequest;

/// Largest request body: 32 MiB, above what providers take (case B161).
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// After a body has passed its limit, so much more of it is read and thrown away, so that the client reads the refusal
/// instead of a reset connection.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// Longest silence while a body is uploaded.
const UPLOAD_IDLE: Duration = Duration::from_secs(30);
/// Request bodies held at one moment, all requests together, if nothing else is said: 32 of the largest.
pub const BODIES_BYTES: usize = 1 << 30;
/// Longest value of an `x-llmfo-*` header, in bytes.
const LABEL_BYTES_MAX: usize = 256;

/// Why a body was not taken. Both are answered: who has only closed its sending direction may still read it.
#[derive(Debug)]
pub enum NotTaken {
    /// It may not be, or cannot.
    Refused(Refusal),
    /// The client has left in the middle of it.
    Gone(Refusal),
}

/// A body with its share of the memory that all bodies may take.
pub struct Taken {
    /// The bytes as they came.
    pub bytes: Bytes,
    _share: Share,
}

/// Memory for request bodies, in KiB.
#[must_use]
pub fn memory(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((bytes / 1024).min(Semaphore::MAX_PERMITS)))
}

/// What one body holds of that memory.
struct Share {
    memory: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Holds so much in all; never waits.
    fn grow(&mut self, bytes: usize) -> Result<(), NotTaken> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(held)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let refused = |_| NotTaken::Refused(no_room());
        let permit = Arc::clone(&self.memory).try_acquire_many_owned(more).map_err(refused)?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        Ok(())
    }
}

/// Reads a body.
///
/// # Errors
/// Why it was not taken.
pub async fn body(request: Request<Incoming>, memory: &Arc<Semaphore>) -> Result<Taken, NotTaken> {
    let (head, mut body) = request.into_parts();
    if head.headers.get_all(CONTENT_ENCODING).iter().any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(NotTaken::Refused(Refusal::invalid(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_encoding",
            "Send the request body without Content-Encoding.",
        )));
    }
    if !plainly_chunked(&head.headers) {
        let text = "Send the request body as it is, with Content-Length or in plain chunks: no other Transfer-Encoding is read.";
        let refusal = Refusal::invalid(StatusCode::NOT_IMPLEMENTED, "unsupported_transfer_encoding", text).closing();
        return Err(NotTaken::Refused(refusal));
    }
    let declared =
        head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse::<u64>().ok());
    // Refused before a byte of it is read: with `Expect: 100-continue` the client then never uploads it.
    if declared.is_some_and(|n| n > BODY_BYTES_MAX as u64) {
        return Err(NotTaken::Refused(too_large()));
    }
    let mut share = Share { memory: Arc::clone(memory), held: None };
    let reserved = usize::try_from(declared.unwrap_or(0)).unwrap_or(0);
    // So is one for which there is no room now.
    share.grow(reserved)?;
    // Pages that nothing is written to take no memory.
    let mut all = BytesMut::with_capacity(reserved);
    let mut over = 0usize;
    loop {
        let frame = match tokio::time::timeout(UPLOAD_IDLE, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(e))) => return Err(broken(&e)),
            Ok(None) => break,
            Err(_) => {
                return Err(NotTaken::Refused(Refusal::invalid(
                    StatusCode::REQUEST_TIMEOUT,
                    "request_timeout",
                    format!(
                        "Nothing of the request body has come for {} s; send the request again.",
                        UPLOAD_IDLE.as_secs()
                    ),
                )));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        if over > 0 || all.len() + data.len() > BODY_BYTES_MAX {
            over += data.len();
            all.clear();
            if over > DISCARD_BYTES_MAX {
                break;
            }
            continue;
        }
        share.grow(all.len() + data.len())?;
        all.extend_from_slice(&data);
    }
    if over > 0 { Err(NotTaken::Refused(too_large())) } else { Ok(Taken { bytes: all.freeze(), _share: share }) }
}

/// Chunked and nothing else, or no transfer coding at all. hyper reads the chunks whatever lies below them, and what it gives
/// for the body would then be another one (compressed) than the client meant.
fn plainly_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next().is_none_or(|v| v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"));
    first && codings.next().is_none()
}

fn too_large() -> Refusal {
    Refusal::invalid(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_too_large",
        format!("The request body is larger than {} MiB; shorten the conversation or its files.", BODY_BYTES_MAX >> 20),
    )
}

/// Broken off, or not the chunks that it says it is. hyper tells the second as an I/O error of one of two kinds.
fn broken(error: &hyper::Error) -> NotTaken {
    let refusal = Refusal::invalid(
        StatusCode::BAD_REQUEST,
        "invalid_body_framing",
        "The request body broke off, or its transfer coding is not valid HTTP; send the whole request again.",
    )
    .closing();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let garbage = causes
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| matches!(io.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData));
    if garbage || error.is_parse() { NotTaken::Refused(refusal) } else { NotTaken::Gone(refusal) }
}

fn no_room() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "request_memory",
        "Too many large requests are under way; try again in a moment.",
    )
    .retry_after(Duration::from_secs(1))
}

/// What a request says about itself: headers, else `metadata.llmfo_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Route.
    pub route: Option<String>,
    /// Intent.
    pub intent: Option<String>,
    /// Task.
    pub task: Option<String>,
    /// Data class.
    pub data: Option<String>,
    /// Conversation.
    pub conversation: Option<String>,
    /// Turn.
    pub turn: Option<u64>,
    /// Version of the history that the client holds.
    pub history_version: Option<u64>,
    /// The client says that it repeats this turn.
    pub repeats: bool,
}

/// Reads the labels of a request.
///
/// # Errors
/// The refusal of one that cannot be read: guessing what a filter should see would be worse.
pub fn labels(headers: &HeaderMap, request: &ChatRequest) -> Result<Labels, Refusal> {
    let label = |name: &'static str, key: &str| -> Result<Option<String>, Refusal> {
        let mut all = headers.get_all(name).iter();
        let said = all.next();
        if all.next().is_some() {
            return Err(bad_label(name, "is there twice"));
        }
        let text = match (said, request.labels.get(key)) {
            (Some(value), _) => value.to_str().ok(),
            (None, Some(value)) => Some(value.as_str()).filter(|v| v.chars().all(|c| matches!(c, ' '..='~'))),
            (None, None) => return Ok(None),
        };
        let text = text.ok_or_else(|| bad_label(name, "is not plain ASCII"))?.trim();
        if text.len() > LABEL_BYTES_MAX {
            return Err(bad_label(name, "is too long"));
        }
        Ok((!text.is_empty()).then(|| text.to_owned()))
    };
    let data = label("x-llmfo-data", "data")?;
    if data.as_deref().is_some_and(|d| !matches!(d, "personal" | "none")) {
        return Err(bad_label("x-llmfo-data", "is neither `personal` nor `none`"));
    }
    let number = |name: &'static str, key: &str| -> Result<Option<u64>, Refusal> {
        label(name, key)?.map(|text| text.parse().map_err(|_| bad_label(name, "is not a whole number"))).transpose()
    };
    let repeats = match label("x-llmfo-retry", "retry")?.as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(_) => return Err(bad_label("x-llmfo-retry", "is neither `1` nor `0`")),
    };
    Ok(Labels {
        route: label("x-llmfo-route", "route")?,
        intent: label("x-llmfo-intent", "intent")?,
        task: label("x-llmfo-task", "task")?,
        data,
        conversation: label("x-llmfo-conversation", "conversation")?,
        turn: number("x-llmfo-turn", "turn")?,
        history_version: number("x-llmfo-history-version", "history_version")?,
        repeats,
    })
}

fn bad_label(name: &str, why: &str) -> Refusal {
    Refusal::invalid(
        StatusCode::BAD_REQUEST,
        "invalid_label",
        format!("The header {name} (or its metadata member) {why}; correct it or leave it out."),
    )
}

/// What a request says about its data: nothing is personal.
#[must_use]
pub fn data(labels: &Labels) -> DataClass {
    if labels.data.as_deref() == Some("none") { DataClass::None } else { DataClass::Personal }
}

/// What the core is told about a request. `client`: who asks, see [`client`].
///
/// # Errors
/// A conversation whose calls could not be kept apart.
pub fn facts(
    policy: &Policy,
    route: &Route,
    request: &ChatRequest,
    labels: &Labels,
    client: String,
    expired: bool,
) -> Result<Facts, Refusal> {
    // No `tools:` on a route: offered tools count as unlisted, and so does one that the route does not name.
    let risky = |tool: &String| !route.tools.contains(tool) || policy.side_effects(tool).risky();
    let risky_tools = request.tools.iter().any(risky);
    Ok(Facts {
        route: route.id,
        stream: request.stream,
        intent: labels.intent.clone(),
        data: data(labels),
        tools: !request.tools.is_empty(),
        risky_tools,
        vision: request.images,
        strict_schema: request.strict_schema,
        strict_decoding: request.strict_schema && !request.adaptable(),
        body_bytes: request.body().len() as u64,
        max_output_tokens: request.max_output_tokens,
        task: labels.task.clone().unwrap_or_else(|| "customer_reply".to_owned()),
        expired,
        open_conversation: labels.turn.is_some_and(|turn| turn > 1),
        unmaskable: None,
        prompt_sha256: None,
        conversation: conversation(request, labels, client, risky_tools)?,
    })
}

/// Where a request stands in its conversation, if it names one. Two kinds of request cannot be kept in a ledger: `n` above one
/// (the client runs the calls of one choice, and nobody knows of which), and the old `functions` (their calls have no id). They are
/// refused where they offer a tool that must not run twice, and only observed where not.
fn conversation(
    request: &ChatRequest,
    labels: &Labels,
    client: String,
    risky_tools: bool,
) -> Result<Option<Conversation>, Refusal> {
    let Some(id) = labels.conversation.clone() else { return Ok(None) };
    let what = match (request.choices > 1 && !request.tools.is_empty(), request.old_functions) {
        (true, _) => ("n", "several choices (`n`)", "ask for one choice"),
        (_, true) => ("functions", "the old `functions`", "offer them as `tools`"),
        (false, false) => {
            let mut results = Vec::new();
            if request.tool_results > 0 {
                results.extend(request.messages().into_iter().filter_map(|m| m.tool_call_id).filter(|id| ours(id)));
            }
            return Ok(Some(Conversation {
                client,
                id,
                turn: labels.turn.unwrap_or_else(|| u64::from(request.user_messages)),
                history_version: labels.history_version,
                repeats: labels.repeats,
                calls_so_far: request.calls_of_turn,
                results,
            }));
        }
    };
    if !risky_tools {
        return Ok(None);
    }
    let (param, what, instead) = what;
    Err(Refusal::invalid(
        StatusCode::BAD_REQUEST,
        "not_in_a_conversation",
        format!(
            "With {what} a tool that changes something could be run twice unnoticed; {instead}, or leave x-llmfo-conversation out."
        ),
    )
    .param(Some(param)))
}

/// An id that this gateway gives: whatever else a client sends is none of the ledger's business, and not remembered.
fn ours(id: &str) -> bool {
    id.strip_prefix("call_").is_some_and(|hex| hex.len() == 24 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A name for whoever asks: that of its key where clients have keys, else by the credential that the request carries. Two
/// applications never share a conversation, and neither's key is written down anywhere. Without one it is `anonymous`.
#[must_use]
pub fn client(named: Option<&str>, headers: &HeaderMap) -> String {
    if let Some(name) = named {
        return format!("client:{name}");
    }
    let Some(credential) = headers.get(AUTHORIZATION) else { return "anonymous".to_owned() };
    let mut text = b"llmfo client\0".to_vec();
    text.extend_from_slice(credential.as_bytes());
    let hash = crate::policy::sha256_hex(&text);
    format!("key-{}", hash.get(..16).unwrap_or(&hash))
}

/// 404 as an OpenAI client knows it, with the names that would have been right for this client.
#[must_use]
pub fn unknown_route(policy: &Policy, client: Option<&Client>, asked: &str) -> Refusal {
    let may = || policy.live_routes().filter(|r| client.is_none_or(|c| c.may(&r.name)));
    let known: Vec<&str> = may().take(20).map(|r| r.name.as_str()).collect();
    let more = may().count().saturating_sub(known.len());
    let mut text =
        format!("The model `{}` is no route of this gateway; known: {}", printable(asked, 80), known.join(", "));
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text.push_str("; ask for one of these as `model`.");
    Refusal::invalid(StatusCode::NOT_FOUND, "model_not_found", text).param(Some("model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> ChatRequest {
        ChatRequest::parse(Bytes::from(body.to_owned())).unwrap()
    }

    #[test]
    fn headers_win_over_metadata_and_bad_ones_are_refused() {
        let r = request(r#"{"model":"chat","metadata":{"llmfo_intent":"shipping","llmfo_turn":"4"},"messages":[]}"#);
        let mut headers = HeaderMap::new();
        headers.insert("x-llmfo-intent", "order_status".parse().unwrap());
        let got = labels(&headers, &r).unwrap();
        assert_eq!((got.intent.as_deref(), got.turn, got.data), (Some("order_status"), Some(4), None));
        for (name, value) in [
            ("x-llmfo-data", "publik"),
            ("x-llmfo-turn", "two"),
            ("x-llmfo-retry", "yes"),
            ("x-llmfo-history-version", "v2"),
            ("x-llmfo-conversation", &"c".repeat(300)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(labels(&headers, &r).unwrap_err().status, 400, "{name}");
        }
        // In the body the same holds: a conversation that is left out silently would have no ledger.
        for said in ["café", &"c".repeat(300), &"c".repeat(3_000), "a\\u0007b"] {
            let body = format!(r#"{{"model":"chat","metadata":{{"llmfo_conversation":"{said}"}},"messages":[]}}"#);
            assert_eq!(labels(&HeaderMap::new(), &request(&body)).unwrap_err().status, 400, "{said}");
        }
    }
}
