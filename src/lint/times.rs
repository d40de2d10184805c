//! Family 2: whether the time-outs leave room for those who should stand in.

use std::time::Duration;

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::policy::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE};
use crate::spec::policy::{Channel, CommitAt, Route};
use crate::units::human;

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 8] =
    [&UNREACHABLE_TIER, &ONE_DIAL, &MANY_ATTEMPTS, &NO_ATTEMPT_LIMIT, &RESERVE, &INSIDE, &UNIT, &VOICE];

/// A tier that is never reached.
pub static UNREACHABLE_TIER: Rule = Rule {
    code: "LF201",
    name: "unreachable-tier",
    severity: Severity::Error,
    what: "When everything before it has been tried and was silent, no dial or not half of its first-token limit is left for a tier.",
    why: "The last fallback of the file is never dialled in exactly the outage it was written for.",
    fix: "Shorten the limits before it, raise `deadline_ms` or `max_attempts`, or remove the tier.",
    example: Example::Policy { good: "max_attempts: 3", bad: "max_attempts: 2" },
};

/// No second dial.
pub static ONE_DIAL: Rule = Rule {
    code: "LF202",
    name: "no-second-dial",
    severity: Severity::Error,
    what: "A route has several targets, and one silent target uses up the dials or the time of the whole request.",
    why: "A brown-out of the first target then fails every request, although others could have answered.",
    fix: "Give the first token less time, or the request more time or more attempts. If it must not fail over, write `failover: none` with its reason.",
    example: Example::Policy {
        good: "\nhealth:",
        bad: "\n  - route: quick\n    deadline_ms: 3000\n    idle_timeout_ms: 1000\n    max_attempts: 2\n    residency_required: [kz]\n    objectives: { recovery_ms: 3000 }\n    attempts:\n      - { pool: near, first_token_timeout_ms: 2500, answer_timeout_ms: 1200 }\nhealth:",
    },
};

/// Many attempts.
pub static MANY_ATTEMPTS: Rule = Rule {
    code: "LF203",
    name: "many-attempts",
    severity: Severity::Warning,
    what: "A route allows more than three dials per request.",
    why: "In an outage every request is multiplied by the number of attempts, and the targets that still work get the flood.",
    fix: "Use at most three; a breaker keeps dead targets out of the count.",
    example: Example::Policy { good: "max_attempts: 3", bad: "max_attempts: 4" },
};

/// No limit.
pub static NO_ATTEMPT_LIMIT: Rule = Rule {
    code: "LF204",
    name: "no-attempt-limit",
    severity: Severity::Warning,
    what: "A route does not say how many dials a request may use.",
    why: "Three are used then; a route whose number of targets grows should say what it means.",
    fix: "Write `max_attempts`.",
    example: Example::Policy { good: "\n    max_attempts: 3", bad: "" },
};

/// The reserve eats the deadline.
pub static RESERVE: Rule = Rule {
    code: "LF205",
    name: "reserve-eats-deadline",
    severity: Severity::Error,
    what: "The reserve of a route is as long as its deadline, or longer.",
    why: "No attempt could ever start. The gateway would use half of the deadline as the reserve.",
    fix: "Shorten `reserve_ms` or raise `deadline_ms`.",
    example: Example::Policy { good: "reserve_ms: 1000", bad: "reserve_ms: 8000" },
};

/// A limit inside a limit.
pub static INSIDE: Rule = Rule {
    code: "LF206",
    name: "limit-never-reached",
    severity: Severity::Warning,
    what: "A limit is longer than the limit that contains it: connecting is inside the first-token limit, an answer inside the deadline.",
    why: "The longer limit never acts, so a slow connect looks like a slow model.",
    fix: "Make the inner limit the shorter one.",
    example: Example::Policy { good: "connect_timeout_ms: 1000", bad: "connect_timeout_ms: 2500" },
};

/// A figure in the wrong unit.
pub static UNIT: Rule = Rule {
    code: "LF207",
    name: "suspicious-unit",
    severity: Severity::Warning,
    what: "A time is so short or so long that it looks like seconds written as milliseconds, or the other way round.",
    why: "An idle limit of 30 milliseconds cuts every healthy stream; a cooldown of 5000 seconds is 83 minutes.",
    fix: "Write the figure in the unit that the key's name says.",
    example: Example::Policy { good: "idle_timeout_ms: 3500", bad: "idle_timeout_ms: 30" },
};

