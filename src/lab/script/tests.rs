use serde_json::{Value, json};

use super::frames::Frame;
use super::*;

fn speaker(n: usize) -> Speaker {
    Speaker { name: format!("local-{n}"), voice: n }
}

fn body(kind: &str, turn: u32) -> Value {
    json!({"model": "m", "stream": true, "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "[c:x-1 t:1 k:order] My order is ORD-123456."},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": [{"type": "text", "text": format!("[c:x-1 t:{turn} k:{kind}] And now?")}]}],
        "tools": [{"type": "function", "function": {"name": "create_ticket", "parameters": {}}},
                  {"type": "function", "function": {"name": "transfer_to_human", "parameters": {}}}]})
}

fn said(kind: &str, n: usize, sabotage: Sabotage) -> Answer {
    answer(&speaker(n), &Asked::read(&body(kind, 2)).unwrap(), sabotage, "call_1")
}

fn text(a: &Answer) -> String {
    match &a.parts {
        Parts::Text(chunks) => chunks.concat(),
        Parts::Call { fragments, .. } => fragments.concat(),
    }
}

#[test]
fn what_was_asked_is_read_from_the_messages() {
    let asked = Asked::read(&body("recall", 2)).unwrap();
    assert_eq!((asked.turn, asked.tool_results), (2, 0));
    assert_eq!(asked.order_id.as_deref(), Some("ORD-123456"));
    assert!(asked.offers("create_ticket") && !asked.offers("get_order"));
    assert!(Asked::read(&json!({"messages": 1})).is_err());
}

#[test]
fn texts_name_the_order_and_have_the_right_size() {
    for kind in ["order", "recall"] {
        let a = said(kind, 0, Sabotage::None);
        assert!(text(&a).contains("ORD-123456"), "{}", text(&a));
        assert!((18..=30).contains(&a.parts.pieces()));
        assert_eq!(a.finish, "stop");
    }
    assert!(said("long", 0, Sabotage::None).parts.pieces() >= 60);
}

#[test]
fn three_pieces_tell_who_wrote_them() {
    for kind in ["order", "recall", "long", "json"] {
        let starts: std::collections::BTreeSet<String> = (0..4)
            .map(|n| match said(kind, n, Sabotage::None).parts {
                Parts::Text(chunks) => chunks[..3].concat(),
                Parts::Call { .. } => unreachable!("{kind} is a text"),
            })
            .collect();
        assert_eq!(starts.len(), 4, "{kind}: {starts:?}");
    }
}

#[test]
fn the_text_is_a_function_of_its_arguments() {
    assert_eq!(said("order", 1, Sabotage::None), said("order", 1, Sabotage::None));
}

#[test]
fn a_ticket_is_called_for_once_and_then_named() {
    let a = said("ticket", 0, Sabotage::None);
    let Parts::Call { name, fragments, id } = &a.parts else { panic!("a call") };
    assert_eq!((name.as_str(), id.as_str(), a.finish), ("create_ticket", "call_1", "tool_calls"));
    assert!(fragments.len() >= 8, "{fragments:?}");
    let arguments: Value = serde_json::from_str(&fragments.concat()).unwrap();
    assert_eq!(arguments["order_id"], "ORD-123456");
    let mut with_result = body("ticket", 2);
    with_result["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": []}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "{\"ticket\": 4711}"}),
    ]);
    let after = answer(&speaker(0), &Asked::read(&with_result).unwrap(), Sabotage::None, "call_2");
    assert!(text(&after).contains("4711") && after.finish == "stop", "{}", text(&after));
}

#[test]
fn without_the_tool_no_call_is_invented() {
    let mut request = body("ticket", 2);
    request["tools"] = json!([]);
    let a = answer(&speaker(0), &Asked::read(&request).unwrap(), Sabotage::None, "c");
    assert!(matches!(a.parts, Parts::Text(_)));
}

