//! Values put back into a stream, however the model's pieces cut the placeholders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use llmfo::units::Ts;
use llmfo::wire::mask::{Names, Originals, mask};
use llmfo::wire::sse::MAX_EVENT_BYTES;
use llmfo::wire::{
    ChatRequest, CommitAt, Done, Secrets, Sign, SseReader, StreamFault, StreamInlet, StreamSettings, Transcript,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::rig::{answer, arguments, call, chunk, chunk_of, content, done, finish, reasoning, role, usage};

fn originals(text: &str, json_text: bool) -> Arc<Originals> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    if json_text {
        body["response_format"] = json!({"type": "json_object"});
    }
    let request = ChatRequest::parse(Bytes::from(body.to_string())).unwrap();
    mask(&request, &Names::declared(["Anna \"Nan\" Petrova", "Bob"]).unwrap()).unwrap().originals
}

fn anna() -> Arc<Originals> {
    originals("anna@example.com, +77011234567, Bob, bob@example.com", false)
}

struct Got {
    out: Vec<u8>,
    /// Which piece brought the commit.
    commit_at: Option<usize>,
    signs: Vec<(usize, Sign)>,
    progress: Vec<bool>,
    done: Done,
}

impl Got {
    fn transcript(&self) -> Transcript {
        let mut reader = SseReader::new(MAX_EVENT_BYTES);
        reader.push(Bytes::from(self.out.clone()));
        let mut all = Transcript::new(1 << 20);
        while let Some(Ok(event)) = reader.next() {
            if !event.is_done() {
                all.add(&llmfo::wire::chunk::Chunk::read(&event.data, &Secrets::default()).unwrap());
            }
        }
        all
    }

    fn text(&self, choice: u64) -> String {
        let facts = self.transcript().facts();
        facts.choices.iter().find(|c| c.index == choice).map(|c| c.text.clone()).unwrap_or_default()
    }

    fn arguments(&self) -> Vec<String> {
        let facts = self.transcript().facts();
        facts.choices.iter().flat_map(|c| c.tool_calls.iter().map(|t| t.arguments.clone())).collect()
    }
}

fn play(originals: &Arc<Originals>, settings: StreamSettings, pieces: &[impl AsRef<[u8]>], clean: bool) -> Got {
    let mut inlet = StreamInlet::new(settings, MAX_EVENT_BYTES).restoring(Arc::clone(originals));
    let (mut out, mut commit_at, mut signs, mut progress) = (Vec::new(), None, Vec::new(), Vec::new());
    for (n, piece) in pieces.iter().enumerate() {
        let pushed = inlet.bytes(Bytes::copy_from_slice(piece.as_ref()), Ts::from_ms(n as u64));
        if pushed.commit {
            assert!(commit_at.is_none());
            commit_at = Some(n);
        }
        assert!(commit_at.is_some() || pushed.out.is_empty());
        signs.extend(pushed.sign.map(|s| (n, s)));
        progress.push(pushed.progress);
        out.extend(pushed.out.concat());
    }
    let end = inlet.end(clean, Ts::from_ms(pieces.len() as u64));
    if end.commit {
        commit_at.get_or_insert(pieces.len());
    }
    out.extend(end.out.concat());
    Got { out, commit_at, signs, progress, done: end.done }
}

fn stream(originals: &Arc<Originals>, pieces: &[String]) -> Got {
    let got = play(originals, StreamSettings::default(), pieces, true);
    assert!(matches!(got.done, Done::Complete(_)), "{:?}", got.done);
    got
}

