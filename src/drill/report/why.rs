//! Beside the verdict: what it rests on, and the next step.

use crate::drill::codes;
use crate::drill::evidence::{Evidence, PATIENCE_MS};
use crate::drill::judge::Judgement;
use crate::drill::verdict::{Finding, Verdict, Weight};
use crate::measure::Trace;

/// Findings that come of nobody standing in.
const NOBODY: [&str; 5] = ["no_failover", "lost_in_flight", "recovery_exceeded", "deadline_missed", "handoff_rate"];

/// What in the policy itself keeps everybody from standing in, if that is what was found.
#[must_use]
pub fn forbidden<'a>(ev: &'a Evidence, j: &Judgement) -> Option<&'a str> {
    // Where a stand-in has answered somebody, the policy does not keep it from answering.
    let outage = j.phases.get("outage");
    let answers = outage.is_some_and(|p| ev.stand_ins.iter().any(|s| p.answered_by.contains_key(s)));
    let found = !answers && j.findings.iter().any(|f| NOBODY.contains(&f.code.as_str()));
    ev.declared.nobody_stands_in.as_deref().filter(|_| found)
}

/// `why: ...` and `next: ...`; empty beside a PASS.
#[must_use]
pub fn why(ev: &Evidence, j: &Judgement) -> Vec<String> {
    let decides = match j.verdict {
        Verdict::Pass => return Vec::new(),
        Verdict::Aborted => return aborted(ev),
        Verdict::Invalid => Weight::Invalid,
        Verdict::Fail if j.findings.iter().any(|f| f.weight == Weight::Harm) => Weight::Harm,
        Verdict::Fail => Weight::Failure,
    };
    let Some(first) = gravest(&j.findings, decides) else { return Vec::new() };
    // Others are named: a bare number would read as so many more cases of this one.
    let others: Vec<&str> =
        j.findings.iter().filter(|f| f.weight == decides && f.code != first.code).map(|f| f.code.as_str()).collect();
    let more = if others.is_empty() { String::new() } else { format!(" (also found: {})", others.join(", ")) };
    let example = first.examples.first().map(|e| format!(": {e}")).unwrap_or_default();
    let mut out = vec![format!("why: {}: {}{example}{more}", first.code, first.text)];
    out.extend(next(ev, j, first).map(|step| format!("next: {step}")));
    out
}

/// The finding of this weight that leads. Of what makes a run say nothing it is the first, which explains those after it; else
/// the one with most cases, and of equals the one that stands first in the table of codes. A request that came in the outage
/// and got nothing always leads one that was under way when it began: the first is what a drill is about.
fn gravest(findings: &[Finding], weight: Weight) -> Option<&Finding> {
    let mut of = findings.iter().filter(|f| f.weight == weight);
    if weight == Weight::Invalid {
        return of.next();
    }
    let place = |f: &Finding| codes::CODES.iter().position(|c| c.name == f.code).unwrap_or(usize::MAX);
    let most = of.max_by(|a, b| a.n.cmp(&b.n).then(place(b).cmp(&place(a))))?;
    let after_the_cut = findings.iter().find(|f| f.code == "no_failover" && most.code == "lost_in_flight");
    Some(after_the_cut.unwrap_or(most))
}

/// Where to look at single cases: of a gateway that the drill did not start there is no journal.
fn cases(ev: &Evidence, first: &Finding) -> String {
    if ev.foreign {
        return "report.md names the cases; what your gateway did about one is in its own log: by the request id that it answered with, or by x-llmfo-conversation and x-llmfo-turn, which every request of the drill carries".into();
    }
    let id = first.examples.first().and_then(|e| correlation(e));
    let (id, form) = id.map_or(("CONVERSATION/TURN".into(), " (`s3-1-10 turn 3` is s3-1-10/3)"), |id| (id, ""));
    format!(
        "report.md names the cases; what the gateway decided about this one: llmfo trace {id} --journal REPORT/journal.jsonl{form}"
    )
}

