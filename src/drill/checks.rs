//! `[P]` Which invariants apply to an answer of the lab's conversations, and which of them it broke. What is right is known
//! from the customer's side (the kind of the turn, the order number of the first message); the answer is what the customer
//! received.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeSet;

use crate::check::{self, Handoff, Schema, ToolCall, Verdict};
use crate::measure::{End, RequestRow};
use crate::units::printable;

/// Tool that hands a customer over, in the lab's conversations.
pub const HANDOFF_TOOL: &str = "transfer_to_human";

/// Whether a turn of this kind is one that this invariant is about: if it is answered, it is held to it.
#[must_use]
pub fn about(invariant: &str, kind: &str) -> bool {
    match invariant {
        "schema" => kind == "json",
        "context" => matches!(kind, "order" | "recall"),
        _ => true,
    }
}

/// Fills in `checked` and `violations` of all rows. An answer that did not reach the client whole is judged elsewhere, not
/// here. Whether a human took over is judged on the first whole answer of a turn.
pub fn fill(rows: &mut [RequestRow]) {
    let schema = Schema::compile(&crate::load::app::json_schema());
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| rows[*a].started_ms.total_cmp(&rows[*b].started_ms));
    let mut answered: BTreeSet<(String, u32)> = BTreeSet::new();
    for i in order {
        let row = &mut rows[i];
        row.checked.clear();
        row.violations.clear();
        if row.end == End::Complete {
            let first = answered.insert((row.conversation.clone(), row.turn));
            one(row, first, schema.as_ref().ok());
        }
    }
}

fn one(row: &mut RequestRow, first_of_turn: bool, schema: Option<&Schema>) {
    let mut verdicts: Vec<(&str, Verdict)> = Vec::new();
    let calls: Vec<ToolCall> = row
        .tool_calls
        .iter()
        .map(|c| ToolCall { id: c.id.clone(), name: c.name.clone(), arguments: c.arguments.clone() })
        .collect();
    verdicts.push(("finish", as_sent(row.finish_reason.as_deref(), &calls)));
    let answers_in_text = calls.is_empty();
    match row.kind.as_str() {
        "json" if answers_in_text => {
            let unknown = || Verdict::Inconclusive("the schema cannot be compiled".into());
            verdicts.push(("schema", schema.map_or_else(unknown, |s| s.check(&row.text))));
        }
        "order" | "recall" if answers_in_text => {
            verdicts.push(("context", check::context(&row.text, &[row.order_id.as_str()])));
        }
        _ => {}
    }
    if first_of_turn {
        let due = if row.kind == "human" { Handoff::Due } else { Handoff::NotDue };
        let found = check::handoff(due, calls.iter().map(|c| c.name.as_str()), &[HANDOFF_TOOL]);
        verdicts.push(("handoff", if due == Handoff::Due { found.missed } else { found.needless }));
    }
    for (name, verdict) in verdicts {
        if verdict.decided() {
            row.checked.push(name.into());
        }
        if verdict.failed() {
            row.violations.push(name.into());
        }
    }
}

/// The lab's providers end calls with `tool_calls` and text with `stop`, always: another reason was put there on the way, and
/// a client that goes by it runs no tool (rule R5).
fn as_sent(told: Option<&str>, calls: &[ToolCall]) -> Verdict {
    let sent = if calls.is_empty() { "stop" } else { "tool_calls" };
    match (check::finish(told, calls), told) {
        (Verdict::Pass, Some(told)) if told != sent => {
            Verdict::Fail(format!("sent with the finish reason `{sent}`, told as `{}`", printable(told, 40)))
        }
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::ToolCallRow;
    use crate::measure::trace::tests::request;

    fn row(kind: &str, text: &str) -> RequestRow {
        let mut r = request("c1", 1, 0.0);
        (r.kind, r.text, r.order_id) = (kind.into(), text.into(), "ORD-123456".into());
        r
    }

    fn violations(mut r: RequestRow) -> (Vec<String>, Vec<String>) {
        fill(std::slice::from_mut(&mut r));
        (r.checked, r.violations)
    }

    #[test]
    fn each_sabotage_breaks_its_own_invariant_and_no_other() {
        let good = r#"{"order_id":"ORD-123456","status":"sent","eta_days":2}"#;
        assert_eq!(violations(row("json", good)).1, Vec::<String>::new());
        assert_eq!(violations(row("json", r#"{"status":"sent","eta_days":2}"#)).1, ["schema"]);
        assert_eq!(violations(row("order", "about ORD-123456 we know")).1, Vec::<String>::new());
        assert_eq!(violations(row("recall", "about ORD-654321 we know")).1, ["context"]);
        assert_eq!(violations(row("human", "how can I help?")).1, ["handoff"]);
        let mut handed = row("human", "");
        handed.tool_calls =
            vec![ToolCallRow { id: "x".into(), name: HANDOFF_TOOL.into(), arguments: r#"{"reason":"asked"}"#.into() }];
        handed.finish_reason = Some("tool_calls".into());
        assert_eq!(violations(handed.clone()), (vec!["finish".into(), "handoff".into()], vec![]));
        let rewritten = RequestRow { finish_reason: Some("stop".into()), ..handed.clone() };
        assert_eq!(violations(rewritten).1, ["finish"], "the provider had said tool_calls");
        handed.kind = "order".into();
        assert_eq!(violations(handed).1, ["handoff"]);
    }

    #[test]
    fn only_the_first_whole_answer_of_a_turn_must_hand_over() {
        let mut handed = row("human", "");
        handed.tool_calls = vec![ToolCallRow { id: "x".into(), name: HANDOFF_TOOL.into(), arguments: "{}".into() }];
        let mut after = row("human", "a colleague will write");
        after.started_ms = 500.0;
        let mut rows = vec![after, handed];
        fill(&mut rows);
        assert_eq!(rows[0].violations, Vec::<String>::new());
    }

    #[test]
    fn an_answer_that_is_not_whole_is_not_checked() {
        let mut r = row("json", "{");
        r.end = End::Cut;
        assert_eq!(violations(r), (vec![], vec![]));
    }
}
