//! The loader as a whole: the example loads for ever, mistakes are found, and nothing illegal comes out.

use std::time::Duration;

use super::*;
use crate::spec::examples::POLICY;

const SUPPORT: &[u8] = include_bytes!("../../tests/cli/fixtures/support.yaml");

fn codes(text: &str) -> Vec<String> {
    let mut found = load("f", text.as_bytes()).1;
    found.sort_by_key(|d| d.place.start);
    found.iter().map(|d| format!("{} {}:{}", d.rule.code, d.place.line, d.place.column)).collect()
}

fn broken(good: &str, bad: &str) -> Vec<Diagnostic> {
    assert_eq!(POLICY.matches(good).count(), 1, "{good:?} is in the example once");
    load("f", POLICY.replacen(good, bad, 1).as_bytes()).1
}

#[test]
fn the_example_loads_unchanged_and_means_what_it_says() {
    let (policy, found) = load("support.yaml", SUPPORT);
    assert!(found.is_empty(), "{found:#?}");
    let p = policy.unwrap();
    assert_eq!((p.version.as_str(), p.serial), ("support-2026-11-30", Some(7)));
    // 2027-01-31T00:00:00Z: 20,849 days after 1970-01-01.
    assert_eq!(p.expires_unix_s, Some(20_849 * 86_400));
    assert_eq!(p.targets.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["local-a", "local-b", "vendor-x"]);
    assert_eq!(p.targets[0].credentials, Some(SecretRef::Env("LOCAL_A_KEY".into())));
    assert_eq!(p.targets[2].credentials, Some(SecretRef::File("/run/secrets/vendor-x".into())));
    assert!(p.targets[2].external() && !p.targets[0].external());
    assert_eq!(p.targets[2].adapter.as_ref().map(|a| (a.name.as_str(), a.version)), Some(("x-json-prompt", 3)));
    let chat = p.route_named("support-chat").unwrap();
    assert_eq!((chat.deadline, chat.reserve, chat.max_attempts), (Duration::from_secs(8), Duration::from_secs(1), 3));
    assert_eq!(chat.tiers[0].targets, [TargetId(0), TargetId(1)]);
    assert_eq!((chat.tiers[0].select, chat.tiers[1].select), (Select::Health, Select::Latency));
    assert_eq!((chat.tiers[1].pii, chat.tiers[1].otherwise), (Some(Pii::Masked), Otherwise::CollectAndHandoff));
    assert_eq!(chat.ramp.as_ref().map(|r| r.steps.clone()), Some(vec![0.05, 0.25, 0.5, 1.0]));
    let order = p.route_named("order-lookup").unwrap();
    assert_eq!((order.hedge_after, order.reserve), (Some(Duration::from_millis(1200)), Duration::from_millis(500)));
    assert!(order.legal(&p.targets[0]) && !order.legal(&p.targets[2]));
    assert_eq!(p.side_effects("create_ticket"), SideEffects::Keyed);
    assert_eq!(p.side_effects("unlisted"), SideEffects::Unkeyed);
    assert_eq!(p.groups["support-v3"].evidence_max_age, Some(Duration::from_secs(604_800)));
    assert_eq!(p.breaker, Breaker::default());
    assert_eq!(p.health, Health::default());
    assert_eq!(p.sha256.len(), 64);
}

#[test]
fn the_lab_policy_loads_with_the_times_the_lab_is_built_for() {
    let (policy, found) = load("lab.yaml", crate::assets::LAB_POLICY.as_bytes());
    assert!(found.is_empty(), "{found:#?}");
    let p = policy.unwrap();
    let r = p.route_named("support-chat").unwrap();
    assert_eq!((r.deadline, r.reserve, r.max_attempts), (Duration::from_secs(5), Duration::from_millis(300), 3));
    assert_eq!(r.tiers[0].targets, [TargetId(0), TargetId(1)]);
    assert_eq!(p.breaker.base_cooldown, Duration::from_millis(500));
}