#[test]
fn a_placeholder_comes_back_however_it_is_cut() {
    let text = "Write to [EMAIL_1] or [email_2], call [Phone_1], [NAME_1]!";
    let want = "Write to anna@example.com or bob@example.com, call +77011234567, Bob!";
    for size in 1..=text.len() {
        let words: Vec<String> = text.as_bytes().chunks(size).map(|c| String::from_utf8(c.to_vec()).unwrap()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(stream(&anna(), &answer(&words)).text(0), want, "{size}");
    }
}

#[test]
fn what_is_no_placeholder_is_let_go_as_it_is() {
    for text in
        ["a [EMAIL_3] b", "[", "[E", "a[b](c)", "[EMAIL_1", "[EMAIL_1 ]", "[[EMAIL_", "[EMAIL_12]", "x [EM\u{e9}"]
    {
        let words: Vec<String> = text.chars().map(String::from).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(stream(&anna(), &answer(&words)).text(0), text);
    }
    // A held piece keeps its place: before what came after it, in an event of its own before the finish.
    let got = stream(&anna(), &[role(), content("so [EMA"), finish("stop"), usage(), done()]);
    let out = String::from_utf8(got.out).unwrap();
    assert!(out.contains(r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-1","choices":[{"index":0,"delta":{"content":"[EMA"},"finish_reason":null}]}"#), "{out}");
    assert!(out.find("[EMA").unwrap() < out.find("\"stop\"").unwrap(), "{out}");
    // Without a finish reason it comes before `[DONE]`.
    let got = stream(&anna(), &[content("so [EMA"), done()]);
    assert_eq!(got.text(0), "so [EMA");
    // With text on the finish chunk (B044) the placeholder is completed there.
    let got = stream(&anna(), &[content("so [EMA"), chunk_of(0, json!({"content": "IL_1]"}), Some("stop")), done()]);
    assert_eq!(got.text(0), "so anna@example.com");
}

/// Text that is all held back shows life, commits nobody, and keeps the idle clock going.
#[test]
fn a_chunk_that_is_all_held_back_is_no_first_token_of_the_client() {
    let pieces = [role(), content("[EMA"), content("IL"), content("_1"), content("]"), finish("stop"), done()];
    let got = stream(&anna(), &pieces);
    assert_eq!((got.commit_at, got.signs.as_slice()), (Some(4), &[(1, Sign::Life)][..]));
    assert_eq!(got.progress, [false, true, true, true, true, false, false]);
    assert_eq!(got.text(0), "anna@example.com");
    // Nothing was shown yet: a failure now is a failure before the commit point.
    let got = play(&anna(), StreamSettings::default(), &[role(), content("[EMA")], true);
    assert_eq!(got.done, Done::Fault(StreamFault::Truncated));
    assert!(got.commit_at.is_none() && got.out.is_empty());
    // A sentence is judged on what the client reads: the address has dots, but no end.
    let settings = StreamSettings { commit_at: CommitAt::FirstSentence, ..StreamSettings::default() };
    let got = play(&anna(), settings, &[content("It is [EMAIL_1"), content("]."), finish("stop"), done()], true);
    assert_eq!((got.commit_at, got.text(0).as_str()), (Some(1), "It is anna@example.com."));
}

#[test]
fn every_choice_and_every_call_has_its_own_held_back_text() {
    let of = |index, text: &str| chunk_of(index, json!({"content": text}), None);
    let pieces = [
        of(0, "[EMA"),
        of(1, "[EMAIL_"),
        of(0, "IL_1"),
        of(1, "2] b"),
        of(0, "] a"),
        chunk_of(0, json!({}), Some("stop")),
        chunk_of(1, json!({}), Some("stop")),
        done(),
    ];
    let got = play(&anna(), StreamSettings { choices: 2, ..StreamSettings::default() }, &pieces, true);
    assert_eq!((got.text(0).as_str(), got.text(1).as_str()), ("anna@example.com a", "bob@example.com b"));
    // Parallel calls, their fragments by turns, text and thoughts between them.
    let pieces = [
        reasoning("to [EMAIL"),
        reasoning("_1]"),
        content("I write to [EMA"),
        content("IL_1]. "),
        call(0, "a", "mail", "{\"to\":\"[EM"),
        call(1, "b", "mail", "{\"to\":\"[EMAIL"),
        arguments(0, "AIL_1]\"}"),
        arguments(1, "_2]\"}"),
        finish("tool_calls"),
        done(),
    ];
    let got = stream(&anna(), &pieces);
    assert_eq!(got.arguments(), [r#"{"to":"anna@example.com"}"#, r#"{"to":"bob@example.com"}"#]);
    assert_eq!(got.text(0), "I write to anna@example.com. ");
    let out = String::from_utf8(got.out).unwrap();
    assert!(out.contains(r#""reasoning_content":"anna@example.com""#), "{out}");
    // Calls without an index; ids on the first fragments alone (B026).
    let bare = |delta: Value| chunk(json!({"tool_calls": [delta]}));
    let pieces = [
        bare(json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":\"[EMAIL_"}})),
        bare(json!({"function": {"arguments": "1]\"}"}})),
        bare(json!({"id": "b", "type": "function", "function": {"name": "f", "arguments": "{\"x\":\"[EMAIL_2"}})),
        bare(json!({"function": {"arguments": "]\"}"}})),
        finish("tool_calls"),
        done(),
    ];
    let got = stream(&anna(), &pieces);
    assert_eq!(got.arguments(), [r#"{"x":"anna@example.com"}"#, r#"{"x":"bob@example.com"}"#]);
}

/// A call leaves whole or not at all, also when a placeholder is torn in it.
#[test]
fn a_call_that_is_cut_inside_a_placeholder_was_never_there() {
    let pieces = [content("Well. "), call(0, "a", "mail", "{\"to\":\"[EMAIL_1]\",\"cc\":\"[EM")];
    let got = play(&anna(), StreamSettings::default(), &pieces, false);
    assert_eq!(got.done, Done::Fault(StreamFault::Cut));
    let out = String::from_utf8(got.out).unwrap();
    assert!(!out.contains("anna") && !out.contains("tool_calls"), "{out}");
    // With `length` cut arguments are relayed as they are.
    let pieces = [call(0, "a", "mail", "{\"to\":\"[EMAIL_1]\",\"cc\":\"[EM"), finish("length"), done()];
    assert_eq!(stream(&anna(), &pieces).arguments(), [r#"{"to":"anna@example.com","cc":"[EM"#]);
}

#[test]
fn what_comes_back_is_escaped_as_the_place_wants() {
    let name = "Anna \"Nan\" Petrova";
    let map = originals(&format!("I am {name}"), false);
    let pieces = [
        content("Dear [NAME_1]"),
        call(0, "a", "f", "{\"name\":\"[NAM"),
        arguments(0, "E_1]\"}"),
        finish("tool_calls"),
        done(),
    ];
    let got = stream(&map, &pieces);
    assert_eq!(got.text(0), format!("Dear {name}"));
    let told: Value = serde_json::from_str(&got.arguments()[0]).unwrap();
    assert_eq!(told, json!({ "name": name }));
    // An answer that is JSON stays JSON.
    let map = originals(&format!("I am {name}"), true);
    let got = stream(&map, &answer(&["{\"name\":\"[NA", "ME_1]\"}"]));
    assert_eq!(serde_json::from_str::<Value>(&got.text(0)).unwrap(), json!({ "name": name }));
}

#[test]
fn what_is_not_touched_stays_byte_for_byte() {
    let odd = "event: x\r\ndata: { \"choices\":[{\"delta\":{\"content\":\"\\u00e9 [x] \\ud83d\"},\"index\":0}] ,\"zz\":1.50 }\r\n\r\n";
    let got = stream(&anna(), &[odd.to_owned(), ": ping\n\n".to_owned(), finish("stop"), done()]);
    let out = String::from_utf8(got.out).unwrap();
    assert_eq!(out, format!("{odd}: ping\n\n{}{}", finish("stop"), done()));
    // Around a placeholder too: only its bytes change.
    let odd =
        "data: { \"choices\":[{\"delta\":{\"content\":\"\\u00e9 [EMAIL_1] \\ud83d\"},\"index\":0}] ,\"zz\":1.50 }\n\n";
    let got = stream(&anna(), &[odd.to_owned(), finish("stop"), done()]);
    let out = String::from_utf8(got.out).unwrap();
    assert!(out.starts_with(&odd.replace("[EMAIL_1]", "anna@example.com")), "{out}");
    // Data over several lines.
    let odd = "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"[EMAIL_1]\"}}]}\n\n";
    assert_eq!(stream(&anna(), &[odd.to_owned(), finish("stop"), done()]).text(0), "anna@example.com");
}

/// What cannot be read does not overtake what is held back.
#[test]
fn odd_events_keep_the_order() {
    let bad = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xff\"}}]}\n\n".to_vec();
    let pieces: Vec<Vec<u8>> = vec![content("a [EMA").into(), bad, finish("stop").into(), done().into()];
    // Nothing can be put back in it, and what is left of a placeholder is nobody's text.
    let got = play(&anna(), StreamSettings::default(), &pieces, true);
    assert!(matches!(&got.done, Done::Fault(StreamFault::Malformed(_))), "{:?}", got.done);
    let parts = |text: &str| chunk(json!({"content": [{"type": "text", "text": text}]}));
    let pieces = [parts("a [EMA"), parts("IL_1] b [E"), content("c"), finish("stop"), done()];
    assert_eq!(stream(&anna(), &pieces).text(0), "a anna@example.com b [Ec");
}

#[test]
fn an_event_that_grows_past_its_bound_is_too_large() {
    let long = format!("{}@{}.example.com", "a".repeat(100), "b".repeat(60));
    let map = originals(&long, false);
    let got = play(&map, StreamSettings::default(), &[content(&"[EMAIL_1]".repeat(50_000))], true);
    assert_eq!(got.done, Done::Fault(StreamFault::TooLarge));
}

proptest! {
    /// The same text and calls, whatever the pieces of the text and of the body.
    #[test]
    fn any_pieces_give_the_same_answer(
        words in proptest::collection::vec(prop_oneof![
            Just("[EMAIL_1]"), Just("[EMAIL_2]"), Just("[EMAIL"), Just("_1]"), Just("["), Just("[NAME_1]"), Just(" a "), Just("]")
        ], 1..12),
        sizes in proptest::collection::vec(1usize..9, 1..40),
        cuts in proptest::collection::vec(1usize..60, 1..60),
    ) {
        let text = words.concat();
        let whole = stream(&anna(), &answer(&[&format!("x{text}")]));
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        for size in sizes.iter().cycle() {
            if rest.is_empty() { break; }
            let (a, b) = rest.split_at((*size).min(rest.len()));
            parts.push(a);
            rest = b;
        }
        let mut all = vec!["x"];
        all.extend(parts);
        let body = answer(&all).concat().into_bytes();
        let mut pieces = Vec::new();
        let mut at = 0;
        for cut in cuts.iter().cycle() {
            if at == body.len() { break; }
            let to = (at + cut).min(body.len());
            pieces.push(body[at..to].to_vec());
            at = to;
        }
        let got = play(&anna(), StreamSettings::default(), &pieces, true);
        prop_assert_eq!(got.text(0), whole.text(0));
    }
}

#[test]
fn a_stream_that_breaks_off_gives_what_was_held_back_as_it_is() {
    let got = play(&anna(), StreamSettings::default(), &[content("Well, [EMA")], false);
    assert_eq!(got.done, Done::Fault(StreamFault::Cut));
    assert_eq!(got.text(0), "Well, [EMA");
}

/// No finder looks at a megabyte more than a few times, whatever it holds.
#[test]
fn a_megabyte_of_anything_takes_a_megabyte_s_time() {
    let names = Names::declared(["a a a a a a a b", "4 4 4 4 4 4 4 a"]).unwrap();
    let start = Instant::now();
    for piece in [
        "4", "4 ", "41 ", "@", "a@", "%40", "a%40", "+", "+4", "+4 ", "(", "(4", "(444) ", "DE89", "DE89 ", "a ",
        "tel:4", "[", "\\", "[EMAIL_", "{\"a\":", "\"",
    ] {
        let text = piece.repeat((1 << 20) / piece.len());
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
        let request = ChatRequest::parse(Bytes::from(body)).unwrap();
        let _ = mask(&request, &names);
    }
    // Debug build; one quadratic finder alone would take minutes.
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
    // The same for an answer.
    let start = Instant::now();
    for piece in ["[", "[EMAIL_", "[EMAIL_1", "[EMAIL_1]"] {
        let text = piece.repeat((1 << 18) / piece.len());
        play(&anna(), StreamSettings::default(), &[content(&text), content(&text)], true);
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
