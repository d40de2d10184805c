//! Where personal data and keys go: who may get them, and whether anybody may.

use super::*;
use crate::diag::Severity;
use crate::policy::{Policy, load_with_places};

/// Two targets and a route with these lines, these keys of its attempt and this more on the first target.
fn policy(route: &str, attempt: &str, target: &str) -> String {
    format!(
        "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n  one: {{ base_url: http://10.0.0.1/v1, model: m{target} }}\n  \
         two: {{ base_url: http://10.0.0.2/v1, model: m{target} }}\npools:\n  both: {{ targets: [one, two] }}\nroutes:\n  \
         - route: chat\n    objectives: {{ recovery_ms: 8000 }}\n    deadline_ms: 10000\n    max_attempts: 2\n{route}    attempts:\n      \
         - {{ pool: both, first_token_timeout_ms: 2000{attempt} }}\n"
    )
}

fn checked(text: &str) -> (Option<Policy>, Vec<Diagnostic>) {
    let loaded = load_with_places("p.yaml", text.as_bytes());
    let mut found = loaded.diagnostics.clone();
    found.extend(check(&loaded, &World::default()));
    (loaded.policy, found)
}

fn codes(found: &[Diagnostic]) -> Vec<&str> {
    found.iter().map(|d| d.rule.code).collect()
}

#[test]
fn a_route_on_which_personal_data_may_go_nowhere_is_an_error_and_says_what_to_write() {
    for (route, attempt, at, says) in [
        ("", "", "pool", "`pii` is absent"),
        ("    data: personal\n", "", "pool", "`pii` is absent"),
        ("    data: personal\n", ", pii: forbidden", "pii", "personal data may not go here"),
        ("    residency_required: [eu]\n", ", pii: forbidden", "pii", "personal data may not go here"),
    ] {
        let target = if route.contains("residency") { ", residency: [eu]" } else { "" };
        let (_, found) = checked(&policy(route, attempt, target));
        assert_eq!(codes(&found), ["LF504"], "{route}{attempt}: {found:#?}");
        let d = &found[0];
        assert!(d.severity == Severity::Error && d.blocks_serving());
        assert_eq!(d.place.pointer, format!("/routes/0/attempts/0/{at}"));
        assert!(d.message.starts_with("nobody may ever answer on the route `chat`: "), "{}", d.message);
        assert!(d.label.contains(says), "{}", d.label);
        let help = d.help.as_deref().unwrap();
        assert!(help.contains("`pii: allowed`") && help.contains("`data: none` on the route"), "{help}");
        assert_eq!(help.contains("`residency_required: [eu]`"), !route.contains("residency"), "{help}");
    }
}

/// The ways that the finding names, each on its own.
#[test]
fn each_way_out_ends_the_error() {
    for (route, attempt, target) in [
        ("", ", pii: allowed", ""),
        ("    residency_required: [eu]\n", "", ", residency: [eu]"),
        ("", ", pii: masked", ""),
        ("    data: none\n", ", pii: allowed", ""),
    ] {
        let (_, found) = checked(&policy(route, attempt, target));
        assert!(found.is_empty(), "{route}{attempt}: {found:#?}");
    }
    // `data: none` alone leaves what requests must say.
    let (_, found) = checked(&policy("    data: none\n", "", ""));
    assert_eq!((codes(&found), found[0].severity), (vec!["LF504"], Severity::Warning));
    assert!(found[0].message.contains("does not say `x-llmfo-data: none`"), "{}", found[0].message);
}

