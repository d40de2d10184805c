//! The end states of a streamed answer: what may be sent to the client and when (rules R1 and R2), and how the attempt
//! ended (rule R4). One machine per attempt; it reads events and a time, and moves no byte itself.
//!
//! What is held, what commits and how a stream ends is told in `docs/streams.md`. In short: every event goes through one
//! queue, in order. Before the commit point nothing leaves it. A chunk with a fragment of a tool call, and every later chunk
//! that touches the same choice, waits until that choice has its finish; what stands behind a waiting chunk waits too, so
//! that order is kept across choices. Comments are dropped before the commit point and pass after it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::chunk::{Choice, Chunk};
use super::error::{self, ErrorObject};
use super::sse::{SseError, SseEvent, SseKind, SseReader};
use super::toolcall::{Calls, ToolCall};
use super::{Secrets, Usage, rewrite};
use crate::units::Ts;

/// Bound of what is held for one stream: 16 MiB, twice the largest event.
pub const HOLD_LIMIT_BYTES: usize = 2 * super::sse::MAX_EVENT_BYTES;
/// What a held event costs beside its bytes. Many small events are bounded by this.
const EVENT_OVERHEAD_BYTES: usize = 96;
/// A sentence that does not end is long enough after so many characters.
const SENTENCE_CHARS: u32 = 200;
/// Text that has no sentence end is not held longer than this.
const SENTENCE_WAIT: Duration = Duration::from_secs(1);
/// Choices followed in one stream; the API allows `n` up to 128.
const MAX_CHOICES: usize = 128;

/// When the client is committed to an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitAt {
    /// At the first committing delta.
    #[default]
    FirstToken,
    /// At the end of the first sentence.
    FirstSentence,
    /// At the whole answer.
    Complete,
}

/// How one stream is to be read.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// The commit point.
    pub commit_at: CommitAt,
    /// Bound of what is held, usually [`HOLD_LIMIT_BYTES`].
    pub hold_limit_bytes: usize,
    /// The client asked for `stream_options.include_usage`; else a usage-only chunk is kept from it.
    pub client_wants_usage: bool,
    /// Choices asked for (`n`). Only a broken connection is judged by it: were they all there?
    pub choices: u32,
    /// Give tool-call fragments that were sent without an `index` the one they belong to. Off: relayed as they came.
    pub add_missing_index: bool,
    /// Credential values that must not stand in an error message.
    pub secrets: Secrets,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings {
            commit_at: CommitAt::FirstToken,
            hold_limit_bytes: HOLD_LIMIT_BYTES,
            client_wants_usage: false,
            choices: 1,
            add_missing_index: false,
            secrets: Secrets::default(),
        }
    }
}

/// A sign of life before the commit point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Reasoning, or text that is held.
    Life,
    /// The first fragment of a tool call: from here the idle limit and the bound replace the deadline.
    ToolCall,
}

/// Why a stream is a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamFault {
    /// Nothing, only `[DONE]`, or a `stop` or `tool_calls` with nothing before it.
    Empty,
    /// A clean end with neither finish reason nor `[DONE]`, or `[DONE]` inside the arguments of a call.
    Truncated,
    /// The connection broke before the answer was complete.
    Cut,
    /// What came is not a chat stream; says what it is.
    Malformed(String),
    /// A finish reason that completes nothing (`error`, `abort`); says which.
    BadFinish(String),
    /// One event, or what had to be held, is above its bound.
    TooLarge,
    /// An error object inside the stream.
    Error(Box<ErrorObject>),
}

impl StreamFault {
    /// The name under which it is counted.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            StreamFault::Empty => "empty",
            StreamFault::Truncated => "truncated",
            StreamFault::Cut => "cut",
            StreamFault::Malformed(_) => "malformed",
            StreamFault::BadFinish(_) => "bad_finish",
            StreamFault::TooLarge => "too_large",
            StreamFault::Error(_) => "error",
        }
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamFault::Empty => f.write_str("the answer is empty"),
            StreamFault::Truncated => f.write_str("the answer ended before it was complete"),
            StreamFault::Cut => f.write_str("the connection broke before the answer was complete"),
            StreamFault::Malformed(what) => write!(f, "the answer cannot be read: {what}"),
            StreamFault::BadFinish(reason) => write!(f, "the answer ended with finish reason `{reason}`"),
            StreamFault::TooLarge => f.write_str("the answer is larger than what may be held"),
            StreamFault::Error(error) if error.message.is_empty() => f.write_str("the answer is an error"),
            StreamFault::Error(error) => write!(f, "the answer is an error: {}", error.message),
        }
    }
}

