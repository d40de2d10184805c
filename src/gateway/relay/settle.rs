//! Until the client is committed: dial, report, hold back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;

use super::super::adapters::{self, Texts};
use super::super::app::App;
use super::super::clients::Permit;
use super::super::driver::{Abort, AttemptKey, Cmd, Ticket};
use super::super::ledger::Written;
use super::super::masking::Masking;
use super::super::probe::LIMITS;
use super::Calls;
use super::attempt::{Attempt, Broke, Ended, Plan, Step};
use crate::policy::{CommitAt, Policy, Route, TargetId};
use crate::router::{Failure, Limits, Reply, Withhold};
use crate::wire::changes::Changes;
use crate::wire::{ChatRequest, ErrorObject, Stamp, StreamSettings};

/// One request before its commit point.
pub struct Exchange {
    app: Arc<App>,
    ticket: Ticket,
    request: ChatRequest,
    /// Those by which it came in, whatever holds by now.
    policy: Arc<Policy>,
    route: Arc<Route>,
    calls: Calls,
    forwarded: HeaderMap,
    masking: Masking,
    client: Option<Arc<Permit>>,
    /// Texts of adapters as they were when it came.
    texts: Arc<Texts>,
    /// One, or two where one is a hedge.
    running: Vec<Running>,
    /// A whole answer that waits for its delivery.
    whole: Option<(TargetId, Bytes)>,
    /// The last provider error, for a reply that hands it through.
    error: Option<(AttemptKey, ErrorObject)>,
}

/// An attempt under way.
struct Running {
    attempt: Attempt,
    /// It has said all that can be said before the core decides.
    waiting: bool,
    /// Its calls are being written down.
    writing: Option<(Vec<Stamp>, Written)>,
}

