//! A drill file: what is declared, what is broken and how the application sees it, how long, and how much must be seen.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::{Limits, SpannedDoc, load};
use super::numbers::{Count, Ms, Ms0, Seconds, Share};
use crate::diag::Diagnostic;

/// Version of drill files. Keys are only added.
pub const DRILL_FORMAT: u32 = 1;

/// A drill: declare, steady state, inject at the network, outage, restore, recovery, judge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "llmfo drill")]
pub struct DrillFile {
    /// Version of this format.
    #[schemars(range(min = 1, max = 1))]
    pub format: u32,
    /// Name, as given to `llmfo drill run`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
    pub name: String,
    /// What it shows, in one sentence.
    pub description: String,
    /// Route whose objectives it inherits and whose conversations it drives.
    pub route: String,
    /// Objectives that are stricter than the route's.
    #[serde(default)]
    pub declare: Declare,
    /// The customers.
    #[serde(default)]
    pub load: Load,
    /// What must be seen before anything is broken.
    #[serde(default)]
    pub steady_state: SteadyState,
    /// Rounds in order: inject, outage, restore, recovery.
    #[schemars(length(min = 1, max = 32))]
    pub rounds: Vec<Round>,
    /// Go round again while too little was seen.
    #[serde(default)]
    pub repeat: Repeat,
    /// How much must be seen for a verdict; less is INVALID.
    #[serde(default)]
    pub needs: NeedsFile,
    /// Bounds of the run.
    #[serde(default)]
    pub limits: DrillLimits,
}

/// Objectives that are stricter than the route's. An absent one is inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Declare {
    /// Useful answers must be back within this.
    pub recovery_ms: Option<Ms>,
    /// 95th percentile of the time to useful text in the outage.
    pub useful_text_p95_ms: Option<Ms>,
    /// Requests that may wait at one moment.
    pub queue_max: Option<u32>,
    /// Turns that may be lost from a conversation.
    pub context_loss_turns: Option<u32>,
}

/// What customers do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Turns begun per second, on average, whether or not answers come.
    pub turns_per_s: TurnsPerSecond,
    /// Share of requests that are streamed.
    pub stream_share: Share,
    /// Kinds of turns, dealt in equal shares.
    #[schemars(length(min = 1))]
    pub kinds: Vec<TurnKind>,
}

impl Default for Load {
    fn default() -> Load {
        Load { turns_per_s: TurnsPerSecond(8.0), stream_share: Share(0.8), kinds: TurnKind::ALL.to_vec() }
    }
}

/// Turns per second: more than zero, at most a thousand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TurnsPerSecond(#[schemars(range(min = 0.1, max = 1000.0))] pub f64);

/// Kind of a turn in the lab's conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnKind {
    /// A text that names the order number.
    Order,
    /// A JSON answer by schema.
    Json,
    /// A ticket is opened.
    Ticket,
    /// A human takes over.
    Human,
    /// The order number of the first message must still be known.
    Recall,
    /// A long text.
    Long,
}

impl TurnKind {
    /// Every kind.
    pub const ALL: [TurnKind; 6] =
        [TurnKind::Order, TurnKind::Json, TurnKind::Ticket, TurnKind::Human, TurnKind::Recall, TurnKind::Long];

    /// Its name in the marker.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TurnKind::Order => "order",
            TurnKind::Json => "json",
            TurnKind::Ticket => "ticket",
            TurnKind::Human => "human",
            TurnKind::Recall => "recall",
            TurnKind::Long => "long",
        }
    }
}

/// The path must be well before it is broken: at least 99 % of the requests answered whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SteadyState {
    /// How long it is watched.
    pub for_ms: Ms,
    /// Turns that must have begun in it.
    pub min_turns: Count,
}

impl Default for SteadyState {
    fn default() -> SteadyState {
        SteadyState { for_ms: Ms(5000), min_turns: Count(15) }
    }
}

/// One injection with its outage and the recovery after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Name, shown in the report.
    pub name: String,
    /// What is broken, all at once.
    #[schemars(length(min = 1))]
    pub faults: Vec<Fault>,
    /// How long it stays broken.
    pub outage_ms: Ms,
    /// Limit of the watch after the restore; it ends early once the primary is back and `recovery_min_ms` are over.
    pub recovery_ms: Ms,
    /// Least time of the watch after the restore.
    #[serde(default)]
    pub recovery_min_ms: Ms0,
    /// The outage ends early once this many streams were cut.
    #[serde(default)]
    pub until_cut: Option<Count>,
    /// Customers pause until nothing is under way, then the faults are set, then customers go on: every answer meets them
    /// from its beginning.
    #[serde(default)]
    pub quiet_first: bool,
}

