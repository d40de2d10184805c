//! Outages at given times: a history, or a case made by hand.

use super::{Outage, SHORTEST};
use crate::units::Ts;

/// Outages in order, apart from each other.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    outages: Vec<Outage>,
    next: usize,
}

impl Listed {
    /// These outages, in any order. Those that begin before the last one ended are moved to its end, or left out.
    #[must_use]
    pub fn new(mut outages: Vec<Outage>) -> Listed {
        outages.sort_by_key(|o| o.from);
        let mut apart: Vec<Outage> = Vec::with_capacity(outages.len());
        for outage in outages {
            let from = apart.last().map_or(outage.from, |last| outage.from.max(last.to));
            if outage.to > from {
                apart.push(Outage { from, ..outage });
            }
        }
        Listed { outages: apart, next: 0 }
    }

    pub(super) fn next(&mut self, after: Ts) -> Option<Outage> {
        loop {
            let outage = *self.outages.get(self.next)?;
            self.next += 1;
            let from = outage.from.max(after);
            if outage.to > from + SHORTEST {
                return Some(Outage { from, ..outage });
            }
        }
    }
}