/// Requests of the outage failed, and no provider that was not broken has heard of any of them.
fn nobody_else_was_asked(ev: &Evidence) -> bool {
    let trace = Trace::new(&ev.requests, &ev.providers);
    let rows = ev.requests.iter().zip(&trace.seen_by);
    let mut failed = rows.filter(|(r, _)| r.committed_ms.is_none() && ev.window_at(r.started_ms).is_some()).peekable();
    let broken = |p: &usize| ev.providers.get(*p).is_some_and(|row| ev.broken.contains(&row.provider));
    failed.peek().is_some() && failed.all(|(_, seen)| seen.iter().all(broken))
}

/// `s3-1-10 turn 3 step 2, ...` by the id that a journal knows it by: `s3-1-10/3`.
fn correlation(example: &str) -> Option<String> {
    let (conversation, rest) = example.split_once(" turn ")?;
    let turn: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let plain = !conversation.is_empty() && conversation.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    (plain && !turn.is_empty()).then(|| format!("{conversation}/{turn}"))
}

fn aborted(ev: &Evidence) -> Vec<String> {
    let Some(why) = &ev.aborted else { return Vec::new() };
    let mut out = vec![format!("why: {}: {}; a part of a run is judged for harm alone", why.by, why.text)];
    out.extend(codes::all().find(|c| c.name == why.by).map(|c| format!("next: {}", c.next)));
    out
}

