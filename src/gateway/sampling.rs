//! Live sampling: a share of what customers are answered is judged by the checks of the group, beside the traffic.
//!
//! What is judged is a copy of the answer as the provider sent it: of a masked request the masked text, never the restored one.
//! The copy is bounded, waits in a bounded queue and is thrown away, counted, where that is full. Nothing of it is written
//! anywhere but which invariant was broken at whom.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::adapters::Kept;
use super::app::App;
use super::driver::Watcher;
use super::golden::Set;
use crate::check::Verdict;
use crate::check::golden::{Asked, live};
use crate::event::Event;
use crate::policy::{Policy, Route, TargetId};
use crate::wire::{AnswerFacts, ChatRequest, Overheard, Secrets, read_answer};

/// Largest answer that is judged, in bytes as sent. Those of a support conversation have some kilobytes.
const SAMPLE_BYTES_MAX: usize = 256 * 1024;
/// Largest schema that an answer is judged by.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Answers that wait to be judged.
const WAITING_MAX: usize = 64;
/// Samples at one moment, those included that are still coming: with the bound above, 32 MiB.
const ALIVE_MAX: usize = 128;

/// What will be judged, taken while it comes.
#[derive(Clone)]
pub struct Sample {
    bytes: Vec<u8>,
    too_large: bool,
    streamed: bool,
    masked: bool,
    json: bool,
    schema: Option<Bytes>,
    tools: Vec<String>,
    set: Option<Arc<Set>>,
    /// Counted as long as it is there.
    _alive: Arc<()>,
}

/// Says how much it holds, and nothing of it: it is about a customer.
impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Sample {
    /// More of the answer.
    pub fn add(&mut self, data: &[u8]) {
        if self.bytes.len() + data.len() > SAMPLE_BYTES_MAX {
            self.too_large = true;
            self.bytes = Vec::new();
        }
        if !self.too_large {
            self.bytes.extend_from_slice(data);
        }
    }

    fn facts(&self) -> Option<AnswerFacts> {
        if !self.streamed {
            return read_answer(&self.bytes, None, &Secrets::default()).ok();
        }
        let mut heard = Overheard::new(SAMPLE_BYTES_MAX);
        heard.add(Bytes::copy_from_slice(&self.bytes));
        let said = heard.end();
        (!said.cut_short()).then(|| said.facts())
    }

    /// Names of what is broken, each with why.
    fn judge(&self) -> Option<Vec<(&'static str, String)>> {
        let facts = self.facts()?;
        let kept = self.schema.as_ref().and_then(|text| Kept::of(&serde_json::from_slice(text).ok()?));
        let by_schema = kept.as_ref().map(|kept| move |text: &str| kept.verdict(text));
        let asked = Asked {
            tools: &self.tools,
            json: self.json,
            schema: by_schema.as_ref().map(|check| check as &dyn Fn(&str) -> Verdict),
            masked: self.masked,
        };
        let verdicts = live(&asked, self.set.as_ref().map(|set| &set.golden), &facts);
        let broken = verdicts.into_iter().filter(|(_, verdict)| verdict.failed());
        Some(broken.map(|(i, verdict)| (i.name(), verdict.why().unwrap_or_default().to_owned())).collect())
    }
}

/// A sample on its way.
#[derive(Debug)]
struct Waiting {
    route: String,
    target: String,
    sample: Box<Sample>,
}

/// Who takes samples.
#[derive(Debug)]
pub struct Sampler {
    seen: AtomicU64,
    alive: Arc<()>,
    to: mpsc::Sender<Waiting>,
    from: Mutex<Option<mpsc::Receiver<Waiting>>>,
}

impl Default for Sampler {
    fn default() -> Sampler {
        let (to, from) = mpsc::channel(WAITING_MAX);
        Sampler { seen: AtomicU64::new(0), alive: Arc::new(()), to, from: Mutex::new(Some(from)) }
    }
}

impl Sampler {
    /// This one is taken. Spread evenly, and not in step with anything that comes in turns.
    fn takes(&self, share: f64) -> bool {
        if share <= 0.0 {
            return false;
        }
        // SplitMix64: a plain counter would always meet the same route of two that alternate.
        let mut z = self.seen.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // The upper 53 bits fit a float exactly.
        (((z ^ (z >> 31)) >> 11) as f64) < share * (1u64 << 53) as f64
    }

    /// Puts a sample where it will be judged; false if there is no room. Never waits.
    fn put(&self, route: &str, target: &str, sample: &Sample) -> bool {
        let (route, target) = (route.to_owned(), target.to_owned());
        self.to.try_send(Waiting { route, target, sample: Box::new(sample.clone()) }).is_ok()
    }
}

