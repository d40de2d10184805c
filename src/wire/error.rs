//! Error shapes: reading whatever a provider sends, and building what a client of the OpenAI API understands.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::scrub::Secrets;
use crate::units::printable;

/// Longest `type`, `code` and `param` kept, in characters.
const MAX_WORD_CHARS: usize = 80;
/// Longest message kept, in characters.
const MAX_MESSAGE_CHARS: usize = 1000;
/// Longest error body that is looked into. Real ones have a few hundred bytes.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// A delay named in a body is at most a hint; longer ones are this long.
const MAX_HINT: Duration = Duration::from_secs(3600);

/// An error as a provider told it, scrubbed and bounded: safe to log and to send on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorObject {
    /// The HTTP status; 200 for an error object inside a success.
    pub status: u16,
    /// It is an API's error object (and not a proxy's page, a framework's text or nothing at all).
    pub openai_shape: bool,
    /// `type` (or `status`, where a provider names it so), lower case; empty if absent.
    pub kind: String,
    /// `code`, lower case, also if it came as a number; empty if absent.
    pub code: String,
    /// `param`; empty if absent.
    pub param: String,
    /// `message`; for a body without one, what kind of body it was. Never the text of an HTML page.
    pub message: String,
    /// A delay named in the body: a hint, for when no header says it (case B098). At most an hour.
    pub retry_after_hint: Option<Duration>,
}

impl ErrorObject {
    /// Reads an error body of any shape.
    #[must_use]
    pub fn read(status: u16, body: &[u8], secrets: &Secrets) -> ErrorObject {
        let mut out = if body.len() > MAX_BODY_BYTES {
            too_long(body.len())
        } else if let Ok(value) = serde_json::from_slice::<Value>(body) {
            from_value(&value, secrets)
        } else {
            ErrorObject { message: describe(body, secrets), ..ErrorObject::default() }
        };
        out.status = status;
        out
    }

    /// The error object as a client gets it; `extra` as in [`error_body`].
    #[must_use]
    pub fn to_body(&self, extra: &[(&str, Value)]) -> Bytes {
        let or = |text: &str, other: &'static str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
        error_body(
            &or(&self.kind, "upstream_error"),
            (!self.code.is_empty()).then_some(self.code.as_str()),
            &or(&self.message, "the model provider refused the request without saying why"),
            (!self.param.is_empty()).then_some(self.param.as_str()),
            extra,
        )
    }
}

/// The value of an `error` member. `None` if it says that there is none (`null`, `false`, empty).
pub(crate) fn from_member(value: &str, secrets: &Secrets) -> Option<ErrorObject> {
    if matches!(value, "null" | "false" | "\"\"" | "{}" | "[]") {
        return None;
    }
    let mut out = if value.len() > MAX_BODY_BYTES {
        too_long(value.len())
    } else {
        let value = serde_json::from_str::<Value>(value).unwrap_or(Value::Bool(true));
        from_value(&Value::Object(Map::from_iter([("error".to_owned(), value)])), secrets)
    };
    out.status = 200;
    Some(out)
}

/// Members under which servers tell what went wrong, the likeliest first.
const TELLING: [&str; 7] = ["message", "detail", "msg", "error_description", "error_message", "errorMessage", "errors"];

/// A member that tells what went wrong, in a document that has no `error` and is no answer. Text alone does: an object under
/// `message` is the way in which some APIs answer.
pub(crate) fn tells_of_one(key: &str, value: &str) -> bool {
    let list = matches!(key, "detail" | "errors") && value.starts_with(['[', '{']) && value.len() > 2;
    TELLING.contains(&key) && (list || value.starts_with('"') && value.len() > 2)
}

fn too_long(bytes: usize) -> ErrorObject {
    ErrorObject { message: format!("an error of {bytes} bytes, which is not looked into"), ..ErrorObject::default() }
}

fn from_value(value: &Value, secrets: &Secrets) -> ErrorObject {
    let value = match value {
        // Some send a list with one element.
        Value::Array(list) => list.first().unwrap_or(value),
        other => other,
    };
    let inner = value.get("error").unwrap_or(value);
    let text = |key: &str| inner.get(key).or_else(|| value.get(key)).and_then(loose).unwrap_or_default();
    let word = |text: &str| printable(&secrets.scrub(text), MAX_WORD_CHARS);
    let is_object_of_api = value.get("error").is_some_and(|e| e.get("message").is_some() || e.get("code").is_some())
        || value.get("object").and_then(Value::as_str) == Some("error");
    let message = match inner {
        Value::String(s) => s.clone(),
        _ => TELLING.map(text).into_iter().find(|t| !t.is_empty()).unwrap_or_default(),
    };
    let kind = Some(text("type")).filter(|t| !t.is_empty() && t != "error").unwrap_or_else(|| text("status"));
    ErrorObject {
        status: 0,
        openai_shape: is_object_of_api,
        kind: word(&kind).to_lowercase(),
        code: word(&text("code")).to_lowercase(),
        param: word(&text("param")),
        message: printable(&secrets.scrub(&message), MAX_MESSAGE_CHARS),
        retry_after_hint: inner.get("retry_after").or_else(|| value.get("retry_after")).and_then(hint),
    }
}

