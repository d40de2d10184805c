//! From what the application is to see to calls of the API. Pure.

use serde::{Deserialize, Serialize};

use super::See;
use crate::fault::api::Stream::{self, Downstream, Upstream};
use crate::fault::error::{FaultError, FaultKind};
use crate::fault::toxic::Spec;
use crate::fault::toxic::cut_after::{After, How};

/// A fault on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// The proxy.
    pub proxy: String,
    /// What the application sees.
    pub see: See,
}

/// What kind of server carries the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Ours, with leases and toxics of its own.
    Ours,
    /// A real Toxiproxy.
    Real,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A toxic is added; it is named when it is.
    Toxic(Stream, Spec),
    /// The proxy is disabled.
    Disable,
}

/// One change of one proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The proxy.
    pub proxy: String,
    /// What is done.
    pub act: Act,
}

/// What is to be done, and what this server cannot show as it was asked for (for the report).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// One sentence each.
    pub notes: Vec<String>,
}

impl Plan {
    /// Puts another plan behind this one; equal notes stand once.
    pub fn extend(&mut self, other: Plan) {
        self.steps.extend(other.steps);
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

const SILENT_ONES_END: &str = "connections that had been silent were closed by the restore, not healed: on a real Toxiproxy a stall that heals can lock the server up";

/// Plans one fault. `cut_bytes`: the position in bytes that stands for the asked number of events, for a real server, which
/// knows no events (head and chunk framing count).
///
/// # Errors
/// [`FaultKind::Invalid`]: not exactly one counter of `cut_after`; events on a real server without `cut_bytes`.
pub fn plan(fault: &FaultSpec, server: Server, cut_bytes: Option<u64>) -> Result<Plan, FaultError> {
    let ours = server == Server::Ours;
    let at_once = |how| vec![Act::Toxic(Downstream, Spec::CutAfter { after: After::Ms(0), how })];
    let both = |spec: Spec| vec![Act::Toxic(Upstream, spec), Act::Toxic(Downstream, spec)];
    // A stall that heals (`bandwidth` 0) locks a real server up at its removal when a client has left meanwhile with data
    // still coming for it, and a client that waits in vain leaves. `timeout` 0 swallows and can always be removed.
    let silence = if ours { both(Spec::Bandwidth { rate_kb_s: 0 }) } else { both(Spec::Timeout { timeout_ms: 0 }) };
    let (acts, notes): (Vec<Act>, Vec<&str>) = match &fault.see {
        See::Refused => (vec![Act::Disable], vec![]),
        See::ConnectTimeout if ours => (vec![Act::Toxic(Downstream, Spec::ConnectBlackhole)], vec![]),
        See::ConnectTimeout => (
            silence,
            vec![
                "connect timeouts were not exercised: a real Toxiproxy accepts every connect; silence was used instead",
                SILENT_ONES_END,
            ],
        ),
        See::Silence if ours => (silence, vec![]),
        See::Silence => (silence, vec![SILENT_ONES_END]),
        See::Reset if ours => (at_once(How::Rst), vec![]),
        See::Reset => (
            both(Spec::ResetPeer { timeout_ms: 0 }),
            vec![
                "connections opened before the fault end with FIN instead of RST: a real Toxiproxy resets only later ones",
            ],
        ),
        See::Fin if ours => (at_once(How::Fin), vec![]),
        See::Fin => (
            both(Spec::LimitData { bytes: 0 }),
            vec!["idle connections stay open until their next byte: a real Toxiproxy closes only with traffic"],
        ),
        See::Slow { latency_ms, rate_kb_s } => {
            let late = (*latency_ms > 0).then_some(Spec::Latency { latency_ms: *latency_ms, jitter_ms: 0 });
            let drip = rate_kb_s.map(|rate_kb_s| Spec::Bandwidth { rate_kb_s });
            let acts: Vec<Act> = late.into_iter().chain(drip).map(|spec| Act::Toxic(Downstream, spec)).collect();
            if acts.is_empty() {
                return Err(invalid(fault, "slow needs latency_ms or rate_kb_s"));
            }
            (acts, vec![])
        }
        See::CutAfter { events, bytes, ms, how } => {
            let after = match (events, bytes, ms) {
                (Some(n), None, None) => After::Events(*n),
                (None, Some(n), None) => After::Bytes(*n),
                (None, None, Some(n)) => After::Ms(*n),
                _ => return Err(invalid(fault, "cut_after takes exactly one of events, bytes, ms")),
            };
            if ours {
                (vec![Act::Toxic(Downstream, Spec::CutAfter { after, how: *how })], vec![])
            } else {
                cut_on_real(fault, after, *how, cut_bytes)?
            }
        }
    };
    Ok(Plan {
        steps: acts.into_iter().map(|act| Step { proxy: fault.proxy.clone(), act }).collect(),
        notes: notes.into_iter().map(str::to_owned).collect(),
    })
}

fn cut_on_real(
    fault: &FaultSpec,
    after: After,
    how: How,
    cut_bytes: Option<u64>,
) -> Result<(Vec<Act>, Vec<&'static str>), FaultError> {
    let mut notes = Vec::new();
    let bytes = match (after, cut_bytes) {
        (After::Bytes(n), _) => n,
        (After::Events(_), Some(n)) => {
            notes.push("events were counted as bytes: a real Toxiproxy knows no events");
            n
        }
        (After::Events(_), None) => {
            return Err(invalid(fault, "a real Toxiproxy counts no events: the position in bytes is needed"));
        }
        (After::Ms(_), _) => {
            return Err(invalid(fault, "a real Toxiproxy has no cut after a time: use bytes, or the embedded server"));
        }
    };
    notes.push("bytes were counted per connection, so that responses on a kept-alive one share one budget");
    match how {
        How::Fin => {}
        How::Rst => {
            notes.push("cut streams ended with FIN instead of RST: a real Toxiproxy cannot reset after a count")
        }
        How::Silence => {
            return Err(invalid(
                fault,
                "a real Toxiproxy cannot fall silent after a count: use fin, or the embedded server",
            ));
        }
    }
    Ok((vec![Act::Toxic(Downstream, Spec::LimitData { bytes })], notes))
}

fn invalid(fault: &FaultSpec, what: &str) -> FaultError {
    FaultError::new(&format!("fault on {}", fault.proxy), FaultKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(see: See) -> FaultSpec {
        FaultSpec { proxy: "p".to_owned(), see }
    }

    #[test]
    fn faults_are_written_by_what_the_application_sees() {
        let read = |text: &str| serde_json::from_str::<See>(text);
        assert_eq!(read("\"connect_timeout\"").unwrap(), See::ConnectTimeout);
        let cut = See::CutAfter { events: Some(4), bytes: None, ms: None, how: How::Fin };
        assert_eq!(read(r#"{"cut_after":{"events":4,"how":"fin"}}"#).unwrap(), cut);
        assert!(read(r#"{"cut_after":{"event":4}}"#).is_err());
        assert!(read("\"dead\"").is_err());
    }

    #[test]
    fn a_real_server_gets_what_it_can_and_the_rest_is_said() {
        let connect = plan(&fault(See::ConnectTimeout), Server::Real, None).unwrap();
        assert_eq!(connect.steps, plan(&fault(See::Silence), Server::Real, None).unwrap().steps);
        assert!(connect.notes[0].starts_with("connect timeouts were not exercised"));
        let cut = |how| fault(See::CutAfter { events: Some(3), bytes: None, ms: None, how });
        assert!(plan(&cut(How::Rst), Server::Real, None).is_err());
        let planned = plan(&cut(How::Rst), Server::Real, Some(700)).unwrap();
        let step = Step { proxy: "p".to_owned(), act: Act::Toxic(Downstream, Spec::LimitData { bytes: 700 }) };
        assert_eq!(planned.steps, [step]);
        assert_eq!(planned.notes.len(), 3);
        assert!(plan(&cut(How::Silence), Server::Real, Some(700)).is_err());
    }

    #[test]
    fn ours_needs_no_excuses() {
        for see in [See::Refused, See::ConnectTimeout, See::Silence, See::Reset, See::Fin] {
            let plan = plan(&fault(see), Server::Ours, None).unwrap();
            assert!(plan.notes.is_empty() && !plan.steps.is_empty());
        }
        assert!(plan(&fault(See::Slow { latency_ms: 0, rate_kb_s: None }), Server::Ours, None).is_err());
    }
}
