//! One dial of one target, from the connect to the end of the answer, as a machine that is polled. Requests and probes use
//! the same one. Dropping it closes its connection at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use prometheus_client::metrics::gauge::Gauge;

use super::super::adapters::Kept;
use super::super::driver::AttemptKey;
use super::super::orders::Forced;
use super::super::sampling::Sample;
use super::clock::Clock;
use super::failure::{self, BodyEnd};
use super::stamping::Parked;
use crate::policy::TargetId;
use crate::router::{Failure, Limits, Sign, StatusFailure, Usage, Withhold};
use crate::units::Ts;
use crate::upstream::{Body, Call, Client, Fault, Link, Reply};
use crate::wire::mask::{Originals, restore_answer};
use crate::wire::stream::StreamInlet;
use crate::wire::{
    Anomaly, Completion, Done, ErrorObject, Pushed, Secrets, Stamp, StreamEnd, StreamFault, StreamSettings, ToolCall,
    read_answer, stamp_answer,
};

/// Largest answer that is not streamed.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Largest error body that is read; more is cut off.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Chunks of a body taken in one poll, before others get their turn.
const CHUNKS_PER_POLL: usize = 64;
/// ... and bytes: thousands of tiny events in them must not hold up the word of the core that the request goes elsewhere.
const BYTES_PER_POLL: usize = 64 * 1024;
/// Bytes after which a forced cut looks whether anything has reached the client.
const CUT_PIECE: usize = 16;

/// What an attempt reports. After one of the last two it is over.
#[derive(Debug)]
pub enum Step {
    /// The connection stands.
    Connected {
        /// It had been idle in the pool.
        reused: bool,
    },
    /// A sign of life before the commit point.
    Sign(Sign),
    /// The calls of the answer are whole. Nothing follows until [`Attempt::stamp`].
    Calls(Vec<ToolCall>),
    /// The committing delta is here: ask the core. What is to be sent follows as [`Step::Out`].
    Commit,
    /// For the client, in this order.
    Out(Vec<Bytes>),
    /// The answer is complete.
    Ended(Box<Ended>),
    /// The attempt has failed.
    Broke(Box<Broke>),
}

/// A complete answer.
#[derive(Debug, Default)]
pub struct Ended {
    /// The body, if it was not streamed.
    pub whole: Option<Bytes>,
    /// Tokens.
    pub usage: Option<Usage>,
    /// Tool calls in it.
    pub tool_calls: usize,
    /// What was unusual.
    pub anomalies: Vec<Anomaly>,
    /// The model that answered, as it named itself.
    pub model: Option<String>,
    /// Its fingerprint.
    pub fingerprint: Option<String>,
    /// Streamed: the gateway sends its own `[DONE]`.
    pub append_done: bool,
    /// A copy of it as it was sent, if it is to be judged.
    pub sample: Option<Box<Sample>>,
}

/// A failed attempt.
#[derive(Debug)]
pub struct Broke {
    /// How, for the core.
    pub failure: Failure,
    /// On a reused connection before any response byte.
    pub stale: bool,
    /// The provider's own error, for [`crate::router::Reply::AsItIs`].
    pub error: Option<ErrorObject>,
    /// Streamed: whole tool calls had been handed out.
    pub tool_calls_delivered: bool,
}

/// What is sent, and how the answer is read.
#[derive(Clone)]
pub struct Plan {
    /// The attempt.
    pub key: AttemptKey,
    /// Whom.
    pub target: TargetId,
    /// Body as this target gets it, in pieces.
    pub body: Vec<Bytes>,
    /// What was masked in it, to be put back in the answer. It goes with the attempt.
    pub masked: Option<Arc<Originals>>,
    /// Headers beside those that every call has.
    pub headers: HeaderMap,
    /// Limits.
    pub limits: Limits,
    /// On a new connection.
    pub fresh: bool,
    /// How a stream is read; `None`: not streamed.
    pub stream: Option<StreamSettings>,
    /// What the answer must keep, where a prompt alone asks for it. Its stream commits at its end.
    pub kept: Option<Arc<Kept>>,
    /// Hand calls out before they leave.
    pub stamp_calls: bool,
    /// Tools that were not offered: a call of one is a fault.
    pub withhold: Withhold,
    /// What is to be judged of its answer takes a copy.
    pub sample: Option<Box<Sample>>,
    /// For redaction.
    pub secrets: Secrets,
    /// It is made to fail.
    pub forced: Option<Forced>,
}