fn loose(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Null | Value::Bool(_) => None,
        Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    }
}

fn hint(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    (seconds.is_finite() && seconds >= 0.0)
        .then(|| Duration::try_from_secs_f64(seconds).unwrap_or(MAX_HINT).min(MAX_HINT))
}

/// What a body that is not JSON is. The text of a page is for nobody's eyes (cases B068, B069).
fn describe(body: &[u8], secrets: &Secrets) -> String {
    let body = body.trim_ascii();
    if body.is_empty() {
        return String::new();
    }
    if looks_like_html(body) {
        return "an HTML page instead of an error object".to_owned();
    }
    let head = &body[..body.len().min(4 * MAX_MESSAGE_CHARS)];
    match std::str::from_utf8(head) {
        Ok(text) => printable(&secrets.scrub(text), 300),
        Err(e) if e.valid_up_to() + 4 > head.len() => {
            printable(&secrets.scrub(&String::from_utf8_lossy(&head[..e.valid_up_to()])), 300)
        }
        Err(_) => "a body that is not text instead of an error object".to_owned(),
    }
}

/// The first sign of life of an HTML (or XML) page.
pub(crate) fn looks_like_html(body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    body.trim_ascii_start().first() == Some(&b'<')
}

/// An error body in OpenAI shape. `extra` members stand beside `message` and may not replace it.
#[must_use]
pub fn error_body(
    kind: &str,
    code: Option<&str>,
    message: &str,
    param: Option<&str>,
    extra: &[(&str, Value)],
) -> Bytes {
    let mut error = Map::new();
    error.insert("message".to_owned(), json!(message));
    error.insert("type".to_owned(), json!(kind));
    error.insert("param".to_owned(), json!(param));
    error.insert("code".to_owned(), json!(code));
    for (key, value) in extra {
        error.entry((*key).to_owned()).or_insert_with(|| value.clone());
    }
    Bytes::from(json!({ "error": error }).to_string())
}

