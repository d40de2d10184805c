//! Keys that are read and whose behaviour is not built yet. They are announced at start and never weaken a filter. A line
//! leaves this list in the change that builds its behaviour.

use crate::spec::policy::{Otherwise, Pii, PolicyFile, Probe, Select};

/// `path: what it will do`, in the order of the file; each path once.
pub fn list(raw: &PolicyFile) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut say = |set: bool, path: &str, what: &str| {
        let line = format!("{path}: {what}");
        if set && !out.contains(&line) {
            out.push(line);
        }
    };
    say(raw.serial.is_some(), "serial", "a lower one will be refused when a policy is exchanged");
    for (_, t) in raw.targets.iter().flat_map(|t| t.iter()) {
        say(
            t.capacity.is_some(),
            "targets.*.capacity",
            "will bound the requests under way; today nothing but the provider does",
        );
        say(t.price.is_some(), "targets.*.price", "will order targets under `select: cost`");
    }
    say(
        raw.adapters.is_some(),
        "adapters",
        "will stand in for a parameter that a target lacks; until then such requests skip the target",
    );
    for (name, pool) in raw.pools.iter().flat_map(|p| p.iter()) {
        let word = match pool.select {
            Some(Select::Health) => "health",
            Some(Select::Latency) => "latency",
            Some(Select::Cost) => "cost",
            Some(Select::Priority) | None => continue,
        };
        say(
            true,
            &format!("pools.{name}.select"),
            &format!("`{word}` will order the targets; until then they are tried as written"),
        );
    }
    say(
        raw.compatibility_groups.is_some(),
        "compatibility_groups",
        "admission records will decide who may stand in; until then every member may",
    );
    for (name, tool) in raw.tools.iter().flat_map(|t| t.iter()) {
        say(
            tool.key_argument.is_some(),
            &format!("tools.{name}.key_argument"),
            "the gateway will fill it, so that a repeated call is harmless",
        );
    }
    say(raw.dependencies.is_some(), "dependencies", "will be searched for things whose loss takes a route down");
    routes(raw, &mut say);
    say(raw.health.is_some(), "health", "will shift traffic away from slow and erring targets");
    let probe = raw.breaker.as_ref().and_then(|b| b.probe);
    say(
        probe == Some(Probe::Golden),
        "breaker.probe",
        "`golden` will use a case of the group's golden set; until then one built-in case is used",
    );
    say(
        probe == Some(Probe::Live),
        "breaker.probe",
        "`live` will spend one request; until then one built-in case is used in the background",
    );
    out
}

fn routes(raw: &PolicyFile, say: &mut impl FnMut(bool, &str, &str)) {
    for (r, route) in raw.routes.iter().flatten().enumerate() {
        let name = route.route.as_ref().map_or_else(|| r.to_string(), |n| n.0.clone());
        let at = |key: &str| format!("routes.{name}.{key}");
        let above = route.context.as_ref().and_then(|c| c.handoff_above_tokens);
        say(above.is_some(), &at("context.handoff_above_tokens"), "will hand longer conversations to a human");
        for (a, attempt) in route.attempts.iter().flatten().enumerate() {
            let at = |key: &str| format!("routes.{name}.attempts[{a}].{key}");
            let masked = attempt.pii == Some(Pii::Masked);
            say(masked, &at("pii"), "`masked` will send masked text; until then it acts as `forbidden`");
            let collects = attempt.otherwise == Some(Otherwise::CollectAndHandoff);
            say(
                collects,
                &at("otherwise"),
                "will collect fields before a handoff; until then other intents skip this tier",
            );
        }
        say(route.collect.is_some(), &at("collect"), "will be asked for before a human takes over");
        say(route.on_capacity_exhausted.is_some(), &at("on_capacity_exhausted"), "will give up background tasks first");
        say(route.queue.is_some(), &at("queue"), "requests will wait here for a free slot; until then none waits");
        say(route.ramp.is_some(), &at("ramp"), "traffic will return in steps; until then it returns at once");
        say(route.hedge.is_some(), &at("hedge"), "will start a second attempt beside a slow one");
        say(
            route.keep_alive_ms.is_some(),
            &at("keep_alive_ms"),
            "will keep the connection alive before the first token",
        );
    }
}
