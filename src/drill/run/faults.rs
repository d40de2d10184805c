//! From planned faults to the fault layer's steps, and the drill's own look at whether they are felt.

use std::time::Duration;

use super::cuts::{self, Position};
use super::lab::{Felt, feel};
use crate::drill::evidence::{CutPoint, FaultSpan};
use crate::drill::plan::{Cut, PlannedFault, PlannedRound};
use crate::error::Result;
use crate::fault::restore::{FaultSpec, Plan as Steps, See as Seen, Server, plan};
use crate::fault::toxic::cut_after::How;
use crate::measure::ProviderRow;
use crate::spec::drill::{CutAt, CutHow, Existing, See};

/// Limit of the drill's own call through a broken path: longer than any connect limit in use, far shorter than an outage.
const FEEL: Duration = Duration::from_millis(900);

/// A round, ready to be injected.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Steps in order: what a region depends on first, providers last, so that everything is broken when the last one is
    /// acknowledged.
    pub steps: Steps,
    /// One span per fault, to be filled in.
    pub spans: Vec<FaultSpan>,
    /// For each span, what the drill's own call asks for: URL and path below it. `None` for cuts, which it would not meet.
    pub own_calls: Vec<Option<(String, &'static str)>>,
}

/// Prepares a round.
///
/// # Errors
/// What was asked for cannot be shown by this server.
pub fn prepare(round: &PlannedRound, server: Server, rows: &[ProviderRow]) -> Result<Ready> {
    let mut ordered: Vec<&PlannedFault> = round.faults.iter().collect();
    ordered.sort_by_key(|f| f.path.provider.is_some());
    let mut out = Ready { steps: Steps::default(), spans: Vec::new(), own_calls: Vec::new() };
    for fault in ordered {
        let position = match fault.cut {
            Some((Cut::At(at), _)) => {
                let own: Vec<&ProviderRow> =
                    rows.iter().filter(|r| Some(&r.provider) == fault.path.provider.as_ref()).collect();
                Some(cuts::position(at, &own))
            }
            _ => None,
        };
        for see in seen(fault, position, server) {
            let spec = FaultSpec { proxy: fault.path.proxy.clone(), see };
            out.steps.extend(plan(&spec, server, position.and_then(|p| p.bytes))?);
        }
        let cuts = fault.see == See::CutAfter;
        let events = match (fault.cut, position) {
            (Some((Cut::Events(n), _)), _) => Some(n),
            (_, Some(p)) => Some(p.events),
            _ => None,
        };
        out.spans.push(FaultSpan {
            path: fault.path.proxy.clone(),
            region: fault.path.region.clone(),
            role: fault.path.role.clone(),
            provider: fault.path.provider.clone(),
            see: fault.words(),
            cuts,
            // A real server's byte count is shared by the responses of a connection: it names no event for certain.
            cut_events: events.filter(|_| cuts && server == Server::Ours),
            promised: fault.cut.map(|c| c.0).and_then(point).filter(|_| server == Server::Ours),
            ..FaultSpan::default()
        });
        out.own_calls.push((!cuts).then(|| (fault.path.url.clone(), fault.path.below)));
    }
    Ok(out)
}

/// The cut point that a cut names.
fn point(cut: Cut) -> Option<CutPoint> {
    match cut {
        Cut::At(CutAt::BeforeContent) => Some(CutPoint::BeforeContent),
        Cut::At(CutAt::AfterContent) => Some(CutPoint::AfterContent),
        Cut::At(CutAt::InsideCall) => Some(CutPoint::InsideCall),
        Cut::At(CutAt::AfterCall) => Some(CutPoint::AfterCall),
        Cut::Events(_) | Cut::Bytes(_) | Cut::Ms(_) => None,
    }
}

/// What the fault layer is asked for.
fn seen(fault: &PlannedFault, position: Option<Position>, server: Server) -> Vec<Seen> {
    match fault.see {
        See::Refused => vec![Seen::Refused],
        See::Silence => vec![Seen::Silence],
        See::Reset => vec![Seen::Reset],
        // A real server shows silence in place of a connect timeout, to open connections too.
        See::ConnectTimeout if server == Server::Real => vec![Seen::ConnectTimeout],
        See::ConnectTimeout => {
            let open = match fault.existing {
                Existing::Silence => Seen::Silence,
                Existing::Closed => Seen::Fin,
            };
            vec![Seen::ConnectTimeout, open]
        }
        See::CutAfter => {
            let (cut, how) = fault.cut.unwrap_or((Cut::Events(1), CutHow::Rst));
            let how = match how {
                CutHow::Rst => How::Rst,
                CutHow::Fin => How::Fin,
                CutHow::Silence => How::Silence,
            };
            let (mut events, mut bytes, mut ms) = (None, None, None);
            match cut {
                Cut::At(_) => events = position.map(|p| u64::from(p.events)),
                Cut::Events(n) => events = Some(u64::from(n)),
                Cut::Bytes(n) => bytes = Some(u64::from(n)),
                Cut::Ms(n) => ms = Some(n),
            }
            vec![Seen::CutAfter { events, bytes, ms, how }]
        }
    }
}

/// Calls through every broken path at once and writes down what was met.
pub async fn feel_all(ready: &Ready) -> Vec<Option<Felt>> {
    let calls = ready.own_calls.iter().map(|call| async {
        match call {
            Some((url, below)) => Some(feel(url, below, FEEL).await),
            None => None,
        }
    });
    futures_util::future::join_all(calls).await
}