/// What moves a request.
enum Heard {
    Cmd(Option<Cmd>),
    Step(AttemptKey, Step),
    /// The calls are durable, or could not be written.
    Written(AttemptKey, bool),
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
        (request, masking): (ChatRequest, Masking),
        policy: Arc<Policy>,
        route: Arc<Route>,
        calls: Calls,
        forwarded: HeaderMap,
    ) -> Exchange {
        Exchange {
            texts: app.adapters.now(),
            app,
            ticket,
            request,
            policy,
            route,
            calls,
            forwarded,
            masking,
            client: None,
            running: Vec::with_capacity(1),
            whole: None,
            error: None,
        }
    }

    /// Whose it is, where clients have keys.
    #[must_use]
    pub fn of_client(self, client: Option<Arc<Permit>>) -> Exchange {
        Exchange { client, ..self }
    }

    /// Follows the core until the request is committed or refused.
    pub async fn settle(mut self) -> Settled {
        loop {
            let cmd = match std::future::poll_fn(|cx| self.poll(cx)).await {
                Heard::Cmd(cmd) => cmd,
                Heard::Step(key, step) => {
                    self.step(key, step);
                    continue;
                }
                Heard::Written(key, durable) => {
                    self.written(key, durable);
                    continue;
                }
            };
            match cmd {
                Some(Cmd::Dial { key, target, limits, fresh, hedge, max_output_tokens, withhold, mask }) => {
                    if !hedge {
                        // Whatever was still there is closed before the next connection is begun.
                        self.running.clear();
                    }
                    let asked = Asked { key, target, limits, fresh, max_output_tokens, withhold, mask };
                    self.dial(asked);
                }
                Some(Cmd::Calls { key, stamps, overwritten, written }) => {
                    if let Some(running) = self.running.iter_mut().find(|r| r.attempt.key == key) {
                        self.app.keys_overwritten(running.attempt.target, overwritten);
                        running.writing = Some((stamps, written));
                    }
                }
                Some(Cmd::Cancel(key)) => self.cancel(key),
                Some(Cmd::Deliver { key, attempts, degraded }) => {
                    if let Some((target, bytes)) = self.whole.take() {
                        self.ticket.over();
                        let target = self.policy.target(target).name.clone();
                        return Settled::Whole { target, bytes, attempts, degraded };
                    }
                    match self.take(key) {
                        Some(running) => {
                            let (app, ticket, attempt) = (self.app, self.ticket, Box::new(running.attempt));
                            return Settled::Stream { app, ticket, attempt, attempts, degraded };
                        }
                        // The core delivers something that is not there: a bug, and no answer may be invented.
                        None => return Settled::Aborted(Abort::CoreLost),
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

    /// Commands first: what the core has decided is not overtaken by what an attempt goes on to say.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        if let Poll::Ready(cmd) = self.ticket.poll_next(cx) {
            return Poll::Ready(Heard::Cmd(cmd));
        }
        for Running { attempt, waiting, writing } in &mut self.running {
            if let Some((_, written)) = writing {
                if let Poll::Ready(durable) = written.poll(cx) {
                    return Poll::Ready(Heard::Written(attempt.key, durable));
                }
            } else if !*waiting && let Poll::Ready(step) = attempt.poll_step(cx, self.app.anchor) {
                return Poll::Ready(Heard::Step(attempt.key, step));
            }
        }
        Poll::Pending
    }

    fn take(&mut self, key: AttemptKey) -> Option<Running> {
        let n = self.running.iter().position(|r| r.attempt.key == key)?;
        Some(self.running.swap_remove(n))
    }

    fn cancel(&mut self, key: AttemptKey) {
        let Some(cancelled) = self.take(key) else { return };
        // Beside one that has said its last, it was a race that it lost. Else a limit has passed: whoever comes next must not wait
        // on a connection over the same dead path.
        if !self.running.iter().any(|r| r.waiting)
            && self.whole.is_none()
            && let Some(dialable) = self.app.targets.get(cancelled.attempt.target)
        {
            dialable.client.close_idle();
        }
    }

    fn dial(&mut self, asked: Asked) {
        let Asked { key, target, limits, fresh, max_output_tokens, withhold, mask } = asked;
        let Some(dialable) = self.app.targets.get(target) else {
            return self.ticket.driver().broke(key, Failure::Internal("no such target".into()), false);
        };
        let masked = match mask.then(|| self.masking.masked(&self.request)).transpose() {
            Ok(masked) => masked,
            // The core was told that it can be masked: a bug, and nothing is sent.
            Err(why) => return self.ticket.driver().broke(key, Failure::Internal(why.to_owned()), false),
        };
        let policy = &self.policy;
        let withheld = |tool: &str| withhold.includes(policy.side_effects(tool));
        let limit = dialable.probe_limit.load(Ordering::Relaxed);
        let adapted = adapters::text_for(&self.texts, &dialable.target, &self.request);
        let kept = adapted.is_some().then(|| self.app.adapters.kept(&self.request));
        if kept.as_ref().is_some_and(Option::is_none) {
            // Another policy came between the look at the request and now.
            let why = "its schema cannot be checked, so no adapter stands in for it".to_owned();
            return self.ticket.driver().broke(key, Failure::Quality(why), false);
        }
        let changes = Changes {
            schema_by: adapted.as_deref(),
            withhold: (withhold != Withhold::Nothing).then_some(&withheld),
            max_output_tokens,
            limit_name: LIMITS.get(limit).copied().unwrap_or("max_tokens"),
        };
        let stream = self.request.stream.then(|| StreamSettings {
            commit_at: match self.route.commit_at {
                // Whether it keeps the schema is known at its end.
                _ if adapted.is_some() => crate::wire::CommitAt::Complete,
                CommitAt::FirstToken => crate::wire::CommitAt::FirstToken,
                CommitAt::FirstSentence => crate::wire::CommitAt::FirstSentence,
                CommitAt::Complete => crate::wire::CommitAt::Complete,
            },
            client_wants_usage: self.request.include_usage,
            choices: self.request.choices,
            stamp_calls: self.calls == Calls::InLedger,
            secrets: self.app.targets.secrets(),
            ..StreamSettings::default()
        });
        let plan = Plan {
            key,
            target,
            body: self.request.send(&dialable.target.model, &changes, masked.as_deref()),
            masked: masked.map(|masked| Arc::clone(&masked.originals)),
            headers: self.forwarded.clone(),
            limits,
            fresh,
            stream,
            kept: kept.flatten(),
            sample: self.app.sample(policy, &self.route, target, &self.request, mask),
            stamp_calls: self.calls == Calls::InLedger,
            withhold,
            secrets: self.app.targets.secrets(),
            forced: self.app.orders.forced(target),
        };
        let attempt = Attempt::start(dialable.client.clone(), plan, self.app.in_flight(target));
        self.running.push(Running { attempt, waiting: false, writing: None });
    }

    fn step(&mut self, key: AttemptKey, step: Step) {
        let Some(running) = self.running.iter_mut().find(|r| r.attempt.key == key) else { return };
        let target = running.attempt.target;
        let driver = Arc::clone(self.ticket.driver());
        match step {
            Step::Connected { reused } => {
                self.app.connected(target, reused);
                driver.connected(key);
            }
            Step::Sign(sign) => driver.sign(key, sign),
            Step::Calls(calls) => match running.attempt.refuses(&self.policy, &calls) {
                Some(failure) => {
                    self.take(key);
                    driver.broke(key, failure, false);
                }
                None => {
                    running.waiting = true;
                    driver.calls(key, calls.into_iter().map(|c| (c.name, c.arguments)).collect());
                }
            },
            Step::Commit => {
                running.waiting = true;
                driver.committed(key);
            }
            Step::Ended(ended) => {
                let Ended { whole, usage, .. } = &*ended;
                self.app.ended(&self.route.name, target, self.calls, self.client.as_deref(), &ended);
                self.whole = whole.clone().map(|bytes| (target, bytes));
                self.take(key);
                driver.ended(key, *usage);
            }
            Step::Broke(broke) => {
                let Broke { failure, stale, error, .. } = *broke;
                self.error = error.map(|error| (key, error));
                self.take(key);
                driver.broke(key, failure, stale);
            }
            // Nothing is handed out before the commit point.
            Step::Out(_) => {}
        }
    }

    fn written(&mut self, key: AttemptKey, durable: bool) {
        let Some(running) = self.running.iter_mut().find(|r| r.attempt.key == key) else { return };
        let Some((stamps, _)) = running.writing.take() else { return };
        if durable {
            running.waiting = false;
            running.attempt.stamp(&stamps);
        } else {
            self.take(key);
            self.ticket.driver().broke(key, Failure::LedgerUnwritable, false);
        }
    }
}

/// A dial that the core asks for.
struct Asked {
    key: AttemptKey,
    target: TargetId,
    limits: Limits,
    fresh: bool,
    max_output_tokens: Option<u64>,
    withhold: Withhold,
    mask: bool,
}
