//! What the emergency outcome costs, beside what it costs to be ready for it: unit prices from a file, quantities from a run.
//!
//! Per month, for one channel alone and for the policy. Being ready: slots kept idle, golden sets run against every further
//! target, further copies of state. The emergency: people called for outages that customers notice, conversations lost,
//! corrections by hand after streams that broke. The model is linear on purpose: anybody can check a line with a pencil.

use serde::{Deserialize, Serialize};

use super::report::Summary;
use crate::policy::Policy;

/// Unit prices.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Printed beside sums.
    pub currency: String,
    /// A slot kept free, per month.
    pub idle_reserve_per_slot: f64,
    /// One golden set against one candidate.
    pub eval_run: f64,
    /// Runs per month for every target but the first.
    pub evals_per_month: f64,
    /// A further copy of state, per month.
    pub state_copy: f64,
    /// One hour of on-call work.
    pub on_call_hour: f64,
    /// Hours per outage that customers notice.
    pub hours_per_outage: f64,
    /// Requests of one conversation.
    pub requests_per_conversation: f64,
    /// A conversation in which a request got no useful answer.
    pub lost_conversation: f64,
    /// One correction by hand.
    pub manual_correction: f64,
    /// Corrections per stream that broke after commit.
    pub corrections_per_broken_stream: f64,
}

/// Reads prices.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn read(text: &str) -> Result<Prices, String> {
    let prices: Prices = serde_saphyr::from_str(text).map_err(|e| crate::units::printable(&e.to_string(), 300))?;
    let all = [
        prices.idle_reserve_per_slot,
        prices.eval_run,
        prices.evals_per_month,
        prices.state_copy,
        prices.on_call_hour,
        prices.hours_per_outage,
        prices.lost_conversation,
        prices.manual_correction,
        prices.corrections_per_broken_stream,
    ];
    if all.iter().any(|p| !p.is_finite() || *p < 0.0) {
        return Err("a price is below zero, or no number".to_owned());
    }
    if !prices.requests_per_conversation.is_finite() || prices.requests_per_conversation < 1.0 {
        return Err("requests_per_conversation is below one".to_owned());
    }
    Ok(prices)
}

/// One line of a bill, per month.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// For what.
    pub item: String,
    /// With one channel alone.
    pub single: f64,
    /// With the policy.
    pub policy: f64,
}

/// A bill, per month.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bill {
    /// Of all sums.
    pub currency: String,
    /// Its lines.
    pub lines: Vec<Line>,
    /// Sum with one channel alone.
    pub single: f64,
    /// Sum with the policy.
    pub policy: f64,
}

/// The bill of one run; `None` where its sample was too small.
#[must_use]
pub fn bill(prices: &Prices, policy: &Policy, run: &Summary) -> Option<Bill> {
    let months = run.days / 30.4375;
    let requests = run.real_requests / months;
    let further = policy.targets.len().saturating_sub(1) as f64;
    let reserve: u32 = policy.targets.iter().filter_map(|t| t.capacity.reserve_slots).sum();
    let (single, with) = (run.single.availability?, run.policy.availability?);
    // What a channel that is up loses alone are streams that an outage cuts.
    let cut_alone = (run.single.up? - single).max(0.0);
    let corrections = prices.manual_correction * prices.corrections_per_broken_stream;
    let lost = |availability: f64| {
        (1.0 - availability) * requests / prices.requests_per_conversation * prices.lost_conversation
    };
    let on_call = |outages: u64| outages as f64 / months * prices.hours_per_outage * prices.on_call_hour;
    let line = |item: &str, single: f64, policy: f64| Line { item: item.to_owned(), single, policy };
    let noticed = run.policy.no_stand_in + run.policy.not_recovered;
    let lines = vec![
        line("idle reserve", 0.0, f64::from(reserve) * prices.idle_reserve_per_slot),
        line("duplicate evals", 0.0, further * prices.evals_per_month * prices.eval_run),
        line("further copies of state", 0.0, further * prices.state_copy),
        line("on-call, outages that customers notice", on_call(run.single_outages), on_call(noticed)),
        line("lost conversations", lost(single), lost(with)),
        line("manual corrections", cut_alone * requests * corrections, run.policy.broken? * requests * corrections),
    ];
    Some(Bill {
        currency: crate::units::printable(&prices.currency, 12),
        single: lines.iter().map(|l| l.single).sum(),
        policy: lines.iter().map(|l| l.policy).sum(),
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::{OfPolicy, Single};
    use super::*;

    #[test]
    fn a_bill_by_hand() {
        let prices = read(crate::assets::PRICES).unwrap();
        let text = crate::assets::get("policies/dual-channel.yaml").unwrap().text;
        let policy = crate::policy::load("p", text.as_bytes()).0.unwrap();
        let run = Summary {
            days: 30.4375,
            single: Single { availability: Some(0.97), up: Some(0.971), ..Single::default() },
            policy: OfPolicy {
                availability: Some(0.999),
                broken: Some(0.000_1),
                no_stand_in: 2,
                ..OfPolicy::default()
            },
            real_requests: 1_000_000.0,
            single_outages: 40,
            ..Summary::default()
        };
        let bill = bill(&prices, &policy, &run).unwrap();
        let got: Vec<(f64, f64)> = bill.lines.iter().map(|l| (l.single.round(), l.policy.round())).collect();
        // 32 slots x 90; 1 x 4 x 12; 40; 40 or 2 outages x 1.5 h x 60; 3 % or 0.1 % of a million requests / 4 x 2; 1,000 or 100
        // cut streams x 0.02 x 15.
        let right = [(0.0, 2_880.0), (0.0, 48.0), (0.0, 40.0), (3_600.0, 180.0), (15_000.0, 500.0), (300.0, 30.0)];
        assert_eq!(got, right);
        assert_eq!((bill.single.round(), bill.policy.round()), (18_900.0, 3_678.0));
    }

    #[test]
    fn prices_are_read_strictly() {
        let text = crate::assets::PRICES;
        assert!(read(&text.replace("eval_run", "eval_runs")).unwrap_err().contains("eval_runs"));
        assert!(read(&text.replace("eval_run: 12.0", "eval_run: -1.0")).is_err());
        assert!(read("currency: USD\n").is_err());
    }
}
