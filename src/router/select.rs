//! Who answers: the route's tiers in order, inside a tier the order as written, filters first.
//!
//! Filters in this order, so that a reason is always the gravest: what may (residency, data, intent, expiry, failover,
//! quality), what was tried, what can (tools, vision, schema, context), what is there now, what dials and time are left. A legal
//! filter is never relaxed (rule R10): nothing in this file looks at availability to decide what may.
//!
//! `select: health`, `latency` and `cost` order as `priority` until they are built; evidence does not filter yet. Both are
//! announced when the policy is read.

use std::time::Duration;

use super::availability::Board;
use super::budget::{self, Grant, Progress};
use super::classify::{Class, Lack};
use super::io::Facts;
use super::request::Dialled;
use super::skip::Skip;
use crate::policy::{DataClass, JsonSchema, Otherwise, Pii, Policy, Route, Target, TargetId, Tier};
use crate::units::{Rng, Ts};

/// What is asked: one request at one moment.
pub(super) struct Ask<'a> {
    pub(super) policy: &'a Policy,
    pub(super) route: &'a Route,
    pub(super) facts: &'a Facts,
    pub(super) board: &'a Board,
    pub(super) arrived: Ts,
    pub(super) now: Ts,
    /// Dials so far, in order.
    pub(super) dialled: &'a [Dialled],
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Choice {
    /// Dial this target now.
    Dial(Plan),
    /// Nobody else is left: dial the same target again after a pause.
    Pause(Duration),
    /// Nobody: every target of the route with its reason, in order.
    Nobody(Vec<(TargetId, Skip)>),
}

/// One dial to be made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) target: TargetId,
    pub(super) grant: Grant,
    pub(super) degraded: bool,
    /// It was dialled for this request before.
    pub(super) again: bool,
    /// Who was passed over before it, and why.
    pub(super) passed_over: Vec<(TargetId, Skip)>,
}

/// Pauses before a redial of the same target are drawn from zero to this, doubling with each ...
const PAUSE_BASE: Duration = Duration::from_millis(200);
/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Decides who is dialled next. `paused`: the pause before a redial is over.
pub(super) fn choose(ask: &Ask<'_>, paused: bool, rng: &mut Rng) -> Choice {
    let mut skips: Vec<(TargetId, Skip)> = Vec::new();
    let mut fits: Vec<(usize, &Tier, &Target)> = Vec::new();
    let mut again: Vec<(usize, &Tier, &Target)> = Vec::new();
    let mut first_legal = None;
    let spent = ask.dials() >= ask.route.max_attempts;
    for tier in &ask.route.tiers {
        for id in &tier.targets {
            let target: &Target = ask.policy.target(*id);
            let may = ask.may(tier, target).and_then(|()| match *first_legal.get_or_insert(*id) {
                first if first != *id && ask.route.no_failover.is_some() => Err(Skip::NoFailover),
                _ => Ok(()),
            });
            let open = may.and_then(|()| ask.is_new(target)).and_then(|()| ask.can(target));
            match open.and_then(|()| ask.is_there(target)) {
                Ok(()) if spent => skips.push((*id, Skip::AttemptsUsed)),
                Ok(()) if fits.iter().any(|(_, _, t)| t.id == *id) => {}
                Ok(()) => fits.push((skips.len(), tier, target)),
                Err(Skip::Tried) => {
                    if !spent && ask.may_redial(*id) {
                        again.push((skips.len(), tier, target));
                    }
                    skips.push((*id, Skip::Tried));
                }
                Err(skip) => skips.push((*id, skip)),
            }
        }
    }
    let redial = fits.is_empty();
    let candidates = if redial { again } else { fits };
    let dials_left = (ask.route.max_attempts - ask.dials().min(ask.route.max_attempts))
        .min(u32::try_from(candidates.len()).unwrap_or(u32::MAX));
    let mut late = Vec::new();
    for (before, tier, target) in candidates {
        let progress = Progress { arrived: ask.arrived, now: ask.now, stream: ask.facts.stream, dials_left };
        let Some(grant) = budget::grant(ask.route, tier, target, progress) else {
            late.push((target.id, Skip::NoTime));
            continue;
        };
        if redial && !paused {
            let pause = ask.pause(rng);
            let later = Progress { now: ask.now + pause, ..progress };
            if budget::grant(ask.route, tier, target, later).is_none() {
                late.push((target.id, Skip::NoTime));
                continue;
            }
            return Choice::Pause(pause);
        }
        skips.truncate(before);
        skips.extend(late);
        skips.retain(|(_, skip)| *skip != Skip::Tried);
        let degraded = ask.degraded(target);
        return Choice::Dial(Plan { target: target.id, grant, degraded, again: redial, passed_over: skips });
    }
    if !redial {
        skips.extend(late);
    }
    Choice::Nobody(skips)
}

