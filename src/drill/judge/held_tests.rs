//! What was found must show where the promise it belongs to is told: no row reads well beside a finding of its kind.

use super::hand::seen;
use super::tests::{codes, good, text_of};
use super::*;
use crate::drill::evidence::*;
use crate::drill::propose::{nothing, propose};
use crate::drill::report::{RunFacts, phase_table, summary, why};
use crate::measure::{End, RequestRow};

fn row<'a>(j: &'a Judgement, name: &str) -> &'a crate::drill::verdict::Row {
    j.promises.iter().flat_map(|p| &p.rows).find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name}"))
}

fn verdict_of(j: &Judgement, promise: &str) -> Kept {
    j.promises.iter().find(|p| p.name == promise).unwrap().verdict
}

/// Nothing of use, and an error after this long.
fn fail(r: &mut RequestRow, after_ms: f64) {
    (r.end, r.status, r.done_marker, r.finish_reason) = (End::HttpError, Some(503), false, None);
    (r.useful_text_ms, r.committed_ms, r.text) = (None, None, String::new());
    r.ended_ms = r.started_ms + after_ms;
}

/// A run of cuts inside streams, in which one answer of 80 holds the beginning of local-a's text and all of local-b's.
fn spliced() -> Evidence {
    let mut ev = good();
    let fault = &mut ev.windows[0].faults[0];
    (fault.cuts, fault.cut_events, fault.see) = (true, Some(4), "cut_after 4 events".into());
    let mut first = seen("local-a", &ev.requests[30]);
    first.text = text_of("local-a", "c30");
    first.arrived_ms = ev.requests[30].started_ms + 1.0;
    (first.completed, first.cancelled, first.events_sent) = (false, true, 6);
    ev.requests[30].text = format!("{} {}", &first.text[..17], text_of("local-b", "c30"));
    ev.providers.push(first);
    ev
}

#[test]
fn a_splice_shows_in_the_promise_of_compatibility() {
    let ev = spliced();
    let j = judge(&ev);
    assert_eq!((codes(&j), j.verdict), (vec!["spliced_answer"], Verdict::Fail));
    let of = row(&j, "one_answer");
    assert_eq!((of.verdict, of.measured.as_str(), of.n), (Kept::Fail, "79 of 80", 80));
    assert_eq!(verdict_of(&j, "compatibility"), Kept::Fail);
    assert_eq!(row(&j, "honest_end").measured, "80 of 80");
    // 80 answers in two rows, one of them broken in one row; no invariant applied and no business action was done.
    let s = summary(&ev, &j, &RunFacts::default());
    let rate = &s["promises"]["compatibility"];
    assert_eq!((rate["measured"].as_f64(), rate["n"].as_u64()), (Some(1.0 / 160.0), Some(160)));
}

#[test]
fn answers_that_end_as_what_they_are_not_show_there_too() {
    let mut ev = good();
    ev.requests[30].text.truncate(20);
    let j = judge(&ev);
    assert_eq!(codes(&j), vec!["truncated_as_success"]);
    assert_eq!((row(&j, "honest_end").verdict, row(&j, "honest_end").measured.as_str()), (Kept::Fail, "79 of 80"));
    assert_eq!((row(&j, "one_answer").verdict, verdict_of(&j, "compatibility")), (Kept::Pass, Kept::Fail));
}

/// The share of broken answers that was declared is no failure: row and verdict say the same.
#[test]
fn a_share_of_broken_answers_that_was_declared_is_none_too_many() {
    let broken = |allowed: f64| {
        let mut ev = good();
        ev.declared.invariant_violation_rate = allowed;
        for r in &mut ev.requests {
            r.checked = vec!["schema".into()];
        }
        ev.requests[2].violations = vec!["schema".into()];
        let j = judge(&ev);
        (j.verdict, row(&j, "schema").verdict, codes(&j).len())
    };
    // One of 80 is 1.25 %.
    assert_eq!(broken(0.02), (Verdict::Pass, Kept::Pass, 0));
    assert_eq!(broken(0.01), (Verdict::Fail, Kept::Fail, 1));
}

/// The same of requests that were late: one of 60 is 1.7 %.
#[test]
fn a_share_of_late_requests_that_was_declared_turns_no_row_red() {
    let late = |allowed: f64| {
        let mut ev = good();
        ev.declared.deadline_miss_rate = allowed;
        fail(&mut ev.requests[40], 4500.0);
        ev.providers.retain(|p| p.conversation.as_deref() != Some("c40"));
        let j = judge(&ev);
        let red = |n: &str| row(&j, n).verdict == Kept::Fail;
        (j.verdict, red("deadline_missed"), red("failed_before_commit"))
    };
    assert_eq!(late(0.02), (Verdict::Pass, false, false));
    assert_eq!(late(0.01), (Verdict::Fail, true, true));
}

