//! The ledger as requests meet it.

use crate::policy::*;
use crate::router::decision::Outcome;
use crate::router::ledger::CallState;
use crate::router::testkit::*;
use crate::router::*;

fn said(turn: u64) -> Facts {
    Facts {
        tools: true,
        risky_tools: true,
        conversation: Some(Conversation {
            client: "shop".into(),
            id: "c1".into(),
            turn,
            history_version: None,
            repeats: false,
            calls_so_far: 0,
            results: Vec::new(),
        }),
        ..facts()
    }
}

fn shop() -> Drive {
    Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .route("r", &[&["a", "b"]], |_| {})
        .change(|p| {
            let keyed = Tool { side_effects: SideEffects::Keyed, key_argument: Some("id".into()), handoff: false };
            p.tools.insert("create_ticket".into(), keyed);
        })
        .drive()
}

fn call(d: &mut Drive, r: RequestId, tool: &str) -> LedgerCalls {
    let attempt = d.attempt(r);
    call_of(d, attempt, tool).expect("answered")
}

fn call_of(d: &mut Drive, attempt: AttemptId, tool: &str) -> Option<LedgerCalls> {
    d.input(Input::Calls { attempt, calls: vec![ProposedCall { tool: tool.into(), arguments: "{}".into() }] });
    d.out.iter().rev().find_map(|o| match o {
        Output::Calls { calls, attempt: a, .. } if *a == attempt => Some(calls.clone()),
        _ => None,
    })
}

fn calls_are(d: &Drive) -> Vec<(Vec<String>, CallState)> {
    let changed = |o: &Output| match o {
        Output::CallsAre { calls, state } => Some((calls.clone(), *state)),
        _ => None,
    };
    d.out.iter().filter_map(changed).collect()
}

type LedgerCalls = Vec<crate::router::ledger::LedgerCall>;

#[test]
fn a_repeated_turn_is_answered_from_the_ledger_and_nobody_is_dialled() {
    let mut d = shop();
    let r = d.arrive(said(1));
    let calls = call(&mut d, r, "create_ticket");
    d.ended(d.attempt(r));
    assert_eq!(d.engine.snapshot(d.now).unconfirmed_calls, 1);
    let again = d.arrive(said(1));
    let Some(Reply::FromLedger { calls: replayed }) = d.reply(again) else { panic!("{:?}", d.reply(again)) };
    assert_eq!(replayed[0].operation_key, calls[0].operation_key);
    assert_eq!(replayed[0].state, CallState::Delivered);
    assert!(d.dialled(again).is_empty());
    assert_eq!(d.record(again).expect("done").outcome, Outcome::FromLedger);
}

#[test]
fn a_call_that_broke_before_delivery_is_made_by_the_next_target_with_the_same_key() {
    let mut d = shop();
    let r = d.arrive(said(1));
    let first = call(&mut d, r, "create_ticket");
    d.broke(d.attempt(r), Failure::Reset);
    let second = call(&mut d, r, "create_ticket");
    assert_eq!(d.dialled(r), ["a", "b"]);
    assert_eq!(first[0].operation_key, second[0].operation_key, "twice is as once");
    d.ended(d.attempt(r));
    assert_eq!(d.engine.snapshot(d.now).unconfirmed_calls, 1);
}

#[test]
fn a_repeated_turn_with_an_unkeyed_call_goes_to_a_human() {
    let mut d = shop();
    let r = d.arrive(said(1));
    call(&mut d, r, "issue_refund");
    d.ended(d.attempt(r));
    let again = d.arrive(said(1));
    assert!(matches!(d.reply(again), Some(Reply::Handoff { cause: HandoffCause::Repeated, .. })));
}

#[test]
fn without_a_conversation_calls_still_get_ids_of_their_own() {
    let mut d = shop();
    let (r, s) = (d.arrive(facts()), d.arrive(facts()));
    let (x, y) = (call(&mut d, r, "create_ticket"), call(&mut d, s, "create_ticket"));
    assert_ne!(x[0].call_id, y[0].call_id);
    assert_eq!(d.engine.snapshot(d.now).unconfirmed_calls, 0, "it only observes");
}

