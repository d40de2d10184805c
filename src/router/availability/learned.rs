//! What a target was found to lack although its policy entry says otherwise.
//!
//! A mismatch names a feature; later requests that need it pass this target over, for a quarter of an hour. Then it is tried
//! again, so that one odd answer never takes a capability away for good.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::policy::TargetId;
use crate::router::classify::Lack;
use crate::units::Ts;

/// How long it is believed.
const BELIEVED: Duration = Duration::from_secs(15 * 60);

/// Bytes of a request for each token of it, until a target has said otherwise.
const BYTES_PER_TOKEN: f64 = 3.0;
/// So many answers must have said how many tokens the request had.
const RATIO_FROM: u32 = 10;
/// Weight of the newest.
const RATIO_NEWEST: f64 = 0.1;
/// A tokenizer outside these bounds is a wrong count: no text has fewer than half a byte, or more than 16, to a token.
const RATIO_BOUNDS: (f64, f64) = (0.5, 16.0);

/// Lacks by target, and how each counts tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    until: BTreeMap<(TargetId, Lack), Ts>,
    /// Smoothed bytes per token, and from how many answers.
    ratio: BTreeMap<TargetId, (f64, u32)>,
}

impl Learned {
    /// A request met it. [`Lack::Other`] is known for that request only and not kept.
    pub(crate) fn met(&mut self, now: Ts, target: TargetId, lack: Lack) {
        if lack != Lack::Other {
            self.until.insert((target, lack), now + BELIEVED);
        }
    }

    /// An answer said how many tokens its request of so many bytes had.
    pub(crate) fn counted(&mut self, target: TargetId, body_bytes: u64, input_tokens: u64) {
        if input_tokens == 0 {
            return;
        }
        let ratio = body_bytes as f64 / input_tokens as f64;
        if !(RATIO_BOUNDS.0..=RATIO_BOUNDS.1).contains(&ratio) {
            return;
        }
        let (smoothed, from) = self.ratio.entry(target).or_insert((ratio, 0));
        *smoothed += RATIO_NEWEST * (ratio - *smoothed);
        *from = from.saturating_add(1);
    }

    /// Tokens that a request of so many bytes is expected to have at this target.
    pub(crate) fn tokens(&self, target: TargetId, body_bytes: u64) -> u64 {
        let known = self.ratio.get(&target).filter(|(_, from)| *from >= RATIO_FROM);
        let ratio = known.map_or(BYTES_PER_TOKEN, |(ratio, _)| *ratio);
        (body_bytes as f64 / ratio) as u64
    }

    /// True if this is believed now.
    pub(crate) fn lacks(&self, now: Ts, target: TargetId, lack: Lack) -> bool {
        !self.until.is_empty() && self.until.get(&(target, lack)).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_three_bytes_until_ten_answers_have_said_otherwise() {
        let mut learned = Learned::default();
        for _ in 0..9 {
            learned.counted(TargetId(1), 4_000, 1_000);
        }
        assert_eq!(learned.tokens(TargetId(1), 3_000), 1_000);
        learned.counted(TargetId(1), 4_000, 1_000);
        assert_eq!(learned.tokens(TargetId(1), 4_000), 1_000, "four bytes each");
        assert_eq!(learned.tokens(TargetId(2), 3_000), 1_000, "each target for itself");
        for _ in 0..100 {
            learned.counted(TargetId(1), 4_000, 1_000_000);
            learned.counted(TargetId(1), 4_000, 0);
        }
        assert_eq!(learned.tokens(TargetId(1), 4_000), 1_000, "no tokenizer counts like that");
    }

    #[test]
    fn believed_for_a_quarter_of_an_hour_and_unknown_things_never() {
        let mut learned = Learned::default();
        learned.met(Ts::ZERO, TargetId(1), Lack::Tools);
        learned.met(Ts::ZERO, TargetId(1), Lack::Other);
        assert!(learned.lacks(Ts::from_s(899), TargetId(1), Lack::Tools));
        assert!(!learned.lacks(Ts::from_s(900), TargetId(1), Lack::Tools));
        assert!(!learned.lacks(Ts::ZERO, TargetId(1), Lack::Other));
        assert!(!learned.lacks(Ts::ZERO, TargetId(2), Lack::Tools));
    }
}
