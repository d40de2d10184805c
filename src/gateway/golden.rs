//! The golden sets of a policy's groups, and which case of them a probe asks a target.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::adapters;
use super::app::App;
use super::held::Held;
use super::targets::{Dialable, find};
use crate::assets;
use crate::check::golden::{Golden, Needs};
use crate::diag::Diagnostic;
use crate::error::{Expected, Result};
use crate::event::Event;
use crate::lint;
use crate::policy::{JsonSchema, Pii, Policy, Target, sha256_hex};
use crate::spec::document::Limits;
use crate::spec::golden::{self, GoldenFile};
use crate::units::printable;
use crate::wire::ChatRequest;
use crate::wire::changes::Changes;
use crate::wire::mask::{self, Masked, Names};

/// A golden set that was read.
#[derive(Debug)]
pub struct Set {
    /// What it says.
    pub golden: Golden,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// Golden sets by group.
pub type Sets = BTreeMap<String, Arc<Set>>;

/// Reads the golden set of every group that names one: beside the policy, in the folder above, or the one that is compiled in
/// under that path. One that is nowhere is told of; its group is probed by the built-in question.
///
/// # Errors
/// One that is there and cannot be used: file, line and what is wrong.
pub fn read(policy: &Policy, folder: &Path) -> Result<(Sets, Vec<Event>)> {
    let (mut sets, mut alerts) = (Sets::new(), Vec::new());
    for (name, group) in &policy.groups {
        let Some(said) = &group.golden_set else { continue };
        let said = said.strip_prefix("file:").unwrap_or(said);
        let path = find(folder, said);
        let (shown, bytes) = if Path::new(&path).exists() {
            let most = u64::try_from(Limits::DEFAULT.max_bytes).unwrap_or(u64::MAX);
            let bytes = crate::files::bytes_of_file(Path::new(&path), most)
                .map_err(|why| unusable(name, &printable(&path, 200), &printable(&why, 200)))?;
            (path, bytes)
        } else if let Some(asset) = assets::get(said) {
            (asset.path.to_owned(), asset.text.as_bytes().to_vec())
        } else {
            alerts.push(Event::Alert {
                target: None,
                client: None,
                route: None,
                reason: "golden_set_missing".to_owned(),
                text: format!(
                    "group {}: its golden set {} is not there; its targets are probed by one built-in question, whatever they \
                     answer",
                    printable(name, 60),
                    printable(said, 120)
                ),
            });
            continue;
        };
        let golden = one(name, &printable(&shown, 200), &bytes)?;
        sets.insert(name.clone(), Arc::new(Set { golden, sha256: sha256_hex(&bytes) }));
    }
    Ok((sets, alerts))
}

fn one(group: &str, shown: &str, bytes: &[u8]) -> Result<Golden> {
    let (file, mut found, doc) = golden::read(shown, bytes);
    let compiled = file.as_ref().map(|file: &GoldenFile| Golden::compile(file.clone()));
    if let Some(file) = &file {
        let schemas = compiled.as_ref().and_then(|c| c.as_ref().err()).map_or(&[][..], Vec::as_slice);
        found.extend(lint::golden::check(file, &doc, schemas));
    }
    match (compiled, found.iter().find(|d| d.is_error())) {
        (Some(Ok(golden)), None) => Ok(golden),
        (_, Some(first)) => Err(refused(group, shown, first)),
        (_, None) => Err(unusable(group, shown, "it cannot be read")),
    }
}

fn refused(group: &str, shown: &str, first: &Diagnostic) -> Expected {
    let Diagnostic { place, message, rule, .. } = first;
    unusable(group, &format!("{shown}:{}:{}", place.line, place.column), &format!("{message} ({})", rule.code))
}

fn unusable(group: &str, place: &str, why: &str) -> Expected {
    Expected::usage(
        format!("{place}: the golden set of group {} cannot be used: {why}", printable(group, 60)),
        "`llmfo validate` of that file shows everything that is wrong with it",
    )
}

/// The sets that hold now.
#[derive(Debug)]
pub struct GoldenSets {
    now: Held<Sets>,
}

impl GoldenSets {
    /// With these.
    #[must_use]
    pub fn new(sets: Sets) -> GoldenSets {
        GoldenSets { now: Held::new(sets) }
    }

    /// Others hold from now on.
    pub fn hold(&self, sets: Sets) {
        self.now.hold(sets);
    }

    /// The set of a group.
    #[must_use]
    pub fn of(&self, group: &str) -> Option<Arc<Set>> {
        self.now.now().get(group).cloned()
    }
}

/// A case as a target is asked it.
pub struct Question {
    /// The set.
    pub set: Arc<Set>,
    /// The case's place in it.
    pub case: usize,
    /// The target must get it masked, as it would get a customer's.
    mask: bool,
}

/// Where a target stands: in the first tier that holds it, as its limits are taken from there.
fn stands(policy: &Policy, target: &Target) -> Option<(String, bool)> {
    let mut tiers = policy.live_routes().flat_map(|route| route.tiers.iter().map(move |tier| (route, tier)));
    let (route, tier) = tiers.find(|(_, tier)| tier.targets.contains(&target.id))?;
    let member = || policy.groups.iter().find(|(_, g)| g.members.contains(&target.id)).map(|(name, _)| name.clone());
    let group = tier.group.clone().or_else(member)?;
    Some((group, route.pii(tier) == Pii::Masked))
}

/// The case that this probe asks, each of the set's in turn; `None`: there is none that the target could answer, and the built-in
/// question is asked.
#[must_use]
pub fn question(app: &App, dialable: &Dialable) -> Option<Question> {
    let target = &dialable.target;
    let (group, mask) = stands(&app.policy(), target)?;
    let set = app.golden.of(&group)?;
    let texts = app.adapters.now();
    let adapted = target.replaces_schema() && texts.contains_key(&target.id);
    let can = |needs: Needs| {
        let schema = target.capabilities.json_schema == JsonSchema::Strict || adapted;
        (!needs.tools || target.capabilities.tools) && (!needs.schema || schema)
    };
    let fit: Vec<usize> = set.golden.probes().iter().copied().filter(|n| can(set.golden.needs(*n))).collect();
    let turn = dialable.probe_turn.fetch_add(1, Ordering::Relaxed);
    let case = *fit.get(turn.checked_rem(fit.len())?)?;
    Some(Question { set, case, mask })
}

impl Question {
    /// The request as this target gets it: by the way of a customer's. `limit`: what it calls the limit of output tokens.
    ///
    /// # Errors
    /// It cannot be made: a bug, or a case that cannot be masked.
    pub fn request(
        &self,
        app: &App,
        target: &Target,
        limit: &str,
    ) -> std::result::Result<(Vec<Bytes>, Option<Arc<Masked>>), String> {
        let body = self.set.golden.body(self.case, &target.model, limit);
        let request = ChatRequest::parse(Bytes::from(body)).map_err(|bad| bad.message)?;
        let masked = self.mask.then(|| mask::mask(&request, &Names::default()));
        let masked = masked.transpose().map_err(|_| "the case cannot be masked".to_owned())?.map(Arc::new);
        let adapted = adapters::text_for(&app.adapters.now(), target, &request);
        let changes = Changes { schema_by: adapted.as_deref(), limit_name: limit, ..Changes::default() };
        Ok((request.send(&target.model, &changes, masked.as_deref()), masked))
    }
}
