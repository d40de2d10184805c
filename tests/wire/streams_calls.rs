//! Tool calls in streams: held until the choice has its finish, released together, told apart.

use bytes::Bytes;
use llmfo::units::Ts;
use llmfo::wire::{Anomaly, Done, Pushed, Sign, Stamp, StreamFault, StreamInlet, StreamSettings, ToolCall};
use serde_json::{Value, json};

use crate::rig::*;

fn tool_call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

#[test]
fn a_call_leaves_whole_or_not_at_all() {
    let pieces = [
        role(),
        call(0, "a", "create_ticket", ""),
        arguments(0, "{\"subject\":"),
        arguments(0, "\"x\"}"),
        finish("tool_calls"),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.at_once, [0, 0, 0, 0, 5, 1]);
    assert_eq!((played.commit_at, played.signs.as_slice()), (Some(4), &[Sign::ToolCall][..]));
    assert_eq!(played.progress, [false, true, true, true, false, false]);
    assert_eq!(played.text(), pieces.concat());
    assert!(played.calls_delivered);
    assert_eq!(played.complete().tool_calls, [tool_call("a", "create_ticket", "{\"subject\":\"x\"}")]);
    // Cut anywhere before the finish: nobody saw it.
    for n in 1..4 {
        for clean in [true, false] {
            let played = play(settings(), &pieces[..n], clean);
            assert!(played.fails_over(), "{n} {clean}");
            assert!(!played.calls_delivered);
        }
    }
}

#[test]
fn after_text_the_call_is_held_all_the_same_and_so_is_what_follows() {
    let pieces = [
        content("Let me open a ticket."),
        call(0, "a", "create_ticket", "{"),
        content(" One moment."),
        arguments(0, "}"),
        finish("tool_calls"),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.at_once, [1, 0, 0, 0, 4, 1]);
    assert!(played.signs.is_empty(), "signs are for the time before the commit point");
    assert_eq!(played.text(), pieces.concat());
    // The connection breaks inside the call: the text stays, the call was never there.
    let played = play(settings(), &pieces[..4], false);
    assert_eq!((played.fault(), played.text()), (&StreamFault::Cut, content("Let me open a ticket.")));
    assert!(played.committed && !played.calls_delivered);
}

#[test]
fn reasoning_then_a_call_gives_both_signs() {
    let pieces = [reasoning("hm"), call(0, "a", "f", "{}"), finish("tool_calls"), done()];
    assert_eq!(play_clean(&pieces).signs, [Sign::Life, Sign::ToolCall]);
    // Keep-alive comments inside the call pass only once something has been sent.
    let ping = ": ping\n\n".to_owned();
    let pieces = [call(0, "a", "f", "{"), ping.clone(), arguments(0, "}"), finish("tool_calls"), done()];
    assert!(!play_clean(&pieces).text().contains("ping"));
    let pieces = [content("x"), call(0, "a", "f", "{"), ping, arguments(0, "}"), finish("tool_calls"), done()];
    assert_eq!(play_clean(&pieces).at_once, [1, 0, 1, 0, 3, 1]);
}

#[test]
fn b025_parallel_calls_interleaved_by_index() {
    let pieces = [
        call(0, "a", "get_order", ""),
        call(1, "b", "get_stock", ""),
        arguments(0, "{\"order\":"),
        arguments(1, "{\"item\""),
        arguments(0, "1}"),
        arguments(1, ":2}"),
        finish("tool_calls"),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    let right = [tool_call("a", "get_order", "{\"order\":1}"), tool_call("b", "get_stock", "{\"item\":2}")];
    assert_eq!(played.complete().tool_calls, right);
    assert!(played.complete().anomalies.is_empty());
}

fn without_index(calls: &[(&str, &str, &str)]) -> String {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| {
            let mut call = json!({"function":{"arguments":arguments}});
            if !id.is_empty() {
                call["id"] = json!(id);
                call["function"]["name"] = json!(name);
            }
            call
        })
        .collect();
    chunk(json!({ "tool_calls": calls }))
}

