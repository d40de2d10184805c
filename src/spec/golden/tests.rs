use super::*;

const GOOD: &str = "\
version: 1
set: shop
tools:
  - { type: function, function: { name: issue_refund, parameters: { type: object } } }
  - { type: function, function: { name: transfer_to_human } }
schemas:
  decision: { type: object, required: [intent] }
tool_rules:
  issue_refund: { requires: [consent.refund], max_calls: 1 }
handoff: { tool: transfer_to_human }
cases:
  - id: no-consent
    slices: { intent: refund }
    messages:
      - { role: user, content: My kettle is broken. }
    expect: { tools: { must_not: [issue_refund] }, handoff: forbidden }
  - id: decision
    messages:
      - { role: user, content: Where is my order? }
    expect: { schema: decision }
";

fn codes(text: &str) -> Vec<String> {
    let (_, found, _) = read("g.yaml", text.as_bytes());
    found.iter().map(|d| format!("{} {}:{}", d.rule.code, d.place.line, d.place.column)).collect()
}

fn told(text: &str) -> Vec<String> {
    let (file, found, _) = read("g.yaml", text.as_bytes());
    assert!(found.is_empty(), "{found:#?}");
    contradictions(&file.unwrap()).into_iter().map(|c| c.pointer).collect()
}

#[test]
fn a_good_set_is_read() {
    let (file, found, _) = read("g.yaml", GOOD.as_bytes());
    assert!(found.is_empty(), "{found:#?}");
    let file = file.unwrap();
    assert_eq!((file.cases.len(), file.cases[1].expect.schema.as_ref().unwrap().as_str()), (2, "decision"));
    assert!(contradictions(&file).is_empty(), "{:#?}", contradictions(&file));
}

#[test]
fn an_unknown_key_is_an_error_with_its_place_and_the_nearest_key() {
    let text = GOOD.replace("    expect: { schema: decision }", "    expct: { schema: decision }");
    let (file, found, _) = read("g.yaml", text.as_bytes());
    assert!(file.is_none());
    let d = found.iter().find(|d| d.rule.code == "LF004").unwrap();
    assert_eq!((d.place.line, d.place.column, d.nearest.as_deref()), (20, 5, Some("expect")));
    assert_eq!(codes(&GOOD.replace("must_not: [", "mustnot: ["))[0], "LF004 16:24");
    assert_eq!(codes(&GOOD.replace("handoff: forbidden", "handoff: forbiden")), ["LF008 16:61"]);
    assert_eq!(codes(&GOOD.replace("version: 1", "version: 2")), ["LF007 1:10"]);
}

#[test]
fn a_case_without_a_check_that_can_fail_is_told() {
    for nothing in ["expect: {}", "expect: { tools: {} }"] {
        let text = GOOD.replace("expect: { schema: decision }", nothing);
        let (file, found, _) = read("g.yaml", text.as_bytes());
        assert!(found.is_empty(), "{found:#?}");
        let told = contradictions(&file.unwrap());
        assert_eq!((told.len(), told[0].no_check, told[0].pointer.as_str()), (1, true, "/cases/1/expect"));
    }
    // Without the key it is missing, which the schema says.
    assert_eq!(codes(&GOOD.replace("    expect: { schema: decision }\n", "")).len(), 1);
}

#[test]
fn names_that_lead_nowhere_and_parts_that_exclude_each_other_are_told() {
    assert_eq!(
        told(&GOOD.replace("expect: { schema: decision }", "expect: { schema: decison }")),
        ["/cases/1/expect/schema"]
    );
    assert_eq!(
        told(&GOOD.replace("must_not: [issue_refund]", "must_not: [issue_refnd]")),
        ["/cases/0/expect/tools/must_not/0"]
    );
    assert_eq!(told(&GOOD.replace("id: decision", "id: no-consent")), ["/cases/1/id"]);
    // Nobody may refund without consent, so no case may demand it.
    assert_eq!(
        told(&GOOD.replace("must_not: [issue_refund]", "must: [issue_refund]")),
        ["/cases/0/expect/tools/must/0"]
    );
    assert_eq!(told(&GOOD.replace("handoff: { tool: transfer_to_human }\n", "")), ["/cases/0/expect/handoff"]);
    assert_eq!(
        told(&GOOD.replace("role: user, content: Where", "role: assistant, content: Where")),
        ["/cases/1/messages/0"]
    );
    assert_eq!(told(&GOOD.replace("set: shop", "set: shop\nsystem: file:prompt.md")), ["/system"]);
}
