//! The words by which an error says what it is: machine codes first, then a small table of phrases for prose.
//!
//! A code is matched whole, at any status. A phrase is matched inside the lower-case message and only at the statuses where
//! providers are known to use it, because a 400 may quote the customer's own text. Who says what (seen in public bug
//! reports and API references): OpenAI and Azure, Anthropic, vLLM, llama.cpp, Ollama, Mistral, Gemini, OpenRouter, Qwen.

/// Overload (capacity). Any code or type that contains it: `overloaded_error`, `server_is_overloaded`, `engine_overloaded`.
pub(super) const OVERLOADED: &str = "overloaded";

/// Used-up quota or billing (account).
pub(super) const BUDGET_CODES: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "insufficient_balance",
    "insufficient_credits",
    "insufficient_user_quota",
    "payment_required",
    "spending_limit_reached",
    "account_deactivated",
    "arrearage",
];

/// The same in prose.
pub(super) const BUDGET_PHRASES: &[&str] = &[
    "credit balance",
    "insufficient balance",
    "insufficient credits",
    "insufficient_quota",
    "exceeded your current quota",
    "check your plan and billing",
    "billing hard limit",
    "spending cap",
    "spending limit",
];

/// A sentence that speaks of a budget but means a rate: Gemini words both alike and adds when to come back.
pub(super) const RATE_NOT_BUDGET: &[&str] = &["per minute", "perminute", "retry in", "per second"];

/// A refused credential (account).
pub(super) const KEY_CODES: &[&str] =
    &["invalid_api_key", "api_key_invalid", "authentication_error", "invalid_authentication", "unauthenticated"];

/// The same in prose.
pub(super) const KEY_PHRASES: &[&str] =
    &["api key not valid", "invalid api key", "incorrect api key", "api key expired"];

/// Rate limit (capacity).
pub(super) const RATE_CODES: &[&str] =
    &["rate_limit_exceeded", "rate_limit_error", "too_many_requests", "resource_exhausted", "throttling_exception"];

/// The same in prose.
pub(super) const RATE_PHRASES: &[&str] = &["rate limit", "rate-limit", "ratelimit", "too many requests"];

/// Context longer than the window (too long).
pub(super) const CONTEXT_CODES: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "model_max_prompt_tokens_exceeded",
];

/// The same in prose.
pub(super) const CONTEXT_PHRASES: &[&str] = &[
    "maximum context length",
    "context length",
    "context window",
    "context size",
    "maximum model length",
    "max_model_len",
    "prompt is too long",
    "prompt exceeds max length",
    "input is too long for requested model",
    "reduce the length of the messages",
    "exceeds the maximum number of tokens",
];

/// Content filter (policy block).
pub(super) const POLICY_CODES: &[&str] = &[
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "moderation_blocked",
    "data_inspection_failed",
    "content_filtered",
];

/// The same in prose.
pub(super) const POLICY_PHRASES: &[&str] = &[
    "content management policy",
    "content policy",
    "requires moderation",
    "flagged by moderation",
    "input was flagged",
    "rejected as a result of our safety system",
];

/// Refused for where it comes from (place).
pub(super) const PLACE_CODES: &[&str] = &["unsupported_country_region_territory", "unsupported_region"];

/// The same in prose.
pub(super) const PLACE_PHRASES: &[&str] = &[
    "country, region, or territory not supported",
    "location is not supported",
    "not available in your region",
    "not available in your country",
    "unsupported region",
];

/// A model that is not there for this account (account, the target alone).
pub(super) const MODEL_CODES: &[&str] = &["model_not_found", "model_not_available"];

/// A parameter, role or feature that the target lacks (mismatch).
pub(super) const MISMATCH_CODES: &[&str] = &[
    "unsupported_parameter",
    "unsupported_value",
    "unsupported_feature",
    "unknown_parameter",
    "unrecognized_request_argument",
    "extra_forbidden",
];

/// The same in prose.
pub(super) const MISMATCH_PHRASES: &[&str] = &[
    "unsupported parameter",
    "unsupported value",
    "unsupported role",
    "unrecognized request argument",
    "unrecognized role",
    "unexpected role",
    "unknown parameter",
    "unknown role",
    "extra inputs are not permitted",
    "extra fields not permitted",
    "is not supported",
    "are not supported",
    "not supported with this model",
    "does not support",
    "doesn't support",
    "not a multimodal model",
    "requires --enable-auto-tool-choice",
    "no endpoints found that support",
];

/// Where a foreign tool-call id is named ...
pub(super) const CALL_ID_PLACES: &[&str] = &["tool_call_id", "tool call id", "tool_use_id", "tool_use.id"];

/// ... and how it is refused (mismatch). "must be followed by tool messages" is the caller's mistake and not in here.
pub(super) const CALL_ID_REFUSALS: &[&str] =
    &["too long", "maximum length", "length of", "pattern", "but must be a-z", "invalid characters"];

/// True if one of the phrases is in the text.
pub(super) fn says(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase))
}
