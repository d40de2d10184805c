//! The limits a provider has told us, kept on our side: requests and tokens per minute of one quota bucket.
//!
//! When a failed target's whole traffic moves to another, the other must not be run into its limit: its 429s would take out the
//! stand-in as well. So what is over the limit waits here, or goes elsewhere, and never becomes a refusal by the provider.
//!
//! A minute is sixty buckets of one second, and the sum over the last sixty is what has been spent: a request counts for at least
//! 59 and at most 60 seconds.

use crate::units::Ts;

const BUCKETS: u64 = 60;
const WIDTH_NS: u64 = 1_000_000_000;

/// Sum over the last minute.
#[derive(Clone, Debug)]
struct Minute {
    limit: u64,
    newest: u64,
    ring: Vec<u64>,
    sum: u64,
}

impl Minute {
    fn new(limit: u64) -> Minute {
        Minute { limit, newest: 0, ring: vec![0; BUCKETS as usize], sum: 0 }
    }

    fn place(&mut self, stamp: u64) -> Option<&mut u64> {
        self.ring.get_mut((stamp % BUCKETS) as usize)
    }

    fn slide(&mut self, now: Ts) {
        let stamp = now.0 / WIDTH_NS;
        for n in 1..=stamp.saturating_sub(self.newest).min(BUCKETS) {
            let stamp = self.newest + n;
            if let Some(spent) = self.place(stamp).map(std::mem::take) {
                self.sum = self.sum.saturating_sub(spent);
            }
        }
        self.newest = self.newest.max(stamp);
    }

    fn add(&mut self, now: Ts, n: u64) {
        self.slide(now);
        let newest = self.newest;
        if let Some(spent) = self.place(newest) {
            *spent = spent.saturating_add(n);
            self.sum = self.sum.saturating_add(n);
        }
    }

    /// When `n` more fit; `None`: now. One that is larger than the whole limit goes when nothing else is spent.
    fn until(&self, now: Ts, n: u64) -> Option<Ts> {
        let stamp = now.0 / WIDTH_NS;
        let room = self.limit.saturating_sub(n);
        let mut sum = self.sum;
        // The oldest first; what has left by now is subtracted on the way.
        for age in (0..BUCKETS).rev() {
            let Some(at) = self.newest.checked_sub(age) else { continue };
            let leaves = at + BUCKETS;
            if sum <= room && leaves > stamp {
                return None;
            }
            sum = sum.saturating_sub(self.ring.get((at % BUCKETS) as usize).copied().unwrap_or(0));
            if sum <= room && leaves > stamp {
                return Some(Ts(leaves.saturating_mul(WIDTH_NS)));
            }
        }
        None
    }

    fn full(&self, now: Ts, n: u64) -> bool {
        // The quick answer: most requests find room without a look at the ring.
        self.sum + n > self.limit && self.until(now, n).is_some()
    }
}

/// Limits of one quota bucket. Where several targets share it, the smallest declared limit holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    requests: Option<Minute>,
    tokens: Option<Minute>,
}

impl Rate {
    /// Takes in what one target of the bucket declares.
    pub(crate) fn declare(&mut self, requests_per_minute: Option<u64>, tokens_per_minute: Option<u64>) {
        let smaller = |old: &mut Option<Minute>, limit: Option<u64>| {
            if let Some(limit) = limit.map(|limit| limit.max(1)) {
                *old = Some(Minute::new(old.as_ref().map_or(limit, |m| m.limit.min(limit))));
            }
        };
        smaller(&mut self.requests, requests_per_minute);
        smaller(&mut self.tokens, tokens_per_minute);
    }

    /// What was spent under another limit is spent under this one.
    pub(crate) fn inherit(&mut self, old: &Rate) {
        let take = |new: &mut Option<Minute>, old: &Option<Minute>| {
            if let (Some(new), Some(old)) = (new, old) {
                *new = Minute { limit: new.limit, ..old.clone() };
            }
        };
        take(&mut self.requests, &old.requests);
        take(&mut self.tokens, &old.tokens);
    }

