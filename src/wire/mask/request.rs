//! Masking one request body: which of its texts are searched, and what comes in their place.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};

use super::find::{self, Found, is_card};
use super::names::Names;
use super::originals::{Kind, Originals, note_tags};
use super::text::{Escapes, Token, decoded, places, quoted_inside, tokens};
use crate::wire::chat::{ChatRequest, MAX_DEPTH};
use crate::wire::json;
use crate::wire::rewrite::Splice;

/// All values of a request together.
const SWEEP_BYTES_MAX: usize = 1 << 20;
/// JSON inside a string inside JSON: so deep it is read as JSON, below that as plain text.
const LEVELS_MAX: usize = 4;

/// Why a request cannot be masked. Then it goes to no tier that wants it masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmaskable {
    /// A content part that is no text: an image, sound, a file, or of an unknown type.
    Part,
    /// A message or its content has a shape that is not known.
    Shape,
    /// It asks for spoken output, in which nothing can be put back.
    Sound,
    /// It holds more values than are kept.
    TooMany,
}

/// A request, masked. Its `Debug` shows no value: none is in the splices, and the map keeps its own to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    pub(in super::super) splices: Vec<Splice>,
    /// What was taken out.
    pub originals: Arc<Originals>,
}

/// Members that are instructions and settings of the application, not texts about a person: left as they are.
const LEFT: [&str; 34] = [
    "model",
    "stream",
    "stream_options",
    "n",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "verbosity",
    "service_tier",
    "store",
    "modalities",
    "audio",
    "truncation",
    "thinking",
    "prompt_cache_retention",
    "guided_json",
];

/// Whether the shape of a request is known well enough to mask it.
#[must_use]
pub fn unmaskable(request: &ChatRequest) -> Option<Unmaskable> {
    Walk { body: request.text(), splices: Vec::new(), look: None }.request(request).err()
}

/// Masks a request.
///
/// # Errors
/// If it is not known well enough: it must not be sent to anybody who may have masked text only.
pub fn mask(request: &ChatRequest, names: &Names) -> Result<Masked, Unmaskable> {
    let mut names = names.clone();
    let mut participants = Vec::new();
    json::elements(request.messages_text(), |message| participants.extend(participant(message)));
    for name in participants {
        // A participant's name is also looked for in the texts, if it can be; where it stands it is replaced as it is.
        let _ = names.add(&name);
    }
    let mut originals = Originals::default();
    let mut used = BTreeSet::new();
    let mut too_many = false;
    let mut collect = |text: &str, whole: Option<Kind>| {
        note_tags(text, &mut used);
        for found in look(text, whole, &names, None) {
            too_many |= !originals.keep(found.kind, text.get(found.at).unwrap_or_default());
        }
        Vec::new()
    };
    Walk { body: request.text(), splices: Vec::new(), look: Some(&mut collect) }.request(request)?;
    note_tags(&decoded(request.text(), Escapes::Unicode), &mut used);
    if too_many {
        return Err(Unmaskable::TooMany);
    }
    originals.set_json(request.wants_json());
    if originals.is_empty() {
        return Ok(Masked { splices: Vec::new(), originals: Arc::new(originals) });
    }
    originals.choose_tag(&used);
    let sweep = Sweep::new(&originals)?;
    let mut replace = |text: &str, whole: Option<Kind>| {
        let mut out = Vec::new();
        for found in look(text, whole, &names, Some(&sweep)) {
            match originals.placeholder(found.kind, text.get(found.at.clone()).unwrap_or_default()) {
                Some(placeholder) => out.push((found.at, placeholder)),
                None => too_many = true,
            }
        }
        out
    };
    let mut walk = Walk { body: request.text(), splices: Vec::new(), look: Some(&mut replace) };
    walk.request(request)?;
    let splices = walk.splices;
    if too_many { Err(Unmaskable::TooMany) } else { Ok(Masked { splices, originals: Arc::new(originals) }) }
}

/// What was found in one place is taken out everywhere, also where it would not have been found.
struct Sweep {
    kinds: Vec<Kind>,
    search: AhoCorasick,
}

