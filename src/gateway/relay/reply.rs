//! Answers without an answer: honest errors in OpenAI shape, each with its cause and the request id. No assistant text is
//! ever invented.

use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json as value;

use super::super::driver::{Abort, Meta};
use super::super::http::{Answer, json, retry_after, set};
use crate::router::Reply;
use crate::units::human;
use crate::wire::ErrorObject;
use crate::wire::error::error_body;

/// Tells client libraries whether they should repeat a request by themselves.
pub const SHOULD_RETRY: &str = "x-should-retry";

/// One correlation id per conversation and turn; without a conversation, the request id.
#[must_use]
pub fn correlation(meta: &Meta) -> String {
    match (&meta.conversation, meta.turn) {
        (Some(conversation), Some(turn)) => format!("{conversation}/{turn}"),
        (Some(conversation), None) => conversation.clone(),
        (None, _) => meta.request.clone(),
    }
}

/// Headers of an answer.
pub fn answered(headers: &mut HeaderMap, target: &str, attempts: u32, degraded: bool) {
    set(headers, "x-llmfo-target", target);
    set(headers, "x-llmfo-attempts", &attempts.to_string());
    set(headers, "x-llmfo-outcome", if degraded { "degraded" } else { "answered" });
}

/// The reply that the core has decided on.
#[must_use]
pub fn reply(reply: &Reply, attempts: u32, error: Option<ErrorObject>, request: &str, correlation: &str) -> Answer {
    let extra = [("request_id", value!(request)), ("correlation_id", value!(correlation))];
    let (outcome, mut answer) = match reply {
        Reply::AsItIs { .. } => ("refused", as_it_is(error, &extra)),
        Reply::TooLong => (
            "refused",
            json(
                StatusCode::BAD_REQUEST,
                error_body(
                    "invalid_request_error",
                    Some("context_length_exceeded"),
                    "The conversation is longer than the context of every model that may answer it; shorten it.",
                    Some("messages"),
                    &extra,
                ),
            ),
        ),
        Reply::Handoff { cause, why, collect } => {
            // With no dial nothing was tried: whoever may answer cannot, or the policy gives this to people.
            let what = if attempts == 0 { "No model was asked" } else { "No model could answer" };
            let message = sentence(format!("{what}; hand this conversation to a human. {why}"));
            let mut extra = extra.to_vec();
            extra.push(("cause", value!(cause.name())));
            if !collect.is_empty() {
                extra.push(("collect", value!(collect)));
            }
            ("handoff", final_refusal(error_body("handoff", Some("handoff"), &message, None, &extra)))
        }
        // Answered in `replay.rs`, except where the ledger's file cannot be read.
        Reply::FromLedger { .. } => {
            let message = "This turn was answered before, and its calls cannot be read from the ledger; hand this conversation \
                           to a human, and check with `llmfo ledger list` what was called.";
            ("handoff", final_refusal(error_body("handoff", Some("handoff"), message, None, &extra)))
        }
        Reply::Unavailable { retry_after: wait, why } => {
            let message = sentence(format!(
                "No model is available for this request right now; send it again in {}. {why}",
                human(*wait)
            ));
            let body = error_body("overloaded", Some("no_target_available"), &message, None, &extra);
            let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, body);
            retry_after(answer.headers_mut(), *wait);
            ("refused", answer)
        }
        Reply::NobodyMay { why } => {
            let message = sentence(format!("No model may answer this request. {why}")) + &next_step(why);
            ("refused", final_refusal(error_body("refused", Some("nobody_may_answer"), &message, None, &extra)))
        }
    };
    set(answer.headers_mut(), "x-llmfo-outcome", outcome);
    set(answer.headers_mut(), "x-llmfo-attempts", &attempts.to_string());
    answer
}

