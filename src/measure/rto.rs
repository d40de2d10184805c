//! Recovery time as the customer has it.
//!
//! RTO is counted over turns that *started after the fault server had acknowledged the injection*: from the start of the
//! first one that the primary did not answer to the useful text of the first of three useful answers in a row, in order
//! of their start. Streams that were under way at the cut are judged apart; whether the fault bit at all is a condition
//! of validity, not of recovery time.

use serde::{Deserialize, Serialize};

/// Useful answers in a row that count as "back".
pub const IN_A_ROW: usize = 3;

/// What the definition needs to know about one turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnFacts {
    /// Start of its first request.
    pub started_ms: f64,
    /// The primary answered it: all of it came from there, whole.
    pub primary_answered: bool,
    /// It is a useful answer: useful text within the deadline, completed, all blocking invariants held, no handoff.
    pub useful: bool,
    /// It neither counts nor breaks the row: the customer asked for a human and got one. A handoff is never a useful
    /// answer, but one that was asked for is no failure either.
    pub neutral: bool,
    /// Useful text of the turn: that of its last request, after its last tool result.
    pub useful_text_ms: Option<f64>,
}

/// How recovery went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rto {
    /// The primary answered every turn, or no turn started: there is nothing to recover from.
    NotHit,
    /// It never came back while the drill looked.
    NotRecovered {
        /// Start of the first turn that the primary did not answer.
        from_ms: f64,
    },
    /// It came back.
    Recovered {
        /// Start of the first turn that the primary did not answer.
        from_ms: f64,
        /// Useful text of the first of three useful answers in a row.
        to_ms: f64,
        /// Place of the first turn that the primary did not answer.
        first_missed: usize,
        /// Place of the first of the three.
        first_useful: usize,
    },
}

impl Rto {
    /// The time, where it was recovered. Never below zero.
    #[must_use]
    pub fn total_ms(&self) -> Option<f64> {
        match self {
            Rto::Recovered { from_ms, to_ms, .. } => Some((to_ms - from_ms).max(0.0)),
            Rto::NotHit | Rto::NotRecovered { .. } => None,
        }
    }
}

/// Recovery time over `turns`, which must be in order of their start; those that started before `injected_ms` or at or
/// after `until_ms` (the next injection, or the end of the drill) are left out.
#[must_use]
pub fn rto(turns: &[TurnFacts], injected_ms: f64, until_ms: f64) -> Rto {
    let inside = |t: &TurnFacts| t.started_ms >= injected_ms && t.started_ms < until_ms;
    let Some(first_missed) = turns.iter().position(|t| inside(t) && !t.primary_answered) else { return Rto::NotHit };
    let from_ms = turns[first_missed].started_ms;
    let mut row: Vec<usize> = Vec::with_capacity(IN_A_ROW);
    for (i, turn) in turns.iter().enumerate().skip(first_missed).filter(|(_, t)| inside(t)) {
        if turn.neutral {
            continue;
        }
        match turn.useful_text_ms {
            Some(_) if turn.useful => row.push(i),
            _ => row.clear(),
        }
        if row.len() == IN_A_ROW {
            let first_useful = row[0];
            let to_ms = turns[first_useful].useful_text_ms.unwrap_or(from_ms);
            return Rto::Recovered { from_ms, to_ms, first_missed, first_useful };
        }
    }
    Rto::NotRecovered { from_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(started_ms: f64, primary: bool, useful_after: Option<f64>) -> TurnFacts {
        TurnFacts {
            started_ms,
            primary_answered: primary,
            useful: useful_after.is_some(),
            neutral: false,
            useful_text_ms: useful_after.map(|ms| started_ms + ms),
        }
    }

    const FAR: f64 = f64::INFINITY;

    #[test]
    fn from_the_first_miss_to_the_first_of_three() {
        // Injected at 1000. The turn at 900 does not count; the primary still answers 1010 from what was in its pipe.
        // First miss at 1100 (failed), 1200 fails, 1300 1400 1500 are useful: 1300 + 80 - 1100 = 280.
        let turns = [
            turn(900.0, false, None),
            turn(1010.0, true, Some(50.0)),
            turn(1100.0, false, None),
            turn(1200.0, false, None),
            turn(1300.0, false, Some(80.0)),
            turn(1400.0, false, Some(60.0)),
            turn(1500.0, false, Some(60.0)),
        ];
        let got = rto(&turns, 1000.0, FAR);
        assert_eq!(got, Rto::Recovered { from_ms: 1100.0, to_ms: 1380.0, first_missed: 2, first_useful: 4 });
        assert_eq!(got.total_ms(), Some(280.0));
    }

    #[test]
    fn a_stand_in_that_answers_at_once_recovers_in_its_own_time_to_text() {
        let turns = [turn(5.0, false, Some(300.0)), turn(6.0, false, Some(70.0)), turn(7.0, false, Some(70.0))];
        assert_eq!(rto(&turns, 0.0, FAR).total_ms(), Some(300.0));
    }

    #[test]
    fn two_in_a_row_are_not_back() {
        let turns = [
            turn(1.0, false, None),
            turn(2.0, false, Some(1.0)),
            turn(3.0, false, Some(1.0)),
            turn(4.0, false, None),
            turn(5.0, false, Some(1.0)),
            turn(6.0, false, Some(1.0)),
        ];
        assert_eq!(rto(&turns, 0.0, FAR), Rto::NotRecovered { from_ms: 1.0 });
        // A third one, started after the end of the window, does not help.
        let mut more = turns.to_vec();
        more.push(turn(7.0, false, Some(1.0)));
        assert_eq!(rto(&more, 0.0, 7.0), Rto::NotRecovered { from_ms: 1.0 });
        assert_eq!(rto(&more, 0.0, FAR).total_ms(), Some(5.0));
    }

    #[test]
    fn a_human_who_was_asked_for_neither_counts_nor_breaks_the_row() {
        let mut asked = turn(3.0, false, None);
        asked.neutral = true;
        let turns = [turn(1.0, false, Some(1.0)), turn(2.0, false, Some(1.0)), asked, turn(4.0, false, Some(1.0))];
        assert_eq!(rto(&turns, 0.0, FAR).total_ms(), Some(1.0));
    }

    #[test]
    fn a_fault_that_nobody_felt_has_no_recovery_time() {
        assert_eq!(rto(&[turn(1.0, true, Some(1.0))], 0.0, FAR), Rto::NotHit);
        assert_eq!(rto(&[], 0.0, FAR), Rto::NotHit);
    }
}
