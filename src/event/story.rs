//! One customer's story out of a journal: which requests, who was asked and why, who was passed over and since when, what the
//! client got. From the journal alone: the gateway may be gone.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{CLIENT_ROUTE_UNKNOWN, Event, Stamped};

/// Version of [`Story`]. Members are only added.
pub const STORY_FORMAT: u32 = 1;
/// Requests told of at most; the newest ones.
pub const REQUESTS_MAX: usize = 1_000;
/// Changes remembered of one target, and targets of which they are remembered.
const CHANGES_MAX: usize = 64;
const TARGETS_MAX: usize = 10_000;
/// What concerns one client or one route alone: so many are remembered of all of them.
const SOME_MAX: usize = 10_000;

/// One dial, as the decision record has it. Milliseconds since the request arrived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dial {
    /// Target by name.
    pub target: String,
    /// Why it was chosen.
    pub why: String,
    /// Class of its outcome.
    pub class: String,
    /// Named reason of its outcome.
    pub reason: String,
    /// Personal data was masked for it.
    pub masked: bool,
    /// What remained of the deadline before it.
    pub remaining_ms_before: u64,
    /// When it was dialled.
    pub dialled_ms: f64,
    /// When it was connected.
    pub connected_ms: Option<f64>,
    /// When the first sign of life came.
    pub first_token_ms: Option<f64>,
    /// When its answer committed the client.
    pub committed_ms: Option<f64>,
    /// When it was over.
    pub ended_ms: f64,
}

/// A target that was not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PassedOver {
    /// Target by name.
    pub target: String,
    /// Named reason.
    pub reason: String,
    /// More, for people.
    pub detail: String,
}

/// What failover would have done, where it was only observed. Nobody was asked for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WouldHave {
    /// Who was asked.
    pub from: String,
    /// Who would have been asked; `None`: nobody.
    pub to: Option<String>,
    /// Named reason.
    pub reason: String,
    /// `after <target>: <reason>` or `instead of <target>: <reason>`.
    pub why: String,
    /// When, since arrival.
    pub at_ms: f64,
}

/// The parts of a decision record that are told.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Record {
    route: String,
    stream: bool,
    intent: Option<String>,
    outcome: String,
    handoff: Option<serde_json::Value>,
    target: Option<String>,
    attempts: Vec<Dial>,
    skipped: Vec<PassedOver>,
    observed: Vec<WouldHave>,
    total_ms: f64,
}

/// Something that was so, or became so, about a target or the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstance {
    /// When, Unix milliseconds.
    pub at_unix_ms: u64,
    /// About which target; `None`: about the whole gateway.
    pub target: Option<String>,
    /// In a few words.
    pub text: String,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Its id.
    pub request: String,
    /// Its conversation, if the client named one.
    pub conversation: Option<String>,
    /// The turn.
    pub turn: Option<u64>,
    /// Whose key it came with, where clients have keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// When it arrived, Unix milliseconds.
    pub arrived_unix_ms: u64,
    /// Arrival to the end of everything.
    pub total_ms: f64,
    /// Version and SHA-256 of the policy that held when it was over, where the journal goes back so far.
    pub policy: Option<(String, String)>,
    /// Route by name.
    pub route: String,
    /// Streamed or not.
    pub stream: bool,
    /// Intent as the client said it.
    pub intent: Option<String>,
    /// How it ended.
    pub outcome: String,
    /// What led to a handoff.
    pub handoff: Option<String>,
    /// Who answered.
    pub target: Option<String>,
    /// Dials in order.
    pub attempts: Vec<Dial>,
    /// Targets passed over.
    pub skipped: Vec<PassedOver>,
    /// What failover would have done, where it was only observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<WouldHave>,
    /// What held at its arrival for the targets named above, and what changed while it was under way.
    pub circumstances: Vec<Circumstance>,
}

/// The story.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// [`STORY_FORMAT`].
    pub format: u32,
    /// What was looked for.
    pub id: String,
    /// Oldest first.
    pub requests: Vec<Told>,
    /// Older ones that are not told of.
    pub left_out: u64,
    /// Failures of a request that is not over by the end of the journal.
    pub unfinished: Vec<Circumstance>,
}

/// A circumstance, and whether it is the state of a target: an order or an alert beside it ends no state.
#[derive(Clone, Debug)]
struct Heard {
    state: bool,
    /// It concerns the requests of this client, or on this route, and no others.
    client: Option<String>,
    route: Option<String>,
    said: Circumstance,
}