/// What to write so that somebody may, for each reason that the core names (`router::skip`): `target: reason (detail)`.
fn next_step(why: &str) -> String {
    const STEPS: [(&str, &str); 6] = [
        (
            ": pii (",
            "In the policy, write `pii: allowed` or `pii: masked` on an attempt of this route, or `residency_required`; if the request carries no personal data, `data: none` on the route and send `x-llmfo-data: none`: both must say it.",
        ),
        (
            ": pii_unmaskable (",
            "Send text alone, or in the policy write `pii: allowed` on an attempt that may get it as it is.",
        ),
        (": residency (", "In the policy, correct the targets' `residency` or the route's `residency_required`."),
        (
            ": intent (",
            "Send an `x-llmfo-intent` that an attempt of this route lists, or list it there under `intents`.",
        ),
        (": quality_tier (", "In the policy, write `degrade: allowed` on the route."),
        (": no_failover (", "In the policy, the route says `failover: none`: its first target alone may answer."),
    ];
    let mut text = String::new();
    for (_, step) in STEPS.iter().filter(|(reason, _)| why.contains(reason)) {
        text.push(' ');
        text.push_str(step);
    }
    if text.is_empty() { String::new() } else { text + " `llmfo validate` finds routes on which nobody may." }
}

/// The core's reasons are lists without an end.
fn sentence(mut text: String) -> String {
    text.truncate(text.trim_end().len());
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}

/// 503 that a client library must not repeat by itself.
fn final_refusal(body: bytes::Bytes) -> Answer {
    let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, body);
    answer.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    answer
}

/// The provider's own error: its status and message, in OpenAI shape, secrets taken out.
fn as_it_is(error: Option<ErrorObject>, extra: &[(&str, serde_json::Value)]) -> Answer {
    // What it said could not be read: its failure all the same, and no mistake of the caller's.
    let unread = || ErrorObject { status: StatusCode::BAD_GATEWAY.as_u16(), ..ErrorObject::default() };
    let error = error.unwrap_or_else(unread);
    // An error object inside a 200 is no success either.
    let status = StatusCode::from_u16(error.status)
        .ok()
        .filter(|s| s.is_client_error() || s.is_server_error())
        .unwrap_or(StatusCode::BAD_REQUEST);
    let mut answer = json(status, error.to_body(extra));
    let says_when = status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE;
    if let Some(wait) = error.retry_after_hint.filter(|_| says_when) {
        retry_after(answer.headers_mut(), wait);
    }
    answer
}

/// The gateway itself ended the request before its commit point.
#[must_use]
pub fn aborted(why: Abort, request: &str) -> Answer {
    let (code, message) = match why {
        Abort::Draining => ("shutting_down", "This gateway is shutting down; use another one."),
        Abort::CoreLost => ("gateway_fault", "The gateway lost this request through a fault of its own; try again."),
    };
    let extra = [("request_id", value!(request))];
    let mut answer =
        json(StatusCode::SERVICE_UNAVAILABLE, error_body("gateway_error", Some(code), message, None, &extra));
    retry_after(answer.headers_mut(), std::time::Duration::from_secs(1));
    set(answer.headers_mut(), "x-llmfo-outcome", "refused");
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn message(asked: &Reply, attempts: u32) -> String {
        let body = reply(asked, attempts, None, "req-1", "c/1").into_body();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(body.collect()).unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        json["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_refusal_says_what_to_write_for_each_reason_and_nothing_else() {
        let why = "a: pii (personal data may not go to this tier); b: residency (its residency is outside)".to_owned();
        let text = message(&Reply::NobodyMay { why }, 0);
        for part in [
            "b: residency (its residency is outside). In the policy",
            "`pii: allowed`",
            "`data: none`",
            "`x-llmfo-data: none`",
            "`residency_required`",
            "`llmfo validate`",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("x-llmfo-intent") && !text.contains("degrade"), "{text}");
        let why = "a: intent (this tier does not answer the request's intent)".to_owned();
        let text = message(&Reply::NobodyMay { why }, 0);
        assert!(text.contains("Send an `x-llmfo-intent`") && !text.contains("pii"), "{text}");
    }

    #[test]
    fn a_handoff_without_a_dial_claims_none() {
        let why = || "a: capability_tools (needs tools)".to_owned();
        let handoff = || Reply::Handoff { cause: crate::router::HandoffCause::Tried, why: why(), collect: Vec::new() };
        let none = message(&handoff(), 0);
        assert!(none.starts_with("No model was asked; hand this conversation to a human. a: "), "{none}");
        assert!(message(&handoff(), 2).starts_with("No model could answer; hand"));
    }

    #[test]
    fn nobody_now_says_when_to_come_back() {
        let retry_after = std::time::Duration::from_secs(5);
        let text = message(&Reply::Unavailable { retry_after, why: "a: open (its breaker is open)".into() }, 0);
        assert!(
            text.starts_with("No model is available for this request right now; send it again in 5 s. a: "),
            "{text}"
        );
    }
}