/// Something unusual in an answer that is complete all the same. Counted, never a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// `[DONE]`, but some choice has no finish reason. None is invented.
    DoneWithoutFinish,
    /// Finished, but no `[DONE]`. The gateway may add it.
    FinishWithoutDone,
    /// The connection broke after the last choice had finished.
    CutAfterFinish,
    /// One of several choices is empty.
    EmptyChoice,
    /// Two calls came under one index and were told apart.
    Renumbered,
    /// The arguments of a call are not JSON. They are relayed as they came.
    InvalidArguments,
    /// A choice went on after its finish reason.
    AfterFinish,
    /// The finish reason says tool calls and there are none, or the other way round.
    FinishMismatch,
    /// Lines that no event stream has stood between the events.
    StrayLines,
}

impl Anomaly {
    /// The name under which it is counted.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Anomaly::DoneWithoutFinish => "done_without_finish",
            Anomaly::FinishWithoutDone => "finish_without_done",
            Anomaly::CutAfterFinish => "cut_after_finish",
            Anomaly::EmptyChoice => "empty_choice",
            Anomaly::Renumbered => "renumbered",
            Anomaly::InvalidArguments => "invalid_arguments",
            Anomaly::AfterFinish => "after_finish",
            Anomaly::FinishMismatch => "finish_mismatch",
            Anomaly::StrayLines => "stray_lines",
        }
    }
}

/// What came of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pushed {
    /// To be sent to the client now, in this order.
    pub out: Vec<Bytes>,
    /// A sign of life, before the commit point; each kind once.
    pub sign: Option<Sign>,
    /// This is the commit point: ask the core before sending `out`. True once per attempt.
    pub commit: bool,
    /// The idle clock starts anew.
    pub progress: bool,
    /// The attempt has failed; nothing more will come. If the client was not committed before this step, `out` is empty and
    /// nothing has been sent; if it was, `out` may hold what came before the failure.
    pub fault: Option<StreamFault>,
    /// `[DONE]` is among `out`: there is no need to wait for the end of the body. Call [`StreamState::finish`] now.
    pub ended: bool,
}

/// How the attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEnd {
    /// To be sent to the client, in this order.
    pub out: Vec<Bytes>,
    /// This is the commit point: ask the core before sending `out`.
    pub commit: bool,
    /// The outcome.
    pub done: Done,
}

/// The outcome of an attempt (rule R4).
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// A completed answer.
    Complete(Completion),
    /// A failed attempt.
    Fault(StreamFault),
}

/// What is known about a completed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Choice index and finish reason; `None` where none came.
    pub finish_reasons: Vec<(u64, Option<String>)>,
    /// Tool calls of all choices, as assembled.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens, if the answer said so.
    pub usage: Option<Usage>,
    /// The model that answered, as it named itself.
    pub model: Option<String>,
    /// `system_fingerprint`.
    pub fingerprint: Option<String>,
    /// What was unusual. Sorted, each once.
    pub anomalies: Vec<Anomaly>,
    /// No `[DONE]` came: the gateway may send its own after `out`.
    pub append_done: bool,
}

/// An event on its way to the client.
#[derive(Debug)]
struct Held {
    raw: Bytes,
    seq: u64,
    /// The choices it touches, one bit per place in [`StreamState::choices`].
    touches: u128,
    /// It may commit the client once it can be sent.
    commits: bool,
    /// It holds a fragment of a tool call.
    call: bool,
}

#[derive(Debug, Default)]
struct ChoiceState {
    index: u64,
    finish: Option<String>,
    /// Text, a refusal or sound came that is not blank.
    substance: bool,
    /// Since this event the choice waits for its finish.
    waits_from: Option<u64>,
    calls: Calls,
    sentence: Sentence,
}

