//! Streams that were cut inside: where they were cut, how they ended, and what a round of cuts says of recovery.

use super::hand::{request, seen};
use super::tests::{codes, good, text_of};
use super::*;
use crate::drill::evidence::Evidence;
use crate::drill::report::rto_line;
use crate::drill::verdict::Row;
use crate::measure::{End, ToolCallRow};

#[test]
fn a_stream_cut_after_content_must_end_with_one_error_event() {
    let base = || {
        let mut ev = good();
        ev.windows[0].faults[0].cuts = true;
        ev.windows[0].faults[0].cut_events = Some(4);
        ev.windows[0].faults[0].see = "cut_after 4 events".into();
        // Request 30 was cut at the primary after three pieces of text, and ended by one error event.
        let r = &mut ev.requests[30];
        r.text = "amber birch cedar".into();
        (r.end, r.error_events, r.done_marker, r.finish_reason) = (End::ErrorEvent, 1, false, None);
        let p = &mut ev.providers[30];
        p.provider = "local-a".into();
        p.text = text_of("local-a", "c30");
        (p.completed, p.cancelled, p.events_sent) = (false, true, 6);
        ev
    };
    let j = judge(&base());
    assert_eq!(codes(&j), Vec::<&str>::new());
    let after = j.cut_streams.after_content;
    assert_eq!((after.n, after.one_error_event, j.cut_streams.n), (1, 1, 1));

    let mut ev = base();
    ev.requests[30].done_marker = true;
    assert_eq!(codes(&judge(&ev)), vec!["forged_end"]);
    let mut ev = base();
    ev.requests[30].finish_reason = Some("stop".into());
    assert_eq!(codes(&judge(&ev)), vec!["forged_end"]);
    let mut ev = base();
    ev.requests[30].error_events = 2;
    assert_eq!(codes(&judge(&ev)), vec!["uncontrolled_break"]);
    let mut ev = base();
    (ev.requests[30].end, ev.requests[30].error_events) = (End::Cut, 0);
    assert_eq!(codes(&judge(&ev)), vec!["uncontrolled_break"]);
}

#[test]
fn cut_before_content_or_inside_a_call_is_counted_where_it_was_cut() {
    let mut ev = good();
    ev.windows[0].faults[0].cuts = true;
    ev.windows[0].faults[0].cut_events = Some(1);
    let cut = |of: &RequestRow, events: u32| ProviderRow {
        text: text_of("local-a", &of.conversation),
        arrived_ms: of.started_ms + 1.0,
        completed: false,
        cancelled: true,
        events_sent: events,
        ..seen("local-a", of)
    };
    // Cut after the role chunk, answered whole by the stand-in (its row is there already).
    let first = cut(&ev.requests[30], 2);
    ev.providers.push(first);
    let j = judge(&ev);
    let before = j.cut_streams.before_content;
    assert_eq!((codes(&j), before.n, before.answered_whole), (vec![], 1, 1));

    // A call, cut after six events, of which eleven would have been needed; and one cut after all eleven.
    ev.windows[0].faults[0].cut_events = None;
    for (i, events) in [(31, 6), (32, 11)] {
        let arguments = r#"{"subject":"late"}"#.into();
        let call = ToolCallRow { id: "x".into(), name: "create_ticket".into(), arguments };
        let mut row = cut(&ev.requests[i], events);
        row.text = String::new();
        row.tool_calls = vec![call];
        row.events_to_last_token = 11;
        ev.providers.push(row);
    }
    let j = judge(&ev);
    assert_eq!((j.cut_streams.inside_call.n, j.cut_streams.after_call.n, j.cut_streams.n), (1, 1, 3));
    assert_eq!(j.cut_streams.inside_call.answered_whole, 1);

    // A gateway that relays the call piece by piece can only end it by an error event then. Row and finding agree: nobody had
    // anything of use yet, so the stand-in should have answered.
    let call = ToolCallRow { id: "x".into(), name: "create_ticket".into(), arguments: "{\"subj".into() };
    let r = &mut ev.requests[31];
    (r.end, r.error_events, r.finish_reason, r.done_marker) = (End::ErrorEvent, 1, None, false);
    (r.useful_text_ms, r.committed_ms, r.text, r.tool_calls) = (None, None, String::new(), vec![call]);
    let j = judge(&ev);
    let inside = j.cut_streams.inside_call;
    assert_eq!((inside.n, inside.answered_whole, inside.one_error_event, inside.other), (1, 0, 0, 1));
    assert_eq!(codes(&j), ["no_failover"]);
    let said = &j.findings[0].examples[0];
    assert!(said.contains("parts of a tool call had been relayed before the call was whole"), "{said}");
    let whole = crate::drill::report::whole_line(&j).unwrap();
    assert!(whole.contains("1 failed otherwise") && !whole.contains("as it must be"), "{whole}");

    // Where text had been read before, the error event is the right end.
    let r = &mut ev.requests[31];
    (r.useful_text_ms, r.committed_ms) = (Some(r.started_ms + 50.0), Some(r.started_ms + 50.0));
    let inside = judge(&ev).cut_streams.inside_call;
    assert_eq!((inside.one_error_event, inside.other), (1, 0));
}

