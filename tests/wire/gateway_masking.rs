//! `pii: masked`: what the provider gets, what the client gets back, and that nothing is left anywhere else.

use serde_json::{Value, json};

use crate::gateway::{Change, Rig, policy};
use crate::http::{Response, chat, get, send};
use crate::mock::{self, Mock, Seen, Then, Wire, finish_chunk, role_chunk, text_chunk};

const TEXT: &str = "I am Anna Canary, anna.canary@example.com, +77011234567, card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00.";
const MASKED: &str = "I am [NAME_1], [EMAIL_1], [PHONE_1], card [CARD_1], IBAN [IBAN_1].";
const VALUES: [&str; 6] =
    ["Anna Canary", "anna.canary", "7011234567", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "Canary"];
const NAMES: (&str, &str) = ("x-llmfo-names", "Anna%20Canary");

/// A policy whose tiers say this about personal data, one target each.
fn tiers(targets: &[(&str, std::net::SocketAddr, &str)], change: &Change) -> String {
    let all: Vec<_> = targets.iter().map(|(name, address, _)| (*name, *address)).collect();
    let mut pools = String::new();
    let mut attempts = String::new();
    for (name, _, pii) in targets {
        pools.push_str(&format!("  of-{name}: {{ targets: [{name}], select: priority }}\n"));
        attempts.push_str(&format!("      - {{ pool: of-{name}, first_token_timeout_ms: 500, pii: {pii} }}\n"));
    }
    policy(&all, change)
        .replace("data: none", "data: personal")
        .replace("      - { pool: all, first_token_timeout_ms: 500, pii: allowed }\n", &attempts)
        .replace("pools:\n", &format!("pools:\n{pools}"))
}

fn rig(targets: &[(&str, std::net::SocketAddr, &str)]) -> Rig {
    Rig::of(&tiers(targets, &Change::default()), Change::default())
}

fn asked(stream: bool, text: &str) -> String {
    json!({"model": "chat", "stream": stream, "messages": [{"role": "user", "content": text}]}).to_string()
}

/// Says back what it was told, in pieces of this many bytes.
fn echo(size: usize) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, wire| {
        let told = seen.json()["messages"][0]["content"].as_str().unwrap_or("ready").to_owned();
        if seen.json()["stream"] == true {
            wire.stream_head();
            wire.event(role_chunk());
            for piece in told.as_bytes().chunks(size) {
                wire.event(text_chunk(std::str::from_utf8(piece).unwrap()));
            }
            wire.event(finish_chunk("stop"));
            wire.chunk("data: [DONE]\n\n");
            wire.end();
        } else {
            wire.answer("200 OK", "application/json", mock::whole(&told));
        }
        Then::KeepAlive
    }
}

fn told(mock: &Mock) -> String {
    mock.seen().iter().filter(|s| !mock::is_probe(s)).map(|s| String::from_utf8_lossy(&s.body).into_owned()).collect()
}

fn holds_none(text: &str) {
    for value in VALUES {
        assert!(!text.contains(value), "{value} in {text}");
    }
}