#[test]
fn two_requests_of_one_turn_at_once_get_the_call_of_the_faster_one() {
    let mut d = shop();
    let (r, s) = (d.arrive(said(1)), d.arrive(said(1)));
    let first = call(&mut d, r, "create_ticket");
    // The slower one comes while the first is still being written down.
    let attempt = d.attempt(s);
    assert_eq!(call_of(&mut d, attempt, "create_ticket"), None, "its own call is not handed out");
    let Some(Reply::FromLedger { calls }) = d.reply(s) else { panic!("{:?}", d.reply(s)) };
    assert_eq!(calls[0].call_id, first[0].call_id);
    d.ended(d.attempt(r));
    assert_eq!(d.record(r).expect("done").outcome, Outcome::Answered);
    assert_eq!(d.engine.snapshot(d.now).unconfirmed_calls, 1);
    assert!(d.engine.is_idle());
}

#[test]
fn two_requests_of_one_turn_at_once_never_run_an_unkeyed_call_twice() {
    let mut d = shop();
    let (r, s) = (d.arrive(said(1)), d.arrive(said(1)));
    call(&mut d, r, "issue_refund");
    let attempt = d.attempt(s);
    assert_eq!(call_of(&mut d, attempt, "issue_refund"), None);
    assert!(matches!(d.reply(s), Some(Reply::Handoff { cause: HandoffCause::Repeated, .. })));
    // One whose text is out already ends with the controlled error.
    let (r, s) = (d.arrive(said(2)), d.arrive(said(2)));
    let attempt = d.attempt(s);
    d.committed(attempt);
    call(&mut d, r, "issue_refund");
    assert_eq!(call_of(&mut d, attempt, "issue_refund"), None);
    assert!(d.out.iter().any(|o| matches!(o, Output::Break { attempt: a, .. } if *a == attempt)));
    assert_eq!(d.record(s).expect("done").outcome, Outcome::BrokenAfterCommit);
}

#[test]
fn a_client_that_left_before_delivery_has_no_call() {
    let mut d = shop();
    let r = d.arrive(said(1));
    let calls = call(&mut d, r, "issue_refund");
    d.input(Input::ClientGone { request: r, stalled: false });
    assert_eq!(calls_are(&d), [(vec![calls[0].call_id.clone()], CallState::Proposed)]);
    let again = d.arrive(said(1));
    assert_eq!(d.dialled(again).len(), 1, "nobody has the call: a model is asked");
}

#[test]
fn a_client_that_left_after_the_commit_may_have_the_call() {
    let mut d = shop();
    let r = d.arrive(said(1));
    d.committed(d.attempt(r));
    call(&mut d, r, "issue_refund");
    d.input(Input::ClientGone { request: r, stalled: false });
    assert!(calls_are(&d).is_empty());
    let again = d.arrive(said(1));
    assert!(matches!(d.reply(again), Some(Reply::Handoff { cause: HandoffCause::Repeated, .. })));
}

#[test]
fn a_ledger_that_cannot_be_written_hands_out_no_call_and_then_offers_no_tool() {
    let mut d = shop();
    let r = d.arrive(said(1));
    let calls = call(&mut d, r, "create_ticket");
    d.broke(d.attempt(r), Failure::LedgerUnwritable);
    assert!(
        matches!(d.reply(r), Some(Reply::Handoff { cause: HandoffCause::LedgerUnwritable, .. })),
        "nobody else is asked"
    );
    assert_eq!(calls_are(&d), [(vec![calls[0].call_id.clone()], CallState::Proposed)]);
    assert_eq!(d.engine.snapshot(d.now).targets[0].counters.failed_counted, 0, "no fault of the target's");
    d.input(Input::LedgerWritable { writable: false });
    d.arrive(said(1));
    d.input(Input::LedgerWritable { writable: true });
    d.arrive(said(1));
    d.arrive(facts());
    let withheld = d.out.iter().filter_map(|o| match o {
        Output::Dial { withhold, .. } => Some(*withhold),
        _ => None,
    });
    let right = [Withhold::Nothing, Withhold::Risky, Withhold::Nothing, Withhold::Nothing];
    assert_eq!(withheld.collect::<Vec<_>>(), right);
}

