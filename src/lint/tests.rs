//! Every rule by its examples, and the arithmetic of the time-outs.

use std::collections::BTreeMap;

use super::*;
use crate::diag::{Example, Severity};
use crate::policy::load_with_places;
use crate::spec::examples::{DRILL, POLICY};

/// 2026-12-01T00:00:00Z.
const NOW: i64 = 1_796_083_200;

/// What a machine knows on which the example's golden set and keys are there.
fn world(loaded: &Loaded) -> World {
    let wants = wants(loaded);
    let files = wants.files.into_iter().map(|f| (f.clone(), f == "goldensets/support.yaml")).collect();
    let state = |s: &SecretRef| match s {
        SecretRef::Env(name) if name == "LLMFO_EXAMPLE_UNSET" => SecretState::Missing,
        _ => SecretState::Usable,
    };
    let secrets: BTreeMap<_, _> = wants.secrets.into_iter().map(|s| (s.clone(), state(&s))).collect();
    World { now_unix_s: Some(NOW), files, secrets }
}

fn findings(text: &str) -> Vec<Diagnostic> {
    let loaded = load_with_places("example", text.as_bytes());
    let mut found = loaded.diagnostics.clone();
    found.extend(check(&loaded, &world(&loaded)));
    found
}

fn changed(changes: &[(&str, &str)]) -> Vec<Diagnostic> {
    let mut text = POLICY.to_owned();
    for (good, bad) in changes {
        assert_eq!(text.matches(good).count(), 1, "{good:?} is in the example once");
        text = text.replacen(good, bad, 1);
    }
    findings(&text)
}

fn codes(found: &[Diagnostic]) -> Vec<&str> {
    found.iter().map(|d| d.rule.code).collect()
}

#[test]
fn the_examples_have_no_finding() {
    let (file, found, doc) = crate::spec::drill::read("d", DRILL.as_bytes());
    assert!(found.is_empty() && drills::check(&file.unwrap(), &doc).is_empty(), "{found:#?}");
    assert!(findings(POLICY).is_empty(), "{:#?}", findings(POLICY));
}

#[test]
fn every_bad_example_yields_its_own_code_and_no_other() {
    for rule in catalog::all() {
        if let Example::Policy { good, bad } = rule.example {
            assert_eq!(POLICY.matches(good).count(), 1, "{}: {good:?} is in the example once", rule.code);
            let found = findings(&POLICY.replacen(good, bad, 1));
            let all: Vec<String> = found.iter().map(|d| format!("{}: {}", d.rule.code, d.message)).collect();
            assert!(!found.is_empty() && found.iter().all(|d| d.rule == rule), "{} gives {all:#?}", rule.code);
        }
        if let Example::Drill { good, bad } = rule.example {
            assert_eq!(DRILL.matches(good).count(), 1, "{}: {good:?} is in the example once", rule.code);
            let (file, mut found, doc) = crate::spec::drill::read("d", DRILL.replacen(good, bad, 1).as_bytes());
            found.extend(file.iter().flat_map(|f| drills::check(f, &doc)));
            assert!(!found.is_empty() && found.iter().all(|d| d.rule == rule), "{} gives {found:#?}", rule.code);
        }
    }
}

#[test]
fn codes_and_names_are_unique_and_every_rule_explains_itself() {
    let rules = catalog::all();
    for pair in rules.windows(2) {
        assert!(pair[0].code < pair[1].code, "{} twice", pair[1].code);
    }
    let mut names: Vec<_> = rules.iter().map(|r| r.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rules.len());
    for rule in rules {
        for text in [rule.what, rule.why, rule.fix] {
            assert!(text.ends_with('.'), "{}: {text:?} is a sentence", rule.code);
        }
        assert!(rule.code.len() == 5 && rule.code.starts_with("LF") && rule.family() <= 8);
    }
}

