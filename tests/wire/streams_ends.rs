//! How an attempt ends: complete, or a fault before or after the commit point.

use llmfo::wire::error::sse_error_event;
use llmfo::wire::{Anomaly, CommitAt, Secrets, StreamFault, StreamSettings};
use serde_json::{Value, json};

use crate::rig::*;

#[test]
fn b009_a_clean_end_with_neither_finish_nor_done_is_a_truncation() {
    let words: Vec<String> = (0..40).map(|n| content(&format!(" w{n}"))).collect();
    let played = play_clean(&words);
    assert_eq!(played.fault(), &StreamFault::Truncated);
    assert!(played.committed);
    assert_eq!(played.text(), words.concat());
    // Nothing but a role: another target may answer.
    assert_eq!(play_clean(&[role()]).fault(), &StreamFault::Truncated);
    assert!(play_clean(&[role()]).fails_over());
}

#[test]
fn b010_a_connection_cut_in_the_middle() {
    let words: Vec<String> = (0..40).map(|n| content(&format!(" w{n}"))).collect();
    let played = play(settings(), &words, false);
    assert_eq!((played.fault(), played.text()), (&StreamFault::Cut, words.concat()));
    for pieces in [vec![], vec![role()], vec![": ping\n\n".to_owned(), role(), reasoning("hm")]] {
        let played = play(settings(), &pieces, false);
        assert_eq!(played.fault(), &StreamFault::Cut);
        assert!(played.fails_over());
    }
    // Cut inside an event: the half event is never sent.
    let half = &content("half")[..30];
    let played = play(settings(), &[content("whole").as_str(), half], false);
    assert_eq!((played.fault(), played.text()), (&StreamFault::Cut, content("whole")));
    let played = play(settings(), &[content("whole").as_str(), half], true);
    assert_eq!(played.fault(), &StreamFault::Cut, "a body that ends inside an event was cut, however cleanly");
}

#[test]
fn b011_finish_without_done_is_success() {
    let pieces = [content("Hi"), finish("stop")];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert!(played.complete().append_done);
    assert_eq!(played.complete().anomalies, [Anomaly::FinishWithoutDone]);
    // The finish chunk lacks its blank line.
    let body = pieces.concat();
    let played = play_clean(&[body.trim_end()]);
    assert_eq!(played.text(), body);
    played.complete();
}

#[test]
fn b012_done_without_a_finish_reason_is_success_and_none_is_invented() {
    let empty_choices = event(&json!({"choices":[]}));
    let pieces = [content("Hi"), empty_choices, done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().finish_reasons, [(0, None)]);
    assert_eq!(played.complete().anomalies, [Anomaly::DoneWithoutFinish]);
    // A call that is whole is delivered; one that is not makes the attempt incomplete.
    let pieces = [call(0, "a", "f", "{\"x\":1}"), done()];
    let played = play_clean(&pieces);
    assert_eq!((played.text(), played.calls_delivered), (pieces.concat(), true));
    let played = play_clean(&[call(0, "a", "f", "{\"x\":"), done()]);
    assert_eq!(played.fault(), &StreamFault::Truncated);
    assert!(played.fails_over());
}

#[test]
fn b013_a_stream_whose_first_event_is_an_error() {
    let comment = ": ping\n\n".to_owned();
    let pieces = [comment.clone(), comment, error_event(), done()];
    let played = play_clean(&pieces);
    assert!(played.fails_over());
    let StreamFault::Error(error) = played.fault() else { panic!() };
    assert_eq!((error.status, error.openai_shape), (200, true));
    assert_eq!((error.kind.as_str(), error.code.as_str()), ("service_unavailable_error", "server_is_overloaded"));
    // After the role and even after thoughts it is still early enough.
    assert!(play_clean(&[role(), reasoning("hm"), error_event()]).fails_over());
}

#[test]
fn b015_an_error_after_partial_output() {
    let pieces = [role(), content("Your refund is "), error_event(), done()];
    let played = play_clean(&pieces);
    assert!(played.committed);
    assert_eq!(played.text(), [role(), content("Your refund is ")].concat());
    assert!(matches!(played.fault(), StreamFault::Error(_)));
    assert!(!played.text().contains("[DONE]") && !played.text().contains("error"));
    // In one read with the text: nothing has been sent yet, so that another target may answer.
    assert!(play_clean(&[pieces.concat()]).fails_over());
}

