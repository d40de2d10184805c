//! Where what the core says goes: commands to the task of their request, probes to tasks of their own, notes to people.

use tokio::sync::mpsc;

use super::{AttemptKey, Cmd, Driver, Meta, Owner, State, state_name};
use crate::event::Event;
use crate::gateway::bus::unix_ms;
use crate::gateway::ledger::row::Change;
use crate::gateway::ledger::{Written, stamp};
use crate::policy::{Policy, TargetId};
use crate::router::decision::{Availability, DecisionRecord, Note};
use crate::router::{Output, RequestId};
use crate::units::Ts;

impl Driver {
    pub(super) fn route(
        &self,
        state: &mut State,
        output: Output,
        now: Ts,
        about: &mut Option<RequestId>,
        over: &mut Vec<(Meta, DecisionRecord)>,
    ) {
        let epoch = state.epoch;
        match output {
            Output::Dial {
                request, attempt, target, limits, fresh, hedge, max_output_tokens, withhold, mask, ..
            } => {
                state.attempts.insert(attempt, Owner::Request(request));
                let key = AttemptKey { epoch, id: attempt };
                tell(
                    state,
                    request,
                    Cmd::Dial { key, target, limits, fresh, hedge, max_output_tokens, withhold, mask },
                );
            }
            Output::Probe { attempt, target, limits } => {
                if let Some(watcher) = self.watcher.upgrade() {
                    let handle = watcher.probe(AttemptKey { epoch, id: attempt }, target, limits);
                    state.attempts.insert(attempt, Owner::Probe(handle));
                }
            }
            Output::Cancel { attempt } => match state.attempts.remove(&attempt) {
                Some(Owner::Request(request)) => {
                    *about = Some(request);
                    tell(state, request, Cmd::Cancel(AttemptKey { epoch, id: attempt }));
                }
                Some(Owner::Probe(handle)) => handle.abort(),
                None => {}
            },
            Output::Deliver { request, attempt, attempts, degraded } => {
                tell(state, request, Cmd::Deliver { key: AttemptKey { epoch, id: attempt }, attempts, degraded });
            }
            Output::Reply { request, reply, attempts } => tell(state, request, Cmd::Reply { reply, attempts }),
            Output::Break { request, attempt, class } => {
                state.attempts.remove(&attempt);
                tell(state, request, Cmd::Break(class));
            }
            Output::Done { request, record } => {
                if let Some(slot) = state.requests.remove(&request) {
                    over.push((slot.meta, *record));
                }
            }
            Output::Calls { request, attempt, place, calls } => {
                let key = AttemptKey { epoch, id: attempt };
                let texts = std::mem::take(&mut state.texts);
                let (stamps, rows, overwritten) = stamp::stamps(&self.policy(), place.as_ref(), calls, texts);
                // In the core's order, and before anybody else can be answered with them.
                let written = match &self.ledger {
                    Some(ledger) if !rows.is_empty() => {
                        let needed = rows.iter().any(|row| row.side_effects.risky());
                        ledger.write(rows, needed)
                    }
                    _ => Written::nothing(),
                };
                tell(state, request, Cmd::Calls { key, stamps, overwritten, written });
            }
            Output::CallsAre { calls, state: now } => {
                for call_id in calls {
                    if let Some(ledger) = &self.ledger {
                        ledger.later(Change::State { call_id, state: now, at_unix_ms: unix_ms() });
                    }
                }
            }
            Output::Note(note) => {
                let meta = about.and_then(|id| state.requests.get(&id)).map(|slot| &slot.meta);
                if let Some(event) = event_of(&self.policy(), note, now, meta) {
                    self.tell_people(event);
                }
            }
        }
    }
}

fn event_of(policy: &Policy, note: Note, now: Ts, meta: Option<&Meta>) -> Option<Event> {
    let name = |id: TargetId| policy.target(id).name.clone();
    Some(match note {
        Note::Availability { target, now: state, reason } => {
            let for_ms = match &state {
                Availability::Cooling { until, .. } | Availability::Benched { until, .. } => {
                    Some(u64::try_from(until.since(now).as_millis()).unwrap_or(u64::MAX))
                }
                Availability::Serving { .. } | Availability::Probing => None,
            };
            Event::Availability { target: name(target), state: state_name(&state).to_owned(), reason, for_ms }
        }
        Note::AttemptFailed { target, class, reason, probe } => Event::AttemptFailed {
            target: name(target),
            class: class.name().to_owned(),
            reason,
            probe,
            request: meta.filter(|_| !probe).map(|m| m.request.clone()),
            conversation: meta.filter(|_| !probe).and_then(|m| m.conversation.clone()),
        },
        Note::Alert { target, reason, text } => {
            Event::Alert { target: Some(name(target)), client: None, route: None, reason, text }
        }
        // Shown in snapshots.
        Note::Queue { .. } | Note::HedgeLost { .. } => return None,
    })
}

/// Sends a command to a request's task. A full channel is a bug (see the module's head): the channel is closed, the task
/// sees that, ends with a controlled error, and its ticket tells the core.
fn tell(state: &mut State, request: RequestId, cmd: Cmd) {
    if let Some(slot) = state.requests.get_mut(&request)
        && let Err(mpsc::error::TrySendError::Full(_)) = slot.to.try_send(cmd)
    {
        tracing::error!(request = %slot.meta.request, "the core said more about one request than it may");
        slot.to = mpsc::channel(1).0;
    }
}
