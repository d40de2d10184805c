//! How soon a customer got a useful answer again, and how soon the primary was back.

use serde::{Deserialize, Serialize};

use super::answers::Truth;
use super::{Case, hit};
use crate::drill::evidence::{GatewayTimings, PolicyOf, Window};
use crate::measure::{End, ProviderRow, RequestRow, Rto, TurnFacts, rto};

/// Time allowed beyond the limits and the stand-in's own time: scheduling, relaying and reading, in milliseconds.
pub const OVERHEAD_MS: f64 = 100.0;
/// Share of affected requests that must stay within the bound.
pub const BOUND_SHARE: f64 = 0.95;

/// Why a limit cannot be laid beside what was measured.
pub const LIMITS_UNKNOWN: &str = "the limits of this gateway are not known: give its policy with --policy";

/// Requests that tried the broken provider, held to what their limits explain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Requests that met the broken provider first, as far as they are known, answered or not.
    #[serde(default)]
    pub met_first: usize,
    /// Of these, answered by a stand-in, with a known limit to be held to; 0 where `unknown` says why none is judged.
    pub n: usize,
    /// Of these, within limit + stand-in's own time to first token + 100 ms.
    pub within: usize,
    /// Largest excess over limit and stand-in's time.
    pub worst_excess_ms: Option<f64>,
    /// Why a share of them would say nothing: not all of them are known, or their limits are not.
    pub unknown: Option<String>,
}

impl Bound {
    /// Whether the share was kept; `None` if that cannot be said.
    #[must_use]
    pub fn kept(&self) -> Option<bool> {
        let known = self.n > 0 && self.unknown.is_none();
        known.then_some(self.within as f64 >= BOUND_SHARE * self.n as f64)
    }
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecovery {
    /// Its name.
    pub name: String,
    /// Turns that started after the injection was acknowledged and before the restore.
    pub turns: usize,
    /// Of these, not answered by the primary: without one of them nobody needed a recovery.
    #[serde(default)]
    pub affected: usize,
    /// The same by a name that is not also a request's: turns of the outage that the primary did not answer.
    #[serde(default)]
    pub turns_not_by_primary: usize,
    /// Recovery time.
    pub rto: Rto,
    /// It was recovered from only when the restore had begun: the outage itself never was. `None`: not recovered at all, or
    /// there was nothing to recover from.
    #[serde(default)]
    pub after_restore: Option<bool>,
    /// Answers were only cut off inside: no provider was away, and the time is the one to the next useful answers.
    #[serde(default)]
    pub only_cut: bool,
    /// Its parts, as the gateway saw the answer that ended it.
    pub parts: Option<GatewayTimings>,
    /// Restore read back until the useful text of the first useful answer of the primary.
    pub failback_ms: Option<f64>,
    /// It was looked for: the round had a recovery phase with turns in it.
    pub failback_sought: bool,
}

/// All rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Round by round.
    pub rounds: Vec<RoundRecovery>,
    /// Requests that tried the broken provider.
    pub bound: Bound,
    /// Requests that started after an acknowledged injection and before the restore.
    pub after_cut: usize,
    /// Of these, failed before commit.
    pub failed_before_commit: usize,
}

impl Recovery {
    /// The round that took longest; one that never recovered is longer than any, and one that only the restore ended longer
    /// than any that was survived. Where a provider was away in one of them, those in which none was do not speak for it.
    #[must_use]
    pub fn worst(&self) -> Option<&RoundRecovery> {
        let key = |r: &&RoundRecovery| match r.rto {
            Rto::NotHit => (0, 0.0),
            Rto::Recovered { .. } => {
                let place = 1 + u8::from(r.after_restore == Some(true)) + if r.only_cut { 0 } else { 2 };
                (place, r.rto.total_ms().unwrap_or(0.0))
            }
            Rto::NotRecovered { .. } => (5, 0.0),
        };
        self.rounds.iter().max_by(|a, b| key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)))
    }

    /// The longest way back of a primary after a restore, over all rounds.
    #[must_use]
    pub fn failback_ms(&self) -> Option<f64> {
        let away = self.rounds.iter().filter(|r| hit(&r.rto));
        away.filter_map(|r| r.failback_ms).fold(None, |m: Option<f64>, v| Some(m.map_or(v, |m| m.max(v))))
    }

    /// Turns that started in an outage, over all rounds.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.rounds.iter().map(|r| r.turns).sum()
    }

    /// Of these, not answered by the primary.
    #[must_use]
    pub fn affected(&self) -> usize {
        self.rounds.iter().map(|r| r.affected).sum()
    }
}

