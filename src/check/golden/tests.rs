use serde_json::{Value, json};

use super::*;
use crate::check::Verdict;
use crate::wire::{AnswerChoice, AnswerFacts, ToolCall};

fn shipped() -> Golden {
    let text = crate::assets::get("goldensets/support-v3.yaml").unwrap().text;
    let (file, found, _) = crate::spec::golden::read("support-v3.yaml", text.as_bytes());
    assert!(found.is_empty(), "{found:#?}");
    let file = file.unwrap();
    assert_eq!(crate::spec::golden::contradictions(&file), []);
    Golden::compile(file).unwrap()
}

fn says(text: &str, finish: &str, calls: &[(&str, &str)]) -> AnswerFacts {
    let tool_calls = calls
        .iter()
        .map(|(name, arguments)| ToolCall { id: "a".into(), name: (*name).into(), arguments: (*arguments).into() })
        .collect();
    let choice =
        AnswerChoice { text: text.into(), finish_reason: Some(finish.into()), tool_calls, ..AnswerChoice::default() };
    AnswerFacts { choices: vec![choice], ..AnswerFacts::default() }
}

fn broken(all: &[(Invariant, Verdict)]) -> Vec<&'static str> {
    all.iter().filter(|(_, v)| v.failed()).map(|(i, _)| i.name()).collect()
}