    /// When a request of so many tokens may go; `None`: now.
    pub(crate) fn until(&self, now: Ts, tokens: u64) -> Option<Ts> {
        let requests = self.requests.as_ref().filter(|m| m.full(now, 1)).and_then(|m| m.until(now, 1));
        let tokens = self.tokens.as_ref().filter(|m| m.full(now, tokens)).and_then(|m| m.until(now, tokens));
        requests.max(tokens)
    }

    /// A request of so many tokens goes.
    pub(crate) fn spend(&mut self, now: Ts, tokens: u64) {
        if let Some(m) = &mut self.requests {
            m.add(now, 1);
        }
        if let Some(m) = &mut self.tokens {
            m.add(now, tokens);
        }
    }

    /// The answer says that it took more tokens than were counted on.
    pub(crate) fn spend_more(&mut self, now: Ts, tokens: u64) {
        if let Some(m) = &mut self.tokens {
            m.add(now, tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: Option<u64>, tokens: Option<u64>) -> Rate {
        let mut rate = Rate::default();
        rate.declare(requests, tokens);
        rate
    }

    #[test]
    fn the_limit_is_never_exceeded_in_any_minute() {
        let mut r = rate(Some(10), None);
        let mut sent: Vec<u64> = Vec::new();
        for ms in (0..300_000).step_by(370) {
            let now = Ts::from_ms(ms);
            if r.until(now, 0).is_none() {
                r.spend(now, 0);
                sent.push(ms);
            }
        }
        assert!(sent.len() >= 10 * 4, "{}", sent.len());
        for at in &sent {
            // Buckets count whole seconds, so 59 s is what is promised to the millisecond.
            let within = sent.iter().filter(|s| **s >= *at && **s < at + 59_000).count();
            assert!(within <= 10, "{within} from {at} ms");
        }
    }

    #[test]
    fn it_says_when_there_is_room_again_and_there_is() {
        let mut r = rate(Some(2), None);
        r.spend(Ts::from_ms(500), 0);
        r.spend(Ts::from_ms(20_500), 0);
        let at = r.until(Ts::from_s(30), 0).expect("full");
        assert_eq!(at, Ts::from_s(60), "the first second's bucket leaves after sixty");
        assert_eq!(r.until(Ts(at.0 - 1), 0), Some(at));
        assert_eq!(r.until(at, 0), None);
    }

    #[test]
    fn tokens_count_as_estimated_and_are_corrected() {
        let mut r = rate(None, Some(1_000));
        r.spend(Ts::from_s(1), 600);
        assert!(r.until(Ts::from_s(2), 400).is_none());
        assert!(r.until(Ts::from_s(2), 401).is_some());
        r.spend_more(Ts::from_s(2), 300);
        assert!(r.until(Ts::from_s(3), 101).is_some());
        assert!(r.until(Ts::from_s(3), 100).is_none());
    }

    #[test]
    fn one_larger_than_the_limit_goes_alone() {
        let mut r = rate(None, Some(1_000));
        assert!(r.until(Ts::from_s(1), 5_000).is_none());
        r.spend(Ts::from_s(1), 5_000);
        assert_eq!(r.until(Ts::from_s(2), 1), Some(Ts::from_s(61)));
    }

    #[test]
    fn shared_buckets_keep_the_smaller_limit_and_none_is_none() {
        let mut r = rate(Some(100), None);
        r.declare(Some(3), None);
        r.declare(None, None);
        for _ in 0..3 {
            r.spend(Ts::from_s(1), 0);
        }
        assert!(r.until(Ts::from_s(1), 0).is_some());
        let mut open = Rate::default();
        open.spend(Ts::from_s(1), 9);
        assert!(open.until(Ts::from_s(1), 9).is_none());
    }
}
