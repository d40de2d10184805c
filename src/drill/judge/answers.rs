//! Whose answer is it, and is it whole? The providers' logs hold the whole text and the whole calls that each of them
//! meant to send; what the client received is compared with them.

use std::borrow::Cow;

use serde_json::Value;

use crate::measure::{ProviderRow, RequestRow, ToolCallRow};

/// What the client received, compared with what the providers meant to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// Nothing was received.
    Nothing,
    /// All of what this provider row meant to send, and nothing else.
    Whole(usize),
    /// A part of it from its beginning, and nothing else.
    Part(usize),
    /// Pieces of two attempts in one answer.
    Spliced,
    /// A call whose arguments no provider wrote.
    AlteredCall,
    /// Text or a call that no provider wrote.
    Invented,
}

impl Truth {
    /// The provider row that it came from.
    #[must_use]
    pub fn author(self) -> Option<usize> {
        match self {
            Truth::Whole(p) | Truth::Part(p) => Some(p),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    No,
    Part,
    Whole,
}

/// What the customer reads of an answer: its content, and a refusal behind it, which is content by another name.
#[must_use]
pub fn shown(request: &RequestRow) -> Cow<'_, str> {
    match (request.refusal.trim().is_empty(), request.text.trim().is_empty()) {
        (true, _) => Cow::Borrowed(&request.text),
        (false, true) => Cow::Borrowed(&request.refusal),
        (false, false) => Cow::Owned(format!("{} {}", request.text, request.refusal)),
    }
}

/// Compares one request with the provider rows that it led to. Outer white space does not count: a gateway holds leading
/// white space back until it knows that an answer follows.
#[must_use]
pub fn truth(request: &RequestRow, seen: &[usize], providers: &[ProviderRow], key_arguments: &[String]) -> Truth {
    let text = shown(request);
    let text = text.trim();
    if text.is_empty() && request.tool_calls.is_empty() {
        return Truth::Nothing;
    }
    let mut best = (Match::No, None);
    // The last attempt is the likeliest author: of equals the later one is taken.
    for &p in seen {
        let found = match_text(text, providers[p].text.trim()).min(match_calls(
            &request.tool_calls,
            &providers[p].tool_calls,
            key_arguments,
        ));
        if found > Match::No && found >= best.0 {
            best = (found, Some(p));
        }
    }
    match best {
        (Match::Whole, Some(p)) => return Truth::Whole(p),
        (Match::Part, Some(p)) => return Truth::Part(p),
        _ => {}
    }
    let bodies: Vec<&str> = seen.iter().map(|&p| providers[p].text.trim()).filter(|t| !t.is_empty()).collect();
    if spliced(text, &bodies) {
        return Truth::Spliced;
    }
    let from_two = |a: Match, b: Match| a == Match::No || b == Match::No;
    let text_known = seen.iter().any(|&p| match_text(text, providers[p].text.trim()) > Match::No);
    let named = seen.iter().any(|&p| {
        request.tool_calls.iter().all(|c| providers[p].tool_calls.iter().any(|q| q.name == c.name))
            && !request.tool_calls.is_empty()
    });
    let one_wrote_both = seen.iter().any(|&p| {
        !from_two(
            match_text(text, providers[p].text.trim()),
            match_calls(&request.tool_calls, &providers[p].tool_calls, key_arguments),
        )
    });
    if text_known && named && !one_wrote_both && !text.is_empty() {
        // The text of one provider beside the call of another.
        Truth::Spliced
    } else if text_known && named {
        Truth::AlteredCall
    } else {
        Truth::Invented
    }
}

fn match_text(client: &str, provider: &str) -> Match {
    if client == provider {
        Match::Whole
    } else if provider.starts_with(client) {
        Match::Part
    } else {
        Match::No
    }
}

fn match_calls(client: &[ToolCallRow], provider: &[ToolCallRow], key_arguments: &[String]) -> Match {
    if client.len() > provider.len() {
        return Match::No;
    }
    let mut found = if client.len() == provider.len() { Match::Whole } else { Match::Part };
    for (c, p) in client.iter().zip(provider) {
        found = found.min(match_call(c, p, key_arguments));
    }
    found
}

fn match_call(client: &ToolCallRow, provider: &ToolCallRow, key_arguments: &[String]) -> Match {
    if client.name != provider.name {
        return Match::No;
    }
    // An empty arguments text is valid and means `{}`.
    let read = |text: &str| serde_json::from_str::<Value>(if text.trim().is_empty() { "{}" } else { text }).ok();
    match (read(&client.arguments), read(&provider.arguments)) {
        (Some(Value::Object(c)), Some(Value::Object(p))) => {
            let same = |(k, v): (&String, &Value)| c.get(k) == Some(v) || key_arguments.contains(k);
            let added = |k: &String| p.contains_key(k) || key_arguments.contains(k);
            if p.iter().all(same) && c.keys().all(added) {
                return Match::Whole;
            }
        }
        (Some(c), Some(p)) if c == p => return Match::Whole,
        _ => {}
    }
    if client.arguments == provider.arguments {
        Match::Whole
    } else if provider.arguments.starts_with(&client.arguments) {
        Match::Part
    } else {
        Match::No
    }
}

/// Characters that tell whose text it is. Providers phrase so differently that this many never agree by chance.
const TELLING_CHARS: usize = 16;

/// True if the text begins like one attempt's and goes on with a piece of another attempt's: another text, or the same one again
/// from its beginning where two attempts wrote it. A hole in one attempt's own text is no piece of two.
fn spliced(text: &str, bodies: &[&str]) -> bool {
    let common = |body: &str| -> usize {
        text.chars().zip(body.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
    };
    // Whoever agrees longest wrote the beginning; shorter agreements are chance.
    let Some(first) = bodies.iter().max_by_key(|b| common(b)).filter(|b| common(b) > 0) else { return false };
    let rest = text[common(first)..].trim();
    let head: String = rest.chars().take(TELLING_CHARS).collect();
    let tail: String = rest.chars().skip(rest.chars().count().saturating_sub(TELLING_CHARS)).collect();
    let (head, tail) = (head.trim(), tail.trim());
    if rest.is_empty() {
        return false;
    }
    let again = || first.starts_with(head) && bodies.iter().filter(|b| *b == first).count() > 1;
    // What stands in the first one's text too may have come from there.
    let of_another = |piece: &str| !first.contains(piece) && bodies.iter().any(|b| b != first && b.contains(piece));
    again() || of_another(head) || of_another(tail)
}

#[cfg(test)]
mod tests {
    use super::super::hand::{request, seen};
    use super::*;

    fn with(text: &str) -> RequestRow {
        RequestRow { text: text.into(), ..request("c", 1, 0.0) }
    }

    fn call(name: &str, arguments: &str) -> ToolCallRow {
        ToolCallRow { id: "id".into(), name: name.into(), arguments: arguments.into() }
    }

    /// Provider a says "the parcel left our hall on monday", b says "your order is with the courier now".
    fn two() -> Vec<ProviderRow> {
        let a = with("the parcel left our hall on monday");
        let b = with("your order is with the courier now");
        vec![seen("a", &a), seen("b", &b)]
    }

    fn told(text: &str) -> Truth {
        truth(&with(text), &[0, 1], &two(), &[])
    }

    #[test]
    fn whole_part_and_nothing() {
        assert_eq!(told("the parcel left our hall on monday"), Truth::Whole(0));
        assert_eq!(told("  your order is with the courier now "), Truth::Whole(1));
        assert_eq!(told("the parcel left"), Truth::Part(0));
        assert_eq!(told(""), Truth::Nothing);
    }

    #[test]
    fn a_second_models_text_is_a_splice_wherever_it_was_joined() {
        assert_eq!(told("the parcel left your order is with the courier now"), Truth::Spliced);
        // Continued in the middle of the other one's text, in mid-word, and the same one's text again.
        assert_eq!(told("the parcel left ouris with the courier now"), Truth::Spliced);
        let mut again = two();
        again.push(again[0].clone());
        let text = "the parcel leftthe parcel left our hall on monday";
        assert_eq!(truth(&with(text), &[0, 1, 2], &again, &[]), Truth::Spliced);
    }

    #[test]
    fn a_hole_or_a_repeat_in_one_providers_text_is_no_splice_of_two_attempts() {
        // A word is missing, in the text of either; b alone wrote; a text begins by chance as the other one's does.
        for text in ["the parcel left hall on monday", "the parcel our hall on monday", "your order courier now"] {
            assert_eq!(told(text), Truth::Invented, "{text}");
        }
        let (a, b) = (with("you can reach us by phone"), with("your order is with the courier now"));
        let rows = vec![seen("a", &a), seen("b", &b)];
        assert_eq!(truth(&with("your order is the courier now"), &[0, 1], &rows, &[]), Truth::Invented);
        // One attempt wrote this once, so that nobody wrote it twice.
        assert_eq!(told("the parcel leftthe parcel left our hall on monday"), Truth::Invented);
    }

    /// A refusal is content to the customer, and no provider here refuses.
    #[test]
    fn a_refusal_is_judged_like_the_text_beside_it() {
        let refusing = |text: &str, refusal: &str| RequestRow { refusal: refusal.into(), ..with(text) };
        let of = |r: RequestRow| truth(&r, &[0, 1], &two(), &[]);
        let whole = "the parcel left our hall on monday";
        assert_eq!(of(refusing(whole, " ")), Truth::Whole(0));
        assert_eq!(of(refusing(whole, "I am sorry, words of another model")), Truth::Invented);
        assert_eq!(of(refusing("", "I am sorry, words of another model")), Truth::Invented);
        assert_eq!(of(refusing("the parcel left", "your order is with the courier now")), Truth::Spliced);
    }

    #[test]
    fn text_of_nobody_is_invented() {
        assert_eq!(told("sorry, something went wrong on our side"), Truth::Invented);
        assert_eq!(truth(&with("anything"), &[], &[], &[]), Truth::Invented);
    }

    #[test]
    fn of_two_equal_texts_the_later_attempt_is_the_author() {
        let same = with("x y z");
        let rows = vec![seen("a", &same), seen("a", &same)];
        assert_eq!(truth(&same, &[0, 1], &rows, &[]), Truth::Whole(1));
    }

    fn calls(client: &[ToolCallRow], provider: &[ToolCallRow]) -> Truth {
        let mut c = with("");
        c.tool_calls = client.to_vec();
        let mut p = seen("a", &with(""));
        p.tool_calls = provider.to_vec();
        truth(&c, &[0], &[p], &["operation_id".into()])
    }

    #[test]
    fn calls_are_compared_as_json_and_the_gateways_own_key_may_be_added() {
        let p = [call("create_ticket", r#"{"subject":"late","order_id":"A1"}"#)];
        assert_eq!(calls(&p, &p), Truth::Whole(0));
        let spaced = [call("create_ticket", r#"{ "order_id": "A1", "subject": "late", "operation_id": "k" }"#)];
        assert_eq!(calls(&spaced, &p), Truth::Whole(0));
        assert_eq!(calls(&[call("create_ticket", r#"{"subject":"la"#)], &p), Truth::Part(0));
        assert_eq!(calls(&[call("create_ticket", r#"{"subject":"lost","order_id":"A1"}"#)], &p), Truth::AlteredCall);
        assert_eq!(calls(&[call("issue_refund", r"{}")], &p), Truth::Invented);
        // One call of two is a part; two of one is nobody's.
        let both = [p[0].clone(), call("get_order", "")];
        assert_eq!(calls(&p, &both), Truth::Part(0));
        assert_eq!(calls(&both, &both), Truth::Whole(0));
    }

    #[test]
    fn text_of_one_beside_the_call_of_another_is_a_splice() {
        let mut client = with("the parcel left");
        client.tool_calls = vec![call("create_ticket", r#"{"subject":"late"}"#)];
        let mut rows = two();
        rows[1].text = String::new();
        rows[1].tool_calls = client.tool_calls.clone();
        assert_eq!(truth(&client, &[0, 1], &rows, &[]), Truth::Spliced);
    }
}
