//! Who answers: the route's tiers in order, inside a tier by its `select`, filters first.
//!
//! Filters in this order, so that a reason is always the gravest: what may (residency, data, intent, expiry, failover,
//! quality, evidence), what was tried, what can (tools, vision, schema, context), what is there now, what has room (rate, slots),
//! what dials and time are left. A legal filter is never relaxed (rule R10): nothing in this file looks at availability to
//! decide what may.
//!
//! A target with a share below one is taken when its share is dealt; else the next one is, and only if nobody else can answer
//! it is taken after all: a share limits a target while another can take the rest.

use std::time::Duration;

use super::availability::Board;
use super::budget::{self, Grant, Progress};
use super::classify::{Class, Lack};
use super::io::{Facts, Standing};
use super::order;
use super::request::Dialled;
use super::skip::Skip;
use crate::policy::{DataClass, JsonSchema, Otherwise, Pii, Policy, Route, Select, Target, TargetId, Tier};
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
    /// A second attempt beside one under way: only where there is room to spare.
    pub(super) hedge: bool,
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Choice {
    /// Dial this target now.
    Dial(Plan),
    /// Nobody else is left: dial the same target again after a pause.
    Pause(Duration),
    /// Somebody would answer, but has no room: every target with its reason, and when a rate limit gives some.
    Full(Vec<(TargetId, Skip)>, Option<Ts>),
    /// Nobody: every target of the route with its reason, in order.
    Nobody(Vec<(TargetId, Skip)>),
}

/// One dial to be made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) target: TargetId,
    pub(super) grant: Grant,
    pub(super) degraded: bool,
    /// Personal data goes there masked.
    pub(super) mask: bool,
    /// It was dialled for this request before.
    pub(super) again: bool,
    /// Who was passed over before it, and why.
    pub(super) passed_over: Vec<(TargetId, Skip)>,
    /// Whose share was dealt: the target, its share, and whether the request goes there.
    pub(super) deals: Vec<(TargetId, f64, bool)>,
}

/// Pauses before a redial of the same target are drawn from zero to this, doubling with each ...
const PAUSE_BASE: Duration = Duration::from_millis(200);
/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A hedge needs this share of a target's slots free: it must not take the place of a customer's only attempt.
const HEDGE_FREE: f64 = 0.25;

/// A target that can be dialled.
struct Fit<'a> {
    tier: &'a Tier,
    target: &'a Target,
    /// Place in the route as written: those passed over before it are told.
    place: usize,
}

/// Decides who is dialled next. `paused`: the pause before a redial is over.
pub(super) fn choose(ask: &Ask<'_>, paused: bool, rng: &mut Rng) -> Choice {
    Search { ask, skips: Vec::new(), again: Vec::new(), withheld: None, deals: Vec::new(), room_at: None, full: false }
        .run(paused, rng)
}

/// Who is asked where failover is only observed: the first as written that may and can answer it, whatever it does now.
pub(super) fn first(ask: &Ask<'_>) -> Option<Plan> {
    let targets = ask.route.tiers.iter().flat_map(|tier| tier.targets.iter().map(move |id| (tier, *id)));
    let mut able = targets.filter(|(tier, id)| {
        let target = ask.policy.target(*id);
        ask.may(tier, target).is_ok() && ask.can(target).is_ok()
    });
    let (tier, id) = able.next()?;
    let target = ask.policy.target(id);
    let grant = ask.grant(&Fit { tier, target, place: 1 }, ask.now)?;
    let (degraded, mask) = (ask.degraded(target), ask.masks(tier));
    Some(Plan { target: id, grant, degraded, mask, again: false, passed_over: Vec::new(), deals: Vec::new() })
}

