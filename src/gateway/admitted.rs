//! What admission records speak about, held against what really happens: who answers (model name and fingerprint), and by which
//! system prompt it is asked. A record about something else is evidence of nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::app::App;
use super::driver::Watcher;
use super::held::Held;
use super::relay::attempt::Ended;
use crate::event::Event;
use crate::policy::{Route, TargetId, sha256_hex};
use crate::router::Input;
use crate::units::printable;
use crate::wire::ChatRequest;

/// Strange names remembered; beyond, nothing more is told until the records are read again. Who changes its name with each
/// answer has been told of by then.
const STRANGE_MAX: usize = 256;

/// Who was tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The model's own name.
    pub model: String,
    /// Its fingerprint, where it gave one.
    pub fingerprint: Option<String>,
}

/// What the records of a policy say.
#[derive(Clone, Debug, Default)]
pub struct Admissions {
    /// Who was tested, by target: one entry for each of its groups that has a record.
    pub identities: BTreeMap<TargetId, Vec<Identity>>,
    /// SHA-256 of the system prompt, by group and target, where a record says so.
    pub prompts: BTreeMap<(String, TargetId), String>,
}

#[derive(Debug, Default)]
struct Told {
    strange: BTreeSet<(TargetId, String)>,
    prompts: BTreeSet<(String, TargetId)>,
}

/// What holds now, and what people were told.
#[derive(Debug, Default)]
pub struct Admitted {
    now: Held<Admissions>,
    told: Mutex<Told>,
}

impl Admitted {
    /// With these.
    #[must_use]
    pub fn new(admissions: Admissions) -> Admitted {
        Admitted { now: Held::new(admissions), told: Mutex::default() }
    }

    /// Others hold from now on; people are told anew.
    pub fn hold(&self, admissions: Admissions) {
        self.now.hold(admissions);
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Told::default();
    }

    /// SHA-256 of a request's system prompt, if any record speaks about prompts. Without one it is that of no text.
    #[must_use]
    pub fn prompt(&self, request: &ChatRequest) -> Option<String> {
        let speaks = !self.now.now().prompts.is_empty();
        speaks.then(|| sha256_hex(request.system_text().unwrap_or_default().as_bytes()))
    }

    /// What this answer is told to be, if its target's records speak about another model. `None` also if that was told before.
    fn strange(&self, target: TargetId, ended: &Ended) -> Option<String> {
        let now = self.now.now();
        let tested = now.identities.get(&target)?;
        let model = ended.model.as_ref().filter(|model| !tested.iter().any(|t| t.model == **model));
        let had_one = tested.iter().any(|t| t.fingerprint.is_some());
        let known = |f: &str| tested.iter().any(|t| t.fingerprint.as_deref() == Some(f));
        let fingerprint = ended.fingerprint.as_ref().filter(|f| had_one && !known(f));
        let what = match (model, fingerprint) {
            (None, None) => return None,
            (Some(model), None) => format!("model {}", printable(model, 80)),
            (None, Some(fingerprint)) => format!("fingerprint {}", printable(fingerprint, 80)),
            (Some(model), Some(f)) => format!("model {}, fingerprint {}", printable(model, 80), printable(f, 80)),
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        (told.strange.len() < STRANGE_MAX && told.strange.insert((target, what.clone()))).then_some(what)
    }
}

impl App {
    /// An answer of somebody else than was tested: people are told, and a probe finds out whether it is as good.
    pub(super) fn look_who_answered(&self, target: TargetId, name: &str, ended: &Ended) {
        let Some(what) = self.admitted.strange(target, ended) else { return };
        let text = format!(
            "{}: its answers come from {what}, which its admission record does not speak about: its evidence is suspect until \
             it is evaluated again; a probe looks at it now",
            printable(name, 60)
        );
        let reason = "evidence_suspect".to_owned();
        Watcher::event(self, Event::Alert { target: Some(name.to_owned()), client: None, route: None, reason, text });
        self.driver.ordered(Input::Suspect { target });
    }

    /// In a first tier another system prompt than the one that was tested keeps nobody out: people are told, once for each target.
    pub(super) fn look_at_prompt(&self, route: &Route, prompt: Option<&str>) {
        let (Some(prompt), Some(tier)) = (prompt, route.tiers.first()) else { return };
        let Some(group) = &tier.group else { return };
        let now = self.admitted.now.now();
        for target in &tier.targets {
            let key = (group.clone(), *target);
            if now.prompts.get(&key).is_none_or(|tested| tested == prompt) {
                continue;
            }
            self.metrics.unevaluated_prompt(&route.name);
            let new = self.admitted.told.lock().unwrap_or_else(PoisonError::into_inner).prompts.insert(key);
            if new {
                let name = self.target_name(*target);
                let text = format!(
                    "{}: route {} is asked by a system prompt that its admission record for the group {} does not speak about; \
                     it answers as a first choice, and would not as a stand-in",
                    printable(&name, 60),
                    printable(&route.name, 60),
                    printable(group, 60)
                );
                let reason = "evidence_prompt".to_owned();
                Watcher::event(self, Event::Alert { target: Some(name), client: None, route: None, reason, text });
            }
            return;
        }
    }
}
