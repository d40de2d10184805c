//! `[P]` Which invariants apply to an answer of the lab's conversations, and which of them it broke. The conversation's kind
//! is known from the customer's side; the answer is what the customer received.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeSet;

use crate::measure::{End, RequestRow};

/// Fills in `checked` and `violations` of all rows. An answer that did not reach the client whole is judged elsewhere, not
/// here. Whether a human took over is judged on the first whole answer of a turn.
pub fn fill(rows: &mut [RequestRow]) {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| rows[*a].started_ms.total_cmp(&rows[*b].started_ms));
    let mut answered: BTreeSet<(String, u32)> = BTreeSet::new();
    for i in order {
        let row = &mut rows[i];
        row.checked.clear();
        row.violations.clear();
        if row.end == End::Complete {
            let first = answered.insert((row.conversation.clone(), row.turn));
            one(row, first);
        }
    }
}

fn one(row: &mut RequestRow, first_of_turn: bool) {
    let (checked, violations) = (&mut row.checked, &mut row.violations);
    let mut judge = |name: &str, ok: bool| {
        checked.push(name.into());
        if !ok {
            violations.push(name.into());
        }
    };
    let finish = if row.tool_calls.is_empty() { "stop" } else { "tool_calls" };
    judge("finish", row.finish_reason.as_deref() == Some(finish));
    match row.kind.as_str() {
        "json" => {
            let value: Option<serde_json::Value> = serde_json::from_str(row.text.trim()).ok();
            let schema = crate::load::app::json_schema();
            judge("schema", value.is_some_and(|v| jsonschema::is_valid(&schema, &v)));
        }
        "order" | "recall" => judge("context", row.text.contains(&row.order_id)),
        _ => {}
    }
    if first_of_turn {
        let handed = row.tool_calls.iter().any(|c| c.name == "transfer_to_human");
        judge("handoff", handed == (row.kind == "human"));
    }
}