#[test]
fn b026_calls_without_an_index() {
    let three = without_index(&[("a", "f", "{}"), ("b", "f", "{}"), ("c", "g", "{\"x\":1}")]);
    let pieces = [three, finish("tool_calls"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat(), "relayed as it came");
    let right = [tool_call("a", "f", "{}"), tool_call("b", "f", "{}"), tool_call("c", "g", "{\"x\":1}")];
    assert_eq!(played.complete().tool_calls, right);

    let pieces = [
        without_index(&[("a", "f", "")]),
        without_index(&[("", "", "{\"x\":1}")]),
        without_index(&[("b", "g", "")]),
        without_index(&[("", "", "{\"y\"")]),
        without_index(&[("", "", ":2}")]),
        finish("tool_calls"),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().tool_calls, [tool_call("a", "f", "{\"x\":1}"), tool_call("b", "g", "{\"y\":2}")]);

    // Switched on, each fragment gets the index of its call, and nothing else changes.
    let played = play(StreamSettings { add_missing_index: true, ..settings() }, &pieces, true);
    let text = played.text();
    let seen: Vec<&str> = text.match_indices("{\"index\":").skip(1).map(|(at, _)| &text[at + 9..at + 11]).collect();
    // Between them stand the indices of the choices.
    assert_eq!(seen.iter().filter(|s| s.ends_with(',')).count(), seen.len());
    let indices: Vec<i64> = text
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok())
        .filter_map(|v| v["choices"][0]["delta"]["tool_calls"][0]["index"].as_i64())
        .collect();
    assert_eq!(indices, [0, 0, 1, 1, 1]);
    let mut without = text.clone();
    for n in ["0", "1"] {
        without = without.replace(&format!("[{{\"index\":{n},\"function\""), "[{\"function\"");
        without = without.replace(&format!("[{{\"index\":{n},\"id\""), "[{\"id\"");
    }
    assert_eq!(without, pieces.concat());
}