/// A voice route that is too slow.
pub static VOICE: Rule = Rule {
    code: "LF208",
    name: "voice-too-slow",
    severity: Severity::Warning,
    what: "A voice route allows more than 2,000 ms without useful text.",
    why: "A caller who hears nothing for two seconds speaks again or hangs up.",
    fix: "Lower `useful_text_p95_ms`, the first-token limits, or commit at the first token or sentence.",
    example: Example::Policy {
        good: "channel: chat\n    objectives: { recovery_ms: 8000, useful_text_p95_ms: 1800 }",
        bad: "channel: voice\n    objectives: { recovery_ms: 8000, useful_text_p95_ms: 2500 }",
    },
};

/// Dials per request beyond which a route is asked why.
const MANY: u32 = 3;
/// What a caller bears.
const VOICE_LIMIT_MS: u64 = 2000;

/// Findings of this family.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (at, who, route) in view.routes() {
        attempts(view, &at, &who, route, found);
        if !reserve(view, &at, &who, route, found) {
            reachable(view, &at, &who, route, found);
        }
        inside(view, &at, route, found);
        voice(view, &at, &who, route, found);
    }
    units(view, found);
}

fn attempts(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let pointer = format!("{at}/max_attempts");
    match route.max_attempts {
        Some(n) if n > MANY => found.push(
            view.doc
                .at(&MANY_ATTEMPTS, &pointer, format!("{who} allows {n} dials per request"))
                .label("more than three")
                .help("use at most three: in an outage every request is multiplied by this figure"),
        ),
        None if view.doc.get(&pointer).is_none() => found.push(
            view.doc
                .at_key(
                    &NO_ATTEMPT_LIMIT,
                    &format!("{at}/route"),
                    format!("{who} does not say how many dials a request may use"),
                )
                .label(format!("{DEFAULT_MAX_ATTEMPTS} are used"))
                .help("write `max_attempts: 3`"),
        ),
        _ => {}
    }
}

/// True if it is so.
fn reserve(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) -> bool {
    let (Some(deadline), Some(reserve)) = (route.deadline_ms, route.reserve_ms) else { return false };
    if reserve.0 < deadline.0 {
        return false;
    }
    found.push(
        view.doc
            .at(
                &RESERVE,
                &format!("{at}/reserve_ms"),
                format!("{who} keeps {} of {} in reserve", human(reserve.duration()), human(deadline.duration())),
            )
            .label("nothing is left for an attempt")
            .and(view.doc.place(&format!("{at}/deadline_ms")), "the deadline")
            .expected("a reserve well below the deadline")
            .help("shorten the reserve, or raise the deadline"),
    );
    true
}

/// Walks the tiers with the worst case, everything silent: each dial takes its whole first-token limit.
fn reachable(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let (Some(deadline), Some(tiers)) = (route.deadline_ms, view.dialled(route)) else { return };
    let broken = |key: &str| view.doc.get(&format!("{at}/{key}")).is_some();
    if (route.reserve_ms.is_none() && broken("reserve_ms")) || (route.max_attempts.is_none() && broken("max_attempts"))
    {
        return;
    }
    let reserve = route.reserve_ms.map_or(DEFAULT_RESERVE, |m| m.duration()).min(deadline.duration() / 2);
    let dials = route.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS);
    let mut left = deadline.duration().saturating_sub(reserve);
    let mut used = 0u32;
    let mut made = 0usize;
    let limits = route.attempts.iter().flatten().map(|a| a.first_token_timeout_ms.map(|m| m.duration()));
    for (n, (tier, limit)) in tiers.iter().zip(limits).enumerate() {
        let Some(limit) = limit else { return };
        let mut reached = tier.is_empty();
        let (used_before, left_before) = (used, left);
        for _ in tier {
            if used < dials && left * 2 >= limit {
                reached = true;
                made += 1;
                used += 1;
                left = left.saturating_sub(limit);
            }
        }
        if !reached {
            let none_left = used_before >= dials;
            let why = if none_left {
                format!("all {dials} dials are used before it")
            } else {
                format!("{} of its {} are left", human(left_before), human(limit))
            };
            let cause = if none_left { "max_attempts" } else { "deadline_ms" };
            let d = view
                .doc
                .at(
                    &UNREACHABLE_TIER,
                    &format!("{at}/attempts/{n}/first_token_timeout_ms"),
                    format!("{who} never reaches its tier number {}: {why}", n + 1),
                )
                .label("never dialled when all before it are silent");
            let cause = format!("{at}/{cause}");
            let d = if view.doc.get(&cause).is_some() { d.and(view.doc.place(&cause), "bound by this") } else { d };
            let step = step(route, &tiers, n);
            found.push(
                d.expected("at least one dial and half of the tier's own limit")
                    .help(format!("{step}; {}", sum(route, &tiers, deadline.duration(), reserve))),
            );
        }
    }
    one_dial(view, at, who, route, (made, &tiers), found);
}