#[test]
fn the_shipped_policies_have_no_error_and_say_what_is_missing() {
    let loaded = load_with_places("support.yaml", include_bytes!("../../policies/support.yaml"));
    let mut known = world(&loaded);
    known.files.insert("adapters/x-json-prompt.md".into(), false);
    let found = check(&loaded, &known);
    // Its answers take 7 s in one case of twenty, so one that is not streamed has no time for a second target in 8 s.
    // `support-chat` may wait 2 s for a first sign and 5 s for the next, and has 7 s in all; `order-lookup` 2 s and 4 s of
    // 4.5 s: no second target has half of its 2 s then.
    assert_eq!(codes(&found), ["LF209", "LF209", "LF210", "LF210", "LF114", "LF114"], "{found:#?}");
    assert!(found[2].place.pointer.starts_with("/routes/0/"), "{found:#?}");
    assert!(found[3].place.pointer.starts_with("/routes/1/"), "{found:#?}");
    // 7000 - 2000 - 1000 - 100, and 4500 - 2000 - 1000 - 100.
    for (found, ms) in [(&found[2], 3900), (&found[3], 1400)] {
        let help = found.help.as_deref().unwrap();
        assert!(help.starts_with(&format!("write `idle_timeout_ms: {ms}` or less")), "{help}");
    }
    let lab = load_with_places("lab.yaml", crate::assets::LAB_POLICY.as_bytes());
    let mut known = world(&lab);
    known.files.insert("goldensets/support-v3.yaml".into(), true);
    assert!(check(&lab, &known).is_empty(), "{:#?}", check(&lab, &known));
}

/// The deadline leaves 7000 ms; `near` wants 2 x 2000, so `far` gets what is left: reachable from 1500 of 3000 on.
#[test]
fn a_tier_is_reachable_from_half_of_its_limit_on() {
    let quick = ("idle_timeout_ms: 3500", "idle_timeout_ms: 1500"); // its own rule is not asked here
    for (deadline, reachable) in [(6500, true), (6499, false)] {
        let found = changed(&[quick, ("deadline_ms: 8000", &format!("deadline_ms: {deadline}"))]);
        assert_eq!(codes(&found), if reachable { vec![] } else { vec!["LF201"] }, "{deadline}");
    }
    let found = changed(&[quick, ("deadline_ms: 8000", "deadline_ms: 6499")]);
    assert_eq!(found[0].message, "the route `support-chat` never reaches its tier number 2: 1.5 s of its 3 s are left");
    assert_eq!(
        found[0].help.as_deref(),
        Some(
            "write `deadline_ms: 6500`, or shorten the limits before it, or remove the tier; the tiers want 2 x 2 s + 1 x 3 s; there are 6.5 s - 1 s reserve = 5.5 s and 3 dials"
        )
    );
    assert_eq!(found[0].labels[0].text, "bound by this");
    // The first tier itself can be out of reach: half of its 20 s and the reserve of 1 s are 11 s.
    let found = changed(&[quick, ("first_token_timeout_ms: 2000", "first_token_timeout_ms: 20000")]);
    assert_eq!(codes(&found), ["LF201"], "{found:#?}");
    assert!(found[0].help.as_deref().unwrap().starts_with("write `deadline_ms: 11000`, or shorten its limit"));
    // Two targets before it: the third dial is its own. Here time is short, too.
    let found = changed(&[quick, ("max_attempts: 3", "max_attempts: 2"), ("deadline_ms: 8000", "deadline_ms: 6000")]);
    let help = found[0].help.as_deref().unwrap();
    assert!(help.starts_with("write `max_attempts: 3` and `deadline_ms: 6500`, or"), "{help}");
    let mended = changed(&[quick, ("max_attempts: 3", "max_attempts: 3"), ("deadline_ms: 8000", "deadline_ms: 6500")]);
    assert!(mended.is_empty(), "{mended:#?}");
}

#[test]
fn targets_that_are_skipped_anyway_use_no_time() {
    // Were vendor-x legal and before the others, the second tier would be out of reach.
    let found = changed(&[
        ("residency: [eu]", "residency: [us]"),
        ("{ pool: near, first_token_timeout_ms: 2000", "{ pool: far, first_token_timeout_ms: 6000"),
        (
            "{ pool: far, first_token_timeout_ms: 3000",
            "{ pool: near, first_token_timeout_ms: 3000, answer_timeout_ms: 3500",
        ),
        ("pii: forbidden", "pii: allowed"),
        ("idle_timeout_ms: 3500", "idle_timeout_ms: 2400"), // its own rule is not asked here
    ]);
    assert_eq!(codes(&found), ["LF113"], "{found:#?}");
}

#[test]
fn a_route_that_says_it_must_not_fail_over_is_not_asked_for_a_second_dial() {
    let one = ("max_attempts: 3", "max_attempts: 1\n    failover: none\n    failover_reason: by contract");
    let tiers =
        ("\n      - { pool: far, first_token_timeout_ms: 3000, compatibility_group: support, pii: forbidden }", "");
    let far = ("  far: { targets: [vendor-x] }\n", "");
    assert!(changed(&[one, tiers, far]).is_empty(), "{:#?}", changed(&[one, tiers, far]));
    let found = changed(&[("max_attempts: 3", "max_attempts: 1"), tiers, far]);
    assert_eq!(codes(&found), ["LF202"]);
    assert!(found[0].place.pointer.ends_with("/max_attempts"));
    // One target alone is no error.
    assert!(changed(&[one, tiers, far, ("targets: [local-a, local-b]", "targets: [local-a]")]).is_empty());
}

