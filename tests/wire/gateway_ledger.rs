//! The ledger in use: ids and keys, repeated turns, customers kept apart.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};

use llmfo::gateway::ledger::{Ledger, Place};
use llmfo::lab::tickets::Tickets;
use serde_json::{Value, json};

use crate::gateway::{Change, Rig, policy};
use crate::http::{self, Response};
use crate::mock::{Mock, Seen, Then, Wire, finish_chunk, text_chunk};

/// Keyed, unkeyed, idempotent and harmless tools.
pub const TOOLS: [&str; 3] = [
    "  create_ticket: { side_effects: keyed, key_argument: operation_id }\n",
    "  issue_refund: { side_effects: unkeyed }\n",
    "  call_human: { side_effects: idempotent, handoff: true }\n",
];

pub fn shop_policy(targets: &[(&str, SocketAddr)], change: &Change) -> String {
    policy(targets, change)
        .replace("tools:\n  get_order", &format!("tools:\n{}  get_order", TOOLS.concat()))
        .replace("tools: [get_order]", "tools: [get_order, create_ticket, issue_refund, call_human]")
}

pub fn shop(targets: &[(&str, SocketAddr)], change: Change) -> Rig {
    Rig::of(&shop_policy(targets, &change), change)
}

pub fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
}

/// A request that offers all tools. `messages` follow the customer's.
pub fn ask(stream: bool, question: &str, messages: &[Value]) -> Value {
    let mut all = vec![json!({"role": "user", "content": question})];
    all.extend_from_slice(messages);
    json!({
        "model": "chat", "stream": stream, "messages": all,
        "tools": [tool("get_order"), tool("create_ticket"), tool("issue_refund"), tool("call_human")],
    })
}

pub const C1: &[(&str, &str)] = &[("x-llmfo-conversation", "c1"), ("x-llmfo-turn", "1")];

pub fn send(to: SocketAddr, body: &Value, headers: &[(&str, &str)]) -> Response {
    http::chat(to, &body.to_string(), headers)
}

/// Calls of an answer, streamed or not: id, name, arguments.
pub fn calls(response: &Response) -> Vec<(String, String, String)> {
    assert_eq!(response.status, 200, "{}", response.text());
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    if !response.header("content-type").unwrap().contains("event-stream") {
        let answer = response.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        let all = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
        return all
            .iter()
            .map(|c| (text(&c["id"]), text(&c["function"]["name"]), text(&c["function"]["arguments"])))
            .collect();
    }
    assert!(response.done(), "{}", response.text());
    let mut out: Vec<(String, String, String)> = Vec::new();
    for event in response.events().iter().filter(|e| *e != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        for piece in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let n = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            out.resize(out.len().max(n + 1), Default::default());
            if out[n].0.is_empty() {
                out[n].0 = text(&piece["id"]);
            }
            out[n].1.push_str(&text(&piece["function"]["name"]));
            out[n].2.push_str(&text(&piece["function"]["arguments"]));
        }
    }
    out
}