/// What the targets declare is what is proposed.
#[test]
fn the_residency_that_is_proposed_is_that_of_the_targets() {
    let (_, found) = checked(&policy("", "", ", residency: [kz, eu]"));
    assert!(found[0].help.as_deref().unwrap().contains("`residency_required: [kz, eu]` on the route"), "{found:#?}");
    let (_, found) = checked(&policy("    residency_required: [kz, eu]\n", "", ", residency: [kz, eu]"));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn one_attempt_that_may_is_enough_unless_it_reaches_nobody() {
    let two = |first: &str, second: &str| {
        policy("    residency_required: [eu]\n", &format!(", pii: {first}"), ", residency: [eu]").replace(
            "pools:\n  both: { targets: [one, two] }",
            "  far: { base_url: http://10.0.0.3/v1, model: m, residency: [us] }\npools:\n  both: { targets: [one, two] }\n  away: { targets: [far] }",
        ) + &format!("      - {{ pool: away, first_token_timeout_ms: 2000, pii: {second} }}\n")
    };
    // The second tier's only target lies outside: that it may get personal data helps nobody.
    assert_eq!(codes(&checked(&two("forbidden", "allowed")).1), ["LF113", "LF504"]);
    assert_eq!(codes(&checked(&two("allowed", "forbidden")).1), ["LF113"]);
    // No legal target at all is the other finding alone.
    let none = policy("    residency_required: [mars]\n", "", ", residency: [eu]");
    assert!(checked(&none).1.iter().all(|d| d.rule.code == "LF113"));
}

#[test]
fn what_could_not_be_read_is_not_judged() {
    for (route, attempt) in [("    data: persnal\n", ""), ("", ", pii: alowed"), ("    residency_required: 7\n", "")] {
        let (_, found) = checked(&policy(route, attempt, ""));
        assert!(!codes(&found).contains(&"LF504") && !found.is_empty(), "{found:#?}");
    }
}

#[test]
fn the_advice_about_a_vendor_says_whom_it_leaves_without_an_answer() {
    let vendor = ", domains: { vendor: x }";
    let (_, found) = checked(&policy("", ", pii: allowed", vendor));
    assert_eq!(codes(&found), ["LF502", "LF502"]);
    let help = found[0].help.as_deref().unwrap();
    assert!(
        help.contains("`pii: masked`, which sends placeholders") && help.contains("nobody may answer personal data"),
        "{help}"
    );
    // With another attempt that may get it, that part is not said.
    let more = policy("", ", pii: allowed", vendor)
        .replace("http://10.0.0.2/v1, model: m, domains: { vendor: x }", "http://10.0.0.2/v1, model: m")
        .replace("both: { targets: [one, two] }", "both: { targets: [one] }\n  own: { targets: [two] }")
        + "      - { pool: own, first_token_timeout_ms: 2000, pii: allowed }\n";
    let (_, found) = checked(&more);
    assert_eq!(codes(&found), ["LF502"], "{found:#?}");
    assert!(!found[0].help.as_deref().unwrap().contains("nobody"), "{found:#?}");
}

#[test]
fn keys_in_clear_and_unnamed_vendors_are_found_by_the_address() {
    let at = |url: &str, more: &str, route: &str| {
        let text = policy(route, ", pii: allowed", "")
            .replace("http://10.0.0.1/v1, model: m", &format!("{url}, model: m{more}"));
        codes(&checked(&text).1).join(" ")
    };
    let key = ", credentials: env:K";
    assert_eq!(at("http://llm.example.com/v1", key, ""), "LF505 LF506");
    assert_eq!(at("http://llm.example.com/v1", "", ""), "LF506");
    assert_eq!(at("http://llm.example.com/v1", key, "    data: none\n"), "LF505");
    assert_eq!(at("https://llm.example.com/v1", key, ""), "LF506");
    assert_eq!(at("https://llm.example.com/v1", key, "    data: none\n"), "");
    assert_eq!(at("http://vllm:8000/v1", key, ""), "");
    assert_eq!(at("http://gpu.local/v1", key, ""), "");
}

#[test]
fn a_route_without_a_recovery_objective_is_told() {
    let with = |objectives: &str| {
        let text = policy("", ", pii: allowed", "").replace("    objectives: { recovery_ms: 8000 }\n", objectives);
        let found = checked(&text).1;
        (codes(&found).join(" "), found.first().map(|d| (d.severity, d.place.line)))
    };
    assert_eq!(with(""), ("LF603".to_owned(), Some((Severity::Info, 10))));
    assert_eq!(with("    objectives: { useful_text_p95_ms: 900 }\n"), ("LF603".to_owned(), Some((Severity::Info, 11))));
    assert_eq!(with("    objectives: { recovery_ms: 900 }\n"), (String::new(), None));
    assert_eq!(with("    objectives: { recovery_ms: soon }\n").0, "LF006");
}