impl ChoiceState {
    /// An answer, or a real reason why there is none.
    fn answers(&self) -> bool {
        self.substance || self.calls.named() || matches!(self.finish.as_deref(), Some("length" | "content_filter"))
    }
}

/// The end-state machine of one attempt. Feed it with [`StreamState::event`] (or through a [`StreamInlet`]), let time pass
/// with [`StreamState::tick`], and close it with [`StreamState::finish`] or [`StreamState::broken`].
#[derive(Debug)]
pub struct StreamState {
    settings: StreamSettings,
    queue: VecDeque<Held>,
    held_bytes: usize,
    /// How many of the queue may commit.
    held_commits: usize,
    seq: u64,
    choices: Vec<ChoiceState>,
    committed: bool,
    life_shown: bool,
    call_shown: bool,
    calls_delivered: bool,
    first_text: Option<Ts>,
    data_seen: bool,
    stray: Option<&'static str>,
    done_seen: bool,
    fault: Option<StreamFault>,
    usage: Option<Usage>,
    model: Option<String>,
    fingerprint: Option<String>,
    anomalies: Vec<Anomaly>,
}

impl StreamState {
    /// A machine before the first event.
    #[must_use]
    pub fn new(settings: StreamSettings) -> StreamState {
        StreamState {
            settings,
            queue: VecDeque::new(),
            held_bytes: 0,
            held_commits: 0,
            seq: 0,
            choices: Vec::new(),
            committed: false,
            life_shown: false,
            call_shown: false,
            calls_delivered: false,
            first_text: None,
            data_seen: false,
            stray: None,
            done_seen: false,
            fault: None,
            usage: None,
            model: None,
            fingerprint: None,
            anomalies: Vec::new(),
        }
    }

    /// The commit point has been passed.
    #[must_use]
    pub fn committed(&self) -> bool {
        self.committed
    }

    /// At least one whole tool call was among what was to be sent: for `tool_calls_delivered` of the error event.
    #[must_use]
    pub fn tool_calls_delivered(&self) -> bool {
        self.calls_delivered
    }

