//! Order inside a tier: by health, latency or cost. Ties keep the order as written.

use super::availability::Board;
use crate::policy::{Select, Target};

/// Scores this close together are equal.
const SAME_SCORE: f64 = 10.0;

/// An answer's usual mix, for one price out of two: three tokens sent for each received.
const SENT_PER_RECEIVED: f64 = 3.0;

/// Puts the best first.
pub(super) fn sort<T>(
    fits: &mut [T],
    select: Select,
    board: &Board,
    target: impl Fn(&T) -> &Target,
    place: impl Fn(&T) -> usize,
) {
    match select {
        Select::Priority => {}
        Select::Health => by_health(fits, board, target, place),
        Select::Latency => {
            // Whoever has shown too little goes first, as written: it is measured by being used.
            let key = |t: &Target| board.latency(t.id).unwrap_or_default();
            fits.sort_by_key(|fit| key(target(fit)));
        }
        Select::Cost => fits.sort_by(|a, b| price(target(a)).total_cmp(&price(target(b)))),
    }
}

/// Best score first. Those within ten of the best are equal, and among these the one with the largest free part of its slots goes
/// first; without slots, the one with the fewest requests under way.
fn by_health<T>(fits: &mut [T], board: &Board, target: impl Fn(&T) -> &Target, place: impl Fn(&T) -> usize) {
    let score = |t: &Target| board.score(t.id);
    fits.sort_by(|a, b| score(target(b)).total_cmp(&score(target(a))));
    // Groups are cut from the best down, so that "within ten" never chains.
    let mut start = 0;
    while start < fits.len() {
        let Some(best) = fits.get(start).map(|f| score(target(f))) else { return };
        let len = fits.iter().skip(start).take_while(|f| best - score(target(f)) <= SAME_SCORE).count().max(1);
        if let Some(group) = fits.get_mut(start..start + len) {
            group.sort_by(|a, b| {
                let busy = busy(board, target(a)).total_cmp(&busy(board, target(b)));
                busy.then_with(|| place(a).cmp(&place(b)))
            });
        }
        start += len;
    }
}

/// Part of its slots in use; without slots, requests under way (so that targets of one kind compare).
fn busy(board: &Board, target: &Target) -> f64 {
    let under_way = f64::from(board.in_flight(target.id));
    match target.capacity.slots {
        Some(slots) if slots > 0 => under_way / f64::from(slots),
        _ => under_way,
    }
}

/// What an answer costs by the declared price; a target without one comes last.
fn price(target: &Target) -> f64 {
    target.price.map_or(f64::INFINITY, |p| p.input_per_mtok_usd * SENT_PER_RECEIVED + p.output_per_mtok_usd)
}
