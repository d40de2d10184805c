//! What the core says about calls, made into what the client sees and what is written down.

use super::super::bus::unix_ms;
use super::row::CallRow;
use crate::policy::Policy;
use crate::router::CallPlace;
use crate::router::ledger::{CallState, LedgerCall};
use crate::wire::{Stamp, with_member};

/// The calls of an answer: their stamps, their rows (none without a place), and how many had a key of the model's own.
#[must_use]
pub fn stamps(
    policy: &Policy,
    place: Option<&CallPlace>,
    calls: Vec<LedgerCall>,
    texts: Vec<String>,
) -> (Vec<Stamp>, Vec<CallRow>, u64) {
    let now = unix_ms();
    let (mut stamps, mut rows, mut overwritten) = (Vec::new(), Vec::new(), 0);
    for (n, (call, text)) in calls.into_iter().zip(texts).enumerate() {
        let key = policy.tools.get(&call.tool).and_then(|tool| tool.key_argument.as_deref());
        let keyed = key.and_then(|key| with_member(&text, key, &call.operation_key));
        overwritten += u64::from(keyed.as_ref().is_some_and(|k| k.overwritten));
        let arguments = keyed.map(|k| k.text);
        stamps.push(Stamp { id: Some(call.call_id.clone()), arguments: arguments.clone() });
        let Some(place) = place else { continue };
        rows.push(CallRow {
            call_id: call.call_id,
            operation_key: call.operation_key,
            client: place.client.clone(),
            route: place.route.clone(),
            conversation: place.conversation.clone(),
            turn: place.turn,
            ordinal: place.first + n as u64,
            tool: call.tool,
            side_effects: call.side_effects,
            arguments: arguments.unwrap_or(text),
            state: CallState::Delivered,
            since_unix_ms: now,
            changed_unix_ms: now,
        });
    }
    (stamps, rows, overwritten)
}