    /// When [`StreamState::tick`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ts> {
        let waits = self.settings.commit_at == CommitAt::FirstSentence && !self.committed && !self.over();
        self.first_text.filter(|_| waits).map(|at| at + SENTENCE_WAIT)
    }

    /// Takes the next event of the stream.
    pub fn event(&mut self, event: SseEvent, now: Ts) -> Pushed {
        let mut pushed = Pushed::default();
        if self.over() {
            return pushed;
        }
        let before = self.committed;
        if let Err(fault) = self.take(event, now, &mut pushed) {
            let failed = self.fail(fault, before);
            return if before { Pushed { out: pushed.out, ..failed } } else { failed };
        }
        pushed
    }

    /// Lets time pass: the one-second rule of `first_sentence`.
    pub fn tick(&mut self, now: Ts) -> Pushed {
        let mut pushed = Pushed::default();
        if self.poll_timeout().is_some_and(|at| now >= at) {
            self.release(&mut pushed.out, &mut pushed.commit, true);
        }
        pushed
    }

    /// The body has ended: `clean` by itself, or else by a broken connection or a silence past its limit. Called after
    /// `[DONE]` as well.
    pub fn finish(&mut self, clean: bool) -> StreamEnd {
        if let Some(fault) = &self.fault {
            return StreamEnd { out: Vec::new(), commit: false, done: Done::Fault(fault.clone()) };
        }
        let mut end = StreamEnd { out: Vec::new(), commit: false, done: Done::Fault(StreamFault::Empty) };
        if !self.done_seen {
            if let Err(fault) = self.judge_end(clean) {
                self.fail(fault.clone(), self.committed);
                end.done = Done::Fault(fault);
                return end;
            }
            self.note(if clean { Anomaly::FinishWithoutDone } else { Anomaly::CutAfterFinish });
            self.let_go();
            self.release(&mut end.out, &mut end.commit, true);
        }
        end.done = Done::Complete(self.completion());
        end
    }

    /// The reader could not go on. A body that ended inside an event counts as a broken connection.
    pub fn broken(&mut self, error: SseError) -> StreamEnd {
        match error {
            SseError::Truncated => self.finish(false),
            SseError::TooLarge { .. } => {
                if !self.over() {
                    self.fail(StreamFault::TooLarge, self.committed);
                }
                self.finish(false)
            }
        }
    }

    /// The commit of this step does not count: nothing has been sent.
    fn take_back(&mut self) {
        self.committed = false;
        self.calls_delivered = false;
    }

    fn over(&self) -> bool {
        self.done_seen || self.fault.is_some()
    }

    fn note(&mut self, anomaly: Anomaly) {
        if !self.anomalies.contains(&anomaly) {
            self.anomalies.push(anomaly);
        }
    }

    /// `before`: the client was committed before this step. If it was not, nothing of this step has been sent.
    fn fail(&mut self, fault: StreamFault, before: bool) -> Pushed {
        if !before {
            self.take_back();
        }
        self.queue.clear();
        self.held_bytes = 0;
        self.held_commits = 0;
        self.fault = Some(fault.clone());
        Pushed { fault: Some(fault), ..Pushed::default() }
    }

    fn take(&mut self, event: SseEvent, now: Ts, pushed: &mut Pushed) -> Result<(), StreamFault> {
        match event.kind {
            SseKind::Silent => {
                if self.committed {
                    pushed.out.push(event.raw);
                }
                return Ok(());
            }
            SseKind::Stray => return self.take_stray(&event.raw),
            // A client would choke on it: there is no JSON in it.
            SseKind::Data if event.data.trim_ascii().is_empty() => return Ok(()),
            SseKind::Data => {}
        }
        self.data_seen = true;
        if event.is_done() {
            return self.take_done(event, pushed);
        }
        let chunk =
            Chunk::read(&event.data, &self.settings.secrets).map_err(|e| StreamFault::Malformed(e.to_owned()))?;
        if let Some(error) = chunk.error {
            return Err(StreamFault::Error(Box::new(error)));
        }
        self.take_chunk(&chunk, event, now, pushed)
    }

    /// Lines that are no event stream: a document or a page, or noise between events.
    fn take_stray(&mut self, raw: &Bytes) -> Result<(), StreamFault> {
        let what = what_instead(raw);
        if let Some(what) = what {
            let error = std::str::from_utf8(raw).ok().and_then(|text| in_document(text, &self.settings.secrets));
            return Err(
                error.map_or_else(|| StreamFault::Malformed(what.to_owned()), |e| StreamFault::Error(Box::new(e)))
            );
        }
        self.stray = Some("lines that are no event stream");
        Ok(())
    }

    fn take_done(&mut self, event: SseEvent, pushed: &mut Pushed) -> Result<(), StreamFault> {
        self.judge_calls()?;
        if !self.choices.iter().any(ChoiceState::answers) {
            return Err(StreamFault::Empty);
        }
        if self.choices.iter().any(|c| c.finish.is_none()) {
            self.note(Anomaly::DoneWithoutFinish);
        }
        self.hold(Held { raw: event.raw, seq: self.seq, touches: 0, commits: false, call: false });
        self.let_go();
        self.release(&mut pushed.out, &mut pushed.commit, true);
        self.done_seen = true;
        pushed.ended = true;
        Ok(())
    }

    fn take_chunk(&mut self, chunk: &Chunk, event: SseEvent, now: Ts, pushed: &mut Pushed) -> Result<(), StreamFault> {
        self.usage = chunk.usage.or(self.usage);
        if self.model.is_none() {
            self.model.clone_from(&chunk.model);
        }
        if self.fingerprint.is_none() {
            self.fingerprint.clone_from(&chunk.fingerprint);
        }
        if chunk.is_usage_only() && !self.settings.client_wants_usage {
            return Ok(());
        }
        self.seq += 1;
        let mut seen = Seen::default();
        for choice in &chunk.choices {
            self.take_choice(choice, &mut seen)?;
        }
        let raw = if seen.splices.is_empty() { event.raw } else { rewrite::splice_event(&event, &seen.splices) };
        let waits = self.waits(seen.touches, self.seq);
        if seen.text && !waits && self.first_text.is_none() {
            self.first_text = Some(now);
        }
        let commits = match self.settings.commit_at {
            CommitAt::FirstToken => seen.text || seen.real_end,
            CommitAt::FirstSentence => seen.sentence_end || seen.real_end,
            CommitAt::Complete => false,
        };
        self.hold(Held { raw, seq: self.seq, touches: seen.touches, commits, call: seen.call });
        self.release(&mut pushed.out, &mut pushed.commit, false);
        if self.held_bytes > self.settings.hold_limit_bytes {
            return Err(StreamFault::TooLarge);
        }
        pushed.progress = seen.progress;
        if !self.committed {
            pushed.sign = self.sign(&seen);
        }
        Ok(())
    }

    fn sign(&mut self, seen: &Seen) -> Option<Sign> {
        if seen.call && !self.call_shown {
            self.call_shown = true;
            self.life_shown = true;
            return Some(Sign::ToolCall);
        }
        if (seen.reasoning || seen.text) && !self.life_shown {
            self.life_shown = true;
            return Some(Sign::Life);
        }
        None
    }

    fn take_choice(&mut self, choice: &Choice, seen: &mut Seen) -> Result<(), StreamFault> {
        let place = match self.choices.iter().position(|c| c.index == choice.index) {
            Some(place) => place,
            None if self.choices.len() < MAX_CHOICES => {
                self.choices.push(ChoiceState { index: choice.index, ..ChoiceState::default() });
                self.choices.len() - 1
            }
            None => return Err(StreamFault::Malformed(format!("more than {MAX_CHOICES} choices"))),
        };
        seen.touches |= 1 << place;
        let seq = self.seq;
        let state = &mut self.choices[place];
        let delta = &choice.delta;
        let mut after_finish = false;
        if delta.reasoning.is_some() {
            seen.reasoning = true;
            seen.progress = true;
        }
        for text in [&delta.content, &delta.refusal].into_iter().flatten() {
            seen.progress = true;
            after_finish |= state.finish.is_some();
            if !text.trim().is_empty() {
                seen.text = true;
                state.substance = true;
            }
            seen.sentence_end |= !self.committed && state.sentence.add(text);
        }
        if delta.audio {
            seen.progress = true;
            seen.text = true;
            seen.sentence_end = true;
            state.substance = true;
        }
        let mut renumbered = false;
        for fragment in &delta.tool_calls {
            seen.progress = true;
            seen.call = true;
            after_finish |= state.finish.is_some();
            state.waits_from.get_or_insert(seq);
            let placed = state.calls.add(fragment);
            match fragment.index {
                Some(sent) if sent != placed.index => {
                    renumbered = true;
                    seen.splices.extend(fragment.index_at.clone().map(|at| (at, placed.index.to_string())));
                }
                None if self.settings.add_missing_index && !fragment.legacy => {
                    let text = format!("\"index\":{},", placed.index);
                    seen.splices.extend(fragment.object_at.map(|at| (at + 1..at + 1, text)));
                }
                Some(_) | None => {}
            }
            if state.calls.bytes() > self.settings.hold_limit_bytes {
                return Err(StreamFault::TooLarge);
            }
        }
        if let Some(reason) = &choice.finish_reason {
            match reason.as_str() {
                "length" | "content_filter" => seen.real_end = true,
                "stop" | "tool_calls" | "function_call" => seen.real_end |= state.answers(),
                other => return Err(StreamFault::BadFinish(crate::units::printable(other, 40))),
            }
            state.finish = Some(reason.clone());
            state.waits_from = None;
        }
        if renumbered {
            self.note(Anomaly::Renumbered);
        }
        if after_finish {
            self.note(Anomaly::AfterFinish);
        }
        Ok(())
    }

    fn hold(&mut self, held: Held) {
        self.held_bytes += held.raw.len() + EVENT_OVERHEAD_BYTES;
        self.held_commits += usize::from(held.commits);
        self.queue.push_back(held);
    }

    /// An event that touches these choices waits for the finish of one of them.
    fn waits(&self, touches: u128, seq: u64) -> bool {
        touches != 0
            && self
                .choices
                .iter()
                .enumerate()
                .any(|(place, c)| touches & (1 << place) != 0 && c.waits_from.is_some_and(|from| seq >= from))
    }

    /// Nothing waits for a finish any more.
    fn let_go(&mut self) {
        for choice in &mut self.choices {
            choice.waits_from = None;
        }
    }

    /// Sends what may leave the queue. `force`: commit, whatever has come.
    fn release(&mut self, out: &mut Vec<Bytes>, commit: &mut bool, force: bool) {
        if !self.committed && !force && self.held_commits == 0 {
            return;
        }
        // While one choice waits, no call of another may leave either: it could be torn by what waits in the middle of it.
        let some_wait = self.choices.iter().any(|c| c.waits_from.is_some());
        let leaves = |h: &&Held| !some_wait || !(h.call || self.waits(h.touches, h.seq));
        let free = self.queue.iter().take_while(leaves).count();
        if free == 0 {
            return;
        }
        if !self.committed {
            if !force && !self.queue.iter().take(free).any(|h| h.commits) {
                return;
            }
            self.committed = true;
            *commit = true;
        }
        for held in self.queue.drain(..free) {
            self.held_bytes -= held.raw.len() + EVENT_OVERHEAD_BYTES;
            self.held_commits -= usize::from(held.commits);
            self.calls_delivered |= held.call;
            out.push(held.raw);
        }
    }

    /// Calls that still wait when the stream says that it is done are delivered only if they are whole (case B012).
    fn judge_calls(&self) -> Result<(), StreamFault> {
        let cut = self.choices.iter().any(|c| c.waits_from.is_some() && !c.calls.whole());
        if cut { Err(StreamFault::Truncated) } else { Ok(()) }
    }

    /// The end of a body without `[DONE]`.
    fn judge_end(&self, clean: bool) -> Result<(), StreamFault> {
        let finished = !self.choices.is_empty() && self.choices.iter().all(|c| c.finish.is_some());
        if !clean {
            let all_there = self.choices.len() as u64 >= u64::from(self.settings.choices);
            let waiting = self.choices.iter().any(|c| c.waits_from.is_some());
            if !finished || !all_there || waiting {
                return Err(StreamFault::Cut);
            }
        }
        if !self.data_seen {
            return Err(self.stray.map_or(StreamFault::Empty, |what| StreamFault::Malformed(what.to_owned())));
        }
        if !finished {
            return Err(if self.choices.is_empty() { StreamFault::Empty } else { StreamFault::Truncated });
        }
        self.judge_calls()?;
        if self.choices.iter().any(ChoiceState::answers) { Ok(()) } else { Err(StreamFault::Empty) }
    }

    fn completion(&mut self) -> Completion {
        let mut found = Vec::new();
        for choice in &self.choices {
            let calls = choice.calls.calls();
            match choice.finish.as_deref() {
                Some("tool_calls" | "function_call") if calls.is_empty() => found.push(Anomaly::FinishMismatch),
                Some("stop") if !calls.is_empty() => found.push(Anomaly::FinishMismatch),
                _ => {}
            }
            if !choice.answers() {
                found.push(Anomaly::EmptyChoice);
            }
            if calls.iter().any(|c| !c.arguments_whole()) {
                found.push(Anomaly::InvalidArguments);
            }
        }
        if self.stray.is_some() {
            found.push(Anomaly::StrayLines);
        }
        for anomaly in found {
            self.note(anomaly);
        }
        self.anomalies.sort_unstable();
        Completion {
            finish_reasons: self.choices.iter().map(|c| (c.index, c.finish.clone())).collect(),
            tool_calls: self.choices.iter().flat_map(|c| c.calls.calls().iter().cloned()).collect(),
            usage: self.usage,
            model: self.model.clone(),
            fingerprint: self.fingerprint.clone(),
            anomalies: self.anomalies.clone(),
            append_done: !self.done_seen,
        }
    }
}

