//! Leases: a drill keeps one alive by a heartbeat. When it stops, for whatever reason, the server heals by itself.

use std::collections::{BTreeMap, VecDeque};

use super::error::ApiError;
use crate::fault::api::{Healed, Lease};
use crate::fault::clock::boot_ms as now_ms;

/// Leases at most.
const LEASES_MAX: usize = 256;
/// Entries of the history kept.
const HISTORY_MAX: usize = 1000;
/// Longest life without a heartbeat: a lease that long is none.
const TTL_MAX_MS: u64 = 3_600_000;

/// The leases of a server, and what was healed.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: BTreeMap<String, (u64, u64)>,
    history: VecDeque<Healed>,
}

impl Leases {
    /// Makes or refreshes one.
    ///
    /// # Errors
    /// 400 for bounds.
    pub fn beat(&mut self, id: &str, ttl_ms: u64) -> Result<Lease, ApiError> {
        if id.is_empty() || id.len() > 128 || id.contains('/') || id.chars().any(char::is_control) {
            return Err(ApiError::bad(
                "a lease id has 1 to 128 characters, none of them a slash or a control character",
            ));
        }
        if ttl_ms == 0 || ttl_ms > TTL_MAX_MS {
            return Err(ApiError::bad(format!("ttl_ms must be within 1..={TTL_MAX_MS}")));
        }
        if self.by_id.len() >= LEASES_MAX && !self.by_id.contains_key(id) {
            return Err(ApiError::bad("too many leases"));
        }
        self.by_id.insert(id.to_owned(), (ttl_ms, now_ms().saturating_add(ttl_ms)));
        Ok(Lease { id: id.to_owned(), ttl_ms, left_ms: ttl_ms })
    }

    /// It lives.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.by_id.get(id).is_some_and(|(_, until)| *until > now_ms())
    }

    /// Ends one. False if there was none.
    pub fn end(&mut self, id: &str) -> bool {
        self.by_id.remove(id).is_some()
    }

    /// Takes out those that ran out.
    pub fn ran_out(&mut self) -> Vec<String> {
        let now = now_ms();
        let over: Vec<String> =
            self.by_id.iter().filter(|(_, (_, until))| *until <= now).map(|(id, _)| id.clone()).collect();
        for id in &over {
            self.by_id.remove(id);
        }
        over
    }

    /// Milliseconds until the next one runs out.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        let now = now_ms();
        self.by_id.values().map(|(_, until)| until.saturating_sub(now)).min()
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> Vec<Lease> {
        let now = now_ms();
        let show = |(id, (ttl_ms, until)): (&String, &(u64, u64))| Lease {
            id: id.clone(),
            ttl_ms: *ttl_ms,
            left_ms: until.saturating_sub(now),
        };
        self.by_id.iter().map(show).collect()
    }

    /// Keeps an entry.
    pub fn record(&mut self, healed: Healed) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(healed);
    }

    /// The oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<Healed> {
        self.history.iter().cloned().collect()
    }
}