/// A chunk with one piece of call `index`.
pub fn piece(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> String {
    let mut call = json!({"index": index, "function": {"arguments": arguments}});
    if let Some(id) = id {
        call["id"] = id.into();
    }
    if let Some(name) = name {
        call["type"] = "function".into();
        call["function"]["name"] = name.into();
    }
    json!({"id": "c1", "object": "chat.completion.chunk",
           "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}]})
    .to_string()
}

pub fn whole_call(calls: &[(&str, &str, &str)]) -> String {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    json!({"id": "w", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "tool_calls",
           "message": {"role": "assistant", "content": null, "tool_calls": calls}}]})
    .to_string()
}

/// Calls one tool if it is offered, in other words each time; after a result it answers with text.
pub fn calls_tool(name: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, wire| {
        let offered = String::from_utf8_lossy(&seen.body).contains(&format!("\"name\":\"{name}\""));
        if offered { insists_on(name)(seen, wire) } else { crate::mock::good("no")(seen, wire) }
    }
}

/// The same, offered or not.
pub fn insists_on(name: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, wire| {
        let request = seen.json();
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        if messages.last().is_some_and(|m| m["role"] == "tool") || crate::mock::is_probe(seen) {
            return crate::mock::good("done")(seen, wire);
        }
        let arguments = format!("{{\"subject\": \"wording {}\", \"order_id\":\"A1\"}}", seen.nth);
        if request["stream"] == true {
            wire.stream_head();
            wire.event(piece(0, Some("call_x"), Some(name), ""));
            let (a, b) = arguments.split_at(9);
            wire.event(piece(0, None, None, a));
            wire.event(piece(0, None, None, b));
            wire.event(finish_chunk("tool_calls"));
            wire.chunk("data: [DONE]\n\n");
            wire.end();
        } else {
            wire.answer("200 OK", "application/json", whole_call(&[("call_x", name, &arguments)]));
        }
        Then::KeepAlive
    }
}

/// The lab's ticket system, run as the application runs a call.
pub struct Shop {
    at: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Shop {
    pub fn open() -> Shop {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let at = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, Tickets::default().router()).await });
        Shop { at, _runtime: runtime }
    }

    pub fn run(&self, (id, name, arguments): &(String, String, String)) {
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        let body =
            json!({"conversation": "c1", "turn": 1, "business_key": "c1/1", "call_id": id, "arguments": arguments});
        let body = body.to_string();
        let head = format!(
            "POST /tools/{name} HTTP/1.1\r\nhost: shop\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(http::send(self.at, head.as_bytes()).whole().status, 200);
    }

    pub fn tickets(&self) -> usize {
        http::get(self.at, "/tickets").json()["effects"].as_array().unwrap().len()
    }
}

#[test]
fn a_repeated_turn_gets_the_same_call_and_there_is_one_ticket() {
    let a = Mock::start(calls_tool("create_ticket"));
    let rig = shop(&[("a", a.address)], Change::default());
    let tickets = Shop::open();
    let first = send(rig.listen, &ask(true, "It is broken.", &[]), C1);
    let wanted = calls(&first);
    assert!(wanted[0].0.starts_with("call_") && wanted[0].0.len() == 29, "{wanted:?}");
    let arguments: Value = serde_json::from_str(&wanted[0].2).unwrap();
    assert!(arguments["operation_id"].as_str().unwrap().starts_with("op_"), "{arguments}");
    assert!(wanted[0].2.ends_with(",\"subject\": \"wording 0\", \"order_id\":\"A1\"}"), "the rest as it was written");
    tickets.run(&wanted[0]);
    // Streamed and not, with other parameters, saying so and not: the same call, and nobody is asked.
    let mut hot = ask(true, "It is broken.", &[]);
    hot["temperature"] = 2.into();
    hot["stream_options"] = json!({"include_usage": true});
    let again: Vec<(&str, &str)> = C1.iter().copied().chain([("x-llmfo-retry", "1")]).collect();
    for (body, headers) in [
        (ask(true, "It is broken.", &[]), C1),
        (ask(false, "It is broken.", &[]), C1),
        (ask(true, "It is broken. Hello?", &[]), again.as_slice()),
        (hot, C1),
    ] {
        let response = send(rig.listen, &body, headers);
        assert_eq!(calls(&response), wanted, "{}", response.text());
        assert_eq!(response.header("x-llmfo-outcome"), Some("from_ledger"));
        assert_eq!(response.header("x-llmfo-attempts"), Some("0"));
        assert_eq!(rig.decision(&response)["outcome"], "from_ledger");
        let usage = body["stream_options"]["include_usage"] == true;
        assert_eq!(response.text().contains("\"usage\""), usage || body["stream"] == false);
        tickets.run(&calls(&response)[0]);
    }
    assert_eq!(tickets.tickets(), 1);
    assert_eq!(a.asked(), 1);
    // The conversation goes on with the result: no repeat.
    let (id, name, arguments) = &wanted[0];
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let result = [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "content": "{}"}),
    ];
    let listed = |state: &str| {
        let list = http::get(rig.admin, &format!("/ledger?state={state}")).json();
        list["calls"].as_array().unwrap().len()
    };
    assert_eq!((listed("unconfirmed"), listed("confirmed")), (1, 0));
    let on = send(rig.listen, &ask(true, "It is broken.", &result), C1);
    assert_eq!(on.content(), "done one two");
    assert_eq!((listed("unconfirmed"), listed("confirmed"), listed("all")), (0, 1, 1));
    assert_eq!(rig.snapshot()["ledger"]["unconfirmed"], 0);
}

