//! Until the client is committed: dial, report, hold back.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::super::app::App;
use super::super::driver::{Abort, AttemptKey, Cmd, Ticket};
use super::super::masking::Masking;
use super::attempt::{Attempt, Broke, Ended, Plan, Step};
use crate::policy::{CommitAt, Route, TargetId};
use crate::router::{Failure, Limits, Reply};
use crate::wire::chat::Changes;
use crate::wire::{ChatRequest, ErrorObject, StreamSettings};

/// One request before its commit point.
pub struct Exchange {
    app: Arc<App>,
    ticket: Ticket,
    request: ChatRequest,
    route: Arc<Route>,
    withhold_tools: bool,
    forwarded: HeaderMap,
    masking: Masking,
    current: Option<Attempt>,
    /// The last attempt has said all that can be said before the core decides.
    waiting: bool,
    /// A whole answer that waits for its delivery.
    whole: Option<(TargetId, Bytes)>,
    /// The last provider error, for a reply that hands it through.
    error: Option<(AttemptKey, ErrorObject)>,
}

/// How a request leaves this phase.
pub enum Settled {
    /// Committed: the rest is streamed.
    Stream {
        /// Shared state.
        app: Arc<App>,
        /// The request's place in the core.
        ticket: Ticket,
        /// The attempt, with what it held back.
        attempt: Box<Attempt>,
        /// Dials.
        attempts: u32,
        /// From another quality tier.
        degraded: bool,
    },
    /// A whole answer.
    Whole {
        /// Who answered.
        target: String,
        /// The body as it came.
        bytes: Bytes,
        /// Dials.
        attempts: u32,
        /// From another quality tier.
        degraded: bool,
    },
    /// Nobody answered.
    Reply {
        /// What the core says.
        reply: Reply,
        /// Dials.
        attempts: u32,
        /// The provider's error, if that is handed through.
        error: Option<ErrorObject>,
    },
    /// The gateway itself ended it.
    Aborted(Abort),
}

impl Exchange {
    /// A request that has arrived.
    pub fn new(
        app: Arc<App>,
        ticket: Ticket,
        request: ChatRequest,
        route: Arc<Route>,
        withhold_tools: bool,
        forwarded: HeaderMap,
        masking: Masking,
    ) -> Exchange {
        Exchange {
            app,
            ticket,
            request,
            route,
            withhold_tools,
            forwarded,
            masking,
            current: None,
            waiting: false,
            whole: None,
            error: None,
        }
    }

    /// Follows the core until the request is committed or refused.
    pub async fn settle(mut self) -> Settled {
        loop {
            let anchor = self.app.anchor;
            let cmd = match &mut self.current {
                Some(attempt) if !self.waiting => {
                    tokio::select! {
                        biased;
                        cmd = self.ticket.next() => cmd,
                        step = attempt.next(anchor) => {
                            self.step(step);
                            continue;
                        }
                    }
                }
                _ => self.ticket.next().await,
            };
            match cmd {
                Some(Cmd::Dial { key, target, limits, fresh, mask }) => self.dial(key, target, limits, fresh, mask),
                Some(Cmd::Cancel(key)) => {
                    if let Some(silent) = self.current.take_if(|a| a.key == key) {
                        // A limit has passed: whoever comes next must not wait on a connection over the same dead path.
                        if let Some(dialable) = self.app.targets.get(silent.target) {
                            dialable.client.close_idle();
                        }
                    }
                }
                Some(Cmd::Deliver { key, attempts, degraded }) => {
                    if let Some((target, bytes)) = self.whole.take() {
                        self.ticket.over();
                        let target = self.app.target_name(target);
                        return Settled::Whole { target, bytes, attempts, degraded };
                    }
                    match self.current.take() {
                        Some(attempt) if attempt.key == key => {
                            let (app, ticket, attempt) = (self.app, self.ticket, Box::new(attempt));
                            return Settled::Stream { app, ticket, attempt, attempts, degraded };
                        }
                        // The core delivers something that is not there: a bug, and no answer may be invented.
                        _ => return Settled::Aborted(Abort::CoreLost),
                    }
                }
                Some(Cmd::Reply { reply, attempts }) => {
                    self.ticket.over();
                    let error = match (&reply, self.error) {
                        (Reply::AsItIs { attempt }, Some((key, error))) if key.id == *attempt => Some(error),
                        _ => None,
                    };
                    return Settled::Reply { reply, attempts, error };
                }
                Some(Cmd::Abort(why)) => return Settled::Aborted(why),
                Some(Cmd::Break(_)) | None => return Settled::Aborted(Abort::CoreLost),
            }
        }
    }

    fn dial(&mut self, key: AttemptKey, target: TargetId, limits: Limits, fresh: bool, mask: bool) {
        self.waiting = false;
        // Whatever was still there is closed before the next connection is begun.
        self.current = None;
        let Some(dialable) = self.app.targets.get(target) else {
            return self.ticket.driver().broke(key, Failure::Internal("no such target".into()), false);
        };
        let masked = match mask.then(|| self.masking.masked(&self.request)).transpose() {
            Ok(masked) => masked,
            // The core was told that it can be masked: a bug, and nothing is sent.
            Err(why) => return self.ticket.driver().broke(key, Failure::Internal(why.to_owned()), false),
        };
        let changes = Changes { withhold_tools: self.withhold_tools };
        let stream = self.request.stream.then(|| StreamSettings {
            commit_at: match self.route.commit_at {
                CommitAt::FirstToken => crate::wire::CommitAt::FirstToken,
                CommitAt::FirstSentence => crate::wire::CommitAt::FirstSentence,
                CommitAt::Complete => crate::wire::CommitAt::Complete,
            },
            client_wants_usage: self.request.include_usage,
            choices: self.request.choices,
            secrets: self.app.targets.secrets.clone(),
            ..StreamSettings::default()
        });
        let plan = Plan {
            key,
            target,
            body: self.request.send(&dialable.target.model, changes, masked.as_deref()),
            masked: masked.map(|masked| Arc::clone(&masked.originals)),
            headers: self.forwarded.clone(),
            limits,
            fresh,
            stream,
            secrets: self.app.targets.secrets.clone(),
        };
        self.current = Some(Attempt::start(dialable.client.clone(), plan, self.app.in_flight(target)));
    }

    fn step(&mut self, step: Step) {
        let Some(attempt) = &self.current else { return };
        let (key, target) = (attempt.key, attempt.target);
        let driver = Arc::clone(self.ticket.driver());
        match step {
            Step::Connected { reused } => {
                self.app.connected(target, reused);
                driver.connected(key);
            }
            Step::Sign(sign) => driver.sign(key, sign),
            Step::Commit => {
                self.waiting = true;
                driver.committed(key);
            }
            Step::Ended(ended) => {
                let Ended { whole, usage, .. } = &*ended;
                self.app.ended(&self.route.name, target, &ended);
                self.whole = whole.clone().map(|bytes| (target, bytes));
                self.current = None;
                driver.ended(key, *usage);
            }
            Step::Broke(broke) => {
                let Broke { failure, stale, error, .. } = *broke;
                self.error = error.map(|error| (key, error));
                self.current = None;
                driver.broke(key, failure, stale);
            }
            // Nothing is handed out before the commit point.
            Step::Out(_) => {}
        }
    }
}