#[test]
fn what_is_not_built_yet_is_announced_by_path() {
    let p = load("support.yaml", SUPPORT).0.unwrap();
    let paths: Vec<&str> = p.not_enforced.iter().map(|l| l.split(": ").next().unwrap()).collect();
    assert!(!paths.contains(&"adapters"), "{paths:#?}");
    let mut once = paths.clone();
    once.dedup();
    assert_eq!(once, paths);
    // The other side: what the core and the relay do carry out is not announced as missing.
    for built in [
        "commit_at",
        "deadline_ms",
        "max_attempts",
        "residency",
        "intents",
        "on_expired",
        "capacity",
        "health",
        "queue",
        "select",
        "otherwise",
    ] {
        assert!(!paths.iter().any(|p| p.ends_with(built)), "{built}");
    }
}

#[test]
fn names_that_lead_nowhere_are_found_with_the_nearest() {
    let found = broken("far: { targets: [vendor-x] }", "far: { targets: [vendor-z] }");
    assert_eq!(found.len(), 1, "{found:#?}");
    let d = &found[0];
    assert_eq!(d.message, "the pool `far` names the target `vendor-z`, which is not declared");
    assert_eq!((d.nearest.as_deref(), d.labels[0].text.as_str()), (Some("vendor-x"), "targets are declared here"));
    assert_eq!(d.expected.as_deref(), Some("one of `local-a`, `local-b`, `vendor-x`"));
}

#[test]
fn a_broken_target_is_still_declared() {
    // One mistake, one finding: the pool that names it is fine.
    let found = broken("  local-b:\n    base_url: http://10.30.0.11:8000/v1", "  local-b:\n    base_url: 7");
    assert_eq!(found.iter().map(|d| d.rule.code).collect::<Vec<_>>(), ["LF006"]);
    let text = "version: a\ntargets: { a: off }\npools: { p: { targets: [a] } }\nroutes:\n  - { route: r, deadline_ms: 100, attempts: [{ pool: p, first_token_timeout_ms: 50 }] }\n";
    assert_eq!(codes(text), ["LF006 2:15"]);
}

#[test]
fn mistakes_of_every_kind_are_reported_together() {
    let text = POLICY
        .replacen("deadline_ms: 8000", "deadline_s: 8", 1)
        .replacen("select: priority", "select: prio", 1)
        .replacen("adapter: x-json-prompt", "adapter: x-json", 1)
        .replacen("failure_ratio: 0.2", "failure_ratio: 20", 1)
        .replacen("serial: 1", "serial: -1", 1);
    let found = load("f", text.as_bytes()).1;
    let mut codes: Vec<&str> = found.iter().map(|d| d.rule.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["LF004", "LF007", "LF007", "LF008", "LF104"]);
}

#[test]
fn an_address_that_would_fail_at_every_call_is_a_finding() {
    let with = |address: &str| broken("http://10.30.0.11:8000/v1", address);
    for (address, says, help) in [
        ("http://10.30.0.11:99999/v1", "`99999` is no port", "http://10.20.0.11:8000/v1"),
        ("http://10.30.0.11:0/v1", "`0` is no port", "write it like"),
        ("http://10.30.0.11:/v1", "is no port", "write it like"),
        ("http://[::1]:70000/v1", "`70000` is no port", "write it like"),
        ("http://10.30.0.11:8000/v1/chat/completions", "ends in `/chat/completions`", "`http://10.30.0.11:8000/v1`"),
        ("https://vendor.example/v1/chat/completions/", "ends in", "`https://vendor.example/v1`"),
    ] {
        let found = with(address);
        assert_eq!(found.iter().map(|d| d.rule.code).collect::<Vec<_>>(), ["LF011"], "{address}: {found:#?}");
        assert!(found[0].message.contains(says), "{address}: {}", found[0].message);
        assert!(found[0].help.as_deref().unwrap().contains(help), "{address}: {:?}", found[0].help);
    }
    for address in
        ["http://[::1]/v1", "http://[::1]:65535/v1", "https://vendor.example", "http://h:1/chat/completions/v1"]
    {
        assert!(with(address).is_empty(), "{address}: {:#?}", with(address));
    }
}