/// What the definition of RTO needs to know of each turn, in order of their start.
pub(super) fn turn_facts(case: &Case<'_>) -> Vec<TurnFacts> {
    case.trace
        .turns
        .iter()
        .map(|turn| {
            let rows: Vec<usize> = turn.rows.iter().copied().filter(|i| !case.trace.superseded[*i]).collect();
            let last = rows.last().map(|i| &case.ev.requests[*i]);
            let whole = |i: &usize| {
                let r = &case.ev.requests[*i];
                r.end == End::Complete && matches!(case.truths[*i], Truth::Whole(_))
            };
            let in_time = |i: &usize| {
                let r = &case.ev.requests[*i];
                r.committed_ms.is_some_and(|at| at - r.started_ms <= case.ev.declared.deadline_ms)
            };
            let kept = |i: &usize| case.ev.requests[*i].violations.is_empty();
            let by_primary = |i: &usize| case.author(*i).is_some_and(|p| case.is_broken(&p.provider));
            let well = !rows.is_empty() && rows.iter().all(|i| whole(i) && in_time(i) && kept(i));
            // Where it was nobody's doing it breaks no row of useful answers.
            let nobodys = !well && rows.iter().any(|i| case.met_a_stall(*i));
            let asked_for_human = rows.iter().any(|i| asks_for_human(&case.ev.requests[*i]));
            let finished = last.is_some_and(|r| r.last_of_turn);
            TurnFacts {
                started_ms: turn.started_ms,
                primary_answered: !rows.is_empty() && rows.iter().all(|i| whole(i) && by_primary(i)),
                useful: well && finished && !asked_for_human,
                neutral: (well && asked_for_human) || nobodys,
                useful_text_ms: last.and_then(|r| r.useful_text_ms),
            }
        })
        .collect()
}

/// True if the customer asked for a human in this turn.
fn asks_for_human(r: &RequestRow) -> bool {
    r.kind == "human"
}

pub(super) fn check(case: &mut Case<'_>) -> Recovery {
    let facts = turn_facts(case);
    let mut out = Recovery { bound: bound(case), ..Recovery::default() };
    for (i, r) in case.counted().filter(|(i, _)| case.ev.window_at(case.from_ms[*i]).is_some()) {
        out.after_cut += 1;
        let failed = r.committed_ms.is_none() || matches!(case.truths[i], Truth::Nothing);
        out.failed_before_commit += usize::from(failed);
    }
    for window in &case.ev.windows {
        out.rounds.push(round(case, window, &facts));
    }
    let limit = case.ev.declared.recovery_ms;
    for (r, w) in out.rounds.iter().zip(&case.ev.windows) {
        let stood_still = case.stood_still(w.injected_ms, w.until_ms);
        // Who was never seen back in a time of which most was nobody's.
        let nobodys = stood_still > (w.until_ms - w.injected_ms) / 2.0;
        if let (Some(limit), true) = (limit, hit(&r.rto)) {
            match r.rto.total_ms() {
                Some(ms) if ms - stood_still <= limit => {}
                Some(ms) => {
                    case.findings.add("recovery_exceeded", format!("{}: {ms:.0} ms, declared {limit:.0} ms", r.name))
                }
                None if nobodys => {}
                None => case.findings.add("recovery_exceeded", format!("{}: not back while the drill looked", r.name)),
            }
        }
        if let (Some(limit), true) = (limit, r.failback_sought) {
            match r.failback_ms {
                Some(ms) if ms - stood_still <= limit => {}
                Some(ms) => {
                    case.findings.add("failback_missed", format!("{}: {ms:.0} ms, declared {limit:.0} ms", r.name))
                }
                None if nobodys => {}
                None => case.findings.add("failback_missed", format!("{}: no useful answer of the primary", r.name)),
            }
        }
    }
    let b = &out.bound;
    if b.kept() == Some(false) {
        let worst = b.worst_excess_ms.unwrap_or(0.0);
        case.findings
            .add("slow_failover", format!("{} of {} within the bound, worst {worst:.0} ms over", b.within, b.n));
    }
    out
}

