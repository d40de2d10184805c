//! `/events`: the event bus as server-sent events. A slow reader gets a mark of what it missed; nobody waits for it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::super::app::App;
use super::super::bus::Read;
use super::super::http::Answer;

/// A comment is sent after so long without an event, so that a dead reader is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Starts a stream: `?since=N` or `Last-Event-ID: N` begin after that event, else what happens from now on is sent.
pub fn stream(app: &Arc<App>, request: &Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let asked = query.split('&').find_map(|p| p.strip_prefix("since=")).map(str::to_owned);
    let header = || request.headers().get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let last = app.bus.last_seq();
    let seen = asked.or_else(header).and_then(|v| v.trim().parse::<u64>().ok()).unwrap_or(last).min(last);
    let body = Events {
        app: Arc::clone(app),
        seen,
        waiting: None,
        keep_alive: Box::pin(tokio::time::sleep(KEEP_ALIVE)),
        out: VecDeque::from([Bytes::from_static(b": llmfo events\n\n")]),
    };
    let mut answer = Response::new(body.boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

struct Events {
    app: Arc<App>,
    seen: u64,
    waiting: Option<BoxFuture<'static, bool>>,
    keep_alive: Pin<Box<Sleep>>,
    out: VecDeque<Bytes>,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.out.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(waiting) = &mut this.waiting {
                match waiting.as_mut().poll(cx) {
                    Poll::Ready(true) => this.waiting = None,
                    Poll::Ready(false) => return Poll::Ready(None),
                    Poll::Pending => {
                        if this.keep_alive.as_mut().poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                        this.keep_alive.as_mut().reset(tokio::time::Instant::now() + KEEP_ALIVE);
                        this.out.push_back(Bytes::from_static(b": \n\n"));
                        continue;
                    }
                }
            }
            match this.app.bus.after(this.seen) {
                Some(Read::Event(event)) => {
                    this.seen = event.seq;
                    if let Ok(json) = serde_json::to_string(&*event) {
                        this.out.push_back(Bytes::from(format!("id: {}\ndata: {json}\n\n", event.seq)));
                    }
                }
                Some(Read::Gap(missed)) => {
                    this.seen += missed;
                    this.out.push_back(Bytes::from(format!("event: gap\ndata: {{\"missed\":{missed}}}\n\n")));
                }
                None => {
                    let mut watch = this.app.bus.watch();
                    let seen = this.seen;
                    this.waiting = Some(Box::pin(async move { watch.wait_for(|latest| *latest > seen).await.is_ok() }));
                }
            }
        }
    }
}
