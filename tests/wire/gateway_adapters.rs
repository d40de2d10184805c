//! A tested text in place of a JSON schema, and what comes back is held to the schema.

use serde_json::json;

use crate::gateway::{Change, Rig, policy};
use crate::http::{self, End};
use crate::mock::{self, Mock, Seen, Then, Wire, finish_chunk, role_chunk, text_chunk, whole};

const GOOD: &str = r#"{"order_id":"A-17"}"#;
const FENCED: &str = "```json\n{\"order_id\":\"A-17\"}\n```";
const TEMPLATE: &str = "Answer with one JSON document for: {{schema}}\n";

fn says(text: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, w| {
        if mock::is_probe(seen) || seen.json()["stream"] != true {
            return mock_whole(seen, w, text);
        }
        w.stream_head();
        w.event(role_chunk());
        let (first, rest) = text.split_at(text.len() / 2);
        w.event(text_chunk(first));
        w.event(text_chunk(rest));
        w.event(finish_chunk("stop"));
        w.chunk("data: [DONE]\n\n");
        w.end();
        Then::KeepAlive
    }
}

fn mock_whole(_: &Seen, w: &mut Wire, text: &str) -> Then {
    w.answer("200 OK", "application/json", whole(text));
    Then::KeepAlive
}

/// `a` takes a schema by a prompt alone and has an adapter, `b` decodes by it.
fn rig(a: &Mock, b: &Mock, template: Option<&str>) -> (Rig, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    if let Some(template) = template {
        std::fs::create_dir(dir.path().join("adapters")).unwrap();
        std::fs::write(dir.path().join("adapters/x.md"), template).unwrap();
    }
    let change = Change { folder: dir.path().to_owned(), ..Change::default() };
    let yaml = with_adapter(&policy(&[("a", a.address), ("b", b.address)], &change));
    (Rig::of(&yaml, change), dir)
}

fn with_adapter(yaml: &str) -> String {
    yaml        .replacen("json_schema: strict", "json_schema: prompt_only", 1)
        .replacen("    model: model-a\n", "    model: model-a\n    adapter: x\n", 1)
        .replacen("pools:\n", "adapters:\n  x: { version: 1, replaces: [json_schema_strict], system_suffix: 'file:adapters/x.md' }\npools:\n", 1)
}

fn body(stream: bool, schema: &serde_json::Value) -> String {
    json!({
        "model": "chat", "stream": stream,
        "response_format": { "type": "json_schema", "json_schema": { "name": "o", "strict": true, "schema": schema } },
        "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }]
    })
    .to_string()
}

fn schema() -> serde_json::Value {
    json!({ "type": "object", "properties": { "order_id": { "type": "string" } }, "required": ["order_id"], "additionalProperties": false })
}