#[test]
fn a_route_without_any_legal_target_is_an_error() {
    let found = changed(&[("residency_required: [kz, eu]", "residency_required: [mars]")]);
    assert!(found.iter().all(|d| d.rule.code == "LF113" && d.severity == Severity::Error && d.blocks_serving()));
    // One mistake is one finding, at its line.
    assert_eq!(found.len(), 1);
    assert!(found[0].place.pointer.ends_with("/residency_required"));
    let found = changed(&[("residency_required: [kz, eu]", "residency_required: [EU]")]);
    assert_eq!((codes(&found), found[0].nearest.as_deref()), (vec!["LF113"], Some("eu")), "{found:#?}");
}

#[test]
fn voice_is_held_to_two_seconds() {
    let voice = ("channel: chat", "channel: voice");
    let found = changed(&[voice]);
    assert_eq!(codes(&found), ["LF208"]);
    assert!(found[0].message.contains("waits 2000 ms for a silent target"), "{}", found[0].message);
    let quick = ("first_token_timeout_ms: 2000", "first_token_timeout_ms: 900");
    assert!(changed(&[voice, quick, ("connect_timeout_ms: 1000", "connect_timeout_ms: 300")]).is_empty());
}

#[test]
fn expiry_is_judged_by_the_clock_that_is_handed_in() {
    let loaded = load_with_places("f", POLICY.replacen("2100-01-01T00:00:00Z", "2026-12-01T00:00:00Z", 1).as_bytes());
    let at = |now| check(&loaded, &World { now_unix_s: Some(now), ..World::default() });
    assert!(at(NOW - 1).is_empty());
    assert_eq!(codes(&at(NOW)), ["LF803"]);
    assert_eq!(at(NOW + 3 * 86_400)[0].message, "the policy expired 3 days ago");
    assert!(!at(NOW)[0].blocks_serving());
    assert!(check(&loaded, &World::default()).is_empty());
}

#[test]
fn a_mistake_of_shape_hides_no_other_finding() {
    let found = changed(&[("idle_timeout_ms: 3500", "idle_timeout_ms: soon"), ("max_attempts: 3", "max_attempts: 4")]);
    assert_eq!(codes(&found), ["LF006", "LF203"]);
}

/// Every key of the example, misspelt and of the wrong type: whatever is said besides is said of the whole file too.
#[test]
fn what_could_not_be_read_is_not_judged() {
    for key in [
        "residency_required",
        "residency",
        "max_attempts",
        "deadline_ms",
        "reserve_ms",
        "first_token_timeout_ms",
        "answer_timeout_ms",
        "connect_timeout_ms",
        "idle_timeout_ms",
        "objectives",
        "recovery_ms",
        "expires",
        "serial",
        "pii",
        "data",
        "capabilities",
        "capacity",
        "p95_service_ms",
        "domains",
        "members",
        "tools",
        "pool",
        "targets",
        "channel",
        "useful_text_p95_ms",
    ] {
        let written = format!("{key}:");
        if !POLICY.contains(&written) {
            continue;
        }
        let misspelt = POLICY
            .replace(&format!(" {written}"), &format!(" {key}x:"))
            .replace(&format!("\n{written}"), &format!("\n{key}x:"));
        let line = |l: &str| match l.split_once(&written) {
            Some((before, _)) if before.trim().is_empty() || before.trim() == "-" => {
                format!("{before}{written} [[1]]")
            }
            _ => l.to_owned(),
        };
        let wrong: Vec<String> = POLICY.lines().map(line).collect();
        for text in [misspelt, wrong.join("\n")] {
            let found = findings(&text);
            let judged: Vec<_> =
                found.iter().filter(|d| !d.rule.code.starts_with("LF0")).map(|d| (d.rule.code, &d.message)).collect();
            assert!(judged.is_empty(), "{key}: {judged:#?}");
        }
    }
}