/// The one event that ends a stream which broke after commit (rule R2). No `[DONE]` follows it.
#[must_use]
pub fn sse_error_event(
    code: &str,
    message: &str,
    request_id: &str,
    retry_safe: bool,
    tool_calls_delivered: bool,
) -> Bytes {
    let extra = [
        ("request_id", json!(request_id)),
        ("retry_safe", json!(retry_safe)),
        ("tool_calls_delivered", json!(tool_calls_delivered)),
    ];
    let body = error_body("stream_broken", Some(code), message, None, &extra);
    let mut event = Vec::with_capacity(body.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(&body);
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(status: u16, body: &str) -> ErrorObject {
        ErrorObject::read(status, body.as_bytes(), &Secrets::default())
    }

    /// `type`, `code`, `message`, whether it is an API's error object.
    fn facts(body: &str) -> (String, String, String, bool) {
        let error = read(400, body);
        (error.kind, error.code, error.message, error.openai_shape)
    }

    fn right(kind: &str, code: &str, message: &str, shape: bool) -> (String, String, String, bool) {
        (kind.into(), code.into(), message.into(), shape)
    }

    #[test]
    fn b064_the_openai_shape() {
        let error = read(
            429,
            r#"{"error":{"message":"You exceeded your quota","type":"insufficient_quota","param":"model","code":"Insufficient_Quota"}}"#,
        );
        assert_eq!((error.status, error.openai_shape), (429, true));
        assert_eq!((error.kind.as_str(), error.code.as_str()), ("insufficient_quota", "insufficient_quota"));
        assert_eq!((error.param.as_str(), error.message.as_str()), ("model", "You exceeded your quota"));
    }

    #[test]
    fn shapes_of_other_servers() {
        for (body, expected) in [
            // A server in the manner of vLLM, old form.
            (
                r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#,
                right("badrequesterror", "400", "too long", true),
            ),
            // Anthropic.
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                right("overloaded_error", "", "Overloaded", true),
            ),
            // Google, also as a list.
            (
                r#"[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}]"#,
                right("resource_exhausted", "429", "m", true),
            ),
            // llama.cpp.
            (
                r#"{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_ctx":8192}}"#,
                right("exceed_context_size_error", "400", "m", true),
            ),
            (r#"{"error":"model 'x' not found"}"#, right("", "", "model 'x' not found", false)),
            (r#"{"detail":"Not Found"}"#, right("", "", "Not Found", false)),
            (r#"{"message":"no Route matched"}"#, right("", "", "no Route matched", false)),
            (r#"{"error":true}"#, right("", "", "", false)),
            ("{}", right("", "", "", false)),
            ("\"text\"", right("", "", "text", false)),
            ("null", right("", "", "", false)),
            ("", right("", "", "", false)),
        ] {
            assert_eq!(facts(body), expected, "{body}");
        }
        let detail = read(422, r#"{"detail":[{"loc":["body","messages"],"msg":"field required"}]}"#);
        assert!(detail.message.contains("field required") && !detail.openai_shape);
    }

    #[test]
    fn b068_pages_and_texts_say_what_they_are() {
        assert_eq!(read(502, " <html>secret plan</html>").message, "an HTML page instead of an error object");
        assert_eq!(read(520, "").message, "");
        assert_eq!(read(503, "upstream connect error\r\n").message, "upstream connect error");
        assert_eq!(read(503, &"é".repeat(5000)).message.chars().count(), 301);
        let huge = format!("{{\"error\":[{}1]}}", "[],".repeat(100_000));
        assert_eq!(read(500, &huge).message, "an error of 300013 bytes, which is not looked into");
        let binary = ErrorObject::read(500, b"\x1f\x8b\x08\xff\xfe", &Secrets::default());
        assert_eq!(binary.message, "a body that is not text instead of an error object");
    }

    #[test]
    fn everything_is_bounded_and_printable() {
        let long = "x".repeat(5000);
        let error = read(
            400,
            &json!({"error":{"message":format!("\u{1b}]0;{long}"),"type":long,"code":"a\nb","param":long}}).to_string(),
        );
        // 1000 characters of the message, the first one escaped into six, and an ellipsis.
        assert!(
            error.message.starts_with("\\u{1b}]0;x") && error.message.chars().count() == MAX_MESSAGE_CHARS - 1 + 6 + 1
        );
        assert_eq!((error.kind.chars().count(), error.code.as_str()), (MAX_WORD_CHARS + 1, "a\\u{a}b"));
        assert_eq!(error.param.chars().count(), MAX_WORD_CHARS + 1);
    }

    #[test]
    fn b148_secrets_go_before_anything_else_happens() {
        let key = "local-a-9f8e7d6c5b4a";
        let secrets = Secrets::new([key]);
        let body = json!({"error":{"message":format!("bad {key}"),"code":key,"param":key,"type":key}}).to_string();
        let error = ErrorObject::read(401, body.as_bytes(), &secrets);
        assert_eq!(error.message, "bad [redacted]");
        assert_eq!((error.code.as_str(), error.param.as_str()), ("[redacted]", "[redacted]"));
        // Where the message is cut, no half of a key is left either.
        let body = json!({"error":{"message":format!("{}{key}", "y".repeat(MAX_MESSAGE_CHARS - 8))}}).to_string();
        assert!(!ErrorObject::read(401, body.as_bytes(), &secrets).message.contains("local"));
    }

    #[test]
    fn b098_a_delay_in_the_body_is_a_bounded_hint() {
        let hint = |body: &str| read(524, body).retry_after_hint;
        assert_eq!(hint(r#"{"retry_after":120}"#), Some(Duration::from_secs(120)));
        assert_eq!(hint(r#"{"error":{"message":"m","retry_after":"1.5"}}"#), Some(Duration::from_millis(1500)));
        assert_eq!(hint(r#"{"retry_after":1e300}"#), Some(MAX_HINT));
        assert_eq!(hint(r#"{"retry_after":-1}"#), None);
        assert_eq!(hint(r#"{"retry_after":"soon"}"#), None);
    }

    #[test]
    fn what_a_client_gets_is_in_openai_shape() {
        let value = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let body = value(&read(502, "<html>").to_body(&[]));
        assert_eq!(body["error"]["type"], "upstream_error");
        assert_eq!(body["error"]["message"], "an HTML page instead of an error object");
        assert!(body["error"]["code"].is_null() && body["error"]["param"].is_null());
        let body = value(&read(500, "").to_body(&[]));
        assert!(body["error"]["message"].as_str().unwrap().contains("without saying why"));
        let body =
            value(&error_body("handoff", Some("all_failed"), "m", None, &[("message", json!("x")), ("id", json!(7))]));
        assert_eq!(body, json!({"error":{"message":"m","type":"handoff","param":null,"code":"all_failed","id":7}}));
    }

    proptest! {
        #[test]
        fn never_panics(status: u16, body in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
            let _ = ErrorObject::read(status, &body, &Secrets::default()).to_body(&[]);
            let _ = read(status, &json!({"error":{"message":text,"type":text,"code":text}}).to_string());
        }
    }
}
