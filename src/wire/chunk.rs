//! Lenient reading of one `chat.completion.chunk`. Odd shapes are never an error as long as the data is a JSON object: what
//! is not understood is not there, and what is relayed stays as it came.

use std::borrow::Cow;
use std::ops::Range;

use super::error::{self, ErrorObject};
use super::{Secrets, Usage, inner, json};

/// Choices that one chunk or answer may have; the API allows `n` up to 128.
pub const MAX_CHOICES: usize = 128;
/// Tool calls (or fragments of them) that one choice may have. Real ones have a handful; without a bound a few megabytes of
/// `{}` would become a few hundred of memory.
pub const MAX_CALLS: usize = 1024;

/// What one chunk says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// A top-level error (also one inside a choice), whatever else the chunk holds.
    pub error: Option<ErrorObject>,
    /// Its choices. Empty for filter results and usage.
    pub choices: Vec<Choice>,
    /// Tokens, if it says so.
    pub usage: Option<Usage>,
    /// The model that answers, as it names itself.
    pub model: Option<String>,
    /// `system_fingerprint`.
    pub fingerprint: Option<String>,
}

/// One choice of a chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Its index; without one, its place in the list.
    pub index: u64,
    /// What it adds.
    pub delta: Delta,
    /// Why it ended. An empty string counts as none.
    pub finish_reason: Option<String>,
}

/// What a chunk adds to a choice. Empty strings count as nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Who speaks.
    pub role: Option<String>,
    /// Text.
    pub content: Option<String>,
    /// Text of a refusal.
    pub refusal: Option<String>,
    /// Thoughts (`reasoning_content`, `reasoning`, `reasoning_details`, `thinking`), or the mere fact that there are some.
    pub reasoning: Option<String>,
    /// Spoken output, which this reader does not look into.
    pub audio: bool,
    /// Fragments of tool calls.
    pub tool_calls: Vec<CallFragment>,
}

/// A fragment of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFragment {
    /// Its index as sent.
    pub index: Option<u64>,
    /// Where the index stands in the chunk's data.
    pub index_at: Option<Range<usize>>,
    /// Where the fragment's object begins in the chunk's data (its opening brace).
    pub object_at: Option<usize>,
    /// Its id, if not empty.
    pub id: Option<String>,
    /// Where the id stands in the chunk's data, also an empty one.
    pub id_at: Option<Range<usize>>,
    /// Where its function's object begins (its opening brace).
    pub function_at: Option<usize>,
    /// Its function's name, if not empty.
    pub name: Option<String>,
    /// A piece of its arguments. An object (instead of a string) is taken as it is written.
    pub arguments: Option<String>,
    /// Where the arguments stand in the chunk's data.
    pub arguments_at: Option<Range<usize>>,
    /// They came as an object.
    pub arguments_are_object: bool,
    /// It came as the old `function_call`.
    pub legacy: bool,
}

impl Chunk {
    /// Reads the data of one event.
    ///
    /// # Errors
    /// If it is not a JSON object, or says its end in a way that nobody understands; says what it is, in a few words.
    pub fn read(data: &[u8], secrets: &Secrets) -> Result<Chunk, &'static str> {
        let (text, spans) = match json::lossy(data) {
            Cow::Borrowed(text) => (Cow::Borrowed(text), true),
            // Not UTF-8: read with U+FFFD in the place of what is broken. Places in it mean nothing for the original.
            Cow::Owned(text) => (Cow::Owned(text), false),
        };
        let mut chunk = Chunk::default();
        let mut bare = BareError::default();
        let (mut too_many, mut odd_finish) = (false, false);
        let base = text.as_ref();
        let is_object = json::members(base, |m| match m.key().as_ref() {
            "error" => chunk.error = error::from_member(m.value, secrets),
            "choices" => {
                inner::elements(m.value, |value| {
                    if chunk.choices.len() == MAX_CHOICES {
                        too_many = true;
                        return;
                    }
                    let place = chunk.choices.len() as u64;
                    let (choice, error, odd) = read_choice(value, place, if spans { base } else { "" }, secrets);
                    chunk.choices.push(choice);
                    odd_finish |= odd;
                    if chunk.error.is_none() {
                        chunk.error = error;
                    }
                });
            }
            "usage" => chunk.usage = read_usage(m.value),
            "model" => chunk.model = json::filled_text(m.value),
            "system_fingerprint" => chunk.fingerprint = json::filled_text(m.value),
            "object" => {
                bare.object_is_error = m.value == "\"error\"";
                bare.object_is_chunk = m.value == "\"chat.completion.chunk\"";
            }
            key => bare.told |= error::tells_of_one(key, m.value),
        });
        if !is_object {
            return Err(if json::is_whole(base.as_bytes()) {
                "the data of an event is not an object"
            } else {
                "the data of an event is not JSON"
            });
        }
        if too_many || chunk.choices.iter().any(|c| c.delta.tool_calls.len() > MAX_CALLS) {
            return Err("one chunk has more choices or tool calls than any answer");
        }
        if chunk.error.is_none() && (bare.object_is_error || bare.told && chunk.says_nothing() && !bare.object_is_chunk)
        {
            chunk.error = Some(ErrorObject::read(200, base.as_bytes(), secrets));
        }
        if odd_finish && chunk.error.is_none() {
            return Err(ODD_FINISH);
        }
        Ok(chunk)
    }

    /// It holds no choice and no usage: nothing that a client waits for.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        self.choices.is_empty() && self.usage.is_none()
    }

    /// It holds usage and no choice: a client that did not ask for usage does not expect it (case B023).
    #[must_use]
    pub fn is_usage_only(&self) -> bool {
        self.usage.is_some() && self.choices.is_empty()
    }
}