struct Search<'a, 'b> {
    ask: &'b Ask<'a>,
    /// With its place in the route.
    skips: Vec<(usize, TargetId, Skip)>,
    again: Vec<Fit<'a>>,
    /// The first that would answer but whose share was not dealt.
    withheld: Option<(Fit<'a>, Grant)>,
    deals: Vec<(TargetId, f64, bool)>,
    room_at: Option<Ts>,
    full: bool,
}

impl<'a> Search<'a, '_> {
    fn run(mut self, paused: bool, rng: &mut Rng) -> Choice {
        let ask = self.ask;
        let spent = ask.dials() >= ask.route.max_attempts;
        let mut first_legal = None;
        let mut place = 0;
        for tier in &ask.route.tiers {
            let mut fits: Vec<Fit<'a>> = Vec::new();
            for id in &tier.targets {
                place += 1;
                let target: &'a Target = ask.policy.target(*id);
                match ask.judge(tier, target, &mut first_legal) {
                    Ok(()) if spent => self.skip(place, *id, Skip::AttemptsUsed),
                    Ok(()) if tier.select == Select::Priority => {
                        if let Some(plan) = self.try_fit(Fit { tier, target, place }) {
                            return Choice::Dial(plan);
                        }
                    }
                    Ok(()) => fits.push(Fit { tier, target, place }),
                    Err(Skip::Tried) => {
                        if !spent && ask.may_redial(*id) {
                            self.again.push(Fit { tier, target, place });
                        }
                        self.skip(place, *id, Skip::Tried);
                    }
                    Err(skip) => self.skip(place, *id, skip),
                }
            }
            if fits.len() > 1 {
                order::sort(&mut fits, tier.select, ask.board, |fit| fit.target, |fit| fit.place);
            }
            for fit in fits {
                if let Some(plan) = self.try_fit(fit) {
                    return Choice::Dial(plan);
                }
            }
        }
        self.nobody(paused, rng)
    }

    fn skip(&mut self, place: usize, id: TargetId, skip: Skip) {
        match &skip {
            Skip::Full => self.full = true,
            Skip::RateLimited(until) => {
                self.full = true;
                self.room_at = Some(self.room_at.map_or(*until, |at| at.min(*until)));
            }
            _ => {}
        }
        self.skips.push((place, id, skip));
    }

    /// This one, if time is left and its share is dealt.
    fn try_fit(&mut self, fit: Fit<'a>) -> Option<Plan> {
        let ask = self.ask;
        let Some(grant) = ask.grant(&fit, ask.now) else {
            self.skip(fit.place, fit.target.id, Skip::NoTime);
            return None;
        };
        let share = ask.share(&fit);
        if share < 1.0 {
            if !ask.board.would_deal(ask.route.id, fit.target.id, share) {
                self.deals.push((fit.target.id, share, false));
                self.skips.push((fit.place, fit.target.id, Skip::Share(share)));
                if self.withheld.is_none() && !ask.hedge {
                    self.withheld = Some((fit, grant));
                }
                return None;
            }
            self.deals.push((fit.target.id, share, true));
        }
        Some(self.plan(&fit, grant, false))
    }

    fn plan(&mut self, fit: &Fit<'a>, grant: Grant, again: bool) -> Plan {
        let written = fit.tier.select == Select::Priority;
        let tier = &fit.tier.targets;
        let before = |(place, id, skip): &(usize, TargetId, Skip)| {
            *skip != Skip::Tried && *id != fit.target.id && (*place < fit.place || (!written && tier.contains(id)))
        };
        let passed_over = self.skips.iter().filter(|s| before(s)).map(|(_, id, skip)| (*id, skip.clone())).collect();
        let degraded = self.ask.degraded(fit.target);
        let mask = self.ask.masks(fit.tier);
        Plan {
            target: fit.target.id,
            grant,
            degraded,
            mask,
            again,
            passed_over,
            deals: std::mem::take(&mut self.deals),
        }
    }

    fn nobody(mut self, paused: bool, rng: &mut Rng) -> Choice {
        let ask = self.ask;
        if let Some((fit, grant)) = self.withheld.take() {
            for (id, _, went) in &mut self.deals {
                *went |= *id == fit.target.id;
            }
            return Choice::Dial(self.plan(&fit, grant, false));
        }
        // Room will come; a redial of what has failed already is the worse choice.
        if !self.full && !ask.hedge {
            for fit in std::mem::take(&mut self.again) {
                let pause = if paused { Duration::ZERO } else { ask.pause(rng) };
                let Some(grant) = ask.grant(&fit, ask.now + pause) else { continue };
                if !paused {
                    return Choice::Pause(pause);
                }
                return Choice::Dial(self.plan(&fit, grant, true));
            }
        }
        let skips = self.skips.into_iter().map(|(_, id, skip)| (id, skip)).collect();
        // Without a dial left, room is of no use.
        let spent = ask.dials() >= ask.route.max_attempts;
        if self.full && !spent { Choice::Full(skips, self.room_at) } else { Choice::Nobody(skips) }
    }
}

