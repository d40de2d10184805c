//! Why a target is passed over: a closed list of names.

use super::decision::Availability;
use super::io::{Standing, Unmaskable};
use crate::units::{self, Ts};

/// Why a target was not dialled.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Skip {
    /// Its residency is not within what the route requires.
    Residency,
    /// Personal data must not go there.
    Pii,
    /// It may have masked text only, and this request cannot be masked.
    Unmaskable(Unmaskable),
    /// Its tier does not answer this intent; true if the tier says `collect_and_handoff`.
    Intent(bool),
    /// The policy has expired and does not answer this intent any more.
    Expired,
    /// The route does not fail over.
    NoFailover,
    /// Failover is only observed.
    Observed,
    /// Its admission record does not let it stand in.
    Evidence(Standing),
    /// Another quality class, and the route does not allow that.
    QualityTier,
    /// It lacks tools.
    Tools,
    /// It takes no images.
    Vision,
    /// It does not follow a strict schema, and no adapter stands in.
    StrictSchema,
    /// Its window is too small for the estimated need.
    Context { need: u64, window: u64 },
    /// A target with this window or a larger one found the context too long.
    SmallerContext,
    /// It takes no traffic now.
    Away(Availability),
    /// Our own rate limit for its quota is used up until then.
    RateLimited(Ts),
    /// No slot is free.
    Full,
    /// Only this share of the traffic goes there, and this request is not part of it.
    Share(f64),
    /// It was tried for this request.
    Tried,
    /// All dials of this request are used up.
    AttemptsUsed,
    /// Too little time is left.
    NoTime,
}

/// What kind of reason it is: they lead to different replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may not answer (rule R10).
    MayNot,
    /// It cannot: a capability is missing.
    Lack,
    /// Its window is too small.
    Size,
    /// It takes no traffic now.
    Away,
    /// It has no room now.
    Full,
    /// It was tried.
    Tried,
    /// Dials or time are used up.
    Spent,
}

impl Skip {
    /// Its name in records.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Skip::Residency => "residency",
            Skip::Pii => "pii",
            Skip::Unmaskable(_) => "pii_unmaskable",
            Skip::Intent(_) => "intent",
            Skip::Expired => "expired",
            Skip::NoFailover => "no_failover",
            Skip::Observed => "observed",
            Skip::QualityTier => "quality_tier",
            Skip::Evidence(Standing::Excluded) => "evidence_excluded",
            Skip::Evidence(Standing::Stale) => "evidence_stale",
            Skip::Evidence(Standing::Mismatch) => "evidence_mismatch",
            Skip::Evidence(Standing::OtherPrompt) => "evidence_prompt",
            Skip::Evidence(Standing::Missing | Standing::Eligible) => "evidence_missing",
            Skip::Tools => "capability_tools",
            Skip::Vision => "capability_vision",
            Skip::StrictSchema => "capability_json_schema",
            Skip::Context { .. } => "capability_context",
            Skip::SmallerContext => "context_not_larger",
            Skip::RateLimited(_) => "rate_limit",
            Skip::Full => "full",
            Skip::Share(_) => "share",
            Skip::Away(Availability::Serving { .. }) => "no_share",
            Skip::Away(Availability::Cooling { why, .. }) if why == super::availability::OPEN => "open",
            Skip::Away(Availability::Cooling { why, .. }) if why == super::availability::EJECTED => "ejected",
            Skip::Away(Availability::Cooling { .. }) => "cooling",
            Skip::Away(Availability::Probing) => "probing",
            Skip::Away(Availability::Benched { .. }) => "benched",
            Skip::Tried => "tried",
            Skip::AttemptsUsed => "attempts_used",
            Skip::NoTime => "no_time",
        }
    }

    /// More, for people, as things stood at `now`.
    pub(super) fn detail(&self, now: Ts) -> String {
        match self {
            Skip::Residency => "its residency is outside what the route requires".to_owned(),
            Skip::Pii => "personal data may not go to this tier".to_owned(),
            Skip::Unmaskable(why) => match why {
                Unmaskable::Part => "this tier gets masked text only, and a part of the request is no text",
                Unmaskable::Shape => "this tier gets masked text only, and a message has a shape that is not known",
                Unmaskable::Sound => "this tier gets masked text only, and nothing can be put back into spoken output",
                Unmaskable::TooMany => "this tier gets masked text only, and there are too many values to mask",
            }
            .to_owned(),
            Skip::Intent(_) => "this tier does not answer the request's intent".to_owned(),
            Skip::Expired => "the policy has expired".to_owned(),
            Skip::Observed => "failover is only observed".to_owned(),
            Skip::NoFailover => "the route says failover: none".to_owned(),
            Skip::QualityTier => "another quality tier; the route does not say degrade: allowed".to_owned(),
            Skip::Evidence(standing) => match standing {
                Standing::Excluded => "its admission record excludes it",
                Standing::Stale => "its admission record is too old",
                Standing::Mismatch => "its admission record speaks about something else",
                Standing::OtherPrompt => "its admission record speaks about another system prompt",
                Standing::Missing | Standing::Eligible => "it has no admission record",
            }
            .to_owned(),
            Skip::RateLimited(until) => {
                format!("our limit for its quota is used up, for another {}", units::human(until.since(now)))
            }
            Skip::Full => "no slot is free".to_owned(),
            Skip::Share(share) => format!("it gets {:.0} % of the traffic now", share * 100.0),
            Skip::Tools => "needs tools".to_owned(),
            Skip::Vision => "needs vision".to_owned(),
            Skip::StrictSchema => "needs a strict JSON schema".to_owned(),
            Skip::Context { need, window } => format!("needs about {need} tokens, window {window}"),
            Skip::SmallerContext => "its window is not larger than the one that was too small".to_owned(),
            Skip::Away(Availability::Cooling { until, why }) => {
                let why = match why.as_str() {
                    super::availability::OPEN => "its breaker is open",
                    super::availability::EJECTED => "its health took it out",
                    _ => "it cools down",
                };
                format!("{why}, for another {}", units::human(until.since(now)))
            }
            Skip::Away(Availability::Benched { until, why }) if why == super::availability::OPERATOR => {
                let left = if *until == Ts::FAR {
                    String::new()
                } else {
                    format!(", for another {}", units::human(until.since(now)))
                };
                format!("an operator took it out{left}")
            }
            Skip::Away(Availability::Benched { until, why }) => {
                format!("{why}, next probe in {}", units::human(until.since(now)))
            }
            Skip::Away(Availability::Probing) => "its probe is under way".to_owned(),
            Skip::Away(Availability::Serving { .. }) | Skip::Tried | Skip::AttemptsUsed | Skip::NoTime => String::new(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Skip::Residency
            | Skip::Pii
            | Skip::Unmaskable(_)
            | Skip::Intent(_)
            | Skip::Expired
            | Skip::NoFailover
            | Skip::Observed
            | Skip::QualityTier
            | Skip::Evidence(_) => Kind::MayNot,
            Skip::Tools | Skip::Vision | Skip::StrictSchema => Kind::Lack,
            Skip::Context { .. } | Skip::SmallerContext => Kind::Size,
            Skip::Away(_) => Kind::Away,
            Skip::RateLimited(_) | Skip::Full | Skip::Share(_) => Kind::Full,
            Skip::Tried => Kind::Tried,
            Skip::AttemptsUsed | Skip::NoTime => Kind::Spent,
        }
    }
}