/// One fault on the paths that a selector names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which paths.
    pub select: Select,
    /// What the application sees.
    pub see: See,
    /// What connections see that are already open; absent: silence with `connect_timeout`, else the same.
    #[serde(default)]
    pub existing: Option<Existing>,
    /// `cut_after`: where in the answer.
    #[serde(default)]
    pub at: Option<CutAt>,
    /// `cut_after`: after this many events of a stream, instead of `at`.
    #[serde(default)]
    pub events: Option<Count>,
    /// `cut_after`: after this many bytes, instead of `at`.
    #[serde(default)]
    pub bytes: Option<Count>,
    /// `cut_after`: after this time, instead of `at`.
    #[serde(default)]
    pub ms: Option<Ms>,
    /// `cut_after`: how the connection ends; absent: `rst`.
    #[serde(default)]
    pub how: Option<CutHow>,
}

/// Which paths. Both must match; a selector that matches nothing is an error before anything is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// Region by name.
    pub region: String,
    /// Roles: `provider`, `entry`, `dependency` (all of them), or the role of one dependency.
    #[schemars(length(min = 1))]
    pub roles: Vec<String>,
}

/// What the application sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum See {
    /// New connections are refused, open ones closed.
    Refused,
    /// New connections are never accepted.
    ConnectTimeout,
    /// Connections stand, nothing passes.
    Silence,
    /// Connections are reset.
    Reset,
    /// Answers are cut inside.
    CutAfter,
}

/// What connections see that are already open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Existing {
    /// Nothing passes any more.
    Silence,
    /// They are closed.
    Closed,
}

/// Where an answer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CutAt {
    /// After the headers and the role chunk.
    BeforeContent,
    /// After some content (of a tool call: between its fragments).
    AfterContent,
    /// Inside the arguments of a tool call.
    InsideCall,
    /// After all arguments of a tool call, before the finish reason.
    AfterCall,
}

/// How a cut connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CutHow {
    /// Reset.
    Rst,
    /// Closed.
    Fin,
    /// Nothing passes any more.
    Silence,
}

/// Going round again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Repeat {
    /// Rounds in all, repetitions included; repeated only while `needs` are not met.
    pub max_rounds: Count,
}

impl Default for Repeat {
    fn default() -> Repeat {
        Repeat { max_rounds: Count(1) }
    }
}

/// How much must be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NeedsFile {
    /// Turns that began in an outage: at least one, or nobody was there.
    pub outage_turns: Count,
    /// Streams cut before content.
    pub cut_before_content: u32,
    /// Streams cut after content.
    pub cut_after_content: u32,
    /// Streams cut inside a tool call, or between its arguments and its finish.
    pub cut_inside_call: u32,
}

impl Default for NeedsFile {
    fn default() -> NeedsFile {
        NeedsFile { outage_turns: Count(1), cut_before_content: 0, cut_after_content: 0, cut_inside_call: 0 }
    }
}

/// Bounds of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrillLimits {
    /// After this the drill restores and ends ABORTED, whatever it was doing.
    pub max_duration_s: Seconds,
    /// A restore that takes longer is `restored_late`.
    pub restore_deadline_s: Seconds,
}

impl Default for DrillLimits {
    fn default() -> DrillLimits {
        DrillLimits { max_duration_s: Seconds(120.0), restore_deadline_s: Seconds(5.0) }
    }
}

/// Regions of the lab, whose paths a drill breaks.
pub const REGIONS: [&str; 2] = ["region-1", "region-2"];

/// What a selector can name: `dependency` means all of the roles after it.
pub const ROLES: [&str; 7] =
    ["provider", "entry", "dependency", "policy_store", "secrets_store", "history_store", "telemetry"];

/// Reads a drill file. `Some` only without error findings.
#[must_use]
pub fn read(name: &str, bytes: &[u8]) -> (Option<DrillFile>, Vec<Diagnostic>, SpannedDoc) {
    let (file, found, doc) = load::<DrillFile>(name, bytes, &Limits::DEFAULT);
    let broken = found.iter().any(Diagnostic::is_error);
    (file.filter(|_| !broken), found, doc)
}

