//! What the core tells the gateway to leave out, to cap and to race: a ledger that cannot be written, a past that is not known,
//! emergencies, hedges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use llmfo::gateway::ledger::row::{CallRow, Change as Row, ConversationRow};
use llmfo::gateway::ledger::store::{Bounds, Memory, Store};
use llmfo::gateway::ledger::{Ledger, Place};
use serde_json::{Value, json};

use crate::gateway::{Change, Rig};
use crate::gateway_ledger::*;
use crate::http;
use crate::mock::{Mock, Seen, Then, Wire, finish_chunk, good, role_chunk, text_chunk};

/// A store on a disk that can be full.
struct Disk {
    kept: Memory,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn ledger(full: &Arc<AtomicBool>) -> Option<Arc<Ledger>> {
        let store = Disk { kept: Memory::default(), full: Arc::clone(full) };
        Some(Arc::new(Ledger::with(Box::new(store), Place::Memory).unwrap()))
    }
}

impl Store for Disk {
    fn apply(&mut self, changes: &[Row]) -> Result<(), String> {
        if self.full.load(Ordering::SeqCst) { Err("no space left on device".into()) } else { self.kept.apply(changes) }
    }
    fn call(&mut self, call_id: &str) -> Result<Option<CallRow>, String> {
        self.kept.call(call_id)
    }
    fn calls(&mut self, arguments: bool) -> Result<Vec<CallRow>, String> {
        self.kept.calls(arguments)
    }
    fn conversations(&mut self) -> Result<Vec<ConversationRow>, String> {
        self.kept.conversations()
    }
    fn prune(&mut self, before: u64, bounds: &Bounds) -> Result<usize, String> {
        self.kept.prune(before, bounds)
    }
    fn reopen(&mut self) -> Result<(), String> {
        if self.full.load(Ordering::SeqCst) { Err("still full".into()) } else { Ok(()) }
    }
}

fn offered(seen: &Seen) -> Vec<String> {
    let tools = seen.json()["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|t| t["function"]["name"].as_str().unwrap().to_owned()).collect()
}

fn turn<'a>(conversation: &'a str, turn: &'a str) -> [(&'a str, &'a str); 2] {
    [("x-llmfo-conversation", conversation), ("x-llmfo-turn", turn)]
}

#[test]
fn a_call_that_cannot_be_written_down_is_not_handed_out() {
    let full = Arc::new(AtomicBool::new(true));
    let a = Mock::start(calls_tool("create_ticket"));
    let b = Mock::start(calls_tool("create_ticket"));
    let change = Change { ledger: Disk::ledger(&full), ..Change::default() };
    let rig = shop(&[("a", a.address), ("b", b.address)], change);
    for stream in [true, false] {
        full.store(true, Ordering::SeqCst);
        let before = a.asked();
        let id = if stream { "c1" } else { "c2" };
        let response = send(rig.listen, &ask(stream, "x", &[]), &turn(id, "1"));
        assert_eq!((response.status, response.code().as_str()), (503, "handoff"), "{}", response.text());
        let error = &response.json()["error"];
        assert_eq!(error["cause"], "ledger_unwritable");
        assert!(error["message"].as_str().unwrap().contains("ledger cannot be written"), "{error}");
        assert!(!response.text().contains("call_"), "nothing of the call");
        let record = rig.decision(&response);
        assert_eq!((&record["outcome"], &record["handoff"]), (&json!("handoff"), &json!("ledger_unwritable")));
        // From now on the model is not even offered what changes something and may not run twice.
        rig.eventually("the news", || (rig.snapshot()["ledger"]["writable"] == false).then_some(()));
        rig.eventually("tools withheld", || {
            send(rig.listen, &ask(stream, "x", &[]), &turn("c9", "1"));
            (offered(a.seen().last().unwrap()) == ["get_order", "call_human"]).then_some(())
        });
        assert!(a.asked() > before);
        assert!(rig.metrics().contains("llmfo_ledger_writable 0"));
        // It comes back by itself.
        full.store(false, Ordering::SeqCst);
        rig.eventually("the ledger", || (rig.snapshot()["ledger"]["writable"] == true).then_some(()));
        rig.eventually("tools", || {
            send(rig.listen, &ask(stream, "x", &[]), &turn("c8", if stream { "1" } else { "2" }));
            (offered(a.seen().last().unwrap()).len() == 4).then_some(())
        });
        // The turn of before is no repeat: its call never left.
        let response = send(rig.listen, &ask(stream, "x", &[]), &turn(id, "1"));
        assert_eq!(calls(&response).len(), 1);
        assert_ne!(response.header("x-llmfo-outcome"), Some("from_ledger"));
    }
    assert_eq!(b.asked(), 0, "nobody else is asked for what cannot be handed out either");
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "no fault of the target's");
}

