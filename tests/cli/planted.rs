//! The checkers of `llmfo simulate` find bugs: seven are planted, in the driver or in a shell around the core, and every one is
//! caught; the same world without a bug is clean.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use llmfo::policy::{Policy, ProbeKind, TargetId};
use llmfo::router::decision::{Availability, Note};
use llmfo::router::{
    AttemptId, Engine, Failure, HandoffCause, Input, Machine, Output, Reply, RequestId, StatusFailure,
};
use llmfo::sim::outages::{Channel, Effect, Kind, Listed, Look, Outage, RateStorms, Source};
use llmfo::sim::run::{Core, Ran, run_on};
use llmfo::sim::scenario::{self, Options};
use llmfo::sim::setup::Setup;
use llmfo::units::Ts;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A probe that is cancelled never gives its place back: no other probe gets through.
    ProbePlaceLeaked,
    /// Response headers are taken for a whole answer.
    SuccessAtHeaders,
    /// A 429 is booked as a fault of the provider.
    RateLimitCounted,
    /// A stream that broke after commit is tried again elsewhere.
    AttemptAfterCommit,
    /// A hedge goes to a target where the data may not go.
    ResidencyIgnoredOnHedge,
    /// A request that has waited too long in the queue keeps its place: it has no end.
    QueuePlaceLeakedOnTimeout,
    /// While one request finds out whether a target is back, the next is sent there too.
    SecondLiveProbe,
}

struct Shell {
    bug: Bug,
    engine: Engine,
    out: VecDeque<Output>,
    probes: BTreeMap<AttemptId, TargetId>,
    leaked: Vec<TargetId>,
    dialled: BTreeMap<AttemptId, RequestId>,
    timed_out: Vec<RequestId>,
    probed_live: Option<TargetId>,
    abroad: TargetId,
    next: u64,
}

impl Shell {
    fn new(bug: Bug, policy: &Arc<Policy>) -> Shell {
        Shell {
            bug,
            engine: Engine::new(Arc::clone(policy), 7),
            out: VecDeque::new(),
            probes: BTreeMap::new(),
            leaked: Vec::new(),
            dialled: BTreeMap::new(),
            timed_out: Vec::new(),
            probed_live: None,
            abroad: policy.target_named("abroad").unwrap().id,
            next: 1 << 40,
        }
    }

    fn twist_input(&self, input: Input) -> Input {
        match (self.bug, input) {
            (Bug::SuccessAtHeaders, Input::Connected { attempt }) if self.dialled.contains_key(&attempt) => {
                Input::Ended { attempt, usage: None }
            }
            (Bug::RateLimitCounted, Input::Broke { attempt, failure: Failure::Status(s), reused })
                if s.status == 429 =>
            {
                let failure = Failure::Status(StatusFailure { status: 503, ..s });
                Input::Broke { attempt, failure, reused }
            }
            (_, input) => input,
        }
    }

    /// What comes of an output of the core.
    fn twist(&mut self, output: Output) {
        match &output {
            Output::Probe { attempt, target, .. } => {
                if self.leaked.contains(target) {
                    return;
                }
                self.probes.insert(*attempt, *target);
            }
            Output::Dial { request, attempt, .. } => {
                self.dialled.insert(*attempt, *request);
            }
            Output::Cancel { attempt } => {
                if self.bug == Bug::ProbePlaceLeaked
                    && !self.probes.contains_key(attempt)
                    && !self.dialled.contains_key(attempt)
                {
                    return;
                }
                if self.bug == Bug::ProbePlaceLeaked
                    && let Some(target) = self.probes.get(attempt)
                {
                    self.leaked.push(*target);
                }
            }
            Output::Reply { request, reply: Reply::Handoff { cause: HandoffCause::QueueTimeout, .. }, .. }
                if self.bug == Bug::QueuePlaceLeakedOnTimeout =>
            {
                self.timed_out.push(*request);
                return;
            }
            Output::Note(Note::Availability { target, now, .. }) => match now {
                Availability::Probing => self.probed_live = Some(*target),
                _ if self.probed_live == Some(*target) => self.probed_live = None,
                _ => {}
            },
            Output::Reply { request, .. } | Output::Done { request, .. } if self.timed_out.contains(request) => return,
            _ => {}
        }
        let mut output = output;
        if let (Bug::SecondLiveProbe, Output::Dial { target, .. }, Some(probed)) =
            (self.bug, &mut output, self.probed_live)
        {
            *target = probed;
        }
        match (self.bug, output) {
            (
                Bug::ResidencyIgnoredOnHedge,
                Output::Dial { request, attempt, limits, fresh, degraded, hedge: true, .. },
            ) => {
                let target = self.abroad;
                self.out.push_back(Output::Dial {
                    request,
                    attempt,
                    target,
                    limits,
                    fresh,
                    degraded,
                    hedge: true,
                    max_output_tokens: None,
                    mask: false,
                    withhold: llmfo::router::Withhold::Nothing,
                });
            }
            (Bug::AttemptAfterCommit, Output::Break { request, attempt, class }) => {
                self.out.push_back(Output::Break { request, attempt, class });
                self.next += 1;
                let limits = llmfo::router::Limits {
                    connect: Duration::from_secs(1),
                    answer: Duration::from_secs(2),
                    idle: Duration::from_secs(5),
                };
                let (attempt, target) = (AttemptId(self.next), TargetId(1));
                self.out.push_back(Output::Dial {
                    request,
                    attempt,
                    target,
                    limits,
                    fresh: true,
                    degraded: false,
                    hedge: false,
                    max_output_tokens: None,
                    mask: false,
                    withhold: llmfo::router::Withhold::Nothing,
                });
            }
            (_, output) => self.out.push_back(output),
        }
    }
}

