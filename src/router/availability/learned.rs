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

/// Lacks by target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    until: BTreeMap<(TargetId, Lack), Ts>,
}

impl Learned {
    /// A request met it. [`Lack::Other`] is known for that request only and not kept.
    pub(crate) fn met(&mut self, now: Ts, target: TargetId, lack: Lack) {
        if lack != Lack::Other {
            self.until.insert((target, lack), now + BELIEVED);
        }
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