/// What to write so that tier number `n` is reached: one dial more than those before it may use, and time for all of them
/// and half of its own limit.
fn step(route: &Route, tiers: &[Vec<super::view::Named<'_>>], n: usize) -> String {
    let mut limits = route.attempts.iter().flatten().filter_map(|a| a.first_token_timeout_ms.map(|m| m.duration()));
    let before = tiers.get(..n).unwrap_or_default();
    let dials =
        before.iter().map(Vec::len).fold(1u32, |sum, n| sum.saturating_add(u32::try_from(n).unwrap_or(u32::MAX)));
    let mut time = route.reserve_ms.map_or(DEFAULT_RESERVE, |m| m.duration());
    for (tier, limit) in before.iter().zip(limits.by_ref()) {
        time = time.saturating_add(limit.saturating_mul(u32::try_from(tier.len()).unwrap_or(u32::MAX)));
    }
    time = time.saturating_add(limits.next().unwrap_or_default() / 2);
    // Half a millisecond more cannot be written.
    let time_ms = time.as_micros().div_ceil(1000);
    let mut write = Vec::new();
    if route.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS) < dials {
        write.push(format!("`max_attempts: {dials}`"));
    }
    if route.deadline_ms.is_some_and(|d| u128::from(d.0) < time_ms) {
        write.push(format!("`deadline_ms: {time_ms}`"));
    }
    let before = if n == 0 { "shorten its limit" } else { "shorten the limits before it" };
    format!("write {}, or {before}, or remove the tier", write.join(" and "))
}