#[test]
fn sabotage_breaks_its_own_kind_and_no_other() {
    let schema = json!({"type": "object", "required": ["order_id", "status", "eta_days"], "properties":
        {"order_id": {"type": "string"}, "status": {"type": "string"}, "eta_days": {"type": "integer"}}});
    let json_with = |s| {
        let mut request = body("json", 2);
        request["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "o", "schema": schema}});
        let a = answer(&speaker(0), &Asked::read(&request).unwrap(), s, "c");
        serde_json::from_str::<Value>(&text(&a)).unwrap()
    };
    assert!(jsonschema::is_valid(&schema, &json_with(Sabotage::None)));
    assert!(!jsonschema::is_valid(&schema, &json_with(Sabotage::Schema)));
    assert_eq!(json_with(Sabotage::None), json_with(Sabotage::Context));
    assert!(matches!(said("human", 0, Sabotage::None).parts, Parts::Call { .. }));
    assert!(matches!(said("human", 0, Sabotage::Handoff).parts, Parts::Text(_)));
    assert!(matches!(said("human", 0, Sabotage::Context).parts, Parts::Call { .. }));
    for kind in ["order", "recall"] {
        let wrong = text(&said(kind, 0, Sabotage::Context));
        assert!(!wrong.contains("ORD-123456") && wrong.contains("ORD-234567"), "{wrong}");
        assert_eq!(said(kind, 0, Sabotage::None), said(kind, 0, Sabotage::Schema));
    }
    assert_eq!(said("ticket", 0, Sabotage::None), said("ticket", 0, Sabotage::Context));
}

#[test]
fn a_probe_is_answered_by_what_it_asks_for() {
    let ask = |extra: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "ping"}]});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        answer(&speaker(0), &Asked::read(&request).unwrap(), Sabotage::None, "c")
    };
    assert_eq!(ask(json!({})).parts.pieces(), 3);
    assert_eq!(ask(json!({"max_tokens": 2})).finish, "length");
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]});
    let json_answer =
        ask(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}}));
    assert_eq!(text(&json_answer), "{\"ok\":true}");
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": schema}}]);
    let call = ask(json!({"tools": tools, "tool_choice": "required"}));
    assert!(matches!(&call.parts, Parts::Call { name, .. } if name == "t"));
    assert!(matches!(ask(json!({"tools": tools})).parts, Parts::Text(_)));
}

#[test]
fn the_probe_cases_that_ship_are_answered_as_they_demand() {
    let set: Value = serde_saphyr::from_str(crate::assets::get("goldensets/support-v3.yaml").unwrap().text).unwrap();
    let mut said = Vec::new();
    for case in set["cases"].as_array().unwrap() {
        let mut request = json!({"messages": case["messages"], "tools": set["tools"], "max_tokens": 256});
        if let Some(name) = case["expect"]["schema"].as_str() {
            let schema = json!({"name": name, "schema": set["schemas"][name]});
            request["response_format"] = json!({"type": "json_schema", "json_schema": schema});
        }
        let a = answer(&speaker(0), &Asked::read(&request).unwrap(), Sabotage::None, "c");
        said.push(match &a.parts {
            Parts::Text(_) => text(&a),
            Parts::Call { name, .. } => name.clone(),
        });
    }
    assert!(!said[0].contains('{'), "{said:?}");
    let document: Value = serde_json::from_str(&said[1]).unwrap();
    assert_eq!(document["needs_human"], true);
    assert_eq!(said[2], "transfer_to_human");
}

#[test]
fn a_stream_has_its_events_in_order() {
    let mut request = body("order", 2);
    request["stream_options"] = json!({"include_usage": true});
    let asked = Asked::read(&request).unwrap();
    let a = answer(&speaker(0), &asked, Sabotage::None, "c");
    let frame = Frame { id: "chatcmpl-1", created: 1, model: "m", fingerprint: "fp" };
    let events = frame.events(&a, &asked);
    assert_eq!(events.len(), 1 + a.parts.pieces() + 3);
    assert!(events[0].bytes.contains("\"role\":\"assistant\"") && !events[0].token);
    assert!(events[1].token && events[events.len() - 3].bytes.contains("\"finish_reason\":\"stop\""));
    assert!(events[events.len() - 2].bytes.contains("completion_tokens"));
    assert_eq!(events[events.len() - 1].bytes, "data: [DONE]\n\n");
    let whole: Value = serde_json::from_str(&frame.whole(&a, &asked)).unwrap();
    assert_eq!(whole["choices"][0]["message"]["content"], text(&a));
}

#[test]
fn the_pace_is_within_its_figures() {
    let p = pace(7, 50);
    assert!((60.0..140.0).contains(&p.tokens_ms[0]));
    for pair in p.tokens_ms.windows(2) {
        assert!((15.0..25.0).contains(&(pair[1] - pair[0])));
    }
    assert_eq!(pace(7, 50), p);
}
