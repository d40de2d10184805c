//! Signs of life before there is an answer, where the route wants them (`keep_alive_ms`): comments, which no client takes for
//! content. They cost the status: it is 200 before any attempt is committed, so what would have been an error status is the
//! one error event of the stream then (rule R2). A request that is settled within the first interval has its own status.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use super::super::http::{Answer, Body};
use super::reply::SHOULD_RETRY;

/// An SSE comment in an event of its own.
const COMMENT: &[u8] = b": keep-alive\n\n";

/// The headers that every stream has.
pub fn stream_headers<T>(answer: &mut Response<T>) {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Waits for the answer, and from `every` on with a stream that has begun.
pub async fn answer(mut answering: BoxFuture<'static, Answer>, every: Duration) -> Answer {
    if let Ok(settled) = tokio::time::timeout(every, &mut answering).await {
        return settled;
    }
    let waiting = Early {
        rest: Rest::Waiting(answering.then(as_stream).boxed(), Box::pin(tokio::time::sleep(Duration::ZERO))),
        every,
    };
    let mut begun = Response::new(waiting.boxed_unsync());
    stream_headers(&mut begun);
    begun
}

/// What is left of an answer when its status and headers can no longer be sent.
async fn as_stream(answer: Answer) -> Body {
    let streamed = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if answer.status().is_success() && streamed {
        return answer.into_body();
    }
    // What the header can no longer say: a client that would not repeat the one must not repeat the other.
    let repeat = answer.headers().get(SHOULD_RETRY).is_none_or(|said| said != "false");
    // All of these are documents of this gateway, in memory.
    let document = answer.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let event = error_event(&document, repeat);
    http_body_util::Full::new(event).map_err(|never| match never {}).boxed_unsync()
}

/// An error document as the event that ends a stream. Nothing was delivered, so to send it again is safe, unless the document's
/// own header says that it should not be done.
fn error_event(document: &[u8], repeat: bool) -> Bytes {
    let mut said: serde_json::Value = serde_json::from_slice(document).unwrap_or_default();
    match said.get_mut("error").and_then(serde_json::Value::as_object_mut) {
        Some(error) => {
            error.insert("retry_safe".to_owned(), repeat.into());
            error.insert("tool_calls_delivered".to_owned(), false.into());
        }
        None => said = serde_json::json!({ "error": { "type": "stream_broken", "message": "There is no answer." } }),
    }
    Bytes::from(format!("data: {said}\n\n"))
}

enum Rest {
    Waiting(BoxFuture<'static, Body>, Pin<Box<Sleep>>),
    Come(Body),
}

struct Early {
    rest: Rest,
    every: Duration,
}

impl http_body::Body for Early {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let every = self.every;
        loop {
            match &mut self.rest {
                Rest::Come(body) => return Pin::new(body).poll_frame(cx),
                Rest::Waiting(answering, due) => {
                    if let Poll::Ready(body) = answering.as_mut().poll(cx) {
                        self.rest = Rest::Come(body);
                        continue;
                    }
                    if due.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    due.as_mut().reset(Instant::now() + every);
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_document_is_one_event_that_says_what_it_said() {
        let event = error_event(br#"{"error":{"type":"overloaded","message":"line\nbreak"}}"#, true);
        let text = std::str::from_utf8(&event).unwrap();
        let data = text.strip_prefix("data: ").and_then(|t| t.strip_suffix("\n\n")).unwrap();
        assert!(!data.contains('\n'), "one event");
        let said: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(said["error"]["type"], "overloaded");
        assert_eq!(said["error"]["message"], "line\nbreak");
        assert_eq!(
            (&said["error"]["retry_safe"], &said["error"]["tool_calls_delivered"]),
            (&true.into(), &false.into())
        );
        assert!(error_event(b"", true).starts_with(br#"data: {"error":{"#));
    }
}
