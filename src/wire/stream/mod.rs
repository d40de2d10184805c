//! The end states of a streamed answer: what may be sent to the client and when (rules R1 and R2), and how the attempt
//! ended (rule R4). One machine per attempt; it reads events and a time, and moves no byte itself.
//!
//! What is held, what commits and how a stream ends is told in `docs/streams.md`. In short: every event goes through one
//! queue, in order. Before the commit point nothing leaves it. A chunk with a fragment of a tool call, and every later chunk
//! that touches the same choice, waits until that choice has its finish; what stands behind a waiting chunk waits too, so
//! that order is kept across choices. Comments are dropped before the commit point and pass after it, if they are clean (see `tidy.rs`).

mod choice;
mod inlet;
mod sentence;
mod stamping;
mod tidy;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use self::choice::{ChoiceState, Seen};
pub use self::inlet::StreamInlet;
use self::stamping::{Stamping, Unstamped};
pub use self::types::{Anomaly, CommitAt, Completion, Done, Pushed, Sign, StreamEnd, StreamFault, StreamSettings};
use super::alike::Alike;
use super::chunk::{Choice, Chunk, MAX_CHOICES};
use super::error::{self, ErrorObject};
use super::sse::{SseError, SseEvent, SseKind};
use super::{Secrets, Usage, rewrite};
use crate::units::Ts;

/// Bound of what is held for one stream: 16 MiB, twice the largest event.
pub const HOLD_LIMIT_BYTES: usize = 2 * super::sse::MAX_EVENT_BYTES;
/// What a held event costs beside its bytes. Many small events are bounded by this.
const EVENT_OVERHEAD_BYTES: usize = 96;
/// Text that has no sentence end is not held longer than this.
const SENTENCE_WAIT: Duration = Duration::from_secs(1);

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
    /// It is put together when its calls are stamped.
    unstamped: Option<Box<Unstamped>>,
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
    stamping: Stamping,
    /// What waits for the stamps leaves with force.
    force: bool,
    first_text: Option<Ts>,
    data_seen: bool,
    stray: Option<&'static str>,
    done_seen: bool,
    closed: bool,
    fault: Option<StreamFault>,
    usage: Option<Usage>,
    /// What its chunks have in common. `None` while it is in use, and before the first.
    alike: Option<Box<Alike>>,
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
            stamping: Stamping::NotYet,
            force: false,
            first_text: None,
            data_seen: false,
            stray: None,
            done_seen: false,
            closed: false,
            fault: None,
            usage: None,
            alike: None,
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
        pushed.calls = self.due();
        pushed
    }

    /// Lets time pass: the one-second rule of `first_sentence`.
    pub fn tick(&mut self, now: Ts) -> Pushed {
        let mut pushed = Pushed::default();
        if self.poll_timeout().is_some_and(|at| now >= at) {
            self.release(&mut pushed.out, &mut pushed.commit, true);
        }
        pushed.calls = self.due();
        pushed
    }

    /// The body has ended: `clean` by itself, or else by a broken connection or a silence past its limit. Called after
    /// `[DONE]` as well.
    pub fn finish(&mut self, clean: bool) -> StreamEnd {
        if let Some(fault) = &self.fault {
            return StreamEnd { out: Vec::new(), commit: false, calls: None, done: Done::Fault(fault.clone()) };
        }
        let mut end = StreamEnd { out: Vec::new(), commit: false, calls: None, done: Done::Fault(StreamFault::Empty) };
        if !self.done_seen && !self.closed {
            if let Err(fault) = self.judge_end(clean) {
                self.fail(fault.clone(), self.committed);
                end.done = Done::Fault(fault);
                return end;
            }
            self.note(if clean { Anomaly::FinishWithoutDone } else { Anomaly::CutAfterFinish });
            self.let_go();
            self.release(&mut end.out, &mut end.commit, true);
            self.closed = true;
        }
        end.calls = self.due();
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

    /// The provider sent text that waits before it comes here.
    fn live(&mut self, pushed: &mut Pushed) {
        pushed.progress = true;
        if !self.committed && !self.life_shown && pushed.sign.is_none() {
            self.life_shown = true;
            pushed.sign = Some(Sign::Life);
        }
    }

    fn over(&self) -> bool {
        self.done_seen || self.closed || self.fault.is_some()
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
        if event.named_error {
            let text = if event.kind == SseKind::Stray { &event.raw } else { &event.data };
            return Err(StreamFault::Error(Box::new(ErrorObject::read(200, text, &self.settings.secrets))));
        }
        let event = tidy::tidy(event, &self.settings.secrets);
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
        let mut alike = self.alike.take().unwrap_or_default();
        if let Some(chunk) = alike.read(&event.data) {
            let taken = self.take_chunk(chunk, event, now, pushed);
            self.alike = Some(alike);
            return taken;
        }
        let chunk =
            Chunk::read(&event.data, &self.settings.secrets).map_err(|e| StreamFault::Malformed(e.to_owned()))?;
        alike.learn(&event.data, &chunk);
        self.alike = Some(alike);
        if let Some(error) = chunk.error {
            return Err(StreamFault::Error(Box::new(error)));
        }
        if chunk.says_nothing() && !tidy::may_pass(&event.data, &self.settings.secrets) {
            return Ok(());
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
        self.hold(Held { raw: event.raw, seq: self.seq, touches: 0, commits: false, call: false, unstamped: None });
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
        for anomaly in std::mem::take(&mut seen.anomalies) {
            self.note(anomaly);
        }
        if self.settings.stamp_calls && seen.call {
            self.judge_stamping()?;
        }
        let (raw, unstamped) = if seen.pieces.is_empty() {
            let as_it_is = seen.splices.is_empty();
            (if as_it_is { event.raw } else { rewrite::splice_event(&event, &seen.splices) }, None)
        } else {
            let (splices, pieces) = (std::mem::take(&mut seen.splices), std::mem::take(&mut seen.pieces));
            (event.raw.clone(), Some(Box::new(Unstamped { event, splices, pieces })))
        };
        let waits = self.waits(seen.touches, self.seq);
        if seen.text && !waits && self.first_text.is_none() {
            self.first_text = Some(now);
        }
        let commits = match self.settings.commit_at {
            CommitAt::FirstToken => seen.text || seen.real_end,
            CommitAt::FirstSentence => seen.sentence_end || seen.real_end,
            CommitAt::Complete => false,
        };
        self.hold(Held { raw, seq: self.seq, touches: seen.touches, commits, call: seen.call, unstamped });
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
                self.choices.push(ChoiceState::new(choice.index));
                self.choices.len() - 1
            }
            None => return Err(StreamFault::Malformed(format!("more than {MAX_CHOICES} choices"))),
        };
        seen.touches |= 1 << place;
        self.choices[place].take(choice, self.seq, &self.settings, seen)
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
        let mut free = self.queue.iter().take_while(leaves).count();
        if free == 0 {
            return;
        }
        if !self.committed && !force && !self.queue.iter().take(free).any(|h| h.commits) {
            return;
        }
        if self.settings.stamp_calls
            && self.stamping != Stamping::Done
            && let Some(call) = self.queue.iter().take(free).position(|h| h.call)
        {
            if self.stamping == Stamping::NotYet {
                self.stamping = Stamping::Due;
            }
            self.force |= force;
            free = if self.committed { call } else { 0 };
        }
        if free > 0 && !self.committed {
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
            tool_calls: self.called(),
            usage: self.usage,
            model: self.model.clone(),
            fingerprint: self.fingerprint.clone(),
            anomalies: self.anomalies.clone(),
            append_done: !self.done_seen,
        }
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