impl<'a> Ask<'a> {
    fn dials(&self) -> u32 {
        u32::try_from(self.dialled.len()).unwrap_or(u32::MAX)
    }

    /// Every filter, the gravest first.
    fn judge(&self, tier: &Tier, target: &Target, first_legal: &mut Option<TargetId>) -> Result<(), Skip> {
        self.may(tier, target)?;
        let first = *first_legal.get_or_insert(target.id);
        if first != target.id && self.route.no_failover.is_some() {
            return Err(Skip::NoFailover);
        }
        self.is_new(target)?;
        self.can(target)?;
        self.is_there(target)?;
        self.has_room(target)
    }

    /// Limits of a dial that begins then, or `None` if it would be of no use.
    fn grant(&self, fit: &Fit<'_>, now: Ts) -> Option<Grant> {
        let left = self.route.max_attempts.saturating_sub(self.dials());
        // Only an answer that is not streamed, without a limit of its own, shares what is left with those who could follow.
        let shares = !self.facts.stream && fit.tier.answer_timeout.is_none();
        let dials_left = if shares { self.others(left).max(1) } else { left };
        let progress = Progress { arrived: self.arrived, now, stream: self.facts.stream, dials_left };
        budget::grant(self.route, fit.tier, fit.target, progress)
    }

    /// How many targets could be dialled now, up to `most`: with many targets nobody looks at all of them.
    fn others(&self, most: u32) -> u32 {
        let mut first_legal = None;
        let mut seen: Vec<TargetId> = Vec::new();
        for tier in &self.route.tiers {
            for id in &tier.targets {
                if seen.len() >= most as usize {
                    return most;
                }
                if !seen.contains(id) && self.judge(tier, self.policy.target(*id), &mut first_legal).is_ok() {
                    seen.push(*id);
                }
            }
        }
        u32::try_from(seen.len()).unwrap_or(u32::MAX)
    }

    /// The share of this request's kind that a target may have. A stand-in for a first choice that is out takes what the group
    /// guarantees at once, whatever step its ramp is at; and a part of a share below one is kept for open conversations.
    fn share(&self, fit: &Fit<'_>) -> f64 {
        let id = fit.target.id;
        let share = self.board.share(self.route.id, id);
        if share >= 1.0 {
            return share;
        }
        let group = fit.tier.group.as_ref().and_then(|group| self.policy.groups.get(group));
        if let Some(guaranteed) = group.and_then(|group| group.min_guaranteed_slots) {
            let first = self.route.tiers.iter().find_map(|tier| tier.targets.first());
            let stands_in = first.is_some_and(|first| *first != id && !self.board.serving(self.now, *first));
            let own = fit.target.capacity.slots.unwrap_or(u32::MAX);
            if stands_in && self.board.in_flight(id) < guaranteed.min(own) {
                return 1.0;
            }
        }
        let reserved = self.route.queue.map_or(0.0, |queue| queue.reserved_for_open_conversations);
        if self.facts.open_conversation { share } else { share * (1.0 - reserved) }
    }

    /// Our own limits: the quota bucket's rate, and slots.
    fn has_room(&self, target: &Target) -> Result<(), Skip> {
        if let Some(until) = self.board.rate_until(self.now, target.id, self.tokens(target.id)) {
            return Err(Skip::RateLimited(until));
        }
        match self.board.free_slots(target.id) {
            Some(0) => Err(Skip::Full),
            Some(free) if self.hedge => {
                let least = f64::from(target.capacity.slots.unwrap_or(0)) * HEDGE_FREE;
                if f64::from(free) < least { Err(Skip::Full) } else { self.no_signal(target) }
            }
            _ if self.hedge => self.no_signal(target),
            _ => Ok(()),
        }
    }

    /// A hedge never goes where a rate limit was met and not forgiven.
    fn no_signal(&self, target: &Target) -> Result<(), Skip> {
        if self.board.capacity_signalled(target.id) { Err(Skip::Full) } else { Ok(()) }
    }

