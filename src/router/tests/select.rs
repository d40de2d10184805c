//! Who may, who can, and what the client hears if nobody does.

use crate::policy::*;
use crate::router::decision::Outcome;
use crate::router::testkit::*;
use crate::router::*;

fn reply(d: &mut Drive, facts: Facts) -> Reply {
    let r = d.arrive(facts);
    assert!(d.dialled(r).is_empty(), "somebody was dialled: {:?}", d.dialled(r));
    d.reply(r).expect("a reply")
}

fn nobody_may(d: &mut Drive, facts: Facts) -> String {
    match reply(d, facts) {
        Reply::NobodyMay { why } => why,
        other => panic!("{other:?}"),
    }
}

fn handoff(d: &mut Drive, facts: Facts) -> String {
    match reply(d, facts) {
        Reply::Handoff { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

fn lives(places: &'static [&'static str]) -> impl FnOnce(&mut Target) {
    move |t| t.residency = places.iter().map(|p| (*p).to_owned()).collect()
}

/// First choice of a request; the dial is left open.
fn first(d: &mut Drive, facts: Facts) -> Vec<String> {
    let r = d.arrive(facts);
    d.dialled(r)
}

fn personal() -> Facts {
    Facts { data: DataClass::Personal, ..facts() }
}

fn intent(name: &str) -> Facts {
    Facts { intent: Some(name.into()), ..facts() }
}

#[test]
fn the_whole_residency_must_lie_within_what_is_required() {
    let mut d = Kit::new()
        .target("us", lives(&["us"]))
        .target("both", lives(&["kz", "us"]))
        .target("unknown", lives(&[]))
        .target("kz", lives(&["kz"]))
        .route("r", &[&["us", "both", "unknown", "kz"]], |r| {
            r.residency_required = Some(vec!["kz".into(), "eu".into()])
        })
        .drive();
    let r = d.arrive(facts());
    assert_eq!(d.dialled(r), ["kz"]);
    let kz = d.attempt(r);
    d.broke(kz, status(503));
    let record = d.record(r).expect("done");
    assert_eq!(record.attempts[0].why, "instead of us: residency");
    assert!(record.skipped.iter().all(|s| s.reason == "residency") && record.skipped.len() == 3, "{record:?}");
}

#[test]
fn a_legal_filter_is_not_relaxed_when_the_legal_one_is_open() {
    let mut d = Kit::new()
        .target("kz", lives(&["kz"]))
        .target("us", lives(&["us"]))
        .route("r", &[&["kz", "us"]], |r| r.residency_required = Some(vec!["kz".into()]))
        .drive();
    for _ in 0..3 {
        assert_eq!(d.bad_request(&Failure::Refused), ["kz"]);
    }
    assert!(matches!(reply(&mut d, facts()), Reply::Unavailable { .. }));
}

#[test]
fn personal_data_goes_only_where_it_is_allowed() {
    let kit = |residency: bool, pii: Option<Pii>, data: DataClass| {
        Kit::new()
            .target("t", lives(&["kz"]))
            .route("r", &[&["t"]], |r| {
                r.residency_required = residency.then(|| vec!["kz".into()]);
                r.tiers[0].pii = pii;
                r.data = data;
            })
            .drive()
    };
    use DataClass::{None as NoData, Personal};
    // Absent: allowed inside a required residency, else forbidden.
    assert_eq!(first(&mut kit(true, None, NoData), personal()), ["t"]);
    assert_eq!(nobody_may(&mut kit(false, None, NoData), personal()), "t: pii (personal data may not go to this tier)");
    // As written.
    assert_eq!(first(&mut kit(false, Some(Pii::Allowed), NoData), personal()), ["t"]);
    nobody_may(&mut kit(true, Some(Pii::Forbidden), NoData), personal());
    // Without personal data nothing is in the way.
    assert_eq!(first(&mut kit(true, Some(Pii::Masked), NoData), facts()), ["t"]);
    // The request may be stricter than the route, never laxer.
    nobody_may(&mut kit(true, Some(Pii::Forbidden), Personal), facts());
}

/// A tier that gets masked text: who it is dialled with, and what cannot be masked goes on, or nowhere.
#[test]
fn masked_text_goes_where_the_policy_wants_it_masked() {
    let kit = |tiers: &[Option<Pii>]| {
        let names = ["a", "b"];
        let pools: Vec<&[&str]> = names.iter().take(tiers.len()).map(std::slice::from_ref).collect();
        let tiers = tiers.to_vec();
        Kit::new()
            .target("a", lives(&["kz"]))
            .target("b", lives(&["kz"]))
            .route("r", &pools, move |r| {
                r.data = DataClass::None;
                for (tier, pii) in r.tiers.iter_mut().zip(&tiers) {
                    tier.pii = *pii;
                }
            })
            .drive()
    };
    let dialled = |d: &mut Drive, facts: Facts| {
        d.arrive(facts);
        let dial = |o: &Output| match o {
            Output::Dial { target, mask, .. } => Some((target.0, *mask)),
            _ => None,
        };
        d.out.iter().rev().find_map(dial).expect("a dial")
    };
    let unmaskable = || Facts { unmaskable: Some(Unmaskable::Part), ..personal() };
    let (masked, allowed) = (Some(Pii::Masked), Some(Pii::Allowed));
    assert_eq!(dialled(&mut kit(&[masked]), personal()), (0, true));
    assert_eq!(dialled(&mut kit(&[masked]), facts()), (0, false));
    assert_eq!(dialled(&mut kit(&[masked]), Facts { unmaskable: Some(Unmaskable::Part), ..facts() }), (0, false));
    assert_eq!(dialled(&mut kit(&[allowed, masked]), personal()), (0, false));
    assert_eq!(dialled(&mut kit(&[masked, allowed]), unmaskable()), (1, false));
    assert_eq!(
        nobody_may(&mut kit(&[masked]), unmaskable()),
        "a: pii_unmaskable (this tier gets masked text only, and a part of the request is no text)"
    );
    // The next target after a failure is dialled by its own tier's rule, and the record says so.
    let mut d = kit(&[allowed, masked]);
    let r = d.arrive(personal());
    let first = d.dial(r).unwrap().0;
    d.broke(first, status(503));
    let dial = d.out.iter().rev().find_map(|o| match o {
        Output::Dial { target, mask, .. } => Some((target.0, *mask)),
        _ => None,
    });
    assert_eq!(dial, Some((1, true)));
}

#[test]
fn a_tier_answers_its_intents_only() {
    let kit = |otherwise: Otherwise| {
        Kit::new()
            .target("t", |_| {})
            .route("r", &[&["t"]], |r| {
                r.tiers[0].intents = Some(vec!["shipping".into()]);
                r.tiers[0].otherwise = otherwise;
            })
            .drive()
    };
    assert_eq!(first(&mut kit(Otherwise::Skip), intent("shipping")), ["t"]);
    nobody_may(&mut kit(Otherwise::Skip), intent("refund"));
    nobody_may(&mut kit(Otherwise::Skip), facts());
    assert_eq!(
        handoff(&mut kit(Otherwise::CollectAndHandoff), intent("refund")),
        "t: intent (this tier does not answer the request's intent)"
    );
}

#[test]
fn after_expiry_only_listed_intents_are_answered_without_tools() {
    let no_tools = |t: &mut Target| t.capabilities.tools = false;
    let kit = |intents: Option<&str>| {
        let intents = intents.map(|i| vec![i.to_owned()]);
        Kit::new()
            .target("t", no_tools)
            .route("r", &[&["t"]], |_| {})
            .change(|p| p.on_expired_intents = intents)
            .drive()
    };
    let expired = |name: &str| Facts { expired: true, tools: true, ..intent(name) };
    assert_eq!(first(&mut kit(Some("shipping")), expired("shipping")), ["t"], "tools are withheld, so it can");
    assert_eq!(handoff(&mut kit(Some("shipping")), expired("refund")), "t: expired (the policy has expired)");
    handoff(&mut kit(None), expired("shipping"));
}

#[test]
fn another_quality_class_needs_the_routes_leave() {
    let economy = |t: &mut Target| t.tier = "economy".into();
    let mut d = Kit::new().target("a", |_| {}).target("e", economy).route("r", &[&["a"], &["e"]], |_| {}).drive();
    assert_eq!(d.bad_request(&status(500)), ["a"]);
}

#[test]
fn a_strict_schema_needs_decoding_or_an_adapter() {
    let with = |level: JsonSchema, replaces: Option<&'static str>| {
        move |t: &mut Target| {
            t.capabilities.json_schema = level;
            t.adapter = replaces.map(|r| Adapter {
                name: "x".into(),
                version: 1,
                replaces: vec![r.into()],
                system_suffix: Some("file:x.md".into()),
            });
        }
    };
    let mut d = Kit::new()
        .target("none", with(JsonSchema::None, Some("json_schema_strict")))
        .target("prompt", with(JsonSchema::PromptOnly, None))
        .target("other", with(JsonSchema::PromptOnly, Some("max_tokens")))
        .target("adapted", with(JsonSchema::PromptOnly, Some("json_schema_strict")))
        .target("strict", with(JsonSchema::Strict, None))
        .route("r", &[&["none", "prompt", "other", "adapted", "strict"]], |_| {})
        .drive();
    let strict = || Facts { strict_schema: true, ..facts() };
    // An adapter whose text nobody has read stands in for nothing.
    assert_eq!(first(&mut d, strict()), ["strict"]);
    d.input(Input::Adapters { targets: (0..5).map(TargetId).collect() });
    assert_eq!(first(&mut d, strict()), ["adapted"]);
    assert_eq!(first(&mut d, Facts { strict_decoding: true, ..strict() }), ["strict"]);
    assert_eq!(first(&mut d, facts()), ["none"]);
}

#[test]
fn the_estimated_need_must_fit_the_window() {
    let window = |tokens| move |t: &mut Target| t.capabilities.context_tokens = tokens;
    let mut d = Kit::new()
        .target("small", window(Some(1_000)))
        .target("large", window(Some(2_000)))
        .route("r", &[&["small", "large"]], |_| {})
        .drive();
    let need = |bytes, output| Facts { body_bytes: bytes, max_output_tokens: output, ..facts() };
    assert_eq!(first(&mut d, need(3_000, None)), ["small"], "1,000 tokens");
    assert_eq!(first(&mut d, need(3_000, Some(1))), ["large"]);
    assert_eq!(reply(&mut d, need(9_000, None)), Reply::TooLong);
    let mut d = Kit::new().target("undeclared", window(None)).route("r", &[&["undeclared"]], |_| {}).drive();
    assert_eq!(first(&mut d, need(9_000_000, None)), ["undeclared"], "a window that nobody declared never filters");
}

#[test]
fn a_mismatch_is_remembered_for_requests_that_need_the_same() {
    let mut d = Kit::new().target("a", |_| {}).target("b", |_| {}).route("r", &[&["a", "b"]], |_| {}).drive();
    let with_tools = Facts { tools: true, ..facts() };
    let r = d.arrive(with_tools.clone());
    let a = d.attempt(r);
    d.broke(a, object(400, "", "", "`tools` is not supported by this model"));
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert_eq!(first(&mut d, with_tools.clone()), ["b"]);
    assert_eq!(first(&mut d, facts()), ["a"]);
    d.pass_s(15 * 60);
    assert_eq!(first(&mut d, with_tools), ["a"], "tried again after a quarter of an hour");
}

#[test]
fn failover_none_tries_the_first_that_may() {
    let mut d = Kit::new()
        .target("us", lives(&["us"]))
        .target("kz-1", lives(&["kz"]))
        .target("kz-2", lives(&["kz"]))
        .route("r", &[&["us", "kz-1", "kz-2"]], |r| {
            r.residency_required = Some(vec!["kz".into()]);
            r.no_failover = Some("regulator".into());
        })
        .drive();
    for _ in 0..3 {
        assert_eq!(d.bad_request(&Failure::Refused), ["kz-1"]);
    }
    assert!(matches!(reply(&mut d, facts()), Reply::Unavailable { .. }), "nor when it is open");
}

#[test]
fn what_the_client_hears_depends_on_why_nobody_answers() {
    let kit = || {
        let window = |t: &mut Target| t.capabilities.context_tokens = Some(8_000);
        Kit::new().target("a", window).target("b", window).route("r", &[&["a", "b"]], |_| {}).drive()
    };
    let unsupported = object(400, "", "unsupported_parameter", "");
    let too_long = object(400, "", "context_length_exceeded", "");
    let run = |failures: [&Failure; 2]| {
        let mut d = kit();
        let r = d.arrive(facts());
        for failure in failures {
            if let Some((attempt, _)) = d.dial(r).filter(|_| d.reply(r).is_none()) {
                d.broke(attempt, failure.clone());
            }
        }
        (d.reply(r).expect("a reply"), d.record(r).expect("done").outcome)
    };
    let refused = Failure::Refused;
    assert!(matches!(run([&unsupported, &unsupported]), (Reply::Handoff { .. }, Outcome::Handoff)));
    assert!(matches!(run([&too_long, &too_long]), (Reply::TooLong, Outcome::Refused)));
    assert!(matches!(run([&refused, &too_long]), (Reply::Handoff { .. }, Outcome::Handoff)));
    assert!(matches!(run([&refused, &unsupported]), (Reply::Handoff { .. }, Outcome::Handoff)));
    assert!(matches!(run([&refused, &refused]), (Reply::Handoff { .. }, Outcome::Handoff)));
}

#[test]
fn too_long_for_one_and_the_larger_one_open_is_worth_coming_back() {
    let window = |tokens| move |t: &mut Target| t.capabilities.context_tokens = Some(tokens);
    let mut d = Kit::new()
        .target("small", window(8_000))
        .target("large", window(128_000))
        .route("r", &[&["small", "large"]], |_| {})
        .route("only-large", &[&["large"]], |_| {})
        .drive();
    for _ in 0..3 {
        let r = d.arrive(Facts { route: RouteId(1), ..facts() });
        let a = d.attempt(r);
        d.broke(a, Failure::Refused);
    }
    let r = d.arrive(facts());
    let small = d.attempt(r);
    d.broke(small, object(400, "", "context_length_exceeded", ""));
    assert!(matches!(d.reply(r), Some(Reply::Unavailable { .. })), "{:?}", d.reply(r));
}

#[test]
fn no_time_left_for_a_useful_dial_hands_off() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .route("r", &[&["a"], &["b"]], |r| {
            r.deadline = std::time::Duration::from_secs(3);
            r.reserve = std::time::Duration::from_millis(500);
        })
        .drive();
    let r = d.arrive(facts());
    let a = d.attempt(r);
    d.connected(a);
    d.pass_s(3);
    assert_eq!(d.dialled(r), ["a"], "500 ms are less than half of 2 s");
    let Some(Reply::Handoff { why, .. }) = d.reply(r) else { panic!() };
    assert_eq!(why, "a: first_token_timeout (provider); b: no_time");
}

#[test]
fn a_target_that_says_how_it_counts_is_believed() {
    let mut d =
        Kit::new().target("a", |t| t.capabilities.context_tokens = Some(1_000)).route("r", &[&["a"]], |_| {}).drive();
    let long = || Facts { body_bytes: 3_600, ..facts() };
    let r = d.arrive(long());
    assert!(d.dialled(r).is_empty(), "1,200 tokens at three bytes each");
    for _ in 0..10 {
        let r = d.arrive(Facts { body_bytes: 400, ..facts() });
        let attempt = d.attempt(r);
        d.input(Input::Ended { attempt, usage: Some(Usage { input_tokens: 100, output_tokens: 5 }) });
    }
    let r = d.arrive(long());
    assert_eq!(d.dialled(r), ["a"], "900 at four");
}
