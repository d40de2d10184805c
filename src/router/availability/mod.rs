//! Availability: one value per target, computed in one place from signals that each have a file of their own.
//!
//! | signal | scope | takes out | ends by |
//! |---|---|---|---|
//! | [`breaker`] | the target | all | completed probes |
//! | [`health`] | the target | a share; all of it after three bad minutes, unless it is a route's last | time; completed probes |
//! | [`capacity`] | quota domain, else credential and model | all | time |
//! | [`account`] | credential, account, or the target | all | a passed probe |
//! | [`place`] | the target through its egress | all | a passed probe |
//! | [`ramp`] | the target on one route, after recovery | a share | steps |
//!
//! The gravest signal is the value: a bench, then an open breaker, then an ejection, then a cooldown, then a share. Beside the
//! value stand two limits of our own: [`rate`] per quota bucket, and slots per target.

mod account;
mod bench;
mod board;
mod breaker;
mod capacity;
pub(super) mod health;
mod learned;
mod outcome_window;
mod outcomes;
mod place;
mod probes;
mod ramp;
pub(super) mod rate;
mod succession;
mod window;

pub(super) use self::board::{Began, Board};
pub(super) use self::health::Kind;
pub(super) use self::outcomes::Whose;
pub(super) use self::probes::Suspicion;

/// Reason of a cooling target whose breaker is open.
pub(super) const OPEN: &str = "open";
/// Reason of a target that an operator took out.
pub(super) const OPERATOR: &str = "operator";
/// Reason of a cooling target that is rate limited or overloaded.
pub(super) const COOLING: &str = "cooling";
/// Reason of a cooling target whose health took it out.
pub(super) const EJECTED: &str = "ejected";