fn next(ev: &Evidence, j: &Judgement, first: &Finding) -> Option<String> {
    if let Some(why) = forbidden(ev, j) {
        return Some(why.to_owned());
    }
    let route = &ev.declared.route;
    let says = |what: &str| first.examples.iter().any(|e| e.contains(what));
    Some(match first.code.as_str() {
        _ if says("accepts no connections since") => {
            "start your gateway again and let it run until the drill is over; its own log says why it ended".into()
        }
        "steady_state_not_met" if says("model_not_found") || says("no route of this gateway") => format!(
            "call the route (or alias) of your gateway {route}, or put its own name as `route:` into a copy of the drill file (`llmfo drill show {}`)",
            ev.drill
        ),
        "steady_state_not_met" if says("nobody_may_answer") => format!(
            "let the targets of route {route} answer: the customers offer tools, some ask for a strict schema, and all carry personal data"
        ),
        _ if says("capability_json_schema") => {
            "some of the drill's requests demand a strict schema: declare `capabilities: { json_schema: strict }`, or give \
             the target an adapter"
                .into()
        }
        _ if says(": full") => {
            "the declared slots were taken: raise `capacity.slots`, let requests wait (`queue`), or lower the drill's load in \
             a copy of its file"
                .into()
        }
        "steady_state_not_met" if says("handoff") && says("expired") => {
            "has the policy expired? Its gateway's /readyz and the line at its start say so".into()
        }
        "steady_state_not_met" if says("text that no provider has in its log") => {
            "start the gateway with the addresses under `providers` of this lab: another one answered".into()
        }
        "steady_state_not_met" if !ev.windows.is_empty() => {
            let told = cases(ev, first);
            format!("the rounds ran before this was seen, so the cause lies in the gateway or its limits, not in the faults; {told}")
        }
        "deadline_missed" if says("text had begun, then silence") => format!(
            "lower `idle_timeout_ms` of route {route} ({:.0} ms now): an answer that has begun can be taken over by nobody, so its silence must be noticed and said before the client goes ({:.0} ms)",
            ev.declared.idle_limit_ms,
            ev.declared.deadline_ms + PATIENCE_MS
        ),
        "deadline_missed" if !says(" ended by ") && nobody_else_was_asked(ev) => format!(
            "let the gateway fail over: of the requests that began in the outage and had nothing of use, not one reached anybody but {}; a limit must end the wait there ({:.0} ms are there for all of it), and another target must be asked",
            ev.broken.join(" or "),
            ev.declared.deadline_ms
        ),
        "deadline_missed" | "lost_in_flight" | "no_failover" if says("ended by idle_timeout") => format!(
            "lower `idle_timeout_ms` of route {route} ({:.0} ms now): attempts that had begun and fell silent used it up, and too little of `deadline_ms` ({:.0} ms) was left for the next target",
            ev.declared.idle_limit_ms, ev.declared.deadline_ms
        ),
        "duplicate_effect" if ev.foreign => {
            "compare the tool-call ids of the two effects in effects.jsonl with what your gateway and your application have logged about that turn".into()
        }
        "excess_dials" if ev.foreign => cases(ev, first),
        "fault_not_seen" => format!("is the broken provider the first choice of route {route}?"),
        code => match codes::find(code)?.next {
            codes::CASES => cases(ev, first),
            next => next.to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::judge::judge;
    use crate::drill::verdict::Findings;

    fn told(code: &str, example: &str, change: impl Fn(&mut Evidence)) -> Vec<String> {
        let mut ev = Evidence { drill: "region-outage".into(), ..Evidence::default() };
        ev.declared.route = "support-chat".into();
        change(&mut ev);
        let mut findings = Findings::default();
        findings.add(code, example.into());
        let verdict = findings.verdict(false);
        why(&ev, &Judgement { verdict, findings: findings.sorted(), ..judge(&Evidence::default()) })
    }

    fn told_of(codes: &[(&str, usize)], foreign: bool) -> Vec<String> {
        let ev = Evidence { drill: "region-outage".into(), foreign, ..Evidence::default() };
        let mut findings = Findings::default();
        for (code, n) in codes {
            findings.add_cases(code, &["s3-1-10 turn 3 step 2, region-1 at 5.12 s: HTTP error 503".into()], *n);
        }
        let verdict = findings.verdict(false);
        why(&ev, &Judgement { verdict, findings: findings.sorted(), ..judge(&Evidence::default()) })
    }

    #[test]
    fn the_gravest_finding_leads() {
        let leads = |codes: &[(&str, usize)]| {
            let line = told_of(codes, false).remove(0);
            line.strip_prefix("why: ").unwrap().split(':').next().unwrap().to_owned()
        };
        assert_eq!(leads(&[("lost_in_flight", 3), ("no_failover", 91)]), "no_failover");
        // Customers who came in the outage are what a drill is about, however few they are.
        assert_eq!(leads(&[("lost_in_flight", 9), ("no_failover", 4)]), "no_failover");
        assert_eq!(leads(&[("schema_broken", 2), ("uncontrolled_break", 30)]), "uncontrolled_break");
        assert_eq!(leads(&[("no_failover", 91), ("truncated_as_success", 1), ("spliced_answer", 2)]), "spliced_answer");
        // Of what makes a run say nothing the first thing that was found explains the rest.
        assert_eq!(leads(&[("steady_state_not_met", 2), ("fault_not_seen", 7)]), "steady_state_not_met");
    }

    /// A bare number beside the first case reads as so many more cases of the same.
    #[test]
    fn other_findings_of_the_same_weight_are_named() {
        let line = &told_of(&[("spliced_answer", 2), ("truncated_as_success", 1), ("no_failover", 9)], false)[0];
        assert!(line.ends_with(" (also found: truncated_as_success)"), "{line}");
        assert!(!told_of(&[("spliced_answer", 2)], false)[0].contains("also found"));
    }

    /// Of a gateway that the drill did not start there is no journal; of one that it started there is one, with this name.
    #[test]
    fn the_next_step_names_what_is_there() {
        for code in codes::CODES {
            let lines = told_of(&[(code.name, 1)], true);
            let next = lines.iter().find(|l| l.starts_with("next: ")).unwrap();
            for absent in ["journal", "llmfo trace", "llmfo ledger"] {
                assert!(!next.contains(absent), "{}: {next}", code.name);
            }
        }
        let own = &told_of(&[("no_failover", 1)], false)[1];
        assert!(own.contains("llmfo trace s3-1-10/3 --journal REPORT/journal.jsonl"), "{own}");
        let foreign = &told_of(&[("no_failover", 1)], true)[1];
        assert!(foreign.contains("its own log") && foreign.contains("x-llmfo-conversation"), "{foreign}");
    }

    #[test]
    fn a_run_that_was_ended_says_so_and_proposes_nothing() {
        let by = |by: &str| {
            let aborted = crate::drill::evidence::Aborted { by: by.into(), text: "Ctrl-C".into() };
            let ev = Evidence { aborted: Some(aborted), ..Evidence::default() };
            let judged = Judgement { verdict: Verdict::Aborted, ..judge(&Evidence::default()) };
            (why(&ev, &judged), crate::drill::propose::nothing(&ev))
        };
        let (lines, nothing) = by("interrupted");
        assert!(lines[0].starts_with("why: interrupted: Ctrl-C;") && lines[1].starts_with("next: "), "{lines:?}");
        assert!(nothing.contains("ended before"), "{nothing}");
        assert!(by("max_duration").0[1].contains("limits.max_duration_s"));
    }

    #[test]
    fn a_steady_state_that_was_seen_to_be_bad_after_the_rounds_does_not_say_that_nothing_was_broken() {
        let quoted = "s3-1-4 turn 3 at 3.36 s: HTTP error 503 (handoff)";
        assert!(told("steady_state_not_met", quoted, |_| {})[1].ends_with("nothing was broken yet"));
        let lines = told("steady_state_not_met", quoted, |ev| ev.windows = vec![Default::default()]);
        assert!(
            lines[1].contains("the rounds ran before this was seen") && lines[1].contains("llmfo trace s3-1-4/3"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_silence_after_the_first_text_is_a_matter_of_the_idle_limit_alone() {
        let lines = told("deadline_missed", "c1 turn 1: text had begun, then silence without an end", |ev| {
            (ev.declared.idle_limit_ms, ev.declared.deadline_ms) = (5000.0, 3000.0);
        });
        assert!(lines[1].contains("`idle_timeout_ms`") && lines[1].contains("5000 ms now"), "{lines:?}");
        assert!(lines[1].contains("4500 ms") && !lines[1].contains("next target"), "{lines:?}");
    }

    #[test]
    fn the_cause_and_the_next_step_stand_beside_the_verdict() {
        let quoted = "c1: HTTP error 404 (model_not_found): \"The model `support-chat` is no route of this gateway; known: chat\"";
        let lines = told("steady_state_not_met", quoted, |_| {});
        assert!(lines[0].starts_with("why: steady_state_not_met: ") && lines[0].contains("known: chat"), "{lines:?}");
        assert!(lines[1].contains("your gateway support-chat") && lines[1].contains("`route:`"), "{lines:?}");

        let lines = told("no_failover", "c1", |ev| ev.declared.nobody_stands_in = Some("`failover: none`: out".into()));
        assert_eq!(lines[1], "next: `failover: none`: out");
        // What nobody standing in does not explain is not put down to it.
        let lines = told("schema_broken", "c1", |ev| ev.declared.nobody_stands_in = Some("x".into()));
        assert_eq!(lines[1], format!("next: {}", codes::find("schema_broken").unwrap().next));
        assert!(told("spliced_answer", "c1", |_| {})[1].starts_with("next: report.md"));
        // The quoted cause leads, not what a handoff has been for before.
        let quoted =
            "c1: HTTP error 503 (handoff): \"local-a: capability_json_schema; local-b: capability_json_schema\"";
        assert!(told("steady_state_not_met", quoted, |_| {})[1].contains("json_schema: strict"));
        assert!(told("no_failover", "local-b: full (no slot is free)", |_| {})[1].contains("capacity.slots"));
        assert!(told("steady_state_not_met", "(handoff): the policy has expired", |_| {})[1].contains("expired?"));
        assert!(told("failback_missed", "7057 ms", |_| {})[1].contains("base_cooldown_s"));
    }
}
