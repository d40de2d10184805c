//! What a client hears when nobody answers: which of the honest replies, and why in one sentence.

use std::fmt::Write;
use std::time::Duration;

use super::classify::Class;
use super::decision::{Availability, Outcome};
use super::io::{HandoffCause, Reply};
use super::request::Request;
use super::skip::{Kind, Skip};
use crate::policy::{Policy, TargetId};
use crate::units::{self, Ts};

/// A probe under way ends soon: come back after this.
const SOON: Duration = Duration::from_secs(1);

/// Nothing is known: come back after this.
const LATER: Duration = Duration::from_secs(60);

/// More targets than this are counted, not named.
const NAMED: usize = 8;

/// The reply when every target of the route has been tried or passed over, and how that is written down.
pub(super) fn reply(policy: &Policy, request: &Request, skips: &[(TargetId, Skip)], now: Ts) -> (Reply, Outcome) {
    let why = why(policy, request, skips, now);
    let tried_as = |id: TargetId| request.dialled.iter().rev().find(|d| d.target == id).and_then(|d| d.class);
    let eligible: Vec<&(TargetId, Skip)> = skips.iter().filter(|(_, skip)| skip.kind() != Kind::MayNot).collect();
    if eligible.is_empty() {
        return if skips.iter().any(|(_, skip)| *skip == Skip::Intent(true)) {
            handoff(request, HandoffCause::Intent, why)
        } else if skips.iter().any(|(_, skip)| *skip == Skip::Expired) {
            handoff(request, HandoffCause::Expired, why)
        } else {
            (Reply::NobodyMay { why }, Outcome::Refused)
        };
    }
    let size = |(id, skip): &(TargetId, Skip)| skip.kind() == Kind::Size || tried_as(*id) == Some(Class::TooLong);
    let lack = |(id, skip): &(TargetId, Skip)| skip.kind() == Kind::Lack || tried_as(*id) == Some(Class::Mismatch);
    let able: Vec<&(TargetId, Skip)> = eligible.iter().copied().filter(|entry| !size(entry) && !lack(entry)).collect();
    if able.is_empty() {
        return if eligible.iter().any(|entry| size(entry)) {
            (Reply::TooLong, Outcome::Refused)
        } else {
            handoff(request, HandoffCause::Tried, why)
        };
    }
    // A tier that is there and collects for a human takes what nobody before it can answer.
    if skips.iter().any(|(_, skip)| *skip == Skip::Intent(true)) {
        return handoff(request, HandoffCause::Intent, why);
    }
    let soonest = able.iter().filter_map(|(_, skip)| match skip {
        // Nobody knows when an operator lets it in.
        Skip::Away(Availability::Benched { until: Ts::FAR, .. }) => Some(LATER),
        Skip::Away(Availability::Cooling { until, .. } | Availability::Benched { until, .. }) => Some(until.since(now)),
        Skip::Away(_) => Some(SOON),
        _ => None,
    });
    match soonest.min() {
        Some(retry_after) if able.iter().all(|(_, skip)| skip.kind() == Kind::Away) => {
            (Reply::Unavailable { retry_after, why }, Outcome::Refused)
        }
        _ => handoff(request, HandoffCause::Tried, why),
    }
}

fn handoff(request: &Request, cause: HandoffCause, why: String) -> (Reply, Outcome) {
    let collect = if cause == HandoffCause::Intent { request.route.collect.clone() } else { Vec::new() };
    (Reply::Handoff { cause, why, collect }, Outcome::Handoff)
}

/// Each target's state in one sentence, what was tried first: `local-a: status_503 (provider); vendor-x: residency`.
pub(super) fn why(policy: &Policy, request: &Request, skips: &[(TargetId, Skip)], now: Ts) -> String {
    let name = |id: TargetId| units::printable(&policy.target(id).name, 60);
    let mut parts: Vec<String> = Vec::new();
    for dialled in &request.dialled {
        let class = dialled.class.unwrap_or(Class::ClientGone).name();
        parts.push(format!("{}: {} ({class})", name(dialled.target), dialled.reason));
    }
    for (id, skip) in skips.iter().filter(|(_, skip)| *skip != Skip::Tried) {
        let detail = skip.detail(now);
        let mut part = format!("{}: {}", name(*id), skip.name());
        if !detail.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(part, " ({})", units::printable(&detail, 120));
        }
        parts.push(part);
    }
    let more = parts.len().saturating_sub(NAMED);
    parts.truncate(NAMED);
    let mut text = parts.join("; ");
    if more > 0 {
        let _ = write!(text, "; and {more} more");
    }
    text
}