/// The provider had written all of it when its path broke at 5 s, and knows of no cut; the customer has three words of it, told as
/// a whole answer. A finding that says so has its line in the table of cut streams, whoever the gateway is.
#[test]
fn what_was_told_as_whole_is_in_the_table_although_its_provider_knows_of_no_cut() {
    for text in ["amber birch cedar", ""] {
        let mut ev = good();
        ev.foreign = true;
        let r = &mut ev.requests[19];
        (r.started_ms, r.ended_ms, r.text) = (4800.0, 5300.0, text.into());
        let p = &mut ev.providers[19];
        (p.arrived_ms, p.ended_ms, p.completed) = (4810.0, Some(4900.0), true);
        let j = judge(&ev);
        assert_eq!(codes(&j), ["truncated_as_success"]);
        let cut = &j.cut_streams;
        assert_eq!((cut.n, cut.before_content.other + cut.after_content.other), (1, 1), "{cut:?}");
        assert!(crate::drill::report::cut_table(&j).is_some());
    }
}

/// Answers are cut off from 5 s to 6 s: the four that begin then (5.01 to 5.76 s) after three words, each ended by one error
/// event. From 6.01 s on the primary, which was there all the time, answers whole.
fn cut_off() -> Evidence {
    let mut ev = good();
    let window = &mut ev.windows[0];
    (window.restoring_ms, window.restored_ms) = (6000.0, 6005.0);
    (window.faults[0].cuts, window.faults[0].cut_events) = (true, Some(4));
    ev.needs.outage_turns = 4;
    for i in 20..80 {
        let mut r = request(&format!("c{i}"), 1, ev.requests[i].started_ms);
        r.text = text_of("local-a", &format!("c{i}"));
        ev.providers[i] = seen("local-a", &r);
        if r.started_ms < 6000.0 {
            r.text = "amber birch cedar".into();
            (r.end, r.error_events, r.done_marker, r.finish_reason) = (End::ErrorEvent, 1, false, None);
            let p = &mut ev.providers[i];
            (p.completed, p.cancelled, p.events_sent) = (false, true, 6);
        }
        ev.requests[i] = r;
    }
    ev
}

fn rto_row(j: &Judgement) -> &Row {
    &j.promises.iter().find(|p| p.name == "recovery").unwrap().rows[0]
}

#[test]
fn where_answers_were_only_cut_off_the_next_ones_after_the_restore_are_no_recovery() {
    let j = judge(&cut_off());
    assert_eq!((codes(&j), j.verdict), (vec![], Verdict::Pass));
    let rto = rto_row(&j);
    assert_eq!(rto.what, "useful answers again while answers were only cut off, whoever gave them (slowest round)");
    // From 5,010 to 6,010 and the 100 ms to its useful text: measured, and no promise kept.
    assert_eq!((rto.measured.as_str(), rto.verdict), ("1100 ms, only after the restore", Kept::NotJudged));
    assert!(rto.why.starts_with("answers were only cut off"), "{rto:?}");
    let recovery = j.promises.iter().find(|p| p.name == "recovery").unwrap();
    assert_eq!(recovery.verdict, Kept::NotJudged);
    let line = rto_line(&j);
    assert!(line.starts_with("recovery after the cut: no provider was away, answers were only cut off; "), "{line}");
    assert!(line.contains("useful answers again only after the restore, 1100 ms after the first turn that"), "{line}");
}

#[test]
fn useful_answers_while_others_are_cut_off_are_counted_as_that() {
    let mut ev = cut_off();
    // The stand-in answers from the second one on.
    for i in 21..24 {
        let mut r = request(&format!("c{i}"), 1, ev.requests[i].started_ms);
        r.text = text_of("local-b", &format!("c{i}"));
        ev.providers[i] = seen("local-b", &r);
        ev.requests[i] = r;
    }
    let j = judge(&ev);
    let rto = rto_row(&j);
    // From 5,010 to 5,260 and 100 ms.
    assert_eq!((rto.measured.as_str(), rto.verdict), ("350 ms", Kept::Pass));
    assert!(rto.what.contains("only cut off") && rto_line(&j).contains("useful answers again 350 ms after"), "{rto:?}");
}

/// A drill with both kinds of rounds is about the one in which somebody was away.
#[test]
fn a_round_of_cuts_does_not_speak_for_one_in_which_the_primary_was_away() {
    let mut ev = good();
    ev.windows[0].until_ms = 16_000.0;
    let mut cut = ev.windows[0].clone();
    (cut.name, cut.until_ms) = ("cut".into(), 20_000.0);
    (cut.injecting_ms, cut.injected_ms) = (16_000.0, 16_001.0);
    (cut.restoring_ms, cut.restored_ms) = (16_200.0, 16_205.0);
    (cut.faults[0].cuts, cut.faults[0].cut_events) = (true, Some(4));
    ev.windows.push(cut);
    // The one at 16.01 s is cut; the next, at 16.26 s, comes after the restore: 350 ms.
    let r = &mut ev.requests[64];
    r.text = "amber birch cedar".into();
    (r.end, r.error_events, r.done_marker, r.finish_reason) = (End::ErrorEvent, 1, false, None);
    let p = &mut ev.providers[64];
    (p.completed, p.cancelled, p.events_sent) = (false, true, 6);
    let j = judge(&ev);
    let cut = &j.recovery.rounds[1];
    assert_eq!((cut.rto.total_ms(), cut.after_restore, cut.only_cut), (Some(350.0), Some(true), true));
    let rto = rto_row(&j);
    assert_eq!((rto.measured.as_str(), rto.verdict), ("1100 ms", Kept::Pass));
    assert!(rto.what.starts_with("useful answers back in the outage"), "{rto:?}");
}