impl Machine for Shell {
    fn handle(&mut self, now: Ts, input: Input) {
        let input = self.twist_input(input);
        self.engine.handle(now, input);
        while let Some(output) = self.engine.poll_output() {
            self.twist(output);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Ts> {
        self.engine.poll_timeout()
    }
}

impl Core for Shell {
    fn idle(&self) -> bool {
        self.engine.is_idle()
    }

    fn in_flight(&self, now: Ts) -> usize {
        self.engine.in_flight(now)
    }
}

/// The dual-channel policy with a third target abroad, where nothing of its route may go.
fn policy() -> Arc<Policy> {
    let text = llmfo::assets::get("policies/dual-channel.yaml").unwrap().text;
    let abroad = "targets:\n  abroad:\n    base_url: https://abroad.example/v1\n    model: chat-large\n    tier: standard\n    \
                  capabilities: { tools: true, json_schema: strict }\n    residency: [us]\n";
    let text = text
        .replacen("targets:\n", abroad, 1)
        .replace("targets: [channel-a, channel-b]", "targets: [channel-a, channel-b, abroad]")
        // So few slots that some wait too long for one, and a hedge well below the first-token limit.
        .replace(
            "slots: 64, failure_unit_slots: 16, reserve_slots: 16",
            "slots: 10, failure_unit_slots: 1, reserve_slots: 1",
        )
        .replace(
            "    max_attempts: 3\n",
            "    max_attempts: 3\n    hedge: { after_ms: 900 }\n    queue: { max_depth: 8, max_wait_ms: 700 }\n",
        );
    let (policy, found) = llmfo::policy::load("planted", text.as_bytes());
    Arc::new(policy.unwrap_or_else(|| panic!("{found:?}")))
}

/// A day with outages of all looks, and storms of 429s.
fn world(policy: &Arc<Policy>) -> Setup {
    let id = |name: &str| usize::from(policy.target_named(name).unwrap().id.0);
    let storms =
        RateStorms { every: Duration::from_secs(7_200), lasts: Duration::from_secs(120), share: 1.0, retry_after_s: 0 };
    let own = |name| {
        let channel = Channel::new(0.9, Duration::from_secs(300), None).unwrap();
        Source { targets: vec![id(name)], kind: Kind::Channel(channel) }
    };
    let silent = Outage { from: Ts::from_s(500), to: Ts::from_s(700), effect: Effect::Down(Look::Silence) };
    let sources = vec![
        Source { targets: vec![id("channel-a")], kind: Kind::Listed(Listed::new(vec![silent])) },
        own("channel-a"),
        own("channel-b"),
        Source { targets: vec![id("channel-a")], kind: Kind::RateStorms(storms) },
    ];
    scenario::with_sources(policy, sources, &Options { span: Duration::from_secs(86_400), ..Options::default() })
}

fn with_live_probes(policy: &Arc<Policy>) -> Arc<Policy> {
    let mut policy = Policy::clone(policy);
    policy.breaker.probe = ProbeKind::Live;
    Arc::new(policy)
}

fn run(bug: Bug) -> Ran {
    let mut policy = policy();
    if bug == Bug::SecondLiveProbe {
        policy = with_live_probes(&policy);
    }
    run_on(&world(&policy), Shell::new(bug, &policy), &mut |_| true)
}

#[track_caller]
fn caught(bug: Bug, by: &str) {
    let ran = run(bug);
    let rules: Vec<&str> = ran.violations.iter().map(|v| v.rule).collect();
    assert!(rules.contains(&by), "{bug:?} should be caught by `{by}`, but: {:?}", ran.violations);
}

#[test]
fn a_sound_core_is_clean() {
    let ran = run(Bug::None);
    assert_eq!(ran.violations, []);
    assert!(ran.figures.rate_limited > 10 && ran.figures.wasted > 100, "the world bites");
}

#[test]
fn a_sound_core_that_probes_with_requests_is_clean() {
    let policy = with_live_probes(&policy());
    let ran = run_on(&world(&policy), Shell::new(Bug::None, &policy), &mut |_| true);
    assert_eq!(ran.violations, []);
}

#[test]
fn a_second_live_probe_is_caught() {
    caught(Bug::SecondLiveProbe, "one probe at a time");
}

#[test]
fn a_leaked_probe_place_is_caught() {
    caught(Bug::ProbePlaceLeaked, "everybody comes back");
}

#[test]
fn success_at_headers_is_caught() {
    caught(Bug::SuccessAtHeaders, "success is a whole answer");
}

#[test]
fn a_429_in_the_breaker_is_caught() {
    caught(Bug::RateLimitCounted, "only faults of the provider count");
}

#[test]
fn an_attempt_after_commit_is_caught() {
    caught(Bug::AttemptAfterCommit, "no attempt after commit");
}

#[test]
fn a_hedge_abroad_is_caught() {
    caught(Bug::ResidencyIgnoredOnHedge, "no filter is relaxed");
}

#[test]
fn a_queue_place_leaked_on_a_timeout_is_caught() {
    caught(Bug::QueuePlaceLeakedOnTimeout, "nothing stays open");
}

#[test]
fn notes_are_what_the_shell_lets_through() {
    // The shell must not swallow what the checkers live on.
    let policy = policy();
    let mut shell = Shell::new(Bug::None, &policy);
    shell.twist(Output::Note(Note::Alert { target: TargetId(0), reason: "r".into(), text: "t".into() }));
    assert!(shell.poll_output().is_some());
}