#[test]
fn two_calls_under_index_0_are_renumbered_and_nothing_else_changes() {
    let odd = r#"data:  {"choices":[{"index":0,"delta":{"tool_calls":[{"index" : 0 ,"id":"b","x":1.50,"function":{"name":"g","arguments":"{"}}]}}]}"#;
    let pieces = [call(0, "a", "f", "{}"), format!("{odd}\n\n"), arguments(0, "}"), finish("tool_calls"), done()];
    let played = play_clean(&pieces);
    let right = [
        pieces[0].clone(),
        pieces[1].replace("\"index\" : 0 ", "\"index\" : 1 "),
        arguments(1, "}"),
        finish("tool_calls"),
        done(),
    ];
    assert_eq!(played.text(), right.concat());
    assert_eq!(played.complete().tool_calls, [tool_call("a", "f", "{}"), tool_call("b", "g", "{}")]);
    assert_eq!(played.complete().anomalies, [Anomaly::Renumbered]);
    // Both in one chunk, and with the data over two lines.
    let both = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[\ndata: {\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}},{\"index\":0,\"id\":\"b\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n";
    let played = play_clean(&[both.to_owned(), finish("tool_calls"), done()]);
    let right = both.replace("{\"index\":0,\"id\":\"b\"", "{\"index\":1,\"id\":\"b\"");
    assert_eq!(played.text(), [right, finish("tool_calls"), done()].concat());
}

#[test]
fn b028_empty_arguments_are_valid_and_relayed_as_sent() {
    let pieces = [call(0, "a", "transfer_to_human", ""), finish("tool_calls"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert!(played.complete().anomalies.is_empty());
}

#[test]
fn b029_truncated_arguments_are_never_mended() {
    let cut = "{\"order_id\":\"A1\",\"amo";
    let pieces = [call(0, "a", "issue_refund", cut), finish("length"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().anomalies, [Anomaly::InvalidArguments]);
    assert_eq!(played.complete().tool_calls[0].arguments, cut);
    // The connection breaks: before the call was released, fail over.
    assert!(play(settings(), &pieces[..1], false).fails_over());
}

#[test]
fn b030_finish_reason_and_calls_that_do_not_match() {
    let pieces = [call(0, "a", "f", "{}"), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!((played.commit_at, played.calls_delivered), (Some(1), true));
    assert_eq!(played.complete().anomalies, [Anomaly::FinishMismatch]);
    let pieces = [content("Hi"), finish("tool_calls"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().anomalies, [Anomaly::FinishMismatch]);
    assert!(!played.calls_delivered);
    // With nothing before it, it is an empty answer.
    assert!(play_clean(&[role(), finish("tool_calls"), done()]).fails_over());
    // So is a call that never got a name.
    assert!(play_clean(&[arguments(0, "{}"), finish("tool_calls"), done()]).fails_over());
}

#[test]
fn the_old_function_call_is_held_too() {
    let pieces = [
        chunk(json!({"function_call":{"name":"f","arguments":""}})),
        chunk(json!({"function_call":{"arguments":"{}"}})),
        finish("function_call"),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.at_once, [0, 0, 3, 1]);
    assert_eq!(played.complete().tool_calls, [tool_call("", "f", "{}")]);
}

#[test]
fn calls_of_two_choices_leave_only_when_none_waits() {
    let one = |index, delta, finish| chunk_of(index, delta, finish);
    let open = |id: &str| json!({"tool_calls":[{"index":0,"id":id,"function":{"name":"f","arguments":"{"}}]});
    let close = json!({"tool_calls":[{"index":0,"function":{"arguments":"}"}}]});
    let pieces = [
        one(0, open("a"), None),
        one(1, open("b"), None),
        one(0, close.clone(), None),
        one(0, json!({}), Some("tool_calls")),
        one(1, close, None),
        one(1, json!({}), Some("tool_calls")),
        done(),
    ];
    let played = play_clean(&pieces);
    assert_eq!(played.at_once, [0, 0, 0, 0, 0, 6, 1], "a call that is torn in the middle is worse than a late one");
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().tool_calls.len(), 2);
    // The second one is cut: neither was delivered.
    let played = play(StreamSettings { choices: 2, ..settings() }, &pieces[..5], false);
    assert!(played.fails_over() && !played.calls_delivered);
    // Text was sent before: it stays, and still neither call was delivered.
    let text = chunk_of(0, json!({"content":"Let me see"}), None);
    let played =
        play(StreamSettings { choices: 2, ..settings() }, &[std::slice::from_ref(&text), &pieces[..5]].concat(), false);
    assert_eq!((played.text(), played.calls_delivered), (text, false));
}

#[test]
fn a_call_after_the_finish_waits_for_the_end() {
    let pieces = [content("x"), finish("stop"), call(0, "a", "f", "{"), arguments(0, "}"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.at_once, [1, 1, 0, 0, 3]);
    assert_eq!(played.complete().anomalies, [Anomaly::AfterFinish, Anomaly::FinishMismatch]);
    let played = play(settings(), &pieces[..3], false);
    assert_eq!(played.fault(), &StreamFault::Cut);
    assert!(!played.calls_delivered);
}

fn stamping() -> StreamSettings {
    StreamSettings { stamp_calls: true, ..settings() }
}

fn inlet() -> StreamInlet {
    StreamInlet::new(stamping(), llmfo::wire::sse::MAX_EVENT_BYTES)
}

fn feed(inlet: &mut StreamInlet, text: &str) -> Pushed {
    inlet.bytes(Bytes::copy_from_slice(text.as_bytes()), Ts::ZERO)
}

fn text(out: &[Bytes]) -> String {
    String::from_utf8(out.concat()).unwrap()
}

fn stamp(id: &str, arguments: Option<&str>) -> Stamp {
    Stamp { id: Some(id.into()), arguments: arguments.map(str::to_owned) }
}

#[test]
fn calls_are_handed_out_whole_and_wait_for_their_stamps() {
    let mut inlet = inlet();
    let out = feed(&mut inlet, &content("One moment."));
    assert!(out.commit && out.calls.is_none());
    let pieces = [call(0, "a", "create_ticket", "{\"x\":"), arguments(0, "1}")];
    assert_eq!(feed(&mut inlet, &pieces.concat()).out.len(), 0);
    let finished = feed(&mut inlet, &finish("tool_calls"));
    assert_eq!(finished.calls.unwrap(), [tool_call("a", "create_ticket", "{\"x\":1}")]);
    assert!(finished.out.is_empty());
    // What comes meanwhile waits behind it, in order; comments of a committed stream pass.
    assert_eq!(text(&feed(&mut inlet, ": ping\n\n").out), ": ping\n\n");
    let end = feed(&mut inlet, &(usage() + &done()));
    assert!(end.ended && end.out.is_empty() && end.calls.is_none());
    assert!(!inlet.state().tool_calls_delivered());
    let finished = inlet.end(true, Ts::ZERO);
    assert!(matches!(finished.done, Done::Complete(_)) && finished.out.is_empty());
    let stamped = inlet.stamp(&[stamp("call_1", Some("{\"k\":\"v\",\"x\":1}"))]);
    let right =
        [call(0, "call_1", "create_ticket", "{\"k\":\"v\",\"x\":1}"), arguments(0, ""), finish("tool_calls"), done()];
    assert_eq!(text(&stamped.out), right.concat(), "usage was not asked for");
    assert!(inlet.state().tool_calls_delivered());
    assert_eq!(inlet.stamp(&[stamp("again", None)]), Pushed::default(), "once");
}

#[test]
fn the_commit_waits_with_the_calls() {
    for (pieces, clean) in [
        (vec![role(), call(0, "a", "f", "{}"), finish("tool_calls"), done()], true),
        (vec![role(), call(0, "a", "f", "{}"), finish("tool_calls")], true),
        (vec![role(), call(0, "a", "f", "{}"), done()], true),
    ] {
        let mut inlet = inlet();
        let pushed = feed(&mut inlet, &pieces.concat());
        assert!(!pushed.commit && pushed.out.is_empty());
        let end = inlet.end(clean, Ts::ZERO);
        assert!(!end.commit && end.out.is_empty());
        assert_eq!(pushed.calls.or(end.calls).unwrap().len(), 1);
        let stamped = inlet.stamp(&[stamp("b", None)]);
        assert!(stamped.commit);
        assert_eq!(text(&stamped.out), pieces.concat().replace("\"id\":\"a\"", "\"id\":\"b\""));
    }
}

#[test]
fn an_id_is_set_wherever_it_stands_and_where_there_is_none() {
    let one = |call: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n");
    for (before, after) in [
        // Repeated in every piece.
        (
            [
                r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
                r#"{"index":0,"id":"a","function":{"arguments":"}"}}"#,
            ],
            [
                r#"{"index":0,"id":"n","function":{"name":"f","arguments":"{"}}"#,
                r#"{"index":0,"id":"n","function":{"arguments":"}"}}"#,
            ],
        ),
        // Empty later on, and none at all.
        (
            [r#"{"index":0,"id":"a","function":{"name":"f"}}"#, r#"{"index":0,"id":"","function":{"arguments":"{}"}}"#],
            [r#"{"index":0,"id":"n","function":{"name":"f"}}"#, r#"{"index":0,"id":"","function":{"arguments":"{}"}}"#],
        ),
        (
            [r#"{"function":{"name":"f"}}"#, r#"{"function":{"arguments":"{}"}}"#],
            [r#"{"id":"n","function":{"name":"f"}}"#, r#"{"function":{"arguments":"{}"}}"#],
        ),
        (
            [
                r#"{"index":0,"id":null,"function":{"name":"f"}}"#,
                r#"{"index":0,"id":null,"function":{"arguments":"{}"}}"#,
            ],
            [
                r#"{"index":0,"id":"n","function":{"name":"f"}}"#,
                r#"{"index":0,"id":null,"function":{"arguments":"{}"}}"#,
            ],
        ),
    ] {
        let mut inlet = inlet();
        let end = finish("tool_calls") + &done();
        let pushed = feed(&mut inlet, &(one(before[0]) + &one(before[1]) + &end));
        assert_eq!(pushed.calls.unwrap().len(), 1, "{before:?}");
        let got = text(&inlet.stamp(&[stamp("n", None)]).out);
        assert_eq!(got, one(after[0]) + &one(after[1]) + &end);
    }
}

#[test]
fn calls_that_cannot_be_stamped_are_faults() {
    let bad = |pieces: &[String]| {
        let mut inlet = inlet();
        let pushed = feed(&mut inlet, &pieces.concat());
        match pushed.fault {
            Some(StreamFault::Malformed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let two = [
        call(0, "a", "f", "{}"),
        chunk_of(1, json!({"tool_calls":[{"index":0,"id":"b","function":{"name":"f"}}]}), None),
    ];
    assert!(bad(&two).contains("more than one choice"));
    let late = [call(0, "a", "f", "{}"), finish("tool_calls"), call(1, "b", "g", "{}")];
    assert!(bad(&late).contains("after the calls were complete"));
    let old = [chunk(json!({"function_call":{"name":"f","arguments":"{}"}}))];
    assert!(bad(&old).contains("function_call"));
    // A fault in the same piece of the body as the calls takes them back.
    let mut inlet = inlet();
    let pushed = feed(&mut inlet, &[call(0, "a", "f", "{}"), finish("tool_calls"), error_event()].concat());
    assert!(pushed.fault.is_some() && pushed.calls.is_none() && !pushed.commit);
    assert_eq!(inlet.stamp(&[stamp("n", None)]), Pushed::default());
}

#[test]
fn stamps_that_change_nothing_change_no_byte_however_the_body_is_cut() {
    let pieces = [
        ": hello\n\n".to_owned(),
        role(),
        content("Let me see."),
        call(0, "a", "f", "{\"x\": \"\u{e9}"),
        call(1, "b", "g", ""),
        arguments(0, "\"}"),
        arguments(1, "{}"),
        finish("tool_calls"),
        done(),
    ];
    let whole = pieces.concat();
    let right: String = pieces[1..].concat();
    for size in [1, 7, 64, whole.len()] {
        let mut inlet = inlet();
        let mut sent = Vec::new();
        for part in whole.as_bytes().chunks(size) {
            let pushed = inlet.bytes(Bytes::copy_from_slice(part), Ts::ZERO);
            sent.extend(pushed.out);
            if pushed.calls.is_some() {
                sent.extend(inlet.stamp(&[Stamp::default(), Stamp::default()]).out);
            }
        }
        assert_eq!(text(&sent), right, "in pieces of {size}");
    }
}
