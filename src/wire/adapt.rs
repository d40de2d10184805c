//! A prompt in place of a parameter: what a tested template puts at the end of the system prompt (rule R5).

use super::json;
use super::rewrite::Splice;

/// Where a template has the schema. One without it has the schema below its text.
pub const SCHEMA_PLACE: &str = "{{schema}}";

/// What a template says for this schema.
fn filled(template: &str, schema: &str) -> String {
    if template.contains(SCHEMA_PLACE) {
        return template.replace(SCHEMA_PLACE, schema);
    }
    format!("{}\n\n{schema}", template.trim_end())
}

/// Puts a template for a schema at the end of the first system (or developer) message, or before the first message where there
/// is none. `None` if there is no place for it: the messages are no list of objects, or that message's content is neither a
/// text nor a list.
pub(super) fn ask(body: &str, messages: &str, template: &str, schema: &str) -> Option<Splice> {
    let said = filled(template, schema);
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut first = None;
    let mut system = None;
    let mut objects = true;
    json::elements(messages, |message| {
        first.get_or_insert(message);
        let (mut role, mut content) = (None, None);
        objects &= json::members(message, |m| match m.key().as_ref() {
            "role" => role = json::text(m.value),
            "content" => content = Some(m.value),
            _ => {}
        });
        if system.is_none() && matches!(role.as_deref(), Some("system" | "developer")) {
            system = Some(content);
        }
    });
    let at = json::place(body, first.filter(|_| objects)?)?;
    let Some(content) = system else {
        let message = format!("{{\"role\":\"system\",\"content\":{}}},", text(&said));
        return Some((at.start..at.start, message));
    };
    let content = content?;
    let end = json::place(body, content)?.end.checked_sub(1)?;
    if content.starts_with('"') {
        let quoted = text(&format!("\n\n{said}"));
        return Some((end..end, quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned()));
    }
    let mut parts = 0;
    if !json::elements(content, |_| parts += 1) {
        return None;
    }
    let comma = if parts > 0 { "," } else { "" };
    Some((end..end, format!("{comma}{{\"type\":\"text\",\"text\":{}}}", text(&said))))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json as value};

    use crate::wire::ChatRequest;
    use crate::wire::changes::Changes;

    const FORMAT: &str = r#""response_format":{"type":"json_schema","json_schema":{"name":"o","strict":true,"schema":{"type":"object","required":["id"]}}}"#;

    fn adapted(messages: &str, template: &str) -> Option<Value> {
        let body = format!(r#"{{"model":"m","temperature":0.10,{FORMAT},"messages":{messages},"seed":7}}"#);
        let request = ChatRequest::parse(Bytes::from(body)).unwrap();
        let sent = request.adaptable().then(|| {
            let changes = Changes { schema_by: Some(template), limit_name: "max_tokens", ..Changes::default() };
            request.rewrite_with("m", &changes)
        })?;
        let text = String::from_utf8(sent.to_vec()).unwrap();
        assert!(text.starts_with(r#"{"model":"m","temperature":0.10,"messages":"#), "the rest is as it came: {text}");
        assert!(text.ends_with(r#","seed":7}"#), "{text}");
        Some(serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{e}: {text}"))["messages"].clone())
    }

    #[test]
    fn the_template_stands_at_the_end_of_the_system_prompt_with_the_schema_in_its_place() {
        let schema = r#"{"type":"object","required":["id"]}"#;
        let said = format!("Keep \"{schema}\".");
        let template = "Keep \"{{schema}}\".";
        let user = value!({ "role": "user", "content": "hi" });
        for (messages, system) in [
            (
                r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]"#,
                value!({ "role": "system", "content": format!("Be brief.\n\n{said}") }),
            ),
            (
                r#"[ {"content":"\u00fc \\","role":"developer"} , {"role":"user","content":"hi"}]"#,
                value!({ "role": "developer", "content": format!("\u{fc} \\\n\n{said}") }),
            ),
            (
                r#"[{"role":"system","content":[{"type":"text","text":"A"} ]},{"role":"user","content":"hi"}]"#,
                value!({ "role": "system", "content": [{ "type": "text", "text": "A" }, { "type": "text", "text": said }] }),
            ),
            (
                r#"[{"role":"system","content":[]},{"role":"user","content":"hi"}]"#,
                value!({ "role": "system", "content": [{ "type": "text", "text": said }] }),
            ),
            (r#"[{"role":"user","content":"hi"}]"#, value!({ "role": "system", "content": said })),
        ] {
            assert_eq!(adapted(messages, template), Some(value!([system, user])), "{messages}");
        }
        let below = adapted(r#"[{"role":"user","content":"hi"}]"#, "Answer by this schema:\n").unwrap();
        assert_eq!(below[0]["content"], format!("Answer by this schema:\n\n{schema}"));
    }

    #[test]
    fn where_there_is_no_place_for_it_the_request_cannot_be_adapted() {
        for messages in [
            "[]",
            r#"[{"role":"system","content":null}]"#,
            r#"[{"role":"system"}]"#,
            r#"[{"role":"system","content":{}}]"#,
        ] {
            assert_eq!(adapted(messages, "x"), None, "{messages}");
        }
        let strict_tool = format!(
            r#"{{"model":"m",{FORMAT},"messages":[{{"role":"user","content":"hi"}}],"tools":[{{"type":"function","function":{{"name":"f","strict":true}}}}]}}"#
        );
        let request = ChatRequest::parse(Bytes::from(strict_tool)).unwrap();
        assert!(request.strict_schema && !request.adaptable(), "a prompt is no strict tool");
    }
}
