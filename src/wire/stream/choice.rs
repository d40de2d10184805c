//! One choice of a stream: what it has said, whether it waits, how it ended.

use super::sentence::Sentence;
use super::{Anomaly, StreamFault, StreamSettings};
use crate::wire::chunk::{Choice, MAX_CALLS};
use crate::wire::rewrite::Splice;
use crate::wire::stamp::Piece;
use crate::wire::toolcall::Calls;

/// What one chunk holds, over all its choices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) touches: u128,
    /// Text, refusal or sound that is not blank.
    pub(super) text: bool,
    pub(super) sentence_end: bool,
    pub(super) reasoning: bool,
    pub(super) call: bool,
    /// A finish that commits.
    pub(super) real_end: bool,
    pub(super) progress: bool,
    pub(super) anomalies: Vec<Anomaly>,
    pub(super) splices: Vec<Splice>,
    /// Where the pieces of calls stand, if they are to be stamped.
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug, Default)]
pub(super) struct ChoiceState {
    pub(super) index: u64,
    pub(super) finish: Option<String>,
    /// Text, a refusal or sound came that is not blank.
    pub(super) substance: bool,
    /// Since this event the choice waits for its finish.
    pub(super) waits_from: Option<u64>,
    pub(super) calls: Calls,
    sentence: Sentence,
}

impl ChoiceState {
    /// An answer, or a real reason why there is none.
    pub(super) fn answers(&self) -> bool {
        self.substance || self.calls.named() || matches!(self.finish.as_deref(), Some("length" | "content_filter"))
    }

    pub(super) fn new(index: u64) -> ChoiceState {
        ChoiceState { index, ..ChoiceState::default() }
    }

    /// Takes its part of the chunk with this number.
    pub(super) fn take(
        &mut self,
        from: &Choice,
        seq: u64,
        settings: &StreamSettings,
        seen: &mut Seen,
    ) -> Result<(), StreamFault> {
        let finished_before = self.finish.is_some();
        self.take_text(from, seen);
        self.take_calls(from, seq, settings, seen)?;
        if finished_before && (from.delta.content.is_some() || !from.delta.tool_calls.is_empty()) {
            seen.anomalies.push(Anomaly::AfterFinish);
        }
        let Some(reason) = &from.finish_reason else {
            return Ok(());
        };
        match reason.as_str() {
            "length" | "content_filter" => seen.real_end = true,
            "stop" | "tool_calls" | "function_call" => seen.real_end |= self.answers(),
            other => {
                let told = settings.secrets.scrub(other);
                return Err(StreamFault::BadFinish(crate::units::printable(&told, 40)));
            }
        }
        self.finish = Some(reason.clone());
        self.waits_from = None;
        Ok(())
    }

    fn take_text(&mut self, from: &Choice, seen: &mut Seen) {
        let delta = &from.delta;
        seen.reasoning |= delta.reasoning.is_some();
        for text in [&delta.content, &delta.refusal].into_iter().flatten() {
            seen.progress = true;
            if !text.trim().is_empty() {
                seen.text = true;
                self.substance = true;
            }
            seen.sentence_end |= self.sentence.add(text);
        }
        if delta.audio {
            seen.text = true;
            seen.sentence_end = true;
            self.substance = true;
        }
        seen.progress |= delta.audio || delta.reasoning.is_some();
    }

    fn take_calls(
        &mut self,
        from: &Choice,
        seq: u64,
        settings: &StreamSettings,
        seen: &mut Seen,
    ) -> Result<(), StreamFault> {
        for fragment in &from.delta.tool_calls {
            seen.progress = true;
            seen.call = true;
            self.waits_from.get_or_insert(seq);
            let placed = self.calls.add(fragment);
            if settings.stamp_calls {
                if fragment.legacy {
                    return Err(StreamFault::Malformed("an old `function_call`, which has no id".to_owned()));
                }
                seen.pieces.push(Piece::new(placed.call, fragment));
            }
            match fragment.index {
                Some(sent) if sent != placed.index => {
                    seen.anomalies.push(Anomaly::Renumbered);
                    seen.splices.extend(fragment.index_at.clone().map(|at| (at, placed.index.to_string())));
                }
                None if settings.add_missing_index && !fragment.legacy => {
                    let text = format!("\"index\":{},", placed.index);
                    seen.splices.extend(fragment.object_at.map(|at| (at + 1..at + 1, text)));
                }
                Some(_) | None => {}
            }
            if self.calls.bytes() > settings.hold_limit_bytes {
                return Err(StreamFault::TooLarge);
            }
            if self.calls.calls().len() > MAX_CALLS {
                return Err(StreamFault::Malformed(format!("more than {MAX_CALLS} tool calls")));
            }
        }
        Ok(())
    }
}