/// Error objects that some servers send without the `error` member.
#[derive(Default)]
struct BareError {
    object_is_error: bool,
    object_is_chunk: bool,
    /// A member that only an error has. It counts where there is nothing of an answer.
    told: bool,
}

/// A finish reason of a wrong type is the one oddity that is not passed over: read as none it would be an answer without an
/// end, read as some it would be an end that the client cannot read.
pub(crate) const ODD_FINISH: &str = "a finish_reason that is neither a string nor null";

/// The value of `finish_reason` is neither.
pub(crate) fn is_odd_finish(value: &str) -> bool {
    !value.starts_with('"') && value != "null"
}

fn read_choice(value: &str, place: u64, base: &str, secrets: &Secrets) -> (Choice, Option<ErrorObject>, bool) {
    let mut choice = Choice { index: place, ..Choice::default() };
    let (mut error, mut odd) = (None, false);
    inner::members(value, |m| match m.key().as_ref() {
        "index" => choice.index = json::unsigned(m.value).unwrap_or(place),
        "delta" => choice.delta = read_delta(m.value, base),
        "finish_reason" => {
            odd |= is_odd_finish(m.value);
            choice.finish_reason = json::filled_text(m.value);
        }
        "error" => error = error::from_member(m.value, secrets),
        _ => {}
    });
    (choice, error, odd)
}

/// Reads a delta, or the message of a whole answer, which has the same members. Places are relative to `base`.
pub(crate) fn read_delta(value: &str, base: &str) -> Delta {
    let mut delta = Delta::default();
    inner::members(value, |m| match m.key().as_ref() {
        "role" => delta.role = json::filled_text(m.value),
        "content" => read_content(m.value, &mut delta),
        "refusal" => delta.refusal = json::filled_text(m.value),
        "reasoning_content" | "reasoning" | "reasoning_details" | "thinking" => read_reasoning(m.value, &mut delta),
        "audio" => delta.audio = m.value.starts_with('{') && m.value.len() > 2,
        "tool_calls" => {
            let one = |call: &str| read_call(call, base);
            let is_list = inner::elements(m.value, |call| {
                // One more than there may be says that there are too many.
                if delta.tool_calls.len() <= MAX_CALLS {
                    delta.tool_calls.push(one(call));
                }
            });
            if !is_list && m.value.starts_with('{') {
                delta.tool_calls.push(one(m.value));
            }
        }
        "function_call" if m.value.starts_with('{') => {
            let mut call = CallFragment { legacy: true, ..CallFragment::default() };
            read_function(m.value, base, &mut call);
            delta.tool_calls.push(call);
        }
        _ => {}
    });
    delta
}

/// Text, or a list of parts (some models send thoughts and text that way).
fn read_content(value: &str, delta: &mut Delta) {
    let mut add = |to_reasoning: bool, text: String| {
        let into = if to_reasoning { &mut delta.reasoning } else { &mut delta.content };
        into.get_or_insert_default().push_str(&text);
    };
    if let Some(text) = json::filled_text(value) {
        add(false, text);
        return;
    }
    inner::elements(value, |part| {
        let (mut thinking, mut text) = (false, None);
        inner::members(part, |m| match m.key().as_ref() {
            "type" => thinking = matches!(m.value, "\"thinking\"" | "\"reasoning\""),
            "text" => text = json::filled_text(m.value),
            "thinking" => text = Some(json::filled_text(m.value).unwrap_or_else(|| m.value.to_owned())),
            _ => {}
        });
        if let Some(text) = text {
            add(thinking, text);
        }
    });
}

fn read_reasoning(value: &str, delta: &mut Delta) {
    let text = match value.as_bytes().first() {
        Some(b'"') => json::filled_text(value),
        // A structure: that there are thoughts is all that counts here.
        Some(b'{' | b'[') if value.len() > 2 => Some(String::new()),
        _ => None,
    };
    if let Some(text) = text {
        delta.reasoning.get_or_insert_default().push_str(&text);
    }
}

fn read_call(value: &str, base: &str) -> CallFragment {
    let mut call = CallFragment { object_at: json::place(base, value).map(|r| r.start), ..CallFragment::default() };
    inner::members(value, |m| match m.key().as_ref() {
        "index" => {
            call.index = json::unsigned(m.value);
            call.index_at = json::place(base, m.value);
        }
        "id" => {
            call.id = json::loose_text(m.value).filter(|id| !id.is_empty());
            call.id_at = json::place(base, m.value);
        }
        "function" => read_function(m.value, base, &mut call),
        _ => {}
    });
    call
}

fn read_function(value: &str, base: &str, call: &mut CallFragment) {
    call.function_at = json::place(base, value).map(|r| r.start).filter(|_| value.starts_with('{'));
    inner::members(value, |m| match m.key().as_ref() {
        "name" => call.name = json::filled_text(m.value),
        "arguments" => {
            call.arguments_are_object = m.value.starts_with('{');
            call.arguments = if call.arguments_are_object { Some(m.value.to_owned()) } else { json::text(m.value) };
            call.arguments_at = json::place(base, m.value);
        }
        _ => {}
    });
}

/// Reads a `usage` object. `None` if it is null or has no count.
pub(crate) fn read_usage(value: &str) -> Option<Usage> {
    let (mut input, mut output) = (None, None);
    inner::members(value, |m| match m.key().as_ref() {
        "prompt_tokens" => input = json::unsigned(m.value),
        "completion_tokens" => output = json::unsigned(m.value),
        _ => {}
    });
    (input.is_some() || output.is_some())
        .then(|| Usage { input_tokens: input.unwrap_or(0), output_tokens: output.unwrap_or(0) })
}
