//! Whole answers: a JSON document that was not streamed, or a stream put together. One form for both, so that whoever judges
//! an answer (checks, drills, probes) need not know how it came.

use bytes::Bytes;

use super::chunk::{self, CallFragment, Chunk, MAX_CALLS, MAX_CHOICES};
use super::error::{self, ErrorObject};
use super::sse::{MAX_EVENT_BYTES, SseEvent, SseReader};
use super::stream::{Anomaly, StreamFault};
use super::toolcall::{Calls, ToolCall};
use super::{Secrets, Usage, inner, json};

/// What one choice of an answer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerChoice {
    /// Its index.
    pub index: u64,
    /// Its text.
    pub text: String,
    /// The text of a refusal.
    pub refusal: String,
    /// Its tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// Why it ended, if it says so.
    pub finish_reason: Option<String>,
    /// It has spoken output.
    pub audio: bool,
}

impl AnswerChoice {
    /// There is something for the customer or the application: text, a refusal, sound, or a call.
    #[must_use]
    pub fn has_substance(&self) -> bool {
        self.audio
            || !self.text.trim().is_empty()
            || !self.refusal.trim().is_empty()
            || self.tool_calls.iter().any(|c| !c.name.is_empty())
    }
}

/// What is known about a whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Its choices, in the order in which they came.
    pub choices: Vec<AnswerChoice>,
    /// Tokens, if it says so.
    pub usage: Option<Usage>,
    /// The model that answered, as it names itself.
    pub model: Option<String>,
    /// `system_fingerprint`.
    pub fingerprint: Option<String>,
    /// What is unusual. Sorted, each once.
    pub anomalies: Vec<Anomaly>,
}

impl AnswerFacts {
    /// The first choice, which is the only one of nearly every answer.
    #[must_use]
    pub fn first(&self) -> Option<&AnswerChoice> {
        self.choices.iter().min_by_key(|c| c.index)
    }
}

/// Reads the body of a success that was not streamed, and says whether it is one.
///
/// # Errors
/// The fault of the provider: an error object, an event stream, a page, no JSON, no choices, a finish reason that completes
/// nothing, an empty answer. `content_type` only sharpens the words; what counts is the body.
pub fn read_answer(body: &[u8], content_type: Option<&str>, secrets: &Secrets) -> Result<AnswerFacts, StreamFault> {
    let malformed = |what: &str| Err(StreamFault::Malformed(what.to_owned()));
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii();
    if body.is_empty() {
        return Err(StreamFault::Empty);
    }
    if error::looks_like_html(body) {
        return malformed("an HTML page instead of an answer");
    }
    if looks_like_events(body) {
        return Err(error_among_events(body, secrets).map_or_else(
            || StreamFault::Malformed("an event stream for a request that was not streamed".to_owned()),
            |e| StreamFault::Error(Box::new(e)),
        ));
    }
    let text = json::lossy(body);
    let mut facts = AnswerFacts::default();
    let mut bad_finish = None;
    let mut error = None;
    let (mut has_choices, mut object_is_error, mut names_error) = (false, false, false);
    let (mut too_many, mut odd_finish) = (false, false);
    let is_object = json::members(&text, |m| match m.key().as_ref() {
        "error" => error = error::from_member(m.value, secrets),
        "choices" => {
            has_choices = inner::elements(m.value, |value| {
                if facts.choices.len() == MAX_CHOICES {
                    too_many = true;
                    return;
                }
                let place = facts.choices.len() as u64;
                let (choice, choice_error, odd) = read_choice(value, place, secrets);
                odd_finish |= odd;
                if let Some(choice_error) = choice_error {
                    error.get_or_insert(choice_error);
                }
                if let Some(reason) = &choice.finish_reason
                    && !completes(reason)
                {
                    bad_finish.get_or_insert_with(|| reason.clone());
                }
                facts.choices.push(choice);
            });
        }
        "usage" => facts.usage = chunk::read_usage(m.value),
        "model" => facts.model = json::filled_text(m.value),
        "system_fingerprint" => facts.fingerprint = json::filled_text(m.value),
        // Errors without the `error` member.
        "object" => object_is_error = m.value == "\"error\"",
        key => names_error |= key == "message" || error::tells_of_one(key, m.value),
    });
    if !is_object {
        return malformed(match (json::is_whole(body), content_type) {
            (true, _) => "JSON that is no object instead of an answer",
            (false, Some(kind)) if kind.trim_start().starts_with("text/") => "text instead of an answer",
            (false, _) => "an answer that is not JSON, or was cut off",
        });
    }
    if error.is_none() && (object_is_error || names_error && !has_choices) {
        error = Some(ErrorObject::read(200, body, secrets));
    }
    if let Some(error) = error {
        return Err(StreamFault::Error(Box::new(error)));
    }
    if too_many || facts.choices.iter().any(|c| c.tool_calls.len() > MAX_CALLS) {
        return malformed("more choices or tool calls than any answer has");
    }
    if odd_finish {
        return malformed(chunk::ODD_FINISH);
    }
    if let Some(reason) = bad_finish {
        return Err(StreamFault::BadFinish(crate::units::printable(&reason, 40)));
    }
    if !has_choices {
        return malformed("an answer without choices");
    }
    judge(&mut facts)?;
    Ok(facts)
}