/// The sum that a person would do: what the tiers want and what there is.
fn sum(route: &Route, tiers: &[Vec<super::view::Named<'_>>], deadline: Duration, reserve: Duration) -> String {
    let limits = route.attempts.iter().flatten().filter_map(|a| a.first_token_timeout_ms.map(|m| m.duration()));
    let parts: Vec<String> = tiers
        .iter()
        .zip(limits)
        .filter(|(t, _)| !t.is_empty())
        .map(|(t, l)| format!("{} x {}", t.len(), human(l)))
        .collect();
    format!(
        "the tiers want {}; there are {} - {} reserve = {} and {} dials",
        parts.join(" + "),
        human(deadline),
        human(reserve),
        human(deadline.saturating_sub(reserve)),
        route.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
    )
}

fn one_dial(
    view: &View<'_>,
    at: &str,
    who: &str,
    route: &Route,
    (made, tiers): (usize, &[Vec<super::view::Named<'_>>]),
    found: &mut Vec<Diagnostic>,
) {
    // With a tier that is never reached, that has been said already.
    let targets: usize = tiers.iter().map(Vec::len).sum();
    let tiers_with_targets = tiers.iter().filter(|t| !t.is_empty()).count();
    if made != 1 || targets < 2 || tiers_with_targets > 1 || route.failover.is_some() {
        return;
    }
    let n = tiers.iter().position(|t| !t.is_empty()).unwrap_or(0);
    let first = tiers.get(n).and_then(|t| t.first()).map_or("", |t| t.name);
    let bound = if route.max_attempts == Some(1) {
        format!("{at}/max_attempts")
    } else {
        format!("{at}/attempts/{n}/first_token_timeout_ms")
    };
    found.push(
        view.doc
            .at(&ONE_DIAL, &bound, format!("when {} is silent, {who} has nothing left for another target", quoted(first)))
            .label("uses up the whole request")
            .expected("room for a second dial with half of its first-token limit")
            .help("shorten the first-token limit, raise `deadline_ms` or `max_attempts`; or write `failover: none` with its reason"),
    );
}

fn inside(view: &View<'_>, at: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    let connect = route.connect_timeout_ms.map_or(DEFAULT_CONNECT_TIMEOUT, |m| m.duration());
    for (n, attempt) in route.attempts.iter().flatten().enumerate() {
        let here = format!("{at}/attempts/{n}");
        if let Some(first) = attempt.first_token_timeout_ms
            && route.connect_timeout_ms.is_some()
            && connect > first.duration()
        {
            let place = format!("{at}/connect_timeout_ms");
            if !found.iter().any(|d| d.rule == &INSIDE && d.place.pointer == place) {
                found.push(
                    view.doc
                        .at(
                            &INSIDE,
                            &place,
                            format!(
                                "connecting may take {}, the first token {}",
                                human(connect),
                                human(first.duration())
                            ),
                        )
                        .label("never reached")
                        .and(
                            view.doc.place(&format!("{here}/first_token_timeout_ms")),
                            "connecting is inside this limit",
                        )
                        .help("make the connect limit the shorter one"),
                );
            }
        }
        if let (Some(answer), Some(deadline)) = (attempt.answer_timeout_ms, route.deadline_ms)
            && answer > deadline
        {
            found.push(
                view.doc
                    .at(
                        &INSIDE,
                        &format!("{here}/answer_timeout_ms"),
                        format!(
                            "an answer may take {}, the request {}",
                            human(answer.duration()),
                            human(deadline.duration())
                        ),
                    )
                    .label("never reached")
                    .and(view.doc.place(&format!("{at}/deadline_ms")), "the whole request")
                    .help("make it shorter than the deadline"),
            );
        }
    }
}

fn voice(view: &View<'_>, at: &str, who: &str, route: &Route, found: &mut Vec<Diagnostic>) {
    if route.channel != Some(Channel::Voice) {
        return;
    }
    let objective = route.objectives.as_ref().and_then(|o| o.useful_text_p95_ms).map(|m| m.0);
    let first = route.attempts.iter().flatten().next().and_then(|a| a.first_token_timeout_ms).map(|m| m.0);
    let (pointer, message) = if let Some(ms) = objective.filter(|ms| *ms > VOICE_LIMIT_MS) {
        (
            format!("{at}/objectives/useful_text_p95_ms"),
            format!("{who} is spoken and promises useful text within {ms} ms only"),
        )
    } else if let Some(ms) = first.filter(|ms| *ms >= VOICE_LIMIT_MS) {
        let message = format!("{who} is spoken and waits {ms} ms for a silent target before it tries another");
        (format!("{at}/attempts/0/first_token_timeout_ms"), message)
    } else if route.commit_at == Some(CommitAt::Complete) {
        (format!("{at}/commit_at"), format!("{who} is spoken and holds every answer until it is complete"))
    } else {
        return;
    };
    found.push(
        view.doc
            .at(&VOICE, &pointer, message)
            .label("the caller hears nothing so long")
            .expected(format!("useful text within {VOICE_LIMIT_MS} ms"))
            .help("shorten it; a stand-in needs the rest of the two seconds"),
    );
}

/// Times that can hardly be meant: key, shortest and longest that is believed, in the key's own unit, and what it is for.
const BELIEVED: [(&str, f64, f64, &str); 12] = [
    ("deadline_ms", 100.0, 1_800_000.0, "a whole request"),
    ("first_token_timeout_ms", 50.0, 300_000.0, "a first token"),
    ("answer_timeout_ms", 100.0, 1_800_000.0, "a whole answer"),
    ("idle_timeout_ms", 50.0, 600_000.0, "a pause inside a stream"),
    ("connect_timeout_ms", 5.0, 60_000.0, "opening a connection"),
    ("recovery_ms", 50.0, 3_600_000.0, "a recovery"),
    ("useful_text_p95_ms", 50.0, 600_000.0, "useful text"),
    ("max_wait_ms", 5.0, 600_000.0, "waiting for a slot"),
    ("after_ms", 5.0, 600_000.0, "a hedge"),
    ("base_cooldown_s", 0.0, 3_600.0, "a first cooldown"),
    ("max_cooldown_s", 0.05, 86_400.0, "a longest cooldown"),
    ("hold_s", 0.05, 86_400.0, "a step of a ramp"),
];

fn units(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    let mut visit = |pointer: &str, key: &str, value: f64| {
        let Some((_, short, long, what)) = BELIEVED.iter().find(|(k, ..)| *k == key) else { return };
        let (per_s, unit) = if key.ends_with("_ms") { (1e3, "milliseconds") } else { (1.0, "seconds") };
        // What the schema refused has its finding already.
        if value <= 0.0 || value / per_s > 86_400.0 * 365.0 || (value >= *short && value <= *long) {
            return;
        }
        let written = human(Duration::try_from_secs_f64(value / per_s).unwrap_or_default());
        let guess = if value < *short { value * 1e3 } else { value / 1e3 };
        let too = if value < *short { "short" } else { "long" };
        found.push(
            view.doc
                .at(&UNIT, pointer, format!("{written} is very {too} for {what}"))
                .label(format!("read as {unit}"))
                .help(format!("did you mean `{key}: {guess}`? The unit is {unit}")),
        );
    };
    walk(view.doc.json(), "", &mut visit);
}

fn walk(value: &serde_json::Value, pointer: &str, visit: &mut dyn FnMut(&str, &str, f64)) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, below) in map {
                let at = format!("{pointer}/{}", crate::spec::document::escape(key));
                match below.as_f64() {
                    Some(number) => visit(&at, key, number),
                    None => walk(below, &at, visit),
                }
            }
        }
        serde_json::Value::Array(items) => {
            for (n, below) in items.iter().enumerate() {
                walk(below, &format!("{pointer}/{n}"), visit);
            }
        }
        _ => {}
    }
}
