//! Which warnings were written lately: the same one again and again would bury the rest of the log.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The same warning is written at most this often.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);
/// So many kinds are remembered; beyond, all of it begins anew.
const KINDS: usize = 1024;

/// What was written when.
#[derive(Debug, Default)]
pub struct Warned {
    seen: Mutex<BTreeMap<(String, String), (Instant, u64)>>,
}

impl Warned {
    /// `Some` if a warning about this target and reason is to be written now, with how many were left out since the last one.
    pub fn now(&self, target: &str, reason: &str) -> Option<u64> {
        self.at(Instant::now(), target, reason)
    }

    fn at(&self, now: Instant, target: &str, reason: &str) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (target.to_owned(), reason.to_owned());
        if let Some((last, left_out)) = seen.get_mut(&key) {
            if now.duration_since(*last) < AT_MOST_EVERY {
                *left_out += 1;
                return None;
            }
            *last = now;
            return Some(std::mem::take(left_out));
        }
        if seen.len() >= KINDS {
            seen.clear();
        }
        seen.insert(key, (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_and_reason_is_told_once_in_ten_seconds_and_the_rest_is_counted() {
        let warned = Warned::default();
        let start = Instant::now();
        let at = |ms: u64, reason: &str| warned.at(start + Duration::from_millis(ms), "a", reason);
        assert_eq!((at(0, "refused"), at(1, "refused"), at(9_999, "refused")), (Some(0), None, None));
        assert_eq!(at(2, "status_404"), Some(0));
        assert_eq!((at(10_000, "refused"), at(10_001, "refused"), at(20_000, "refused")), (Some(2), None, Some(1)));
        for n in 0..3 * KINDS {
            warned.at(start, "b", &n.to_string());
        }
        assert!(warned.seen.lock().unwrap().len() <= KINDS);
    }
}
