//! Values that a schema cannot judge: dates, secrets, and figures that exclude each other.

use crate::diag::{Diagnostic, quoted};
use crate::spec::document::{SpannedDoc, escape};
use crate::spec::policy::{Breaker, Failover, Health, PolicyFile, SideEffects};
use crate::spec::rules as shape;

use super::model::SecretRef;
use super::rules;

/// Findings about values.
pub fn check(raw: &PolicyFile, doc: &SpannedDoc) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Some(text) = &raw.expires
        && expiry(text).is_none()
    {
        found.push(
            doc.at(&shape::WRONG_FORM, "/expires", format!("`expires` is {}, which is no point in time", quoted(text)))
                .label("not a date and time with a zone")
                .expected("a date and time with a zone (RFC 3339)")
                .help("write it like `2027-01-31T00:00:00Z`"),
        );
    }
    targets(raw, doc, &mut found);
    tools(raw, doc, &mut found);
    routes(raw, doc, &mut found);
    if let Some(breaker) = &raw.breaker {
        check_breaker(breaker, doc, &mut found);
    }
    if let Some(health) = &raw.health {
        check_health(health, doc, &mut found);
    }
    found
}

/// Unix seconds of an RFC 3339 point in time.
pub fn expiry(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

/// A reference to a secret, if it is one.
pub fn secret_ref(text: &str) -> Option<SecretRef> {
    if let Some(name) = text.strip_prefix("env:") {
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let all = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        return (first && all).then(|| SecretRef::Env(name.to_owned()));
    }
    let path = text.strip_prefix("file:")?;
    (!path.is_empty() && path.trim() == path).then(|| SecretRef::File(path.to_owned()))
}

/// What in an address is a secret, in words. A query counts as one: an address that needs none is the only one that is
/// taken, and `?key=` is how some vendors take their keys.
fn secret_part(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let path = rest.split(['?', '#']).next().unwrap_or("");
    if path.rfind('@').is_some_and(|n| !scheme.is_empty() || path[..n].contains(':')) {
        Some("a name or password")
    } else if rest.contains('?') && rest.contains('=') {
        Some("a query")
    } else {
        None
    }
}

/// An address that would fail at every call: without a port that exists, or with the end that is added to it.
fn address(url: &str, at: &str, who: &str, doc: &SpannedDoc) -> Option<Diagnostic> {
    let (_, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    // An IPv6 address has colons of its own, inside brackets.
    let port = host.rsplit(']').next().unwrap_or(host).split_once(':').map(|(_, port)| port);
    if let Some(port) = port.filter(|p| p.parse::<u16>().map_or(true, |p| p == 0)) {
        return Some(
            doc.at(&shape::WRONG_FORM, at, format!("{} is no port", quoted(port)))
                .expected("a port from 1 to 65535, or none")
                .help("write it like `http://10.20.0.11:8000/v1`"),
        );
    }
    let base = url.trim_end_matches('/').strip_suffix("/chat/completions")?;
    Some(
        doc.at(&shape::WRONG_FORM, at, format!("the address of {who} ends in `/chat/completions`"))
            .label("this end is added at every call")
            .expected("the address before it")
            .help(format!("write {}", quoted(base))),
    )
}

fn targets(raw: &PolicyFile, doc: &SpannedDoc, found: &mut Vec<Diagnostic>) {
    for (name, target) in raw.targets.iter().flat_map(|t| t.iter()) {
        let at = format!("/targets/{}", escape(name));
        let who = quoted(name);
        if let Some(text) = &target.credentials
            && secret_ref(text).is_none()
        {
            let message = format!("the credentials of {who} are not a reference");
            let help = match text.strip_prefix("${").and_then(|t| t.strip_suffix('}')).or_else(|| text.strip_prefix('$')) {
                Some(var) if secret_ref(&format!("env:{var}")).is_some() => format!("write `credentials: env:{var}`"),
                _ => "put the key into the environment or a file and write where it is; if this was a real key, change it".to_owned(),
            };
            found.push(
                doc.at(&rules::SECRET, &format!("{at}/credentials"), message)
                    .label("hidden here on purpose")
                    .expected("`env:NAME` or `file:PATH`")
                    .help(help),
            );
        }
        // Taken from the document: what the schema refuses (a query) is no longer in `target`.
        let url = doc.get(&format!("{at}/base_url")).and_then(|u| u.as_str()).unwrap_or("");
        if let Some(part) = secret_part(url) {
            found.push(
                doc.at(&rules::SECRET, &format!("{at}/base_url"), format!("the address of {who} contains {part}"))
                    .label("hidden here on purpose")
                    .expected("an address without a name, password or query in it")
                    .help("give the key as `credentials: env:NAME`, and change it if the file was shared"),
            );
        } else {
            let url = target.base_url.as_deref().unwrap_or("");
            found.extend(address(url, &format!("{at}/base_url"), &who, doc));
        }
        if let Some(port) = target.connect_to.as_deref().and_then(|c| c.rsplit(':').next())
            && port.parse::<u16>().map_or(true, |p| p == 0)
        {
            found.push(
                doc.at(&shape::WRONG_FORM, &format!("{at}/connect_to"), format!("{} is no port", quoted(port)))
                    .expected("a port from 1 to 65535")
                    .help("write it like `127.0.0.1:18101`"),
            );
        }
        if let Some(ca) = target.connection.as_ref().and_then(|c| c.ca_file.as_deref())
            && target.base_url.as_deref().is_some_and(|url| url.starts_with("http://"))
        {
            found.push(
                doc.at(
                    &shape::WRONG_FORM,
                    &format!("{at}/connection/ca_file"),
                    format!("{} checks nothing: the address of {who} is `http://`", quoted(ca)),
                )
                .expected("an `https://` address")
                .help("write `https://` in `base_url`, or leave `ca_file` out"),
            );
        }
        let Some(capacity) = &target.capacity else { continue };
        let at = format!("{at}/capacity");
        if let Some(date) = &capacity.verified_on
            && date.parse::<jiff::civil::Date>().is_err()
        {
            found.push(
                doc.at(&shape::WRONG_FORM, &format!("{at}/verified_on"), format!("{} is no date", quoted(date)))
                    .expected("a date (YYYY-MM-DD)")
                    .help("write it like `2026-11-02`"),
            );
        }
        let slots = capacity.slots.map(|s| u64::from(s.0));
        let pairs = [
            ("reserve_slots", capacity.reserve_slots.map(u64::from), "slots", slots),
            ("failure_unit_slots", capacity.failure_unit_slots.map(|s| u64::from(s.0)), "slots", slots),
            (
                "mean_service_ms",
                capacity.mean_service_ms.map(|m| m.0),
                "p95_service_ms",
                capacity.p95_service_ms.map(|m| m.0),
            ),
        ];
        for (small, a, large, b) in pairs {
            if let (Some(a), Some(b)) = (a, b)
                && a > b
            {
                found.push(
                    doc.at(
                        &rules::CAPACITY_CONTRADICTION,
                        &format!("{at}/{small}"),
                        format!("`{small}` ({a}) of {who} is above `{large}` ({b})"),
                    )
                    .label("more than there is")
                    .and(doc.place(&format!("{at}/{large}")), "compare")
                    .help("correct one of the two"),
                );
            }
        }
    }
}

fn tools(raw: &PolicyFile, doc: &SpannedDoc, found: &mut Vec<Diagnostic>) {
    for (name, tool) in raw.tools.iter().flat_map(|t| t.iter()) {
        let at = format!("/tools/{}", escape(name));
        match (tool.side_effects, &tool.key_argument) {
            (Some(SideEffects::Keyed), None) => found.push(
                doc.at(
                    &rules::KEYLESS_TOOL,
                    &format!("{at}/side_effects"),
                    format!("the tool {} is keyed, and nothing says which argument carries the key", quoted(name)),
                )
                .label("keyed by what?")
                .expected("`key_argument: NAME` beside it")
                .help("name the argument that makes a repeated call harmless, or write `side_effects: unkeyed`"),
            ),
            (Some(SideEffects::None | SideEffects::Idempotent | SideEffects::Unkeyed), Some(_)) => found.push(
                doc.at_key(
                    &rules::KEYLESS_TOOL,
                    &format!("{at}/key_argument"),
                    format!("the tool {} has a `key_argument` and is not keyed", quoted(name)),
                )
                .label("used only for keyed tools")
                .help("write `side_effects: keyed`, or remove the key argument"),
            ),
            _ => {}
        }
    }
}

fn routes(raw: &PolicyFile, doc: &SpannedDoc, found: &mut Vec<Diagnostic>) {
    for (r, route) in raw.routes.iter().flatten().enumerate() {
        let at = format!("/routes/{r}");
        let who = route.route.as_ref().map_or_else(|| format!("route {r}"), |n| format!("the route {}", quoted(&n.0)));
        // Looked up in the document: a reason that is there and broken is another finding.
        let reason = doc.get(&format!("{at}/failover_reason")).is_some();
        match (route.failover, reason) {
            (Some(Failover::None), false) => found.push(
                doc.at(
                    &rules::NO_REASON,
                    &format!("{at}/failover"),
                    format!("{who} must not fail over, and does not say why"),
                )
                .label("no reason given")
                .expected("`failover_reason: \"...\"` beside it")
                .help("write the reason for the person on call, or remove `failover: none`"),
            ),
            (None, true) if doc.get(&format!("{at}/failover")).is_none() => found.push(
                doc.at_key(
                    &rules::NO_REASON,
                    &format!("{at}/failover_reason"),
                    format!("{who} gives a reason against failing over, and fails over"),
                )
                .label("`failover: none` is missing")
                .help("add `failover: none`, or remove the reason"),
            ),
            _ => {}
        }
        let steps = route.ramp.as_ref().and_then(|r| r.steps.as_deref()).unwrap_or(&[]);
        let growing = steps.windows(2).all(|w| w[0].0 < w[1].0) && steps.first().is_none_or(|s| s.0 > 0.0);
        let whole = steps.last().is_none_or(|s| (s.0 - 1.0).abs() < 1e-9);
        if !(growing && whole) {
            found.push(
                doc.at(
                    &rules::CONTRADICTION,
                    &format!("{at}/ramp/steps"),
                    format!("the ramp of {who} does not grow from above 0 to 1"),
                )
                .label("not growing to 1")
                .expected("growing shares, the last one 1.0")
                .help("write them like `[0.05, 0.25, 0.5, 1.0]`"),
            );
        }
    }
}

fn above(
    doc: &SpannedDoc,
    (small, a): (&str, Option<f64>),
    (large, b): (&str, Option<f64>),
    found: &mut Vec<Diagnostic>,
) {
    let name = |pointer: &str| pointer.trim_start_matches('/').replace('/', ".");
    if let (Some(a), Some(b)) = (a, b)
        && a > b
    {
        let message = format!("`{}` ({a}) is above `{}` ({b})", name(small), name(large));
        let d = doc.at(&rules::CONTRADICTION, if doc.get(large).is_some() { large } else { small }, message);
        let d = d.label(if doc.get(large).is_some() { "below the other" } else { "above the default of the other" });
        let d =
            if doc.get(large).is_some() && doc.get(small).is_some() { d.and(doc.place(small), "compare") } else { d };
        found.push(d.help("correct one of the two"));
    }
}

fn check_breaker(breaker: &Breaker, doc: &SpannedDoc, found: &mut Vec<Diagnostic>) {
    let d = super::model::Breaker::default();
    let base = breaker.base_cooldown_s.map_or(d.base_cooldown.as_secs_f64(), |s| s.0);
    let max = breaker.max_cooldown_s.map_or(d.max_cooldown.as_secs_f64(), |s| s.0);
    above(doc, ("/breaker/base_cooldown_s", Some(base)), ("/breaker/max_cooldown_s", Some(max)), found);
}

fn check_health(health: &Health, doc: &SpannedDoc, found: &mut Vec<Diagnostic>) {
    let d = super::model::Health::default();
    let fast = health.fast_window_s.map_or(d.fast_window.as_secs_f64(), |s| s.0);
    let window = health.window_s.map_or(d.window.as_secs_f64(), |s| s.0);
    above(doc, ("/health/fast_window_s", Some(fast)), ("/health/window_s", Some(window)), found);
    let eject = health.eject_below.unwrap_or(d.eject_below);
    let deweight = health.deweight_below.unwrap_or(d.deweight_below);
    above(doc, ("/health/eject_below", Some(eject)), ("/health/deweight_below", Some(deweight)), found);
    if let Some(w) = &health.weights
        && let (Some(errors), Some(latency)) = (w.errors, w.latency)
        && (errors.0 + latency.0 - 1.0).abs() > 1e-6
    {
        found.push(
            doc.at(
                &rules::CONTRADICTION,
                "/health/weights",
                format!("the weights of the health score make {} together, not 1", errors.0 + latency.0),
            )
            .label("together not 1")
            .expected("two shares that make 1")
            .help("write them like `{ errors: 0.7, latency: 0.3 }`"),
        );
    }
}