#[test]
fn text_that_is_out_ends_with_the_controlled_error_when_its_call_cannot_be_written() {
    let full = Arc::new(AtomicBool::new(true));
    let a = Mock::start(|_, wire| {
        wire.stream_head();
        wire.event(text_chunk("One moment."));
        wire.event(piece(0, Some("call_x"), Some("create_ticket"), "{}"));
        wire.event(finish_chunk("tool_calls"));
        wire.chunk("data: [DONE]\n\n");
        wire.end();
        Then::KeepAlive
    });
    let rig = shop(&[("a", a.address)], Change { ledger: Disk::ledger(&full), ..Change::default() });
    let response = send(rig.listen, &ask(true, "x", &[]), C1);
    assert_eq!((response.status, response.content().as_str(), response.done()), (200, "One moment.", false));
    let last: Value = serde_json::from_str(response.events().last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "ledger_unwritable", "{last}");
    assert_eq!((&last["error"]["retry_safe"], &last["error"]["tool_calls_delivered"]), (&json!(true), &json!(false)));
    assert!(!response.text().contains("create_ticket"));
    rig.wait_idle();
}

#[test]
fn harmless_calls_do_not_wait_for_a_ledger_that_cannot_be_written() {
    let full = Arc::new(AtomicBool::new(true));
    let a = Mock::start(calls_tool("get_order"));
    let rig = shop(&[("a", a.address)], Change { ledger: Disk::ledger(&full), ..Change::default() });
    let first = calls(&send(rig.listen, &ask(true, "x", &[]), C1));
    assert_eq!(first[0].1, "get_order");
    assert_eq!(calls(&send(rig.listen, &ask(true, "x", &[]), C1)), first, "it is remembered all the same");
}

#[test]
fn a_past_that_is_not_known_withholds_what_must_not_run_twice() {
    let a = Mock::start(good("a"));
    let rig = shop(&[("a", a.address)], Change::default());
    let last = || offered(a.seen().last().unwrap());
    let all = ["get_order", "create_ticket", "issue_refund", "call_human"];
    let without_unkeyed = ["get_order", "create_ticket", "call_human"];
    let mut body = ask(true, "x", &[]);
    body["tool_choice"] = json!({"type": "function", "function": {"name": "issue_refund"}});
    assert_eq!(send(rig.listen, &body, &turn("c1", "3")).status, 200);
    assert_eq!(last(), without_unkeyed, "turns 1 and 2 are not known here");
    assert_eq!(a.seen().last().unwrap().json()["tool_choice"], Value::Null, "a choice of what is not offered goes too");
    send(rig.listen, &body, &turn("c1", "4"));
    assert_eq!(last(), all, "turn 3 is known");
    assert_eq!(a.seen().last().unwrap().json()["tool_choice"], body["tool_choice"]);
    let repeats: Vec<(&str, &str)> = turn("c2", "1").into_iter().chain([("x-llmfo-retry", "1")]).collect();
    send(rig.listen, &ask(false, "x", &[]), &repeats);
    assert_eq!(last(), without_unkeyed, "a repeat of what another gateway may have answered");
    // An older history than one that was seen: nothing that changes anything.
    let at = |turn_n: &'static str, version: &'static str| {
        turn("c3", turn_n).into_iter().chain([("x-llmfo-history-version", version)]).collect::<Vec<_>>()
    };
    send(rig.listen, &ask(false, "x", &[]), &at("1", "7"));
    assert_eq!(last(), all);
    send(rig.listen, &ask(false, "x", &[]), &at("2", "6"));
    assert_eq!(last(), ["get_order"]);
    // Nothing else of the body is changed.
    let sent = a.seen().last().unwrap().json();
    assert_eq!(sent["messages"], ask(false, "x", &[])["messages"]);
    // The policy may say that it is allowed.
    let change = Change::default();
    let text = shop_policy(&[("a", a.address)], &change).replace("breaker:", "on_ledger_loss: allow\nbreaker:");
    let rig = Rig::of(&text, change);
    send(rig.listen, &ask(false, "x", &[]), &turn("c1", "3"));
    assert_eq!(last(), all);
}

