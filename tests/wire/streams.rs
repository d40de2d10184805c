//! Reading and relaying: framing, bytes, what is held and what commits. Cases are named by their number.

use llmfo::units::Ts;
use llmfo::wire::sse::MAX_EVENT_BYTES;
use llmfo::wire::{Anomaly, CommitAt, Sign, StreamFault, StreamInlet, StreamSettings, Usage};
use serde_json::json;

use crate::rig::*;

#[test]
fn b001_data_without_a_space_after_the_colon() {
    let pieces: Vec<String> = answer(&["Hello", " you"]).iter().map(|p| p.replacen("data: ", "data:", 1)).collect();
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().finish_reasons, [(0, Some("stop".to_owned()))]);
    assert!(!played.complete().append_done);
}

#[test]
fn b003_multi_byte_characters_cut_across_reads() {
    let arguments_text = "{\"name\":\"Ақтау 東京 🚕\"}";
    let body = [
        role(),
        content("Сәлем "),
        content("東京 🚕"),
        call(0, "call_1", "get_order", arguments_text),
        finish("tool_calls"),
        done(),
    ]
    .concat();
    let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
    let played = play_clean(&bytes);
    assert_eq!(played.text(), body);
    assert!(!played.text().contains('\u{fffd}'));
    assert_eq!(played.complete().tool_calls[0].arguments, arguments_text);
}

#[test]
fn b004_byte_order_mark_before_the_first_event() {
    for split in [1, 2, 3] {
        let body = ["\u{feff}".to_owned(), error_event()].concat();
        let (a, b) = body.as_bytes().split_at(split);
        let played = play_clean(&[a, b]);
        let StreamFault::Error(error) = played.fault() else { panic!("{:?}", played.done) };
        assert_eq!(error.code, "server_is_overloaded");

        let events = [content("first"), content("later \u{feff} mark"), finish("stop"), done()].concat();
        let body = ["\u{feff}", &events].concat();
        let (a, b) = body.as_bytes().split_at(split);
        let played = play_clean(&[a, b]);
        assert_eq!(played.text(), events);
        assert!(played.complete().anomalies.is_empty());
    }
}

#[test]
fn b005_only_cr_and_lf_end_a_line() {
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    // serde_json escapes neither U+2028 nor U+0085; \u000b and \u000c are escaped, as JSON wants it.
    let pieces = [content(text), content("e\u{b}f\u{c}g"), finish("stop"), done()];
    assert!(pieces[0].contains('\u{2028}') && pieces[0].contains('\u{85}') && pieces[1].contains("\\u000b"));
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    played.complete();
}

#[test]
fn b006_comments_are_never_data_and_commit_nothing() {
    let comment = ": OPENROUTER PROCESSING\n\n";
    let mut pieces = vec![comment.to_owned(), comment.to_owned(), ":\n\n".to_owned(), comment.to_owned()];
    pieces.extend([content("a"), comment.to_owned(), content("b"), finish("stop"), done()]);
    let played = play_clean(&pieces);
    assert_eq!(played.commit_at, Some(4));
    assert_eq!(played.progress, [false, false, false, false, true, false, true, false, false]);
    assert!(played.signs.is_empty());
    assert_eq!(played.text(), [content("a"), comment.to_owned(), content("b"), finish("stop"), done()].concat());
    // A comment inside an event is no end of it.
    let inside = format!(": ping\n{}", content("x"));
    let played = play_clean(&[inside.clone(), finish("stop"), done()]);
    assert_eq!(played.text(), [inside, finish("stop"), done()].concat());
}

#[test]
fn b020_filter_results_in_the_first_chunk() {
    let filter = event(&json!({"choices":[],"prompt_filter_results":[{"prompt_index":0}],"id":"","model":""}));
    let pieces = [filter.clone(), role(), content("Hi"), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.commit_at, Some(2));
    assert!(played.signs.is_empty() && !played.progress[0]);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().model.as_deref(), Some("m-1"));
    assert_eq!(play_clean(&[filter, done()]).fault(), &StreamFault::Empty);
}

#[test]
fn b022_the_usage_chunk_is_delivered_in_its_place() {
    let pieces = [content("Hi"), finish("stop"), usage(), done()];
    let asked = StreamSettings { client_wants_usage: true, ..settings() };
    let played = play(asked, &pieces, true);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().usage, Some(Usage { input_tokens: 7, output_tokens: 9 }));
}

