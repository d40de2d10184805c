//! Keys that are read and whose behaviour is not built yet. They are announced at start and never weaken a filter. A line
//! leaves this list in the change that builds its behaviour.

use crate::spec::policy::{PolicyFile, Probe};

/// `path: what it will do`, in the order of the file; each path once.
pub fn list(raw: &PolicyFile) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut say = |set: bool, path: &str, what: &str| {
        let line = format!("{path}: {what}");
        if set && !out.contains(&line) {
            out.push(line);
        }
    };
    say(raw.dependencies.is_some(), "dependencies", "will be searched for things whose loss takes a route down");
    routes(raw, &mut say);
    let probe = raw.breaker.as_ref().and_then(|b| b.probe);
    say(
        probe == Some(Probe::Golden),
        "breaker.probe",
        "`golden` will use a case of the group's golden set; until then one built-in case is used",
    );
    out
}

fn routes(raw: &PolicyFile, say: &mut impl FnMut(bool, &str, &str)) {
    for (r, route) in raw.routes.iter().flatten().enumerate() {
        let name = route.route.as_ref().map_or_else(|| r.to_string(), |n| n.0.clone());
        let at = |key: &str| format!("routes.{name}.{key}");
        say(
            route.keep_alive_ms.is_some(),
            &at("keep_alive_ms"),
            "will keep the connection alive before the first token",
        );
    }
}