#[test]
fn only_id_and_key_are_changed_in_a_stream() {
    let events = [
        r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"x":1.50}"#.to_owned(),
        text_chunk("Let me see."),
        r#"{ "id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0, "id":"toolu_1","type":"function","function":{"name":"create_ticket","arguments":""}}]},"finish_reason":null}]}"#.to_owned(),
        piece(1, Some("toolu_2"), Some("get_order"), "{\"order_id\""),
        piece(0, None, None, "{\"sub"),
        piece(0, None, None, "ject\":\"\u{e9}\"}"),
        piece(1, None, None, ":\"A1\"}"),
        r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"z":{}}"#.to_owned(),
    ];
    let script = events.clone();
    let a = Mock::start(move |_, wire| {
        wire.stream_head();
        for event in &script {
            wire.event(event);
        }
        wire.chunk("data: [DONE]\n\n");
        wire.end();
        Then::KeepAlive
    });
    let rig = shop(&[("a", a.address)], Change::default());
    let response = send(rig.listen, &ask(true, "x", &[]), C1);
    let got = calls(&response);
    let key = serde_json::from_str::<Value>(&got[0].2).unwrap()["operation_id"].as_str().unwrap().to_owned();
    assert_eq!(got[0].2, format!("{{\"operation_id\":\"{key}\",\"subject\":\"\u{e9}\"}}"));
    assert_eq!((got[1].1.as_str(), got[1].2.as_str()), ("get_order", "{\"order_id\":\"A1\"}"));
    assert_ne!(got[0].0, got[1].0);
    let mut right = events;
    right[2] = right[2].replace("toolu_1", &got[0].0);
    right[3] = right[3].replace("toolu_2", &got[1].0);
    // The whole arguments stand in the first piece that has some; the others are empty.
    let whole = Value::from(got[0].2.as_str()).to_string();
    right[2] = right[2].replace("\"arguments\":\"\"", &format!("\"arguments\":{whole}"));
    right[4] = piece(0, None, None, "");
    right[5] = piece(0, None, None, "");
    let text: String = right.iter().map(|e| format!("data: {e}\n\n")).collect();
    assert_eq!(response.text(), text + "data: [DONE]\n\n");
}

