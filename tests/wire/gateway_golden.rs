//! Golden sets at work: probes that ask a case of the group, samples of what customers are answered, and evidence held against
//! who answers and by which prompt.

use serde_json::{Value, json};

use crate::canary;
use crate::gateway::{Change, Rig, body, policy};
use crate::http;
use crate::mock::{self, Mock, Seen, Then, Wire, call_chunk, finish_chunk, good, role_chunk, text_chunk, whole};

const DOCUMENT: &str = r#"{"intent":"order_status","order_id":"4711","needs_human":false}"#;
const FAST: &str = "{ base_cooldown_s: 0.2, max_cooldown_s: 0.4, probe: golden }";

/// Asks a case of the shipped set.
fn golden(seen: &Seen) -> bool {
    String::from_utf8_lossy(&seen.body).contains("support assistant of a web shop")
}

fn customers(mock: &Mock) -> usize {
    mock.seen().iter().filter(|s| !golden(s) && !mock::is_probe(s)).count()
}

fn stream(w: &mut Wire, chunks: &[String], finish: &str) -> Then {
    w.stream_head();
    w.event(role_chunk());
    chunks.iter().for_each(|chunk| w.event(chunk));
    w.event(finish_chunk(finish));
    w.chunk("data: [DONE]\n\n");
    w.end();
    Then::KeepAlive
}

/// Answers every case as the set demands, and customers with its name.
fn right(name: &'static str) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    move |seen, w| {
        let asked = seen.json();
        if !golden(seen) {
            return good(name)(seen, w);
        }
        let text = asked["messages"].to_string();
        if text.contains("to a human")
            && !text.contains("kettle")
            && asked.get("response_format").is_none()
            && !text.contains("Sort this")
        {
            return stream(w, &[call_chunk(Some("transfer_to_human"), r#"{"reason":"asked for"}"#)], "tool_calls");
        }
        if text.contains("Sort this") {
            stream(w, &[text_chunk(DOCUMENT)], "stop")
        } else {
            stream(w, &[text_chunk("Three days.")], "stop")
        }
    }
}

/// `group`: more keys of the group. One tier.
fn grouped(targets: &[(&str, &Mock)], change: &Change, group: &str) -> String {
    let addresses: Vec<_> = targets.iter().map(|(name, mock)| (*name, mock.address)).collect();
    let names: Vec<&str> = targets.iter().map(|(name, _)| *name).collect();
    policy(&addresses, change)
        .replace("expires:", "prompt_version: p-1\nexpires:")
        .replace("pii: allowed }", "pii: allowed, compatibility_group: g }")
        .replace(
            "tools:\n",
            &format!("compatibility_groups:\n  g: {{ members: [{}]{group} }}\ntools:\n", names.join(", ")),
        )
}

const SET: &str = ", golden_set: goldensets/support-v3.yaml";

fn count(rig: &Rig, line: &str) -> u64 {
    let metrics = rig.metrics();
    metrics.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0)
}

fn events(journal: &std::path::Path, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    lines.filter(|l| l["event"] == event).collect()
}

fn alerts(journal: &std::path::Path, reason: &str) -> Vec<String> {
    let all = events(journal, "alert").into_iter().filter(|a| a["reason"] == reason);
    all.map(|a| a["text"].as_str().unwrap_or_default().to_owned()).collect()
}

fn trip(rig: &Rig) {
    rig.eventually("the end of a's service", || {
        assert_eq!(rig.stream().status, 200);
        (rig.target("a")["state"] != "serving").then_some(())
    });
}

#[test]
fn prose_where_a_case_demands_json_keeps_a_target_out_and_no_customer_pays_for_finding_out() {
    let (a, b) = (Mock::start(mock::status("503 Service Unavailable", "")), Mock::start(right("b")));
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    let change = Change { breaker: FAST, journal: Some(journal.clone()), ..Change::default() };
    let rig = Rig::of(&grouped(&[("a", &a), ("b", &b)], &change, SET), change);
    trip(&rig);
    let paid = customers(&a);
    // Up again, and no longer the model that was evaluated.
    a.play(good("prose"));
    rig.eventually("three probes that were not good", || {
        assert_ne!(rig.target("a")["state"], "serving");
        (count(&rig, "llmfo_probes_total{target=\"a\",kind=\"not_good\"}") >= 3).then_some(())
    });
    let told = rig.eventually("the alert", || alerts(&journal, "quality").first().cloned());
    assert!(told.contains("case decision-json: schema: not JSON") && told.contains("takes no traffic"), "{told}");
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("b"));
    assert_eq!(customers(&a), paid, "only probes have found out");
    // Each case in turn, by the model's own name and with its key.
    let probes: Vec<Value> = a.seen().iter().filter(|s| golden(s)).map(Seen::json).collect();
    assert!(
        probes.iter().all(|p| p["model"] == "model-a" && p["stream"] == true && p["max_tokens"] == 256),
        "{probes:#?}"
    );
    assert!(probes.iter().any(|p| p["response_format"]["json_schema"]["strict"] == true));
    assert!(probes.iter().any(|p| p["messages"].to_string().contains("kettle")));
    assert!(!probes.iter().any(|p| p.to_string().contains(canary::PERSON)), "no customer's words");
    // As evaluated again: back after two good probes.
    a.play(right("a"));
    rig.eventually("a's return", || (rig.target("a")["state"] == "serving").then_some(()));
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    // What customers sent never held a case.
    assert!(b.seen().iter().all(|s| !golden(s)), "who serves is not probed");
}