/// Empty or not, and what is unusual.
fn judge(facts: &mut AnswerFacts) -> Result<(), StreamFault> {
    let cut_short = |c: &AnswerChoice| matches!(c.finish_reason.as_deref(), Some("length" | "content_filter"));
    if !facts.choices.iter().any(|c| c.has_substance() || cut_short(c)) {
        return Err(StreamFault::Empty);
    }
    let mut found = Vec::new();
    for choice in &facts.choices {
        if !choice.has_substance() && !cut_short(choice) {
            found.push(Anomaly::EmptyChoice);
        }
        match choice.finish_reason.as_deref() {
            None => found.push(Anomaly::DoneWithoutFinish),
            Some("tool_calls" | "function_call") if choice.tool_calls.is_empty() => found.push(Anomaly::FinishMismatch),
            Some("stop") if !choice.tool_calls.is_empty() => found.push(Anomaly::FinishMismatch),
            Some(_) => {}
        }
        if choice.tool_calls.iter().any(|c| !c.arguments_whole()) {
            found.push(Anomaly::InvalidArguments);
        }
    }
    found.sort_unstable();
    found.dedup();
    facts.anomalies = found;
    Ok(())
}

/// A finish reason that completes an answer (design, settled questions).
#[must_use]
pub fn completes(reason: &str) -> bool {
    matches!(reason, "stop" | "length" | "tool_calls" | "function_call" | "content_filter")
}

fn read_choice(value: &str, place: u64, secrets: &Secrets) -> (AnswerChoice, Option<ErrorObject>, bool) {
    let mut choice = AnswerChoice { index: place, ..AnswerChoice::default() };
    let (mut error, mut odd) = (None, false);
    inner::members(value, |m| match m.key().as_ref() {
        "index" => choice.index = json::unsigned(m.value).unwrap_or(place),
        "finish_reason" => {
            odd |= chunk::is_odd_finish(m.value);
            choice.finish_reason = json::filled_text(m.value);
        }
        "error" => error = error::from_member(m.value, secrets),
        "message" => {
            let said = chunk::read_delta(m.value, "");
            choice.text = said.content.unwrap_or_default();
            choice.refusal = said.refusal.unwrap_or_default();
            choice.audio = said.audio;
            // A whole message has each call once: no fragments to join.
            choice.tool_calls = said
                .tool_calls
                .into_iter()
                .map(|c| ToolCall {
                    id: c.id.unwrap_or_default(),
                    name: c.name.unwrap_or_default(),
                    arguments: c.arguments.unwrap_or_default(),
                })
                .collect();
        }
        _ => {}
    });
    (choice, error, odd)
}

