//! Did the answer end as an answer ends?

use super::Verdict;
use crate::wire::ToolCall;

/// The finish of one choice. A text cut at the token limit, a filtered answer and a call whose arguments are no JSON object are
/// failures: the business got no answer from them (cases B029, B067). What decides whether there are calls are the calls, not
/// the finish reason (case B030). No reason at all, in an answer that is complete otherwise, is let pass (case B012).
#[must_use]
pub fn finish(finish_reason: Option<&str>, calls: &[ToolCall]) -> Verdict {
    match finish_reason {
        None | Some("stop" | "tool_calls" | "function_call") => {}
        Some("length") => return Verdict::Fail("cut at the token limit".to_owned()),
        Some("content_filter") => return Verdict::Fail("blocked by a content filter".to_owned()),
        Some(other) => {
            return Verdict::Fail(format!("ended with finish reason `{}`", crate::units::printable(other, 40)));
        }
    }
    let object = |text: &str| {
        text.trim().is_empty() || serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_object())
    };
    match calls.iter().find(|call| call.name.is_empty() || !object(&call.arguments)) {
        None => Verdict::Pass,
        Some(call) if call.name.is_empty() => Verdict::Fail("a tool call without a name".to_owned()),
        Some(call) => Verdict::Fail(format!("invalid arguments of `{}`", crate::units::printable(&call.name, 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "a".into(), name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn ends_of_answers() {
        assert!(finish(Some("stop"), &[]).passed());
        assert!(finish(None, &[]).passed());
        assert!(finish(Some("tool_calls"), &[call("f", "{\"a\":1}"), call("g", "")]).passed());
        assert!(finish(Some("stop"), &[call("f", "{}")]).passed());
        assert_eq!(finish(Some("length"), &[]).why(), Some("cut at the token limit"));
        assert_eq!(finish(Some("content_filter"), &[]).why(), Some("blocked by a content filter"));
        assert_eq!(finish(Some("er\u{1b}ror"), &[]).why(), Some("ended with finish reason `er\\u{1b}ror`"));
        for broken in ["{\"order_id\":\"A1\",\"amo", "[1]", "7", "{}{}"] {
            assert_eq!(finish(Some("tool_calls"), &[call("f", broken)]).why(), Some("invalid arguments of `f`"));
        }
        assert!(finish(Some("tool_calls"), &[call("", "{}")]).failed());
    }
}