#[test]
fn a_model_that_calls_what_was_withheld_is_passed_over() {
    let a = Mock::start(insists_on("issue_refund"));
    let b = Mock::start(good("b"));
    let rig = shop(&[("a", a.address), ("b", b.address)], Change::default());
    for stream in [true, false] {
        let response = send(rig.listen, &ask(stream, "x", &[]), &turn(if stream { "c1" } else { "c2" }, "3"));
        assert_eq!(response.header("x-llmfo-target"), Some("b"), "{}", response.text());
        assert!(!response.text().contains("issue_refund"));
    }
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "its breaker is for other things");
}

#[test]
fn a_cap_is_set_while_somebody_waits() {
    let a = Mock::start(|seen, wire| {
        if seen.nth == 0 {
            // Until the others wait.
            wire.sleep(300);
        }
        good("a")(seen, wire)
    });
    let change = Change {
        target: "    capacity: { slots: 1, reserve_slots: 0 }\n",
        route: "    queue: { max_depth: 8, max_wait_ms: 3000, reserved_for_open_conversations: 0.0 }\n    on_capacity_exhausted: { max_output_tokens: 60 }\n",
        ..Change::default()
    };
    let rig = Rig::with(&[("a", a.address)], change);
    let (to, limits) = (rig.listen, [None, Some(("max_tokens", 500)), Some(("max_completion_tokens", 20)), None]);
    let mut threads = Vec::new();
    for (n, limit) in limits.into_iter().enumerate() {
        threads.push(std::thread::spawn(move || {
            let mut body =
                json!({"model": "chat", "stream": true, "messages": [{"role": "user", "content": format!("m{n}")}]});
            if let Some((name, tokens)) = limit {
                body[name] = tokens.into();
            }
            assert_eq!(http::chat(to, &body.to_string(), &[]).status, 200);
        }));
        if n == 0 {
            a.wait_seen(1);
        } else {
            rig.eventually("the queue", || (rig.snapshot()["requests"]["queued"]["chat"] == n).then_some(()));
        }
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    let sent: Vec<Value> = a.seen().iter().map(Seen::json).collect();
    let got: Vec<[Option<u64>; 2]> =
        sent.iter().map(|b| [b["max_tokens"].as_u64(), b["max_completion_tokens"].as_u64()]).collect();
    assert_eq!(got[0], [None, None], "nobody waited");
    assert_eq!(got[1], [Some(60), None], "lowered");
    assert_eq!(got[2], [None, Some(20)], "never raised");
    assert_eq!(got[3], [None, None], "nobody waits any more");
}

/// A stream that begins after `ms`, and notices its client leaving.
fn slow(name: &'static str, ms: u64) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |_, wire| {
        wire.stream_head();
        wire.event(role_chunk());
        wire.sleep(ms);
        wire.event(text_chunk(name));
        wire.event(finish_chunk("stop"));
        wire.chunk("data: [DONE]\n\n");
        wire.end();
        wire.wait_gone();
        Then::Fin
    }
}

const HEDGE: &str = "    hedge: { after_ms: 100 }\n";

#[test]
fn a_hedge_runs_beside_a_slow_one_and_one_of_them_is_delivered() {
    let a = Mock::start(|_, wire| {
        wire.stream_head();
        wire.wait_gone();
        Then::Fin
    });
    let b = Mock::start(good("b"));
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], Change { route: HEDGE, ..Change::default() });
    for stream in [true, false] {
        let began = Instant::now();
        let response = if stream { rig.stream() } else { rig.plain() };
        let took = began.elapsed();
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-llmfo-target"), Some("b"));
        assert_eq!(response.header("x-llmfo-attempts"), Some("2"));
        assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(450), "{took:?}");
        let text = response.text();
        assert!(text.contains("one") && !text.contains("error"), "{text}");
        let record = rig.decision(&response);
        assert_eq!(record["attempts"][0]["reason"], "hedge_lost", "{record}");
        assert!(record["attempts"][1]["why"].as_str().unwrap().starts_with("hedge"));
        a.wait_cancelled(if stream { 1 } else { 2 });
    }
    let counters = &rig.target("a")["counters"];
    assert_eq!((&counters["failed_counted"], &counters["failed_other"]), (&json!(0), &json!(0)), "neutral");
    rig.wait_idle();
}

