//! Journals: the drill's own events, and the gateways' journals read back as evidence of how *they* saw it.

use serde_json::{Value, json};

use crate::drill::evidence::{GatewayChange, GatewayDecision, GatewayRecord, GatewayView};
use crate::event::{EVENT_FORMAT, Event, Stamped};
use crate::load::monotonic_ms;

/// The drill's time line: monotonic milliseconds and the wall clock at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// Monotonic milliseconds at the start of the drill.
    pub mono_ms: f64,
    /// Unix milliseconds at the same moment.
    pub unix_ms: f64,
}

impl Anchor {
    /// Now.
    #[must_use]
    pub fn now() -> Anchor {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Anchor { mono_ms: monotonic_ms(), unix_ms: unix.as_secs_f64() * 1e3 }
    }

    /// Milliseconds since the start of the drill.
    #[must_use]
    pub fn elapsed_ms(&self) -> f64 {
        monotonic_ms() - self.mono_ms
    }

    /// A monotonic moment on the drill's time line.
    #[must_use]
    pub fn from_mono(&self, mono_ms: f64) -> f64 {
        mono_ms - self.mono_ms
    }

    /// A wall-clock moment on the drill's time line.
    #[must_use]
    pub fn from_unix(&self, unix_ms: f64) -> f64 {
        unix_ms - self.unix_ms
    }
}

/// The drill's own events.
#[derive(Clone, Debug)]
pub struct Journal {
    anchor: Anchor,
    events: Vec<Stamped>,
}

impl Journal {
    /// An empty one.
    #[must_use]
    pub fn new(anchor: Anchor) -> Journal {
        Journal { anchor, events: Vec::new() }
    }

    /// Writes an event down.
    pub fn note(&mut self, event: Event) {
        let elapsed = self.anchor.elapsed_ms().max(0.0);
        self.events.push(Stamped {
            v: EVENT_FORMAT,
            seq: self.events.len() as u64,
            at_unix_ms: (self.anchor.unix_ms + elapsed) as u64,
            mono_ns: (elapsed * 1e6) as u64,
            event,
        });
    }

    /// Begins a phase.
    pub fn phase(&mut self, phase: &str, detail: &str) {
        self.note(Event::Phase { phase: phase.into(), detail: detail.into() });
    }

    /// A fault changed.
    pub fn fault(&mut self, path: &str, see: &str, state: &str) {
        self.note(Event::Fault { path: path.into(), see: see.into(), state: state.into() });
    }

    /// All journals as one, by time: JSON Lines, each line with its `source`.
    #[must_use]
    pub fn merged(&self, gateways: &[(String, String)]) -> String {
        let mut lines: Vec<(u64, String)> = Vec::new();
        for event in &self.events {
            if let Ok(value) = serde_json::to_value(event) {
                lines.push((event.at_unix_ms, with_source(value, "drill")));
            }
        }
        for (name, text) in gateways {
            for value in text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()) {
                let at = value.get("at_unix_ms").and_then(Value::as_u64).unwrap_or(0);
                lines.push((at, with_source(value, &format!("gateway {name}"))));
            }
        }
        lines.sort_by_key(|l| l.0);
        lines.into_iter().map(|(_, l)| l + "\n").collect()
    }
}

fn with_source(mut value: Value, source: &str) -> String {
    if let Value::Object(map) = &mut value {
        map.insert("source".into(), json!(source));
    }
    value.to_string()
}

/// A gateway's account, from the text of its journal. Lines that are torn or unknown are passed over: the last line of a
/// process that was killed is often half written.
#[must_use]
pub fn view(name: &str, text: &str, anchor: &Anchor) -> GatewayView {
    let mut out = GatewayView { name: name.into(), ..GatewayView::default() };
    for stamped in text.lines().filter_map(|l| serde_json::from_str::<Stamped>(l).ok()) {
        let at_ms = anchor.from_unix(stamped.at_unix_ms as f64);
        match stamped.event {
            Event::Decision { request, record, .. } => {
                let record: GatewayRecord = record.read().unwrap_or_default();
                out.decisions.push(GatewayDecision { request, at_ms, record });
            }
            Event::Availability { target, state, reason, .. } => {
                out.changes.push(GatewayChange { at_ms, target, state, reason });
            }
            Event::AttemptFailed { target, reason, probe: true, .. } => {
                out.changes.push(GatewayChange { at_ms, target, state: "probe_failed".into(), reason });
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_merged_by_time_and_torn_lines_passed_over() {
        let anchor = Anchor { mono_ms: 0.0, unix_ms: 1000.0 };
        let mut own = Journal::new(Anchor::now());
        own.phase("steady", "");
        let gateway = concat!(
            r#"{"v":1,"seq":0,"at_unix_ms":1500,"mono_ns":5,"event":"availability","target":"local-a","state":"cooling","reason":"consecutive_failures","for_ms":500}"#,
            "\n",
            r#"{"v":1,"seq":1,"at_unix_ms":1600,"mono_ns":6,"event":"attempt_failed","target":"local-a","class":"provider","reason":"connect_timeout","probe":true,"request":null}"#,
            "\n",
            r#"{"v":1,"seq":2,"at_unix_ms":1700,"mono_ns":7,"event":"decision","request":"r1","conversation":"c1","turn":1,"record":{"total_ms":300.0,"attempts":[{"target":"local-a","reason":"refused","class":"provider","dialled_ms":1,"ended_ms":2}]}}"#,
            "\n{\"v\":1,\"seq\":3,\"at_un"
        );
        let v = view("region-1", gateway, &anchor);
        assert_eq!(v.changes.len(), 2);
        assert_eq!((v.changes[0].at_ms, v.changes[1].state.as_str()), (500.0, "probe_failed"));
        assert_eq!((v.decisions[0].at_ms, v.decisions[0].record.attempts[0].reason.as_str()), (700.0, "refused"));
        let all = own.merged(&[("region-1".into(), gateway.into())]);
        let sources: Vec<bool> = all.lines().map(|l| l.contains("\"source\":\"gateway region-1\"")).collect();
        assert_eq!(sources, [true, true, true, false]);
    }
}
