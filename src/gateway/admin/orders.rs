//! Orders of operators over the admin listener: `POST` gives one, `DELETE` ends it, `GET` lists them.
//!
//! Each needs the header `x-llmfo-reason`. It is written down; and a web page that an operator happens to look at cannot send it.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json as value;

use super::super::app::App;
use super::super::http::{Answer, Refusal, json, wrong_method};
use super::super::orders::{Forced, LONGEST, Orders, What};
use crate::policy::{Route, TargetId};
use crate::router::decision::Availability;

/// The path below which they are.
pub const PATH: &str = "/orders";
/// The header with the reason.
pub const REASON: &str = "x-llmfo-reason";

/// Answers a request below [`PATH`].
pub fn handle(app: &Arc<App>, request: &Request<Incoming>) -> Result<Answer, Refusal> {
    let rest = request.uri().path().strip_prefix(PATH).unwrap_or_default();
    let parts: Vec<&str> = rest.split('/').filter(|p| !p.is_empty()).collect();
    if parts.is_empty() {
        return match *request.method() {
            Method::GET | Method::HEAD => Ok(list(app)),
            _ => Err(wrong_method("GET, HEAD")),
        };
    }
    let what = match parts.as_slice() {
        ["emergency"] => What::Emergency,
        ["bench", target] => What::Bench(target_named(app, target)?),
        ["fault", target] => What::Fault(target_named(app, target)?),
        _ => {
            let message = "Orders are /orders/bench/<target>, /orders/fault/<target> and /orders/emergency.";
            return Err(Refusal::invalid(StatusCode::NOT_FOUND, "unknown_order", message));
        }
    };
    if matches!(what, What::Fault(_)) && !app.orders.faults_allowed {
        let message = "Faults may be forced only where the gateway was started with --forced-faults.";
        return Err(Refusal::invalid(StatusCode::FORBIDDEN, "faults_not_allowed", message));
    }
    let reason = request.headers().get(REASON).and_then(|v| v.to_str().ok()).map(str::trim).filter(|r| !r.is_empty());
    let Some(reason) = reason else {
        let message = format!("An order needs the header {REASON}: say why; it is written down.");
        return Err(Refusal::invalid(StatusCode::BAD_REQUEST, "no_reason", message));
    };
    let query = request.uri().query().unwrap_or_default();
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    match *request.method() {
        Method::POST => {
            let bad = |message: String| Refusal::invalid(StatusCode::BAD_REQUEST, "invalid_query", message);
            let seconds =
                value("for_s").and_then(|s| s.parse::<u64>().ok()).filter(|s| (1..=LONGEST.as_secs()).contains(s));
            let lasts = seconds.map(Duration::from_secs).ok_or_else(|| {
                bad(format!(
                    "`for_s` says after how many seconds the order ends by itself: 1 to {}.",
                    LONGEST.as_secs()
                ))
            })?;
            let forced =
                match what {
                    What::Fault(_) => Some(value("as").and_then(Forced::named).ok_or_else(|| {
                        bad(format!("`as` is one of {}.", Forced::ALL.map(|(name, _)| name).join(", ")))
                    })?),
                    What::Bench(_) | What::Emergency => None,
                };
            Orders::give(app, what, forced, reason, lasts);
            Ok(list_with(app, &consequences(app, what)))
        }
        Method::DELETE if Orders::end(app, what, reason) => Ok(list(app)),
        Method::DELETE => Err(Refusal::invalid(
            StatusCode::NOT_FOUND,
            "no_such_order",
            format!("There is no such order; {}.", standing(app)),
        )),
        _ => Err(wrong_method("POST, DELETE")),
    }
}

fn list(app: &App) -> Answer {
    list_with(app, &[])
}

fn list_with(app: &App, notes: &[String]) -> Answer {
    let orders = app.orders.shown(|id| app.target_name(id));
    json(StatusCode::OK, value!({ "format": 1, "orders": orders, "notes": notes }).to_string())
}

/// Orders listed in a refusal; more are counted.
const STANDING: usize = 10;

/// `these stand: bench local-a, emergency`, for a refusal.
fn standing(app: &App) -> String {
    let orders = app.orders.shown(|id| app.target_name(id));
    let name = |order: &serde_json::Value| {
        let part = |key: &str| order[key].as_str().map(|s| crate::units::printable(s, 60));
        [part("order"), part("target")].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let mut names: Vec<String> = orders.iter().take(STANDING).map(name).collect();
    if let Some(more) = orders.len().checked_sub(STANDING).filter(|n| *n > 0) {
        names.push(format!("and {more} more"));
    }
    if names.is_empty() { "none stands".to_owned() } else { format!("these stand: {}", names.join(", ")) }
}

/// What whoever gives an order may not have meant.
fn consequences(app: &App, what: What) -> Vec<String> {
    let policy = app.policy();
    match what {
        What::Emergency => {
            let gives_up = policy.live_routes().any(|r| r.on_capacity_exhausted.is_some());
            let none = "no route of the policy has `on_capacity_exhausted`: this changes nothing".to_owned();
            if gives_up { Vec::new() } else { vec![none] }
        }
        What::Fault(_) => Vec::new(),
        What::Bench(target) => {
            let core = app.driver.snapshot();
            let serves = |id: TargetId| {
                core.targets.iter().any(|t| t.target == id && matches!(t.availability, Availability::Serving { .. }))
            };
            let holds = |route: &Route| route.tiers.iter().any(|tier| tier.targets.contains(&target));
            let nobody = |route: &Route| {
                let mut all = route.tiers.iter().flat_map(|tier| &tier.targets);
                !all.any(|id| serves(*id) && route.legal(policy.target(*id)))
            };
            let stranded = policy.live_routes().filter(|route| holds(route) && nobody(route));
            stranded.map(|route| format!("route {} has nobody now who serves", route.name)).collect()
        }
    }
}

fn target_named(app: &App, name: &str) -> Result<TargetId, Refusal> {
    let policy = app.policy();
    policy.target_named(name).map(|t| t.id).ok_or_else(|| {
        let known: Vec<&str> = policy.live_targets().take(20).map(|t| t.name.as_str()).collect();
        let message =
            format!("No target is called {}; known: {}.", crate::units::printable(name, 60), known.join(", "));
        Refusal::invalid(StatusCode::NOT_FOUND, "unknown_target", message)
    })
}
