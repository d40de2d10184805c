//! The table for statuses and error objects.
//!
//! Words decide before the status, because used-up quotas come dressed as 400 or 429, overload as 400 or 500, and an error
//! inside a 200 has no status at all. In this order, the first that fits:
//!
//! | says | at status | class |
//! |---|---|---|
//! | `overloaded` as code or type; in prose | any; 429, 5xx, in a 200 | capacity |
//! | quota or billing used up | any code; prose at 400, 402, 403, 429, in a 200 | account, the budget |
//! | context length | any code; prose at 400, 413, 422, 500, in a 200 | too long |
//! | content filter, moderation | any code; prose at 400, 403, in a 200 | policy block |
//! | unsupported country or region | any code; 451; prose at 400, 403, in a 200 | place |
//! | model not found | any code; prose at 404 in OpenAI shape | account, the target alone |
//! | credential refused | 401; any code; prose at 400, 403, in a 200 | account |
//! | rate limit | 429, 529; any code; prose at 400, 403, 503, in a 200 | capacity |
//! | a parameter, role, feature or foreign call id | 400, 422, in a 200; prose also at 404 | mismatch |
//! | 402 | | account, the budget |
//! | 403 | in OpenAI shape: account, if repeated; else | provider |
//! | 404 | in OpenAI shape: caller; else | provider |
//! | 407, 408, 421, 425, 1xx, 2xx, 3xx, 5xx and above | | provider |
//! | other 4xx | | caller |

use super::words::{self, says};
use super::{Bench, Class, Lack, Verdict};
use crate::router::io::StatusFailure;

/// An error object inside a 200 has this status.
const IN_BAND: u16 = 200;

pub(super) fn classify(failure: &StatusFailure) -> Verdict {
    let mut verdict = table(failure);
    verdict.retry_after = failure.retry_after;
    if failure.status == IN_BAND && verdict.class == Class::Provider {
        verdict.reason = "error_in_200".into();
    }
    verdict
}

fn table(failure: &StatusFailure) -> Verdict {
    let code = failure.code.to_ascii_lowercase();
    let kind = failure.kind.to_ascii_lowercase();
    let prose = failure.message.to_ascii_lowercase();
    let status = effective_status(failure.status, &code, &kind);
    let is = |codes: &[&str]| codes.contains(&code.as_str()) || codes.contains(&kind.as_str());
    let prose_at = |statuses: &[u16], phrases: &[&str]| statuses.contains(&status) && says(&prose, phrases);
    let account =
        |bench: Bench, reason: &'static str| Verdict { bench: Some(bench), ..Verdict::new(Class::Account, reason) };

    if code.contains(words::OVERLOADED)
        || kind.contains(words::OVERLOADED)
        || (matches!(status, IN_BAND | 429 | 500..=599) && prose.contains(words::OVERLOADED))
    {
        return Verdict::new(Class::Capacity, "overloaded");
    }
    let about_a_rate = says(&prose, words::RATE_NOT_BUDGET);
    if is(words::BUDGET_CODES) || (prose_at(&[400, 402, 403, 429, IN_BAND], words::BUDGET_PHRASES) && !about_a_rate) {
        return account(Bench::Budget, "quota_used_up");
    }
    if is(words::CONTEXT_CODES) || prose_at(&[400, 413, 422, 500, IN_BAND], words::CONTEXT_PHRASES) {
        return Verdict::new(Class::TooLong, "context_length");
    }
    if is(words::POLICY_CODES) || prose_at(&[400, 403, IN_BAND], words::POLICY_PHRASES) {
        return Verdict::new(Class::PolicyBlock, "content_filter");
    }
    if status == 451 || is(words::PLACE_CODES) || prose_at(&[400, 403, IN_BAND], words::PLACE_PHRASES) {
        return Verdict::new(Class::Place, "unsupported_region");
    }
    if is(words::MODEL_CODES) || (status == 404 && failure.openai_shape && names_a_missing_model(&prose)) {
        return account(Bench::Target, "model_not_found");
    }
    if status == 401 || is(words::KEY_CODES) || prose_at(&[400, 403, IN_BAND], words::KEY_PHRASES) {
        return account(Bench::Credential, "credential_refused");
    }
    if matches!(status, 429 | 529) || is(words::RATE_CODES) || prose_at(&[400, 403, 503, IN_BAND], words::RATE_PHRASES)
    {
        let reason = if status == 529 { "overloaded" } else { "rate_limited" };
        return Verdict::new(Class::Capacity, reason);
    }
    if let Some(lack) = mismatch(status, &code, &kind, &failure.param.to_ascii_lowercase(), &prose) {
        return Verdict { lacks: Some(lack), ..Verdict::new(Class::Mismatch, "unsupported") };
    }
    by_status(status, failure.openai_shape)
}