impl Sweep {
    fn new(originals: &Originals) -> Result<Sweep, Unmaskable> {
        let says = |text| decoded(text, Escapes::Unicode);
        // The search takes some dozen bytes for each byte of a value.
        if originals.literal().map(|(_, text)| text.len()).sum::<usize>() > SWEEP_BYTES_MAX {
            return Err(Unmaskable::TooMany);
        }
        let (kinds, texts): (Vec<Kind>, Vec<_>) = originals.literal().map(|(kind, text)| (kind, says(text))).unzip();
        let search =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts.iter().map(|t| t.as_bytes()));
        // It fails only above sizes that a body cannot have.
        Ok(Sweep { kinds, search: search.map_err(|_| Unmaskable::TooMany)? })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        let found = |hit: aho_corasick::Match| {
            self.kinds.get(hit.pattern().as_usize()).map(|kind| Found { at: hit.range(), kind: *kind })
        };
        self.search.find_iter(text).filter_map(found)
    }
}

/// The values of a plain text, in order: where they are written, though it may be under escapes.
fn look(text: &str, whole: Option<Kind>, names: &Names, sweep: Option<&Sweep>) -> Vec<Found> {
    if let Some(kind) = whole {
        return vec![Found { at: 0..text.len(), kind }];
    }
    let says = decoded(text, Escapes::Unicode);
    let mut all = find::find(&says, names);
    if let Some(sweep) = sweep {
        all.extend(sweep.find(&says));
        all = find::merged(all);
    }
    if matches!(says, Cow::Borrowed(_)) || all.is_empty() {
        return all;
    }
    let mut at: Vec<usize> = all.iter().flat_map(|f| [f.at.start, f.at.end]).collect();
    places(text, Escapes::Unicode, &mut at);
    for (found, pair) in all.iter_mut().zip(at.chunks_exact(2)) {
        if let [from, to] = pair {
            found.at = *from..*to;
        }
    }
    all
}

/// The name that a message's author is given by the request itself.
fn participant(message: &str) -> Option<String> {
    let (mut user, mut name) = (false, None);
    json::members(message, |m| match m.key().as_ref() {
        "role" => user = m.value == "\"user\"",
        "name" => name = json::filled_text(m.value),
        _ => {}
    });
    name.filter(|_| user)
}

/// What is to be put where, in the text that was looked at.
type Change = (Range<usize>, String);

/// Looks at a text; the second argument says that all of it is a value.
type Look<'a> = dyn FnMut(&str, Option<Kind>) -> Vec<Change> + 'a;

struct Walk<'a, 'b> {
    body: &'a str,
    splices: Vec<Splice>,
    /// `None`: only the shape is looked at.
    look: Option<&'a mut Look<'b>>,
}

impl Walk<'_, '_> {
    fn request(&mut self, request: &ChatRequest) -> Result<(), Unmaskable> {
        let mut out = Ok(());
        json::members(request.text(), |m| {
            let key = m.key();
            let step = match key.as_ref() {
                "messages" => self.messages(m.value),
                "modalities" if m.value.contains("audio") => Err(Unmaskable::Sound),
                "audio" if m.value != "null" => Err(Unmaskable::Sound),
                key if LEFT.contains(&key) => Ok(()),
                _ => {
                    self.anything(m.raw_key);
                    self.anything(m.value);
                    Ok(())
                }
            };
            if out.is_ok() {
                out = step;
            }
        });
        out
    }

    fn messages(&mut self, messages: &str) -> Result<(), Unmaskable> {
        let mut out = Ok(());
        let list = json::elements(messages, |message| {
            let step = self.message(message);
            if out.is_ok() {
                out = step;
            }
        });
        if list { out } else { Err(Unmaskable::Shape) }
    }

    fn message(&mut self, message: &str) -> Result<(), Unmaskable> {
        let named = participant(message).is_some();
        let mut out = Ok(());
        let object = json::members(message, |m| {
            let step = match m.key().as_ref() {
                "role" | "tool_call_id" | "id" | "type" => Ok(()),
                "name" => {
                    if named {
                        self.string(m.value, Some(Kind::Name));
                    }
                    Ok(())
                }
                "content" => self.content(m.value),
                "tool_calls" => {
                    json::elements(m.value, |call| self.call(call));
                    Ok(())
                }
                "function_call" => {
                    self.function(m.value);
                    Ok(())
                }
                _ => {
                    self.anything(m.raw_key);
                    self.anything(m.value);
                    Ok(())
                }
            };
            if out.is_ok() {
                out = step;
            }
        });
        if object { out } else { Err(Unmaskable::Shape) }
    }

    fn content(&mut self, content: &str) -> Result<(), Unmaskable> {
        match content.as_bytes().first() {
            Some(b'"') => self.string(content, None),
            Some(b'n') => {}
            Some(b'[') => {
                let mut out = Ok(());
                json::elements(content, |part| {
                    let step = self.part(part);
                    if out.is_ok() {
                        out = step;
                    }
                });
                return out;
            }
            _ => return Err(Unmaskable::Shape),
        }
        Ok(())
    }