fn content(got: &Response) -> String {
    got.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_provider_gets_placeholders_and_the_client_its_own_values() {
    let a = Mock::start(echo(3));
    let rig = rig(&[("a", a.address, "masked")]);
    let got = chat(rig.listen, &asked(false, TEXT), &[NAMES]);
    assert_eq!((got.status, content(&got).as_str()), (200, TEXT), "{}", got.text());
    assert_eq!(a.seen()[0].json()["messages"][0]["content"], MASKED);
    for size in [1, 3, 7, 64] {
        a.play(echo(size));
        let got = chat(rig.listen, &asked(true, TEXT), &[NAMES]);
        assert_eq!((got.content().as_str(), got.done()), (TEXT, true), "{size}");
    }
    holds_none(&told(&a));
    assert!(rig.decision(&got)["attempts"][0]["masked"] == true);
    // Names in `metadata`, which never leaves the gateway.
    let body = json!({"model": "chat", "metadata": {"llmfo_names": "Anna Canary", "team": "x"}, "user": "anna.canary@example.com",
        "messages": [{"role": "user", "content": TEXT}]});
    assert_eq!(content(&chat(rig.listen, &body.to_string(), &[])), TEXT);
    let last = a.seen().last().unwrap().json();
    assert_eq!((&last["metadata"], &last["user"]), (&json!({"team": "x"}), &json!("[EMAIL_1]")));
    holds_none(&told(&a));
}

#[test]
fn a_request_without_personal_data_and_a_tier_that_may_have_it_get_it_as_it_is() {
    let a = Mock::start(echo(9));
    let rig_allowed = rig(&[("a", a.address, "allowed")]);
    let got = chat(rig_allowed.listen, &asked(false, TEXT), &[NAMES]);
    assert_eq!(content(&got), TEXT);
    assert_eq!(a.seen()[0].json()["messages"][0]["content"], TEXT);
    assert!(rig_allowed.decision(&got)["attempts"][0]["masked"].is_null());
    let change = Change::default();
    let none = tiers(&[("a", a.address, "masked")], &change).replace("data: personal", "data: none");
    let none = Rig::of(&none, change);
    chat(none.listen, &asked(false, "[EMAIL_1] anna@x.com"), &[("x-llmfo-data", "none")]);
    assert_eq!(a.seen()[1].json()["messages"][0]["content"], "[EMAIL_1] anna@x.com");
    chat(none.listen, &asked(false, "[EMAIL_1] anna@x.com"), &[]);
    assert_eq!(a.seen()[2].json()["messages"][0]["content"], "[EMAIL_1] [EMAIL_B1]");
}

/// The first tier may have it, the stand-in gets it masked; the answer is whole in both.
#[test]
fn a_stand_in_is_sent_masked_text_and_its_failure_leaves_nothing_behind() {
    let a = Mock::start(mock::status("503 Down", ""));
    let b = Mock::start(echo(2));
    let rig = rig(&[("a", a.address, "allowed"), ("b", b.address, "masked")]);
    for stream in [true, false] {
        let got = chat(rig.listen, &asked(stream, TEXT), &[NAMES]);
        assert_eq!(got.header("x-llmfo-target"), Some("b"));
        assert_eq!(if stream { got.content() } else { content(&got) }, TEXT);
    }
    assert!(told(&a).contains("anna.canary"));
    holds_none(&told(&b));
}

#[test]
fn what_cannot_be_masked_goes_to_nobody_who_must_have_it_masked() {
    let a = Mock::start(echo(9));
    let b = Mock::start(echo(9));
    let image = json!({"model": "chat", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "who is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]});
    let both = rig(&[("a", a.address, "masked"), ("b", b.address, "allowed")]);
    let got = chat(both.listen, &image.to_string(), &[]);
    assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{}", got.text());
    let skipped = &both.decision(&got)["skipped"][0];
    assert_eq!((&skipped["target"], &skipped["reason"]), (&json!("a"), &json!("pii_unmaskable")), "{skipped}");
    let one = rig(&[("a", a.address, "masked")]);
    let got = chat(one.listen, &image.to_string(), &[]);
    assert_eq!((got.status, got.code().as_str()), (503, "nobody_may_answer"), "{}", got.text());
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("pii_unmaskable") && message.contains("a part of the request is no text"), "{message}");
    assert_eq!(a.asked(), 0);
    // A large one that holds too many values.
    let many: String = (0..60_000).map(|n| format!("a{n}@x.com ")).collect();
    let got = chat(one.listen, &asked(false, &many), &[]);
    assert_eq!((got.status, got.code().as_str(), a.asked()), (503, "nobody_may_answer", 0), "{}", got.text());
    // Names that cannot be read are refused, not passed over.
    let got = chat(one.listen, &asked(false, TEXT), &[("x-llmfo-names", "A")]);
    assert_eq!((got.status, got.code().as_str(), a.asked()), (400, "invalid_label", 0));
}

/// A large body is masked beside the others, and comes back as well.
#[test]
fn a_large_request_is_masked_too() {
    let a = Mock::start(echo(50_000));
    let rig = rig(&[("a", a.address, "masked")]);
    let text = format!("{TEXT} {}", "The order of order@example.org is late. ".repeat(20_000));
    let got = chat(rig.listen, &asked(true, &text), &[NAMES]);
    assert_eq!(got.content(), text);
    holds_none(&told(&a));
    assert!(!told(&a).contains("order@example.org"));
}

#[test]
fn tool_calls_come_back_whole_with_their_values_escaped() {
    let a = Mock::start(|_, wire| {
        wire.stream_head();
        wire.event(role_chunk());
        let call = |index: u64, id: Option<&str>, arguments: &str| {
            let mut call = json!({"index": index, "function": {"arguments": arguments}});
            if let Some(id) = id {
                call["id"] = id.into();
                call["function"]["name"] = "get_order".into();
            }
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}]})
        };
        wire.event(call(0, Some("c0"), "{\"mail\":\"[EMA"));
        wire.event(call(1, Some("c1"), "{\"phone\":\"[PHO"));
        wire.event(call(0, None, "IL_1]\",\"name\":\"[NAME_1"));
        wire.event(call(1, None, "NE_1]\"}"));
        wire.event(call(0, None, "]\"}"));
        wire.event(finish_chunk("tool_calls"));
        wire.chunk("data: [DONE]\n\n");
        wire.end();
        Then::KeepAlive
    });
    let rig = rig(&[("a", a.address, "masked")]);
    let name = "Anna \"Nan\" Canary";
    let text = format!("I am {name}, anna.canary@example.com, +77011234567");
    let body = json!({"model": "chat", "stream": true, "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": {"name": "get_order", "description": "by e-mail"}}]});
    let got = chat(rig.listen, &body.to_string(), &[("x-llmfo-names", "Anna \"Nan\" Canary")]);
    let mut arguments = [String::new(), String::new()];
    for event in got.events().iter().filter(|e| *e != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        for call in event["choices"][0]["delta"]["tool_calls"].as_array().unwrap_or(&vec![]) {
            arguments[call["index"].as_u64().unwrap() as usize] += call["function"]["arguments"].as_str().unwrap();
        }
    }
    let read = |n: usize| serde_json::from_str::<Value>(&arguments[n]).unwrap();
    assert_eq!(read(0), json!({"mail": "anna.canary@example.com", "name": name}));
    assert_eq!(read(1), json!({"phone": "+77011234567"}));
    holds_none(&told(&a));
}