/// What one chunk holds, over all its choices.
#[derive(Debug, Default)]
struct Seen {
    touches: u128,
    /// Text, refusal or sound that is not blank.
    text: bool,
    sentence_end: bool,
    reasoning: bool,
    call: bool,
    /// A finish that commits.
    real_end: bool,
    progress: bool,
    splices: Vec<rewrite::Splice>,
}

/// How far the first sentence of a choice has come.
#[derive(Debug, Default)]
struct Sentence {
    chars: u32,
    after_mark: bool,
}

impl Sentence {
    /// Adds text; true if the sentence has ended. `.!?` and a newline end it before white space and at the end of what has
    /// come; the full-width marks need nothing after them, as their scripts put no space there.
    fn add(&mut self, text: &str) -> bool {
        let mut ended = false;
        for c in text.chars() {
            if self.chars == 0 && c.is_whitespace() {
                continue;
            }
            ended |= self.after_mark && c.is_whitespace();
            ended |= matches!(c, '。' | '！' | '？');
            self.chars = self.chars.saturating_add(1);
            self.after_mark = matches!(c, '.' | '!' | '?' | '\n');
        }
        ended || self.after_mark || self.chars >= SENTENCE_CHARS
    }
}

/// What stands there instead of an event stream, if it is clear.
fn what_instead(raw: &[u8]) -> Option<&'static str> {
    if error::looks_like_html(raw) {
        return Some("an HTML page instead of an event stream");
    }
    match raw.trim_ascii_start().first() {
        Some(b'{' | b'[') => Some("JSON without event-stream framing"),
        _ => None,
    }
}

