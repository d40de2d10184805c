//! `/snapshot` and `/readyz`: what every target can do now, and what is known about it.

use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Value, json as value};

use super::super::app::App;
use super::super::driver::state_name;
use super::super::expiry;
use super::super::http::{Answer, json};
use super::super::ledger::Place;
use super::super::targets::{REACHABLE, Seen};
use crate::policy::TargetId;
use crate::router::decision::{Availability, TargetSnapshot};
use crate::units::{Ts, ms, told_ms};

/// Version of both documents. Members are only added.
const FORMAT: u32 = 1;

/// The whole state as JSON.
pub fn snapshot(app: &App) -> Value {
    let (core, policy) = (app.driver.snapshot(), app.policy());
    let now = app.driver.now();
    let queued = policy.live_routes().map(|r| {
        let waiting = core.queued.get(usize::from(r.id.0)).copied().unwrap_or(0);
        (r.name.clone(), value!(waiting))
    });
    let targets: Vec<Value> = core.targets.iter().map(|t| target(app, t, now)).collect();
    let attempts: u64 = core.targets.iter().map(|t| t.counters.dials).sum();
    value!({
        "format": FORMAT,
        "at_unix_ms": super::super::bus::unix_ms(),
        "uptime_ms": now.as_ms(),
        "pid": std::process::id(),
        "policy": {
            "version": policy.version,
            "serial": policy.serial,
            "sha256": policy.sha256,
            "expires_unix_s": policy.expires_unix_s,
            "expired": app.expired(),
        },
        "observe": app.observe,
        "draining": app.draining.load(Ordering::Relaxed),
        "requests": {
            "open": core.requests_open,
            "committed": core.requests_committed,
            "by_outcome": app.totals(),
            "queued": queued.collect::<serde_json::Map<_, _>>(),
        },
        "ledger": {
            "file": match app.ledger.place() {
                Place::File(path) => Some(crate::units::printable(&path.display().to_string(), 300)),
                Place::Memory => None,
            },
            "writable": !app.ledger.failing(),
            "unconfirmed": core.unconfirmed_calls,
        },
        "emergency": core.emergency,
        "orders": app.orders.shown(|id| app.target_name(id)),
        "attempts": { "in_flight": core.attempts_in_flight, "total": attempts },
        "core_rebuilds": app.metrics.core_rebuilds.get(),
        "journal_dropped": app.bus.journal_dropped(),
        "last_event": app.bus.last_seq(),
        "targets": targets,
    })
}

fn target(app: &App, t: &TargetSnapshot, now: Ts) -> Value {
    let (until, why, share) = match &t.availability {
        Availability::Serving { share } => (None, None, Some(*share)),
        Availability::Cooling { until, why } | Availability::Benched { until, why } => {
            (Some(ms(until.since(now)).round()), Some(why.clone()), None)
        }
        Availability::Probing => (None, None, None),
    };
    let dialable = app.targets.get(t.target);
    let seen = dialable.as_ref().map(|d| d.evidence.seen()).unwrap_or_default();
    value!({
        "target": t.name,
        "state": state_name(&t.availability),
        "health": health(&t.availability, &seen),
        "for_ms": until,
        "why": why,
        "share": share,
        "score": t.score,
        "error_rate": t.error_rate,
        "latency_part": t.latency_part,
        "ramp_step": t.ramp_step,
        "free_slots": t.free_slots,
        "evidence": evidence(&seen),
        "idle_connections": dialable.map(|d| d.client.idle()),
        "counters": t.counters,
    })
}

/// One word for people, that claims no more than was seen: `unknown` is nothing yet, `reachable` a connection that was made and
/// closed, and only an answer (of a customer's request or a probe) makes a target `healthy`.
fn health(availability: &Availability, seen: &Seen) -> &'static str {
    match availability {
        Availability::Serving { .. } => match (&seen.good, &seen.bad) {
            (None, None) => "unknown",
            (Some((good, _)), Some((bad, _))) if bad > good => "failing",
            (None, Some(_)) => "unreachable",
            (Some((_, REACHABLE)), _) => "reachable",
            (Some(_), _) => "healthy",
        },
        other => state_name(other),
    }
}

fn evidence(seen: &Seen) -> Value {
    value!({
        "age_ms": seen.age().map(ms),
        "last_good": seen.good.as_ref().map(|(at, what)| value!({ "what": what, "age_ms": told_ms(ms(at.elapsed())) })),
        "last_bad": seen.bad.as_ref().map(|(at, reason)| value!({ "reason": reason, "age_ms": told_ms(ms(at.elapsed())) })),
    })
}

/// Ready: every route has a target that is serving and has been seen to be there at least once.
pub fn readyz(app: &App) -> Answer {
    let (core, policy) = (app.driver.snapshot(), app.policy());
    let now = app.driver.now();
    let usable = |id: TargetId| {
        let serving =
            core.targets.iter().any(|t| t.target == id && matches!(t.availability, Availability::Serving { .. }));
        // Where failover is observed, what the core thinks of a target keeps nobody from it.
        (serving || app.observe) && app.targets.get(id).is_some_and(|d| d.evidence.seen().ever_good())
    };
    let expired = app.expired();
    let nobody = expired && expiry::answers_nobody(&policy);
    let mut all_ready = true;
    let routes: Vec<Value> = policy
        .live_routes()
        .map(|route| {
            let targets: Vec<TargetId> = route.tiers.iter().flat_map(|t| t.targets.iter().copied()).collect();
            let usable: Vec<String> = targets
                .iter()
                .filter(|id| usable(**id) && route.legal(policy.target(**id)))
                .map(|id| app.target_name(*id))
                .collect();
            all_ready &= !usable.is_empty();
            value!({ "route": route.name, "ready": !usable.is_empty() && !nobody, "usable": usable })
        })
        .collect();
    let draining = app.draining.load(Ordering::Relaxed);
    let ready = !draining && !nobody && all_ready;
    let reason = match (draining, all_ready) {
        (true, _) => Some("shutting down"),
        _ if nobody => Some("expired: the policy answers nobody any more"),
        (false, false) => Some("a route has no usable target"),
        // Ready, and not for everybody: a balancer must send what is still answered.
        (false, true) if expired => Some("expired: only the intents of on_expired are answered"),
        (false, true) => None,
    };
    let targets: Vec<Value> = core.targets.iter().map(|t| target(app, t, now)).collect();
    let body = value!({
        "format": FORMAT,
        "ready": ready,
        "reason": reason,
        "policy": policy.version,
        "expired": expired,
        "routes": routes,
        "targets": targets,
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, body.to_string())
}