impl Ask<'_> {
    fn dials(&self) -> u32 {
        u32::try_from(self.dialled.len()).unwrap_or(u32::MAX)
    }

    /// Full jitter: drawn from zero to the doubling bound.
    fn pause(&self, rng: &mut Rng) -> Duration {
        let bound = PAUSE_BASE.saturating_mul(1 << self.dials().saturating_sub(1).min(8)).min(PAUSE_MAX);
        bound.mul_f64(rng.unit()).max(Duration::from_millis(1))
    }

    /// Rules of law and of the route: who may answer this request at all.
    pub(super) fn may(&self, tier: &Tier, target: &Target) -> Result<(), Skip> {
        if !self.route.legal(target) {
            return Err(Skip::Residency);
        }
        let personal = self.facts.data == DataClass::Personal || self.route.data == DataClass::Personal;
        // Masking is not built yet: until then it may not weaken anything.
        if personal && self.route.pii(tier) != Pii::Allowed {
            return Err(Skip::Pii);
        }
        let listed = |list: &[String]| self.facts.intent.as_ref().is_some_and(|intent| list.contains(intent));
        if tier.intents.as_ref().is_some_and(|list| !listed(list)) {
            return Err(Skip::Intent(tier.otherwise == Otherwise::CollectAndHandoff));
        }
        if self.facts.expired && !self.policy.on_expired_intents.as_ref().is_some_and(|list| listed(list)) {
            return Err(Skip::Expired);
        }
        if !self.route.degrade && self.degraded(target) {
            return Err(Skip::QualityTier);
        }
        Ok(())
    }

    /// True if this target is of another quality class than the route's first choice.
    fn degraded(&self, target: &Target) -> bool {
        let first = self.route.tiers.iter().find_map(|tier| tier.targets.first());
        first.is_some_and(|first| self.policy.target(*first).tier != target.tier)
    }

    /// Capabilities: who can answer it.
    fn can(&self, target: &Target) -> Result<(), Skip> {
        let lacks = |lack| self.board.lacks(self.now, target.id, lack);
        // After expiry tools are withheld, so nobody needs them.
        if self.facts.tools && !self.facts.expired && (!target.capabilities.tools || lacks(Lack::Tools)) {
            return Err(Skip::Tools);
        }
        if self.facts.vision && (!target.capabilities.vision || lacks(Lack::Vision)) {
            return Err(Skip::Vision);
        }
        if self.facts.strict_schema && (!follows_schema(target) || lacks(Lack::StrictSchema)) {
            return Err(Skip::StrictSchema);
        }
        let Some(window) = target.capabilities.context_tokens else { return self.is_larger(target) };
        let need = (self.facts.body_bytes / 3).saturating_add(self.facts.max_output_tokens.unwrap_or(0));
        if need > window {
            return Err(Skip::Context { need, window });
        }
        self.is_larger(target)
    }

    /// A context that was too long for one target goes only to a larger declared window.
    fn is_larger(&self, target: &Target) -> Result<(), Skip> {
        let too_long = |d: &&Dialled| d.class == Some(Class::TooLong) && d.target != target.id;
        for dialled in self.dialled.iter().filter(too_long) {
            let refused = self.policy.target(dialled.target).capabilities.context_tokens;
            let larger = match (target.capabilities.context_tokens, refused) {
                (Some(window), Some(refused)) => window > refused,
                // The one that refused declares no window; this one does, and the need fits.
                (Some(_), None) => true,
                (None, _) => false,
            };
            if !larger {
                return Err(Skip::SmallerContext);
            }
        }
        Ok(())
    }

    fn is_new(&self, target: &Target) -> Result<(), Skip> {
        if self.dialled.iter().any(|d| d.target == target.id) { Err(Skip::Tried) } else { Ok(()) }
    }

    fn is_there(&self, target: &Target) -> Result<(), Skip> {
        if self.board.serving(self.now, target.id) {
            return Ok(());
        }
        Err(Skip::Away(self.board.availability(self.now, target.id)))
    }

    /// The same target once more, now, on a fresh connection: if it still serves and a dial and enough time are left.
    pub(super) fn fresh(&self, id: TargetId, degraded: bool) -> Option<Plan> {
        let dials_left = self.route.max_attempts.saturating_sub(self.dials());
        if dials_left == 0 || !self.board.serving(self.now, id) {
            return None;
        }
        let tier = self
            .route
            .tiers
            .iter()
            .find(|tier| tier.targets.contains(&id) && self.may(tier, self.policy.target(id)).is_ok())?;
        let progress = Progress { arrived: self.arrived, now: self.now, stream: self.facts.stream, dials_left };
        let grant = budget::grant(self.route, tier, self.policy.target(id), progress)?;
        Some(Plan { target: id, grant, degraded, again: false, passed_over: Vec::new() })
    }

    /// True if the same target may be dialled again: the route allows it, it failed as a provider but not by silence, and it
    /// still serves.
    fn may_redial(&self, id: TargetId) -> bool {
        let here: Vec<&Dialled> = self.dialled.iter().filter(|d| d.target == id).collect();
        let redials = here.iter().filter(|d| d.again).count();
        u32::try_from(redials).is_ok_and(|n| n < self.route.same_target_retries)
            && here.iter().all(|d| d.class == Some(Class::Provider) && !d.silent)
            && self.board.serving(self.now, id)
    }
}

/// The gateway applies a target's adapter to a request. Until it does, an adapter stands in for nothing: a strict schema must
/// not silently become a request for one.
const ADAPTERS_ARE_APPLIED: bool = false;

/// Strict while decoding, or a prompt with an adapter that stands in.
fn follows_schema(target: &Target) -> bool {
    match target.capabilities.json_schema {
        JsonSchema::Strict => true,
        JsonSchema::PromptOnly => {
            ADAPTERS_ARE_APPLIED
                && target.adapter.as_ref().is_some_and(|a| a.replaces.iter().any(|r| r == "json_schema_strict"))
        }
        JsonSchema::None => false,
    }
}