/// Reads a journal line by line.
#[derive(Debug)]
pub struct Teller {
    id: String,
    policy: Option<(String, String)>,
    of_targets: BTreeMap<String, VecDeque<Heard>>,
    of_all: VecDeque<Heard>,
    /// What concerns one client or one route: kept apart, since many of those would push out what concerns everybody.
    of_some: VecDeque<Heard>,
    requests: VecDeque<Told>,
    left_out: u64,
    unfinished: Vec<(String, Circumstance)>,
}

impl Teller {
    /// Looks for a request id, a correlation id (`<conversation>/<turn>`) or a conversation.
    #[must_use]
    pub fn new(id: &str) -> Teller {
        Teller {
            id: id.to_owned(),
            policy: None,
            of_targets: BTreeMap::new(),
            of_all: VecDeque::new(),
            of_some: VecDeque::new(),
            requests: VecDeque::new(),
            left_out: 0,
            unfinished: Vec::new(),
        }
    }

    /// The next event, in the order in which they were written.
    pub fn hear(&mut self, said: &Stamped) {
        let at = said.at_unix_ms;
        match &said.event {
            // A gateway that starts knows nothing of what was before it.
            Event::Started { policy, policy_sha256, .. } => {
                self.policy = Some((policy.clone(), policy_sha256.clone()));
                self.of_targets.clear();
                self.all(at, "the gateway started".to_owned());
            }
            Event::PolicyReplaced { policy, policy_sha256, .. } => {
                self.policy = Some((policy.clone(), policy_sha256.clone()));
                self.all(at, format!("policy {policy} holds from here on"));
            }
            Event::CoreRebuilt { requests } => {
                self.of_targets.clear();
                self.all(at, format!("the core was rebuilt; {requests} requests got an error"));
            }
            Event::Availability { target, state, reason, for_ms } => {
                let span = for_ms.map(|ms| format!(" for {:.1} s", ms as f64 / 1e3)).unwrap_or_default();
                self.heard(at, target, true, format!("{state}{span} ({reason})"));
            }
            Event::Order { order, state, target, fault, reason, for_ms } => {
                let what = fault.as_ref().map_or_else(|| order.clone(), |fault| format!("{order} {fault}"));
                let span = for_ms.map(|ms| format!(" for {} s", ms / 1_000)).unwrap_or_default();
                let text = format!("operator: {what} {state}{span}: {reason}");
                match target {
                    Some(target) => self.target(at, target, text),
                    None => self.all(at, text),
                }
            }
            Event::Alert { target: Some(target), reason, text, .. } => {
                self.target(at, target, format!("{reason}: {text}"));
            }
            // Written before alerts named their client: whose it is cannot be known, and most requests are of others.
            Event::Alert { target: None, client: None, reason, .. } if reason == CLIENT_ROUTE_UNKNOWN => {}
            Event::Alert { target: None, client: None, route: None, reason, text } => {
                self.all(at, format!("{reason}: {text}"));
            }
            Event::Alert { target: None, client, route, reason, text } => {
                let said = Circumstance { at_unix_ms: at, target: None, text: format!("{reason}: {text}") };
                let heard = Heard { state: false, client: client.clone(), route: route.clone(), said };
                keep(&mut self.of_some, heard, SOME_MAX);
            }
            Event::AttemptFailed { target, class, reason, probe: false, request: Some(request), conversation } => {
                if self.means(request, conversation.as_deref(), None) && self.unfinished.len() < REQUESTS_MAX {
                    let text = format!("request {request}: attempt failed: {reason} ({class})");
                    let of = Circumstance { at_unix_ms: at, target: Some(target.clone()), text };
                    self.unfinished.push((request.clone(), of));
                }
            }
            Event::Decision { request, conversation, turn, client, record } => {
                self.unfinished.retain(|(of, _)| of != request);
                if self.means(request, conversation.as_deref(), *turn) {
                    let told = self.told(at, request, conversation.as_ref(), *turn, client.as_ref(), record);
                    if self.requests.len() == REQUESTS_MAX {
                        self.requests.pop_front();
                        self.left_out += 1;
                    }
                    self.requests.push_back(told);
                }
            }
            // A sample says nothing about when or whether a target was asked.
            Event::InvariantViolated { .. }
            | Event::AttemptFailed { .. }
            | Event::Phase { .. }
            | Event::Fault { .. }
            | Event::Stopped { .. } => {}
        }
    }