    /// Tokens it is expected to take at this target: as that target counts, and the output it asks for.
    fn tokens(&self, target: TargetId) -> u64 {
        expected_tokens(self.board, self.facts, target)
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
        match self.route.pii(tier) {
            Pii::Allowed => {}
            Pii::Masked => {
                if let Some(why) = self.facts.unmaskable.filter(|_| self.personal()) {
                    return Err(Skip::Unmaskable(why));
                }
            }
            Pii::Forbidden if self.personal() => return Err(Skip::Pii),
            Pii::Forbidden => {}
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
        self.admitted(tier, target)
    }

    /// The stricter of what the route and the request say.
    fn personal(&self) -> bool {
        self.facts.data == DataClass::Personal || self.route.data == DataClass::Personal
    }

    /// What goes to this tier must be masked.
    fn masks(&self, tier: &Tier) -> bool {
        self.personal() && self.route.pii(tier) == Pii::Masked
    }

    /// Evidence: in the first tier only a record that says no keeps a target out; later tiers are no instant stand-ins without a
    /// valid one.
    fn admitted(&self, tier: &Tier, target: &Target) -> Result<(), Skip> {
        let Some(group) = &tier.group else { return Ok(()) };
        let first = self.route.tiers.first().is_some_and(|first| std::ptr::eq(first, tier));
        match self.board.standing(self.now, group, target.id, self.facts.prompt_sha256.as_deref()) {
            Standing::Eligible => Ok(()),
            Standing::Stale | Standing::Missing | Standing::Mismatch | Standing::OtherPrompt if first => Ok(()),
            standing => Err(Skip::Evidence(standing)),
        }
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
        let decodes = target.capabilities.json_schema == JsonSchema::Strict;
        let adapted = !self.facts.strict_decoding && target.replaces_schema() && self.board.adapts(target.id);
        if self.facts.strict_schema && (!(decodes || adapted) || lacks(Lack::StrictSchema)) {
            return Err(Skip::StrictSchema);
        }
        let Some(window) = target.capabilities.context_tokens else { return self.is_larger(target) };
        let need = self.tokens(target.id);
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
        // Under `probe: live` one request finds out whether a target is back.
        if self.board.serving(self.now, target.id) || (!self.hedge && self.board.live_ready(self.now, target.id)) {
            return Ok(());
        }
        Err(Skip::Away(self.board.availability(self.now, target.id)))
    }

    /// The same target once more, now, on a fresh connection: if it still serves and a dial and enough time are left.
    pub(super) fn fresh(&self, id: TargetId) -> Option<Plan> {
        let dials_left = self.route.max_attempts.saturating_sub(self.dials());
        if dials_left == 0 || !self.board.serving(self.now, id) || self.has_room(self.policy.target(id)).is_err() {
            return None;
        }
        let tier = self
            .route
            .tiers
            .iter()
            .find(|tier| tier.targets.contains(&id) && self.may(tier, self.policy.target(id)).is_ok())?;
        let progress = Progress { arrived: self.arrived, now: self.now, stream: self.facts.stream, dials_left };
        let grant = budget::grant(self.route, tier, self.policy.target(id), progress)?;
        let degraded = self.degraded(self.policy.target(id));
        let mask = self.masks(tier);
        Some(Plan { target: id, grant, degraded, mask, again: false, passed_over: Vec::new(), deals: Vec::new() })
    }

    /// True if the same target may be dialled again: the route allows it, it failed as a provider but not by silence, and it
    /// still serves.
    fn may_redial(&self, id: TargetId) -> bool {
        let here: Vec<&Dialled> = self.dialled.iter().filter(|d| d.target == id).collect();
        let redials = here.iter().filter(|d| d.again).count();
        u32::try_from(redials).is_ok_and(|n| n < self.route.same_target_retries)
            && here.iter().all(|d| d.class == Some(Class::Provider) && !d.silent)
            && self.board.serving(self.now, id)
            && self.has_room(self.policy.target(id)).is_ok()
    }
}

/// Tokens that a request is expected to take at a target, its output included.
pub(super) fn expected_tokens(board: &Board, facts: &Facts, target: TargetId) -> u64 {
    board.tokens(target, facts.body_bytes).saturating_add(facts.max_output_tokens.unwrap_or(0))
}