/// Two requests at once: neither sees a value of the other, also where a model says a placeholder that it was not given.
#[test]
fn values_never_cross_requests() {
    let a = Mock::start(|_, wire| {
        wire.answer("200 OK", "application/json", mock::whole("[EMAIL_1] [EMAIL_2] [NAME_1]"));
        Then::KeepAlive
    });
    let rig = rig(&[("a", a.address, "masked")]);
    let listen = rig.listen;
    let ask = move |n: usize| {
        let got = chat(listen, &asked(false, &format!("a{n}@x.com")), &[]);
        assert_eq!(content(&got), format!("a{n}@x.com [EMAIL_2] [NAME_1]"));
    };
    let threads: Vec<_> = (0..8).map(|t| std::thread::spawn(move || (0..10).for_each(|n| ask(t * 100 + n)))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(content(&chat(listen, &asked(false, "hello"), &[])), "[EMAIL_1] [EMAIL_2] [NAME_1]");
}

/// A provider that is silent after what is held back: the client gets a stand-in's whole answer, for it has seen nothing.
#[test]
fn held_back_text_commits_nobody() {
    let a = Mock::start(|_, wire| {
        wire.stream_head();
        wire.event(role_chunk());
        wire.event(text_chunk("[EMAIL_"));
        wire.wait_gone();
        Then::Fin
    });
    let b = Mock::start(echo(4));
    let rig = rig(&[("a", a.address, "masked"), ("b", b.address, "masked")]);
    let got = chat(rig.listen, &asked(true, "anna.canary@example.com"), &[]);
    assert_eq!((got.header("x-llmfo-target"), got.content().as_str()), (Some("b"), "anna.canary@example.com"));
    let first = &rig.decision(&got)["attempts"][0];
    assert!(first["first_token_ms"].is_number() && first["committed_ms"].is_null(), "{first}");
    assert_eq!(first["reason"], "idle_timeout");
}

/// The canary is in no event, journal, metric, error, decision or snapshot.
#[test]
fn nothing_of_it_is_left_anywhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, inputs) = (folder.path().join("journal.jsonl"), folder.path().join("inputs.jsonl"));
    let a = Mock::start(mock::status(
        "400 Bad",
        r#"{"error":{"message":"[EMAIL_1] is no order","type":"invalid_request_error"}}"#,
    ));
    let change = || Change { journal: Some(journal.clone()), inputs: Some(inputs.clone()), ..Change::default() };
    let mut rig = Rig::of(&tiers(&[("a", a.address, "masked")], &change()), change());
    let mut everything = Vec::new();
    let refused = chat(rig.listen, &asked(true, TEXT), &[NAMES]);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("[EMAIL_1] is no order"), "{}", refused.text());
    a.play(|_, wire| {
        wire.stream_head();
        wire.event(text_chunk("To [EMAIL_1]"));
        wire.event(r#"{"error":{"message":"[EMAIL_1] broke [NAME_1]"}}"#);
        wire.end();
        Then::Fin
    });
    let broken = chat(rig.listen, &asked(true, TEXT), &[NAMES]);
    assert!(broken.text().contains("anna.canary@example.com") && !broken.done());
    let error = broken.events().into_iter().find(|e| e.contains("\"error\"")).unwrap();
    a.play(mock::status("500 Down", r#"{"error":{"message":"[PHONE_1]"}}"#));
    let down = chat(rig.listen, &asked(false, TEXT), &[NAMES, ("x-llmfo-conversation", "c-1")]);
    everything.extend([refused.text(), error, down.text()]);
    for got in [&refused, &broken, &down] {
        everything.push(format!("{:?}", got.headers));
        everything.push(rig.decision(got).to_string());
    }
    let mut events = send(rig.admin, b"GET /events?since=0 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    everything.push(events.until("\"event\":\"decision\""));
    everything.extend([rig.metrics(), rig.snapshot().to_string(), get(rig.admin, "/readyz").text()]);
    rig.stop(std::time::Duration::ZERO);
    for path in [journal, inputs] {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(!text.is_empty());
        everything.push(text);
    }
    everything.push(told(&a));
    for text in everything {
        holds_none(&text);
    }
}

/// Under the ledger too: the call that is kept, keyed and repeated has the client's values, and the provider has none.
#[test]
fn a_keyed_call_is_restored_before_the_ledger_sees_it() {
    use crate::gateway_ledger::{C1, TOOLS, ask, calls, piece, send, whole_call};
    let arguments = "{\"mail\":\"[EMAIL_1]\",\"subject\":\"for [NAME_1]\"}";
    let a = Mock::start(move |seen, wire| {
        if seen.json()["stream"] == true {
            wire.stream_head();
            let (first, second) = arguments.split_at(13);
            wire.event(piece(0, Some("theirs"), Some("create_ticket"), first));
            wire.event(piece(0, None, None, second));
            wire.event(finish_chunk("tool_calls"));
            wire.chunk("data: [DONE]\n\n");
            wire.end();
        } else {
            wire.answer("200 OK", "application/json", whole_call(&[("theirs", "create_ticket", arguments)]));
        }
        Then::KeepAlive
    });
    for stream in [true, false] {
        let yaml = tiers(&[("a", a.address, "masked")], &Change::default())
            .replace("tools:\n  get_order", &format!("tools:\n{}  get_order", TOOLS.concat()))
            .replace("tools: [get_order]", "tools: [get_order, create_ticket, issue_refund, call_human]");
        let rig = Rig::of(&yaml, Change::default());
        let before = a.asked();
        let headers = [C1[0], C1[1], NAMES];
        let first = calls(&send(rig.listen, &ask(stream, TEXT, &[]), &headers));
        let told: Value = serde_json::from_str(&first[0].2).unwrap();
        assert_eq!((&told["mail"], &told["subject"]), (&json!("anna.canary@example.com"), &json!("for Anna Canary")));
        assert!(first[0].0.starts_with("call_") && told["operation_id"].as_str().unwrap().starts_with("op_"), "{told}");
        // The turn again: the same call, and nobody is asked.
        let again = calls(&send(rig.listen, &ask(stream, TEXT, &[]), &headers));
        assert_eq!((&again, a.asked()), (&first, before + 1));
    }
    holds_none(&told(&a));
}