#[test]
fn the_first_may_still_win_and_then_the_hedge_is_closed() {
    let a = Mock::start(slow("first", 250));
    let b = Mock::start(|_, wire| {
        wire.stream_head();
        wire.wait_gone();
        Then::Fin
    });
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], Change { route: HEDGE, ..Change::default() });
    let response = rig.stream();
    assert_eq!((response.header("x-llmfo-target"), response.content().as_str()), (Some("a"), "first"));
    b.wait_cancelled(1);
    assert_eq!((a.asked(), b.asked()), (1, 1));
    rig.wait_idle();
}

#[test]
fn a_hedge_that_fails_leaves_the_first_one_alone() {
    let a = Mock::start(slow("first", 300));
    let b = Mock::start(crate::mock::status("503 Service Unavailable", "{}"));
    let rig = Rig::with(&[("a", a.address), ("b", b.address)], Change { route: HEDGE, ..Change::default() });
    let response = rig.stream();
    assert_eq!((response.header("x-llmfo-target"), response.content().as_str()), (Some("a"), "first"));
    rig.wait_idle();
}

#[test]
fn a_request_with_a_tool_that_must_not_run_twice_is_never_hedged() {
    let a = Mock::start(slow("first", 250));
    let b = Mock::start(good("b"));
    let rig = shop(&[("a", a.address), ("b", b.address)], Change { route: HEDGE, ..Change::default() });
    let response = send(rig.listen, &ask(true, "x", &[]), C1);
    assert_eq!(response.content(), "first");
    let mut harmless = ask(true, "x", &[]);
    harmless["tools"] = json!([tool("get_order")]);
    assert_eq!(b.asked(), 0);
    let response = send(rig.listen, &harmless, &turn("c2", "1"));
    assert_eq!(response.header("x-llmfo-target"), Some("b"), "{}", rig.decision(&response));
    rig.wait_idle();
}

#[test]
fn two_hedged_answers_with_calls_deliver_one_set() {
    let answer = |name: &'static str| {
        move |_: &Seen, wire: &mut Wire| {
            wire.sleep(if name == "a" { 150 } else { 50 });
            wire.answer(
                "200 OK",
                "application/json",
                whole_call(&[(name, "get_order", &format!("{{\"by\":\"{name}\"}}"))]),
            );
            Then::KeepAlive
        }
    };
    let (a, b) = (Mock::start(answer("a")), Mock::start(answer("b")));
    let rig = shop(&[("a", a.address), ("b", b.address)], Change { route: HEDGE, ..Change::default() });
    let mut body = ask(false, "x", &[]);
    body["tools"] = json!([tool("get_order")]);
    for n in 0..5 {
        let id = format!("c{n}");
        let first = calls(&send(rig.listen, &body, &turn(&id, "1")));
        assert_eq!(
            calls(&send(rig.listen, &body, &turn(&id, "1"))),
            first,
            "what was written down is what was delivered"
        );
    }
    rig.wait_idle();
}

#[test]
fn after_the_expiry_no_tool_is_offered_at_all() {
    let a = Mock::start(good("a"));
    let change = Change::default();
    let text = shop_policy(&[("a", a.address)], &change)
        .replace("expires: 2100-01-01", "on_expired: { intents: [order_status] }\nexpires: 2020-01-01");
    let rig = Rig::of(&text, change);
    let mut body = ask(false, "x", &[]);
    body["tool_choice"] = json!("required");
    for headers in [&[][..], C1] {
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain([("x-llmfo-intent", "order_status")]).collect();
        assert_eq!(send(rig.listen, &body, &headers).status, 200);
        let sent = a.seen().last().unwrap().json();
        assert_eq!((&sent["tools"], &sent["tool_choice"]), (&Value::Null, &Value::Null));
    }
}

/// A store whose disk takes its time: a write of a call waits until the test lets it go.
#[derive(Clone, Default)]
struct Slow(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Default)]
struct Gate {
    kept: Memory,
    entered: bool,
    open: bool,
}

impl Slow {
    /// Waits until a call is being written.
    fn entered(&self) {
        let (state, changed) = &*self.0;
        let (_state, timeout) =
            changed.wait_timeout_while(state.lock().unwrap(), http::LIMIT, |gate| !gate.entered).unwrap();
        assert!(!timeout.timed_out());
    }

