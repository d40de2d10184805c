//! Is the stand-in's answer as good for the business: schema, handoff, context, finish; and what of the conversation
//! reached the next provider (RPO).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Case, Truth};
use crate::drill::checks::{self, HANDOFF_TOOL};
use crate::measure::RequestRow;

/// The invariants, each with the finding it leads to and its words.
pub const INVARIANTS: &[(&str, &str, &str)] = &[
    ("schema", "schema_broken", "answers valid against their JSON schema"),
    ("handoff", "handoff_missed", "customers who must reach a human do, others do not"),
    ("context", "context_broken", "answers that keep to what the conversation said"),
    ("finish", "finish_broken", "answers that end with the right finish"),
];

/// One invariant over all answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Answers that it applied to.
    pub n: usize,
    /// Of these, broken.
    pub broken: usize,
}

impl Checked {
    /// True if no greater share of them than this is broken.
    #[must_use]
    pub fn within(self, share: f64) -> bool {
        self.n == 0 || self.broken as f64 / self.n as f64 <= share
    }

    /// One more.
    pub(super) fn count(&mut self, broken: bool) {
        self.n += 1;
        self.broken += usize::from(broken);
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compatibility {
    /// By invariant; beside them `one_answer`, `honest_end` and `duplicate_effects`, which no declared share excuses.
    pub checked: BTreeMap<String, Checked>,
    /// Why an invariant was not judged although requests that it is about came up: what became of them.
    pub unjudged: BTreeMap<String, String>,
    /// Most turns or tool results that the client knew and the next provider did not receive.
    pub context_loss_turns: u64,
    /// The same by intent, and how many requests were looked at.
    pub context_loss_by_intent: BTreeMap<String, (u64, usize)>,
    /// Turns that ended in a handoff error without being asked for.
    pub handoffs_forced: usize,
    /// Turns in which the handoff tool was called.
    pub handoffs_by_tool: usize,
    /// Turns.
    pub turns: usize,
}

impl Compatibility {
    /// Answers checked and broken, over all invariants.
    #[must_use]
    pub fn sum(&self) -> Checked {
        self.checked.values().fold(Checked::default(), |a, c| Checked { n: a.n + c.n, broken: a.broken + c.broken })
    }

    /// Share of structured answers that kept their schema.
    #[must_use]
    pub fn schema_compliance(&self) -> Option<f64> {
        let c = self.checked.get("schema").filter(|c| c.n > 0)?;
        Some((c.n - c.broken) as f64 / c.n as f64)
    }

    /// Share of turns handed off, asked for or not.
    #[must_use]
    pub fn handoff_rate(&self) -> Option<f64> {
        (self.turns > 0).then(|| (self.handoffs_forced + self.handoffs_by_tool) as f64 / self.turns as f64)
    }

    /// Share of turns handed off without being asked for.
    #[must_use]
    pub fn forced_rate(&self) -> Option<f64> {
        (self.turns > 0).then(|| self.handoffs_forced as f64 / self.turns as f64)
    }
}

fn forced(r: &RequestRow) -> bool {
    r.error_code.as_deref() == Some("handoff") || r.gateway_outcome.as_deref() == Some("handoff")
}

pub(super) fn check(case: &mut Case<'_>) -> Compatibility {
    let mut out = Compatibility::default();
    for (name, ..) in INVARIANTS {
        out.checked.insert((*name).into(), Checked::default());
    }
    let rows: Vec<(usize, &RequestRow)> =
        case.counted().filter(|(_, r)| r.started_ms >= case.ev.steady_from_ms).collect();
    // An answer that is not whole, or not one answer, is a finding of its own: it would turn these rows red as well.
    let one_whole_answer = |i: usize| matches!(case.truths[i], Truth::Whole(_));
    let checked: Vec<(usize, &RequestRow)> = rows.iter().copied().filter(|(i, _)| one_whole_answer(*i)).collect();
    let mut found: Vec<(&str, String)> = Vec::new();
    for (i, r) in checked {
        for (invariant, finding, _) in INVARIANTS {
            if !r.checked.iter().any(|c| c == invariant) {
                continue;
            }
            let broken = r.violations.iter().any(|v| v == invariant);
            let entry = out.checked.entry((*invariant).into()).or_default();
            entry.n += 1;
            entry.broken += usize::from(broken);
            if broken {
                let by = case.author(i).map_or("unknown", |p| p.provider.as_str());
                let text = format!("{} ({}, {}), answered by {by}", case.name_of(i), r.intent, r.kind);
                found.push((finding, text));
            }
        }
    }
    for (invariant, ..) in INVARIANTS {
        if out.checked.get(*invariant).is_none_or(|k| k.n == 0)
            && let Some(why) = came_up(case, &rows, invariant)
        {
            out.unjudged.insert((*invariant).into(), why);
        }
    }
    // The route may declare a share of answers that breaks one; everything up to that is as declared.
    let allowed = case.ev.declared.invariant_violation_rate;
    for (invariant, finding, _) in INVARIANTS {
        if !out.checked.get(*invariant).is_none_or(|k| k.within(allowed)) {
            for (_, text) in found.iter().filter(|(of, _)| of == finding) {
                case.findings.add(finding, text.clone());
            }
        }
    }
    lost_context(case, &rows, &mut out);
    for turn in &case.trace.turns {
        let own = || turn.rows.iter().map(|i| &case.ev.requests[*i]);
        out.turns += 1;
        if own().any(|r| r.tool_calls.iter().any(|c| c.name == HANDOFF_TOOL)) {
            out.handoffs_by_tool += 1;
        } else if turn.rows.iter().any(|i| forced(&case.ev.requests[*i]) && !case.met_a_stall(*i)) {
            out.handoffs_forced += 1;
        }
    }
    if let (Some(rate), Some(most)) = (out.forced_rate(), case.ev.declared.capacity_handoff_rate)
        && rate > most
    {
        let text = format!(
            "{} of {} turns ({:.1} %), declared {:.1} %",
            out.handoffs_forced,
            out.turns,
            rate * 100.0,
            most * 100.0
        );
        case.findings.add("handoff_rate", text);
    }
    out
}

/// What became of requests that an invariant is about, where none of them had an answer that could be held to it.
fn came_up(case: &Case<'_>, rows: &[(usize, &RequestRow)], invariant: &str) -> Option<String> {
    // One that was answered whole and not held to it was no such case after all.
    let about: Vec<&RequestRow> =
        rows.iter().filter(|(i, r)| checks::about(invariant, &r.kind) && !case.is_whole(*i)).map(|(_, r)| *r).collect();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for r in &about {
        *ends.entry(super::conduct::end_text(r)).or_default() += 1;
    }
    // Of equals the first by name, so that a report is the same each time.
    let (end, n) = ends.into_iter().min_by_key(|(_, n)| std::cmp::Reverse(*n))?;
    let all = about.len();
    let requests = if all == 1 { "request" } else { "requests" };
    Some(format!("{all} such {requests} came up, and none had an answer to be judged ({n} times: {end})"))
}

/// RPO: what the client had said or sent back, and the provider that answered did not receive.
fn lost_context(case: &mut Case<'_>, rows: &[(usize, &RequestRow)], out: &mut Compatibility) {
    for &(i, r) in rows {
        if r.started_ms < case.ev.first_injection_ms() {
            continue;
        }
        let Some(p) = case.author(i) else { continue };
        let turns = r.turn.saturating_sub(p.turn);
        let results = case.trace.tool_results_known[i].saturating_sub(p.tool_results);
        // Without its own earlier words a model does not know what it has promised.
        let answers = p.assistant_messages.map_or(0, |received| r.assistant_messages.saturating_sub(received));
        let lost = u64::from(turns) + u64::from(results) + u64::from(answers);
        let entry = out.context_loss_by_intent.entry(r.intent.clone()).or_default();
        entry.0 = entry.0.max(lost);
        entry.1 += 1;
        out.context_loss_turns = out.context_loss_turns.max(lost);
        if case.ev.declared.context_loss_turns.is_some_and(|most| lost > most) {
            let text = format!(
                "{}: {} received {} of {} turns, {} of {} tool results and {} of {} earlier answers",
                case.name_of(i),
                p.provider,
                p.turn,
                r.turn,
                p.tool_results,
                case.trace.tool_results_known[i],
                r.assistant_messages - answers,
                r.assistant_messages
            );
            case.findings.add("context_lost", text);
        }
    }
}
