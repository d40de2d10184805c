//! What is left when nobody may or can answer; evidence.

use crate::policy::*;
use crate::router::testkit::*;
use crate::router::*;

fn collect() -> Drive {
    Kit::new()
        .target("local", |_| {})
        .target("vendor", |_| {})
        .route("r", &[&["local"], &["vendor"]], |r| {
            r.tiers[1].intents = Some(vec!["shipping".into()]);
            r.tiers[1].otherwise = Otherwise::CollectAndHandoff;
            r.collect = vec!["order_id".into(), "contact".into()];
        })
        .drive()
}

#[test]
fn other_intents_are_collected_for_a_human_when_their_tier_is_reached() {
    let mut d = collect();
    let refund = || Facts { intent: Some("refund".into()), ..facts() };
    let r = d.arrive(refund());
    assert_eq!(d.dialled(r), ["local"]);
    d.broke(d.attempt(r), Failure::Refused);
    let Some(Reply::Handoff { cause, collect, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!((cause, collect), (HandoffCause::Intent, vec!["order_id".to_owned(), "contact".to_owned()]));
    // And at once while the tier before it is out.
    for _ in 0..2 {
        let r = d.arrive(refund());
        d.broke(d.attempt(r), Failure::Refused);
    }
    assert_eq!(d.state("local"), "cooling");
    let r = d.arrive(refund());
    assert!(matches!(d.reply(r), Some(Reply::Handoff { cause: HandoffCause::Intent, .. })));
    let r = d.arrive(Facts { intent: Some("shipping".into()), ..facts() });
    assert_eq!(d.dialled(r), ["vendor"]);
}

#[test]
fn other_intents_are_collected_also_when_the_tier_before_has_no_room() {
    let mut d = Kit::new()
        .target("local", |t| t.capacity.slots = Some(1))
        .target("vendor", |_| {})
        .route("r", &[&["local"], &["vendor"]], |r| {
            r.tiers[1].intents = Some(vec!["shipping".into()]);
            r.tiers[1].otherwise = Otherwise::CollectAndHandoff;
            r.collect = vec!["order_id".into()];
        })
        .drive();
    d.arrive(facts());
    let r = d.arrive(facts());
    let Some(Reply::Handoff { cause, collect, .. }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!((cause, collect), (HandoffCause::Intent, vec!["order_id".to_owned()]));
}

#[test]
fn a_conversation_above_the_limit_goes_to_a_human_undialled() {
    let mut d =
        Kit::new().target("a", |_| {}).route("r", &[&["a"]], |r| r.context.handoff_above_tokens = Some(1_000)).drive();
    let r = d.arrive(Facts { body_bytes: 3_003, ..facts() });
    assert!(matches!(d.reply(r), Some(Reply::Handoff { cause: HandoffCause::LongConversation, .. })));
    assert!(d.dialled(r).is_empty());
    let r = d.arrive(Facts { body_bytes: 3_000, ..facts() });
    assert_eq!(d.dialled(r), ["a"]);
}

#[test]
fn after_expiry_listed_intents_are_answered_without_tools() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .route("r", &[&["a"]], |_| {})
        .change(|p| p.on_expired_intents = Some(vec!["shipping".into()]))
        .drive();
    let r = d.arrive(Facts { expired: true, intent: Some("refund".into()), ..facts() });
    assert!(matches!(d.reply(r), Some(Reply::Handoff { cause: HandoffCause::Expired, .. })));
    d.arrive(Facts { expired: true, intent: Some("shipping".into()), ..facts() });
    let withheld = d.out.iter().find_map(|o| match o {
        Output::Dial { withhold, .. } => Some(*withhold),
        _ => None,
    });
    assert_eq!(withheld, Some(Withhold::Everything));
}

#[test]
fn evidence_filters_later_tiers_and_in_the_first_only_a_no_does() {
    let standings = [Standing::Eligible, Standing::Excluded, Standing::Stale, Standing::Mismatch, Standing::Missing];
    for standing in standings {
        for tier in [0u16, 1] {
            let mut d = Kit::new()
                .target("a", |_| {})
                .target("b", |_| {})
                .route("r", &[&["a"], &["b"]], |r| {
                    for tier in &mut r.tiers {
                        tier.group = Some("g".into());
                    }
                })
                .drive();
            let record = |n: u16, standing| Evidence {
                group: "g".into(),
                target: TargetId(n),
                standing,
                stale_at: None,
                baseline_p95_ms: None,
                prompt_sha256: None,
            };
            let other = 1 - tier;
            d.input(Input::Evidence { records: vec![record(tier, standing), record(other, Standing::Eligible)] });
            let dialled = d.bad_request(&Failure::Refused);
            let name = if tier == 0 { "a" } else { "b" };
            let may = standing == Standing::Eligible || (tier == 0 && standing != Standing::Excluded);
            assert_eq!(dialled.iter().any(|n| n == name), may, "{standing:?} in tier {tier}");
        }
    }
}

#[test]
fn an_eligible_record_becomes_stale_by_time() {
    let mut d = Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .route("r", &[&["a"], &["b"]], |r| r.tiers[1].group = Some("g".into()))
        .drive();
    let stale_at = Some(d.now + std::time::Duration::from_secs(60));
    d.input(Input::Evidence {
        records: vec![Evidence {
            group: "g".into(),
            target: TargetId(1),
            standing: Standing::Eligible,
            stale_at,
            baseline_p95_ms: None,
            prompt_sha256: None,
        }],
    });
    assert_eq!(d.bad_request(&status(429)), ["a", "b"]);
    d.pass_s(130);
    let r = d.arrive(facts());
    d.broke(d.attempt(r), status(429));
    let record = d.record(r).expect("done");
    assert_eq!(record.skipped[0].reason, "evidence_stale");
}
