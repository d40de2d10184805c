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

/// The keys of a file of prices.
const KEYS: [&str; 11] = [
    "currency",
    "idle_reserve_per_slot",
    "eval_run",
    "evals_per_month",
    "state_copy",
    "on_call_hour",
    "hours_per_outage",
    "requests_per_conversation",
    "lost_conversation",
    "manual_correction",
    "corrections_per_broken_stream",
];

/// No price, and no count, is higher: such a figure is a slip, and the sums would lose their digits.
const PRICE_MAX: f64 = 1e9;

/// Reads prices.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn read(text: &str) -> Result<Prices, String> {
    // The reader shows the place below its first line; here a sentence is wanted.
    let first = |e: serde_saphyr::Error| {
        let text = e.without_snippet().to_string();
        let line = text.lines().next().unwrap_or_default();
        crate::units::printable(line.trim_start_matches("error: "), 400)
    };
    // Whoever adds one key per run is not served.
    if let Ok(keys) = serde_saphyr::from_str::<std::collections::BTreeMap<String, serde_json::Value>>(text) {
        let missing: Vec<&str> = KEYS.iter().copied().filter(|k| !keys.contains_key(*k)).collect();
        let unknown: Vec<String> = keys.keys().filter(|k| !KEYS.contains(&k.as_str())).map(|k| known_as(k)).collect();
        let mut wrong = Vec::new();
        if !unknown.is_empty() {
            wrong.push(format!("these keys are not known: {}", unknown.join(", ")));
        }
        if !missing.is_empty() {
            wrong.push(format!("these keys are missing: {}", missing.join(", ")));
        }
        if !wrong.is_empty() {
            return Err(crate::units::printable(&wrong.join("; "), 600));
        }
    }
    let prices: Prices = serde_saphyr::from_str(text).map_err(first)?;
    for (name, price, least) in [
        ("idle_reserve_per_slot", prices.idle_reserve_per_slot, 0.0),
        ("eval_run", prices.eval_run, 0.0),
        ("evals_per_month", prices.evals_per_month, 0.0),
        ("state_copy", prices.state_copy, 0.0),
        ("on_call_hour", prices.on_call_hour, 0.0),
        ("hours_per_outage", prices.hours_per_outage, 0.0),
        ("requests_per_conversation", prices.requests_per_conversation, 1.0),
        ("lost_conversation", prices.lost_conversation, 0.0),
        ("manual_correction", prices.manual_correction, 0.0),
        ("corrections_per_broken_stream", prices.corrections_per_broken_stream, 0.0),
    ] {
        if !price.is_finite() || price < least || price > PRICE_MAX {
            // As a person writes it, unless that is hundreds of digits.
            let written = if price.abs() < 1e15 { price.to_string() } else { format!("{price:e}") };
            return Err(format!("{name} is {written}: it must be from {least} to {PRICE_MAX}"));
        }
    }
    Ok(prices)
}

/// A key that is not known, and the one that was probably meant.
fn known_as(key: &str) -> String {
    let near = crate::spec::names::nearest(key, KEYS.iter().copied());
    let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
    format!("{}{near}", crate::units::printable(key, 60))
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
    /// Requests per second, all routes together, that the lines rest on.
    pub requests_per_s: f64,
    /// Where that figure is from: `policy` (the `peak` of its routes), or `assumed`.
    pub load: &'static str,
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
    // One time that all are down is one outage to whoever is on call, however many targets it took.
    let noticed = run.policy.nobody_up + run.policy.not_recovered;
    let lines = vec![
        line("idle reserve", 0.0, f64::from(reserve) * prices.idle_reserve_per_slot),
        line("duplicate evals", 0.0, further * prices.evals_per_month * prices.eval_run),
        line("further copies of state", 0.0, further * prices.state_copy),
        line("on-call, outages that customers notice", on_call(run.single_outages), on_call(noticed)),
        line("lost conversations", lost(single), lost(with)),
        line("manual corrections", cut_alone * requests * corrections, run.policy.broken? * requests * corrections),
    ];
    let (requests_per_s, declared) = super::scenario::requests_per_s(policy);
    Some(Bill {
        requests_per_s,
        load: if declared { "policy" } else { "assumed" },
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
    fn absurd_prices_are_refused_by_name_and_in_one_line() {
        let with = |key: &str, value: &str| {
            let text = crate::assets::PRICES;
            let line = text.lines().find(|l| l.starts_with(&format!("{key}: "))).unwrap();
            read(&text.replace(line, &format!("{key}: {value}"))).map(|_| ()).unwrap_err()
        };
        assert_eq!(with("on_call_hour", "1e308"), "on_call_hour is 1e308: it must be from 0 to 1000000000");
        assert_eq!(with("eval_run", "-1"), "eval_run is -1: it must be from 0 to 1000000000");
        assert_eq!(with("state_copy", ".nan"), "state_copy is NaN: it must be from 0 to 1000000000");
        assert_eq!(with("on_call_hour", "-60"), "on_call_hour is -60: it must be from 0 to 1000000000");
        assert!(with("requests_per_conversation", "0.5").ends_with("from 1 to 1000000000"));
        let said = with("eval_run", "abc");
        assert!(said.contains("line ") && said.contains("invalid floating point"), "{said}");
        assert!(!said.contains("u{a}") && !said.contains("-->"), "{said}");
    }

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
                no_stand_in: 4,
                nobody_up: 2,
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

    #[test]
    fn every_missing_key_is_named_at_once() {
        let without = |keys: &[&str]| {
            let kept = crate::assets::PRICES.lines().filter(|l| !keys.iter().any(|k| l.starts_with(k)));
            kept.collect::<Vec<_>>().join("\n")
        };
        let said = read(&without(&["eval_run", "state_copy"])).unwrap_err();
        assert_eq!(said, "these keys are missing: eval_run, state_copy");
        // And every unknown one, with what was meant, beside them.
        let said = read(&crate::assets::PRICES.replace("eval_run:", "eval_runs:").replace("state_copy:", "zebra:"));
        assert_eq!(
            said.unwrap_err(),
            "these keys are not known: eval_runs (did you mean eval_run?), zebra; these keys are missing: eval_run, \
             state_copy"
        );
    }
}