fn round(case: &Case<'_>, window: &Window, facts: &[TurnFacts]) -> RoundRecovery {
    let found = rto(facts, window.injected_ms, window.until_ms);
    let parts = match found {
        Rto::Recovered { to_ms, first_useful, .. } => parts(case, first_useful, to_ms, found.total_ms().unwrap_or(0.0)),
        _ => None,
    };
    let after = |t: &&TurnFacts| t.started_ms >= window.restored_ms && t.started_ms < window.until_ms;
    let inside = || facts.iter().filter(|t| window.holds(t.started_ms));
    let failback = facts.iter().filter(after).find(|t| t.useful && t.primary_answered).and_then(|t| t.useful_text_ms);
    let only_cut = window.faults.iter().any(|f| f.cuts) && !window.dead();
    let not_by_primary = inside().filter(|t| !t.primary_answered).count();
    RoundRecovery {
        name: window.name.clone(),
        turns: inside().count(),
        affected: not_by_primary,
        turns_not_by_primary: not_by_primary,
        rto: found,
        after_restore: match found {
            Rto::Recovered { to_ms, .. } if only_cut || window.dead() => Some(to_ms >= window.restoring_ms),
            _ => None,
        },
        only_cut,
        parts,
        failback_ms: failback.map(|at| at - window.restored_ms),
        failback_sought: case.ev.aborted.is_none() && facts.iter().any(|t| after(&t)),
    }
}

/// The parts of the recovery time: decision, dial and generation of the attempt that gave the useful text, as its gateway
/// saw them; everything before them is detection, earlier requests that did not recover included. The parts add up.
fn parts(case: &Case<'_>, turn: usize, to_ms: f64, total: f64) -> Option<GatewayTimings> {
    let rows = &case.trace.turns[turn].rows;
    let useful = rows.iter().map(|i| &case.ev.requests[*i]).find(|r| r.useful_text_ms == Some(to_ms))?;
    let seen = case.ev.decision(useful)?.record.timings;
    let detection_ms = (total - seen.decision_ms - seen.dial_ms - seen.first_token_ms).max(0.0);
    Some(GatewayTimings { detection_ms, ..seen })
}

/// Requests that met the broken provider first and were then answered by a stand-in: how long they took is laid beside the
/// limits that they ran into and the stand-in's own time to its first token. Those that were under way at the injection with
/// nothing delivered are held to it too: a connection that was closed under them explains the time until then and no more.
/// Of a foreign gateway's requests only those are known whose marker reached the broken provider before its path broke.
fn bound(case: &Case<'_>) -> Bound {
    let mut out = Bound { unknown: unknown(case), ..Bound::default() };
    for (i, r) in case.counted() {
        let Some(window) = met_first(case, i, r) else { continue };
        out.met_first += 1;
        // What cannot be judged is not counted as if it were.
        if out.unknown.is_some() {
            continue;
        }
        let (Some(at), Some(stand_in)) = (r.useful_text_ms.or(r.committed_ms), case.author(i)) else { continue };
        if case.is_broken(&stand_in.provider) || at <= window.injected_ms {
            continue;
        }
        let Some(limit) = explained(case, i, window) else { continue };
        let Some(own) = own_time(r, stand_in) else { continue };
        let excess = at - r.started_ms - limit - own;
        out.n += 1;
        out.within += usize::from(excess - case.nobodys_ms(i) <= OVERHEAD_MS);
        out.worst_excess_ms = Some(out.worst_excess_ms.map_or(excess, |w| w.max(excess)));
    }
    out
}

/// The outage in which a request met the broken provider first: its first dial went there and failed, by the gateways' own
/// records; of a foreign gateway, its marker reached that provider before its path broke.
fn met_first<'a>(case: &Case<'a>, i: usize, r: &RequestRow) -> Option<&'a Window> {
    let under = |w: &&Window| {
        w.dead() && !w.breaks_entry(&r.entry) && r.started_ms < w.restoring_ms && r.ended_ms > w.injected_ms
    };
    let window = case.ev.windows.iter().find(under)?;
    let met = if case.ev.gateways.is_none() {
        let by_it = case.truths[i].author().is_some_and(|p| case.is_broken(&case.ev.providers[p].provider));
        !by_it && seen_before_it_broke(case, i, window).is_some()
    } else {
        let first = case.ev.decision(r).and_then(|d| d.record.attempts.first());
        first.is_some_and(|a| case.is_broken(&a.target) && a.class != "success")
    };
    met.then_some(window)
}