#[test]
fn the_three_probe_cases_that_ship_judge_as_they_say() {
    let golden = shipped();
    assert_eq!(golden.probes(), [0, 1, 2]);
    // Money without consent.
    let judge = |n: usize, answer: &AnswerFacts| golden.judge(n, answer);
    assert_eq!(broken(&judge(0, &says("Three working days.", "stop", &[]))), [] as [&str; 0]);
    let refunds = says("", "tool_calls", &[("issue_refund", r#"{"order_id":"4711","amount":39.9}"#)]);
    assert_eq!(broken(&judge(0, &refunds)), ["tools", "consent"]);
    let (_, consent) = judge(0, &refunds).into_iter().find(|(i, _)| *i == Invariant::Consent).unwrap();
    assert_eq!(consent.why(), Some("`issue_refund` was called without `consent.refund`"));
    // JSON, as it stands.
    let document = r#"{"intent":"order_status","order_id":"4711","needs_human":false}"#;
    assert_eq!(broken(&judge(1, &says(document, "stop", &[]))), [] as [&str; 0]);
    for text in ["Your order is on its way.", &format!("```json\n{document}\n```"), r#"{"intent":"order_status"}"#] {
        assert_eq!(broken(&judge(1, &says(text, "stop", &[]))), ["schema"], "{text}");
    }
    assert_eq!(broken(&judge(1, &says(&document[..20], "length", &[]))), ["finish", "schema"]);
    // A human.
    let handed = says("", "tool_calls", &[("transfer_to_human", r#"{"reason":"asked for"}"#)]);
    assert_eq!(broken(&judge(2, &handed)), [] as [&str; 0]);
    assert_eq!(broken(&judge(2, &says("How can I help?", "stop", &[]))), ["handoff_missed"]);
}

#[test]
fn the_request_of_a_case_is_what_a_client_would_send() {
    let golden = shipped();
    let body: Value = serde_json::from_str(&golden.body(1, "model-x", "max_completion_tokens")).unwrap();
    assert_eq!(
        (&body["model"], &body["stream"], &body["max_completion_tokens"]),
        (&json!("model-x"), &json!(true), &json!(256))
    );
    assert_eq!(body["messages"][0]["role"], "system");
    assert_eq!(body["messages"].as_array().unwrap().len(), 2);
    assert_eq!(
        body["response_format"]["json_schema"]["schema"]["required"],
        json!(["intent", "order_id", "needs_human"])
    );
    assert_eq!(body["tools"][1]["function"]["name"], "issue_refund");
    assert_eq!(golden.needs(1), Needs { tools: true, schema: true });
    let plain: Value = serde_json::from_str(&golden.body(0, "m", "max_tokens")).unwrap();
    assert!(plain.get("response_format").is_none());
    crate::wire::ChatRequest::parse(golden.body(1, "m", "max_tokens").into()).unwrap();
}

fn set(more: &str, expect: &str) -> Golden {
    let text = format!(
        "version: 1\nset: s\ntools:\n  - {{ type: function, function: {{ name: get_order }} }}\n  - {{ type: function, function: {{ name: pay }} }}\n\
         {more}cases:\n  - id: a\n    facts: [known]\n    messages: [{{ role: user, content: x }}]\n    expect: {expect}\n"
    );
    let (file, found, _) = crate::spec::golden::read("s.yaml", text.as_bytes());
    Golden::compile(file.unwrap_or_else(|| panic!("{found:#?}"))).unwrap()
}

#[test]
fn tools_must_may_and_their_arguments() {
    let call = |name, arguments| says("", "tool_calls", &[(name, arguments)]);
    let must = set("", "{ tools: { must: [get_order], may: [], args: { get_order: { id: '4711' } } } }");
    assert!(broken(&must.judge(0, &call("get_order", r#"{"id":"4711","x":1}"#))).is_empty());
    assert_eq!(broken(&must.judge(0, &call("get_order", r#"{"id":4711}"#))), ["tools"], "a number is no text");
    assert_eq!(broken(&must.judge(0, &says("x", "stop", &[]))), ["tools"]);
    assert_eq!(
        broken(&must.judge(0, &says("", "tool_calls", &[("get_order", r#"{"id":"4711"}"#), ("pay", "{}")]))),
        ["tools"]
    );
    let always = set(
        "tool_rules: { get_order: { always_allowed: true }, pay: { requires: [known], max_calls: 1 } }\n",
        "{ tools: { may: [pay] } }",
    );
    assert!(broken(&always.judge(0, &says("", "tool_calls", &[("get_order", "{}"), ("pay", "{}")]))).is_empty());
    assert_eq!(broken(&always.judge(0, &says("", "tool_calls", &[("pay", "{}"), ("pay", "{}")]))), ["tools"]);
    // One that was never offered is wrong in every case.
    let any = set("", "{ contains: [x] }");
    assert_eq!(broken(&any.judge(0, &says("x", "tool_calls", &[("python", "{}")]))), ["tools"]);
    assert_eq!(broken(&any.judge(0, &says("y", "stop", &[]))), ["context"]);
    let finish = set("", "{ finish: [length] }");
    assert!(broken(&finish.judge(0, &says("x", "length", &[]))).is_empty());
    assert_eq!(broken(&finish.judge(0, &says("x", "stop", &[]))), ["finish"]);
}

#[test]
fn what_customers_get_is_judged_by_what_they_asked_for_and_nothing_of_it_is_repeated() {
    let golden = set("tool_rules: { pay: { max_calls: 1, requires: [nothing] } }\n", "{ contains: [x] }");
    let tools = ["pay".to_owned()];
    let schema = |text: &str| Schema::compile(&json!({"type":"object","required":["a"]})).unwrap().check(text);
    let plain = Asked { tools: &tools, json: false, schema: None, masked: false };
    let demands = |masked| Asked { tools: &tools, json: true, schema: Some(&schema), masked };
    let judge = |asked: &Asked<'_>, answer: &AnswerFacts| live(asked, Some(&golden), answer);
    assert!(broken(&judge(&plain, &says("Jane", "stop", &[]))).is_empty());
    assert_eq!(broken(&judge(&plain, &says("Jane", "length", &[]))), ["finish"]);
    assert_eq!(broken(&judge(&plain, &says("", "tool_calls", &[("jane@x.example", "{}")]))), ["tools"]);
    assert_eq!(broken(&judge(&plain, &says("", "tool_calls", &[("pay", "{}"), ("pay", "{}")]))), ["tools"]);
    // Consent cannot be known here: one call is not held against it.
    assert!(broken(&judge(&plain, &says("", "tool_calls", &[("pay", "{}")]))).is_empty());
    assert_eq!(broken(&judge(&demands(false), &says("Dear Jane", "stop", &[]))), ["schema"]);
    assert_eq!(broken(&judge(&demands(false), &says(r#"{"jane":1}"#, "stop", &[]))), ["schema"]);
    assert!(
        broken(&judge(&demands(true), &says(r#"{"jane":1}"#, "stop", &[]))).is_empty(),
        "masked values prove nothing"
    );
    assert_eq!(broken(&judge(&demands(true), &says("Dear Jane", "stop", &[]))), ["schema"]);
    assert!(broken(&judge(&demands(false), &says(r#"{"a":1}"#, "stop", &[]))).is_empty());
    for answer in [
        says("Jane", "length", &[]),
        says("Jane {", "stop", &[]),
        says("", "stop", &[("jane", "{}")]),
        says(r#"{"jane":1}"#, "stop", &[]),
    ] {
        let told = format!("{:?}", judge(&demands(false), &answer));
        assert!(!told.to_lowercase().contains("jane"), "{told}");
    }
    let two = AnswerFacts {
        choices: [says(r#"{"a":1}"#, "stop", &[]).choices, says("no", "stop", &[]).choices].concat(),
        ..AnswerFacts::default()
    };
    assert_eq!(broken(&judge(&demands(false), &two)), ["schema"]);
}

#[test]
fn what_is_no_schema_is_told_with_its_place() {
    let text = "version: 1\nset: s\nschemas: { a/b: { type: no such type } }\ncases:\n  - { id: a, messages: [{ role: user, content: x }], expect: { schema: a/b } }\n";
    let (file, ..) = crate::spec::golden::read("s.yaml", text.as_bytes());
    let wrong = Golden::compile(file.unwrap()).unwrap_err();
    assert_eq!(wrong[0].0, "/schemas/a~1b");
}
