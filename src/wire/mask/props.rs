//! Properties of masking and restoring together, over whole bodies and streams.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::hold::{Mode, restore};
use super::*;
use crate::wire::ChatRequest;

fn request(body: &Value) -> ChatRequest {
    ChatRequest::parse(Bytes::from(body.to_string())).unwrap()
}

fn names() -> Names {
    Names::declared(["Anna Petrova", "O\"Brien", "王小明"]).unwrap()
}

/// What the provider gets, and what was taken out.
fn masked(body: &Value, names: &Names) -> (Value, Originals) {
    let request = request(body);
    let masked = mask(&request, names).unwrap();
    let sent = request.send(&request.model, &crate::wire::changes::Changes::default(), Some(&masked)).concat();
    (serde_json::from_slice(&sent).unwrap(), (*masked.originals).clone())
}

fn ask(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

/// Restores a text that comes in these pieces.
fn put_back(originals: &Originals, pieces: &[&str], mode: Mode) -> String {
    let mut held = String::new();
    let mut out = String::new();
    for (n, piece) in pieces.iter().enumerate() {
        let changes = restore(originals, &mut held, piece, mode, n + 1 == pieces.len());
        let mut from = 0;
        for (at, text) in changes {
            out.push_str(&piece[from..at.start]);
            out.push_str(&text);
            from = at.end;
        }
        out.push_str(&piece[from..]);
        assert!(held.len() < 32, "{held}");
    }
    assert!(held.is_empty());
    out
}

/// Texts full of values, of half values, of placeholders and of what looks like one.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("anna@example.com".to_owned()),
        Just("ANNA@example.com".to_owned()),
        Just("+7 701 123 45 67".to_owned()),
        Just("+77011234567".to_owned()),
        Just("4111 1111 1111 1111".to_owned()),
        Just("DE89 3704 0044 0532 0130 00".to_owned()),
        Just("Anna Petrova".to_owned()),
        Just("anna-petrova".to_owned()),
        Just("O\"Brien".to_owned()),
        Just("王小明".to_owned()),
        Just("[EMAIL_1]".to_owned()),
        Just("[email_2".to_owned()),
        Just("[NAME_B1]".to_owned()),
        Just("\\u0040".to_owned()),
        "[@+.,\\[\\]_\\\\\" a-c0-9é😀-]{0,12}",
        "[0-9 -]{0,24}",
        "[a-z0-9@.%+]{0,24}",
        any::<String>().prop_map(|s| s.chars().take(12).collect()),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|all| all.concat())
}

fn cut(text: &str, at: &[usize]) -> Vec<String> {
    let mut ends: Vec<usize> = at.iter().map(|n| n % (text.len() + 1)).filter(|n| text.is_char_boundary(*n)).collect();
    ends.sort_unstable();
    let mut out = Vec::new();
    let mut from = 0;
    for end in ends {
        out.push(text[from..end].to_owned());
        from = end;
    }
    out.push(text[from..].to_owned());
    out
}

proptest! {
    /// What a model repeats word for word comes back word for word, however it is cut.
    #[test]
    fn what_is_masked_comes_back_whatever_the_pieces(text in texts(), at in proptest::collection::vec(any::<usize>(), 0..20)) {
        let (sent, originals) = masked(&ask(&text), &names());
        let sent = sent["messages"][0]["content"].as_str().unwrap();
        let pieces = cut(sent, &at);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(put_back(&originals, &pieces, Mode::Text), text);
        let one: Vec<String> = sent.chars().map(String::from).collect();
        let one: Vec<&str> = one.iter().map(String::as_str).collect();
        prop_assert_eq!(put_back(&originals, &one, Mode::Text), put_back(&originals, &[sent], Mode::Text));
    }

    /// No value that was found stands anywhere in what is sent.
    #[test]
    fn nothing_that_was_found_is_sent(text in texts(), more in texts()) {
        let body = json!({"model": "m", "user": more, "messages": [
            {"role": "system", "content": [{"type": "text", "text": more}]},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {
                "name": "f", "arguments": json!({ &text: [more] }).to_string() }}]},
            {"role": "tool", "tool_call_id": "c", "content": json!({"a": text}).to_string()},
            {"role": "user", "content": text}]});
        let (sent, originals) = masked(&body, &names());
        let told = sent.to_string();
        for (_, value) in originals.literal() {
            let inside = json!(value).to_string();
            // One that was written with escapes in a text is looked for as it was written.
            prop_assert!(!told.contains(&inside[1..inside.len() - 1]), "{} in {}", value, told);
        }
        // JSON stays JSON, and says the same once it is restored.
        for (at, want) in [
            (&sent["messages"][1]["tool_calls"][0]["function"]["arguments"], json!({ &text: [more] })),
            (&sent["messages"][2]["content"], json!({"a": text})),
        ] {
            let back = put_back(&originals, &[at.as_str().unwrap()], Mode::Json);
            prop_assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), want);
        }
    }

    /// Any text goes through the restorer: nothing panics, nothing is lost that is no placeholder.
    #[test]
    fn any_answer_is_restored_the_same_in_one_piece_and_in_many(asked in texts(), answer in texts(), at in proptest::collection::vec(any::<usize>(), 0..20)) {
        let (_, originals) = masked(&ask(&asked), &names());
        let pieces = cut(&answer, &at);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        for mode in [Mode::Text, Mode::Json] {
            prop_assert_eq!(put_back(&originals, &pieces, mode), put_back(&originals, &[&answer], mode));
        }
    }
}

