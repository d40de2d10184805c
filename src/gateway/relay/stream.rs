//! After the commit point: the response body that reads the provider's answer as fast as the client takes it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;

use super::super::app::App;
use super::super::clients::Permit;
use super::super::driver::{Abort, AttemptKey, Cmd, Ticket};
use super::super::http::Body;
use super::super::ledger::Written;
use super::Calls;
use super::attempt::{Attempt, Broke, InFlight, Step};
use crate::policy::Policy;
use crate::router::Failure;
use crate::router::classify::{Class, classify};
use crate::wire::Stamp;
use crate::wire::error::sse_error_event;

const DONE: &[u8] = b"data: [DONE]\n\n";

struct Relay {
    app: Arc<App>,
    ticket: Ticket,
    /// `None` once it is over.
    attempt: Option<Box<Attempt>>,
    request: String,
    came: CameIn,
    out: VecDeque<Bytes>,
    /// Calls that are being written down: nothing follows before.
    writing: Option<(Vec<Stamp>, Written)>,
    /// When the client was last given something: until it comes back for more, the time is its own.
    handed: Option<Instant>,
    _open: InFlight,
}

/// How the request came in, whatever holds by now.
pub struct CameIn {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The route's name.
    pub route: String,
    /// What becomes of its calls.
    pub calls: Calls,
    /// Whose it is, where clients have keys; it counts as open until this is dropped.
    pub client: Option<Arc<Permit>>,
}

/// The rest of a committed stream.
pub fn relay(
    app: Arc<App>,
    ticket: Ticket,
    attempt: Box<Attempt>,
    request: String,
    came: CameIn,
    open: InFlight,
) -> Body {
    let out = VecDeque::new();
    Relay { app, ticket, attempt: Some(attempt), request, came, out, writing: None, handed: None, _open: open }
        .boxed_unsync()
}

impl http_body::Body for Relay {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.out.pop_front() {
                this.handed = Some(Instant::now());
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(attempt) = &mut this.attempt else { return Poll::Ready(None) };
            if let Some(at) = this.handed.take() {
                attempt.forgive(at.elapsed());
            }
            if let Poll::Ready(cmd) = this.ticket.poll_next(cx) {
                this.command(cmd);
                continue;
            }
            if let Some((_, written)) = &mut this.writing {
                match written.poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(durable) => this.written(durable),
                }
                continue;
            }
            match attempt.poll_step(cx, this.app.anchor) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(step) => this.step(step),
            }
        }
    }
}

impl Relay {
    fn command(&mut self, cmd: Option<Cmd>) {
        match cmd {
            Some(Cmd::Calls { stamps, overwritten, written, .. }) => {
                if let Some(attempt) = &self.attempt {
                    self.app.keys_overwritten(attempt.target, overwritten);
                    self.writing = Some((stamps, written));
                }
            }
            // The core ends an answer that does not fail by itself only where its calls came too late.
            Some(Cmd::Break(Class::ClientGone)) => {
                self.ticket.over();
                let message =
                    "This turn was answered by another request in the meantime, with calls; send it again to get them.";
                self.end_with_error("answered_meanwhile", message);
            }
            Some(Cmd::Break(class)) => {
                self.ticket.over();
                self.end_with_error(class.name(), "The answer of the model broke off.");
            }
            Some(Cmd::Abort(Abort::Draining)) => {
                self.end_with_error("shutting_down", "This gateway is shutting down; the answer was cut off.");
            }
            Some(Cmd::Abort(Abort::CoreLost) | Cmd::Cancel(_)) | None => {
                self.end_with_error("gateway_fault", "The gateway lost this request; the answer was cut off.");
            }
            // Nothing else can follow a delivery.
            Some(Cmd::Dial { .. } | Cmd::Deliver { .. } | Cmd::Reply { .. }) => {}
        }
    }

    fn step(&mut self, step: Step) {
        let Some(attempt) = &self.attempt else { return };
        let (key, target) = (attempt.key, attempt.target);
        match step {
            Step::Out(out) => self.out.extend(out),
            Step::Ended(ended) => {
                let came = &self.came;
                self.app.ended(&came.route, target, came.calls, came.client.as_deref(), &ended);
                if ended.append_done {
                    self.out.push_back(Bytes::from_static(DONE));
                }
                self.attempt = None;
                self.ticket.over();
                self.ticket.driver().ended(key, ended.usage);
            }
            Step::Broke(broke) => {
                let Broke { failure, stale, tool_calls_delivered, .. } = *broke;
                self.broke(key, failure, stale, tool_calls_delivered);
            }
            Step::Calls(calls) => match attempt.refuses(&self.came.policy, &calls) {
                Some(failure) => self.broke(key, failure, false, false),
                None => {
                    let calls = calls.into_iter().map(|c| (c.name, c.arguments)).collect();
                    self.ticket.driver().calls(key, calls);
                }
            },
            // Before the commit point only.
            Step::Connected { .. } | Step::Sign(_) | Step::Commit => {}
        }
    }

    fn written(&mut self, durable: bool) {
        let (Some((stamps, _)), Some(attempt)) = (self.writing.take(), &mut self.attempt) else { return };
        if durable {
            attempt.stamp(&stamps);
        } else {
            let key = attempt.key;
            self.broke(key, Failure::LedgerUnwritable, false, false);
        }
    }

    fn broke(&mut self, key: AttemptKey, failure: Failure, stale: bool, tool_calls_delivered: bool) {
        let (code, message) = told(&failure);
        self.ticket.over();
        self.ticket.driver().broke(key, failure, stale);
        self.close(&code, &message, tool_calls_delivered);
    }

    fn end_with_error(&mut self, code: &str, message: &str) {
        let delivered = self.attempt.as_ref().is_some_and(|a| a.tool_calls_delivered());
        self.close(code, message, delivered);
    }

    /// The one event that ends a broken stream (rule R2): no `[DONE]`, no finish reason, no text of anybody else.
    fn close(&mut self, code: &str, message: &str, tool_calls_delivered: bool) {
        self.attempt = None;
        // To send the turn again is safe as long as no tool call has reached the client, who may have executed it.
        let event = sse_error_event(code, message, &self.request, !tool_calls_delivered, tool_calls_delivered);
        self.out.push_back(event);
    }
}

/// The code and the sentence that a client gets for a failure after commit.
fn told(failure: &Failure) -> (String, String) {
    let verdict = classify(failure);
    let why = match failure {
        Failure::IdleTimeout => "stopped sending".to_owned(),
        Failure::Reset => "lost its connection".to_owned(),
        Failure::Truncated => "ended before it was complete".to_owned(),
        Failure::Status(status) if !status.message.is_empty() => format!("reported an error: {}", status.message),
        Failure::LedgerUnwritable => {
            "calls a tool that changes something, and the gateway cannot write down that it was called".to_owned()
        }
        Failure::BadFinish(reason) => format!("ended with finish reason `{reason}`"),
        _ if verdict.class == Class::Capacity => "ran out of capacity".to_owned(),
        _ => "broke off".to_owned(),
    };
    (verdict.reason.into_owned(), format!("The model's answer {why}; what was sent so far is all there is."))
}