#[test]
fn only_id_and_key_are_changed_in_a_whole_answer() {
    let body = r#" {"id":"w", "choices":[{"index":0,"message":{"role":"assistant","content":"ok","tool_calls":[
        {"id":"toolu_1","type":"function","function":{"name":"create_ticket","arguments":"{ \"operation_id\" : \"mine\",\"n\":1.0}"}},
        {"id":"toolu_2","type":"function","function":{"name":"get_order","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"x":1e2} "#;
    let a = Mock::start(move |_, wire| {
        wire.answer("200 OK", "application/json", body);
        Then::KeepAlive
    });
    let rig = shop(&[("a", a.address)], Change::default());
    let response = send(rig.listen, &ask(false, "x", &[]), C1);
    let got = calls(&response);
    let key = serde_json::from_str::<Value>(&got[0].2).unwrap()["operation_id"].as_str().unwrap().to_owned();
    assert!(key.starts_with("op_"), "a key of the model's own is overwritten: {key}");
    let right = body.replace("toolu_1", &got[0].0).replace("toolu_2", &got[1].0).replace("mine", &key);
    assert_eq!(response.text(), right);
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_stream_anomalies_total{target=\"a\",kind=\"key_overwritten\"} 1"), "{metrics}");
}

#[test]
fn two_customers_with_the_same_first_message_never_share_a_call() {
    let a = Mock::start(calls_tool("create_ticket"));
    let rig = shop(&[("a", a.address)], Change::default());
    let with =
        |headers: &[(&str, &str)]| calls(&send(rig.listen, &ask(false, "It is broken.", &[]), headers)).remove(0);
    let turn = ("x-llmfo-turn", "1");
    let all = [
        with(&[("x-llmfo-conversation", "c1"), turn]),
        with(&[("x-llmfo-conversation", "c2"), turn]),
        with(&[("x-llmfo-conversation", "c1"), ("x-llmfo-turn", "2")]),
        with(&[("x-llmfo-conversation", "c1"), turn, ("authorization", "Bearer shop")]),
        with(&[("x-llmfo-conversation", "c1"), turn, ("authorization", "Bearer bank")]),
    ];
    assert_eq!(a.asked(), 5);
    let ids: std::collections::BTreeSet<&String> = all.iter().map(|(id, ..)| id).collect();
    let keys: std::collections::BTreeSet<String> =
        all.iter().map(|(_, _, a)| serde_json::from_str::<Value>(a).unwrap()["operation_id"].to_string()).collect();
    assert_eq!((ids.len(), keys.len()), (5, 5), "{all:?}");
    // A client's key is nowhere in what is kept.
    let list = http::get(rig.admin, "/ledger?state=all&arguments=1").text();
    assert!(!list.contains("shop") && !list.contains("bank") && list.contains("key-"), "{list}");
}

#[test]
fn an_unkeyed_call_of_a_repeated_turn_goes_to_a_human() {
    let a = Mock::start(calls_tool("issue_refund"));
    let rig = shop(&[("a", a.address)], Change::default());
    assert_eq!(calls(&send(rig.listen, &ask(true, "Money back.", &[]), C1))[0].1, "issue_refund");
    for stream in [true, false] {
        let again = send(rig.listen, &ask(stream, "Money back.", &[]), C1);
        assert_eq!((again.status, again.code().as_str()), (503, "handoff"), "{}", again.text());
        assert_eq!(again.json()["error"]["cause"], "repeated");
        assert_eq!(again.header("x-should-retry"), Some("false"));
    }
    assert_eq!(a.asked(), 1);
}

#[test]
fn two_requests_of_one_turn_at_once_deliver_one_call() {
    for name in ["create_ticket", "issue_refund"] {
        let both = Arc::new(Barrier::new(2));
        let a = Mock::start(move |seen, wire| {
            both.wait();
            calls_tool(name)(seen, wire)
        });
        let rig = shop(&[("a", a.address)], Change::default());
        let to = rig.listen;
        let other = std::thread::spawn(move || send(to, &ask(true, "x", &[]), C1));
        let one = send(rig.listen, &ask(false, "x", &[]), C1);
        let two = other.join().unwrap();
        assert_eq!(a.asked(), 2, "both were asked");
        if name == "create_ticket" {
            assert_eq!(calls(&one), calls(&two), "one call for both");
        } else {
            let statuses = (one.status.min(two.status), one.status.max(two.status));
            assert_eq!(statuses, (200, 503), "one call, and one handoff: {} {}", one.text(), two.text());
        }
        rig.wait_idle();
    }
}

#[test]
fn without_a_conversation_calls_go_out_as_they_came_and_people_are_told() {
    let a = Mock::start(calls_tool("create_ticket"));
    let rig = shop(&[("a", a.address)], Change::default());
    for _ in 0..2 {
        let response = send(rig.listen, &ask(true, "x", &[]), &[]);
        let got = calls(&response);
        assert_eq!(got[0].0, "call_x");
        assert!(!got[0].2.contains("operation_id"));
    }
    assert_eq!(a.asked(), 2);
    rig.wait_idle();
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_unledgered_tool_calls_total{route=\"chat\"} 2"), "{metrics}");
    let list = http::get(rig.admin, "/ledger?state=all").json();
    assert_eq!(list["calls"], json!([]));
    let mut events = http::send(rig.admin, b"GET /events?since=0 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let seen = events.until("no_conversation");
    assert!(seen.contains("x-llmfo-conversation"));
}

#[test]
fn what_no_ledger_can_keep_is_refused_in_a_conversation() {
    let a = Mock::start(crate::mock::good("a"));
    let rig = shop(&[("a", a.address)], Change::default());
    let mut two = ask(false, "x", &[]);
    two["n"] = 2.into();
    let old = json!({"model": "chat", "messages": [{"role": "user", "content": "x"}],
                     "functions": [{"name": "create_ticket"}]});
    for (body, param) in [(&two, "n"), (&old, "functions")] {
        let refused = send(rig.listen, body, C1);
        assert_eq!((refused.status, refused.code().as_str()), (400, "not_in_a_conversation"), "{}", refused.text());
        assert_eq!(refused.json()["error"]["param"], param);
        assert_eq!(send(rig.listen, body, &[]).status, 200, "without a conversation it is only observed");
    }
    two["tools"] = json!([tool("get_order")]);
    assert_eq!(send(rig.listen, &two, C1).status, 200, "harmless tools");
}

#[test]
fn a_call_that_no_id_or_key_can_be_put_into_is_the_targets_fault() {
    let bodies = [
        whole_call(&[("x", "create_ticket", "[1]")]),
        json!({"choices": [{"message": {"function_call": {"name": "create_ticket", "arguments": "{}"}},
               "finish_reason": "function_call"}]})
        .to_string(),
    ];
    for body in bodies {
        let a = Mock::start(move |_, wire| {
            wire.answer("200 OK", "application/json", &body);
            Then::KeepAlive
        });
        let b = Mock::start(calls_tool("create_ticket"));
        let rig = shop(&[("a", a.address), ("b", b.address)], Change::default());
        let response = send(rig.listen, &ask(false, "x", &[]), C1);
        assert_eq!(calls(&response)[0].1, "create_ticket");
        assert_eq!(response.header("x-llmfo-target"), Some("b"));
        assert_eq!(rig.decision(&response)["attempts"][0]["reason"], "malformed");
    }
}

#[test]
fn a_restart_forgets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::File(dir.path().join("deep/ledger.redb"));
    let a = Mock::start(calls_tool("create_ticket"));
    let open = || Change { ledger: Some(Arc::new(Ledger::start(&place).unwrap())), ..Change::default() };
    let mut rig = shop(&[("a", a.address)], open());
    let wanted = calls(&send(rig.listen, &ask(true, "x", &[]), C1));
    let text = |turn: &'static str| [("x-llmfo-conversation", "c1"), ("x-llmfo-turn", turn)];
    rig.stop(std::time::Duration::from_secs(5));
    let mut rig = shop(&[("a", a.address)], open());
    assert_eq!(calls(&send(rig.listen, &ask(true, "x", &[]), C1)), wanted);
    assert_eq!(a.asked(), 1);
    // The conversation's past is known too: an unkeyed tool is still offered in its next turn.
    send(rig.listen, &ask(false, "y", &[]), &text("2"));
    let offered = a.seen().last().unwrap().json()["tools"].as_array().unwrap().len();
    assert_eq!(offered, 4);
    rig.stop(std::time::Duration::from_secs(5));
    use std::os::unix::fs::PermissionsExt;
    let Place::File(path) = &place else { panic!() };
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "its owner's alone");
}

#[test]
fn another_gateway_gives_the_same_call_the_same_key() {
    let a = Mock::start(calls_tool("create_ticket"));
    let (one, two) = (shop(&[("a", a.address)], Change::default()), shop(&[("a", a.address)], Change::default()));
    let tickets = Shop::open();
    let first = calls(&send(one.listen, &ask(true, "x", &[]), C1));
    let repeats: Vec<(&str, &str)> = C1.iter().copied().chain([("x-llmfo-retry", "1")]).collect();
    let second = calls(&send(two.listen, &ask(true, "x", &[]), &repeats));
    assert_eq!(a.asked(), 2, "a ledger of its own: it must ask");
    assert_eq!(first[0].0, second[0].0);
    assert_ne!(first[0].2, second[0].2, "other words");
    tickets.run(&first[0]);
    tickets.run(&second[0]);
    assert_eq!(tickets.tickets(), 1);
}