    /// The end of the journal.
    #[must_use]
    pub fn end(self) -> Story {
        Story {
            format: STORY_FORMAT,
            id: self.id,
            requests: self.requests.into(),
            left_out: self.left_out,
            unfinished: self.unfinished.into_iter().map(|(_, of)| of).collect(),
        }
    }

    /// Where a turn is not known, its conversation is enough.
    fn means(&self, request: &str, conversation: Option<&str>, turn: Option<u64>) -> bool {
        if self.id == request {
            return true;
        }
        let Some(rest) = conversation.and_then(|c| self.id.strip_prefix(c)) else { return false };
        match (rest, turn) {
            ("", _) => true,
            (rest, Some(turn)) => rest.strip_prefix('/').is_some_and(|n| n == turn.to_string()),
            (rest, None) => rest.starts_with('/'),
        }
    }

    fn told(
        &self,
        at_unix_ms: u64,
        request: &str,
        conversation: Option<&String>,
        turn: Option<u64>,
        client: Option<&String>,
        record: &super::Record,
    ) -> Told {
        let record: Record = record.read().unwrap_or_default();
        let total_ms = record.total_ms.max(0.0);
        let arrived_unix_ms = at_unix_ms.saturating_sub(total_ms as u64);
        let mut names: Vec<&String> = record.attempts.iter().map(|d| &d.target).collect();
        names.extend(record.skipped.iter().map(|s| &s.target));
        names.sort_unstable();
        names.dedup();
        let mut circumstances = Vec::new();
        for of in names.into_iter().filter_map(|name| self.of_targets.get(name)).chain([&self.of_all]) {
            let (before, meanwhile): (Vec<&Heard>, Vec<&Heard>) =
                of.iter().partition(|heard| heard.said.at_unix_ms <= arrived_unix_ms);
            let last = before.last().filter(|last| !last.state);
            let state = before.iter().rev().find(|heard| heard.state);
            circumstances.extend(state.into_iter().chain(last).chain(&meanwhile).map(|heard| heard.said.clone()));
        }
        let of_it = |heard: &&Heard| {
            let own = |about: &Option<String>, its: Option<&String>| about.is_none() || about.as_ref() == its;
            own(&heard.client, client) && own(&heard.route, Some(&record.route))
        };
        let (before, meanwhile): (Vec<&Heard>, Vec<&Heard>) =
            self.of_some.iter().filter(of_it).partition(|heard| heard.said.at_unix_ms <= arrived_unix_ms);
        circumstances.extend(before.last().copied().into_iter().chain(meanwhile).map(|heard| heard.said.clone()));
        circumstances.sort_by_key(|c| c.at_unix_ms);
        Told {
            request: request.to_owned(),
            conversation: conversation.cloned(),
            turn,
            client: client.cloned(),
            arrived_unix_ms,
            total_ms,
            policy: self.policy.clone(),
            route: record.route,
            stream: record.stream,
            intent: record.intent,
            outcome: record.outcome,
            handoff: record.handoff.map(|h| h.as_str().map_or_else(|| h.to_string(), str::to_owned)),
            target: record.target,
            attempts: record.attempts,
            skipped: record.skipped,
            observed: record.observed,
            circumstances,
        }
    }

    fn target(&mut self, at_unix_ms: u64, target: &str, text: String) {
        self.heard(at_unix_ms, target, false, text);
    }

    fn heard(&mut self, at_unix_ms: u64, target: &str, state: bool, text: String) {
        if !self.of_targets.contains_key(target) && self.of_targets.len() == TARGETS_MAX {
            return;
        }
        let of = self.of_targets.entry(target.to_owned()).or_default();
        let said = Circumstance { at_unix_ms, target: Some(target.to_owned()), text };
        keep(of, Heard { state, client: None, route: None, said }, CHANGES_MAX);
    }

    fn all(&mut self, at_unix_ms: u64, text: String) {
        let said = Circumstance { at_unix_ms, target: None, text };
        keep(&mut self.of_all, Heard { state: false, client: None, route: None, said }, CHANGES_MAX);
    }
}

fn keep(of: &mut VecDeque<Heard>, new: Heard, most: usize) {
    if of.len() == most {
        of.pop_front();
    }
    of.push_back(new);
}

#[cfg(test)]
mod tests;