/// The stand-in's own time: to its first token for a stream, to its end for a whole answer. A call is held until it is
/// whole, so its own length is allowed for.
fn own_time(r: &RequestRow, stand_in: &ProviderRow) -> Option<f64> {
    let whole = !r.stream || r.useful_text_ms.is_none();
    let until = if whole { stand_in.ended_ms } else { stand_in.first_token_ms };
    Some((until? - stand_in.arrived_ms).max(0.0))
}

/// Why it cannot be told from outside which requests met the broken provider, or what explains their time. A request that
/// never got through has left no marker anywhere, and a refused connection not even a count; taking every request of the
/// outage instead would drown the few that waited among those that went to the stand-in at once.
fn unknown(case: &Case<'_>) -> Option<String> {
    let ev = case.ev;
    if ev.gateways.is_some() || !ev.windows.iter().any(Window::dead) {
        return None;
    }
    if ev.policy_of == PolicyOf::Lab {
        return Some(LIMITS_UNKNOWN.into());
    }
    let mut dials = 0;
    let dead = ev.windows.iter().filter(|w| w.dead());
    for (window, fault) in dead.flat_map(|w| w.faults.iter().filter(|f| f.provider.is_some()).map(move |f| (w, f))) {
        let counted = match (&fault.at_injection, &fault.at_restore) {
            (Some(a), Some(b)) if !fault.see.contains("refused") => {
                (b.accepted + b.blackholed).saturating_sub(a.accepted + a.blackholed)
            }
            _ => {
                return Some(format!(
                    "which requests met {} in {} is not seen from outside a foreign gateway",
                    fault.path, window.name
                ));
            }
        };
        dials += counted.saturating_sub(fault.own_dials);
    }
    (dials > 0).then(|| {
        format!(
            "{dials} dials ran into the broken path, and whose they were is not seen from outside a foreign gateway"
        )
    })
}

/// The broken provider's own row of a request that reached it first, and before its path broke.
fn seen_before_it_broke<'a>(case: &Case<'a>, i: usize, window: &Window) -> Option<&'a ProviderRow> {
    let met = |p: &&ProviderRow| case.is_broken(&p.provider) && p.arrived_ms < window.injected_ms;
    case.trace.seen_by[i].first().map(|p| &case.ev.providers[*p]).filter(met)
}

/// The same for a gateway that gives no account: the broken provider itself has seen the request, before its path broke.
fn explained_from_outside(case: &Case<'_>, i: usize, window: &Window, before: f64) -> Option<f64> {
    let d = &case.ev.declared;
    let first = seen_before_it_broke(case, i, window)?;
    let silent =
        window.faults.iter().any(|f| f.provider.as_deref() == Some(&first.provider) && f.see.contains("silen"));
    match (silent, case.ev.requests[i].stream) {
        (false, _) => Some(before),
        (true, false) => d.answer_limit_ms,
        // It had begun something that is held until it is whole, and fell silent inside it.
        (true, true) if first.first_token_ms.is_some_and(|at| at < window.injected_ms) => {
            Some(before + d.idle_limit_ms)
        }
        (true, true) => Some(d.first_token_limit_ms),
    }
}

/// Time that the limits explain; `None` if this request did not meet the broken provider, or no limit is known.
fn explained(case: &Case<'_>, i: usize, window: &Window) -> Option<f64> {
    let d = &case.ev.declared;
    let r = &case.ev.requests[i];
    // How long it was under way when the path broke.
    let before = (window.injected_ms - r.started_ms).max(0.0);
    if case.ev.gateways.is_none() {
        return explained_from_outside(case, i, window, before);
    }
    let attempts = &case.ev.decision(r)?.record.attempts;
    let failed = attempts.iter().filter(|a| case.is_broken(&a.target) && a.class != "success");
    let limits: Option<Vec<f64>> = failed
        .map(|a| match a.reason.as_str() {
            "connect_timeout" => Some(d.connect_limit_ms),
            "first_token_timeout" => Some(d.first_token_limit_ms),
            "answer_timeout" => d.answer_limit_ms,
            // It had begun a tool call, which is held until it is whole, and fell silent inside it.
            "idle_timeout" => Some(before + d.idle_limit_ms),
            // Refused, reset or closed: nothing to wait for from the moment on at which the path broke.
            _ => Some(before),
        })
        .collect();
    limits.filter(|l| !l.is_empty()).map(|l| l.iter().sum())
}
