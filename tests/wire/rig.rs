//! Drives the end-state machine over a scripted body, and keeps what a client would have received.

use bytes::Bytes;
use llmfo::units::Ts;
use llmfo::wire::sse::MAX_EVENT_BYTES;
use llmfo::wire::{CommitAt, Completion, Done, Sign, StreamFault, StreamInlet, StreamSettings};
use serde_json::{Value, json};

/// One attempt, played to its end.
#[derive(Debug)]
pub struct Played {
    /// Every byte that the client got from this attempt.
    pub sent: Vec<u8>,
    /// The machine reached its commit point.
    pub committed: bool,
    /// Which piece of the body brought the commit.
    pub commit_at: Option<usize>,
    pub signs: Vec<Sign>,
    /// For each piece of the body: did it reset the idle clock?
    pub progress: Vec<bool>,
    /// What each piece sent at once.
    pub at_once: Vec<usize>,
    pub calls_delivered: bool,
    pub done: Done,
}

impl Played {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.sent).into_owned()
    }

    pub fn complete(&self) -> &Completion {
        match &self.done {
            Done::Complete(completion) => completion,
            Done::Fault(fault) => panic!("not complete: {fault}; sent {}", self.text()),
        }
    }

    pub fn fault(&self) -> &StreamFault {
        match &self.done {
            Done::Fault(fault) => fault,
            Done::Complete(_) => panic!("complete: {}", self.text()),
        }
    }

    /// The attempt failed and the client does not know of it: another target may answer.
    pub fn fails_over(&self) -> bool {
        matches!(self.done, Done::Fault(_)) && !self.committed && self.sent.is_empty()
    }
}

pub fn settings() -> StreamSettings {
    StreamSettings::default()
}

pub fn committing(commit_at: CommitAt) -> StreamSettings {
    StreamSettings { commit_at, ..StreamSettings::default() }
}

/// Plays the pieces, one chunk of the body each, at one millisecond distance.
pub fn play<P: AsRef<[u8]>>(settings: StreamSettings, pieces: &[P], clean: bool) -> Played {
    let mut inlet = StreamInlet::new(settings, MAX_EVENT_BYTES);
    let mut played = Played {
        sent: Vec::new(),
        committed: false,
        commit_at: None,
        signs: Vec::new(),
        progress: Vec::new(),
        at_once: Vec::new(),
        calls_delivered: false,
        done: Done::Fault(StreamFault::Empty),
    };
    let mut over = false;
    for (n, piece) in pieces.iter().enumerate() {
        let pushed = inlet.bytes(Bytes::copy_from_slice(piece.as_ref()), Ts::from_ms(n as u64));
        assert!(!(over && pushed != Default::default()), "something after the end: {pushed:?}");
        if pushed.commit {
            assert!(played.commit_at.is_none(), "committed twice");
            played.commit_at = Some(n);
        }
        assert!(played.commit_at.is_some() || pushed.out.is_empty(), "sent before the commit point");
        assert!(!(pushed.fault.is_some() && pushed.commit), "a fault that commits");
        let done = pushed.out.iter().any(|o| o.windows(6).any(|w| w == b"[DONE]"));
        assert_eq!(pushed.ended, done, "ended and [DONE] go together");
        over |= pushed.fault.is_some() || pushed.ended;
        played.signs.extend(pushed.sign);
        played.progress.push(pushed.progress);
        played.at_once.push(pushed.out.len());
        played.sent.extend(pushed.out.concat());
    }
    let end = inlet.end(clean, Ts::from_ms(pieces.len() as u64));
    if end.commit {
        assert!(played.commit_at.is_none(), "committed twice");
        played.commit_at = Some(pieces.len());
    }
    assert!(played.commit_at.is_some() || end.out.is_empty(), "sent before the commit point");
    played.sent.extend(end.out.concat());
    played.committed = played.commit_at.is_some();
    assert_eq!(played.committed, inlet.state().committed());
    played.calls_delivered = inlet.state().tool_calls_delivered();
    played.done = end.done;
    played
}

/// As [`play`], with defaults and a clean end.
pub fn play_clean<P: AsRef<[u8]>>(pieces: &[P]) -> Played {
    play(settings(), pieces, true)
}

pub fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// A chunk with one choice.
pub fn chunk_of(index: u64, delta: Value, finish: Option<&str>) -> String {
    event(&json!({"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-1",
        "choices":[{"index":index,"delta":delta,"finish_reason":finish}]}))
}

pub fn chunk(delta: Value) -> String {
    chunk_of(0, delta, None)
}

pub fn role() -> String {
    chunk(json!({"role":"assistant","content":""}))
}

pub fn content(text: &str) -> String {
    chunk(json!({"content":text}))
}

pub fn reasoning(text: &str) -> String {
    chunk(json!({"content":null,"reasoning_content":text}))
}

pub fn finish(reason: &str) -> String {
    chunk_of(0, json!({}), Some(reason))
}

pub fn usage() -> String {
    event(
        &json!({"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}),
    )
}

/// First fragment of a call.
pub fn call(index: u64, id: &str, name: &str, arguments: &str) -> String {
    chunk(
        json!({"tool_calls":[{"index":index,"id":id,"type":"function","function":{"name":name,"arguments":arguments}}]}),
    )
}

/// Further fragment of a call.
pub fn arguments(index: u64, text: &str) -> String {
    chunk(json!({"tool_calls":[{"index":index,"function":{"arguments":text}}]}))
}

pub fn done() -> String {
    "data: [DONE]\n\n".to_owned()
}

pub fn error_event() -> String {
    event(
        &json!({"error":{"message":"The server is overloaded","type":"service_unavailable_error","code":"server_is_overloaded"}}),
    )
}

/// A whole, ordinary answer.
pub fn answer(words: &[&str]) -> Vec<String> {
    let mut out = vec![role()];
    out.extend(words.iter().map(|w| content(w)));
    out.extend([finish("stop"), done()]);
    out
}