    /// Only parts that are known to be text can be searched.
    fn part(&mut self, part: &str) -> Result<(), Unmaskable> {
        if part.starts_with('"') {
            self.string(part, None);
            return Ok(());
        }
        let mut kinds = Vec::new();
        json::members(part, |m| {
            if m.key() == "type" {
                kinds.push(json::text(m.value));
            }
        });
        let text = |kind: &Option<String>| {
            matches!(
                kind.as_deref(),
                Some("text" | "input_text" | "output_text" | "refusal" | "thinking" | "reasoning")
            )
        };
        if kinds.is_empty() || !kinds.iter().all(text) {
            return Err(Unmaskable::Part);
        }
        json::members(part, |m| {
            if m.key() != "type" {
                self.anything(m.raw_key);
                self.anything(m.value);
            }
        });
        Ok(())
    }

    fn call(&mut self, call: &str) {
        json::members(call, |m| match m.key().as_ref() {
            "id" | "type" | "index" => {}
            "function" | "custom" => self.function(m.value),
            _ => {
                self.anything(m.raw_key);
                self.anything(m.value);
            }
        });
    }

    fn function(&mut self, function: &str) {
        json::members(function, |m| {
            if m.key() != "name" {
                self.anything(m.raw_key);
                self.anything(m.value);
            }
        });
    }

    /// Every string and number of a value.
    fn anything(&mut self, value: &str) {
        let Some(look) = &mut self.look else { return };
        let Some(at) = json::place(self.body, value) else { return };
        let mut changes = Vec::new();
        document(value, 0, look, &mut changes);
        self.splices.extend(changes.into_iter().map(|(r, text)| (r.start + at.start..r.end + at.start, text)));
    }

    /// One string.
    fn string(&mut self, value: &str, whole: Option<Kind>) {
        let Some(look) = &mut self.look else { return };
        let Some(at) = json::place(self.body, value) else { return };
        let Some(inside) = value.get(1..value.len().saturating_sub(1)) else { return };
        let from = at.start + 1;
        let changes = inner(inside, 0, whole, look);
        self.splices.extend(changes.into_iter().map(|(r, text)| (r.start + from..r.end + from, text)));
    }
}

/// The changes inside a JSON string, as it is written.
fn inner(inside: &str, level: usize, whole: Option<Kind>, look: &mut Look<'_>) -> Vec<Change> {
    let says = decoded(inside, Escapes::Json);
    let changes = plain(&says, level, whole, look);
    written(inside, changes)
}

/// Moves changes from what the inside of a JSON string says to where it is written.
fn written(raw: &str, changes: Vec<Change>) -> Vec<Change> {
    if changes.is_empty() {
        return changes;
    }
    let mut at: Vec<usize> = changes.iter().flat_map(|(r, _)| [r.start, r.end]).collect();
    places(raw, Escapes::Json, &mut at);
    let pairs = at.chunks_exact(2).filter_map(|pair| Some(*pair.first()?..*pair.last()?));
    pairs.zip(changes).map(|(at, (_, text))| (at, quoted_inside(&text))).collect()
}

/// The changes in a text: of the strings in it if it is JSON, else of itself.
fn plain(text: &str, level: usize, whole: Option<Kind>, look: &mut Look<'_>) -> Vec<Change> {
    let begins = matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'[' | b'"'));
    if whole.is_none()
        && begins
        && level < LEVELS_MAX
        && !json::deeper_than(text.as_bytes(), MAX_DEPTH)
        && json::is_whole(text.as_bytes())
    {
        let mut changes = Vec::new();
        document(text, level + 1, look, &mut changes);
        return changes;
    }
    look(text, whole)
}

/// The changes in a JSON document.
fn document(document: &str, level: usize, look: &mut Look<'_>, changes: &mut Vec<Change>) {
    tokens(document, |token| match token {
        Token::Text(at) => {
            let inside = document.get(at.clone()).unwrap_or_default();
            let found = inner(inside, level, None, look);
            changes.extend(found.into_iter().map(|(r, text)| (r.start + at.start..r.end + at.start, text)));
        }
        Token::Number(at) => {
            let number = document.get(at.clone()).unwrap_or_default();
            if is_card(number) {
                let found = look(number, Some(Kind::Card));
                // A number becomes a string: there is no other way to write the placeholder.
                changes.extend(found.into_iter().map(|(_, text)| (at.clone(), format!("\"{text}\""))));
            }
        }
    });
}
