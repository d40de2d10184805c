//! A journal as it is written, and what is told of it.

use serde_json::json;

use super::*;

fn at(ms: u64, event: Event) -> Stamped {
    Stamped { v: 1, seq: ms, at_unix_ms: ms, mono_ns: 0, event }
}

fn decision(ms: u64, request: &str, conversation: Option<&str>, turn: Option<u64>) -> Stamped {
    let record = json!({
        "format": 1, "route": "chat", "stream": true, "intent": null, "outcome": "answered", "target": "b", "total_ms": 100.0,
        "attempts": [{ "target": "b", "why": "instead of a: open", "class": "success", "reason": "ok", "remaining_ms_before": 8000,
                       "dialled_ms": 1.0, "connected_ms": 2.0, "first_token_ms": 3.0, "committed_ms": 4.0, "ended_ms": 100.0 }],
        "skipped": [{ "target": "a", "reason": "open", "detail": "until 12 s" }]
    });
    let conversation = conversation.map(str::to_owned);
    at(
        ms,
        Event::Decision {
            request: request.into(),
            conversation,
            turn,
            client: None,
            record: crate::event::Record::of(&record),
        },
    )
}

fn changed(ms: u64, target: &str, state: &str) -> Stamped {
    let (target, state) = (target.into(), state.into());
    at(ms, Event::Availability { target, state, reason: "why".into(), for_ms: Some(5_000) })
}

fn story(id: &str, lines: &[Stamped]) -> Story {
    let mut teller = Teller::new(id);
    lines.iter().for_each(|line| teller.hear(line));
    teller.end()
}

#[test]
fn what_held_at_the_arrival_and_what_changed_meanwhile_is_told_and_nothing_of_others() {
    let started = Event::Started { policy: "p1".into(), policy_sha256: "aa".into(), seed: 1, pid: 2 };
    let story = story(
        "r-1",
        &[
            at(1_000, started),
            changed(2_000, "a", "cooling"),
            changed(3_000, "a", "probing"),
            changed(3_500, "z", "cooling"),
            // It came at 3,900: this was while it was under way.
            changed(3_950, "b", "cooling"),
            decision(4_000, "r-1", Some("c"), Some(2)),
            changed(5_000, "a", "serving"),
        ],
    );
    assert_eq!(story.requests.len(), 1);
    let told = &story.requests[0];
    assert_eq!((told.arrived_unix_ms, told.outcome.as_str(), told.target.as_deref()), (3_900, "answered", Some("b")));
    assert_eq!(told.policy, Some(("p1".to_owned(), "aa".to_owned())));
    let texts: Vec<(u64, &str)> = told.circumstances.iter().map(|c| (c.at_unix_ms, c.text.as_str())).collect();
    assert_eq!(
        texts,
        [(1_000, "the gateway started"), (3_000, "probing for 5.0 s (why)"), (3_950, "cooling for 5.0 s (why)")]
    );
    assert_eq!((told.attempts[0].why.as_str(), told.skipped[0].reason.as_str()), ("instead of a: open", "open"));
}

fn alert(client: Option<&str>, route: Option<&str>, reason: &str, text: &str) -> Event {
    let [client, route] = [client, route].map(|name| name.map(str::to_owned));
    Event::Alert { target: None, client, route, reason: reason.into(), text: text.into() }
}

/// A request of client `app` on route `chat`: it is told what concerns all, its client and its route, and nothing of others.
#[test]
fn what_concerns_another_client_or_route_alone_is_not_told() {
    let mut own = decision(4_000, "r-1", None, None);
    if let Event::Decision { client, .. } = &mut own.event {
        *client = Some("app".into());
    }
    let mut lines = vec![
        at(1_000, Event::Started { policy: "p".into(), policy_sha256: "aa".into(), seed: 1, pid: 2 }),
        at(1_001, alert(Some("app"), None, CLIENT_ROUTE_UNKNOWN, "its own")),
    ];
    // More of others than are remembered of all of them together push nothing out.
    lines.extend((0..200).map(|n| at(1_100 + n, alert(Some("batch"), None, CLIENT_ROUTE_UNKNOWN, "of batch"))));
    lines.extend([
        at(2_000, alert(None, Some("voice"), "nobody_serves", "of voice")),
        at(3_950, alert(None, Some("chat"), "nobody_serves", "of chat")),
        at(3_960, alert(None, None, CLIENT_ROUTE_UNKNOWN, "the key of client batch is for the route x")),
        at(3_970, alert(None, None, "client_keys_refused", "of all")),
    ]);
    let texts = |last: &Stamped| {
        let story = story("r-1", &[lines.as_slice(), std::slice::from_ref(last)].concat());
        story.requests[0].circumstances.iter().map(|c| c.text.clone()).collect::<Vec<_>>()
    };
    let of_all = ["the gateway started", "nobody_serves: of chat", "client_keys_refused: of all"];
    let with_own = [of_all[0], "client_route_unknown: its own", of_all[1], of_all[2]];
    assert_eq!(texts(&own), with_own);
    // Without keys a request has no client: what is about one is not about it.
    assert_eq!(texts(&decision(4_000, "r-1", None, None)), of_all);
}