/// Says whom it dials, and nothing of what is sent.
impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("key", &self.key).field("target", &self.target).finish_non_exhaustive()
    }
}

/// Counts an attempt as under way as long as it lives.
#[derive(Debug)]
pub struct InFlight(Gauge);

impl InFlight {
    /// One more.
    #[must_use]
    pub fn new(gauge: Gauge) -> InFlight {
        gauge.inc();
        InFlight(gauge)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

pub(super) enum Phase {
    Connecting(BoxFuture<'static, Result<Link, Fault>>),
    Sending(BoxFuture<'static, Result<Reply, Fault>>),
    /// Reading an error body.
    Error(StatusCode, HeaderMap, Body, Vec<u8>),
    Whole(HeaderMap, Body, Vec<u8>),
    Stream(Body, Box<StreamInlet>),
    Over,
}

/// One dial.
pub struct Attempt {
    /// The attempt.
    pub key: AttemptKey,
    /// Whom.
    pub target: TargetId,
    pub(super) plan: Plan,
    pub(super) phase: Phase,
    pub(super) steps: VecDeque<Step>,
    /// The calls were handed out; these steps follow once they are stamped.
    pub(super) asked: Option<VecDeque<Step>>,
    /// A complete answer whose calls wait for their stamps.
    pub(super) parked: Option<Parked>,
    /// Of the answer, for a wait that an error inside a stream does not name itself.
    headers: HeaderMap,
    pub(super) idle: Clock,
    tick: Clock,
    pub(super) calls_delivered: bool,
    /// A forced cut is due: something has reached the client.
    cut_now: bool,
    _in_flight: InFlight,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("key", &self.key).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Attempt {
    /// Begins to dial.
    #[must_use]
    pub fn start(client: Client, plan: Plan, in_flight: InFlight) -> Attempt {
        let fresh = plan.fresh;
        let forced = plan.forced;
        let mut attempt = Attempt {
            key: plan.key,
            target: plan.target,
            plan,
            phase: Phase::Over,
            steps: VecDeque::new(),
            asked: None,
            parked: None,
            headers: HeaderMap::new(),
            idle: Clock::default(),
            tick: Clock::default(),
            calls_delivered: false,
            cut_now: false,
            _in_flight: in_flight,
        };
        let status = |status| Failure::Status(StatusFailure { status, ..StatusFailure::default() });
        match forced {
            None | Some(Forced::Cut) => {
                attempt.phase = Phase::Connecting(Box::pin(async move { client.connect(fresh).await }));
            }
            // Nobody is dialled: it connects, and says nothing.
            Some(Forced::Timeout) => {
                attempt.steps.push_back(Step::Connected { reused: false });
                attempt.phase = Phase::Sending(Box::pin(std::future::pending()));
            }
            Some(Forced::Unavailable) => attempt.broke(status(503), false, None),
            Some(Forced::RateLimited) => attempt.broke(status(429), false, None),
            Some(Forced::Reset) => attempt.broke(Failure::Reset, false, None),
        }
        attempt
    }

    /// The next step. `anchor` is the core's time line.
    pub async fn next(&mut self, anchor: Instant) -> Step {
        std::future::poll_fn(|cx| self.poll_step(cx, anchor)).await
    }

    /// Time that the client took does not count as silence of the provider.
    pub fn forgive(&mut self, spent: Duration) {
        if let Some(at) = &mut self.idle.at {
            *at += spent;
        }
    }

    /// At least one whole tool call was among what was handed out.
    #[must_use]
    pub fn tool_calls_delivered(&self) -> bool {
        match &self.phase {
            Phase::Stream(_, inlet) => inlet.state().tool_calls_delivered(),
            _ => self.calls_delivered,
        }
    }

    /// The next step, polled. Pending for ever once it is over.
    pub fn poll_step(&mut self, cx: &mut Context<'_>, anchor: Instant) -> Poll<Step> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Poll::Ready(step);
            }
            if self.asked.is_some() {
                return Poll::Pending;
            }
            match &mut self.phase {
                Phase::Over => return Poll::Pending,
                Phase::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(fault)) => self.broke_below(&fault),
                    Poll::Ready(Ok(link)) => {
                        self.steps.push_back(Step::Connected { reused: link.reused() });
                        let call = self.call();
                        self.phase = Phase::Sending(Box::pin(link.send(call)));
                    }
                },
                Phase::Sending(sending) => match sending.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(fault)) => self.broke_below(&fault),
                    Poll::Ready(Ok(reply)) => self.head(reply),
                },
                Phase::Error(status, headers, body, all) => match body.poll_data(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(data))) if all.len() + data.len() <= ERROR_BYTES_MAX => {
                        all.extend_from_slice(&data);
                    }
                    Poll::Ready(next) => {
                        let end = match &next {
                            None => BodyEnd::Proper,
                            Some(Ok(_)) => BodyEnd::Enough,
                            Some(Err(fault)) => BodyEnd::Broken(fault),
                        };
                        let bytes = failure::plain(headers).then_some(all.as_slice());
                        let (failure, error) =
                            failure::of_error_answer(*status, headers, bytes, end, &self.plan.secrets);
                        self.broke(failure, false, error);
                    }
                },
                Phase::Whole(headers, body, all) => match body.poll_data(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(_))) if self.plan.forced == Some(Forced::Cut) => {
                        self.broke(Failure::Reset, false, None);
                    }
                    Poll::Ready(Some(Ok(data))) if all.len() + data.len() <= ANSWER_BYTES_MAX => {
                        all.extend_from_slice(&data);
                    }
                    Poll::Ready(Some(Ok(_))) => self.broke(Failure::TooLarge, false, None),
                    Poll::Ready(Some(Err(fault))) => self.broke_below(&fault),
                    Poll::Ready(None) => {
                        let mut all = Bytes::from(std::mem::take(all));
                        // As it was sent: what was masked stays masked.
                        if let Some(sample) = &mut self.plan.sample {
                            sample.add(&all);
                        }
                        let kind = text(headers, &CONTENT_TYPE);
                        if let Some(originals) = &self.plan.masked {
                            match restore_answer(originals, all, ANSWER_BYTES_MAX) {
                                Ok(restored) => all = restored,
                                Err(fault) => {
                                    self.stream_fault(fault);
                                    continue;
                                }
                            }
                        }
                        let read = read_answer(&all, kind.as_deref(), &self.plan.secrets);
                        self.whole(all, read);
                    }
                },
                Phase::Stream(..) => {
                    if self.poll_stream(cx, anchor).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// The call. The body leaves with it: it is not needed again and may be large.
    fn call(&mut self) -> Call {
        let mut headers = std::mem::take(&mut self.plan.headers);
        let streamed = self.plan.stream.is_some();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = if streamed { "text/event-stream" } else { "application/json" };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        // What is relayed byte for byte must be readable.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Call {
            method: Method::POST,
            path: "/chat/completions".to_owned(),
            headers,
            body: std::mem::take(&mut self.plan.body),
        }
    }

    fn head(&mut self, reply: Reply) {
        let Reply { status, headers, body } = reply;
        // 204 and 205 are successes without an answer.
        if !status.is_success() || status == StatusCode::NO_CONTENT || status == StatusCode::RESET_CONTENT {
            self.phase = Phase::Error(status, headers, body, Vec::new());
            return;
        }
        if !failure::plain(&headers) {
            return self.broke(failure::coded(&headers), false, None);
        }
        self.phase = match self.plan.stream.clone() {
            None => Phase::Whole(headers, body, Vec::new()),
            Some(settings) => {
                self.headers = headers;
                let inlet = StreamInlet::new(settings, crate::wire::sse::MAX_EVENT_BYTES);
                let inlet = match &self.plan.masked {
                    Some(originals) => inlet.restoring(Arc::clone(originals)),
                    None => inlet,
                };
                Phase::Stream(body, Box::new(inlet))
            }
        };
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, anchor: Instant) -> Poll<()> {
        let now = || Ts(u64::try_from(anchor.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if self.cut_now {
            self.end_stream(false, &now(), Some(Failure::Reset));
            return Poll::Ready(());
        }
        let mut bytes = 0;
        for _ in 0..CHUNKS_PER_POLL {
            if bytes >= BYTES_PER_POLL {
                break;
            }
            let Phase::Stream(body, inlet) = &mut self.phase else { return Poll::Ready(()) };
            // What has come is heard before a limit that has just run out.
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    bytes += data.len();
                    // As it was sent: what was masked stays masked.
                    if let Some(sample) = &mut self.plan.sample {
                        sample.add(&data);
                    }
                    let mut data = data;
                    let forced_cut = self.plan.forced == Some(Forced::Cut);
                    // Piece by piece, so that the cut comes after the first even where all of it came at once.
                    let piece =
                        if forced_cut { data.split_to(data.len().min(CUT_PIECE)) } else { std::mem::take(&mut data) };
                    let mut pushed = inlet.bytes(piece, now());
                    while forced_cut && pushed.out.is_empty() && pushed.fault.is_none() && !data.is_empty() {
                        let piece = data.split_to(data.len().min(CUT_PIECE));
                        let more = inlet.bytes(piece, now());
                        pushed =
                            Pushed { sign: more.sign.or(pushed.sign), commit: more.commit || pushed.commit, ..more };
                    }
                    self.cut_now = forced_cut && !pushed.out.is_empty();
                    self.tick.set(inlet.poll_timeout().map(|at| anchor + Duration::from_nanos(at.0)));
                    let ended = pushed.ended;
                    self.pushed(pushed);
                    if ended && matches!(self.phase, Phase::Stream(..)) {
                        self.end_stream(true, &now(), None);
                    }
                    if !self.steps.is_empty() {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(Some(Err(fault))) => {
                    self.end_stream(false, &now(), Some(failure::of_fault(&fault)));
                    return Poll::Ready(());
                }
                Poll::Ready(None) => {
                    self.end_stream(true, &now(), None);
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    if self.tick.poll(cx).is_ready() {
                        let pushed = inlet.tick(now());
                        self.pushed(pushed);
                        return Poll::Ready(());
                    }
                    if self.idle.poll(cx).is_ready() {
                        self.end_stream(false, &now(), Some(Failure::IdleTimeout));
                        return Poll::Ready(());
                    }
                    return Poll::Pending;
                }
            }
        }
        // More is there, but others wait.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    pub(super) fn pushed(&mut self, pushed: Pushed) {
        let Pushed { out, sign, commit, progress, fault, calls, ended: _ } = pushed;
        if sign.is_some() || commit || progress {
            self.idle.set(Some(Instant::now() + self.plan.limits.idle));
        }
        if fault.is_none()
            && let Some(sign) = sign
        {
            self.steps.push_back(Step::Sign(match sign {
                crate::wire::Sign::Life => Sign::Life,
                crate::wire::Sign::ToolCall => Sign::ToolCall,
            }));
        }
        if let Some(failure) = self.strays(commit, &out) {
            return self.broke(failure, false, None);
        }
        if commit {
            self.steps.push_back(Step::Commit);
        }
        if !out.is_empty() {
            self.put(Step::Out(out));
        }
        if let Some(calls) = calls {
            self.ask(calls);
        }
        if let Some(fault) = fault {
            self.stream_fault(fault);
        }
    }

    /// What a prompt alone asked for was not given. Its stream commits at its end, so all of it is in what commits.
    fn strays(&self, commit: bool, out: &[Bytes]) -> Option<Failure> {
        self.plan.kept.as_ref().filter(|_| commit).and_then(|kept| kept.check_stream(out).err())
    }

    /// The stream is over: by itself, or for the reason given.
    fn end_stream(&mut self, clean: bool, now: &Ts, why: Option<Failure>) {
        let Phase::Stream(_, inlet) = &mut self.phase else { return };
        let StreamEnd { out, commit, calls, done } = inlet.end(clean, *now);
        if let Some(failure) = self.strays(commit, &out) {
            return self.broke(failure, false, None);
        }
        if commit {
            self.steps.push_back(Step::Commit);
        }
        if !out.is_empty() {
            self.put(Step::Out(out));
        }
        if let Some(calls) = calls {
            self.ask(calls);
        }
        match done {
            Done::Fault(fault) => match (why, fault) {
                // What cut it off says more than that it was cut off.
                (Some(why), StreamFault::Cut | StreamFault::Truncated | StreamFault::Empty) => {
                    self.broke(why, false, None);
                }
                (_, fault) => self.stream_fault(fault),
            },
            Done::Complete(completion) => {
                let Completion { tool_calls, usage, anomalies, append_done, model, fingerprint, .. } = completion;
                if let Phase::Stream(body, inlet) = std::mem::replace(&mut self.phase, Phase::Over) {
                    if clean {
                        // `[DONE]` may come before the end of the body; the connection is worth keeping.
                        body.recycle();
                    }
                    self.parked = self.asked.is_some().then_some(Parked::Stream(inlet));
                }
                let sample = self.plan.sample.take();
                self.put(Step::Ended(Box::new(Ended {
                    whole: None,
                    usage: usage.map(to_core),
                    tool_calls: tool_calls.len(),
                    anomalies,
                    model,
                    fingerprint,
                    append_done,
                    sample,
                })));
            }
        }
    }

    pub(super) fn stream_fault(&mut self, fault: StreamFault) {
        let error = match &fault {
            StreamFault::Error(error) => Some((**error).clone()),
            _ => None,
        };
        let failure = failure::of_stream(fault, &self.headers);
        self.broke(failure, false, error);
    }

    fn whole(&mut self, all: Bytes, read: Result<crate::wire::AnswerFacts, StreamFault>) {
        match read {
            Err(fault) => self.stream_fault(fault),
            Ok(facts) => {
                if let Some(kept) = &self.plan.kept
                    && let Err(failure) = kept.check(&facts.choices)
                {
                    return self.broke(failure, false, None);
                }
                self.phase = Phase::Over;
                let calls: Vec<ToolCall> = facts.choices.into_iter().flat_map(|c| c.tool_calls).collect();
                let mut ended = Ended {
                    whole: None,
                    usage: facts.usage.map(to_core),
                    tool_calls: calls.len(),
                    anomalies: facts.anomalies,
                    model: facts.model,
                    fingerprint: facts.fingerprint,
                    append_done: false,
                    sample: self.plan.sample.take(),
                };
                if calls.is_empty() || !self.plan.stamp_calls {
                    ended.whole = Some(all);
                } else if stamp_answer(&all, &vec![Stamp::default(); calls.len()]).is_none() {
                    let what = "tool calls in more than one choice, or an old `function_call`, which has no id";
                    return self.stream_fault(StreamFault::Malformed(what.to_owned()));
                } else {
                    self.parked = Some(Parked::Whole(all));
                    self.ask(calls);
                }
                self.put(Step::Ended(Box::new(ended)));
            }
        }
    }

    fn broke_below(&mut self, fault: &Fault) {
        self.broke(failure::of_fault(fault), fault.stale, None);
    }

    pub(super) fn broke(&mut self, failure: Failure, stale: bool, error: Option<ErrorObject>) {
        let tool_calls_delivered = self.tool_calls_delivered();
        self.calls_delivered = tool_calls_delivered;
        self.phase = Phase::Over;
        self.steps.push_back(Step::Broke(Box::new(Broke { failure, stale, error, tool_calls_delivered })));
    }
}

fn text(headers: &HeaderMap, name: &http::HeaderName) -> Option<String> {
    headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
}

fn to_core(usage: crate::wire::Usage) -> Usage {
    Usage { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens }
}
