//! Do the two paths really fail separately: what still came out of the broken region, and what still went into it.

use serde::{Deserialize, Serialize};

use super::Case;
use crate::drill::evidence::{GatewayView, Window};

/// What still went into the broken region and what still came out, over all outages in which nothing passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Independence {
    /// There was an outage in which nothing passes; otherwise this promise is not judged.
    pub asked: bool,
    /// Bytes that clients of the broken paths received after the cut; `None` if the fault server does not count.
    pub bytes_received: Option<u64>,
    /// Requests that the broken providers received after the cut.
    pub requests_received: usize,
    /// Dials into the broken providers, as the gateways saw; `None` for a foreign gateway.
    pub dials: Option<u64>,
    /// What explains them: the breaker's threshold.
    pub dials_breaker: u64,
    /// What explains them: dials under way when a breaker opened.
    pub dials_under_way: u64,
    /// What explains them: probes.
    pub dials_probes: u64,
    /// Of the dials, those made after a breaker had opened and before it closed again.
    pub dials_while_open: u64,
    /// Dependencies that were cut.
    pub dependencies_cut: usize,
    /// Greatest age of a last good copy while they were cut.
    pub oldest_copy_ms: Option<f64>,
    /// Refreshes of copies that failed.
    pub refreshes_failed: u64,
}

pub(super) fn check(case: &mut Case<'_>) -> Independence {
    let ev = case.ev;
    let mut out = Independence::default();
    for w in ev.windows.iter().filter(|w| w.dead()) {
        out.asked = true;
        for fault in w.faults.iter().filter(|f| f.provider.is_some()) {
            if let (Some(a), Some(b)) = (&fault.at_injection, &fault.at_restore) {
                *out.bytes_received.get_or_insert(0) += b.down_sent.saturating_sub(a.down_sent);
            }
        }
        let reached = |r: &&crate::measure::ProviderRow| w.closed_at(r.arrived_ms) && case.is_broken(&r.provider);
        out.requests_received += ev.providers.iter().filter(reached).count();
        for gateway in ev.gateways.iter().flatten() {
            dials(case, w, gateway, &mut out);
        }
    }
    let cut = |region: &str, role: &str| {
        ev.windows.iter().flat_map(|w| &w.faults).any(|f| f.provider.is_none() && f.region == region && f.role == role)
    };
    for d in ev.dependencies.iter().filter(|d| cut(&d.region, &d.role)) {
        out.dependencies_cut += 1;
        out.refreshes_failed += d.failed;
        out.oldest_copy_ms = match (out.oldest_copy_ms, d.oldest_copy_ms) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }
    if out.bytes_received.is_some_and(|b| b > 0) {
        let text = format!("{} bytes came out of the broken region", out.bytes_received.unwrap_or(0));
        case.findings.add("not_independent", text);
    }
    let explained = out.dials_breaker + out.dials_under_way + out.dials_probes;
    if let Some(dials) = out.dials.filter(|d| *d > explained) {
        let text = format!(
            "{dials} dials; breaker {}, under way {}, probes {}",
            out.dials_breaker, out.dials_under_way, out.dials_probes
        );
        case.findings.add("excess_dials", text);
    }
    out
}

/// One gateway's dials into the broken providers during one outage, and what explains them.
fn dials(case: &Case<'_>, w: &Window, gateway: &GatewayView, out: &mut Independence) {
    for target in &case.ev.broken {
        let opened = gateway
            .changes
            .iter()
            .find(|c| {
                c.target == *target && c.at_ms >= w.injected_ms && matches!(c.state.as_str(), "cooling" | "benched")
            })
            .map(|c| c.at_ms);
        let mut client = 0_u64;
        let mut under_way = 0_u64;
        let mut while_open = 0_u64;
        for d in &gateway.decisions {
            let arrived = d.at_ms - d.record.total_ms;
            for a in d.record.attempts.iter().filter(|a| a.target == *target) {
                let (begun, ended) = (arrived + a.dialled_ms, arrived + a.ended_ms);
                if !w.holds(begun) {
                    continue;
                }
                client += 1;
                if let Some(opened) = opened {
                    under_way += u64::from(begun <= opened && ended > opened);
                    while_open += u64::from(begun > opened);
                }
            }
        }
        let probe = |c: &&crate::drill::evidence::GatewayChange| {
            c.target == *target && c.state == "probe_failed" && w.holds(c.at_ms)
        };
        let probes = gateway.changes.iter().filter(probe).count() as u64;
        *out.dials.get_or_insert(0) += client + probes;
        out.dials_probes += probes;
        out.dials_under_way += under_way;
        out.dials_while_open += while_open;
        // A gateway that never dialled it has used nothing of its threshold.
        out.dials_breaker += u64::from(case.ev.declared.breaker_failures).min(client);
    }
}
