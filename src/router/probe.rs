//! Probes: how a target that is out proves that it is well, without a customer paying for it.
//!
//! A probe is a small request of the gateway's own, streamed, without any customer's data, on a fresh connection. It begins
//! when a cooldown is over (breaker) or every 15 minutes (account, place), one at a time per target, with the limits of the
//! target's tier. It passes when it is answered in full, and fails like any attempt, also by the core's own clock.

use super::availability::Suspicion;
use super::budget;
use super::classify::{Class, Verdict};
use super::decision::Note;
use super::engine::Engine;
use super::io::{AttemptId, Output};
use super::request::{Attempt, Owner};
use crate::policy::TargetId;
use crate::units::Ts;

impl Engine {
    /// The alarm of a target has rung: a cooldown ended, or its probe is due.
    pub(super) fn target_woke(&mut self, now: Ts, target: TargetId) {
        self.board.woke(now, target);
        if !self.may_probe(target) || !self.board.probe_due(now, target) {
            return;
        }
        self.probe(now, target);
    }

    /// Where failover is observed nobody asks a stand-in anything.
    fn may_probe(&self, target: TargetId) -> bool {
        !self.observes || super::observe::asked_first(&self.policy, target)
    }

    /// Probes whoever is suspected: it serves, so the probe must not take a customer's place. True if one began.
    pub(super) fn look_at_suspects(&mut self, now: Ts) -> bool {
        let mut began = false;
        for target in std::mem::take(&mut self.suspects) {
            match self.board.suspicion(now, target) {
                Suspicion::Now if self.may_probe(target) => {
                    self.probe(now, target);
                    began = true;
                }
                Suspicion::Later => drop(self.suspects.insert(target)),
                Suspicion::Now | Suspicion::Moot => {}
            }
        }
        began
    }

    fn probe(&mut self, now: Ts, target: TargetId) {
        let Some(grant) = budget::probe(&self.policy, target, now) else { return };
        let id = self.new_attempt();
        let began = self.board.probe_began(now, target, id);
        self.attempts.insert(id, Attempt::new(Owner::Probe, target, began, grant, true, true));
        self.arm(id);
        self.out.push_back(Output::Probe { attempt: id, target, limits: grant.limits });
    }

    pub(super) fn probe_passed(&mut self, now: Ts, id: AttemptId, attempt: &Attempt) {
        self.board.probe_passed(now, attempt.target, attempt.began, id);
    }

    /// It was answered, but not as the golden case demands.
    pub(super) fn probe_not_good(&mut self, now: Ts, id: AttemptId, verdict: &Verdict, why: &str) {
        let Some(attempt) = self.take_attempt(id) else { return };
        let target = attempt.target;
        let out = self.board.probe_quality(now, target, attempt.began, id, verdict, &mut self.rng);
        let name = crate::units::printable(&self.policy.target(target).name, 60);
        let why = crate::units::printable(why, 300);
        let then = if out { "it takes no traffic" } else { "it serves all the same: a route has nobody else" };
        let reason = verdict.reason.clone().into_owned();
        let text = format!("{name}: its answer to the probe is not what the group demands ({why}); {then}");
        self.out.push_back(Output::Note(Note::Alert { target, reason, text }));
    }

    pub(super) fn probe_failed(&mut self, now: Ts, id: AttemptId, attempt: &Attempt, verdict: &Verdict) {
        let benched = self.board.probe_failed(now, attempt.target, attempt.began, id, verdict, &mut self.rng);
        self.alert(attempt.target, verdict, benched);
        if matches!(verdict.class, Class::Caller | Class::PolicyBlock | Class::TooLong) {
            let name = crate::units::printable(&self.policy.target(attempt.target).name, 60);
            let reason = verdict.reason.clone().into_owned();
            let text = format!("{name}: it answers, but refuses the probe itself ({reason}); it stays out");
            self.out.push_back(Output::Note(Note::Alert { target: attempt.target, reason, text }));
        }
    }
}
