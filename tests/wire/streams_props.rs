//! Laws that hold for every stream, however odd and however cut.

use llmfo::wire::{CommitAt, Done, StreamSettings};
use proptest::prelude::*;
use serde_json::json;

use crate::rig::*;

/// Events that matter, for one or two choices.
fn piece() -> impl Strategy<Value = String> {
    let index = 0u64..2;
    prop_oneof![
        2 => Just(role()),
        1 => Just(": ping\n\n".to_owned()),
        1 => Just("data: {}\n\n".to_owned()),
        1 => Just("\n".to_owned()),
        1 => Just(usage()),
        6 => (index.clone(), "[a-z. \n]{0,12}").prop_map(|(i, t)| chunk_of(i, json!({"content":t}), None)),
        2 => index.clone().prop_map(|i| chunk_of(i, json!({"reasoning_content":"hm"}), None)),
        3 => (index.clone(), 0u64..2, "[ab]?").prop_map(|(i, n, id)| {
            chunk_of(i, json!({"tool_calls":[{"index":n,"id":id,"function":{"name":"f","arguments":"{"}}]}), None)
        }),
        3 => (index.clone(), 0u64..2).prop_map(|(i, n)| {
            chunk_of(i, json!({"tool_calls":[{"index":n,"function":{"arguments":"}"}}]}), None)
        }),
        3 => (index, prop::sample::select(vec!["stop", "tool_calls", "length", "content_filter"]))
            .prop_map(|(i, r)| chunk_of(i, json!({}), Some(r))),
        1 => Just(done()),
        1 => prop::sample::select(vec![error_event(), finish("error"), "data: x\n\n".to_owned(), "{\"a\":1}\n\n".to_owned()]),
    ]
}

fn how() -> impl Strategy<Value = StreamSettings> {
    let commit_at = prop::sample::select(vec![CommitAt::FirstToken, CommitAt::FirstSentence, CommitAt::Complete]);
    (commit_at, any::<bool>(), 1u32..3).prop_map(|(commit_at, client_wants_usage, choices)| StreamSettings {
        commit_at,
        client_wants_usage,
        choices,
        ..StreamSettings::default()
    })
}

/// The events of a text, in order.
fn events(text: &str) -> Vec<String> {
    text.split_inclusive("\n\n").map(|e| e.trim_start_matches('\n').to_owned()).filter(|e| !e.is_empty()).collect()
}

fn is_call(event: &str) -> bool {
    event.contains("tool_calls\":[")
}

/// Calls may be renumbered; all else is compared as it is.
fn blur(event: &str) -> String {
    match event.split_once("tool_calls\":[{\"index\":") {
        Some((before, after)) => format!("{before}#{}", after.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => event.to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// What is sent is what came, in its order; a complete answer lost nothing but what may be dropped; a failed one sent
    /// no error, no `[DONE]`; calls are whole or absent.
    #[test]
    fn what_is_sent_is_what_came(settings in how(), pieces in prop::collection::vec(piece(), 0..30), clean: bool) {
        let played = play(settings.clone(), &pieces, clean);
        let sent = events(&played.text());
        let came: Vec<String> = pieces.iter().flat_map(|p| events(p)).collect();
        // In order, each at most once. Comments may overtake what waits.
        let mut rest = came.iter().map(|e| blur(e));
        for event in sent.iter().filter(|e| !e.starts_with(':')).map(|e| blur(e)) {
            prop_assert!(rest.any(|c| c == event), "not in order: {event}");
        }
        prop_assert!(sent.iter().all(|e| !e.contains("\"error\"")));
        match &played.done {
            Done::Fault(_) => {
                prop_assert!(!played.text().contains("[DONE]"));
                prop_assert!(played.committed || sent.is_empty());
            }
            Done::Complete(completion) => {
                prop_assert!(played.committed);
                let droppable = |e: &String| e.starts_with(':') || (e.contains("usage\":{") && !settings.client_wants_usage);
                let until_done = came.iter().position(|e| e.contains("[DONE]")).map_or(came.len(), |at| at + 1);
                prop_assert_eq!(completion.append_done, until_done == came.len() && !came.iter().any(|e| e.contains("[DONE]")));
                let right: Vec<String> = came[..until_done].iter().filter(|e| !droppable(e)).map(|e| blur(e)).collect();
                let sent: Vec<String> = sent.iter().filter(|e| !droppable(e)).map(|e| blur(e)).collect();
                prop_assert_eq!(sent, right);
            }
        }
        // A call is followed by its choice's finish, or by the end of a complete answer.
        if played.text().contains("tool_calls\":[") {
            prop_assert!(played.calls_delivered);
            for choice in 0..2 {
                let touches = |e: &&String| e.contains(&format!("\"choices\":[{{\"index\":{choice},"));
                let of_choice: Vec<&String> = sent.iter().filter(touches).collect();
                let Some(last_call) = of_choice.iter().rposition(|e| is_call(e)) else { continue };
                let finished = of_choice[last_call..].iter().any(|e| !e.contains("\"finish_reason\":null"));
                prop_assert!(finished || matches!(played.done, Done::Complete(_)), "a torn call: {:#?}", sent);
            }
        } else {
            prop_assert!(!played.calls_delivered);
        }
    }

    /// How the body is cut into reads changes neither the outcome nor, where anything was sent, the bytes.
    #[test]
    fn cutting_changes_nothing(
        settings in how(),
        pieces in prop::collection::vec(piece(), 0..20),
        sizes in prop::collection::vec(1usize..200, 1..20),
        clean: bool,
    ) {
        let body = pieces.concat();
        let one_by_one = play(settings.clone(), &pieces, clean);
        let mut cut = Vec::new();
        let mut rest = body.as_bytes();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            cut.push(piece);
            rest = after;
        }
        let played = play(settings, &cut, clean);
        prop_assert_eq!(&played.done, &one_by_one.done);
        // Text and failure in one read: nothing had been sent yet, and nothing is.
        if played.committed == one_by_one.committed {
            prop_assert_eq!(played.text(), one_by_one.text());
        } else {
            prop_assert!(matches!(played.done, Done::Fault(_)));
        }
    }

    #[test]
    fn nothing_panics(settings in how(), pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..10), clean: bool) {
        play(settings, &pieces, clean);
    }

    #[test]
    fn nothing_panics_on_odd_json(text in r#"(data: ?)?[\[{]("(choices|delta|index|error|usage|tool_calls|content)":[\[{0-9"null, ]{0,3}){0,8}[\]}]{0,9}\n\n"#) {
        play(settings(), &[text], true);
    }
}
