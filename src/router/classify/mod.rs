//! Whose fault an outcome is: one exhaustive table (rule R3), no catch-all "retryable".
//!
//! | how it failed | class | counted |
//! |---|---|---|
//! | the network, TLS, silence, a broken or empty answer | provider | yes |
//! | the gateway's own fault (`internal`, `ledger_unwritable`), or a probe's answer that is not good enough (`quality`) | provider | no |
//! | a status or an error object | see `status.rs` | provider only |

mod status;
mod words;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::io::Failure;

/// The reason of [`Failure::LedgerUnwritable`].
pub const UNWRITABLE: &str = "ledger_unwritable";

/// The class of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A completed answer.
    Success,
    /// The caller's own mistake: returned as it is.
    Caller,
    /// A content filter: returned as it is.
    PolicyBlock,
    /// This target lacks a parameter, role or feature.
    Mismatch,
    /// The context is longer than this target's window.
    TooLong,
    /// Credential, quota or billing.
    Account,
    /// The place of the request is not allowed there.
    Place,
    /// Rate limit or overload.
    Capacity,
    /// The provider, the network, or the answer itself.
    Provider,
    /// The client left.
    ClientGone,
}

impl Class {
    /// Its name in records, events and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Success => "success",
            Class::Caller => "caller",
            Class::PolicyBlock => "policy_block",
            Class::Mismatch => "mismatch",
            Class::TooLong => "too_long",
            Class::Account => "account",
            Class::Place => "place",
            Class::Capacity => "capacity",
            Class::Provider => "provider",
            Class::ClientGone => "client_gone",
        }
    }

    /// True if the target's error goes to the client as it is, without failover.
    #[must_use]
    pub const fn returned_as_it_is(self) -> bool {
        matches!(self, Class::Caller | Class::PolicyBlock)
    }
}

/// What an account fault benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Every target with this credential.
    Credential,
    /// The same, but only when a second request has seen it (403).
    CredentialIfRepeated,
    /// Quota or billing: every target on the declared `account` domain, else with this credential.
    Budget,
    /// This target alone (`model_not_found`).
    Target,
}

/// What a mismatch says that the target lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Tools, or a tool choice.
    Tools,
    /// Image parts.
    Vision,
    /// `response_format` with a schema.
    StrictSchema,
    /// Anything else: known for the request that met it only.
    Other,
}

/// The verdict on one failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whose fault.
    pub class: Class,
    /// Named reason: `refused`, `first_token_timeout`, `status_503`, `insufficient_quota` ...; the closed list is in this
    /// module's code, and a status outside it reads `status_NNN`.
    pub reason: Cow<'static, str>,
    /// It counts in the breaker.
    pub counted: bool,
    /// For [`Class::Account`]: what is benched.
    pub bench: Option<Bench>,
    /// For [`Class::Mismatch`]: what is lacking.
    pub lacks: Option<Lack>,
    /// Nothing was heard within a limit: never redialled in this request.
    pub silent: bool,
    /// A stated wait.
    pub retry_after: Option<Duration>,
}

impl Verdict {
    pub(crate) fn new(class: Class, reason: impl Into<Cow<'static, str>>) -> Verdict {
        Verdict {
            class,
            reason: reason.into(),
            counted: class == Class::Provider,
            bench: None,
            lacks: None,
            silent: false,
            retry_after: None,
        }
    }

    fn silent(reason: &'static str) -> Verdict {
        Verdict { silent: true, ..Verdict::new(Class::Provider, reason) }
    }
}

/// Says whose fault a failure is. Total: every failure has exactly one class.
#[must_use]
pub fn classify(failure: &Failure) -> Verdict {
    let provider = |reason: &'static str| Verdict::new(Class::Provider, reason);
    match failure {
        Failure::Status(status) => status::classify(status),
        Failure::Dns => provider("dns"),
        Failure::Refused => provider("refused"),
        Failure::ConnectTimeout => Verdict::silent("connect_timeout"),
        Failure::Connect(_) => provider("connect"),
        Failure::Tls(_) => provider("tls"),
        Failure::Reset => provider("reset"),
        Failure::FirstTokenTimeout => Verdict::silent("first_token_timeout"),
        Failure::AnswerTimeout => Verdict::silent("answer_timeout"),
        Failure::IdleTimeout => Verdict::silent("idle_timeout"),
        Failure::Deadline => Verdict::silent("deadline"),
        Failure::Truncated => provider("truncated"),
        Failure::Empty => provider("empty"),
        Failure::Malformed(_) => provider("malformed"),
        Failure::BadFinish(_) => provider("bad_finish"),
        Failure::TooLarge => provider("too_large"),
        // Our own fault must not take a healthy target out.
        Failure::Quality(_) => Verdict { counted: false, ..provider("quality") },
        Failure::LedgerUnwritable => Verdict { counted: false, ..provider(UNWRITABLE) },
        Failure::Internal(_) => Verdict { counted: false, ..provider("internal") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_and_answer_faults_are_the_providers() {
        let table: [(Failure, &str, bool); 14] = [
            (Failure::Dns, "dns", false),
            (Failure::Refused, "refused", false),
            (Failure::ConnectTimeout, "connect_timeout", true),
            (Failure::Connect("no route".into()), "connect", false),
            (Failure::Tls("expired".into()), "tls", false),
            (Failure::Reset, "reset", false),
            (Failure::FirstTokenTimeout, "first_token_timeout", true),
            (Failure::AnswerTimeout, "answer_timeout", true),
            (Failure::IdleTimeout, "idle_timeout", true),
            (Failure::Truncated, "truncated", false),
            (Failure::Empty, "empty", false),
            (Failure::Malformed("<html>".into()), "malformed", false),
            (Failure::BadFinish("abort".into()), "bad_finish", false),
            (Failure::TooLarge, "too_large", false),
        ];
        for (failure, reason, silent) in table {
            let verdict = classify(&failure);
            assert_eq!((verdict.class, &*verdict.reason), (Class::Provider, reason));
            assert!(verdict.counted, "{reason}");
            assert_eq!(verdict.silent, silent, "{reason}");
        }
    }

    #[test]
    fn our_own_fault_fails_over_but_does_not_count() {
        let verdict = classify(&Failure::Internal("bug".into()));
        assert_eq!((verdict.class, verdict.counted), (Class::Provider, false));
    }
}