    fn let_go(&self) {
        self.0.0.lock().unwrap().open = true;
        self.0.1.notify_all();
    }
}

impl Store for Slow {
    fn apply(&mut self, changes: &[Row]) -> Result<(), String> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        if changes.iter().any(|c| matches!(c, Row::Call(_))) {
            state.entered = true;
            changed.notify_all();
            state = changed.wait_while(state, |gate| !gate.open).unwrap();
        }
        state.kept.apply(changes)
    }
    fn call(&mut self, call_id: &str) -> Result<Option<CallRow>, String> {
        self.0.0.lock().unwrap().kept.call(call_id)
    }
    fn calls(&mut self, arguments: bool) -> Result<Vec<CallRow>, String> {
        self.0.0.lock().unwrap().kept.calls(arguments)
    }
    fn conversations(&mut self) -> Result<Vec<ConversationRow>, String> {
        self.0.0.lock().unwrap().kept.conversations()
    }
    fn prune(&mut self, before: u64, bounds: &Bounds) -> Result<usize, String> {
        self.0.0.lock().unwrap().kept.prune(before, bounds)
    }
    fn reopen(&mut self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn no_byte_of_a_call_leaves_before_it_is_on_disk_and_others_do_not_wait() {
    let a = Mock::start(|seen, wire| {
        if seen.json()["stream"] != true {
            return calls_tool("create_ticket")(seen, wire);
        }
        wire.stream_head();
        wire.event(text_chunk("One moment."));
        wire.event(piece(0, Some("call_x"), Some("create_ticket"), "{}"));
        wire.event(finish_chunk("tool_calls"));
        wire.chunk("data: [DONE]\n\n");
        wire.end();
        Then::KeepAlive
    });
    for stream in [true, false] {
        let disk = Slow::default();
        let ledger = Some(Arc::new(Ledger::with(Box::new(disk.clone()), Place::Memory).unwrap()));
        let rig = shop(&[("a", a.address)], Change { ledger, ..Change::default() });
        let mut reading = http::send(rig.listen, &http::chat_bytes(&ask(stream, "x", &[]).to_string(), C1));
        disk.entered();
        if stream {
            // Text that came before is there already.
            assert!(!reading.until("One moment.").contains("tool_calls"));
        }
        // Nobody else waits for the disk: neither without calls nor at the admin listener.
        let mut other = ask(true, "x", &[]);
        other["tools"] = json!([]);
        assert_eq!(send(rig.listen, &other, &[]).status, 200);
        assert_eq!(http::get(rig.admin, "/snapshot").status, 200);
        let waits = std::thread::spawn(move || {
            let response = reading.whole();
            (Instant::now(), response)
        });
        // Longer than anything on loopback takes.
        std::thread::sleep(Duration::from_millis(150));
        let opened = Instant::now();
        disk.let_go();
        let (at, response) = waits.join().unwrap();
        assert!(at >= opened, "it did not wait");
        assert_eq!(calls(&response).len(), 1);
    }
}

#[test]
fn a_client_that_leaves_while_its_call_is_written_has_none_and_asks_a_model_again() {
    let a = Mock::start(calls_tool("issue_refund"));
    let disk = Slow::default();
    let ledger = Some(Arc::new(Ledger::with(Box::new(disk.clone()), Place::Memory).unwrap()));
    let rig = shop(&[("a", a.address)], Change { ledger, ..Change::default() });
    let reading = http::send(rig.listen, &http::chat_bytes(&ask(true, "x", &[]).to_string(), C1));
    disk.entered();
    reading.leave();
    rig.eventually("the leaving", || (rig.snapshot()["requests"]["by_outcome"]["client_gone"] == 1).then_some(()));
    disk.let_go();
    rig.eventually("the state", || {
        let list = http::get(rig.admin, "/ledger?state=proposed").json();
        (list["calls"].as_array().unwrap().len() == 1).then_some(())
    });
    assert_eq!(calls(&send(rig.listen, &ask(true, "x", &[]), C1))[0].1, "issue_refund");
    assert_eq!(a.asked(), 2);
    let list = http::get(rig.admin, "/ledger?state=unconfirmed").json();
    assert_eq!(list["calls"].as_array().unwrap().len(), 1, "{list}");
}
