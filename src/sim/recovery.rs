//! Recovery time of each outage, by the definition of [`mod@crate::measure::rto`]: from the start of the first turn that the
//! target which failed did not answer to the useful text of the first of three useful answers in a row.
//!
//! Only outages of a target that was in service and that left another legal target alive from begin to recovery are counted;
//! the others are told apart, since nothing could have recovered them.

use std::collections::VecDeque;

use super::figures::{Ended, Hist};
use crate::measure::{Rto, TurnFacts, rto};
use crate::units::Ts;

/// Turns of one outage that are kept before it counts as not recovered.
const MOST_TURNS: usize = 2_000;

#[derive(Clone, Debug, PartialEq)]
struct Turn {
    id: u64,
    started: Ts,
    /// The target was in service when it started.
    in_service: bool,
    facts: Option<TurnFacts>,
}

#[derive(Clone, Debug, PartialEq)]
struct Watch {
    target: usize,
    over: bool,
    in_service: bool,
    turns: VecDeque<Turn>,
}

/// Recovery of all outages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovery {
    /// Recovery times.
    pub times: Hist,
    /// Outages that recovered.
    pub recovered: u64,
    /// Outages with a live stand-in that did not recover while they were watched.
    pub not_recovered: u64,
    /// Outages that no request met.
    pub not_hit: u64,
    /// Outages without a live stand-in, or that lost it before they recovered.
    pub no_stand_in: u64,
    /// Outages of targets that were not in service.
    pub not_in_service: u64,
    /// Times that every target in use was down at once, however many of them went down for it.
    pub dark: u64,
    is_dark: bool,
    watches: Vec<Watch>,
    stopped: bool,
}

impl Recovery {
    pub(super) fn down(&mut self, _now: Ts, target: usize, stand_in: bool, in_service: bool) {
        if self.stopped {
        } else if !in_service {
            self.not_in_service += 1;
        } else if !stand_in {
            self.no_stand_in += 1;
        } else {
            // An older outage of the same target that nobody met yet is over.
            self.drop_target(target);
            self.watches.push(Watch { target, over: false, in_service, turns: VecDeque::new() });
        }
    }

    fn drop_target(&mut self, target: usize) {
        let before = self.watches.len();
        self.watches.retain(|w| w.target != target || w.turns.iter().any(Turn::missed));
        self.not_hit += (before - self.watches.len()) as u64;
    }

    pub(super) fn up(&mut self, _now: Ts, target: usize) {
        for watch in self.watches.iter_mut().filter(|w| w.target == target) {
            watch.over = true;
        }
    }

    /// Whether every target in use is down from this moment on.
    pub(super) fn dark(&mut self, dark: bool) {
        self.dark += u64::from(dark && !self.is_dark && !self.stopped);
        self.is_dark = dark;
    }

    /// Outages whose last stand-in has just gone are not counted.
    pub(super) fn lost(&mut self, has_stand_in: impl Fn(usize) -> bool) {
        let before = self.watches.len();
        self.watches.retain(|w| w.over || has_stand_in(w.target));
        self.no_stand_in += (before - self.watches.len()) as u64;
    }

    pub(super) fn service(&mut self, _now: Ts, target: usize, serves: bool) {
        for watch in self.watches.iter_mut().filter(|w| w.target == target) {
            watch.in_service = serves;
        }
    }

    pub(super) fn started(&mut self, id: u64, now: Ts) {
        for watch in &mut self.watches {
            // What starts after the outage belongs to it only while it waits for its three in a row.
            if !watch.over || !watch.turns.is_empty() {
                watch.turns.push_back(Turn { id, started: now, in_service: watch.in_service, facts: None });
            }
        }
    }

    pub(super) fn ended(&mut self, id: u64, _now: Ts, ended: &Ended) {
        let mut n = 0;
        while n < self.watches.len() {
            let watch = &mut self.watches[n];
            if let Some(turn) = watch.turns.iter_mut().find(|t| t.id == id) {
                let by_target = ended.answered_by == Some(watch.target);
                let meant_elsewhere = turn.in_service && ended.first.is_some_and(|first| first != watch.target);
                let started_ms = turn.started.0 as f64 / 1e6;
                let text = ended.useful_text.map(crate::units::ms);
                turn.facts = Some(TurnFacts {
                    started_ms,
                    primary_answered: by_target || meant_elsewhere,
                    useful: ended.useful,
                    neutral: ended.gone,
                    useful_text_ms: text.map(|ms| started_ms + ms),
                });
            }
            match watch.verdict() {
                None => n += 1,
                Some(verdict) => {
                    self.watches.swap_remove(n);
                    self.book(&verdict);
                }
            }
        }
    }

    fn book(&mut self, verdict: &Rto) {
        match verdict.total_ms() {
            Some(ms) => {
                self.recovered += 1;
                self.times.add(ms, 1.0);
            }
            None if *verdict == Rto::NotHit => self.not_hit += 1,
            None => self.not_recovered += 1,
        }
    }

    /// The time that counts is over: what is still watched is left out.
    pub(super) fn stop(&mut self) {
        self.watches.clear();
        self.stopped = true;
    }
}

impl Turn {
    fn missed(&self) -> bool {
        self.facts.is_some_and(|f| !f.primary_answered && !f.neutral)
    }
}

impl Watch {
    /// What came of it, once that is known.
    fn verdict(&mut self) -> Option<Rto> {
        while self.turns.front().is_some_and(|t| t.facts.is_some_and(|f| f.primary_answered || f.neutral)) {
            self.turns.pop_front();
        }
        if self.turns.is_empty() {
            return self.over.then_some(Rto::NotHit);
        }
        let known: Vec<TurnFacts> = self.turns.iter().map_while(|t| t.facts).collect();
        match rto(&known, 0.0, f64::INFINITY) {
            recovered @ Rto::Recovered { .. } => Some(recovered),
            other => (known.len() >= MOST_TURNS).then_some(other),
        }
    }
}
