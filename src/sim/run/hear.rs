//! What the core says, and what the driver does about it: dials, deliveries, ends.

use std::time::Duration;

use super::{Asked, Core, Flight, Run};
use crate::router::decision::{Availability, Note, Outcome};
use crate::router::{AttemptId, Input, Output, Reply};
use crate::sim::figures::Ended;

impl<C: Core> Run<'_, C> {
    pub(super) fn input(&mut self, input: Input) {
        self.steps += 1;
        if let Some(checker) = &mut self.checker {
            checker.input(self.now, &input);
        }
        self.core.handle(self.now, input);
        while let Some(output) = self.core.poll_output() {
            self.hash_output(&output);
            if let Some(checker) = &mut self.checker {
                checker.output(self.now, &output);
            }
            self.output(output);
        }
        if let Some(checker) = &mut self.checker {
            checker.handled(self.now, self.core.poll_timeout());
        }
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Dial { request, attempt, target, limits, degraded, .. } => {
                let target = usize::from(target.0);
                let dead = self.world.is_down(target);
                if let Some(asked) = self.asked.get_mut(request.0) {
                    asked.dials += 1;
                    asked.degraded = degraded;
                    asked.first.get_or_insert(target);
                    let class = asked.coming.class;
                    let weight = asked.coming.weight_s;
                    self.figures.dial(target, weight, dead);
                    let stream = self.classes[class].facts.stream;
                    self.dial(attempt, Some(request.0), target, stream, limits.idle);
                }
            }
            Output::Probe { attempt, target, limits, .. } => {
                let target = usize::from(target.0);
                self.figures.probe(self.world.is_down(target));
                self.dial(attempt, None, target, true, limits.idle);
            }
            Output::Cancel { attempt } => {
                if let Some(flight) = self.over(attempt.0)
                    && let Some(asked) = flight.request.and_then(|id| self.asked.get_mut(id))
                {
                    asked.failed_dials += 1;
                    self.arrivals.look_closer(self.now);
                }
            }
            Output::Deliver { request, attempt, .. } => {
                // Of an answer that is not streamed the dial is over by now: `whole` says whose it was.
                let target = self.flights.get(attempt.0).map(|f| f.target);
                if let Some(asked) = self.asked.get_mut(request.0)
                    && let Some(target) = target.or(asked.whole)
                {
                    asked.delivered = Some((self.now, target));
                }
            }
            Output::Reply { request, reply, .. } => {
                if let Some(asked) = self.asked.get_mut(request.0) {
                    asked.replied = Some((self.now, matches!(reply, Reply::Handoff { .. })));
                }
            }
            Output::Done { request, record } => {
                if let Some(asked) = self.asked.remove(request.0) {
                    self.done(request.0, &asked, record.outcome);
                }
            }
            Output::Note(Note::Availability { target, now, .. }) => {
                let target = usize::from(target.0);
                let serves = matches!(now, Availability::Serving { .. });
                if self.serving[target] != serves {
                    self.serving[target] = serves;
                    self.figures.service(self.now, serves);
                    self.figures.recovery.service(self.now, target, serves);
                    self.arrivals.look_closer(self.now);
                }
            }
            _ => {}
        }
    }

    fn dial(&mut self, attempt: AttemptId, request: Option<u64>, target: usize, stream: bool, idle: Duration) {
        let fate = self.world.dial(target, self.now, stream, self.open_at[target]);
        self.open_at[target] += 1;
        let flight = Flight { request, target, stream, fate, connected: false, committed: false, idle, plan: 0 };
        self.flights.insert(attempt.0, flight);
        self.schedule(attempt.0);
    }

    fn done(&mut self, id: u64, asked: &Asked, outcome: Outcome) {
        let route = self.setup.policy.route(self.classes[asked.coming.class].facts.route);
        let delivered = asked.delivered.map(|(at, target)| (at.since(asked.coming.at), target));
        let within = self.setup.useful_within.unwrap_or(route.deadline);
        let in_time = delivered.is_some_and(|(wait, _)| wait <= within);
        let useful = asked.whole.is_some() && asked.whole == delivered.map(|(_, t)| t) && in_time;
        let wait = delivered.map(|(wait, _)| wait).or(asked.replied.map(|(at, _)| at.since(asked.coming.at)));
        let ended = Ended {
            started: asked.coming.at,
            weight_s: asked.coming.weight_s,
            class: asked.coming.class,
            dials: asked.dials,
            met_failure: asked.failed_dials > 0 || (!useful && !asked.gone),
            first: asked.first,
            answered_by: if useful { asked.whole } else { None },
            useful,
            useful_text: delivered.map(|(wait, _)| wait),
            wait,
            handoff: asked.replied.is_some_and(|(_, handoff)| handoff),
            gone: asked.gone,
            degraded: asked.degraded,
            outcome,
        };
        self.figures.request(&ended);
        self.figures.recovery.ended(id, self.now, &ended);
    }

    /// FNV-1a over what the core said, and when.
    fn hash_output(&mut self, output: &Output) {
        let (kind, a, b) = match output {
            Output::Dial { request, attempt, target, .. } => (1, request.0, attempt.0 ^ (u64::from(target.0) << 48)),
            Output::Probe { attempt, target, .. } => (2, attempt.0, u64::from(target.0)),
            Output::Cancel { attempt } => (3, attempt.0, 0),
            Output::Deliver { request, attempt, .. } => (4, request.0, attempt.0),
            Output::Reply { request, attempts, .. } => (5, request.0, u64::from(*attempts)),
            Output::Break { request, attempt, .. } => (6, request.0, attempt.0),
            Output::Done { request, record } => (7, request.0, record.outcome as u64),
            Output::Note(Note::Availability { target, now, .. }) => {
                (8, u64::from(target.0), u64::from(matches!(now, Availability::Serving { .. })))
            }
            _ => return,
        };
        for word in [kind, self.now.0, a, b] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }
}