/// Bug case B115: zero, negative and absurd numbers, `.inf`, a percentage for a share, seconds for milliseconds.
#[test]
fn numbers_that_switch_something_off_are_refused_with_their_unit() {
    for (good, bad, says) in [
        ("base_cooldown_s: 5", "base_cooldown_s: 0", "0 seconds"),
        ("base_cooldown_s: 5", "base_cooldown_s: -1", "-1 seconds"),
        // Probes would follow each other without a pause.
        ("base_cooldown_s: 5", "base_cooldown_s: 1e-10", "seconds"),
        ("base_cooldown_s: 5", "base_cooldown_s: 0.049", "0.049 seconds"),
        ("base_cooldown_s: 5", "base_cooldown_s: 1e12", "seconds"),
        ("consecutive_failures: 3", "consecutive_failures: 0", "outside its range"),
        ("failure_ratio: 0.2", "failure_ratio: 50", "outside its range"),
        ("failure_ratio: 0.2", "failure_ratio: .nan", "not-a-number"),
        ("max_cooldown_s: 120", "max_cooldown_s: .inf", "infinity"),
        ("deadline_ms: 8000", "deadline_ms: 0", "0 milliseconds"),
        ("deadline_ms: 8000", "deadline_ms: -8000", "-8000 milliseconds"),
        ("deadline_ms: 8000", "deadline_ms: 8000000000", "milliseconds"),
        // More comments than that are load, not signs of life.
        ("deadline_ms: 8000", "deadline_ms: 8000\n    keep_alive_ms: 99", "99 milliseconds"),
        ("deadline_ms: 8000", "deadline_ms: 99999999999999999999999", "milliseconds"),
        ("idle_timeout_ms: 3500", "idle_timeout_ms: 0.5", "0.5"),
        ("max_attempts: 3", "max_attempts: 0", "outside its range"),
    ] {
        let found = broken(good, bad);
        assert_eq!(found.len(), 1, "{bad}: {found:#?}");
        assert!(found[0].message.contains(says), "{bad}: {}", found[0].message);
        assert!(found[0].is_error() && found[0].help.is_some());
    }
    let found = broken("deadline_ms: 8000", "deadline_ms: 8000\n    keep_alive_ms: 99");
    assert_eq!(found[0].help.as_deref(), Some("write at least 100 milliseconds"));
    assert!(broken("base_cooldown_s: 5", "base_cooldown_s: 0.5").is_empty());
    assert!(broken("base_cooldown_s: 5", "base_cooldown_s: 0.05").is_empty());
}

/// Bug case B114: a section misspelt, at the wrong level, or a key one level too high.
#[test]
fn a_section_at_the_wrong_level_is_never_ignored() {
    let found = broken("\npools:\n", "\npoolss:\n");
    assert_eq!(found.iter().map(|d| d.rule.code).collect::<Vec<_>>(), ["LF004"], "{found:#?}");
    assert_eq!(found[0].nearest.as_deref(), Some("pools"));
    // A target at column 0.
    let found = broken("  vendor-x:\n", "vendor-x:\n");
    assert_eq!(found.len(), 1, "{found:#?}");
    let d = found.iter().find(|d| d.message.contains("`vendor-x`")).unwrap();
    assert_eq!((d.rule.code, d.place.column), ("LF004", 1));
    assert!(d.help.as_deref().unwrap().contains("`targets.<name>`"), "{:?}", d.help);
    // A time-out one level too high.
    let found = broken("    deadline_ms: 8000", "    deadline_ms: 8000\n    first_token_timeout_ms: 2000");
    assert!(found[0].help.as_deref().unwrap().contains("`routes[].attempts[]`"), "{:?}", found[0].help);
}

/// Bug case B118: a scalar where a map is expected, and what YAML makes of `no` and nothing.
#[test]
fn a_scalar_in_place_of_a_map_says_what_was_expected() {
    for (bad, code) in
        [("breaker: off", "LF006"), ("breaker:", "LF006"), ("breaker: [1]", "LF006"), ("targets: {}", "LF003")]
    {
        let text = format!("{}{bad}\n", POLICY.split("breaker:").next().unwrap());
        let found = load("f", text.as_bytes()).1;
        assert_eq!(found[0].rule.code, code, "{bad}: {found:#?}");
        if code == "LF006" {
            assert!(found[0].expected.as_deref().unwrap().starts_with("a map"), "{:?}", found[0].expected);
        }
    }
    assert_eq!(codes("version: a\ntargets: {}\npools: no\nroutes: null\n"), ["LF010 2:10", "LF006 3:8", "LF006 4:9"]);
}