#[test]
fn a_target_that_lacks_the_parameter_is_asked_by_the_text_and_its_whole_answer_is_given() {
    for stream in [true, false] {
        let (a, b) = (Mock::start(says(GOOD)), Mock::start(says(GOOD)));
        let (rig, _dir) = rig(&a, &b, Some(TEMPLATE));
        let got = http::chat(rig.listen, &body(stream, &schema()), &[]);
        assert_eq!(
            (got.status, got.end, got.header("x-llmfo-target")),
            (200, End::Proper, Some("a")),
            "{}",
            got.text()
        );
        let text = if stream {
            got.content()
        } else {
            got.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(text, GOOD);
        let sent = a.seen().into_iter().find(|s| !mock::is_probe(s)).unwrap().json();
        assert!(sent.get("response_format").is_none(), "{sent}");
        assert_eq!(
            sent["messages"][0]["content"],
            format!("Be brief.\n\nAnswer with one JSON document for: {}\n", schema())
        );
        assert_eq!(b.asked(), 0);
    }
}

#[test]
fn an_adapted_answer_that_does_not_keep_the_schema_goes_to_nobody() {
    for stream in [true, false] {
        for bad in [FENCED, r#"{"order_id":7}"#, r#"{"order_id":"A-17"} Anything else?"#] {
            let (a, b) = (Mock::start(says(bad)), Mock::start(says(GOOD)));
            let (rig, _dir) = rig(&a, &b, Some(TEMPLATE));
            let got = http::chat(rig.listen, &body(stream, &schema()), &[]);
            assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{bad}: {}", got.text());
            assert!(!got.text().contains("```") && !got.text().contains("Anything"), "{}", got.text());
            let record = rig.decision(&got);
            assert_eq!(record["attempts"][0]["reason"], "quality", "{record}");
            assert_eq!(rig.target("a")["state"], "serving", "a model that does not obey is not down");
            // Who decodes by the schema is asked for it as the client wrote it.
            let sent = b.seen().into_iter().find(|s| !mock::is_probe(s)).unwrap().json();
            assert_eq!(sent["response_format"]["json_schema"]["schema"], schema());
            assert_eq!(sent["messages"][0]["content"], "Be brief.");
        }
    }
}

#[test]
fn what_ended_at_its_length_is_handed_on_as_the_parameter_would_have() {
    let cut = |_: &Seen, w: &mut Wire| {
        w.answer("200 OK", "application/json", whole(r#"{"order_"#).replace("\"stop\"", "\"length\""));
        Then::KeepAlive
    };
    let (a, b) = (Mock::start(cut), Mock::start(says(GOOD)));
    let (rig, _dir) = rig(&a, &b, Some(TEMPLATE));
    let got = http::chat(rig.listen, &body(false, &schema()), &[]);
    assert_eq!(got.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(got.header("x-llmfo-target"), Some("a"));
}

#[test]
fn without_its_text_or_with_what_cannot_be_checked_the_target_is_passed_over() {
    let bad_schema = json!({ "type": "no such type" });
    for (template, schema) in [(None, schema()), (Some(""), schema()), (Some(TEMPLATE), bad_schema)] {
        let (a, b) = (Mock::start(says(GOOD)), Mock::start(says(GOOD)));
        let (rig, _dir) = rig(&a, &b, template);
        let got = http::chat(rig.listen, &body(true, &schema), &[]);
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{}", got.text());
        assert_eq!(a.asked(), 0, "nothing is dropped silently");
    }
}

#[test]
fn a_text_that_changed_under_its_version_is_told_of_and_one_that_is_gone_stands_in_no_more() {
    let (a, b) = (Mock::start(says(GOOD)), Mock::start(says(GOOD)));
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("adapters/x.md");
    std::fs::create_dir(dir.path().join("adapters")).unwrap();
    std::fs::write(&text, TEMPLATE).unwrap();
    let journal = dir.path().join("j.jsonl");
    let change = Change { folder: dir.path().to_owned(), journal: Some(journal.clone()), ..Change::default() };
    let yaml = with_adapter(&policy(&[("a", a.address), ("b", b.address)], &change));
    let mut rig = Rig::of(&yaml, change);
    let answers =
        |rig: &Rig| http::chat(rig.listen, &body(false, &schema()), &[]).header("x-llmfo-target").map(str::to_owned);
    assert_eq!(answers(&rig).as_deref(), Some("a"));
    rig.reload(&yaml).unwrap();
    std::fs::write(&text, "Only JSON.").unwrap();
    rig.reload(&yaml).unwrap();
    assert_eq!(answers(&rig).as_deref(), Some("a"));
    std::fs::remove_file(&text).unwrap();
    rig.reload(&yaml).unwrap();
    assert_eq!(answers(&rig).as_deref(), Some("b"), "nothing asks for the schema any more");
    rig.stop(std::time::Duration::from_secs(1));
    let lines = std::fs::read_to_string(&journal).unwrap();
    let told = |reason: &str| lines.lines().filter(|l| l.contains(reason)).count();
    assert_eq!((told("adapter_changed"), told("adapter_unreadable")), (1, 1), "{lines}");
}

#[test]
fn a_request_without_a_strict_schema_is_not_touched() {
    let (a, b) = (Mock::start(says("hello there")), Mock::start(says(GOOD)));
    let (rig, _dir) = rig(&a, &b, Some(TEMPLATE));
    let plain = json!({ "model": "chat", "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }] });
    let got = http::chat(rig.listen, &plain.to_string(), &[]);
    assert_eq!(got.header("x-llmfo-target"), Some("a"));
    let sent = a.seen().into_iter().find(|s| !mock::is_probe(s)).unwrap().json();
    assert_eq!(sent["messages"], plain["messages"]);
}