#[test]
fn b023_a_client_that_did_not_ask_sees_no_usage_chunk() {
    let with_usage = event(&json!({"choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":{"prompt_tokens":1}}));
    let pieces = [with_usage.clone(), finish("stop"), usage(), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), [with_usage, finish("stop"), done()].concat());
    assert_eq!(played.complete().usage, Some(Usage { input_tokens: 7, output_tokens: 9 }));
}

#[test]
fn b032_long_reasoning_is_alive_held_and_relayed_whole() {
    let mut pieces = vec![role()];
    for n in 0..65 {
        pieces.push(if n % 2 == 0 {
            reasoning(&format!("step {n}. "))
        } else {
            chunk(json!({"content":null,"reasoning":format!("step {n}. ")}))
        });
    }
    pieces.extend([content("Done."), finish("stop"), done()]);
    let played = play_clean(&pieces);
    assert_eq!(played.signs, [Sign::Life]);
    assert!(played.progress[1..=65].iter().all(|p| *p) && !played.progress[0]);
    assert_eq!(played.commit_at, Some(66));
    assert_eq!(played.text(), pieces.concat());
    // Thoughts alone are no answer.
    assert!(play_clean(&[reasoning("hm"), finish("stop"), done()]).fails_over());
}

#[test]
fn b034_very_long_data_lines_pass_whole_or_fail_loudly() {
    for size in [70_000, 1_500_000, 4_000_000] {
        let long = format!("{{\"x\":\"{}\"}}", "y".repeat(size));
        let pieces = [call(0, "call_1", "create_ticket", &long), finish("tool_calls"), done()];
        let body = pieces.concat();
        let reads: Vec<&[u8]> = body.as_bytes().chunks(16 * 1024).collect();
        let played = play_clean(&reads);
        assert_eq!(played.sent.len(), body.len());
        assert_eq!(played.complete().tool_calls[0].arguments.len(), long.len());
    }
    let body = content(&"z".repeat(MAX_EVENT_BYTES));
    let reads: Vec<&[u8]> = body.as_bytes().chunks(64 * 1024).collect();
    let played = play_clean(&reads);
    assert_eq!(played.fault(), &StreamFault::TooLarge);
    assert!(played.fails_over());
}