/// The error object of a JSON document that came instead of a stream.
fn in_document(text: &str, secrets: &Secrets) -> Option<ErrorObject> {
    Chunk::read(text.trim().as_bytes(), secrets).ok()?.error
}

/// A reader and a machine in one: chunks of the body in, what is to be done out.
#[derive(Debug)]
pub struct StreamInlet {
    reader: SseReader,
    state: StreamState,
}

impl StreamInlet {
    /// An inlet at the begin of a body.
    #[must_use]
    pub fn new(settings: StreamSettings, max_event_bytes: usize) -> StreamInlet {
        StreamInlet { reader: SseReader::new(max_event_bytes), state: StreamState::new(settings) }
    }

    /// The machine.
    #[must_use]
    pub fn state(&self) -> &StreamState {
        &self.state
    }

    /// Takes a chunk of the body. A fault in the same chunk as the commit point takes the commit back: nothing has been sent.
    pub fn bytes(&mut self, chunk: Bytes, now: Ts) -> Pushed {
        let before = self.state.committed;
        let mut all = Pushed::default();
        self.reader.push(chunk);
        while let Some(next) = self.reader.next() {
            let step = match next {
                Ok(event) => self.state.event(event, now),
                Err(_) if self.state.over() => break,
                Err(_) => self.state.fail(StreamFault::TooLarge, self.state.committed),
            };
            if let Some(fault) = step.fault {
                if !before {
                    self.state.take_back();
                    all = Pushed::default();
                }
                all.out.extend(step.out);
                all.fault = Some(fault);
                break;
            }
            all.out.extend(step.out);
            all.sign = match (all.sign, step.sign) {
                (Some(Sign::ToolCall), _) => Some(Sign::ToolCall),
                (old, new) => new.or(old),
            };
            all.commit |= step.commit;
            all.progress |= step.progress;
            all.ended |= step.ended;
        }
        all
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Ts) -> Pushed {
        self.state.tick(now)
    }

    /// When [`StreamInlet::tick`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ts> {
        self.state.poll_timeout()
    }

    /// The body has ended: `clean` by itself, or else by a broken connection or a silence past its limit.
    pub fn end(&mut self, clean: bool, now: Ts) -> StreamEnd {
        let before = self.state.committed;
        let mut first = Pushed::default();
        let mut end = match self.reader.finish() {
            Some(Ok(event)) => {
                first = self.state.event(event, now);
                self.state.finish(clean)
            }
            Some(Err(error)) => self.state.broken(error),
            None => self.state.finish(clean),
        };
        if matches!(end.done, Done::Fault(_)) {
            // After commit the last event may still be sent: it is a part of this attempt's answer.
            if before {
                end.out = first.out;
            } else {
                self.state.take_back();
            }
        } else {
            first.out.append(&mut end.out);
            end.out = first.out;
            end.commit |= first.commit;
        }
        end
    }
}