fn by_status(status: u16, openai_shape: bool) -> Verdict {
    let class = match status {
        IN_BAND => return Verdict::new(Class::Provider, "error_in_200"),
        402 => return Verdict { bench: Some(Bench::Budget), ..Verdict::new(Class::Account, "quota_used_up") },
        403 if openai_shape => {
            let bench = Some(Bench::CredentialIfRepeated);
            return Verdict { bench, ..Verdict::new(Class::Account, "forbidden") };
        }
        403 => Class::Provider,
        404 if !openai_shape => Class::Provider,
        407 | 408 | 421 | 425 => Class::Provider,
        400..=499 => Class::Caller,
        _ => Class::Provider,
    };
    Verdict::new(class, format!("status_{status}"))
}

/// An error object inside a 200 says its status in its code (OpenRouter) or its type, if at all.
fn effective_status(status: u16, code: &str, kind: &str) -> u16 {
    if status != IN_BAND {
        return status;
    }
    let numeric = code.parse::<u16>().or_else(|_| kind.parse::<u16>()).ok();
    if let Some(numeric) = numeric.filter(|n| (400..600).contains(n)) {
        return numeric;
    }
    match kind {
        "invalid_request_error" | "badrequesterror" => 400,
        "permission_error" | "permission_denied" => 403,
        "not_found_error" | "notfounderror" => 404,
        "request_too_large" => 413,
        "server_error" | "api_error" | "internal_server_error" => 500,
        "service_unavailable_error" => 503,
        "timeout_error" => 504,
        _ => IN_BAND,
    }
}

fn names_a_missing_model(prose: &str) -> bool {
    prose.contains("model") && says(prose, &["does not exist", "not found", "do not have access"])
        || prose.starts_with("model:")
}