#[test]
fn b036_an_odd_chunk_brings_no_words_of_ours() {
    let odd = event(&json!({"id":"c1","object":"chat.completion.chunk","choices":[]}));
    let empty = "data: {}\n\n".to_owned();
    let pieces = [content("Hello"), odd, empty, content(" you"), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    played.complete();
}

#[test]
fn b040_after_commit_every_chunk_leaves_at_once() {
    let pieces = answer(&["one", " two", " three", " four"]);
    let played = play_clean(&pieces);
    // The role chunk waits for the first word; after it nothing waits.
    assert_eq!(played.at_once, [0, 2, 1, 1, 1, 1, 1]);
}

#[test]
fn b044_the_last_text_may_ride_on_the_finish_chunk() {
    let last = chunk_of(0, json!({"content":" today."}), Some("stop"));
    let pieces = [content("Until"), last, done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().finish_reasons, [(0, Some("stop".to_owned()))]);

    let last = chunk_of(0, json!({"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}), Some("tool_calls"));
    let pieces = [call(0, "a", "f", "{\"x\":"), last, done()];
    let played = play_clean(&pieces);
    assert_eq!(played.text(), pieces.concat());
    assert_eq!(played.complete().tool_calls[0].arguments, "{\"x\":1}");
    assert!(played.complete().anomalies.is_empty());

    let both = chunk_of(0, json!({"reasoning_content":"so","content":"Yes."}), Some("stop"));
    let played = play_clean(&[both.clone(), done()]);
    assert_eq!(played.text(), [both, done()].concat());
}

#[test]
fn leading_white_space_is_held_and_comes_out_in_order() {
    let pieces = [role(), content("\n\n"), content(" "), content("Hi"), content(" "), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.commit_at, Some(3));
    assert_eq!(played.at_once, [0, 0, 0, 4, 1, 1, 1]);
    assert_eq!(played.text(), pieces.concat());
    assert!(play_clean(&[role(), content("\n "), finish("stop"), done()]).fails_over());
}

#[test]
fn a_refusal_commits() {
    let pieces = [role(), chunk(json!({"refusal":"I cannot"})), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!((played.commit_at, played.text()), (Some(1), pieces.concat()));
}

#[test]
fn content_in_parts_is_read() {
    let thought = chunk(json!({"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}));
    let text = chunk(json!({"content":[{"type":"text","text":"Hi"}]}));
    let pieces = [thought, text, finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!((played.signs.as_slice(), played.commit_at), (&[Sign::Life][..], Some(1)));
    assert_eq!(played.text(), pieces.concat());
}

#[test]
fn an_empty_data_line_is_dropped_because_clients_choke_on_it() {
    let pieces = ["data:\n\n".to_owned(), content("a"), "data: \n\n".to_owned(), finish("stop"), done()];
    assert_eq!(play_clean(&pieces).text(), [content("a"), finish("stop"), done()].concat());
}

#[test]
fn a_character_cut_into_two_escapes_passes_as_it_came() {
    let halves = [r#"data: {"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}"#, "\n\n"].concat();
    let rest = [r#"data: {"choices":[{"index":0,"delta":{"content":"\ude95"}}]}"#, "\n\n"].concat();
    let pieces = [halves, rest, finish("stop"), done()];
    assert_eq!(play_clean(&pieces).text(), pieces.concat());
}

#[test]
fn bytes_that_are_no_utf8_pass_as_they_came() {
    let mut odd = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"caf".to_vec();
    odd.extend(b"\xe9\"}}]}\n\n");
    let pieces = [odd, finish("stop").into_bytes(), done().into_bytes()];
    assert_eq!(play_clean(&pieces).sent, pieces.concat());
}

#[test]
fn odd_shapes_never_break_the_reading() {
    for odd in [
        json!({"choices":null}),
        json!({"choices":{}}),
        json!({"choices":[null,7,"x",[]]}),
        json!({"choices":[{"index":"0","delta":null}]}),
        json!({"choices":[{"delta":{"content":7,"tool_calls":null,"role":[]}}]}),
        json!({"choices":[{"delta":{"content":{},"tool_calls":{},"function_call":null}}],"usage":[]}),
        json!({"usage":null,"error":null,"model":5}),
    ] {
        let pieces = [content("a"), event(&odd), finish("stop"), done()];
        let played = play_clean(&pieces);
        let fault = matches!(&played.done, llmfo::wire::Done::Fault(_));
        // An empty `tool_calls` object is read as one nameless fragment; it holds the rest until the finish, no more.
        assert!(!fault, "{odd}: {:?}", played.done);
        assert_eq!(played.text(), pieces.concat(), "{odd}");
    }
}

#[test]
fn first_sentence_waits_for_the_end_of_one() {
    let play_words = |words: &[&str]| {
        let pieces = answer(words);
        let played = play(committing(CommitAt::FirstSentence), &pieces, true);
        assert_eq!(played.text(), pieces.concat());
        played
    };
    let played = play_words(&["Your", " order", " left", ". It", " comes"]);
    assert_eq!((played.commit_at, played.signs.as_slice()), (Some(4), &[Sign::Life][..]));
    assert_eq!(play_words(&["It costs 3.5", " euros", "!", " Yes"]).commit_at, Some(3));
    assert_eq!(play_words(&["\n\nFine", "\n", "More"]).commit_at, Some(2));
    assert_eq!(play_words(&["はい", "、そうです。次"]).commit_at, Some(2));
    assert_eq!(play_words(&["Why", "?"]).commit_at, Some(2));
    // No end at all: 200 characters, or the finish.
    assert_eq!(play_words(&[&"a".repeat(199), "b", "c"]).commit_at, Some(2));
    assert_eq!(play_words(&["no", " end"]).commit_at, Some(3));
}

#[test]
fn first_sentence_waits_at_most_a_second() {
    let mut inlet = StreamInlet::new(committing(CommitAt::FirstSentence), MAX_EVENT_BYTES);
    let push = |inlet: &mut StreamInlet, text: String, ms| inlet.bytes(text.into(), Ts::from_ms(ms));
    assert!(push(&mut inlet, role(), 0).out.is_empty());
    assert!(push(&mut inlet, content(" \n"), 100).out.is_empty());
    assert_eq!(inlet.poll_timeout(), None, "white space is no text yet");
    assert!(push(&mut inlet, content("Well"), 5000).out.is_empty());
    assert_eq!(inlet.poll_timeout(), Some(Ts::from_ms(6000)));
    assert!(push(&mut inlet, content(", let me"), 5900).out.is_empty());
    assert!(inlet.tick(Ts::from_ms(5999)).out.is_empty());
    let pushed = inlet.tick(Ts::from_ms(6000));
    assert!(pushed.commit);
    assert_eq!(pushed.out.concat(), [role(), content(" \n"), content("Well"), content(", let me")].concat().as_bytes());
    assert_eq!(inlet.poll_timeout(), None);
    let pushed = push(&mut inlet, content(" see"), 6001);
    assert_eq!((pushed.out.len(), pushed.commit), (1, false));
}

#[test]
fn complete_holds_the_whole_answer() {
    let pieces = answer(&["One.", " Two.", " Three."]);
    let played = play(committing(CommitAt::Complete), &pieces, true);
    assert_eq!(played.commit_at, Some(5));
    assert_eq!(played.signs, [Sign::Life]);
    assert_eq!(played.text(), pieces.concat());
    // A failure anywhere is a failure nobody saw.
    let broken = [&pieces[..3], &[error_event()]].concat();
    assert!(play(committing(CommitAt::Complete), &broken, true).fails_over());
    assert!(play(committing(CommitAt::Complete), &pieces[..4], false).fails_over());
    // No [DONE]: the clean end completes it.
    let played = play(committing(CommitAt::Complete), &pieces[..5], true);
    assert_eq!(played.commit_at, Some(5));
    assert!(played.complete().append_done);
}

#[test]
fn what_is_held_is_bounded() {
    let small = StreamSettings { hold_limit_bytes: 2000, ..settings() };
    let thoughts: Vec<String> = (0..50).map(|_| reasoning("and then")).collect();
    let played = play(small.clone(), &thoughts, true);
    assert_eq!(played.fault(), &StreamFault::TooLarge);
    assert!(played.fails_over());
    // Many tiny events are bounded too.
    let tiny: Vec<&str> = vec!["data: {}\n\n"; 50];
    assert_eq!(play(small.clone(), &tiny, true).fault(), &StreamFault::TooLarge);
    // After commit, a call that never ends.
    let mut pieces = vec![content("Let me see")];
    pieces.push(call(0, "a", "f", "{\"x\":\""));
    pieces.extend((0..50).map(|_| arguments(0, "yyyy")));
    let played = play(small.clone(), &pieces, true);
    assert_eq!((played.fault(), played.text()), (&StreamFault::TooLarge, content("Let me see")));
    // What is not held is not bounded.
    let words: Vec<String> = (0..500).map(|_| content("word ")).collect();
    let pieces = [&words[..], &[finish("stop"), done()]].concat();
    assert_eq!(play(small, &pieces, true).text(), pieces.concat());
}

#[test]
fn a_few_bytes_never_become_much_memory() {
    let many = |n: usize| vec!["{}"; n].join(",");
    for data in [
        format!("{{\"choices\":[{}]}}", many(129)),
        format!("{{\"choices\":[{{\"delta\":{{\"tool_calls\":[{}]}}}}]}}", many(1025)),
    ] {
        let played = play_clean(&[format!("data: {data}\n\n")]);
        assert!(matches!(played.fault(), StreamFault::Malformed(_)), "{:?}", played.done);
    }
    let calls: Vec<String> = (0..=1024).map(|n| call(n, &format!("id{n}"), "f", "{}")).collect();
    assert!(matches!(play_clean(&calls).fault(), StreamFault::Malformed(_)));
    let choices: Vec<String> = (0..=128).map(|n| chunk_of(n, json!({"content":"x"}), None)).collect();
    assert!(matches!(play_clean(&choices).fault(), StreamFault::Malformed(_)));
}

#[test]
fn stray_lines_between_events_are_an_anomaly() {
    let pieces = [content("a"), "hello there\n\n".to_owned(), finish("stop"), done()];
    let played = play_clean(&pieces);
    assert_eq!(played.complete().anomalies, [Anomaly::StrayLines]);
    assert_eq!(played.text(), [content("a"), finish("stop"), done()].concat());
}