/// Two changes, 990 ms apart: what began before the last of them was acknowledged and was open after the first is under way.
#[test]
fn under_way_at_the_cut_is_the_same_in_table_finding_and_row() {
    let mut ev = good();
    ev.windows[0].injecting_ms = 4010.0;
    // The requests of 4,010, 4,260, 4,510 and 4,760 ms begin while it is being cut.
    for i in 16..20 {
        fail(&mut ev.requests[i], 400.0);
    }
    ev.providers.retain(|p| !["c16", "c17", "c18", "c19"].contains(&p.conversation.as_deref().unwrap_or("")));
    let j = judge(&ev);
    let found = j.findings.iter().find(|f| f.code == "lost_in_flight").unwrap();
    // That of 3,760 ms ended at 4,160 ms: it was open too, and answered whole.
    let phase = &j.phases[UNDER_WAY];
    assert_eq!((found.n, phase.requests, phase.failed), (4, 5, 4));
    assert!(!j.phases.contains_key("inject"), "{:?}", j.phases.keys());
    let rows = phase_table(&j).rows;
    let told = rows.iter().find(|r| r[0] == "under way at the cut").unwrap();
    assert_eq!((told[1].as_str(), told[2].as_str()), ("5", "4"));
    let of = row(&j, "lost_in_flight");
    assert_eq!((of.measured.as_str(), of.verdict, verdict_of(&j, "recovery")), ("4", Kept::Fail, Kept::Fail));
}

/// The page: under way at the cut, nothing delivered, not answered by the stand-in. When it ended changes nothing about that.
#[test]
fn a_request_under_way_that_nobody_answered_is_lost_in_flight_however_long_it_took() {
    let mut ev = good();
    fail(&mut ev.requests[19], 4500.0);
    ev.providers.retain(|p| p.conversation.as_deref() != Some("c19"));
    let j = judge(&ev);
    assert_eq!(codes(&j), vec!["lost_in_flight"]);
    assert!(j.findings[0].examples[0].contains("deadline 4000 ms"), "{:?}", j.findings[0]);
    // One that the stand-in did answer, only later than was promised, missed its deadline.
    let mut ev = good();
    let r = &mut ev.requests[19];
    r.text = text_of("local-b", "c19");
    (r.useful_text_ms, r.committed_ms) = (Some(r.started_ms + 4300.0), Some(r.started_ms + 4300.0));
    r.ended_ms = r.started_ms + 4500.0;
    ev.providers[19].provider = "local-b".into();
    ev.providers[19].text = text_of("local-b", "c19");
    let j = judge(&ev);
    assert_eq!(codes(&j), vec!["deadline_missed"]);
    assert_eq!((row(&j, "deadline_missed").measured.as_str(), verdict_of(&j, "recovery")), ("1", Kept::Fail));
}

fn attempts(ev: &mut Evidence, i: usize, tried: &[(&str, &str, f64)]) {
    let r = &mut ev.requests[i];
    r.gateway_request_id = Some(format!("r{i}"));
    let attempts = tried.iter().map(|(target, reason, ended)| GatewayAttempt {
        target: (*target).into(),
        reason: (*reason).into(),
        class: if *reason == "success" { "success".into() } else { "provider".into() },
        dialled_ms: 0.0,
        ended_ms: *ended,
    });
    let record =
        GatewayRecord { attempts: attempts.collect(), total_ms: r.ended_ms - r.started_ms, ..GatewayRecord::default() };
    let decision = GatewayDecision { request: format!("r{i}"), at_ms: r.ended_ms, record };
    let views =
        ev.gateways.get_or_insert_with(|| vec![GatewayView { name: "region-1".into(), ..GatewayView::default() }]);
    views[0].decisions.push(decision);
}