/// What is wrong with the parts of a fault taken together, which a schema cannot say: for each, the JSON pointer and a
/// sentence.
#[must_use]
pub fn contradictions(file: &DrillFile) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (r, round) in file.rounds.iter().enumerate() {
        for (f, fault) in round.faults.iter().enumerate() {
            let at = |key: &str| format!("/rounds/{r}/faults/{f}{key}");
            let points = [fault.at.is_some(), fault.events.is_some(), fault.bytes.is_some(), fault.ms.is_some()];
            let given = points.iter().filter(|p| **p).count();
            if fault.see == See::CutAfter {
                if given != 1 {
                    out.push((at("/see"), "cut_after needs exactly one of at, events, bytes, ms".into()));
                }
                if fault.existing.is_some() {
                    out.push((at("/existing"), "cut_after counts every answer alike: leave existing out".into()));
                }
            } else if given > 0 || fault.how.is_some() {
                out.push((at("/see"), "at, events, bytes, ms and how belong to cut_after".into()));
            }
            let refuses = matches!(fault.see, See::Refused | See::Reset);
            if refuses && fault.existing == Some(Existing::Silence) {
                out.push((at("/existing"), "connections that are refused or reset cannot be silent".into()));
            }
        }
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (r, round) in file.rounds.iter().enumerate() {
        if let Some(first) = seen.insert(&round.name, r) {
            out.push((format!("/rounds/{r}/name"), format!("round {} has this name already", first + 1)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
format: 1
name: my-drill
description: Breaks the provider of region 1.
route: support-chat
rounds:
  - name: outage
    faults:
      - { select: { region: region-1, roles: [provider] }, see: connect_timeout, existing: silence }
    outage_ms: 10000
    recovery_ms: 6000
";

    fn codes(text: &str) -> Vec<String> {
        let (_, found, _) = read("d.yaml", text.as_bytes());
        found.iter().map(|d| format!("{} {}", d.rule.code, d.place.line)).collect()
    }

    #[test]
    fn a_good_file_is_read_with_its_defaults() {
        let (file, found, _) = read("d.yaml", GOOD.as_bytes());
        assert!(found.is_empty(), "{found:#?}");
        let file = file.unwrap();
        assert_eq!((file.steady_state.for_ms, file.repeat.max_rounds), (Ms(5000), Count(1)));
        assert_eq!(file.rounds[0].faults[0].existing, Some(Existing::Silence));
        assert_eq!(file.needs.outage_turns, Count(1));
        assert!(contradictions(&file).is_empty());
    }

    #[test]
    fn a_misspelt_fault_is_an_error_never_a_drill_without_one() {
        assert_eq!(codes(&GOOD.replace("see: connect_timeout", "see: conect_timeout")), ["LF008 8"]);
        assert_eq!(codes(&GOOD.replace("see: connect_timeout", "se: connect_timeout")), ["LF004 8"]);
        assert_eq!(codes(&GOOD.replace("outage_ms: 10000", "outage_ms: 0")), ["LF007 9"]);
        assert_eq!(codes(&GOOD.replace("    outage_ms: 10000\n", "")).len(), 1);
        assert_eq!(codes(&format!("{GOOD}needs: {{ outage_turns: 0 }}\n")), ["LF007 11"]);
        assert_eq!(codes(&GOOD.replace("format: 1", "format: 2")), ["LF007 1"]);
        assert!(read("d.yaml", GOOD.replace("rounds:", "round:").as_bytes()).0.is_none());
    }

    #[test]
    fn parts_that_contradict_each_other_are_found() {
        let with = |fault: &str| {
            let text = GOOD.replace("see: connect_timeout, existing: silence", fault);
            let (file, found, _) = read("d.yaml", text.as_bytes());
            assert!(found.is_empty(), "{found:#?}");
            contradictions(&file.unwrap()).into_iter().map(|(p, _)| p).collect::<Vec<_>>()
        };
        assert_eq!(with("see: cut_after"), ["/rounds/0/faults/0/see"]);
        assert_eq!(with("see: cut_after, at: before_content, events: 2"), ["/rounds/0/faults/0/see"]);
        assert_eq!(with("see: silence, how: rst"), ["/rounds/0/faults/0/see"]);
        assert_eq!(with("see: refused, existing: silence"), ["/rounds/0/faults/0/existing"]);
        assert_eq!(with("see: cut_after, at: inside_call, how: fin"), Vec::<String>::new());
    }
}