/// A bench that ends: the state that follows from it is written before the order's own line.
#[test]
fn an_order_or_an_alert_does_not_hide_the_state_that_a_target_is_in() {
    let order = |state: &str| Event::Order {
        order: "bench".into(),
        state: state.into(),
        target: Some("a".into()),
        fault: None,
        reason: "update".into(),
        for_ms: None,
    };
    let told = |lines: &[Stamped]| {
        let told = story("r-1", lines).requests.remove(0);
        told.circumstances.into_iter().map(|c| (c.at_unix_ms, c.text)).collect::<Vec<_>>()
    };
    let texts = told(&[
        at(1_000, order("given")),
        changed(1_001, "a", "benched"),
        changed(2_000, "a", "probing"),
        at(2_000, order("ended")),
        decision(4_000, "r-1", None, None),
    ]);
    assert_eq!(texts, [(2_000, "probing for 5.0 s (why)".into()), (2_000, "operator: bench ended: update".to_owned())]);
    // What was ordered before a state is in it already.
    let texts = told(&[at(1_000, order("given")), changed(1_001, "a", "benched"), decision(4_000, "r-1", None, None)]);
    assert_eq!(texts, [(1_001, "benched for 5.0 s (why)".to_owned())]);
}

#[test]
fn a_request_a_turn_or_a_conversation_is_meant() {
    let lines = [
        decision(1, "r-1", Some("c-9"), Some(1)),
        decision(2, "r-2", Some("c-9"), Some(12)),
        decision(3, "r-3", Some("c-90"), Some(1)),
        decision(4, "r-4", None, None),
        decision(5, "c-9", None, None),
    ];
    let found = |id: &str| story(id, &lines).requests.into_iter().map(|t| t.request).collect::<Vec<_>>();
    assert_eq!(found("r-2"), ["r-2"]);
    assert_eq!(found("c-9"), ["r-1", "r-2", "c-9"]);
    assert_eq!(found("c-9/1"), ["r-1"]);
    assert_eq!(found("c-9/12"), ["r-2"]);
    assert!(found("c").is_empty() && found("c-9/").is_empty() && found("r").is_empty());
}

#[test]
fn a_request_that_never_ended_is_not_passed_over() {
    let failed = |request: &str| {
        let (target, class, reason) = ("a".into(), "provider".into(), "reset".into());
        let request = Some(request.to_owned());
        Event::AttemptFailed { target, class, reason, probe: false, request, conversation: Some("c".into()) }
    };
    let story = story("c", &[at(1, failed("r-1")), at(2, failed("r-2")), decision(3, "r-1", Some("c"), Some(1))]);
    assert_eq!(story.unfinished.len(), 1);
    assert_eq!(story.unfinished[0].text, "request r-2: attempt failed: reset (provider)");
}

#[test]
fn it_is_bounded() {
    let mut teller = Teller::new("c");
    for n in 0..u64::try_from(REQUESTS_MAX).unwrap() + 5 {
        teller.hear(&changed(n, "a", "cooling"));
        teller.hear(&decision(n, &format!("r-{n}"), Some("c"), Some(n)));
    }
    let story = teller.end();
    assert_eq!((story.requests.len(), story.left_out), (REQUESTS_MAX, 5));
    assert!(story.requests.iter().all(|t| t.circumstances.len() <= CHANGES_MAX));
}
