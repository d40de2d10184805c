//! What the ledger promises, whatever happens: a random application and a checker that sees what clients receive.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::policy::*;
use crate::router::ledger::{CallState, LedgerCall};
use crate::router::testkit::*;
use crate::router::*;

#[derive(Clone, Debug)]
enum Step {
    /// Conversation, turn, and whether the results of its calls are brought.
    Arrive(u8, u8, bool),
    /// The open request's model calls these tools.
    Calls(u8, Vec<u8>),
    Committed(u8),
    Ended(u8),
    Broke(u8),
    Unwritable(u8),
    Gone(u8),
    /// The process is killed and begins anew with what was written down.
    Killed,
}

const TOOLS: [&str; 3] = ["get_order", "create_ticket", "issue_refund"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u8..2, 1u8..3, any::<bool>()).prop_map(|(c, t, results)| Step::Arrive(c, t, results)),
        5 => (any::<u8>(), prop::collection::vec(0u8..3, 1..3)).prop_map(|(n, tools)| Step::Calls(n, tools)),
        2 => any::<u8>().prop_map(Step::Committed),
        3 => any::<u8>().prop_map(Step::Ended),
        2 => any::<u8>().prop_map(Step::Broke),
        1 => any::<u8>().prop_map(Step::Unwritable),
        2 => any::<u8>().prop_map(Step::Gone),
        1 => Just(Step::Killed),
    ];
    prop::collection::vec(step, 1..60)
}

type Place = (String, u64, u64);

/// An open request as its task sees it.
#[derive(Clone, Debug)]
struct Open {
    said: Conversation,
    attempt: AttemptId,
    calls: Vec<(Place, LedgerCall)>,
    committed: bool,
}

struct Run {
    drive: Drive,
    open: BTreeMap<RequestId, Open>,
    /// What a client has, or may have.
    received: BTreeMap<Place, LedgerCall>,
    /// What is on disk.
    disk: BTreeMap<String, (Place, LedgerCall)>,
    wording: u64,
}

fn drive() -> Drive {
    Kit::new()
        .target("a", |_| {})
        .target("b", |_| {})
        .route("r", &[&["a", "b"]], |r| r.max_attempts = 4)
        .change(|p| {
            let tool = |side_effects| Tool { side_effects, key_argument: Some("id".into()), handoff: false };
            p.tools.insert("get_order".into(), tool(SideEffects::None));
            p.tools.insert("create_ticket".into(), tool(SideEffects::Keyed));
        })
        .drive()
}

impl Run {
    fn new() -> Run {
        let (open, received, disk) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Run { drive: drive(), open, received, disk, wording: 0 }
    }

    fn pick(&self, n: u8) -> Option<RequestId> {
        self.open.keys().nth(usize::from(n) % self.open.len().max(1)).copied()
    }

    fn receive(&mut self, place: Place, call: LedgerCall) {
        match self.received.get(&place) {
            None => drop(self.received.insert(place, call)),
            Some(before) => {
                assert_ne!(call.side_effects, SideEffects::Unkeyed, "an unkeyed call twice: {place:?}");
                let same = |c: &LedgerCall| (c.call_id.clone(), c.tool.clone(), c.arguments.clone());
                assert_eq!(same(before), same(&call), "another call in the same place: {place:?}");
            }
        }
    }