/// A text where a list belongs: the list is shown, and nothing is said of residencies that were not read.
#[test]
fn one_name_is_no_list_and_the_finding_shows_the_list() {
    for (list, text, help) in [
        ("residency: [eu]", "residency: eu", "`residency: [eu]`"),
        ("residency_required: [kz, eu]", "residency_required: kz", "`residency_required: [kz]`"),
        ("targets: [vendor-x]", "targets: vendor-x", "`targets: [vendor-x]`"),
        ("tools: [get_order, create_ticket]", "tools: get_order", "`tools: [get_order]`"),
    ] {
        let found = changed(&[(list, text)]);
        assert_eq!(codes(&found), ["LF006"], "{found:#?}");
        assert!(found[0].help.as_deref().unwrap().contains(help), "{found:#?}");
    }
    // The only one of three that could be read is not judged for the others, and no name is offered for itself.
    let found = changed(&[
        ("residency_required: [kz, eu]", "residency_required: [eu]"),
        ("residency: [eu]", "residency: [eu, us]"),
    ]);
    assert!(found.iter().all(|d| d.nearest.as_deref() != Some("eu")), "{found:#?}");
}

#[test]
fn a_key_that_cannot_be_sent_is_a_warning() {
    let loaded = load_with_places("f", POLICY.as_bytes());
    for (state, severity) in [
        (SecretState::Empty, Severity::Warning),
        (SecretState::Unusable, Severity::Warning),
        (SecretState::Missing, Severity::Info),
    ] {
        let secrets = BTreeMap::from([(SecretRef::File("/run/secrets/vendor-x".into()), state)]);
        let found = check(&loaded, &World { secrets, ..World::default() });
        assert_eq!((codes(&found), found[0].severity), (vec!["LF503"], severity));
    }
}

/// The least that makes a dial worth while is no promise: a stand-in whose answers take longer says so.
#[test]
fn a_stand_in_that_declares_more_than_is_left_is_told_of() {
    let stand_in = (
        "    capabilities: { tools: true }\n    residency: [kz]",
        "    capabilities: { tools: true }\n    residency: [kz]\n    capacity: { slots: 8, p95_service_ms: 2500, basis: estimated }",
    );
    let tier = (
        "{ pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500",
        "{ pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 4700",
    );
    let found = changed(&[stand_in, tier]);
    let expected = found.iter().find(|d| d.rule.code == "LF209").unwrap().expected.clone().unwrap();
    assert!(
        expected.contains("`local-b` declares 2.5 s for an answer, so slower ones are cut off there"),
        "{expected}"
    );
}

/// 7000 ms are there and three dials: an even share is 2333 ms. The stand-in `local-b` needs half of its 2000 ms and 100 for
/// the dial; written here, its limit is the same: 2/3 of 6900 ms are the most.
#[test]
fn a_silent_target_must_leave_an_unstreamed_answer_time_for_a_stand_in() {
    for (p95, own, want) in [
        (1000, None, None), // 1.5 s, below the share
        (2000, None, Some((Severity::Info, "3 s", "4 s are"))),
        (3932, None, Some((Severity::Info, "5.9 s", "1.1 s are"))),
        (3934, None, Some((Severity::Warning, "5.9 s", "1.1 s are"))),
        (7000, None, Some((Severity::Warning, "7 s", "nothing is"))),
        (7000, Some(3500), None), // the operator's own figure goes before p95
        (1000, Some(4600), None),
        (1000, Some(4601), Some((Severity::Warning, "4.6 s", "2.4 s are"))),
        (1000, Some(6500), Some((Severity::Warning, "6.5 s", "500 ms are"))),
    ] {
        let capacity = ("p95_service_ms: 5000", &*format!("p95_service_ms: {p95}"));
        let tier = own.map_or_else(String::new, |ms| format!(", answer_timeout_ms: {ms}"));
        let tier = (
            "{ pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500",
            &*format!("{{ pool: near, first_token_timeout_ms: 2000{tier}"),
        );
        let found = changed(&[capacity, tier]);
        let Some((severity, waits, left)) = want else {
            assert!(found.is_empty(), "{p95} {own:?}: {found:#?}");
            continue;
        };
        assert_eq!((codes(&found), found[0].severity), (vec!["LF209"], severity), "{p95} {own:?}");
        assert!(found[0].message.contains(&format!("may wait {waits} of the 8 s deadline")), "{}", found[0].message);
        assert!(found[0].message.contains(&format!("{left} left")), "{}", found[0].message);
        let help = found[0].help.as_deref().unwrap();
        assert_eq!(help, "write `answer_timeout_ms: 4600` or less here (2333 is an even share)");
    }
}
