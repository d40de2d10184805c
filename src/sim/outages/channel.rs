//! An independent channel: an alternating renewal process. Up and down times are exponential, with means that give the asked
//! share of time up: `up = down x a / (1 - a)`.

use std::time::Duration;

use super::{Effect, Look, Outage, SHORTEST, exponential};
use crate::units::{Rng, Ts};

/// Up and down in turn, with a given availability.
#[derive(Clone, Debug)]
pub struct Channel {
    up: Duration,
    down: Duration,
    look: Option<Look>,
}

impl Channel {
    /// A channel that is up for this share of time, with outages of this mean length. `look`: how every outage looks; `None`
    /// draws it. `None` is returned for an availability of 1 and above, which has no outages.
    #[must_use]
    pub fn new(availability: f64, mean_outage: Duration, look: Option<Look>) -> Option<Channel> {
        if availability >= 1.0 || !availability.is_finite() {
            return None;
        }
        let availability = availability.max(0.001);
        Some(Channel { up: mean_outage.mul_f64(availability / (1.0 - availability)), down: mean_outage, look })
    }

    pub(super) fn next(&mut self, after: Ts, rng: &mut Rng) -> Option<Outage> {
        let from = after + exponential(self.up, rng).max(SHORTEST);
        let to = from + exponential(self.down, rng).max(SHORTEST);
        let look = self.look.unwrap_or_else(|| Look::draw(rng));
        Some(Outage { from, to, effect: Effect::Down(look) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_up_for_the_asked_share_of_a_long_time() {
        let mut channel = Channel::new(0.97, Duration::from_secs(1_800), None).unwrap();
        let (mut rng, mut now, mut down) = (Rng::new(3), Ts::ZERO, Duration::ZERO);
        for _ in 0..100_000 {
            let outage = channel.next(now, &mut rng).unwrap();
            assert!(now < outage.from && outage.from < outage.to);
            down += outage.to.since(outage.from);
            now = outage.to;
        }
        let share = down.as_secs_f64() / now.since(Ts::ZERO).as_secs_f64();
        // The standard error of this share is about 0.03 x sqrt(2 / 100,000) = 0.00013.
        assert!((share - 0.03).abs() < 0.0006, "{share}");
        assert!(Channel::new(1.0, Duration::from_secs(1), None).is_none());
    }
}