    fn hear(&mut self) {
        for output in self.drive.take() {
            match output {
                Output::Dial { request, attempt, .. } => {
                    let open = self.open.get_mut(&request).expect("a request that is open");
                    (open.attempt, open.calls) = (attempt, Vec::new());
                }
                Output::Calls { request, place, calls, .. } => {
                    let at = place.expect("in a conversation");
                    let open = self.open.get_mut(&request).expect("a request that is open");
                    let placed = calls.into_iter().zip(at.first..);
                    let placed = placed.map(|(call, ordinal)| ((at.conversation.clone(), at.turn, ordinal), call));
                    open.calls = placed.collect();
                    for (place, call) in &open.calls {
                        let written = LedgerCall { state: CallState::Delivered, ..call.clone() };
                        self.disk.insert(call.call_id.clone(), (place.clone(), written));
                    }
                }
                Output::CallsAre { calls, state } => {
                    for id in calls {
                        self.disk.get_mut(&id).expect("it was written").1.state = state;
                    }
                }
                Output::Deliver { request, .. } => {
                    let open = self.open.get_mut(&request).expect("a request that is open");
                    open.committed = true;
                    for (place, call) in std::mem::take(&mut open.calls) {
                        self.receive(place, call);
                    }
                }
                Output::Reply { reply: Reply::FromLedger { calls }, .. } => {
                    for call in calls {
                        let place = self.disk[&call.call_id].0.clone();
                        self.receive(place, call);
                    }
                }
                Output::Done { request, .. } => drop(self.open.remove(&request)),
                _ => {}
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Arrive(conversation, turn, results) => {
                let (id, turn) = (format!("c{conversation}"), u64::from(turn));
                let mine: Vec<&LedgerCall> = self
                    .received
                    .iter()
                    .filter(|((c, t, _), _)| *c == id && *t == turn)
                    .map(|(_, call)| call)
                    .collect();
                let brought = if results { mine } else { Vec::new() };
                let said = Conversation {
                    client: "k".into(),
                    id,
                    turn,
                    history_version: None,
                    repeats: false,
                    calls_so_far: u32::try_from(brought.len()).unwrap(),
                    results: brought.into_iter().map(|call| call.call_id.clone()).collect(),
                };
                let facts = Facts { tools: true, risky_tools: true, conversation: Some(said.clone()), ..facts() };
                let next = RequestId(self.open.keys().last().map_or(0, |r| r.0) + self.wording + 1_000_000);
                let open = Open { said, attempt: AttemptId(0), calls: Vec::new(), committed: false };
                self.wording += 1;
                self.open.insert(next, open);
                self.drive.input(Input::Arrive { request: next, facts });
            }
            Step::Calls(n, tools) => {
                let Some(request) = self.pick(n) else { return };
                let open = &self.open[&request];
                // Once per attempt; a driver does not ask twice.
                if !open.calls.is_empty() || (open.committed && self.has(&open.said)) {
                    return;
                }
                let calls = tools.iter().map(|&t| {
                    self.wording += 1;
                    ProposedCall { tool: TOOLS[usize::from(t)].into(), arguments: format!("wording {}", self.wording) }
                });
                let calls = calls.collect();
                self.drive.input(Input::Calls { attempt: self.open[&request].attempt, calls });
            }
            Step::Committed(n) => {
                if let Some(request) = self.pick(n) {
                    self.drive.input(Input::Committed { attempt: self.open[&request].attempt });
                }
            }
            Step::Ended(n) => {
                let Some(request) = self.pick(n) else { return };
                self.may_have(request);
                self.drive.input(Input::Ended { attempt: self.open[&request].attempt, usage: None });
            }
            Step::Broke(n) => {
                let Some(request) = self.pick(n) else { return };
                self.may_have(request);
                let attempt = self.open[&request].attempt;
                self.drive.input(Input::Broke { attempt, failure: Failure::Reset, reused: false });
            }
            Step::Unwritable(n) => {
                let Some(request) = self.pick(n).filter(|r| !self.open[r].calls.is_empty()) else { return };
                let attempt = self.open[&request].attempt;
                self.drive.input(Input::Broke { attempt, failure: Failure::LedgerUnwritable, reused: false });
            }
            Step::Gone(n) => {
                let Some(request) = self.pick(n) else { return };
                self.may_have(request);
                self.drive.input(Input::ClientGone { request, stalled: false });
            }
            Step::Killed => self.kill(),
        }
        self.hear();
    }

    /// Calls behind text that is out are on their way as soon as they are on disk.
    fn may_have(&mut self, request: RequestId) {
        let open = self.open.get_mut(&request).expect("open");
        if open.committed {
            for (place, call) in std::mem::take(&mut open.calls) {
                self.receive(place, call);
            }
        }
    }

    /// This turn has a call already: the request's own answer has made it.
    fn has(&self, said: &Conversation) -> bool {
        self.received.keys().any(|(c, t, _)| *c == said.id && *t == said.turn)
    }

    fn kill(&mut self) {
        for request in self.open.keys().copied().collect::<Vec<_>>() {
            self.may_have(request);
        }
        self.open.clear();
        let mut known: BTreeMap<String, Remembered> = BTreeMap::new();
        for ((conversation, turn, ordinal), call) in self.disk.values() {
            let of = known.entry(conversation.clone()).or_insert_with(|| Remembered {
                client: "k".into(),
                route: "r".into(),
                id: conversation.clone(),
                age: std::time::Duration::ZERO,
                version: None,
                turns: vec![(1, 3)],
                calls: Vec::new(),
            });
            of.calls.push(RememberedCall { turn: *turn, ordinal: *ordinal, call: call.clone() });
        }
        self.drive = drive();
        self.drive.input(Input::Ledger { conversations: known.into_values().collect() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_place_has_one_call_and_an_unkeyed_one_goes_out_once(steps in steps()) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
        }
        // Whatever a client has is known to the ledger as delivered or confirmed.
        for (place, call) in &run.received {
            let known = &run.disk[&call.call_id];
            prop_assert_eq!(&known.0, place);
            prop_assert_ne!(known.1.state, CallState::Proposed);
        }
    }
}