/// An attempt that was silent for the whole of `idle_timeout_ms` is why the deadline was missed, and the key is named.
#[test]
fn an_idle_limit_that_used_the_deadline_up_is_named() {
    for (i, after) in [(19, "lost_in_flight"), (22, "deadline_missed")] {
        let mut ev = good();
        fail(&mut ev.requests[i], 4500.0);
        ev.providers.retain(|p| p.conversation.as_deref() != Some(&format!("c{i}")));
        attempts(&mut ev, i, &[("local-a", "idle_timeout", 4400.0)]);
        let j = judge(&ev);
        assert!(codes(&j).contains(&after), "{:?}", codes(&j));
        let found = j.findings.iter().find(|f| f.code == after).unwrap();
        assert!(found.examples[0].contains("local-a ended by idle_timeout after 4400 ms"), "{found:?}");
        let lines = why(&ev, &j);
        let next = lines.iter().find(|l| l.starts_with("next: ")).unwrap();
        assert!(next.contains("`idle_timeout_ms`") && next.contains("support-chat"), "{lines:?}");
    }
}

/// The turns that began at 14,760 ms were answered by the primary once it was back: that is said where they are counted.
#[test]
fn an_answer_of_the_broken_provider_after_the_restore_is_named_so() {
    let mut ev = good();
    let i = ev.requests.iter().rposition(|r| r.started_ms < 15_000.0).unwrap();
    let by_a = text_of("local-a", &ev.requests[i].conversation);
    let r = &mut ev.requests[i];
    r.text.clone_from(&by_a);
    (r.useful_text_ms, r.committed_ms, r.ended_ms) = (Some(15_100.0), Some(15_100.0), 15_400.0);
    let p = &mut ev.providers[i];
    (p.provider, p.text, p.arrived_ms, p.ended_ms) = ("local-a".into(), by_a, 15_050.0, Some(15_390.0));
    let j = judge(&ev);
    assert_eq!(j.phases["outage"].answered_by["local-a"], 1);
    let rows = phase_table(&j).rows;
    let outage = rows.iter().find(|r| r[0] == "outage").unwrap();
    assert_eq!(outage[3], "local-a 1 (after the restore), local-b 39");
}

/// 25 first tokens after 80 ms under a limit of 1,000 ms would be worth a proposal: but the run says nothing.
#[test]
fn a_run_that_says_nothing_proposes_nothing() {
    let mut ev = good();
    ev.declared.first_token_limit_ms = 10_000.0;
    assert_eq!(propose(&ev, &judge(&ev)).len(), 1);
    ev.windows.clear();
    ev.requests.retain(|r| r.started_ms < 5000.0);
    ev.not_well = vec!["c1".into()];
    let j = judge(&ev);
    assert_eq!((j.verdict, propose(&ev, &j)), (Verdict::Invalid, Vec::new()));
    assert_eq!(nothing(&ev), "none, because nothing was broken");
}

/// Every finding that is held against a gateway has a row, and that row is red wherever it stands: no promise reads well
/// beside it.
#[test]
fn every_finding_of_harm_or_failure_turns_a_row_of_its_promise_red() {
    use crate::drill::codes::CODES;
    use crate::drill::verdict::Findings;
    let red = |j: &Judgement| -> Vec<(String, String)> {
        let rows = |p: &crate::drill::verdict::Promise| -> Vec<(String, String)> {
            let failed = p.rows.iter().filter(|r| r.verdict == Kept::Fail);
            failed.map(|r| (p.name.clone(), r.name.clone())).collect()
        };
        j.promises.iter().flat_map(rows).collect()
    };
    let held = CODES.iter().filter(|c| matches!(c.weight, Weight::Harm | Weight::Failure));
    let mut seen = 0;
    for code in held {
        let (promise, row) = held::row_of(code.name).unwrap_or_else(|| panic!("{} belongs to no row", code.name));
        let with = |other: Option<&str>| {
            let mut findings = Findings::default();
            for name in other.into_iter().chain([code.name]) {
                findings.add(name, "c1".into());
            }
            let judged = judge(&good());
            let verdict = findings.verdict(false);
            let judged = Judgement { verdict, findings: findings.sorted(), ..judged };
            held::shown(valid_alone(judged))
        };
        let j = with(None);
        assert_eq!(red(&j), [(promise.to_owned(), row.to_owned())], "{}", code.name);
        assert_eq!(verdict_of(&j, promise), Kept::Fail, "{}", code.name);
        // In a run that says nothing harm alone is held against anybody, and nothing else reads as if it were kept.
        let j = with(Some("sample_too_small"));
        let harm = code.weight == Weight::Harm;
        assert_eq!(verdict_of(&j, promise) == Kept::Fail, harm, "{}", code.name);
        assert!(j.promises.iter().all(|p| p.verdict != Kept::Pass), "{}", code.name);
        seen += 1;
    }
    assert_eq!(seen, held::row_count(), "a row for a code that is not held against anybody");
}