#[test]
fn b016_an_error_chunk_with_a_finish_reason() {
    let both = event(&json!({"id":"c1","error":{"code":502,"message":"Provider returned error"},
        "choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}));
    let played = play_clean(&[content("a"), content("b"), content("c"), both]);
    assert_eq!(played.text(), [content("a"), content("b"), content("c")].concat());
    let StreamFault::Error(error) = played.fault() else { panic!() };
    assert_eq!((error.code.as_str(), error.message.as_str()), ("502", "Provider returned error"));
    // Inside the choice, and without an error object.
    let inside = event(&json!({"choices":[{"index":0,"delta":{},"error":{"code":502,"message":"m"}}]}));
    assert!(matches!(play_clean(&[inside]).fault(), StreamFault::Error(_)));
    for reason in ["error", "abort", "end_turn"] {
        assert_eq!(play_clean(&[content("a"), finish(reason), done()]).fault(), &StreamFault::BadFinish(reason.into()));
    }
}

#[test]
fn b018_an_empty_event_stream() {
    let none: [&str; 0] = [];
    let bodies = [
        none.to_vec(),
        vec!["\n"],
        vec!["data: [DONE]\n\n"],
        vec!["data: {}\n\ndata: [DONE]\n\n"],
        vec![": ping\n\n", ": ping\n\n"],
    ];
    for pieces in bodies {
        let played = play_clean(&pieces);
        assert_eq!(played.fault(), &StreamFault::Empty, "{pieces:?}");
        assert!(played.fails_over());
    }
    let stop = [role(), finish("stop"), done()];
    assert_eq!(play_clean(&stop).fault(), &StreamFault::Empty);
    assert_eq!(play_clean(&stop[..2]).fault(), &StreamFault::Empty);
    assert_eq!(play(committing(CommitAt::Complete), &stop, true).fault(), &StreamFault::Empty);
}

#[test]
fn b037_two_choices() {
    let pieces = [
        chunk_of(1, json!({"role":"assistant"}), None),
        chunk_of(1, json!({"content":"b"}), None),
        chunk_of(0, json!({"content":"a"}), None),
        chunk_of(1, json!({}), Some("stop")),
        chunk_of(0, json!({"content":"a"}), None),
        chunk_of(0, json!({}), Some("length")),
    ];
    let two = StreamSettings { choices: 2, ..settings() };
    let whole = [&pieces[..], &[done()]].concat();
    let played = play(two.clone(), &whole, true);
    assert_eq!(played.text(), whole.concat());
    assert_eq!(played.complete().finish_reasons, [(1, Some("stop".into())), (0, Some("length".into()))]);
    assert!(played.complete().anomalies.is_empty());
    // Without [DONE], complete only when every choice that was seen has finished.
    play(two.clone(), &pieces, true).complete();
    assert_eq!(play(two.clone(), &pieces[..5], true).fault(), &StreamFault::Truncated);
    // [DONE] ends them all.
    let early = [&pieces[..5], &[done()]].concat();
    assert_eq!(play(two.clone(), &early, true).complete().anomalies, [Anomaly::DoneWithoutFinish]);
    // One of two is empty: the other one is an answer.
    let empty = [chunk_of(0, json!({"content":"a"}), Some("stop")), chunk_of(1, json!({}), Some("stop")), done()];
    assert_eq!(play(two.clone(), &empty, true).complete().anomalies, [Anomaly::EmptyChoice]);
    // The connection broke after the only choice that came had finished: was there to be another one?
    let one = [chunk_of(0, json!({"content":"a"}), Some("stop"))];
    assert_eq!(play(two, &one, false).fault(), &StreamFault::Cut);
    assert_eq!(play(settings(), &one, false).complete().anomalies, [Anomaly::CutAfterFinish]);
}

#[test]
fn b038_bare_json_lines_are_no_event_stream() {
    let lines: Vec<String> = answer(&["a", "b"]).iter().map(|p| p.trim().replacen("data: ", "", 1) + "\n").collect();
    let played = play_clean(&lines);
    assert!(matches!(played.fault(), StreamFault::Malformed(what) if what.contains("JSON")), "{:?}", played.done);
    assert!(played.fails_over());
    let spaced: Vec<String> = lines.iter().map(|l| format!("{l}\n")).collect();
    assert!(matches!(play_clean(&spaced).fault(), StreamFault::Malformed(_)));
}

#[test]
fn b048_a_document_instead_of_a_stream_is_a_failed_attempt() {
    let document =
        json!({"object":"chat.completion","choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}]});
    for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
        let played = play_clean(&[text]);
        assert!(matches!(played.fault(), StreamFault::Malformed(_)) && played.fails_over());
    }
    let error = json!({"error":{"message":"m","type":"insufficient_quota","code":"insufficient_quota"}});
    for text in [error.to_string(), serde_json::to_string_pretty(&error).unwrap() + "\n"] {
        let played = play_clean(&[text]);
        let StreamFault::Error(error) = played.fault() else { panic!("{:?}", played.done) };
        assert_eq!(error.code, "insufficient_quota");
    }
    // The whole document as the only event: there is no delta in it.
    let wrapped = [event(&document), done()];
    assert!(play_clean(&wrapped).fails_over());
}

#[test]
fn b067_a_filtered_answer_is_an_answer() {
    let pieces = [role(), finish("content_filter"), done()];
    let played = play_clean(&pieces);
    assert_eq!((played.text(), played.commit_at), (pieces.concat(), Some(1)));
    assert_eq!(played.complete().finish_reasons, [(0, Some("content_filter".into()))]);
    let pieces = [content("Half"), finish("content_filter"), done()];
    play_clean(&pieces).complete();
    // So is one that used up its tokens with thinking.
    let pieces = [reasoning("hm"), finish("length"), done()];
    assert_eq!(play_clean(&pieces).text(), pieces.concat());
}

#[test]
fn b069_a_page_with_status_200() {
    for page in ["<!DOCTYPE html>\n<html><head>\n\n</head>", "\u{feff}<html>", "  \n<html>\n\n"] {
        let played = play_clean(&[page]);
        assert!(
            matches!(played.fault(), StreamFault::Malformed(what) if what.contains("HTML")),
            "{page}: {:?}",
            played.done
        );
        assert!(played.fails_over());
    }
    let played = play_clean(&["upstream connect error\n\n"]);
    assert!(matches!(played.fault(), StreamFault::Malformed(_)));
}

#[test]
fn b073_overload_told_in_the_stream_keeps_its_name() {
    let anthropic = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let StreamFault::Error(error) = play_clean(&[anthropic]).fault().clone() else { panic!() };
    assert_eq!((error.kind.as_str(), error.openai_shape), ("overloaded_error", true));
}

#[test]
fn data_that_is_no_json_object_is_a_fault() {
    for data in ["hello", "{\"choices\":[", "[1]", "7", "null", ": OPENROUTER PROCESSING"] {
        let broken = format!("data: {data}\n\n");
        let played = play_clean(&[broken.clone(), done()]);
        assert!(matches!(played.fault(), StreamFault::Malformed(_)) && played.fails_over(), "{data}");
        let played = play_clean(&[content("a"), broken, finish("stop"), done()]);
        assert_eq!(played.text(), content("a"));
    }
}

#[test]
fn what_comes_after_the_end_is_not_sent() {
    let pieces = answer(&["Hi"]);
    let late = [&pieces[..], &[content("more"), error_event(), done()]].concat();
    let played = play_clean(&late);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(
        play(settings(), &pieces, false).text(),
        pieces.concat(),
        "[DONE] was seen: a broken end changes nothing"
    );
    play(settings(), &pieces, false).complete();
    // Two [DONE] in one read.
    let twice = [pieces.concat(), done()].concat();
    assert_eq!(play_clean(&[twice]).text(), pieces.concat());
}

#[test]
fn b148_an_error_inside_a_stream_shows_no_key() {
    let key = "sk-live-AbCdEf0123456789";
    let event = event(&json!({"error":{"message":format!("bad key {key} \u{1b}[2J"),"code":"invalid_api_key"}}));
    let settings = StreamSettings { secrets: Secrets::new([key]), ..settings() };
    let StreamFault::Error(error) = play(settings, &[event], true).fault().clone() else { panic!() };
    assert_eq!((error.message.as_str(), error.code.as_str()), ("bad key [redacted] \\u{1b}[2J", "invalid_api_key"));
}

#[test]
fn the_controlled_error_is_one_event_and_says_what_may_be_done() {
    let bytes = sse_error_event("upstream_cut", "broke\nhere", "req-1", false, true);
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.starts_with("data: {\"error\":{") && text.ends_with("}}\n\n"));
    assert_eq!(text.matches('\n').count(), 2);
    let error: Value = serde_json::from_str(&text["data: ".len()..]).unwrap();
    assert_eq!(error["error"]["code"], "upstream_cut");
    assert_eq!(error["error"]["request_id"], "req-1");
    assert_eq!(error["error"]["retry_safe"], false);
    assert_eq!(error["error"]["tool_calls_delivered"], true);
    assert!(!text.contains("[DONE]") && !text.contains("finish_reason"));
}

#[test]
fn a_finish_reason_that_is_no_string_is_malformed() {
    for value in [json!(5), json!(true), json!({}), json!(["stop"])] {
        let end = event(&json!({"choices":[{"index":0,"delta":{},"finish_reason":value}]}));
        // After text it is too late for another target; before, one may answer.
        let late = play_clean(&[content("hello"), end.clone(), done()]);
        assert!(matches!(late.fault(), StreamFault::Malformed(_)), "{value}: {}", late.fault());
        assert!(late.committed && !late.text().contains("[DONE]"), "{value}");
        let early = play_clean(&[role(), end, content("hello"), finish("stop"), done()]);
        assert!(matches!(early.fault(), StreamFault::Malformed(_)) && early.fails_over(), "{value}");
    }
    // An error beside it says more.
    let both = event(&json!({"error":{"message":"m","code":"odd"},"choices":[{"delta":{},"finish_reason":5}]}));
    assert!(matches!(play_clean(&[both]).fault(), StreamFault::Error(e) if e.code == "odd"));
    // None at all, null and an empty string are no end and no fault.
    for value in [json!(null), json!("")] {
        let open = event(&json!({"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":value}]}));
        play_clean(&[open, content(" there"), finish("stop"), done()]).complete();
    }
}