impl App {
    /// Whether the answer of this dial will be judged. Only where its tier has a group: that says by what.
    pub(super) fn sample(
        &self,
        policy: &Policy,
        route: &Route,
        target: TargetId,
        request: &ChatRequest,
        masked: bool,
    ) -> Option<Box<Sample>> {
        let tier = route.tiers.iter().find(|tier| tier.targets.contains(&target))?;
        let group = tier.group.as_ref()?;
        let share = policy.groups.get(group)?.sampling;
        if !self.sampler.takes(share) {
            return None;
        }
        // The sampler's own handle is one of them.
        if Arc::strong_count(&self.sampler.alive) > ALIVE_MAX {
            self.metrics.sample_dropped("busy");
            return None;
        }
        Some(Box::new(Sample {
            bytes: Vec::new(),
            too_large: false,
            streamed: request.stream,
            masked,
            json: request.wants_json(),
            schema: request.schema_text().filter(|text| text.len() <= SCHEMA_BYTES_MAX).map(Bytes::copy_from_slice),
            tools: request.tools.clone(),
            set: self.golden.of(group),
            _alive: Arc::clone(&self.sampler.alive),
        }))
    }

    /// An answer that was taken is complete.
    pub(super) fn sampled(&self, route: &str, target: &str, sample: &Sample) {
        if sample.too_large {
            return self.metrics.sample_dropped("too_large");
        }
        if !self.sampler.put(route, target, sample) {
            self.metrics.sample_dropped("busy");
        }
    }
}

/// Judges what was taken, one after the other, as long as the gateway lives.
pub async fn judge(app: Weak<App>) {
    let from = app.upgrade().and_then(|app| app.sampler.from.lock().unwrap_or_else(PoisonError::into_inner).take());
    let Some(mut from) = from else { return };
    while let Some(Waiting { route, target, sample }) = from.recv().await {
        // A schema may be costly to compile: not on a thread that carries traffic.
        let judged = tokio::task::spawn_blocking(move || sample.judge()).await.ok().flatten();
        let Some(app) = app.upgrade() else { return };
        let Some(broken) = judged else {
            app.metrics.sample_dropped("unreadable");
            continue;
        };
        app.metrics.sampled(&route, &target);
        for (invariant, why) in broken {
            app.metrics.violation(&route, &target, invariant);
            if let Some(left_out) = app.told_violation(&target, invariant) {
                tracing::warn!(route = %route, target = %target, invariant, why = %why, left_out, "sampled answer broke an invariant");
            }
            let event = Event::InvariantViolated {
                route: route.clone(),
                target: target.clone(),
                invariant: invariant.to_owned(),
                why,
            };
            Watcher::event(&*app, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_taken_is_the_share_that_was_asked_for() {
        for (share, least, most) in [(0.0, 0, 0), (0.05, 420, 580), (0.5, 4_800, 5_200), (1.0, 10_000, 10_000)] {
            let sampler = Sampler::default();
            let taken = (0..10_000).filter(|_| sampler.takes(share)).count();
            assert!((least..=most).contains(&taken), "{share}: {taken}");
        }
    }

    fn sample(streamed: bool) -> Sample {
        let (bytes, too_large, masked, json) = (Vec::new(), false, false, true);
        let schema = Some(Bytes::from_static(br#"{"type":"object","required":["a"]}"#));
        Sample { bytes, too_large, streamed, masked, json, schema, tools: Vec::new(), set: None, _alive: Arc::new(()) }
    }

    #[test]
    fn whole_and_streamed_answers_are_judged_alike() {
        let whole = |text: &str| {
            let mut s = sample(false);
            let body = serde_json::json!({"choices":[{"message":{"content":text},"finish_reason":"stop"}]});
            s.add(body.to_string().as_bytes());
            s.judge().unwrap()
        };
        let streamed = |text: &str| {
            let mut s = sample(true);
            let (first, rest) = text.split_at(text.len() / 2);
            for part in [first, rest] {
                let body = serde_json::json!({"choices":[{"index":0,"delta":{"content":part}}]});
                s.add(format!("data: {body}\n\n").as_bytes());
            }
            s.add(b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
            s.judge().unwrap()
        };
        assert_eq!((whole(r#"{"a":1}"#), streamed(r#"{"a":1}"#)), (Vec::new(), Vec::new()));
        for text in [r#"{"b":"Jane"}"#, "Dear Jane"] {
            let (whole, streamed) = (whole(text), streamed(text));
            assert_eq!(whole, streamed);
            assert!(whole.len() == 1 && whole[0].0 == "schema" && !whole[0].1.contains("Jane"), "{whole:?}");
        }
    }

    #[test]
    fn where_nobody_judges_samples_are_thrown_away_and_nobody_waits() {
        let sampler = Sampler::default();
        let taken = (0..3 * WAITING_MAX).filter(|_| sampler.put("r", "t", &sample(true))).count();
        assert_eq!(taken, WAITING_MAX);
    }

    #[test]
    fn a_sample_is_bounded() {
        let mut s = sample(true);
        s.add(&vec![b'x'; SAMPLE_BYTES_MAX]);
        assert!(!s.too_large);
        s.add(b"x");
        s.add(b"y");
        assert!(s.too_large && s.bytes.is_empty());
    }
}