fn mismatch(status: u16, code: &str, kind: &str, param: &str, prose: &str) -> Option<Lack> {
    let coded = words::MISMATCH_CODES.contains(&code) || words::MISMATCH_CODES.contains(&kind);
    let foreign_id = {
        let named = says(prose, words::CALL_ID_PLACES)
            || says(param, words::CALL_ID_PLACES)
            || [prose, param].iter().any(|s| s.contains("tool_calls[") && s.contains("].id"));
        named && (says(prose, words::CALL_ID_REFUSALS) || code == "string_above_max_length")
    };
    let here = match status {
        400 | 422 | IN_BAND => coded || foreign_id || says(prose, words::MISMATCH_PHRASES),
        404 => prose.contains("no endpoints found that support"),
        _ => false,
    };
    if !here {
        return None;
    }
    if foreign_id {
        return Some(Lack::Other);
    }
    let about =
        |names: &[&str]| names.iter().any(|name| param.starts_with(name)) || (param.is_empty() && says(prose, names));
    Some(
        if about(&["tools", "tool_choice", "tool use", "tool-choice", "tool choice", "function calling", "functions"]) {
            Lack::Tools
        } else if about(&["response_format", "json_schema", "structured output", "guided"]) {
            Lack::StrictSchema
        } else if says(param, &["image"])
            || says(prose, &["image_url", "image input", "images", "multimodal", "vision"])
        {
            Lack::Vision
        } else {
            Lack::Other
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// `kind`, `code` and `message` of an OpenAI error object.
    fn object(status: u16, kind: &str, code: &str, message: &str) -> StatusFailure {
        StatusFailure {
            status,
            openai_shape: true,
            kind: kind.into(),
            code: code.into(),
            message: message.into(),
            ..StatusFailure::default()
        }
    }

    fn bare(status: u16, openai_shape: bool) -> StatusFailure {
        StatusFailure { status, openai_shape, ..StatusFailure::default() }
    }

    #[test]
    fn every_bare_status_has_its_class() {
        for status in 100..=999u16 {
            for shape in [true, false] {
                let verdict = classify(&bare(status, shape));
                let expected = match (status, shape) {
                    (200, _) => Class::Provider,
                    (401 | 402, _) | (403, true) => Class::Account,
                    (403 | 404, false) | (407 | 408 | 421 | 425, _) => Class::Provider,
                    (429 | 529, _) => Class::Capacity,
                    (451, _) => Class::Place,
                    (400..=499, _) => Class::Caller,
                    _ => Class::Provider,
                };
                assert_eq!(verdict.class, expected, "{status} {shape}");
                assert_eq!(verdict.counted, expected == Class::Provider);
                assert_eq!(verdict.bench.is_some(), expected == Class::Account);
            }
        }
    }

    #[test]
    fn reasons_name_the_status() {
        assert_eq!(classify(&bare(503, false)).reason, "status_503");
        assert_eq!(classify(&bare(204, false)).reason, "status_204");
        assert_eq!(classify(&bare(302, false)).reason, "status_302");
        assert_eq!(classify(&bare(404, true)).reason, "status_404");
    }

    #[test]
    fn account_faults_say_what_is_benched() {
        let table = [
            (bare(401, false), Bench::Credential),
            (bare(402, true), Bench::Budget),
            (bare(403, true), Bench::CredentialIfRepeated),
            (object(404, "invalid_request_error", "model_not_found", ""), Bench::Target),
            (object(403, "invalid_request_error", "model_not_found", ""), Bench::Target),
            (object(404, "NotFoundError", "404", "The model `x-large` does not exist."), Bench::Target),
            (object(404, "api_error", "", "model \"x\" not found, try pulling it first"), Bench::Target),
            (object(404, "not_found_error", "", "model: x-large"), Bench::Target),
            (object(429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"), Bench::Budget),
            (
                object(429, "", "", "You exceeded your current quota, please check your plan and billing details."),
                Bench::Budget,
            ),
            (
                object(400, "invalid_request_error", "", "Your credit balance is too low to access the API."),
                Bench::Budget,
            ),
            (object(403, "", "", "Monthly spending limit reached"), Bench::Budget),
            (object(400, "", "billing_hard_limit_reached", ""), Bench::Budget),
            (object(200, "insufficient_quota", "", ""), Bench::Budget),
            (object(400, "INVALID_ARGUMENT", "", "API key not valid. Please pass a valid API key."), Bench::Credential),
            (object(200, "authentication_error", "invalid_api_key", "Incorrect API key provided"), Bench::Credential),
        ];
        for (failure, bench) in table {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.bench), (Class::Account, Some(bench)), "{failure:?}");
            assert!(!verdict.counted);
        }
    }

    #[test]
    fn capacity_in_all_its_dresses() {
        let table = [
            (bare(429, true), "rate_limited"),
            (bare(429, false), "rate_limited"),
            (bare(529, false), "overloaded"),
            (object(500, "overloaded_error", "", "Overloaded"), "overloaded"),
            (object(400, "overloaded_error", "", "Overloaded"), "overloaded"),
            (object(200, "overloaded_error", "", "Overloaded"), "overloaded"),
            (object(200, "service_unavailable_error", "server_is_overloaded", ""), "overloaded"),
            (
                object(503, "server_error", "", "The engine is currently overloaded, please try again later"),
                "overloaded",
            ),
            (object(200, "requests", "rate_limit_exceeded", "Rate limit reached for x"), "rate_limited"),
            (object(400, "", "", "Rate limit reached, slow down"), "rate_limited"),
            (
                object(429, "", "", "You exceeded your current quota ... limit: 15 per minute. Please retry in 22.8s."),
                "rate_limited",
            ),
            (object(200, "", "429", "upstream"), "rate_limited"),
        ];
        for (failure, reason) in table {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, &*verdict.reason), (Class::Capacity, reason), "{failure:?}");
            assert!(!verdict.counted);
        }
    }

    #[test]
    fn a_customer_who_writes_overloaded_is_not_an_overload() {
        let quoted = object(400, "invalid_request_error", "", "Invalid role in: 'my car is overloaded'");
        assert_eq!(classify(&quoted).class, Class::Caller);
    }

    #[test]
    fn context_length_in_the_words_of_each_server() {
        let table = [
            object(
                400,
                "invalid_request_error",
                "context_length_exceeded",
                "This model's maximum context length is 8192 tokens",
            ),
            object(
                400,
                "BadRequestError",
                "400",
                "This model's maximum context length is 8192 tokens. However, you requested 9000",
            ),
            object(400, "exceed_context_size_error", "400", "the request exceeds the available context size"),
            object(413, "", "", "Prompt exceeds max length"),
            object(413, "", "", "input exceeds the context window"),
            object(400, "invalid_request_error", "", "prompt is too long: 210000 tokens > 200000 maximum"),
            object(500, "server_error", "", "the request exceeds the available context size, try increasing it"),
            object(200, "", "context_length_exceeded", ""),
        ];
        for failure in table {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.counted), (Class::TooLong, false), "{failure:?}");
        }
        let plain = object(413, "request_too_large", "", "Request exceeds the maximum allowed number of bytes");
        assert_eq!(classify(&plain).class, Class::Caller);
        let tokens = object(429, "tokens", "rate_limit_exceeded", "Request too large for x on tokens per min");
        assert_eq!(classify(&tokens).class, Class::Capacity);
    }

    #[test]
    fn policy_blocks_and_places() {
        for failure in [
            object(400, "", "content_filter", "The response was filtered"),
            object(400, "invalid_request_error", "content_policy_violation", ""),
            object(403, "", "403", "x requires moderation. Your input was flagged"),
            object(400, "", "", "triggering Azure OpenAI's content management policy"),
        ] {
            assert_eq!(classify(&failure).class, Class::PolicyBlock, "{failure:?}");
        }
        for failure in [
            bare(451, false),
            object(
                403,
                "request_forbidden",
                "unsupported_country_region_territory",
                "Country, region, or territory not supported",
            ),
            object(403, "", "", "Country, region, or territory not supported"),
            object(400, "FAILED_PRECONDITION", "", "User location is not supported for the API use."),
        ] {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.counted), (Class::Place, false), "{failure:?}");
        }
    }

    #[test]
    fn what_a_target_lacks_is_not_the_callers_fault() {
        let with_param = |param: &str, mut failure: StatusFailure| {
            failure.param = param.into();
            failure
        };
        let table = [
            (
                with_param(
                    "max_tokens",
                    object(
                        400,
                        "invalid_request_error",
                        "unsupported_parameter",
                        "Unsupported parameter: 'max_tokens'",
                    ),
                ),
                Lack::Other,
            ),
            (object(422, "", "bad_response_status_code", "Unexpected role 'developer'"), Lack::Other),
            (object(400, "", "", "`tools` is not supported by this model"), Lack::Tools),
            (
                object(
                    400,
                    "BadRequestError",
                    "400",
                    "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
                ),
                Lack::Tools,
            ),
            (object(404, "", "404", "No endpoints found that support tool use."), Lack::Tools),
            (
                with_param(
                    "response_format",
                    object(400, "invalid_request_error", "", "'json_schema' is not supported with this model"),
                ),
                Lack::StrictSchema,
            ),
            (object(400, "", "", "x is not a multimodal model"), Lack::Vision),
            (object(422, "extra_forbidden", "", "Extra inputs are not permitted"), Lack::Other),
            (
                object(400, "", "", "Tool call id was call_abc123 but must be a-z, A-Z, 0-9, with a length of 9."),
                Lack::Other,
            ),
            (
                with_param(
                    "messages[2].tool_calls[0].id",
                    object(
                        400,
                        "invalid_request_error",
                        "string_above_max_length",
                        "string too long. Expected a string with maximum length 40",
                    ),
                ),
                Lack::Other,
            ),
            (
                object(200, "invalid_request_error", "unsupported_value", "Unsupported value: 'temperature'"),
                Lack::Other,
            ),
        ];
        for (failure, lack) in table {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.lacks), (Class::Mismatch, Some(lack)), "{failure:?}");
            assert!(!verdict.counted);
        }
    }

    #[test]
    fn the_callers_mistakes_stay_the_callers() {
        for failure in [
            object(
                400,
                "invalid_request_error",
                "",
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
            ),
            object(400, "invalid_request_error", "", "'messages' is a required property"),
            object(422, "", "", "temperature must be at most 2"),
            object(409, "", "", "conflict"),
            object(415, "", "", "unsupported media type"),
            object(418, "", "", ""),
            object(404, "invalid_request_error", "", "Unknown request URL"),
            object(200, "invalid_request_error", "", "'messages' is a required property"),
        ] {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.counted), (Class::Caller, false), "{failure:?}");
        }
    }

    #[test]
    fn an_error_inside_a_200_without_a_known_word_is_the_providers() {
        for failure in [
            object(200, "server_error", "", "boom"),
            object(200, "", "502", "Provider returned error"),
            object(200, "", "", ""),
            object(200, "something_new", "else", "entirely"),
        ] {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, verdict.counted), (Class::Provider, true), "{failure:?}");
        }
    }

    #[test]
    fn a_stated_wait_is_kept() {
        let wait = Some(Duration::from_secs(7));
        assert_eq!(classify(&StatusFailure { retry_after: wait, ..bare(429, false) }).retry_after, wait);
    }
}