fn looks_like_events(body: &[u8]) -> bool {
    [&b"data:"[..], b"event:", b"id:", b"retry:", b":"].iter().any(|begin| body.starts_with(begin))
}

fn error_among_events(body: &[u8], secrets: &Secrets) -> Option<ErrorObject> {
    let mut reader = SseReader::new(MAX_EVENT_BYTES);
    reader.push(bytes::Bytes::copy_from_slice(body));
    let error = |event: &SseEvent| {
        if event.named_error {
            return Some(ErrorObject::read(200, &event.data, secrets));
        }
        Chunk::read(&event.data, secrets).ok()?.error
    };
    while let Some(Ok(event)) = reader.next() {
        if let Some(found) = error(&event) {
            return Some(found);
        }
    }
    error(&reader.finish()?.ok()?)
}

/// A stream put together into one answer. What is above the bound is left out and [`Transcript::cut_short`] says so: a copy
/// for judging never grows without end (case B154).
#[derive(Clone, Debug)]
pub struct Transcript {
    choices: Vec<(AnswerChoice, Calls)>,
    facts: AnswerFacts,
    max_bytes: usize,
    bytes: usize,
    cut_short: bool,
    /// The first error object in the stream.
    pub error: Option<ErrorObject>,
}

impl Transcript {
    /// An empty one that keeps at most `max_bytes` of text and arguments.
    #[must_use]
    pub fn new(max_bytes: usize) -> Transcript {
        Transcript {
            choices: Vec::new(),
            facts: AnswerFacts::default(),
            max_bytes,
            bytes: 0,
            cut_short: false,
            error: None,
        }
    }

    /// Adds a chunk.
    pub fn add(&mut self, chunk: &Chunk) {
        if self.error.is_none() {
            self.error.clone_from(&chunk.error);
        }
        self.facts.usage = chunk.usage.or(self.facts.usage);
        if self.facts.model.is_none() {
            self.facts.model.clone_from(&chunk.model);
        }
        if self.facts.fingerprint.is_none() {
            self.facts.fingerprint.clone_from(&chunk.fingerprint);
        }
        for from in &chunk.choices {
            let text = [&from.delta.content, &from.delta.refusal].into_iter().flatten().map(String::len).sum::<usize>();
            let calls = from.delta.tool_calls.iter().map(fragment_bytes).sum::<usize>();
            self.bytes = self.bytes.saturating_add(text).saturating_add(calls);
            let place = self.choices.iter().position(|(c, _)| c.index == from.index);
            let full = self.bytes > self.max_bytes || (place.is_none() && self.choices.len() == MAX_CHOICES);
            if full {
                self.cut_short = true;
                continue;
            }
            let place = place.unwrap_or_else(|| {
                self.choices.push((AnswerChoice { index: from.index, ..AnswerChoice::default() }, Calls::default()));
                self.choices.len() - 1
            });
            let (choice, calls) = &mut self.choices[place];
            choice.text.push_str(from.delta.content.as_deref().unwrap_or_default());
            choice.refusal.push_str(from.delta.refusal.as_deref().unwrap_or_default());
            choice.audio |= from.delta.audio;
            for fragment in &from.delta.tool_calls {
                calls.add(fragment);
                if calls.calls().len() == MAX_CALLS {
                    self.cut_short = true;
                    break;
                }
            }
            if from.finish_reason.is_some() {
                choice.finish_reason.clone_from(&from.finish_reason);
            }
        }
    }

    /// Something was left out.
    #[must_use]
    pub fn cut_short(&self) -> bool {
        self.cut_short
    }

    /// The answer so far. Whether it is complete is for the end state to say.
    #[must_use]
    pub fn facts(&self) -> AnswerFacts {
        let mut facts = self.facts.clone();
        facts.choices = self
            .choices
            .iter()
            .map(|(choice, calls)| AnswerChoice { tool_calls: calls.calls().to_vec(), ..choice.clone() })
            .collect();
        facts
    }
}