#[test]
fn the_same_value_has_one_placeholder_and_others_have_others() {
    let text = "anna@x.com, bob@x.com; again anna@x.com. Card 4111111111111111, Anna Petrova.";
    let (sent, originals) = masked(&ask(text), &names());
    let want = "[EMAIL_1], [EMAIL_2]; again [EMAIL_1]. Card [CARD_1], [NAME_1].";
    assert_eq!(sent["messages"][0]["content"], want);
    let counts = [Kind::Email, Kind::Card, Kind::Name, Kind::Phone, Kind::Iban].map(|kind| originals.count(kind));
    assert_eq!(counts, [2, 1, 1, 0, 0]);
}

#[test]
fn a_placeholder_that_stands_in_the_request_is_left_alone() {
    let text = "My address is anna@x.com; the form says [email_1].";
    let (sent, originals) = masked(&ask(text), &names());
    assert_eq!(sent["messages"][0]["content"], "My address is [EMAIL_B1]; the form says [email_1].");
    assert_eq!(put_back(&originals, &["[EMAIL_B1] [email_1]"], Mode::Text), "anna@x.com [email_1]");
    // Also where it stands in a part that is not masked, or is written with escapes.
    let mut body = ask("anna@x.com");
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "description": "[EMAIL_1] [EMAIL_B1]"}}]);
    assert_eq!(masked(&body, &names()).0["messages"][0]["content"], "[EMAIL_C1]");
    assert_eq!(masked(&body, &names()).0["tools"], body["tools"]);
    let raw = r#"{"model":"m","messages":[{"role":"user","content":"anna@x.com"}],"tools":[{"d":"\u005bEMAIL_1]"}]}"#;
    let request = ChatRequest::parse(Bytes::from_static(raw.as_bytes())).unwrap();
    let sent =
        request.send("m", &crate::wire::changes::Changes::default(), Some(&mask(&request, &names()).unwrap())).concat();
    assert!(String::from_utf8(sent).unwrap().contains("[EMAIL_B1]"));
}

#[test]
fn every_other_byte_stays_as_it_came() {
    let raw = r#"{ "model":"m" ,"x": 1.50, "messages":[ {"role":"user","content":"\u0061nna\u0040x.com \ud83d \/ \n"},{"role":"user", "name":"Anna_P","content":null}] , "user":"u-1"}"#;
    let request = ChatRequest::parse(Bytes::from_static(raw.as_bytes())).unwrap();
    let sent = request
        .send("m", &crate::wire::changes::Changes::default(), Some(&mask(&request, &Names::default()).unwrap()))
        .concat();
    let want = raw.replace(r"\u0061nna\u0040x.com", "[EMAIL_1]").replace("Anna_P", "[NAME_1]");
    assert_eq!(String::from_utf8(sent).unwrap(), want);
}

#[test]
fn json_in_strings_is_seen_through_and_numbers_become_strings() {
    let arguments = r#"{"to":"anna\u0040x.com","card":4111111111111111,"n":7,"inner":"{\"card\":4111111111111111,\"mail\":\"anna@x.com\"}"}"#;
    let body = json!({"model": "m", "messages": [{"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_4111111111111111", "type": "function", "function": {"name": "f", "arguments": arguments}}]}]});
    let (sent, _) = masked(&body, &names());
    let call = &sent["messages"][0]["tool_calls"][0];
    assert_eq!(call["id"], "call_4111111111111111");
    let told: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((&told["to"], &told["card"], &told["n"]), (&json!("[EMAIL_1]"), &json!("[CARD_1]"), &json!(7)));
    let inner: Value = serde_json::from_str(told["inner"].as_str().unwrap()).unwrap();
    assert_eq!(inner, json!({"card": "[CARD_1]", "mail": "[EMAIL_1]"}));
}

#[test]
fn what_is_not_known_to_be_text_cannot_be_masked() {
    let part = |part: Value| json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]});
    for (body, why) in [
        (part(json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})), Unmaskable::Part),
        (part(json!({"type": "input_audio", "input_audio": {"data": "AAAA"}})), Unmaskable::Part),
        (part(json!({"type": "file", "file": {"file_id": "f"}})), Unmaskable::Part),
        (part(json!({"type": "video"})), Unmaskable::Part),
        (part(json!({"text": "no type"})), Unmaskable::Part),
        (json!({"model": "m", "messages": [{"role": "user", "content": {"a": 1}}]}), Unmaskable::Shape),
        (json!({"model": "m", "messages": [{"role": "user", "content": 5}]}), Unmaskable::Shape),
        (json!({"model": "m", "modalities": ["text", "audio"], "messages": []}), Unmaskable::Sound),
        (json!({"model": "m", "audio": {"voice": "x"}, "messages": []}), Unmaskable::Sound),
    ] {
        assert_eq!(unmaskable(&request(&body)), Some(why), "{body}");
        assert_eq!(mask(&request(&body), &names()).unwrap_err(), why, "{body}");
    }
    assert_eq!(unmaskable(&request(&part(json!({"type": "text", "text": "b"})))), None);
    // Two types: whoever reads the other one sees something else.
    let twice =
        r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","type":"image_url","text":"a"}]}]}"#;
    assert_eq!(unmaskable(&ChatRequest::parse(Bytes::from_static(twice.as_bytes())).unwrap()), Some(Unmaskable::Part));
}

#[test]
fn too_many_values_cannot_be_masked() {
    let text: String = (0..50_001).map(|n| format!("a{n}@x.com ")).collect();
    assert!(text.len() > SURE_BYTES);
    assert_eq!(mask(&request(&ask(&text)), &names()).unwrap_err(), Unmaskable::TooMany);
}

#[test]
fn no_debug_output_holds_a_value() {
    let request = request(&ask("canary@x.com Anna Petrova"));
    let masked = mask(&request, &names()).unwrap();
    let told = format!("{request:?} {masked:?} {masked:#?} {:?}", names());
    assert!(!told.contains("canary") && !told.to_lowercase().contains("petrova"), "{told}");
}
