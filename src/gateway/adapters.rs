//! Adapters: a tested text that asks for a JSON schema where a target does not take the parameter. What comes back is held to
//! its end and checked against the schema, so that the client gets what the parameter would have given, or another target does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::targets::find;
use crate::check::{Schema, Verdict};
use crate::event::Event;
use crate::policy::{Policy, Route, Target, TargetId};
use crate::router::{Failure, Input};
use crate::units::printable;
use crate::wire::chunk::Chunk;
use crate::wire::sse::MAX_EVENT_BYTES;
use crate::wire::{AnswerChoice, ChatRequest, Secrets, SseReader, Transcript};

/// Longest text of an adapter, in bytes: it goes with every adapted request.
const TEXT_BYTES_MAX: u64 = 64 * 1024;

/// The texts that could be read, by target.
pub type Texts = BTreeMap<TargetId, Arc<str>>;

/// Reads the texts of a policy's adapters. Of each that cannot be read people are told: requests that need it skip its target.
#[must_use]
pub fn read(policy: &Policy, folder: &Path) -> (Texts, Vec<Event>) {
    let (mut texts, mut alerts) = (Texts::new(), Vec::new());
    for target in policy.live_targets().filter(|t| t.replaces_schema()) {
        match text(target, folder) {
            Ok(text) => drop(texts.insert(target.id, text)),
            Err(why) => alerts.push(Event::Alert {
                target: Some(target.name.clone()),
                reason: "adapter_unreadable".to_owned(),
                text: format!("the text of its adapter cannot be read: {why}; requests with a strict schema skip it"),
            }),
        }
    }
    (texts, alerts)
}

fn text(target: &Target, folder: &Path) -> Result<Arc<str>, String> {
    let said = target.adapter.as_ref().and_then(|a| a.system_suffix.as_deref()).unwrap_or_default();
    let path = find(folder, said.strip_prefix("file:").unwrap_or(said));
    let text = crate::files::text(Path::new(&path), TEXT_BYTES_MAX)
        .map_err(|why| format!("{}: {}", printable(&path, 120), printable(&why, 120)))?;
    if text.trim().is_empty() { Err(format!("{}: it is empty", printable(&path, 120))) } else { Ok(text.into()) }
}

/// The texts that hold now.
#[derive(Debug, Default)]
pub struct Adapters {
    now: RwLock<Arc<Texts>>,
}

impl Adapters {
    /// With these texts.
    #[must_use]
    pub fn new(texts: Texts) -> Adapters {
        Adapters { now: RwLock::new(Arc::new(texts)) }
    }

    fn now(&self) -> Arc<Texts> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Others hold from now on. Those of targets that are no longer there stay for the requests that are under way.
    pub fn hold(&self, texts: Texts) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = Texts::clone(&now);
        all.extend(texts);
        *now = Arc::new(all);
    }

    /// The text that asks this target for the schema of this request, if a text must.
    #[must_use]
    pub fn text(&self, target: &Target, request: &ChatRequest) -> Option<Arc<str>> {
        let needed = request.strict_schema && target.replaces_schema();
        needed.then(|| self.now().get(&target.id).cloned()).flatten()
    }
}

/// An adapter may stand in for a schema on this route.
#[must_use]
pub fn stand_in(policy: &Policy, route: &Route) -> bool {
    route.tiers.iter().flat_map(|tier| &tier.targets).any(|id| policy.target(*id).replaces_schema())
}

/// What the core is told.
#[must_use]
pub fn input(texts: &Texts) -> Input {
    Input::Adapters { targets: texts.keys().copied().collect() }
}

/// What an adapted answer must keep.
#[derive(Debug)]
pub struct Kept(Schema);

impl Kept {
    /// The schema of a request. `None`: it has none, or none that can be checked; then only a target that enforces it itself
    /// will do.
    #[must_use]
    pub fn of(request: &ChatRequest) -> Option<Kept> {
        Schema::compile(&request.schema()?).ok().map(Kept)
    }

    /// Judges an answer that was not streamed.
    ///
    /// # Errors
    /// It does not keep the schema.
    pub fn check(&self, choices: &[AnswerChoice]) -> Result<(), Failure> {
        // What ended otherwise than by itself (at its length, by a filter, in a refusal or with calls) would be no whole
        // document under the parameter either, and says so.
        let whole = |c: &&AnswerChoice| c.finish_reason.as_deref() == Some("stop") && c.refusal.is_empty();
        for choice in choices.iter().filter(whole) {
            if let Verdict::Fail(why) = self.0.check(&choice.text) {
                return Err(Failure::Quality(format!("an adapted answer: {}", printable(&why, 200))));
            }
        }
        Ok(())
    }

    /// Judges a stream by what the client would get of it.
    ///
    /// # Errors
    /// It does not keep the schema.
    pub fn check_stream(&self, out: &[Bytes]) -> Result<(), Failure> {
        let mut reader = SseReader::new(MAX_EVENT_BYTES);
        let mut said = Transcript::new(super::relay::attempt::ANSWER_BYTES_MAX);
        for bytes in out {
            reader.push(bytes.clone());
            while let Some(Ok(event)) = reader.next() {
                if let Ok(chunk) = Chunk::read(&event.data, &Secrets::default()) {
                    said.add(&chunk);
                }
            }
        }
        self.check(&said.facts().choices)
    }
}