/// Puts a stream together that comes as bytes. What is no chunk says nothing; an event above the bound of events ends it.
#[derive(Debug)]
pub struct Overheard {
    reader: SseReader,
    said: Transcript,
}

impl Overheard {
    /// Nothing was said yet; at most `max_bytes` of text and arguments are kept.
    #[must_use]
    pub fn new(max_bytes: usize) -> Overheard {
        Overheard { reader: SseReader::new(MAX_EVENT_BYTES), said: Transcript::new(max_bytes) }
    }

    /// More of the stream.
    pub fn add(&mut self, bytes: Bytes) {
        self.reader.push(bytes);
        while let Some(Ok(event)) = self.reader.next() {
            hear(&mut self.said, &event);
        }
    }

    /// All that was said. The last event need not end in an empty line.
    #[must_use]
    pub fn end(mut self) -> Transcript {
        if let Some(Ok(event)) = self.reader.finish() {
            hear(&mut self.said, &event);
        }
        self.said
    }
}

fn hear(said: &mut Transcript, event: &SseEvent) {
    if let Ok(chunk) = Chunk::read(&event.data, &Secrets::default()) {
        said.add(&chunk);
    }
}

/// What a fragment costs: its texts, and something for the call it may open.
fn fragment_bytes(fragment: &CallFragment) -> usize {
    let texts = [&fragment.id, &fragment.name, &fragment.arguments];
    texts.into_iter().flatten().map(String::len).sum::<usize>() + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<AnswerFacts, StreamFault> {
        read_answer(body.as_bytes(), Some("application/json"), &Secrets::default())
    }

    fn with(choices: &str) -> String {
        format!(
            r#"{{"id":"c","object":"chat.completion","model":"m","choices":[{choices}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
        )
    }

    #[test]
    fn an_answer_is_read() {
        let facts = read(&with(
            r#"{"index":0,"message":{"role":"assistant","content":"Hi","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}"#,
        ))
        .unwrap();
        let choice = facts.first().unwrap();
        assert_eq!((choice.text.as_str(), choice.finish_reason.as_deref()), ("Hi", Some("tool_calls")));
        assert_eq!(choice.tool_calls[0], ToolCall { id: "a".into(), name: "f".into(), arguments: "{}".into() });
        assert_eq!(facts.usage, Some(Usage { input_tokens: 3, output_tokens: 4 }));
        assert_eq!(facts.model.as_deref(), Some("m"));
        assert!(facts.anomalies.is_empty());
    }

    #[test]
    fn b018_and_b067_empty_is_a_fault_and_a_filtered_answer_is_not() {
        for empty in [
            r#"{"index":0,"message":{"content":null},"finish_reason":"stop"}"#,
            r#"{"index":0,"message":{"content":" \n"},"finish_reason":"stop"}"#,
            r#"{"index":0,"message":{"content":"","tool_calls":[]},"finish_reason":"tool_calls"}"#,
            r#"{"index":0,"message":{"content":null,"reasoning_content":"hm"},"finish_reason":"stop"}"#,
            "",
        ] {
            assert_eq!(read(&with(empty)), Err(StreamFault::Empty), "{empty}");
        }
        for good in [
            r#"{"message":{"content":null},"finish_reason":"content_filter"}"#,
            r#"{"message":{"content":null},"finish_reason":"length"}"#,
            r#"{"message":{"content":null,"refusal":"I cannot."},"finish_reason":"stop"}"#,
        ] {
            assert!(read(&with(good)).is_ok(), "{good}");
        }
        assert_eq!(read(" \n"), Err(StreamFault::Empty));
    }

    #[test]
    fn b028_and_b030_odd_calls_are_answers() {
        let facts = read(&with(
            r#"{"message":{"content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":""}}]},"finish_reason":"stop"}"#,
        ))
        .unwrap();
        assert_eq!(facts.anomalies, [Anomaly::FinishMismatch]);
        assert!(facts.choices[0].tool_calls[0].arguments_whole());
        let facts = read(&with(
            r#"{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"a"}}]},"finish_reason":"length"}"#,
        ))
        .unwrap();
        assert_eq!(facts.anomalies, [Anomaly::InvalidArguments]);
        assert_eq!(facts.choices[0].tool_calls[0].arguments, "{\"a");
    }

    #[test]
    fn b039_an_event_stream_is_no_answer() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n";
        assert!(matches!(read(stream), Err(StreamFault::Malformed(_))));
        assert!(matches!(read(&format!(": ping\n\n{stream}")), Err(StreamFault::Malformed(_))));
        for end in ["\n\n", ""] {
            let with_error =
                format!("event: error\ndata: {{\"error\":{{\"message\":\"full\",\"code\":\"overloaded\"}}}}{end}");
            let Err(StreamFault::Error(error)) = read(&with_error) else { panic!("no error in {with_error}") };
            assert_eq!((error.code.as_str(), error.status), ("overloaded", 200));
        }
    }

    #[test]
    fn b069_pages_and_other_bodies_are_faults() {
        for (body, says) in [
            ("<!DOCTYPE html><title>Log in</title>", "HTML"),
            ("\u{feff}  <html>", "HTML"),
            ("OK", "not JSON"),
            ("[1]", "no object"),
            ("{\"ok\":true}", "without choices"),
            ("{\"choices\":[{\"index\":0,\"message\":{\"content\":\"cut", "cut off"),
        ] {
            let Err(StreamFault::Malformed(what)) = read(body) else { panic!("{body}") };
            assert!(what.contains(says), "{what}");
        }
        let Err(StreamFault::Malformed(what)) = read_answer(b"maintenance", Some("text/plain"), &Secrets::default())
        else {
            panic!("text is no answer")
        };
        assert_eq!(what, "text instead of an answer");
    }

    #[test]
    fn an_error_object_inside_a_success_is_an_error() {
        for body in [
            r#"{"error":{"message":"m","type":"server_error","code":"c"}}"#,
            r#"{"object":"error","message":"m","type":"server_error","code":"c"}"#,
            r#"{"choices":[{"error":{"message":"m","type":"server_error","code":"c"},"message":{"content":"half"}}]}"#,
        ] {
            let Err(StreamFault::Error(error)) = read(body) else { panic!("{body}") };
            assert_eq!((error.message.as_str(), error.kind.as_str(), error.code.as_str()), ("m", "server_error", "c"));
            assert!(error.openai_shape);
        }
        let Err(StreamFault::Error(error)) = read(r#"{"detail":"Not Found"}"#) else { panic!() };
        assert_eq!((error.message.as_str(), error.openai_shape), ("Not Found", false));
        assert!(read(&with(r#"{"message":{"content":"x"},"finish_reason":"stop","error":null}"#)).is_ok());
        let bad = with(r#"{"message":{"content":"x"},"finish_reason":"error"}"#);
        assert_eq!(read(&bad), Err(StreamFault::BadFinish("error".to_owned())));
    }

    #[test]
    fn b037_two_choices_are_two() {
        let facts = read(&with(
            r#"{"index":1,"message":{"content":"b"},"finish_reason":"stop"},{"index":0,"message":{"content":"a"},"finish_reason":"length"}"#,
        ))
        .unwrap();
        assert_eq!(facts.choices.len(), 2);
        assert_eq!(facts.first().unwrap().text, "a");
    }

    #[test]
    fn a_transcript_is_bounded() {
        let chunk = Chunk::read(br#"{"choices":[{"delta":{"content":"12345678"}}]}"#, &Secrets::default()).unwrap();
        let mut transcript = Transcript::new(20);
        for _ in 0..5 {
            transcript.add(&chunk);
        }
        assert!(transcript.cut_short());
        assert_eq!(transcript.facts().choices[0].text, "1234567812345678");
    }
}