#[test]
fn the_last_legal_target_is_not_taken_out_by_what_it_answers() {
    let a = Mock::start(mock::status("503 Service Unavailable", ""));
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    let change = Change { breaker: FAST, journal: Some(journal.clone()), ..Change::default() };
    let rig = Rig::of(&grouped(&[("a", &a)], &change, SET), change);
    while rig.target("a")["state"] == "serving" {
        assert_eq!(rig.stream().status, 503);
    }
    a.play(good("prose"));
    rig.eventually("a's return", || (rig.target("a")["state"] == "serving").then_some(()));
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    let told = rig.eventually("the alert", || alerts(&journal, "quality").first().cloned());
    assert!(told.contains("nobody else"), "{told}");
}

#[test]
fn a_probe_goes_the_way_of_a_request_by_adapter_and_mask() {
    let (a, b) = (Mock::start(mock::status("503 Service Unavailable", "")), Mock::start(good("b")));
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("adapters")).unwrap();
    std::fs::write(dir.path().join("adapters/x.md"), "Only JSON for {{schema}}").unwrap();
    let set = "version: 1\nset: s\nschemas: { o: { type: object, required: [a] } }\ncases:\n  - id: one\n    messages: [{ role: system, content: Shop. }, { role: user, content: Mail jane.doe@shop.example }]\n    expect: { schema: o }\n";
    std::fs::write(dir.path().join("g.yaml"), set).unwrap();
    let change = Change { breaker: FAST, folder: dir.path().to_owned(), ..Change::default() };
    let yaml = grouped(&[("a", &a), ("b", &b)], &change, ", golden_set: g.yaml")
        .replace("data: none", "data: personal")
        .replace("pii: allowed", "pii: masked")
        .replacen("json_schema: strict", "json_schema: prompt_only", 1)
        .replacen("    model: model-a\n", "    model: model-a\n    adapter: x\n", 1)
        .replacen("pools:\n", "adapters:\n  x: { version: 1, replaces: [json_schema_strict], system_suffix: 'file:adapters/x.md' }\npools:\n", 1);
    let rig = Rig::of(&yaml, change);
    trip(&rig);
    a.play(|_, w| stream(w, &[text_chunk(r#"{"a":1}"#)], "stop"));
    rig.eventually("a's return", || (rig.target("a")["state"] == "serving").then_some(()));
    let seen = a.seen();
    let probe = seen.iter().map(Seen::json).find(|p| p.to_string().contains("Shop.")).expect("the case was asked");
    assert!(probe.get("response_format").is_none(), "{probe}");
    assert!(probe["messages"][0]["content"].as_str().unwrap().starts_with("Shop.\n\nOnly JSON for {"), "{probe}");
    assert!(!probe.to_string().contains("jane.doe"), "masked as a customer's would be: {probe}");
}

#[test]
fn a_golden_set_that_cannot_be_read_is_refused_with_file_and_line() {
    let a = Mock::start(good("a"));
    let dir = tempfile::tempdir().unwrap();
    let set = |expect: &str| {
        let text = format!(
            "version: 1\nset: s\ncases:\n  - id: one\n    messages: [{{ role: user, content: x }}]\n    {expect}\n"
        );
        std::fs::write(dir.path().join("g.yaml"), text).unwrap();
    };
    set("expect: { contains: [x] }");
    let change = Change { folder: dir.path().to_owned(), ..Change::default() };
    let yaml = grouped(&[("a", &a)], &change, ", golden_set: g.yaml");
    let mut rig = Rig::of(&yaml, change);
    for (wrong, says) in [
        ("expct: { contains: [x] }", "g.yaml:6:5: the golden set of group g cannot be used: "),
        ("expect: {}", "g.yaml:6:13: the golden set of group g cannot be used: case `one` demands nothing"),
        ("expect: { schema: o }", "`o` is none of the schemas"),
    ] {
        set(wrong);
        let refused = rig.reload(&yaml.replace("test-1", "test-2")).unwrap_err();
        assert!(refused.contains(says), "{refused}");
        assert_eq!(rig.stream().header("x-llmfo-policy"), Some("test-1"), "the one before goes on");
    }
    set("expect: { contains: [y] }");
    rig.reload(&yaml.replace("test-1", "test-2")).unwrap();
    assert_eq!(rig.stream().header("x-llmfo-policy"), Some("test-2"));
}

#[test]
fn sampled_answers_are_judged_beside_the_traffic_and_nothing_of_them_is_told() {
    for streamed in [true, false] {
        let a = Mock::start(move |seen: &Seen, w: &mut Wire| {
            if seen.json()["stream"] == true {
                return stream(w, &[text_chunk("Dear Jane Q. Canary")], "stop");
            }
            w.answer("200 OK", "application/json", whole("Dear Jane Q. Canary"));
            Then::KeepAlive
        });
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j.jsonl");
        let change = Change { journal: Some(journal.clone()), ..Change::default() };
        let rig = Rig::of(&grouped(&[("a", &a)], &change, ", sampling: 1"), change);
        let wants = json!({"model": "chat", "stream": streamed, "response_format": {"type": "json_object"},
            "messages": [{"role": "user", "content": "in JSON"}]});
        assert_eq!(http::chat(rig.listen, &wants.to_string(), &[]).status, 200, "a sample changes no answer");
        let line = "llmfo_invariant_violations_total{route=\"chat\",target=\"a\",invariant=\"schema\"}";
        rig.eventually("the violation", || (count(&rig, line) == 1).then_some(()));
        // One that did not ask for JSON is judged too, and keeps everything.
        assert_eq!(http::chat(rig.listen, &body(streamed), &[]).status, 200);
        let judged = "llmfo_sampled_answers_total{route=\"chat\",target=\"a\"}";
        rig.eventually("the second sample", || (count(&rig, judged) == 2).then_some(()));
        assert_eq!(count(&rig, line), 1);
        let event = rig.eventually("the event", || events(&journal, "invariant_violated").first().cloned());
        assert_eq!(
            (&event["route"], &event["target"], &event["invariant"]),
            (&json!("chat"), &json!("a"), &json!("schema"))
        );
        assert_eq!(event["why"], "not JSON (line 1, column 1)");
        let text = std::fs::read_to_string(&journal).unwrap();
        assert!(!text.contains("Canary"), "{text}");
    }
    let a = Mock::start(good("a"));
    let change = Change::default();
    let rig = Rig::of(&grouped(&[("a", &a)], &change, ", sampling: 0"), change);
    assert_eq!(rig.stream().status, 200);
    rig.wait_idle();
    assert!(!rig.metrics().contains("llmfo_sampled_answers_total{"), "none was wanted");
}

#[test]
fn of_a_masked_request_the_masked_text_is_judged_and_masked_values_prove_nothing() {
    // Says what it was told, which is a placeholder: as a document, or in prose.
    let echo = |prose: bool| {
        move |seen: &Seen, w: &mut Wire| {
            let told = seen.json()["messages"][0]["content"].as_str().unwrap().to_owned();
            assert!(!told.contains('@'), "{told}");
            let text = if prose { format!("Mail {told}") } else { json!({ "mail": told }).to_string() };
            if seen.json()["stream"] == true {
                return stream(w, &[text_chunk(&text)], "stop");
            }
            w.answer("200 OK", "application/json", whole(&text));
            Then::KeepAlive
        }
    };
    let schema =
        json!({"type": "object", "properties": {"mail": {"type": "string", "format": "email"}}, "required": ["mail"]});
    for streamed in [true, false] {
        let a = Mock::start(echo(false));
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j.jsonl");
        let change = Change { journal: Some(journal.clone()), ..Change::default() };
        let yaml = grouped(&[("a", &a)], &change, ", sampling: 1")
            .replace("data: none", "data: personal")
            .replace("pii: allowed", "pii: masked");
        let rig = Rig::of(&yaml, change);
        let wants = json!({"model": "chat", "stream": streamed, "messages": [{"role": "user", "content": "jane.doe@shop.example"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "m", "schema": schema}}});
        let ask = || http::chat(rig.listen, &wants.to_string(), &[]);
        let judged = "llmfo_sampled_answers_total{route=\"chat\",target=\"a\"}";
        let broken = "llmfo_invariant_violations_total{route=\"chat\",target=\"a\",invariant=\"schema\"}";
        assert!(ask().text().contains("jane.doe@shop.example"), "the customer gets it back");
        rig.eventually("the first sample", || (count(&rig, judged) == 1).then_some(()));
        assert_eq!(count(&rig, broken), 0, "the placeholder is no address, what stands for it is");
        a.play(echo(true));
        assert!(ask().text().contains("jane.doe@shop.example"));
        rig.eventually("the violation", || (count(&rig, broken) == 1).then_some(()));
        rig.wait_idle();
        assert!(!std::fs::read_to_string(&journal).unwrap().contains("jane.doe"));
    }
}

/// SHA-256 of `abc` (FIPS 180-2, appendix B.1).
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn put_record(dir: &std::path::Path, target: &str, model: &str, system: Option<&str>) {
    let system = system.map(|s| format!(r#""system_sha256":"{s}","#)).unwrap_or_default();
    let text = format!(
        r#"{{"format":1,"group":"g","target":"{target}","model":"{model}","fingerprint":null,"prompt_version":"p-1",{system}"adapter":null,
        "golden_set":{{"path":"g.yaml","sha256":"{}"}},"date":"{}","verdict":"eligible","invariants":{{}},
        "capabilities":{{"tools":true,"json_schema":null,"vision":null,"context_tokens":null}},"baseline_p95_ms":200}}"#,
        "0".repeat(64),
        jiff::Timestamp::now()
    );
    std::fs::create_dir_all(dir.join("evidence/g")).unwrap();
    std::fs::write(dir.join(format!("evidence/g/{target}@p-1.json")), text).unwrap();
}

fn two_tiers(yaml: &str) -> String {
    yaml.replace("all: { targets: [a, b], select: priority }", "one: { targets: [a] }\n  two: { targets: [b] }").replace(
        "      - { pool: all,",
        "      - { pool: one, first_token_timeout_ms: 500, pii: allowed, compatibility_group: g }\n      - { pool: two,",
    )
}

#[test]
fn another_system_prompt_than_the_one_tested_has_no_stand_in_and_its_first_choice_is_told_of() {
    let (a, b) = (Mock::start(mock::status("503 Service Unavailable", "")), Mock::start(good("b")));
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    put_record(dir.path(), "a", "m", Some(ABC));
    put_record(dir.path(), "b", "m", Some(&ABC.to_uppercase()));
    let change = Change { folder: dir.path().to_owned(), journal: Some(journal.clone()), ..Change::default() };
    let rig = Rig::of(&two_tiers(&grouped(&[("a", &a), ("b", &b)], &change, "")), change);
    let ask = |system: Value| {
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": "hello"}]);
        http::chat(rig.listen, &json!({"model": "chat", "stream": true, "messages": messages}).to_string(), &[])
    };
    let got = ask(json!("abc"));
    assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")));
    // The same text in the form of parts is the same prompt.
    assert_eq!(ask(json!([{"type": "text", "text": "abc"}])).header("x-llmfo-target"), Some("b"));
    assert!(alerts(&journal, "evidence_prompt").is_empty());
    let got = ask(json!("abc."));
    assert_eq!((got.status, got.code().as_str()), (503, "handoff"), "{}", got.text());
    let record = rig.decision(&got);
    assert_eq!(
        (&record["skipped"][0]["target"], &record["skipped"][0]["reason"]),
        (&json!("b"), &json!("evidence_prompt"))
    );
    // A first choice answers all the same, and people are told once.
    a.play(good("a"));
    let (rig2, second) = {
        let journal = dir.path().join("j2.jsonl");
        let change = Change { folder: dir.path().to_owned(), journal: Some(journal.clone()), ..Change::default() };
        (Rig::of(&two_tiers(&grouped(&[("a", &a), ("b", &b)], &change, "")), change), journal)
    };
    for _ in 0..3 {
        let got = rig2.stream();
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("a")));
    }
    let told = rig2.eventually("the alert", || alerts(&second, "evidence_prompt").first().cloned());
    assert!(told.starts_with("a: route chat"), "{told}");
    assert_eq!(count(&rig2, "llmfo_unevaluated_prompts_total{route=\"chat\"}"), 3);
    rig2.wait_idle();
    assert_eq!(alerts(&second, "evidence_prompt").len(), 1);
}

#[test]
fn who_answers_under_another_name_than_was_tested_is_probed_at_once() {
    // `a` answers as model `m`; its record is about another one.
    let (a, b) = (Mock::start(right("a")), Mock::start(right("b")));
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    put_record(dir.path(), "a", "m-2026-01", None);
    put_record(dir.path(), "b", "m", None);
    let change =
        Change { folder: dir.path().to_owned(), journal: Some(journal.clone()), breaker: FAST, ..Change::default() };
    let rig = Rig::of(&grouped(&[("a", &a), ("b", &b)], &change, SET), change);
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    let told = rig.eventually("the alert", || alerts(&journal, "evidence_suspect").first().cloned());
    assert!(told.contains("model m,"), "{told}");
    rig.eventually("the probe", || a.seen().iter().any(golden).then_some(()));
    rig.eventually("its end", || (count(&rig, "llmfo_probes_total{target=\"a\",kind=\"passed\"}") == 1).then_some(()));
    assert_eq!(rig.target("a")["state"], "serving", "its answers are as good");
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
    rig.wait_idle();
    assert_eq!(alerts(&journal, "evidence_suspect").len(), 1, "the same name is told of once");
    assert!(!b.seen().iter().any(golden), "b answers as was tested");
}