/// Bug case B119: what is not a reference is refused for every target, and never shown.
#[test]
fn a_credential_must_be_a_reference_and_is_never_repeated() {
    for bad in
        ["sk-live-123", "${LOCAL_B_KEY}", "\"env:\"", "env:${X}", "env:A B", "\"env:A\\n\"", "\"file:\"", "bearer x"]
    {
        let loaded = load_with_places(
            "f",
            POLICY.replacen("credentials: env:LOCAL_B_KEY", &format!("credentials: {bad}"), 1).as_bytes(),
        );
        assert_eq!(loaded.diagnostics.iter().map(|d| d.rule.code).collect::<Vec<_>>(), ["LF501"], "{bad}");
        assert!(loaded.policy.is_none());
        assert!(loaded.diagnostics[0].message.contains("`local-b`"));
        let mut report = crate::diag::Report::new();
        report.add(loaded.doc.into_source(), loaded.diagnostics);
        for text in [crate::diag::render_human(&report, false, None), crate::diag::render_json(&report, false)] {
            assert!(!text.contains("sk-live-123") && !text.contains("bearer x"), "{text}");
        }
    }
    let found = broken("credentials: env:LOCAL_B_KEY", "credentials: ${LOCAL_B_KEY}");
    assert_eq!(found[0].help.as_deref(), Some("write `credentials: env:LOCAL_B_KEY`"));
    let found = broken("https://api.vendor-x.example/v1", "https://me:pw@api.vendor-x.example/v1");
    assert_eq!(found[0].rule.code, "LF501");
}

/// Bug case B112: chains cannot go round, because an attempt names a pool and a pool names targets; and a pool cannot name
/// a pool or a target twice.
#[test]
fn chains_end() {
    assert_eq!(broken("far: { targets: [vendor-x] }", "far: { targets: [near] }")[0].rule.code, "LF101");
    assert_eq!(broken("far: { targets: [vendor-x] }", "far: { targets: [vendor-x, vendor-x] }")[0].rule.code, "LF014");
}

#[test]
fn what_only_blocks_release_still_gives_a_safe_policy() {
    let text = POLICY.replacen("max_cooldown_s: 120", "max_cooldown_s: 2", 1).replacen(
        "reserve_ms: 1000",
        "reserve_ms: 9000",
        1,
    );
    let (policy, found) = load("f", text.as_bytes());
    assert_eq!(found.iter().map(|d| d.rule.code).collect::<Vec<_>>(), ["LF301"]);
    let p = policy.unwrap();
    assert_eq!(p.breaker.max_cooldown, p.breaker.base_cooldown);
    assert_eq!(p.routes[0].reserve, Duration::from_secs(4));
}

/// A key in the address is a secret in the file, whatever else is wrong with the address.
#[test]
fn a_password_or_a_query_in_an_address_is_a_secret_in_the_file() {
    for (url, what) in [
        ("http://me:hunter2@10.30.0.11:8000/v1", "contains a name or password"),
        ("http://me:hun/hunter2@10.30.0.11:8000/v1", "contains a name or password"),
        ("http://10.30.0.11:8000/v1?key=hunter2", "contains a query"),
    ] {
        let text = POLICY.replacen("http://10.30.0.11:8000/v1", url, 1);
        let loaded = load_with_places("f", text.as_bytes());
        let found: Vec<_> = loaded.diagnostics.iter().filter(|d| d.rule.code == "LF501").collect();
        assert!(found.len() == 1 && found[0].message.ends_with(what) && found[0].blocks_serving(), "{found:#?}");
        let mut report = crate::diag::Report::new();
        report.add(loaded.doc.into_source(), loaded.diagnostics);
        let text = crate::diag::render_human(&report, false, None) + &crate::diag::render_json(&report, false);
        assert!(!text.contains("hunter2"), "{text}");
    }
}