#[test]
fn what_was_written_down_is_known_after_a_restart() {
    let mut d = shop();
    let r = d.arrive(said(2));
    let mut calls = call(&mut d, r, "create_ticket");
    calls[0].state = CallState::Delivered;
    let known = |age_s| Remembered {
        client: "shop".into(),
        route: "r".into(),
        id: "c1".into(),
        age: std::time::Duration::from_secs(age_s),
        version: Some(4),
        turns: vec![(1, 3)],
        calls: vec![RememberedCall { turn: 2, ordinal: 0, call: calls[0].clone() }],
    };
    let gone = Remembered { route: "a route of yesterday".into(), ..known(0) };
    let mut d = shop();
    d.input(Input::Ledger { conversations: vec![known(60), gone] });
    let r = d.arrive(said(2));
    let Some(Reply::FromLedger { calls: replayed }) = d.reply(r) else { panic!("{:?}", d.reply(r)) };
    assert_eq!(replayed, calls);
    let withheld = |d: &mut Drive, facts| {
        d.arrive(facts);
        let last = |o: &Output| match o {
            Output::Dial { withhold, .. } => Some(*withhold),
            _ => None,
        };
        d.out.iter().rev().find_map(last)
    };
    assert_eq!(withheld(&mut d, said(4)), Some(Withhold::Nothing), "turns 1 to 3 are known");
    let mut older = said(5);
    older.conversation.as_mut().unwrap().history_version = Some(3);
    assert_eq!(withheld(&mut d, older), Some(Withhold::SideEffects));
    // Past its time it is not.
    let mut d = shop();
    d.input(Input::Ledger { conversations: vec![known(8 * 86_400)] });
    assert_eq!(withheld(&mut d, said(2)), Some(Withhold::Unkeyed));
}

#[test]
fn a_later_call_of_a_turn_is_known_where_the_first_ones_are_lost() {
    let mut d = shop();
    let mut second = said(1);
    second.conversation.as_mut().unwrap().calls_so_far = 1;
    let r = d.arrive(second.clone());
    call(&mut d, r, "create_ticket");
    d.ended(d.attempt(r));
    let again = d.arrive(second);
    assert!(matches!(d.reply(again), Some(Reply::FromLedger { .. })));
}

#[test]
fn a_hedge_whose_calls_come_second_loses() {
    let mut d = Kit::new()
        .target("a", |t| t.credentials = Some(SecretRef::Env("KA".into())))
        .target("b", |t| t.credentials = Some(SecretRef::Env("KB".into())))
        .route("r", &[&["a", "b"]], |r| r.hedge_after = Some(std::time::Duration::from_millis(100)))
        .change(|p| {
            p.tools.insert(
                "get_order".into(),
                Tool { side_effects: SideEffects::None, key_argument: None, handoff: false },
            );
        })
        .drive();
    let r = d.arrive(Facts { risky_tools: false, ..said(1) });
    let first = d.attempt(r);
    d.connected(first);
    d.pass_ms(100);
    let second = d.attempt(r);
    assert_ne!(first, second);
    assert!(call_of(&mut d, first, "get_order").is_some());
    assert_eq!(call_of(&mut d, second, "get_order"), None);
    assert!(d.out.contains(&Output::Cancel { attempt: second }));
    d.ended(first);
    assert_eq!(d.record(r).expect("done").target.as_deref(), Some("a"));
    assert!(d.engine.is_idle());
}

#[test]
fn a_result_that_comes_as_another_message_of_the_user_is_no_repeat() {
    let mut d = shop();
    let r = d.arrive(said(1));
    let first = call(&mut d, r, "create_ticket");
    d.ended(d.attempt(r));
    let mut next = said(1);
    next.conversation.as_mut().unwrap().results = vec![first[0].call_id.clone()];
    let r = d.arrive(next.clone());
    assert_eq!(d.dialled(r).len(), 1, "it goes on");
    let second = call(&mut d, r, "create_ticket");
    assert_ne!(second[0].operation_key, first[0].operation_key, "another ticket of the same turn");
    d.ended(d.attempt(r));
    let again = d.arrive(next);
    let Some(Reply::FromLedger { calls }) = d.reply(again) else { panic!("{:?}", d.reply(again)) };
    assert_eq!(calls.iter().map(|c| &c.call_id).collect::<Vec<_>>(), [&second[0].call_id]);
}
